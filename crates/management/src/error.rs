//! Errors as the API answers them: a status, and RabbitMQ's JSON of an error and a reason.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use warren_model::Refusal;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    status: StatusCode,
    error: &'static str,
    reason: String,
}

impl Error {
    pub(crate) fn new(status: StatusCode, error: &'static str, reason: impl Into<String>) -> Self {
        Self {
            status,
            error,
            reason: reason.into(),
        }
    }

    /// The request makes no sense, or what it asks for is refused.
    pub(crate) fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// The same, with a reason that says what it is about.
    pub(crate) fn within(mut self, what: &str) -> Self {
        self.reason = format!("{what}: {}", self.reason);
        self
    }

    /// What the path names does not exist.
    pub(crate) fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "Object Not Found", reason)
    }

    /// Whether what was asked for does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// Not logged in, or not allowed to.
    pub(crate) fn not_authorised(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorised", reason)
    }

    /// The node cannot do it now.
    pub(crate) fn unavailable(reason: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "service_unavailable",
            reason,
        )
    }
}

/// As RabbitMQ maps AMQP's codes: 404 is 404, 403 is 401, all others are 400.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal.code {
            warren_protocol::NOT_FOUND => Self::not_found(refusal.text),
            warren_protocol::ACCESS_REFUSED => Self::not_authorised(refusal.text),
            _ => Self::bad_request(refusal.text),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let body = Json(json!({"error": self.error, "reason": self.reason}));
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = [(
                header::WWW_AUTHENTICATE,
                "Basic realm=\"Warren Management\"",
            )];
            return (self.status, challenge, body).into_response();
        }
        (self.status, body).into_response()
    }
}
