//! What handlers take from a request, with refusals in the API's own form.

use crate::error::Error;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The names in a path, percent-decoded.
pub(crate) struct Names<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Names<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(names)) => Ok(Self(names)),
            Err(rejection) => Err(Error::bad_request(rejection.body_text())),
        }
    }
}

/// The parameters after the question mark, in their order.
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// The first one of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// All of that name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    #[cfg(test)]
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Self {
        Self(
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    /// Whether one is `true`.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Parameters {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(pairs)) => Ok(Self(pairs)),
            Err(rejection) => Err(Error::bad_request(rejection.body_text())),
        }
    }
}

/// A JSON object in the body; an empty body and `null` stand for an empty one. The content type is not looked at, as in RabbitMQ.
pub(crate) struct Body(pub(crate) Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let bytes =
            Bytes::from_request(request, state)
                .await
                .map_err(|rejection| match rejection.status() {
                    StatusCode::PAYLOAD_TOO_LARGE => Error::new(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        "bad_request",
                        "Exceeded HTTP request body size limit",
                    ),
                    _ => Error::bad_request(rejection.body_text()),
                })?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(Map::new()));
        }
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(Value::Null) => Ok(Self(Map::new())),
            Ok(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                Err(Error::bad_request("the body must be a JSON object"))
            }
            Err(error) => Err(Error::bad_request(format!("not_json: {error}"))),
        }
    }
}

impl Body {
    /// A text that must be there.
    pub(crate) fn text(&self, key: &str) -> Result<&str, Error> {
        self.optional_text(key)?
            .ok_or_else(|| Error::bad_request(format!("key_missing: {key}")))
    }

    /// A text that may be left out.
    pub(crate) fn optional_text(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(Error::bad_request(format!(
                "{key} must be a string, not {other}"
            ))),
        }
    }

    /// A truth value, also as a string; false if it is left out.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, Error> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(Value::String(text)) if text == "true" => Ok(true),
            Some(Value::String(text)) if text == "false" => Ok(false),
            Some(other) => Err(Error::bad_request(format!(
                "{key} must be true or false, not {other}"
            ))),
        }
    }

    /// The `arguments` as raw field table entries.
    pub(crate) fn arguments(&self) -> Result<Vec<u8>, Error> {
        match self.0.get("arguments") {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Object(fields)) => crate::arguments::to_table(fields),
            // What PHP makes of an empty map.
            Some(Value::Array(items)) if items.is_empty() => Ok(Vec::new()),
            Some(other) => Err(Error::bad_request(format!(
                "arguments must be an object, not {other}"
            ))),
        }
    }
}
