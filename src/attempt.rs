//! What a handler can learn about its own run: key, scope and attempt number.

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
#[derive(Debug, Clone)]
pub struct Attempt {
    id: RecordId,
    number: u32,
    token: Token,
}

impl Attempt {
    pub(crate) fn new(id: RecordId, number: u32, token: Token) -> Self {
        Self { id, number, token }
    }

    /// Returns the token of the claim, which only the one request that made it knows.
    pub(crate) fn token(&self) -> Token {
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

    /// Tells whether an earlier run of this key was cut short, so that its effects may have happened.
    ///
    /// It knows what the store knows. With a store that lives in the process, such as `MemoryStore`, a restart forgets the
    /// keys, and a retry after it runs as attempt 1.
    #[must_use]
    pub fn is_rerun(&self) -> bool {
        self.number > 1
    }
}
