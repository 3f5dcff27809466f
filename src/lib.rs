//! A Tower layer that makes unsafe HTTP requests safe to retry.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
mod fingerprint;
mod key;
mod response;
mod scope;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use body::Body;
pub use fingerprint::Fingerprint;
pub use key::{IdempotencyKey, KeyError};
pub use response::{DamagedResponse, StoredResponse};
pub use scope::Scope;
pub use store::Store;
#[cfg(feature = "memory")]
pub use store::memory::{MemoryStore, WhenFull};
