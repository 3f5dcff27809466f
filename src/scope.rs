//! Whose key it is: the tenant, account or user a key belongs to.

use std::{fmt, sync::Arc};

use crate::fingerprint::Digest;

/// Names the tenant, account or user that a key belongs to.
///
/// A record is identified by scope and key together, so that two tenants may use the same key and never see each
/// other's answer. Comparison is byte-exact. Any text is a scope, of any length and alphabet; the empty scope stands
/// for "no scope is set" and is what a layer without [`scope`](crate::IdempotencyLayer::scope) uses.
///
/// `Debug` prints a digest: a scope may be derived from a credential.
///
/// ```
/// use tower_idempotency::Scope;
///
/// let scope = Scope::new("tenant-42");
/// assert_eq!(scope.as_str(), "tenant-42");
/// assert!(!format!("{scope:?}").contains("tenant-42"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
// The empty scope is the usual one where keys need none, and costs no allocation.
pub struct Scope(Option<Arc<str>>);

impl Scope {
    /// Makes a scope from any text.
    #[must_use]
    pub fn new(text: impl AsRef<str> + Into<Arc<str>>) -> Self {
        Self((!text.as_ref().is_empty()).then(|| text.into()))
    }

    /// The scope of a layer that sets none.
    pub(crate) const NONE: Self = Self(None);

    /// Returns the text of the scope.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Tells whether this is the scope of a layer that sets none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl From<&str> for Scope {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Scope {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", Digest::of(self.as_str().as_bytes()).short())
    }
}
