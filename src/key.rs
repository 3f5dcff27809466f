//! The idempotency key: what the client sent, parsed and validated.

use std::{fmt, sync::Arc};

use crate::fingerprint::Digest;

mod error;
mod item;
mod syntax;

pub use error::KeyError;
pub use syntax::KeySyntax;

/// An idempotency key: 1 to 1024 printable ASCII characters (0x20 to 0x7E) that are not all spaces.
///
/// Comparison is byte-exact. Clones share the text. `Debug` prints a digest, and there is no `Display`: a key may let
/// its bearer read a stored response, so it does not belong into a log.
///
/// A layer reads keys from requests with a [`KeySyntax`]; [`new`](Self::new) is for code that has the text already,
/// for example an operator's tool.
///
/// ```
/// use tower_idempotency::IdempotencyKey;
///
/// let key = IdempotencyKey::new("order 7001")?;
/// assert_eq!(key.as_str(), "order 7001");
/// assert!(!format!("{key:?}").contains("7001"));
/// # Ok::<(), tower_idempotency::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The most characters that any key has, whatever the [`KeySyntax`]: 1024. Each is one byte.
    pub const MAX_LENGTH: usize = 1024;

    /// Makes a key from its text, without quotes or escapes.
    ///
    /// # Errors
    ///
    /// [`KeyError::Empty`], [`KeyError::Blank`], [`KeyError::TooLong`], [`KeyError::ControlCharacter`] or
    /// [`KeyError::NotAscii`].
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if let Some(byte) = text.bytes().find(|byte| !matches!(byte, 0x20..=0x7E)) {
            return Err(KeyError::unprintable(byte));
        }
        Self::printable(text, Self::MAX_LENGTH)
    }

    /// Returns the text of the key, without quotes or escapes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes a key from text that is known to be printable ASCII.
    fn printable(text: &str, max: usize) -> Result<Self, KeyError> {
        if text.is_empty() {
            Err(KeyError::Empty)
        } else if text.len() > max {
            Err(KeyError::TooLong { max })
        } else if text.bytes().all(|byte| byte == b' ') {
            Err(KeyError::Blank)
        } else {
            Ok(Self(Arc::from(text)))
        }
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({})", Digest::of(self.0.as_bytes()).short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_1_to_1024_printable_ascii_characters_and_not_all_spaces() {
        assert_eq!(IdempotencyKey::new("a").unwrap().as_str(), "a");
        assert_eq!(IdempotencyKey::new(" ~\"\\,; ").unwrap().as_str(), " ~\"\\,; ");
        assert!(IdempotencyKey::new(&"a".repeat(1024)).is_ok());
        assert_eq!(IdempotencyKey::new(&"a".repeat(1025)), Err(KeyError::TooLong { max: 1024 }));
        assert_eq!(IdempotencyKey::new(""), Err(KeyError::Empty));
        assert_eq!(IdempotencyKey::new("   "), Err(KeyError::Blank));
        assert_eq!(IdempotencyKey::new("a\u{7f}"), Err(KeyError::ControlCharacter));
        assert_eq!(IdempotencyKey::new("a\tb"), Err(KeyError::ControlCharacter));
        assert_eq!(IdempotencyKey::new("é"), Err(KeyError::NotAscii));
    }

    #[test]
    fn debug_output_does_not_show_the_key() {
        let shown = format!("{:?}", IdempotencyKey::new("secret-7001").unwrap());
        assert!(shown.starts_with("IdempotencyKey("), "{shown}");
        assert!(!shown.contains("secret") && !shown.contains("7001"), "{shown}");
    }
}
