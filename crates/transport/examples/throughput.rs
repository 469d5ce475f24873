//! Measures one link on loopback: messages a second one way, and round trips.
//!
//! `cargo run --release -p warren-transport --example throughput [message bytes] [seconds]`; `LANE_WINDOW` overrides a lane's window in bytes.
#![allow(clippy::unwrap_used, missing_docs)]

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ED25519};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};
use warren_transport::{
    Config, Frame, Handler, Hello, Incarnation, Lane, LinkId, NodeId, PeerAddress, ReplyTo,
    SERVER_NAME, Tls, TokioNetwork, Transport,
};

#[derive(Default)]
struct Count {
    messages: AtomicU64,
    links: AtomicU64,
}

impl Handler for Count {
    fn admit(&self, _: &Hello) -> Result<(), String> {
        Ok(())
    }

    fn link_up(&self, _: &Hello, _: LinkId) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    fn link_down(&self, peer: &Hello, link: LinkId) {
        println!("{link} with {} is down", peer.name);
    }

    fn message(&self, _: NodeId, _: Lane, _: Frame) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    fn request(&self, _: NodeId, _: Lane, frame: Frame, reply: ReplyTo) {
        reply.send(frame);
    }
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let size: usize = args.next().map_or(1_024, |a| a.parse().unwrap());
    let seconds: u64 = args.next().map_or(3, |a| a.parse().unwrap());
    let (a, b, received) = link().await;
    for frames_at_once in [1, 64] {
        one_way(&a, &b, &received, size, frames_at_once, seconds).await;
    }
    println!(
        "round trips, idle link:      {}",
        round_trips(&a, &b, 20_000).await
    );
    let flood = tokio::spawn({
        let (a, b, received) = (a.clone(), b.clone(), received.clone());
        async move { one_way(&a, &b, &received, size, 1, 3).await }
    });
    sleep(Duration::from_millis(500)).await;
    println!(
        "round trips on Raft lane beside a full Publish lane: {}",
        round_trips(&a, &b, 500).await
    );
    flood.await.unwrap();
}

/// Two nodes of ids 1 and 2, linked.
async fn link() -> (Transport, Transport, Arc<Count>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap())
        .unwrap();
    let config = |name: &str, id, peers| {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let certificate = CertificateParams::new(vec![SERVER_NAME.into()])
            .unwrap()
            .signed_by(&key, &ca)
            .unwrap();
        let tls = Tls::from_pem(
            certificate.pem().as_bytes(),
            key.serialize_pem().as_bytes(),
            ca.pem().as_bytes(),
        )
        .unwrap();
        let hello = Hello {
            cluster: None,
            node: NodeId(id),
            name: name.into(),
            incarnation: Incarnation(1),
            address: "127.0.0.1:1".into(),
            version: 1,
            level: warren_model::Level::NEWEST,
        };
        let mut config = Config::new("127.0.0.1:0".parse().unwrap(), hello, tls, peers);
        if let Ok(window) = std::env::var("LANE_WINDOW") {
            config.limits.lane_window_bytes = window.parse().unwrap();
        }
        config
    };
    let received = Arc::new(Count::default());
    let network = Arc::new(TokioNetwork::default());
    let b = Transport::start(config("b", 2, vec![]), network.clone(), received.clone())
        .await
        .unwrap();
    let to_b = PeerAddress {
        name: "b".into(),
        address: b.local_address().to_string(),
    };
    b.set_peers(vec![]);
    let a = Transport::start(config("z", 1, vec![to_b]), network, received.clone())
        .await
        .unwrap();
    while received.links.load(Ordering::Relaxed) < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    (a, b, received)
}

async fn one_way(
    a: &Transport,
    b: &Transport,
    received: &Count,
    size: usize,
    frames_at_once: usize,
    seconds: u64,
) {
    let body = Bytes::from(vec![7; size]);
    let head = Bytes::from_static(b"head of a publish");
    let began = Instant::now();
    let before = received.messages.load(Ordering::Relaxed);
    let mut sent = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        if a.queued_bytes(NodeId(2), Lane::Publish) > 8 << 20 {
            tokio::task::yield_now().await;
            continue;
        }
        for _ in 0..frames_at_once {
            a.send(
                NodeId(2),
                Lane::Publish,
                Frame {
                    head: head.clone(),
                    bulk: body.clone(),
                },
            )
            .unwrap();
            sent += 1;
        }
        if frames_at_once == 1 && sent % 64 == 0 {
            tokio::task::consume_budget().await;
        }
    }
    while received.messages.load(Ordering::Relaxed) < before + sent {
        sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed().as_secs_f64();
    let rate = sent as f64 / took;
    println!(
        "one way, {size} B, {frames_at_once} at once: {rate:.0} messages/s, {:.0} MB/s",
        rate * size as f64 / 1e6
    );
    let _ = b;
}

async fn round_trips(a: &Transport, b: &Transport, count: usize) -> String {
    let mut took = Vec::with_capacity(count);
    for n in 0..count {
        // Whoever asks: both ways.
        let (from, to) = if n % 2 == 0 {
            (a, NodeId(2))
        } else {
            (b, NodeId(1))
        };
        let began = Instant::now();
        from.request(
            to,
            Lane::Raft,
            Frame::of_head(&b"ping"[..]),
            Duration::from_secs(5),
        )
        .await
        .unwrap();
        took.push(began.elapsed());
    }
    took.sort();
    format!(
        "median {:?}, 99 % {:?}, worst {:?}",
        took[count / 2],
        took[count * 99 / 100],
        took[count - 1]
    )
}
