//! Axum extractors: the attempt as an argument of a handler.

use std::convert::Infallible;

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::request::Parts;

use crate::{Attempt, Rejection, answers::Answers};

/// Refuses a request without a key with 400, as [`require_key`](crate::IdempotencyLayer::require_key) does.
impl<State: Sync> FromRequestParts<State> for Attempt {
    type Rejection = Unguarded;

    async fn from_request_parts(head: &mut Parts, _: &State) -> Result<Self, Unguarded> {
        head.extensions.get::<Self>().cloned().ok_or(Unguarded)
    }
}

/// `None` if the request carries no key, or if no [`IdempotencyLayer`](crate::IdempotencyLayer) guards the route.
impl<State: Sync> OptionalFromRequestParts<State> for Attempt {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &State) -> Result<Option<Self>, Infallible> {
        Ok(head.extensions.get::<Self>().cloned())
    }
}

/// A handler asked for its [`Attempt`], and the request is not guarded: it has no key, or there is no layer.
#[derive(Debug, Clone, Copy)]
pub struct Unguarded;

impl IntoResponse for Unguarded {
    fn into_response(self) -> Response {
        Answers::default().render(&Rejection::KeyMissing).map(Body::from)
    }
}
