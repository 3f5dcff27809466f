//! Axum: the transaction as an argument of a handler, and its failure as an answer.

use std::convert::Infallible;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, header, request::Parts};

use super::transaction::{PostgresTransaction, TransactionError};

/// Refuses a request that has no transaction with 500: it carries no key, no layer in transactional mode guards the
/// route, or the store was down and the layer was told to proceed. `Option<PostgresTransaction>` takes it as `None`.
impl<State: Sync> FromRequestParts<State> for PostgresTransaction {
    type Rejection = NoTransaction;

    async fn from_request_parts(head: &mut Parts, _: &State) -> Result<Self, NoTransaction> {
        head.extensions.get::<Self>().cloned().ok_or(NoTransaction)
    }
}

/// `None` if the request has no transaction.
impl<State: Sync> OptionalFromRequestParts<State> for PostgresTransaction {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &State) -> Result<Option<Self>, Infallible> {
        Ok(head.extensions.get::<Self>().cloned())
    }
}

/// A handler asked for a transaction, and the request has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoTransaction;

const NO_TRANSACTION: &str = concat!(
    r#"{"type":"urn:tower-idempotency:problem:no-transaction","title":"This request has no transaction","status":500,"#,
    r#""detail":"The handler needs the transaction of a guarded request: the request carries no key, or no "#,
    r#"IdempotencyLayer in transactional mode guards this route and method. Nothing was executed."}"#
);
const TRANSIENT: &str = concat!(
    r#"{"type":"urn:tower-idempotency:problem:transaction-failed","title":"The transaction failed","status":503,"#,
    r#""detail":"Nothing was changed. Retry with the same key."}"#
);
const FAILED: &str = concat!(
    r#"{"type":"urn:tower-idempotency:problem:transaction-failed","title":"The transaction failed","status":500,"#,
    r#""detail":"Nothing was changed. The same request will fail again."}"#
);

fn problem(status: StatusCode, document: &'static str) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, document).into_response()
}

impl IntoResponse for NoTransaction {
    fn into_response(self) -> Response {
        problem(StatusCode::INTERNAL_SERVER_ERROR, NO_TRANSACTION)
    }
}

impl IntoResponse for TransactionError {
    fn into_response(self) -> Response {
        if !self.is_transient() {
            return problem(StatusCode::INTERNAL_SERVER_ERROR, FAILED);
        }
        let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, TRANSIENT);
        response.headers_mut().insert(header::RETRY_AFTER, 1.into());
        response
    }
}
