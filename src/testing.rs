//! For authors of a [`Store`](crate::Store): a conformance kit, and a wrapper that injects faults.
//!
//! # Checking a store
//!
//! [`store_tests!`](crate::store_tests) makes one named test of every case of the kit:
//!
//! ```
//! # use tower_idempotency::MemoryStore;
//! # async fn make_store() -> MemoryStore { MemoryStore::new() }
//! tower_idempotency::store_tests!(make_store().await);
//! # fn main() {}
//! ```
//!
//! The tests need `tokio` with the features `macros` and `rt-multi-thread` among your dev-dependencies. The expression is
//! evaluated once in each test, and gives a [`Store`](crate::Store) or a pointer to one. If it needs a server that is not there, let
//! it panic: a test that passes without its server says nothing.
//!
//! Each case uses scopes and keys of its own, made at random, and wipes nothing, so that all of them can run in parallel and
//! against a database that others use. They leave records behind that expire within the hour, a few that never do, and
//! at most some megabytes. The cases run in real time, for the clock that counts is the store's, and a busy machine
//! makes them slower, not wrong. (A store that keeps Tokio's time can be checked in paused time too.)
//!
//! Each case is a plain function as well, which panics where the store breaks the contract or fails, and [`CASES`] lists them all, for a runner of your own:
//!
//! ```
//! # use tower_idempotency::{MemoryStore, testing};
//! # #[tokio::main] async fn main() {
//! let store = MemoryStore::new();
//! testing::a_first_claim_is_acquired_as_attempt_one(&store).await;
//! # }
//! ```
//!
//! # A complete store
//!
//! The example `custom_store`, which runs the kit on the store it defines:
//!
//! ```
#![doc = include_str!("../examples/custom_store.rs")]
//! ```
//!
//! # Injecting faults
//!
//! [`Faulty`] wraps a store and makes chosen calls fail, hang or take long, to see what an application does then.

#![allow(clippy::missing_panics_doc, reason = "panicking is what a case of the kit is for")]

mod cancelling;
mod case;
mod claiming;
mod completing;
mod expiring;
mod faulty;
mod fencing;
mod leasing;
mod support;

pub use self::{
    cancelling::*,
    case::{CASES, Case},
    claiming::*,
    completing::*,
    expiring::*,
    faulty::{Fault, Faulty, Operation},
    fencing::*,
    leasing::*,
};
