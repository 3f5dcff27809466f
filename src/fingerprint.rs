//! The fingerprint: SHA-256 over what makes two requests the same.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// SHA-256 over what makes two requests the same.
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
/// stub
#[derive(Debug, Clone, Default)]
pub struct Fingerprinter {}
pub(crate) struct Run(Sha256);
impl Fingerprinter {
    /// n
    pub fn new() -> Self {
        Self {}
    }
    pub(crate) fn start(&self, _head: &http::request::Parts, _scoped: bool) -> Run {
        Run(Sha256::new())
    }
}
impl Run {
    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.0.update(piece)
    }
    pub(crate) fn finish(
        self,
        _policy: &Fingerprinter,
        _head: &http::request::Parts,
        _body: &bytes::Bytes,
    ) -> Fingerprint {
        Fingerprint(self.0.finalize().into())
    }
}
