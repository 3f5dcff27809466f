//! The fingerprint: SHA-256 over what makes two requests the same.

use std::fmt;

use sha2::{Digest as _, Sha256};

mod frames;
mod json;
mod media;
mod multipart;
mod policy;
mod run;

pub use policy::Fingerprinter;
pub(crate) use run::Run;

/// SHA-256 over what makes two requests the same.
///
/// A retry must have the fingerprint of the first request; another one under the same key is a mismatch. A
/// [`Fingerprinter`] says what goes in. Stores keep the 32 bytes and never compare them.
///
/// ```
/// use tower_idempotency::Fingerprint;
///
/// let fingerprint = Fingerprint::from_bytes([7; 32]);
/// assert_eq!(fingerprint.as_bytes(), &[7; 32]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Restores a fingerprint that a store kept, or takes one that a function made.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes that a store has to keep.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", Digest(self.0).short())
    }
}

/// A SHA-256 digest, for printing what must not be printed itself.
pub(crate) struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the first eight hexadecimal digits.
    pub(crate) fn short(&self) -> String {
        self.0[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests;
