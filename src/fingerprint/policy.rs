//! The policy: what makes two requests the same.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, request::Parts};

use super::{Fingerprint, Run, frames::Layout, media};

pub(super) type Custom = dyn Fn(&Parts, &Bytes) -> Fingerprint + Send + Sync;

/// Says what makes two requests the same.
///
/// By default these count, each in full:
///
/// * the method,
/// * the path and the query, as the client sent them; with the feature `axum`, also below a nested router,
/// * `Content-Type`,
/// * the bytes of the body,
/// * `Authorization`, as long as the layer has no scope, so that a caller with another `Authorization` is refused.
///
/// Nothing else tells callers apart. Where they authenticate by a cookie, an API-key header, a client certificate or the
/// host, one caller who sends the same request with the same key as another gets the other's response, unless
/// [`scope`](crate::IdempotencyLayer::scope) is set or the header is added here. A client that refreshes its token
/// between two tries needs a scope too: without one the retry is a mismatch.
///
/// Nothing else counts: `Date`, `User-Agent`, cookies, signatures and tracing headers may change from one retry to the
/// next. Add what matters to you with [`header`](Self::header).
///
/// ```
/// use http::HeaderName;
/// use tower_idempotency::Fingerprinter;
///
/// let policy = Fingerprinter::new().canonical_json().header(HeaderName::from_static("api-version"));
/// ```
#[derive(Clone, Default)]
pub struct Fingerprinter {
    pub(super) custom: Option<Arc<Custom>>,
    canonical_json: bool,
    multipart: bool,
    pub(super) headers: Vec<HeaderName>,
}

impl Fingerprinter {
    /// Method, path, query, `Content-Type`, body bytes, and `Authorization` without a scope.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a function instead of the method, the path, the query, `Content-Type` and the body.
    ///
    /// The function sees the head of the request and the whole body. Its result is combined with `Authorization`, as
    /// long as the layer has no scope, and with each additional [`header`](Self::header);
    /// [`canonical_json`](Self::canonical_json) and [`multipart`](Self::multipart) mean nothing beside it.
    ///
    /// ```
    /// use sha2::{Digest, Sha256};
    /// use tower_idempotency::{Fingerprint, Fingerprinter};
    ///
    /// // The same body is the same request, whatever the path.
    /// let policy = Fingerprinter::custom(|_head, body| Fingerprint::from_bytes(Sha256::digest(body).into()));
    /// ```
    #[must_use]
    pub fn custom(function: impl Fn(&Parts, &Bytes) -> Fingerprint + Send + Sync + 'static) -> Self {
        Self { custom: Some(Arc::new(function)), ..Self::default() }
    }

    /// Lets one more request header count: all its lines, in order. Naming a header again changes nothing.
    #[must_use]
    pub fn header(mut self, name: HeaderName) -> Self {
        if !self.headers.contains(&name) {
            self.headers.push(name);
        }
        self
    }

    /// Lets a JSON body count by its canonical form (RFC 8785), so that whitespace, escapes and the order of members do
    /// not matter; off by default.
    ///
    /// Applies to `application/json` and `*/*+json`. The raw bytes decide as before where two bodies could be taken for
    /// one: the body is not valid JSON or not I-JSON (RFC 7493: unique member names, no lone surrogate, no
    /// noncharacter), is nested deeper than 128 levels, or has a number that a double does not hold exactly, such as
    /// `9007199254740993` or `1e400`. A number is held exactly if it equals the shortest decimal form of its double:
    /// `0.1` and `10.50` are.
    #[must_use]
    pub fn canonical_json(mut self) -> Self {
        self.canonical_json = true;
        self
    }

    /// Lets a multipart body count by its parts, so that the boundary does not matter; off by default.
    ///
    /// Applies to `multipart/*` with a valid boundary. Preamble, epilogue and every byte of every part count, their
    /// headers included. The raw bytes decide as before where the body does not follow RFC 2046, section 5.1.1, or has
    /// the text of its boundary in a place other than the delimiters.
    #[must_use]
    pub fn multipart(mut self) -> Self {
        self.multipart = true;
        self
    }

    /// Starts the fingerprint of one request. `scoped` says that the scope already tells callers apart.
    pub(crate) fn start(&self, head: &Parts, scoped: bool) -> Run {
        Run::new(self, head, scoped)
    }

    /// Says which layout a request asks for; the body may still turn out to be unfit for it.
    pub(super) fn layout(&self, headers: &HeaderMap) -> Layout {
        if self.custom.is_some() {
            Layout::Custom
        } else if self.canonical_json && media::is_json(headers) {
            Layout::CanonicalJson
        } else if self.multipart && media::boundary(headers).is_some() {
            Layout::Multipart
        } else {
            Layout::Raw
        }
    }
}

impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fingerprinter")
            .field("custom", &self.custom.is_some())
            .field("canonical_json", &self.canonical_json)
            .field("multipart", &self.multipart)
            .field("headers", &self.headers)
            .finish()
    }
}
