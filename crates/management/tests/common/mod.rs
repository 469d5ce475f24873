//! A cluster of one node in this process, with its storage in memory, and requests to its API.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

pub mod amqp;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use base64::Engine;
use http_body_util::BodyExt;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ED25519,
};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;
use warren_node::{Config, Node, Settings};
use warren_storage::memory::Disk;
use warren_transport::{PeerAddress, SERVER_NAME, Tls, TokioNetwork};

const DEADLINE: Duration = Duration::from_secs(20);

fn tls(name: &str) -> Tls {
    let key = || KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, key()).unwrap();
    let mut parameters =
        CertificateParams::new(vec![SERVER_NAME.to_owned(), name.to_owned()]).unwrap();
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let own = key();
    let certificate = parameters.signed_by(&own, &authority).unwrap();
    Tls::from_pem(
        certificate.pem().as_bytes(),
        own.serialize_pem().as_bytes(),
        authority.pem().as_bytes(),
    )
    .unwrap()
}

/// Starts a node that is alone in its cluster; `peers` are others that it waits for before it founds one.
pub async fn start(peers: &[&str]) -> Arc<Node> {
    start_with(peers, Settings::default()).await
}

async fn start_with(peers: &[&str], settings: Settings) -> Arc<Node> {
    let own = PeerAddress {
        name: "node1".into(),
        address: "127.0.0.1:1".into(),
    };
    // Nobody is there.
    let others = peers.iter().map(|name| PeerAddress {
        name: (*name).to_owned(),
        address: "127.0.0.1:9".into(),
    });
    let config = Config {
        name: "node1".into(),
        cluster_name: "test".into(),
        bind: "127.0.0.1:0".parse().unwrap(),
        address: own.address.clone(),
        amqp: "127.0.0.1:5672".into(),
        http: "127.0.0.1:15672".into(),
        listeners: Vec::new(),
        peers: std::iter::once(own.clone()).chain(others).collect(),
        rejoins: false,
        shards: 8,
        tls: tls("node1"),
        seed: None,
        settings,
        free_disk: None,
        knows: warren_model::Level::NEWEST,
        first_user: Some(("guest".into(), "guest".into())),
    };
    Node::start(
        config,
        Arc::new(Disk::new().open()),
        Arc::new(TokioNetwork::default()),
        tokio::runtime::Handle::current(),
    )
    .await
    .unwrap()
}

/// An API, and who asks.
#[derive(Clone)]
pub struct Api {
    pub node: Arc<Node>,
    router: Router,
    authorization: Option<String>,
    peer: Option<SocketAddr>,
    header: Option<(String, String)>,
}

/// The API of a node that routes.
pub async fn ready() -> Api {
    ready_with(Settings::default()).await
}

/// The same with other limits.
pub async fn ready_with(settings: Settings) -> Api {
    let node = start_with(&[], settings).await;
    assert!(
        node.metadata().wait_routable(DEADLINE).await,
        "the node routes: {:?}",
        node.metadata().status()
    );
    // The founder's user comes after its lease.
    let until = tokio::time::Instant::now() + DEADLINE;
    // Then its shards get their leaders.
    let is_ready = || {
        let table = node.metadata().table().read();
        let ownership = node.ownership(&table);
        let led = ownership.shards() > 0 && ownership.of_shards().all(|leader| leader.is_some());
        led && table.permission("guest", "/").is_some()
    };
    while !is_ready() {
        assert!(tokio::time::Instant::now() < until, "guest is made");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Api::of(node)
}

impl Api {
    pub fn of(node: Arc<Node>) -> Self {
        Self {
            router: warren_management::router(node.clone()),
            node,
            authorization: None,
            peer: Some("127.0.0.1:40000".parse().unwrap()),
            header: None,
        }
        .user("guest", "guest")
    }

    pub fn user(&self, name: &str, password: &str) -> Self {
        let secret = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
        self.authorized(Some(&format!("Basic {secret}")))
    }

    pub fn authorized(&self, authorization: Option<&str>) -> Self {
        Self {
            authorization: authorization.map(str::to_owned),
            ..self.clone()
        }
    }

    pub fn from(&self, peer: Option<&str>) -> Self {
        Self {
            peer: peer.map(|peer| peer.parse().unwrap()),
            ..self.clone()
        }
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> (StatusCode, HeaderMap, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/{path}"));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        if let Some((name, value)) = &self.header {
            request = request.header(name, value);
        }
        if let Some(peer) = self.peer {
            request = request.extension(ConnectInfo(peer));
        }
        let response = self
            .router
            .clone()
            .oneshot(request.body(body.into()).unwrap())
            .await
            .unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let value = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("no JSON: {bytes:?}"))
        };
        (head.status, head.headers, value)
    }

    /// What is there.
    pub async fn get(&self, path: &str) -> Value {
        let (status, _, body) = self.send(Method::GET, path, "").await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Status and body of a GET.
    pub async fn try_get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.send(Method::GET, path, "").await;
        (status.as_u16(), body)
    }

    pub async fn put(&self, path: &str, body: Value) -> u16 {
        self.send(Method::PUT, path, body.to_string())
            .await
            .0
            .as_u16()
    }

    /// The reason why a PUT is refused with 400.
    pub async fn refused(&self, path: &str, body: Value) -> String {
        let (status, _, answer) = self.send(Method::PUT, path, body.to_string()).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]),
            (400, &Value::from("bad_request")),
            "{path} {body}: {answer}"
        );
        answer["reason"].as_str().unwrap().to_owned()
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, HeaderMap, Value) {
        let (status, headers, answer) = self.send(Method::POST, path, body.to_string()).await;
        (status.as_u16(), headers, answer)
    }

    pub async fn delete(&self, path: &str) -> u16 {
        self.send(Method::DELETE, path, "").await.0.as_u16()
    }

    /// A DELETE with a header.
    pub async fn delete_with(&self, path: &str, header: &str, value: &str) -> u16 {
        let mut api = self.clone();
        api.header = Some((header.to_owned(), value.to_owned()));
        api.delete(path).await
    }

    /// Status and body of a GET of a whole path.
    pub async fn raw(&self, path: &str) -> (u16, String) {
        let mut request = Request::builder().uri(path);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        (head.status.as_u16(), text)
    }

    /// The text at a whole path.
    pub async fn text(&self, path: &str) -> String {
        let (status, text) = self.raw(path).await;
        assert_eq!(status, 200, "{path}: {text}");
        text
    }
}
