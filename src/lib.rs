//! A Tower layer that makes unsafe HTTP requests safe to retry.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod answers;
mod attempt;
mod body;
mod capture;
mod catch;
mod config;
mod decide;
mod executions;
#[cfg(feature = "axum")]
mod extract;
mod fingerprint;
mod flow;
mod future;
mod key;
mod layer;
mod obligation;
mod owned;
mod profile;
mod reject;
mod renew;
mod replay;
mod response;
mod scope;
mod service;
mod settle;
mod shared;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod wait;

pub use attempt::Attempt;
pub use body::Body;
pub use config::{Abandoned, Ask, OnAbandoned, StoreOutage, Verdict};
pub use fingerprint::{Fingerprint, Fingerprinter};
pub use future::ResponseFuture;
pub use key::{IdempotencyKey, KeyError, KeySyntax};
pub use layer::{IdempotencyLayer, Settled};
pub use profile::{Profile, UnknownProfile};
pub use reject::Rejection;
pub use response::{DamagedResponse, NothingExecuted, StoredResponse};
pub use scope::Scope;
pub use service::Idempotency;
pub use store::Store;
#[cfg(feature = "memory")]
pub use store::memory::{MemoryStore, WhenFull};
