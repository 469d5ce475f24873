//! Three nodes over the real transport on loopback, with simulated disks, in real time.
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ED25519,
};
use warren_consensus::{Config, Hooks, Metadata};
use warren_model::command::{DeclareQueue, Place};
use warren_model::{Command, Incarnation, NodeId, Outcome, SessionId, ShardId};
use warren_storage::memory::Disk;
use warren_transport::{
    Frame, Handler, Hello, Lane, LinkId, PeerAddress, ReplyTo, SERVER_NAME, Tls, TokioNetwork,
    Transport,
};

const DEADLINE: Duration = Duration::from_secs(30);

struct NoHooks;

impl Hooks for NoHooks {
    fn applied(&self, _: u64, _: &[warren_routing::Event]) {}
}

struct Forward(Metadata);

impl Handler for Forward {
    fn admit(&self, peer: &Hello) -> Result<(), String> {
        self.0.admit(peer)
    }

    fn link_up(&self, peer: &Hello, _: LinkId) {
        self.0.on_link_up(peer);
    }

    fn link_down(&self, peer: &Hello, _: LinkId) {
        self.0.on_link_down(peer);
    }

    fn message(&self, from: NodeId, lane: Lane, frame: Frame) {
        self.0.on_message(from, lane, frame);
    }

    fn request(&self, from: NodeId, lane: Lane, frame: Frame, reply: ReplyTo) {
        self.0.on_request(from, lane, frame, reply);
    }
}

fn tls(ca: &CertifiedIssuer<'static, KeyPair>, name: &str) -> Tls {
    let mut params = CertificateParams::new(vec![SERVER_NAME.into(), name.into()]).unwrap();
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let certificate = params.signed_by(&key, ca).unwrap().pem();
    Tls::from_pem(
        certificate.as_bytes(),
        key.serialize_pem().as_bytes(),
        ca.pem().as_bytes(),
    )
    .unwrap()
}

struct Node {
    metadata: Metadata,
    transport: Transport,
}

async fn cluster() -> Vec<Node> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap())
        .unwrap();
    let seeds: Vec<PeerAddress> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let port = UdpSocket::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            PeerAddress {
                name: (*name).into(),
                address: format!("127.0.0.1:{port}"),
            }
        })
        .collect();
    let mut nodes = Vec::new();
    for (at, seed) in seeds.iter().enumerate() {
        let (id, incarnation) = (NodeId(at as u64 + 1), Incarnation(1));
        let mut config = Config::new(id, incarnation, &seed.name, &seed.address, id.0);
        config.seeds = seeds.clone();
        let metadata = Metadata::open(config, Arc::new(Disk::new().open()), Arc::new(NoHooks))
            .await
            .unwrap();
        let hello = Hello {
            cluster: None,
            node: id,
            name: seed.name.clone(),
            incarnation,
            address: seed.address.clone(),
            version: 1,
            level: warren_model::Level::NEWEST,
        };
        let transport = warren_transport::Config::new(
            seed.address.parse().unwrap(),
            hello,
            tls(&ca, &seed.name),
            seeds.clone(),
        );
        let handler = Arc::new(Forward(metadata.clone()));
        let transport = Transport::start(transport, Arc::new(TokioNetwork::default()), handler)
            .await
            .unwrap();
        metadata.start(transport.clone());
        nodes.push(Node {
            metadata,
            transport,
        });
    }
    for node in &nodes {
        assert!(
            node.metadata.wait_routable(DEADLINE).await,
            "{:?}",
            node.metadata.status()
        );
    }
    nodes
}

fn declare(name: &str) -> Command {
    Command::DeclareQueue(DeclareQueue {
        vhost: "/".into(),
        name: name.into(),
        durable: true,
        exclusive: false,
        auto_delete: false,
        server_named: false,
        arguments: Vec::new(),
        session: SessionId::default(),
        place: Place::Shard(ShardId(0)),
    })
}

async fn declared_everywhere(nodes: &[Node], at: usize, name: &str) {
    let proposed = nodes[at]
        .metadata
        .propose(declare(name), DEADLINE)
        .await
        .unwrap();
    assert!(
        matches!(proposed.outcome, Outcome::Queue { created: true, .. }),
        "{proposed:?}"
    );
    for node in nodes {
        // On a busy machine a node may have lost its lease for a moment; then it does not route, and need not know.
        if node.metadata.may_route() {
            assert!(
                node.metadata.table().read().queue("/", name).is_some(),
                "{name} is missing at {:?}",
                node.metadata
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declares_are_seen_everywhere_and_survive_the_leaders_end() {
    let mut nodes = cluster().await;
    for n in 0..60 {
        declared_everywhere(&nodes, n % 3, &format!("q{n}")).await;
    }
    let leader = nodes[0].metadata.status().leader.unwrap();
    let at = nodes
        .iter()
        .position(|node| node.metadata.status().node == leader)
        .unwrap();
    let old = nodes.remove(at);
    // As if killed: nobody is told but by silence.
    old.transport.shutdown().await;
    for n in 60..90 {
        declared_everywhere(&nodes, n % 2, &format!("q{n}")).await;
    }
    assert!(
        !old.metadata.may_route(),
        "cut off for longer than its lease"
    );
    for node in &nodes {
        assert_ne!(node.metadata.status().leader, Some(leader));
        assert_eq!(node.metadata.table().read().queue_count(), 90);
        node.metadata.shutdown().await;
        node.transport.shutdown().await;
    }
    old.metadata.shutdown().await;
}
