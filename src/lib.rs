//! A Tower layer that makes unsafe HTTP requests safe to retry.
//!
//! The client puts a unique `Idempotency-Key` on each unsafe request. The first request with a key runs; every retry gets
//! the same answer (byte for byte, without `Set-Cookie` and `Date`) and does not run again. A retry with other content is
//! refused, a retry while the first request runs gets 409 or waits.
//!
//! ```
//! # #[cfg(feature = "memory")] {
//! use axum::{Router, http::StatusCode, routing::post};
//! use tower_idempotency::{IdempotencyLayer, MemoryStore};
//!
//! async fn create_charge(body: String) -> (StatusCode, String) {
//!     (StatusCode::CREATED, body)
//! }
//!
//! let app: Router = Router::new()
//!     .route("/v1/charges", post(create_charge))
//!     .layer(IdempotencyLayer::new(MemoryStore::new()));
//! # }
//! ```
//!
//! # Where to look
//!
//! * [`IdempotencyLayer`]: the layer and all its options, each with its default.
//! * [`Attempt`]: what a handler can learn about its own run.
//! * [`NothingExecuted`] and [`CutShort`]: how a handler says that nothing was done, or that it was cut off in the middle.
//! * [`OnAbandoned`]: what happens to a key whose process died.
//! * [`Rejection`]: why the layer answers by itself, and how.
//! * [`Store`]: the contract of a backend; [`MemoryStore`] and `PostgresStore` are two, `testing` checks others.
//! * [`Purge`]: removes the records whose time is over.
//!
//! # What it does not do
//!
//! It does not make the handler's own effects atomic, save for what a handler writes in the transaction of a store that has
//! them ([`transactional`](IdempotencyLayer::transactional)): if the process dies after a gateway charged and before the answer was
//! stored, the next attempt runs again, and [`Attempt::is_rerun`] tells it so if the store outlived the process. It does not
//! retry for the client. It does not limit how many requests are open, and the number of runs only by
//! [`max_runs`](IdempotencyLayer::max_runs).
//!
//! # Features
//!
//! * `memory` (default): [`MemoryStore`].
//! * `axum` (default): [`Attempt`] as an extractor, and axum's `OriginalUri` in the fingerprint, so that a nested router,
//!   which hides the start of the path, cannot make two routes look like one.
//! * `postgres`: `PostgresStore`, for any number of instances, and `PostgresTransaction`, by which a handler's writes commit
//!   together with its answer. Needs Rust 1.94.
//! * `testing`: the conformance kit for authors of a store, and a wrapper that injects faults.
//!
//! # Runtime
//!
//! Guarded requests need Tokio with its time driver: for leases, time limits, and for runs whose client has gone. While runs
//! last, a thread wakes their runtime up a few times per lease, so that a handler that blocks a thread does not keep the
//! timers from running.

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
mod kick;
mod layer;
mod obligation;
mod owned;
mod profile;
mod purge;
#[cfg(doctest)]
mod readme;
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
pub use purge::{Purge, PurgeHandle, PurgeStatus};
pub use reject::Rejection;
pub use response::{CutShort, DamagedResponse, NothingExecuted, StoredResponse};
pub use scope::Scope;
pub use service::Idempotency;
pub use store::Store;
#[cfg(feature = "memory")]
pub use store::memory::{MemoryStore, WhenFull};
#[cfg(all(feature = "postgres", feature = "axum"))]
pub use store::postgres::NoTransaction;
#[cfg(feature = "postgres")]
pub use store::postgres::{
    InvalidIdentifier, Isolation, PostgresStore, PostgresTransaction, TransactionError, TransactionGuard,
};
