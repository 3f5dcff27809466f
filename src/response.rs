//! The stored response: one versioned encoding of status, headers, body and trailers.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode};

mod encoding;

pub(crate) use encoding::Encoder;

/// A response as a store keeps it: one opaque, versioned and checksummed run of bytes.
///
/// It either holds a whole response (status, header lines, body, trailers), or the fact that a response went out that
/// cannot be replayed, with its status. Clones share the bytes.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_idempotency::StoredResponse;
///
/// let response = Response::builder().status(201).header("location", "/v1/charges/7").body("{}".into()).unwrap();
/// let stored = StoredResponse::of(&response);
/// let kept_by_a_store = stored.as_encoded().to_vec();
///
/// let read = StoredResponse::from_encoded(kept_by_a_store)?;
/// assert_eq!(read.status(), StatusCode::CREATED);
/// assert_eq!(read.to_response().unwrap().headers()["location"], "/v1/charges/7");
/// # Ok::<(), tower_idempotency::DamagedResponse>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoredResponse {
    encoded: Bytes,
    status: StatusCode,
    replayable: bool,
}

impl StoredResponse {
    /// Encodes a whole response, every header line included, without trailers.
    ///
    /// # Panics
    ///
    /// Panics if the headers or the body are 4 GiB or longer.
    #[must_use]
    pub fn of(response: &Response<Bytes>) -> Self {
        Self::filtered(response, |_| true)
    }

    /// Encodes the fact that a response with this status went out that cannot be replayed.
    #[must_use]
    pub fn not_replayable(status: StatusCode) -> Self {
        Encoder::not_replayable(status).finish(None, |_| true)
    }

    /// Encodes a whole response with the header lines that `keep` lets through, without trailers.
    pub(crate) fn filtered(response: &Response<Bytes>, keep: impl Fn(&HeaderName) -> bool) -> Self {
        let mut encoder = Encoder::new(response.status(), response.headers(), keep, response.body().len());
        encoder.push(response.body());
        encoder.finish(None, |_| true)
    }

    /// Reads what [`as_encoded`](Self::as_encoded) gave, and checks all of it: version, lengths, checksum, every header.
    ///
    /// # Errors
    ///
    /// [`DamagedResponse`] if the bytes are not exactly what this or an earlier version of the crate wrote.
    pub fn from_encoded(encoded: impl Into<Bytes>) -> Result<Self, DamagedResponse> {
        encoding::read(encoded.into())
    }

    /// Takes bytes that were checked before.
    #[cfg(feature = "memory")]
    pub(crate) fn checked(encoded: Bytes) -> Self {
        encoding::checked(encoded)
    }

    /// Returns the bytes that a store has to keep.
    #[must_use]
    pub fn as_encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Returns the status of the first answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Tells whether the whole response is here, or only the fact that one went out.
    #[must_use]
    pub fn is_replayable(&self) -> bool {
        self.replayable
    }

    /// Decodes status, headers and body; `None` if the response is not replayable. Trailers are left out.
    #[must_use]
    pub fn to_response(&self) -> Option<Response<Bytes>> {
        self.is_replayable().then(|| self.decode().0)
    }

    /// Decodes everything. The header lines are as they were given, in order.
    pub(crate) fn decode(&self) -> (Response<Bytes>, Option<HeaderMap>) {
        let (headers, body, trailers) = encoding::decode(&self.encoded);
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        (response, trailers)
    }

    /// Returns the body within the encoding, sharing its bytes.
    pub(crate) fn body(&self) -> Bytes {
        encoding::body(&self.encoded)
    }
}

impl fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResponse")
            .field("status", &self.status().as_u16())
            .field("replayable", &self.is_replayable())
            .field("len", &self.encoded.len())
            .finish()
    }
}

/// Marks a response whose request was not executed: put into the extensions of a response, it makes the layer
/// release the key instead of storing the response, so that a retry runs. If an earlier run of the key was cut short, the
/// key stays abandoned instead: that run may have had its effect.
///
/// The retry runs as attempt 1 and is told nothing, so use it only if nothing was executed; see [`CutShort`] otherwise. In
/// axum: `(StatusCode::CONFLICT, Extension(NothingExecuted), "sold out")`.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_idempotency::NothingExecuted;
///
/// fn sold_out() -> Response<&'static str> {
///     let mut response = Response::new("nobody is at the counter, come back later");
///     *response.status_mut() = StatusCode::CONFLICT;
///     response.extensions_mut().insert(NothingExecuted);
///     response
/// }
/// # assert!(sold_out().extensions().get::<NothingExecuted>().is_some());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NothingExecuted;

/// Marks a response whose run was cut off in the middle: put into the extensions of a response, it makes the layer
/// abandon the key instead of storing the response. The next attempt is told that an earlier one may have had its effect.
///
/// For an answer to a timeout, for instance, that is made inside of the layer.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_idempotency::CutShort;
///
/// fn timed_out() -> Response<&'static str> {
///     let mut response = Response::new("the gateway did not answer in time");
///     *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
///     response.extensions_mut().insert(CutShort);
///     response
/// }
/// # assert!(timed_out().extensions().get::<CutShort>().is_some());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CutShort;

/// Bytes that are not a stored response: cut off, changed, or of another format version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedResponse(&'static str);

impl fmt::Display for DamagedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stored response cannot be read: {}", self.0)
    }
}

impl std::error::Error for DamagedResponse {}
