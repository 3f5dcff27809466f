//! The reasons to refuse a request.

use std::{borrow::Cow, fmt};

use http::StatusCode;

use crate::key::KeyError;

/// A reason why the layer answers by itself: it did not run the handler, or (only [`NotCommitted`](Self::NotCommitted))
/// what the handler did is not known to stand.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The request needs a key and has none. 400.
    KeyMissing,
    /// The key header is malformed, empty, too long or repeated. 400.
    KeyMalformed(KeyError),
    /// The scope function does not know the caller. 401.
    UnknownCaller,
    /// The request body is longer than the limit. 413.
    BodyTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The request body broke off. 400.
    BodyIncomplete,
    /// The key was used for another request. 400, or 422 in the IETF profile.
    Mismatch,
    /// The first request with this key is still running. 409.
    InFlight {
        /// After how many whole seconds a retry makes sense.
        retry_after: u64,
    },
    /// The request was done, and its answer cannot be given again. 409.
    NotReplayable {
        /// The status of the first answer.
        status: StatusCode,
    },
    /// An earlier run was cut short, and nobody has settled yet whether it had its effect. 409.
    OutcomeUnknown,
    /// The store did not answer, and nothing was run. 503.
    StoreUnavailable {
        /// After how many whole seconds a retry makes sense.
        retry_after: u64,
    },
    /// The store has no room for another key, and nothing was run. 503.
    StoreFull {
        /// After how many whole seconds a retry makes sense.
        retry_after: u64,
    },
    /// As many runs as are allowed are under way, and nothing was run. 503.
    TooManyRuns {
        /// After how many whole seconds a retry makes sense.
        retry_after: u64,
    },
    /// The handler ran, and its transaction is not known to be committed: a retry finds out, and runs again only if it was
    /// not. Only with [`transactional`](crate::IdempotencyLayer::transactional). 503.
    NotCommitted {
        /// After how many whole seconds a retry makes sense.
        retry_after: u64,
    },
    /// The record of this key cannot be read, and nothing was run. 500.
    RecordDamaged,
}

impl Rejection {
    /// Returns the last part of the problem type, such as `key-missing`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::KeyMissing => "key-missing",
            Self::KeyMalformed(_) => "key-malformed",
            Self::UnknownCaller => "unknown-caller",
            Self::BodyTooLarge { .. } => "body-too-large",
            Self::BodyIncomplete => "body-incomplete",
            Self::Mismatch => "key-reused",
            Self::InFlight { .. } => "in-flight",
            Self::NotReplayable { .. } => "not-replayable",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::StoreUnavailable { .. } => "store-unavailable",
            Self::StoreFull { .. } => "store-full",
            Self::TooManyRuns { .. } => "too-many-runs",
            Self::NotCommitted { .. } => "not-committed",
            Self::RecordDamaged => "record-damaged",
        }
    }

    /// Returns the status of the default profile.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyMalformed(_) | Self::BodyIncomplete | Self::Mismatch => StatusCode::BAD_REQUEST,
            Self::UnknownCaller => StatusCode::UNAUTHORIZED,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::InFlight { .. } | Self::NotReplayable { .. } | Self::OutcomeUnknown => StatusCode::CONFLICT,
            Self::StoreUnavailable { .. }
            | Self::StoreFull { .. }
            | Self::TooManyRuns { .. }
            | Self::NotCommitted { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::RecordDamaged => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns after how many whole seconds a retry helps; `None` if a retry does not help by itself.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::InFlight { retry_after }
            | Self::StoreUnavailable { retry_after }
            | Self::TooManyRuns { retry_after }
            | Self::StoreFull { retry_after }
            | Self::NotCommitted { retry_after } => Some(*retry_after),
            _ => None,
        }
    }

    /// Returns the title of the problem document: the reason in a few words, the same for each rejection of a kind.
    #[must_use]
    pub fn title(&self) -> &'static str {
        match self {
            Self::KeyMissing => "The idempotency key is missing",
            Self::KeyMalformed(_) => "The idempotency key is malformed",
            Self::UnknownCaller => "The caller is unknown",
            Self::BodyTooLarge { .. } => "The request body is too large",
            Self::BodyIncomplete => "The request body is incomplete",
            Self::Mismatch => "The idempotency key was used for another request",
            Self::InFlight { .. } => "A request with this idempotency key is still running",
            Self::NotReplayable { .. } => "The request was done, and its answer cannot be repeated",
            Self::OutcomeUnknown => "The outcome of an earlier run is unknown",
            Self::StoreUnavailable { .. } => "Idempotency keys cannot be checked right now",
            Self::StoreFull { .. } => "No more idempotency keys can be kept right now",
            Self::TooManyRuns { .. } => "Too many requests are being executed right now",
            Self::NotCommitted { .. } => "The commit of the request was not confirmed",
            Self::RecordDamaged => "The record of this idempotency key cannot be read",
        }
    }

    /// Returns the detail of the problem document: what the client can do about it. It never contains the key.
    #[must_use]
    pub fn detail(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::KeyMissing => "Send a unique key with this request, and the same key with each retry of it.",
            Self::KeyMalformed(error) => return Cow::Owned(format!("Nothing was executed: {error}.")),
            Self::UnknownCaller => "Keys belong to a caller, and this request names none. Nothing was executed.",
            Self::BodyTooLarge { limit } => {
                return Cow::Owned(format!(
                    "A request with a key may have at most {limit} bytes. Nothing was executed."
                ));
            }
            Self::BodyIncomplete => "The body ended before it was complete. Nothing was executed.",
            Self::Mismatch => {
                "The key was sent before with another method, path, content or caller. Use a new key for a new or \
                 corrected request."
            }
            Self::InFlight { .. } => "Retry with the same key to get its answer.",
            Self::NotReplayable { .. } => {
                "The first answer was too large to keep or a stream. The request must not be sent again with a new key \
                 unless it is to be executed again."
            }
            Self::OutcomeUnknown => {
                "An earlier run of this request was cut short and may have had its effect. It is not run again until \
                 its outcome is settled."
            }
            Self::StoreUnavailable { .. } | Self::StoreFull { .. } | Self::TooManyRuns { .. } => {
                "Nothing was executed. Retry later with the same key."
            }
            // True as well where the commit may have happened: the store did not say.
            Self::NotCommitted { .. } => {
                "Retry with the same key: the request is executed again only if nothing of it was committed."
            }
            Self::RecordDamaged => "The request may have been executed before, so that it was not executed now.",
        })
    }
}

/// Writes the title.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

impl std::error::Error for Rejection {}
