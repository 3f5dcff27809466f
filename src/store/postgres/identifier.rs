//! The names of schema and table: the only part of a statement that is not a parameter.

use std::{error::Error, fmt};

/// A name that can stand in a statement as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identifier(String);

/// PostgreSQL cuts names at 63 bytes; this leaves room for the suffix of an index.
const MOST_BYTES: usize = 48;

impl Identifier {
    pub(super) fn new(name: &str) -> Result<Self, InvalidIdentifier> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit();
        let valid = name.len() <= MOST_BYTES
            && name.bytes().all(plain)
            && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        if valid { Ok(Self(name.to_owned())) } else { Err(InvalidIdentifier(name.to_owned())) }
    }

    /// The name of the table if none is set.
    pub(super) fn default_table() -> Self {
        Self("idempotency_keys".to_owned())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A name of a schema or a table that is not 1 to 48 characters `a` to `z`, `0` to `9` and `_`, not starting with a digit.
///
/// Upper case would need quotes in every statement that an operator writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidIdentifier(String);

impl fmt::Display for InvalidIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a name for a table or a schema: 1 to {MOST_BYTES} characters a-z, 0-9 and _, not starting with a digit",
            self.0
        )
    }
}

impl Error for InvalidIdentifier {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_identifiers() {
        for name in ["a", "_a", "idempotency_keys", "t2", &"a".repeat(48)] {
            assert_eq!(Identifier::new(name).unwrap().as_str(), name);
        }
        for name in ["", "2a", "A", "a-b", "a.b", "a\"b", "a;drop table x", "ä", "a b", "a\0", &"a".repeat(49)] {
            assert_eq!(Identifier::new(name), Err(InvalidIdentifier(name.to_owned())));
        }
    }
}
