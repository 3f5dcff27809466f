//! Our own answers: one problem document (RFC 9457) for each reason to refuse a request.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::key::KeyError;

/// A reason why the layer answers by itself and does not run the handler.
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
            Self::StoreUnavailable { .. } | Self::StoreFull { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::RecordDamaged => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns after how many whole seconds a retry helps; `None` if a retry does not help by itself.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::InFlight { retry_after }
            | Self::StoreUnavailable { retry_after }
            | Self::StoreFull { retry_after } => Some(*retry_after),
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
                "The key was sent before with other content. Use a new key for a new or corrected request."
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
            Self::StoreUnavailable { .. } | Self::StoreFull { .. } => {
                "Nothing was executed. Retry later with the same key."
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

/// Which of the common dialects the answers follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// A key sent with other content is answered with 400; keys may be bare or quoted.
    #[default]
    Default,
    /// The IETF draft "The Idempotency-Key HTTP Header Field": a key sent with other content is answered with 422, and
    /// the key must be a String of RFC 9651, in double quotes.
    Ietf,
    /// Stripe's conventions: as the default, and each problem document also carries Stripe's `error` object, with the
    /// type `idempotency_error` for a mismatch and the code `idempotency_key_in_use` while the first request runs.
    Stripe,
}

/// How our own answers look.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    pub(crate) profile: Profile,
    pub(crate) type_base: Arc<str>,
    pub(crate) link: Option<HeaderValue>,
    pub(crate) customize: Option<Customize>,
}

/// Writes the name: `default`, `ietf` or `stripe`.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Ietf => "ietf",
            Self::Stripe => "stripe",
        })
    }
}

/// Reads the name: `default`, `ietf` or `stripe`.
impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        [Self::Default, Self::Ietf, Self::Stripe]
            .into_iter()
            .find(|profile| profile.to_string() == name)
            .ok_or(UnknownProfile(()))
    }
}

/// A name that is not one of a [`Profile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownProfile(());

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a profile is `default`, `ietf` or `stripe`")
    }
}

impl std::error::Error for UnknownProfile {}

type AnswerWith = dyn Fn(&Rejection, Response<Bytes>) -> Response<Bytes> + Send + Sync;

/// Replaces an answer of ours.
#[derive(Clone)]
pub(crate) struct Customize(pub(crate) Arc<AnswerWith>);

impl fmt::Debug for Customize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Customize")
    }
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            profile: Profile::Default,
            type_base: "urn:tower-idempotency:problem:".into(),
            link: None,
            customize: None,
        }
    }
}

impl Answers {
    /// Makes the answer for a rejection.
    pub(crate) fn render(&self, rejection: &Rejection) -> Response<Bytes> {
        let status = match (rejection, self.profile) {
            (Rejection::Mismatch, Profile::Ietf) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => rejection.status(),
        };
        let mut response = Response::new(Bytes::from(self.document(rejection, status).to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = rejection.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY)
            && let Some(link) = &self.link
        {
            headers.insert(header::LINK, link.clone());
        }
        match &self.customize {
            Some(customize) => (customize.0)(rejection, response),
            None => response,
        }
    }

    fn document(&self, rejection: &Rejection, status: StatusCode) -> Value {
        let mut document = json!({
            "type": format!("{}{}", self.type_base, rejection.name()),
            "title": rejection.title(),
            "status": status.as_u16(),
            "detail": rejection.detail(),
        });
        if let Rejection::NotReplayable { status } = rejection {
            document["first_status"] = json!(status.as_u16());
        }
        if self.profile == Profile::Stripe {
            document["error"] = stripe_error(rejection, status);
        }
        document
    }
}

fn stripe_error(rejection: &Rejection, status: StatusCode) -> Value {
    let kind = match rejection {
        Rejection::Mismatch
        | Rejection::InFlight { .. }
        | Rejection::NotReplayable { .. }
        | Rejection::OutcomeUnknown => "idempotency_error",
        _ if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    let mut error = json!({ "type": kind, "message": format!("{}. {}", rejection.title(), rejection.detail()) });
    if matches!(rejection, Rejection::InFlight { .. }) {
        error["code"] = json!("idempotency_key_in_use");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Rejection> {
        vec![
            Rejection::KeyMissing,
            Rejection::KeyMalformed(KeyError::Repeated),
            Rejection::UnknownCaller,
            Rejection::BodyTooLarge { limit: 7 },
            Rejection::BodyIncomplete,
            Rejection::Mismatch,
            Rejection::InFlight { retry_after: 1 },
            Rejection::NotReplayable { status: StatusCode::CREATED },
            Rejection::OutcomeUnknown,
            Rejection::StoreUnavailable { retry_after: 2 },
            Rejection::StoreFull { retry_after: 3 },
            Rejection::RecordDamaged,
        ]
    }

    #[test]
    fn every_answer_is_a_problem_document_with_a_type_of_its_own() {
        let mut types = std::collections::HashSet::new();
        for rejection in all() {
            let response = Answers::default().render(&rejection);
            let document: Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(document["status"], response.status().as_u16());
            assert!(types.insert(document["type"].to_string()), "{rejection:?} shares its type");
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
            assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), rejection.retry_after().is_some());
            assert!(!response.headers().contains_key(header::LINK));
        }
    }

    #[test]
    fn the_documentation_link_stands_on_400_409_and_422() {
        for profile in [Profile::Default, Profile::Ietf] {
            let answers =
                Answers { profile, link: Some(HeaderValue::from_static("<https://e.example>")), ..Answers::default() };
            for rejection in all() {
                let response = answers.render(&rejection);
                let expected = matches!(response.status().as_u16(), 400 | 409 | 422);
                assert_eq!(response.headers().contains_key(header::LINK), expected, "{rejection:?}");
            }
        }
    }

    #[test]
    fn the_ietf_profile_answers_a_mismatch_with_422() {
        let answers = Answers { profile: Profile::Ietf, ..Answers::default() };
        assert_eq!(answers.render(&Rejection::Mismatch).status(), StatusCode::UNPROCESSABLE_ENTITY);
    }

    #[test]
    fn the_stripe_profile_adds_the_error_object() {
        let answers = Answers { profile: Profile::Stripe, ..Answers::default() };
        let read = |rejection| -> Value { serde_json::from_slice(answers.render(&rejection).body()).unwrap() };
        assert_eq!(read(Rejection::Mismatch)["error"]["type"], "idempotency_error");
        assert_eq!(read(Rejection::InFlight { retry_after: 1 })["error"]["code"], "idempotency_key_in_use");
        assert_eq!(read(Rejection::KeyMissing)["error"]["type"], "invalid_request_error");
        assert_eq!(read(Rejection::RecordDamaged)["error"]["type"], "api_error");
    }

    #[test]
    fn a_profile_is_read_by_the_name_it_is_written_by() {
        for profile in [Profile::Default, Profile::Ietf, Profile::Stripe] {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert!("IETF".parse::<Profile>().unwrap_err().to_string().contains("`ietf`"));
    }

    #[test]
    fn an_answer_can_be_replaced() {
        let customize = Customize(Arc::new(|rejection, response| {
            let mut own = Response::new(Bytes::from_static(rejection.name().as_bytes()));
            *own.status_mut() = response.status();
            own
        }));
        let answers = Answers { customize: Some(customize), ..Answers::default() };
        assert_eq!(&answers.render(&Rejection::Mismatch).body()[..], b"key-reused");
    }
}
