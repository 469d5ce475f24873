//! One node's HTTP API: basic authentication, JSON answers, and errors that say what to do.
//!
//! Every request has a deadline, so a node that hangs is an error and not a silence: a node must take the connection and begin to answer a plain read
//! within [`DEADLINE`], and may take longer for changes, which have [`CHANGE_DEADLINE`]. `--deadline` sets both. The node's own reason for a refusal
//! (`reason` or `error` in its JSON) is always part of the message.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;
use ureq::tls::{PemItem, RootCerts, TlsConfig};

use crate::failure::Failure;
use crate::profile::Target;

/// How long a node has to take a connection, and to begin to answer what is only read.
pub const DEADLINE: Duration = Duration::from_secs(2);
/// What a node has besides that itself waits so long for the others before it answers without them.
const GRACE: Duration = Duration::from_millis(300);
/// The shortest time that a node is given.
const MOMENT: Duration = Duration::from_millis(500);
/// How long a change may take: as long as the API itself allows it.
const CHANGE_DEADLINE: Duration = Duration::from_secs(15);
/// The largest answer that is read: definitions can be large.
const BODY_BYTES_MAX: u64 = 1 << 30;

/// A client of one node.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    deadlines: Deadlines,
    /// Scheme, host and port, without a slash at the end.
    url: String,
    authorization: String,
    user: String,
}

/// How long a node may take.
#[derive(Debug, Clone, Copy)]
struct Deadlines {
    /// What the command line says.
    said: Option<Duration>,
    /// Besides, for what it reads from the others.
    grace: Duration,
}

impl Deadlines {
    fn connect(self) -> Duration {
        self.said.unwrap_or(DEADLINE)
    }

    /// How long it may take until something comes.
    fn answer(self, request: &Request<'_>) -> Duration {
        let usual = match request.method {
            Method::Get => DEADLINE,
            Method::Put | Method::Post | Method::Delete => CHANGE_DEADLINE,
        };
        self.said.or(request.deadline).unwrap_or(usual) + self.grace
    }
}

/// What can be done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// Make or replace.
    Put,
    /// Do.
    Post,
    /// Take away.
    Delete,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// One request.
pub struct Request<'a> {
    /// What is done.
    pub method: Method,
    /// Encoded already.
    pub path: &'a str,
    /// Not encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// More headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// JSON.
    pub body: Option<&'a Value>,
    /// How long the node may take to begin its answer, if that is not what is usual for the method.
    pub deadline: Option<Duration>,
}

impl<'a> Request<'a> {
    /// A request without anything beside.
    pub fn of(method: Method, path: &'a str) -> Self {
        Self {
            method,
            path,
            query: &[],
            headers: &[],
            body: None,
            deadline: None,
        }
    }
}

/// An answer as it came.
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    address: String,
    /// Body.
    pub text: String,
}

