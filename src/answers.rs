//! Our own answers: one problem document (RFC 9457) for each reason to refuse a request.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::{Profile, Rejection};

/// How our own answers look.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    pub(crate) profile: Profile,
    pub(crate) type_base: Arc<str>,
    pub(crate) link: Option<HeaderValue>,
    pub(crate) challenge: HeaderValue,
    pub(crate) customize: Option<Customize>,
}

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
            challenge: HeaderValue::from_static("Bearer"),
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
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, self.challenge.clone());
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
    use crate::KeyError;

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
            Rejection::TooManyRuns { retry_after: 4 },
            Rejection::NotCommitted { retry_after: 5 },
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
            let challenged = response.headers().contains_key(header::WWW_AUTHENTICATE);
            assert_eq!(challenged, rejection == Rejection::UnknownCaller, "RFC 9110 section 15.5.2");
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
