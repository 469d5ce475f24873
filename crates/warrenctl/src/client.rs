//! One node's HTTP API: basic authentication, JSON answers, and errors that say what to do.
//!
//! Every request has a deadline, so a node that hangs is an error and not a silence. The node's own reason for a
//! refusal (`reason` or `error` in its JSON) is always part of the message.

use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;

use crate::cli::Connection;
use crate::failure::Failure;

const DEADLINE: Duration = Duration::from_secs(10);

/// A client of one node.
pub struct Client {
    agent: ureq::Agent,
    /// Scheme, host and port, without a slash at the end.
    url: String,
    authorization: String,
    user: String,
}

impl Client {
    /// A client of the node that the command line names.
    pub fn new(connection: &Connection) -> Result<Self, Failure> {
        let url = base_url(&connection.url)?;
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(DEADLINE))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        let secret = base64::engine::general_purpose::STANDARD
            .encode(format!("{}:{}", connection.user, connection.password));
        Ok(Self {
            agent: config.into(),
            url,
            authorization: format!("Basic {secret}"),
            user: connection.user.clone(),
        })
    }

    /// The same user at another node of the cluster, by the HTTP address that its member entry carries.
    pub fn at(&self, http: &str) -> Result<Self, Failure> {
        Ok(Self {
            agent: self.agent.clone(),
            url: base_url(http)?,
            authorization: self.authorization.clone(),
            user: self.user.clone(),
        })
    }

    /// The JSON answer of `GET path?query`. `path` is already encoded (see [`segment`]); `query` is not.
    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        let address = format!("{}{path}", self.url);
        let request = self
            .agent
            .get(&address)
            .header("Authorization", &self.authorization);
        let request = request.query_pairs(query.iter().copied());
        let mut response = request.call().map_err(|error| self.unreachable(&error))?;
        let status = response.status().as_u16();
        let text = response
            .body_mut()
            .read_to_string()
            .map_err(|error| self.unreachable(&error))?;
        let body = serde_json::from_str::<Value>(&text);
        if status == 200 {
            return body.map_err(|error| {
                Failure::Protocol(format!(
                    "{address} did not answer with JSON ({error}); is this the HTTP port of a Warren node (15672 by default)?"
                ))
            });
        }
        Err(self.refused(status, &address, body.ok().as_ref().and_then(reason)))
    }

    fn refused(&self, status: u16, address: &str, reason: Option<String>) -> Failure {
        let because = reason
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        match status {
            401 => Failure::NoPermission(format!(
                "{} refuses user '{}'{because}; set --user and --password, or WARREN_USER and WARREN_PASSWORD",
                self.url, self.user
            )),
            403 => Failure::NoPermission(format!(
                "user '{}' may not see {address}{because}; ask an administrator",
                self.user
            )),
            404 if because.is_empty() => Failure::Data(format!(
                "{address} does not exist; check the name, and the virtual host with --vhost"
            )),
            400..=499 => Failure::Data(format!("{address} answered {status}{because}")),
            503 => Failure::Unavailable(format!(
                "{} does not serve now{because}; ask again, or another node with --url",
                self.url
            )),
            500..=599 => Failure::Software(format!(
                "{address} failed with {status}{because}; the node's log says more"
            )),
            _ => Failure::Protocol(format!(
                "{address} answered {status}, which Warren's API never does; check --url"
            )),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        use ureq::Error::{BadUri, Http, Protocol, Timeout};
        let node = &self.url;
        if matches!(error, Protocol(_)) {
            return Failure::Protocol(format!(
                "{node} does not speak HTTP ({error}); check the port in --url"
            ));
        }
        if matches!(error, BadUri(_) | Http(_)) {
            return Failure::Config(format!("{node} is no usable address: {error}; check --url"));
        }
        if matches!(error, Timeout(_)) {
            let seconds = DEADLINE.as_secs();
            return Failure::Unavailable(format!(
                "{node} did not answer within {seconds} s; the node may be overloaded or stopped: ask another one with --url"
            ));
        }
        Failure::Unavailable(format!(
            "cannot reach {node}: {error}; is the node running? Another one can be asked with --url or WARREN_URL"
        ))
    }
}

/// `address` as scheme, host and port: a bare `host:port` is taken for HTTP.
fn base_url(address: &str) -> Result<String, Failure> {
    let trimmed = || address.trim_end_matches('/').to_owned();
    match address.split_once("://") {
        None if !address.is_empty() => Ok(format!("http://{}", trimmed())),
        Some(("http", rest)) if !rest.is_empty() => Ok(trimmed()),
        Some(("https", _)) => Err(Failure::Config(format!(
            "{address}: the HTTP API is served without TLS; use http:// on the node itself or through a tunnel"
        ))),
        Some(_) | None => Err(Failure::Config(format!(
            "'{address}' is no HTTP address; use http://HOST:PORT in --url or WARREN_URL"
        ))),
    }
}

/// The node's own words for a refusal.
fn reason(body: &Value) -> Option<String> {
    let words: Vec<&str> = ["error", "reason"]
        .iter()
        .filter_map(|key| body.get(key)?.as_str())
        .collect();
    (!words.is_empty()).then(|| words.join(": "))
}

/// `name` as one segment of a path: everything but unreserved characters is percent-encoded, so `/` is `%2F`.
pub fn segment(name: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_host_is_one_path_segment() {
        assert_eq!(segment("/"), "%2F");
        assert_eq!(segment("a b/ü~.-_"), "a%20b%2F%C3%BC~.-_");
    }

    #[test]
    fn addresses_are_taken_with_or_without_scheme() {
        assert_eq!(
            base_url("127.0.0.1:15672"),
            Ok("http://127.0.0.1:15672".to_owned())
        );
        assert_eq!(
            base_url("http://node1:15672/"),
            Ok("http://node1:15672".to_owned())
        );
        for bad in ["https://node1:15672", "ftp://node1", "http://", ""] {
            assert_eq!(
                base_url(bad).map_err(|failure| failure.exit_code()),
                Err(78),
                "{bad}"
            );
        }
    }

    #[test]
    fn the_nodes_reason_is_kept() {
        let body = serde_json::json!({"error": "bad_request", "reason": "no such vhost"});
        assert_eq!(reason(&body), Some("bad_request: no such vhost".to_owned()));
        assert_eq!(reason(&serde_json::json!({"status": "failed"})), None);
    }
}
