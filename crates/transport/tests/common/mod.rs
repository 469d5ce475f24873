//! What the tests share: certificates made on the spot, nodes on loopback, and a handler that writes down what it is told.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use bytes::Bytes;
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ED25519,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};
use warren_transport::{
    Config, Frame, Handler, Hello, Incarnation, Lane, LinkId, Network, NodeId, PeerAddress,
    ReplyTo, SERVER_NAME, Tls, TokioNetwork, Transport,
};

/// A cluster's CA.
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(
            CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap())
                .unwrap(),
        )
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key of a node.
    pub fn issue(&self, name: &str) -> (String, String) {
        self.issue_for(vec![SERVER_NAME.into(), name.into()])
    }

    pub fn issue_for(&self, names: Vec<String>) -> (String, String) {
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        (
            params.signed_by(&key, &self.0).unwrap().pem(),
            key.serialize_pem(),
        )
    }

    pub fn tls(&self, name: &str) -> Tls {
        let (certificate, key) = self.issue(name);
        Tls::from_pem(
            certificate.as_bytes(),
            key.as_bytes(),
            self.pem().as_bytes(),
        )
        .unwrap()
    }
}

/// What a handler was told.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    Up(String, LinkId),
    Down(String, LinkId),
    Message(NodeId, Lane, Frame),
    Refused(String, String),
}

/// Writes down what it is told. Requests are answered by their head: "echo" with the same frame, "drop" with nothing ever
/// given, "keep" by nobody while the log lives.
#[derive(Default)]
pub struct Log {
    pub told: Mutex<Vec<Told>>,
    pub kept: Mutex<Vec<ReplyTo>>,
    /// Peers not admitted, with the reason.
    pub unwanted: Mutex<Vec<(String, String)>>,
    /// Messages are not kept.
    pub discards: AtomicBool,
    /// While held, messages on the Publish lane are not taken in. Needs a runtime of several threads.
    pub gate: Mutex<()>,
}

impl Handler for Log {
    fn admit(&self, peer: &Hello) -> Result<(), String> {
        match self
            .unwanted
            .lock()
            .iter()
            .find(|(name, _)| *name == peer.name)
        {
            Some((_, reason)) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    fn link_up(&self, peer: &Hello, link: LinkId) {
        self.told.lock().push(Told::Up(peer.name.clone(), link));
    }

    fn link_down(&self, peer: &Hello, link: LinkId) {
        self.told.lock().push(Told::Down(peer.name.clone(), link));
    }

    fn message(&self, from: NodeId, lane: Lane, frame: Frame) {
        if lane == Lane::Publish && self.gate.is_locked() {
            tokio::task::block_in_place(|| drop(self.gate.lock()));
        }
        if !self.discards.load(Ordering::Relaxed) {
            self.told.lock().push(Told::Message(from, lane, frame));
        }
    }

    fn request(&self, _: NodeId, _: Lane, frame: Frame, reply: ReplyTo) {
        match &frame.head[..] {
            b"drop" => drop(reply),
            b"keep" => self.kept.lock().push(reply),
            _ => reply.send(frame),
        }
    }

    fn refused(&self, peer_address: &str, reason: String) {
        self.told
            .lock()
            .push(Told::Refused(peer_address.into(), reason));
    }
}

impl Log {
    pub fn ups(&self) -> usize {
        self.told
            .lock()
            .iter()
            .filter(|t| matches!(t, Told::Up(..)))
            .count()
    }

    pub fn downs(&self) -> usize {
        self.told
            .lock()
            .iter()
            .filter(|t| matches!(t, Told::Down(..)))
            .count()
    }

    pub fn messages(&self) -> Vec<(NodeId, Lane, Frame)> {
        let told = self.told.lock();
        told.iter()
            .filter_map(|t| {
                if let Told::Message(n, l, f) = t {
                    Some((*n, *l, f.clone()))
                } else {
                    None
                }
            })
            .collect()
    }

    pub fn refusals(&self) -> Vec<String> {
        let told = self.told.lock();
        told.iter()
            .filter_map(|t| {
                if let Told::Refused(_, r) = t {
                    Some(r.clone())
                } else {
                    None
                }
            })
            .collect()
    }
}

/// A node under test.
pub struct Node {
    pub transport: Transport,
    pub log: Arc<Log>,
    pub id: NodeId,
    pub name: String,
}

impl Node {
    pub async fn start(config: Config) -> Node {
        Self::start_on(config, Arc::new(TokioNetwork::default())).await
    }

    pub async fn start_on(config: Config, network: Arc<dyn Network>) -> Node {
        let log = Arc::new(Log::default());
        let (id, name) = (config.hello.node, config.hello.name.clone());
        let transport = Transport::start(config, network, log.clone())
            .await
            .unwrap();
        Node {
            transport,
            log,
            id,
            name,
        }
    }

    pub fn peer(&self) -> PeerAddress {
        PeerAddress {
            name: self.name.clone(),
            address: self.transport.local_address().to_string(),
        }
    }

    pub fn is_linked(&self, to: &Node) -> bool {
        self.transport.links().iter().any(|l| l.hello.node == to.id)
    }
}

pub fn config(tls: Tls, name: &str, id: u64, peers: Vec<PeerAddress>) -> Config {
    let hello = Hello {
        cluster: None,
        node: NodeId(id),
        name: name.into(),
        incarnation: Incarnation(1),
        address: "127.0.0.1:1".into(),
        version: 1,
        level: warren_model::Level::NEWEST,
    };
    Config::new("127.0.0.1:0".parse().unwrap(), hello, tls, peers)
}

/// Two linked nodes, "a" (id 1) and "b" (id 2); b dials.
pub async fn pair() -> (Node, Node) {
    let ca = Ca::new();
    let a = Node::start(config(ca.tls("a"), "a", 1, vec![])).await;
    let b = Node::start(config(ca.tls("b"), "b", 2, vec![a.peer()])).await;
    until("both are linked", || a.is_linked(&b) && b.is_linked(&a)).await;
    (a, b)
}

/// Waits for a condition; fails when it does not come about in time.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < patience, "not in time: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

pub fn text(text: &str) -> Frame {
    Frame::of_head(Bytes::copy_from_slice(text.as_bytes()))
}
