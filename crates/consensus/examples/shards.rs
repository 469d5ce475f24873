//! Measures the group of one shard on three nodes in one process: real transport on loopback, RocksDB with synced writes.
//!
//! `cargo run --release --example shards [seconds a measurement]`
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ED25519,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use warren_consensus::{Committed, Leadership, Replica, Shards, ShardsConfig};
use warren_model::{Incarnation, NodeId, ShardId};
use warren_storage::{Scan, Storage, StorageError};
use warren_storage_rocksdb::{RocksStorage, Settings};
use warren_transport::{
    Frame, Handler, Hello, Lane, LinkId, PeerAddress, ReplyTo, SERVER_NAME, Tls, TokioNetwork,
    Transport,
};

const SHARD: ShardId = ShardId(0);
const DEADLINE: Duration = Duration::from_secs(20);
/// Entries that are kept in the log.
const KEPT: u64 = 64;

struct Forward(Shards);

impl Handler for Forward {
    fn admit(&self, _: &Hello) -> Result<(), String> {
        Ok(())
    }

    fn link_up(&self, peer: &Hello, _: LinkId) {
        self.0.on_link_up(peer.node);
    }

    fn link_down(&self, peer: &Hello, _: LinkId) {
        self.0.on_link_down(peer.node);
    }

    fn message(&self, from: NodeId, lane: Lane, frame: Frame) {
        self.0.on_message(from, lane, frame);
    }

    fn request(&self, from: NodeId, lane: Lane, frame: Frame, reply: ReplyTo) {
        self.0.on_request(from, lane, frame, reply);
    }
}

/// What a replica is told.
enum Told {
    Applied(Vec<Committed>),
    Leadership(Leadership),
}

/// A state that is only the last index: what is measured is the group.
struct Teller(mpsc::UnboundedSender<Told>);

impl Replica for Teller {
    fn position(&self) -> Result<Option<Bytes>, StorageError> {
        Ok(None)
    }

    fn apply(&self, entries: Vec<Committed>) {
        drop(self.0.send(Told::Applied(entries)));
    }

    fn checkpoint(&self, _: Bytes) -> BoxFuture<'static, Result<(), StorageError>> {
        async { Ok(()) }.boxed()
    }

    fn view(&self) -> BoxFuture<'static, Result<Scan, StorageError>> {
        async { Ok(Box::new(std::iter::empty()) as Scan) }.boxed()
    }

    fn stage(
        &self,
        _: Vec<(Bytes, Bytes)>,
        _: bool,
    ) -> BoxFuture<'static, Result<(), StorageError>> {
        async { Ok(()) }.boxed()
    }

    fn install(&self, _: Bytes) -> BoxFuture<'static, Result<(), StorageError>> {
        async { Ok(()) }.boxed()
    }

    fn leadership(&self, leadership: Leadership) {
        drop(self.0.send(Told::Leadership(leadership)));
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
    shards: Shards,
    told: mpsc::UnboundedReceiver<Told>,
    storage: Arc<RocksStorage>,
    leading: Option<u64>,
}

impl Node {
    /// Waits for entries with payloads to be applied; releases what is behind. 0: leadership changed. None: the group has ended.
    async fn applied(&mut self) -> Option<usize> {
        match self.told.recv().await? {
            Told::Leadership(Leadership::Leading { term }) => self.leading = Some(term),
            Told::Leadership(Leadership::Following { .. }) => self.leading = None,
            Told::Applied(entries) => {
                if let Some(last) = entries.last()
                    && last.index > 2 * KEPT
                    && last.index / KEPT != (last.index - entries.len() as u64) / KEPT
                {
                    self.shards.release(SHARD, last.index - KEPT);
                }
                let payloads = entries.iter().filter(|entry| !entry.payload.is_empty());
                return Some(payloads.count());
            }
        }
        Some(0)
    }
}

