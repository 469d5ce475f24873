//! Measures proposals through three nodes in one process: real transport on loopback, RocksDB with synced writes.
//!
//! `cargo run --release --example declares [seconds a measurement]`
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ED25519,
};
use tokio::time::Instant;
use warren_consensus::{Config, Hooks, Metadata};
use warren_model::command::{Binding, DeclareQueue, Destination, Place};
use warren_model::{Command, Incarnation, NodeId, SessionId, ShardId};
use warren_storage_rocksdb::{RocksStorage, Settings};
use warren_transport::{
    Frame, Handler, Hello, Lane, LinkId, PeerAddress, ReplyTo, SERVER_NAME, Tls, TokioNetwork,
    Transport,
};

const DEADLINE: Duration = Duration::from_secs(10);

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

async fn cluster(folder: &std::path::Path) -> (Vec<Metadata>, Vec<Arc<RocksStorage>>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap())
        .unwrap();
    let names = ["a", "b", "c"];
    let seeds: Vec<PeerAddress> = names
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
    let (mut nodes, mut storages) = (Vec::new(), Vec::new());
    for (at, seed) in seeds.iter().enumerate() {
        let (id, incarnation) = (NodeId(at as u64 + 1), Incarnation(1));
        let storage =
            Arc::new(RocksStorage::open(&folder.join(&seed.name), &Settings::default()).unwrap());
        let mut config = Config::new(id, incarnation, &seed.name, &seed.address, id.0);
        config.seeds = seeds.clone();
        let metadata = Metadata::open(config, storage.clone(), Arc::new(NoHooks))
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
        let transport = Transport::start(
            transport,
            Arc::new(TokioNetwork::default()),
            Arc::new(Forward(metadata.clone())),
        )
        .await
        .unwrap();
        metadata.start(transport);
        nodes.push(metadata);
        storages.push(storage);
    }
    for node in &nodes {
        assert!(node.wait_routable(DEADLINE).await, "{:?}", node.status());
    }
    (nodes, storages)
}

fn bind(key: String) -> Command {
    Command::Bind(Binding {
        vhost: "/".into(),
        source: "amq.direct".into(),
        destination: Destination::Queue("q".into()),
        key: key.into_bytes(),
        arguments: Vec::new(),
        session: SessionId::default(),
    })
}

async fn one_at_a_time(node: &Metadata, name: &str, time: Duration) {
    let began = Instant::now();
    let mut latencies = Vec::new();
    while began.elapsed() < time {
        let at = Instant::now();
        node.propose(bind(format!("{name} {}", latencies.len())), DEADLINE)
            .await
            .unwrap();
        latencies.push(at.elapsed());
    }
    let rate = latencies.len() as f64 / began.elapsed().as_secs_f64();
    latencies.sort();
    let percentile = |p: usize| latencies[latencies.len() * p / 100];
    println!(
        "one at a time, {name}: {rate:.0}/s, median {:?}, 99th {:?}",
        percentile(50),
        percentile(99)
    );
}

/// Keeps `open` proposals open at once.
async fn pipelined(node: &Metadata, name: &str, open: usize, time: Duration) {
    let entries = node.table().version();
    let began = Instant::now();
    let mut tasks = Vec::new();
    for task in 0..open {
        let (node, name) = (node.clone(), format!("{name} {open} {task}"));
        tasks.push(tokio::spawn(async move {
            let mut count = 0u64;
            while began.elapsed() < time {
                node.propose(bind(format!("{name} {count}")), DEADLINE)
                    .await
                    .unwrap();
                count += 1;
            }
            count
        }));
    }
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap();
    }
    let entries = node.table().version() - entries;
    println!(
        "{open} open, {name}: {:.0}/s in {entries} entries",
        count as f64 / began.elapsed().as_secs_f64()
    );
}

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let time = Duration::from_secs(
        std::env::args()
            .nth(1)
            .map_or(3, |seconds| seconds.parse().unwrap()),
    );
    let folder = tempfile::tempdir().unwrap();
    let (nodes, _storages) = cluster(folder.path()).await;
    let leader = nodes[0].status().leader.unwrap();
    let at_leader = nodes
        .iter()
        .find(|node| node.status().node == leader)
        .unwrap();
    let elsewhere = nodes
        .iter()
        .find(|node| node.status().node != leader)
        .unwrap();
    let queue = Command::DeclareQueue(DeclareQueue {
        vhost: "/".into(),
        name: "q".into(),
        durable: true,
        exclusive: false,
        auto_delete: false,
        server_named: false,
        arguments: Vec::new(),
        session: SessionId::default(),
        place: Place::Shard(ShardId(0)),
    });
    at_leader.propose(queue, DEADLINE).await.unwrap();
    one_at_a_time(at_leader, "at the leader", time).await;
    one_at_a_time(elsewhere, "at another node", time).await;
    if std::env::args().nth(2).is_some() {
        let usage = std::fs::read_to_string("/proc/self/stat").unwrap();
        let ticks: Vec<u64> = usage
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|n| n.parse().unwrap())
            .collect();
        println!("{ticks:?} ticks, {} entries", at_leader.table().version());
        return;
    }
    for open in [8, 64, 512, 2048] {
        pipelined(at_leader, "at the leader", open, time).await;
        pipelined(elsewhere, "at another node", open, time).await;
    }
    let applied: Vec<u64> = nodes.iter().map(|node| node.table().version()).collect();
    println!(
        "applied {applied:?}, {} bindings",
        at_leader.table().read().binding_count()
    );
    for node in &nodes {
        node.shutdown().await;
    }
}
