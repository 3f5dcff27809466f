//! The error answers of the application: problem documents (RFC 9457), as those of the layer are.

use std::error::Error;

use axum::{
    Json,
    extract::rejection::JsonRejection,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tower_idempotency::{CutShort, NothingExecuted};

/// Says what is wrong with a request that was not carried out, or that was cut short.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    was_cut_short: bool,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), was_cut_short: false }
    }

    /// Only a ledger that is elsewhere can leave its callers in the dark.
    #[cfg(feature = "postgres")]
    pub(crate) fn cut_short(detail: impl Into<String>) -> Self {
        Self { was_cut_short: true, ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail) }
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            // A well-formed document with a wrong member is axum's 422, and this API's 400.
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        // The cause names the member, such as `amount: invalid type`; the text around it speaks of Rust types.
        let detail = match &rejection {
            JsonRejection::JsonDataError(error) => error.source().map(ToString::to_string),
            JsonRejection::JsonSyntaxError(error) => {
                error.source().map(|cause| format!("The body is not JSON: {cause}"))
            }
            _ => None,
        };
        Self::new(status, detail.unwrap_or_else(|| rejection.body_text()))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        // A problem without a type of its own is titled by its status: RFC 9457 section 4.2.1.
        let mut response = Json(json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        }))
        .into_response();
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.was_cut_short {
            // The next attempt is told.
            response.extensions_mut().insert(CutShort);
        } else {
            // Nothing was charged, so the key stays free: the client may correct the request and send it with the same key.
            response.extensions_mut().insert(NothingExecuted);
        }
        response
    }
}
