//! Axum extractors: the attempt as an argument of a handler.

use std::convert::Infallible;

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, header, request::Parts};

use crate::{Attempt, Rejection, answers::Answers};

/// Refuses a request without a key with 400, and one that has a key and that no
/// [`IdempotencyLayer`](crate::IdempotencyLayer) guards with 500: then the client did its part, and the layer is missing
/// around this route, or does not guard this method.
///
/// A layer that is not there cannot be asked, so these answers follow none of its settings, such as `profile` or
/// `answer_with`, and the key is looked for under its standard name, `Idempotency-Key`. The answers of
/// [`require_key`](crate::IdempotencyLayer::require_key) do follow them: set it where the key is compulsory.
impl<State: Sync> FromRequestParts<State> for Attempt {
    type Rejection = Unguarded;

    async fn from_request_parts(head: &mut Parts, _: &State) -> Result<Self, Unguarded> {
        let has_key = head.headers.contains_key("idempotency-key");
        head.extensions.get::<Self>().cloned().ok_or(if has_key { Unguarded::NoLayer } else { Unguarded::NoKey })
    }
}

/// `None` if the request carries no key, or if no [`IdempotencyLayer`](crate::IdempotencyLayer) guards the route.
impl<State: Sync> OptionalFromRequestParts<State> for Attempt {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &State) -> Result<Option<Self>, Infallible> {
        Ok(head.extensions.get::<Self>().cloned())
    }
}

/// A handler asked for its [`Attempt`], and the request is not guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unguarded {
    /// The request has no key. 400.
    NoKey,
    /// The request has a key, and no layer has taken it. 500.
    NoLayer,
}

/// The problem document of [`Unguarded::NoLayer`].
const NO_LAYER: &str = concat!(
    r#"{"type":"urn:tower-idempotency:problem:unguarded","title":"This request is not guarded","status":500,"#,
    r#""detail":"The handler needs a key, the request has one, and no IdempotencyLayer has taken it: none guards this "#,
    r#"route and method, or it is set to another header. Nothing was executed."}"#
);

impl IntoResponse for Unguarded {
    fn into_response(self) -> Response {
        match self {
            Self::NoKey => Answers::default().render(&Rejection::KeyMissing).map(Body::from),
            Self::NoLayer => {
                let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::CACHE_CONTROL, "no-store")];
                (StatusCode::INTERNAL_SERVER_ERROR, headers, NO_LAYER).into_response()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use serde_json::Value;

    use super::*;

    async fn refused(request: http::request::Builder) -> (StatusCode, Value) {
        let mut head = request.body(()).unwrap().into_parts().0;
        let rejection = <Attempt as FromRequestParts<()>>::from_request_parts(&mut head, &()).await.unwrap_err();
        let response = rejection.into_response();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        let document: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(document["status"], status.as_u16());
        (status, document)
    }

    #[tokio::test]
    async fn a_request_without_a_key_is_told_that_the_key_is_missing() {
        let (status, document) = refused(Request::post("/")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(document["type"], "urn:tower-idempotency:problem:key-missing");
    }

    #[tokio::test]
    async fn a_key_that_no_layer_has_taken_is_not_said_to_be_missing() {
        let (status, document) = refused(Request::post("/").header("Idempotency-Key", "k")).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(document["type"], "urn:tower-idempotency:problem:unguarded");
        assert_eq!(document["title"], "This request is not guarded");
        assert!(document["detail"].as_str().unwrap().contains("IdempotencyLayer"), "{document}");
    }
}
