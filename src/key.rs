//! stub
use crate::fingerprint::Digest;
use http::HeaderValue;
use std::{fmt, sync::Arc};
/// k
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
/// e
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// r
    Repeated,
}
impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("x")
    }
}
/// s
#[derive(Debug, Clone, Default)]
pub struct KeySyntax {}
impl KeySyntax {
    /// n
    pub fn new() -> Self {
        Self {}
    }
    /// q
    pub fn quoted_only(self) -> Self {
        self
    }
    pub(crate) fn parse<'a>(
        &self,
        lines: impl IntoIterator<Item = &'a HeaderValue>,
    ) -> Result<IdempotencyKey, KeyError> {
        Ok(IdempotencyKey(lines.into_iter().next().unwrap().to_str().unwrap().into()))
    }
}
