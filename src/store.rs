//! The `Store` contract: what a backend must do so that the promises of this crate hold.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use uuid::Uuid;

use crate::{Fingerprint, IdempotencyKey, Scope, StoredResponse};

mod error;
#[cfg(feature = "postgres")]
pub(crate) mod group;
#[cfg(feature = "memory")]
pub(crate) mod memory;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod transaction;

pub use error::StoreError;
pub use transaction::{Committed, StoreTransaction, TransactionalStore};

/// Keeps the records: who owns a key, and what was answered.
///
/// A record is identified by its [`RecordId`]. It is absent, in flight (claimed, the lease runs), abandoned (claimed,
/// the lease ended without a completion) or completed. A record whose time is over is absent, whether or not it
/// has been purged.
///
/// # Contract
///
/// * **Atomic.** Each method is one atomic step. Of any number of concurrent claims of one record, in any number of
///   processes, exactly one acquires it. [`claim`](Store::claim) decides and writes in one statement: never read first
///   and write later.
/// * **Fenced.** Every write after the claim carries the [`Token`] of the claim. If the record's token is another one,
///   the answer is [`Fenced::Lost`] and nothing changes, not one byte. An ended lease alone fences nobody: the holder of
///   an abandoned record may still complete, renew or release it, as long as nobody took it over.
/// * **One clock.** The store's own clock decides about leases and expiry. Durations go in and durations come out, exact
///   to the millisecond; a duration too long for the store's clock means "for ever" and must neither overflow nor wrap.
/// * **Durable.** When a write reports success, the record survives whatever the store promises to survive.
/// * **No policy.** A store compares no fingerprints, knows no HTTP, and retries nothing but its own transient conflicts.
/// * **Cancel safe.** The layer may drop any of these futures at any time. A dropped call has happened or has not; it
///   must not leave a broken connection behind or block a record for longer than its lease.
///
/// The kit in [`testing`](crate::testing) (feature `testing`) checks all of it.
///
/// # Errors
///
/// Every method reports a failure as a [`StoreError`]. A call that failed may still have had its effect (the answer
/// got lost on its way); repeating it with the same token is always safe.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// Makes the caller the owner of a record, or reports the record that stands in its way.
    ///
    /// * Absent: a record is made, in flight, attempt 1, with the claim's token and fingerprint. Acquired.
    /// * Abandoned, and `claim.replaces` is the record's token: the record is in flight again, with the claim's token and
    ///   fingerprint and the attempt raised by one. Acquired. (A takeover.)
    /// * Otherwise nothing changes, and the record is reported. A record that already carries the claim's own token is
    ///   reported as any other: the caller knows its token.
    ///
    /// The record lives for the lease's term plus [`Lease::unsettled`].
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError>;

    /// Makes the lease run for `lease.term` from now; a term of zero ends it at once, and the record is abandoned.
    ///
    /// [`Fenced::Applied`] if the record is in flight or abandoned under this token. Otherwise (absent, completed,
    /// another token) [`Fenced::Lost`].
    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError>;

    /// Stores the response and ends the claim; the record lives for `retention` from now.
    ///
    /// [`Fenced::Applied`] if the record is in flight or abandoned under this token. If it is already completed under
    /// this token, nothing changes and the answer is `Applied` too, so that a completion whose answer got lost can be
    /// repeated. Otherwise [`Fenced::Lost`].
    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError>;

    /// Removes the record, so that the next claim acquires it as new.
    ///
    /// [`Fenced::Applied`] if the record was in flight or abandoned under this token. A completed record is never
    /// released. Otherwise [`Fenced::Lost`].
    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError>;

    /// Reads a record without changing it.
    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError>;

    /// Removes at most `limit` records whose time is over, and returns how many were removed.
    ///
    /// A result below `limit` means that nothing more is due now. In-flight records are never removed.
    async fn purge(&self, limit: usize) -> Result<usize, StoreError>;
}