impl Client {
    /// A client of the node that the command line names.
    pub fn new(target: &Target, deadline: Option<Duration>) -> Result<Self, Failure> {
        let url = base_url(&target.url)?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls(&url, target.ca.as_deref())?)
            .proxy(None)
            .build();
        Ok(Self {
            agent: config.into(),
            deadlines: Deadlines {
                said: deadline,
                grace: GRACE,
            },
            url,
            authorization: authorization(&target.user, &target.password),
            user: target.user.clone(),
        })
    }

    /// The same user at another node of the cluster, by the HTTP address that its member entry carries. It is asked about itself, and waits for nobody.
    pub fn at(&self, http: &str) -> Result<Self, Failure> {
        let deadlines = Deadlines {
            grace: Duration::ZERO,
            ..self.deadlines
        };
        Ok(Self {
            agent: self.agent.clone(),
            deadlines,
            url: base_url(http)?,
            authorization: self.authorization.clone(),
            user: self.user.clone(),
        })
    }

    /// The JSON answer of `GET path?query`. `path` is already encoded (see [`segment`]); `query` is not.
    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        let answer = self.exchange(&Request {
            query,
            ..Request::of(Method::Get, path)
        })?;
        self.expected(answer)
    }

    /// Sends a change; the answer is empty where the API answers nothing.
    pub fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let answer = self.exchange(&Request {
            body,
            ..Request::of(method, path)
        })?;
        self.expected(answer)
    }

    /// A request with more to it; the answer is empty where the API answers nothing.
    pub fn send_with(&self, request: &Request<'_>) -> Result<Value, Failure> {
        let answer = self.exchange(request)?;
        self.expected(answer)
    }

    /// The same node as another user.
    pub fn as_user(&self, user: &str, password: &str) -> Self {
        Self {
            agent: self.agent.clone(),
            deadlines: self.deadlines,
            url: self.url.clone(),
            authorization: authorization(user, password),
            user: user.to_owned(),
        }
    }

    /// The same node with another deadline.
    pub fn with_deadline(self, deadline: Duration) -> Self {
        let deadlines = Deadlines {
            said: Some(deadline),
            ..self.deadlines
        };
        Self { deadlines, ..self }
    }

    /// The same node with what is left of the time, of which so much is spent; a moment is always left.
    pub fn having_spent(self, spent: Duration) -> Self {
        let left = self.deadlines.connect().saturating_sub(spent);
        self.with_deadline(left.max(MOMENT))
    }

    /// Any request, with the answer as it comes, good or bad.
    pub fn exchange(&self, request: &Request<'_>) -> Result<Answer, Failure> {
        let address = format!("{}{}", self.url, request.path);
        let mut builder = ureq::http::Request::builder()
            .method(request.method.name())
            .uri(with_query(&address, request.query))
            .header("Authorization", &self.authorization);
        for (name, value) in request.headers {
            builder = builder.header(*name, *value);
        }
        let bytes = request.body.map(ToString::to_string).unwrap_or_default();
        if request.body.is_some() {
            builder = builder.header("Content-Type", "application/json");
        }
        let answer = self.deadlines.answer(request);
        let sent = builder.body(bytes).map_err(ureq::Error::Http);
        let sent = sent.and_then(|sent| {
            let config = self.agent.configure_request(sent);
            // Not the whole answer has to be there by then: it may be long.
            let config = config
                .timeout_resolve(Some(self.deadlines.connect()))
                .timeout_connect(Some(self.deadlines.connect()))
                .timeout_recv_response(Some(answer))
                .timeout_per_read(Some(answer))
                .timeout_per_write(Some(answer));
            self.agent
                .run(config.allow_non_standard_methods(true).build())
        });
        let unreachable = |error| self.unreachable(&error, answer);
        let mut response = sent.map_err(unreachable)?;
        let status = response.status().as_u16();
        let text = response
            .body_mut()
            .with_config()
            .limit(BODY_BYTES_MAX)
            .read_to_string()
            .map_err(unreachable)?;
        Ok(Answer {
            status,
            address,
            text,
        })
    }

    /// The JSON of an answer that says that all went well.
    pub fn expected(&self, answer: Answer) -> Result<Value, Failure> {
        let Answer {
            status,
            address,
            text,
        } = answer;
        if matches!(status, 201 | 204) && text.is_empty() {
            return Ok(Value::Null);
        }
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

    /// `answer`: how long it had for its answer.
    fn unreachable(&self, error: &ureq::Error, answer: Duration) -> Failure {
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
        if let Timeout(at) = error {
            use ureq::Timeout::{Connect, Resolve};
            let (did, within) = if matches!(at, Resolve | Connect) {
                ("take the connection", self.deadlines.connect())
            } else {
                ("answer", answer)
            };
            return Failure::Unavailable(format!(
                "{node} did not {did} within {} s; the node may be overloaded, stopped or cut off: ask another one with --url or WARREN_URL, or let it take longer with --deadline SECONDS",
                within.as_secs_f64()
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
        Some(("http" | "https", rest)) if !rest.is_empty() => Ok(trimmed()),
        Some(_) | None => Err(Failure::Config(format!(
            "'{address}' is no HTTP address; use http://HOST:PORT or https://HOST:PORT in --url or WARREN_URL"
        ))),
    }
}

fn authorization(user: &str, password: &str) -> String {
    let secret = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    format!("Basic {secret}")
}

/// Whom to trust over HTTPS: the CA that the command line names, and nobody else.
fn tls(url: &str, ca: Option<&Path>) -> Result<TlsConfig, Failure> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    let Some(path) = ca else {
        if url.starts_with("https:") {
            return Err(Failure::Config(format!(
                "{url}: name the file with the CA of the nodes' certificates in --ca or WARREN_CA"
            )));
        }
        return Ok(builder.build());
    };
    let unusable = |problem: String| {
        Failure::Config(format!(
            "the CA in {} cannot be used: {problem}",
            path.display()
        ))
    };
    let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
    let mut roots = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        let item = item.map_err(|error| unusable(error.to_string()))?;
        let PemItem::Certificate(certificate) = item else {
            return Err(unusable(
                "there is something beside certificates in it".into(),
            ));
        };
        roots.push(certificate);
    }
    if roots.is_empty() {
        return Err(unusable("there is no certificate in PEM form in it".into()));
    }
    Ok(builder
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .build())
}

/// An address with its query.
fn with_query(address: &str, query: &[(&str, &str)]) -> String {
    let pairs = query
        .iter()
        .map(|(name, value)| format!("{}={}", segment(name), segment(value)));
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() {
        address.to_owned()
    } else {
        format!("{address}?{}", pairs.join("&"))
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
        assert_eq!(
            base_url("https://node1:15671"),
            Ok("https://node1:15671".to_owned())
        );
        for bad in ["ftp://node1", "http://", "https://", ""] {
            assert_eq!(
                base_url(bad).map_err(|failure| failure.exit_code()),
                Err(78),
                "{bad}"
            );
        }
    }

    #[test]
    fn https_needs_a_ca() {
        let file = std::path::Path::new("/nonexistent/ca.pem");
        for (url, ca, usable) in [
            ("http://n", None, true),
            ("https://n", None, false),
            ("https://n", Some(file), false),
        ] {
            let code = tls(url, ca)
                .map(drop)
                .map_err(|failure| failure.exit_code());
            assert_eq!(code, if usable { Ok(()) } else { Err(78) }, "{url} {ca:?}");
        }
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(with_query("http://n/a", &[]), "http://n/a");
        assert_eq!(
            with_query("http://n/a", &[("k", "a b&c"), ("l", "/")]),
            "http://n/a?k=a%20b%26c&l=%2F"
        );
    }

    #[test]
    fn the_nodes_reason_is_kept() {
        let body = serde_json::json!({"error": "bad_request", "reason": "no such vhost"});
        assert_eq!(reason(&body), Some("bad_request: no such vhost".to_owned()));
        assert_eq!(reason(&serde_json::json!({"status": "failed"})), None);
    }
}
