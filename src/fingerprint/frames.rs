//! SHA-256 over fields that cannot run into each other.

use http::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};

use super::Fingerprint;

/// Changes with every change of what is hashed, so that fingerprints of two layouts never agree.
const VERSION: &[u8] = b"idk1";

/// How the rest of a hash is laid out, as its last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Layout {
    Raw = 1,
    CanonicalJson = 2,
    Multipart = 3,
    Custom = 4,
}

/// A hash whose input can be taken apart again, in one way only.
///
/// Fields carry their length in front; the one field without a length, a body that is hashed while it arrives, comes
/// last and is followed by nothing but the one byte of the [`Layout`].
#[derive(Debug, Clone)]
pub(super) struct Frames(Sha256);

impl Frames {
    pub(super) fn new() -> Self {
        Self(Sha256::new_with_prefix(VERSION))
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.0.update([u8::from(flag)]);
    }

    /// Adds a count or a length, seven bits a byte, the lowest first: a small request takes fewer blocks of the hash.
    pub(super) fn number(&mut self, mut number: usize) {
        while number >= 0x80 {
            self.0.update([number as u8 | 0x80]);
            number >>= 7;
        }
        self.0.update([number as u8]);
    }

    pub(super) fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.update(bytes);
    }

    /// Adds a field that may be absent; absent and empty differ.
    pub(super) fn optional(&mut self, bytes: Option<&[u8]>) {
        self.flag(bytes.is_some());
        if let Some(bytes) = bytes {
            self.field(bytes);
        }
    }

    /// Adds all lines of a header, in order.
    pub(super) fn lines(&mut self, headers: &HeaderMap, name: &HeaderName) {
        for line in headers.get_all(name) {
            self.optional(Some(line.as_bytes()));
        }
        self.optional(None);
    }

    /// Adds a piece of the body; nothing but more of the body may follow.
    pub(super) fn body(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(super) fn finish(mut self, layout: Layout) -> Fingerprint {
        self.0.update([layout as u8]);
        Fingerprint(self.0.finalize().into())
    }
}
