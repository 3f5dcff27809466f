//! What a handler can learn about its own run: key, scope and attempt number.

use std::fmt;

use crate::{
    IdempotencyKey, Scope,
    store::{RecordId, Token},
};

/// Tells a handler under which key it runs, and for which time.
///
/// The layer puts it into the extensions of each guarded request; with the feature `axum` it is an extractor too
/// (`Option<Attempt>` where the key is optional). Pass [`key`](Self::key) on to a gateway that takes idempotency keys
/// of its own, and look before you charge when [`is_rerun`](Self::is_rerun) says that an earlier run was cut short.
///
/// ```
/// use http::Request;
/// use tower_idempotency::Attempt;
///
/// async fn charge<B>(request: Request<B>) {
///     if let Some(attempt) = request.extensions().get::<Attempt>() {
///         if attempt.is_rerun() {
///             // An earlier run ended without an answer: ask the gateway about `attempt.key()` first.
///         }
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Attempt {
    id: RecordId,
    number: u32,
    token: Option<Token>,
}

impl Attempt {
    pub(crate) fn new(id: RecordId, number: u32, token: Token) -> Self {
        Self { id, number, token: Some(token) }
    }

    /// A run that no record stands for.
    pub(crate) fn unprotected(id: RecordId) -> Self {
        Self { id, number: 1, token: None }
    }

    /// Returns the token of the claim, which only the one request that made it knows.
    pub(crate) fn token(&self) -> Option<Token> {
        self.token
    }

    /// Returns the key that the client sent.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        self.id.key()
    }

    /// Returns whose key it is; the empty scope if the layer sets none.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        self.id.scope()
    }

    /// Returns 1 for the first run of a key, and one more for each run after an abandoned one.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Tells whether a record stands for this run. It does, unless the store was down and the layer was told to
    /// [`Proceed`](crate::StoreOutage::Proceed): then another run of the key is possible, and the number means nothing.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.token.is_some()
    }

    /// Tells whether an earlier run of this key was cut short, so that its effects may have happened.
    ///
    /// It knows what the store knows. With a store that lives in the process, such as `MemoryStore`, a restart forgets the
    /// keys, and a retry after it runs as attempt 1.
    #[must_use]
    pub fn is_rerun(&self) -> bool {
        self.number > 1
    }
}

/// Leaves the token out.
impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("id", &self.id)
            .field("number", &self.number)
            .field("protected", &self.is_protected())
            .finish()
    }
}