/// Identifies a record: scope and key together.
///
/// A store must keep the identity injective: `("a", "b:c")` and `("a:b", "c")` are two records. Clones are cheap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecordId {
    scope: Scope,
    key: IdempotencyKey,
}

impl RecordId {
    /// Puts scope and key together.
    #[must_use]
    pub fn new(scope: Scope, key: IdempotencyKey) -> Self {
        Self { scope, key }
    }

    /// Returns whose key it is.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns what the client sent.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }
}

/// Marks the owner of a claim: random, made by this crate, unknown to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(Uuid);

impl Token {
    /// Makes a new random token (UUID version 4).
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns the token as a UUID, for a store that keeps it.
    #[must_use]
    pub fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// Restores a token that a store kept.
    #[must_use]
    pub fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

/// Says how long a claim holds without a sign of life, and how long its record outlives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// How long the claim holds, counted by the store from the moment it is written.
    pub term: Duration,
    /// How long an abandoned record is kept after its lease ended, if nobody takes it over.
    pub unsettled: Duration,
}

/// What a request wants to write when it claims a record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewClaim {
    /// The mark of the new owner.
    pub token: Token,
    /// What makes two requests the same; kept, never compared by the store.
    pub fingerprint: Fingerprint,
    /// How long the claim holds.
    pub lease: Lease,
    /// The token of the abandoned claim that this one may take over.
    pub replaces: Option<Token>,
}

impl NewClaim {
    /// Makes a claim that takes nothing over.
    #[must_use]
    pub fn new(token: Token, fingerprint: Fingerprint, lease: Lease) -> Self {
        Self { token, fingerprint, lease, replaces: None }
    }

    /// Allows the claim to take over an abandoned record that carries the token `previous`.
    #[must_use]
    pub fn replacing(mut self, previous: Token) -> Self {
        self.replaces = Some(previous);
        self
    }
}

/// The outcome of a claim.
#[must_use = "a claim that was not acquired must not run the handler"]
#[derive(Debug, Clone)]
pub enum Claim {
    /// The caller owns the record now.
    Acquired {
        /// 1 for a new record, raised by one with each takeover.
        attempt: u32,
    },
    /// A record stands in the way; nothing was changed.
    Existing(Record),
}

/// The outcome of a write by the holder of a token.
#[must_use = "a lost claim means that somebody else owns the record"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// The write is done.
    Applied,
    /// The record is not the caller's any more; nothing was changed.
    Lost,
}

/// A record as the store holds it at the moment of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The mark of the latest owner.
    pub token: Token,
    /// The fingerprint of the latest claim.
    pub fingerprint: Fingerprint,
    /// How many claims the record has seen, 1 for the first.
    pub attempt: u32,
    /// What became of the latest claim.
    pub state: State,
}

impl Record {
    /// Makes a record, for a store that read one.
    #[must_use]
    pub fn new(token: Token, fingerprint: Fingerprint, attempt: u32, state: State) -> Self {
        Self { token, fingerprint, attempt, state }
    }
}

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The owner is at work.
    InFlight {
        /// How long the lease still runs; above zero.
        lease_left: Duration,
    },
    /// The lease ended, and nobody completed or released the record.
    Abandoned {
        /// How long ago the lease ended.
        since: Duration,
    },
    /// The response is stored.
    Completed(StoredResponse),
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<S: Store + ?Sized> Store for $pointer {
            async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
                (**self).claim(id, claim).await
            }

            async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
                (**self).renew(id, token, lease).await
            }

            async fn complete(
                &self,
                id: &RecordId,
                token: Token,
                response: &StoredResponse,
                retention: Duration,
            ) -> Result<Fenced, StoreError> {
                (**self).complete(id, token, response, retention).await
            }

            async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
                (**self).release(id, token).await
            }

            async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
                (**self).lookup(id).await
            }

            async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
                (**self).purge(limit).await
            }
        }
    )*};
}

forward!(Arc<S>, Box<S>);