async fn cluster(folder: &Path) -> Vec<Node> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap())
        .unwrap();
    let names = ["a", "b", "c"];
    let seeds: Vec<PeerAddress> = names
        .iter()
        .map(|name| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            PeerAddress {
                name: (*name).into(),
                address: format!("127.0.0.1:{port}"),
            }
        })
        .collect();
    let founders: Vec<NodeId> = (1..=3).map(NodeId).collect();
    let mut nodes = Vec::new();
    for (at, seed) in seeds.iter().enumerate() {
        let id = founders[at];
        let storage =
            Arc::new(RocksStorage::open(&folder.join(&seed.name), &Settings::default()).unwrap());
        let shards = Shards::new(ShardsConfig::new(id, id.0), storage.clone());
        let (tell, told) = mpsc::unbounded_channel();
        let replica = Arc::new(Teller(tell));
        shards
            .open(SHARD, replica, Some(founders.clone()))
            .await
            .unwrap();
        let hello = Hello {
            cluster: None,
            node: id,
            name: seed.name.clone(),
            incarnation: Incarnation(1),
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
        let handler = Arc::new(Forward(shards.clone()));
        let transport = Transport::start(transport, Arc::new(TokioNetwork::default()), handler)
            .await
            .unwrap();
        shards.start(transport);
        nodes.push(Node {
            shards,
            told,
            storage,
            leading: None,
        });
    }
    nodes
}

/// Waits until one of the nodes leads, and takes it out.
async fn leader(nodes: &mut Vec<Node>) -> (Node, u64) {
    let until = Instant::now() + DEADLINE;
    loop {
        for at in 0..nodes.len() {
            while nodes[at].applied().now_or_never().flatten().is_some() {}
            if let Some(term) = nodes[at].leading {
                return (nodes.remove(at), term);
            }
        }
        assert!(Instant::now() < until, "nobody leads");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Entries of so many bytes, so many in flight; entries and what each took.
async fn measure(
    node: &mut Node,
    term: u64,
    bytes: usize,
    flying: usize,
    period: Duration,
) -> (usize, Vec<Duration>) {
    let payload = Bytes::from(vec![7u8; bytes]);
    let mut starts = std::collections::VecDeque::new();
    let (mut count, mut took) = (0, Vec::new());
    let until = Instant::now() + period;
    loop {
        while starts.len() < flying && Instant::now() < until {
            assert!(node.shards.propose(SHARD, term, payload.clone()));
            starts.push_back(Instant::now());
        }
        if starts.is_empty() {
            return (count, took);
        }
        let applied = node.applied().await.unwrap();
        assert_eq!(node.leading, Some(term), "leadership was lost");
        for _ in 0..applied {
            took.push(starts.pop_front().unwrap().elapsed());
        }
        count += applied;
    }
}

fn percentile(took: &mut [Duration], percent: usize) -> Duration {
    took.sort();
    took[(took.len() - 1) * percent / 100]
}

#[tokio::main]
async fn main() {
    let seconds = std::env::args()
        .nth(1)
        .map_or(5, |seconds| seconds.parse().unwrap());
    let period = Duration::from_secs(seconds);
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = cluster(folder.path()).await;
    let (mut leading, term) = leader(&mut nodes).await;
    for mut other in std::mem::take(&mut nodes) {
        nodes.push(Node {
            shards: other.shards.clone(),
            told: mpsc::unbounded_channel().1,
            storage: other.storage.clone(),
            leading: None,
        });
        tokio::spawn(async move { while other.applied().await.is_some() {} });
    }
    measure(&mut leading, term, 256 << 10, 8, Duration::from_secs(1)).await;
    for (bytes, flying) in [
        (256 << 10, 8),
        (256 << 10, 1),
        (16 << 10, 1),
        (1 << 10, 1),
        (1 << 10, 64),
    ] {
        let syncs = leading.storage.stats().log_syncs;
        let (count, mut took) = measure(&mut leading, term, bytes, flying, period).await;
        let syncs = leading.storage.stats().log_syncs - syncs;
        println!(
            "{bytes:>7} bytes, {flying:>2} in flight: {:>8.0} entries/s, {:>6.1} MiB/s; p50 {:?}, p99 {:?}; {:.2} syncs an entry",
            count as f64 / period.as_secs_f64(),
            (count * bytes) as f64 / f64::from(1 << 20) / period.as_secs_f64(),
            percentile(&mut took, 50),
            percentile(&mut took, 99),
            syncs as f64 / count as f64,
        );
    }
    // Killed: it answers nobody any more.
    let killed = Instant::now();
    leading.shards.shutdown().await;
    let next = loop {
        let led = nodes
            .iter()
            .find_map(|node| node.shards.status(SHARD)?.leading);
        match led {
            Some(term) => break term,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    println!(
        "killed: another leads after {:?} (term {term}, then {next})",
        killed.elapsed()
    );
    for node in &nodes {
        node.shards.shutdown().await;
    }
}
