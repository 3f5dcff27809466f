//! The idempotency key: what the client sent, parsed and validated.

use std::{fmt, sync::Arc};

use crate::fingerprint::Digest;

/// An idempotency key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// Takes a key as it is after decoding: 1 to 255 characters of visible ASCII.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if it is empty, too long, or has other characters.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        let valid = (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if valid { Ok(Self(text.into())) } else { Err(KeyError) }
    }

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

/// A text that is not an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyError;

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the idempotency key is not valid")
    }
}

impl std::error::Error for KeyError {}
