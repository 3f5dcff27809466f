//! The idempotency key: what the client sent, parsed and validated.

use std::{fmt, sync::Arc};

use crate::fingerprint::Digest;

/// An idempotency key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// Returns the text of the key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({})", Digest::of(self.0.as_bytes()).short())
    }
}
