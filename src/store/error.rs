//! What a store reports when it could not do what it was asked.

use std::{error::Error as StdError, fmt};

/// A store that could not do what it was asked.
///
/// The kinds are what a caller can act on; the cause is reachable through [`source`](StdError::source).
#[derive(Debug)]
pub struct StoreError {
    kind: Kind,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unavailable,
    Full,
    Rejected,
    Damaged,
}

impl StoreError {
    /// The store cannot be reached, did not answer in time, or failed.
    #[must_use]
    pub fn unavailable(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Unavailable, source: Some(cause.into()) }
    }

    /// The store has no room for another record; nothing was written.
    #[must_use]
    pub fn full() -> Self {
        Self { kind: Kind::Full, source: None }
    }

    /// The store will never take this write as it is, for instance because the response is too long for it. The layer
    /// then keeps only that the request was done.
    #[must_use]
    pub fn rejected(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Rejected, source: Some(cause.into()) }
    }

    /// The record exists but cannot be read: it is damaged or of a newer format. It must not be run again.
    #[must_use]
    pub fn damaged(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Damaged, source: Some(cause.into()) }
    }

    /// Tells whether the store could not be reached or failed.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.kind == Kind::Unavailable
    }

    /// Tells whether the store had no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }

    /// Tells whether the store refused a write for good.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        self.kind == Kind::Rejected
    }

    /// Tells whether the record exists but cannot be read.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.kind == Kind::Damaged
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Unavailable => "the idempotency store is unavailable",
            Kind::Full => "the idempotency store is full",
            Kind::Rejected => "the idempotency store refuses to write this",
            Kind::Damaged => "the idempotency record cannot be read",
        })
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
