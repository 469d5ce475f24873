//! The transport on turmoil's network: partitions, repairs and crashes, with simulated time.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Ca, Log, text};
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, sleep};
use warren_transport::{
    Config, Frame, Hello, Incarnation, Lane, NodeId, PeerAddress, RequestError, SimNetwork, Tls,
    Transport,
};

const PORT: u16 = 25_672;
const LONG: Duration = Duration::from_secs(30);

fn config(tls: Tls, name: &str, id: u64, incarnation: u64) -> Config {
    let hello = Hello {
        cluster: Some(1),
        node: NodeId(id),
        name: name.into(),
        incarnation: Incarnation(incarnation),
        address: format!("{name}:{PORT}"),
        version: 1,
        level: warren_model::Level::NEWEST,
    };
    let peers = ["a", "b"]
        .map(|name| PeerAddress {
            name: name.into(),
            address: format!("{name}:{PORT}"),
        })
        .to_vec();
    let mut config = Config::new(
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT).into(),
        hello,
        tls,
        peers,
    );
    config.rng_seed = Some([id as u8; 32]);
    config
}

fn simulation(seed: u64) -> turmoil::Sim<'static> {
    turmoil::Builder::new()
        .rng_seed(seed)
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(5))
        .udp_capacity(4_096)
        .simulation_duration(Duration::from_secs(120))
        .build()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < patience, "not in time: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_partition_shorter_than_the_idle_timeout_loses_nothing_and_a_longer_one_the_link() {
    let ca = Ca::new();
    let (tls_a, tls_b) = (ca.tls("a"), ca.tls("b"));
    let mut sim = simulation(11);
    sim.host("a", move || {
        let tls = tls_a.clone();
        async move {
            let _transport = Transport::start(
                config(tls, "a", 1, 1),
                Arc::new(SimNetwork),
                Arc::new(Log::default()),
            )
            .await?;
            std::future::pending().await
        }
    });
    sim.client("b", async move {
        let log = Arc::new(Log::default());
        let transport =
            Transport::start(config(tls_b, "b", 2, 1), Arc::new(SimNetwork), log.clone()).await?;
        let a = NodeId(1);
        until("the link is up", || log.ups() == 1).await;
        let bulk = Frame::new("echo", vec![5u8; 300_000]);
        assert_eq!(
            transport
                .request(a, Lane::Publish, bulk.clone(), LONG)
                .await,
            Ok(bulk)
        );

        turmoil::partition("a", "b");
        let (reply, ()) = tokio::join!(
            transport.request(a, Lane::Raft, text("echo"), LONG),
            async {
                sleep(Duration::from_millis(800)).await;
                turmoil::repair("a", "b");
            }
        );
        assert_eq!((reply, log.downs()), (Ok(text("echo")), 0));

        turmoil::partition("a", "b");
        let cut = Instant::now();
        assert_eq!(
            transport.request(a, Lane::Raft, text("echo"), LONG).await,
            Err(RequestError::LinkLost)
        );
        let noticed = cut.elapsed();
        assert!(
            noticed >= Duration::from_millis(1_200) && noticed < Duration::from_secs(3),
            "{noticed:?}"
        );
        assert_eq!(
            transport.request(a, Lane::Raft, text("echo"), LONG).await,
            Err(RequestError::Unreachable)
        );
        sleep(Duration::from_secs(8)).await;
        turmoil::repair("a", "b");
        let repaired = Instant::now();
        until("the link is back", || log.ups() == 2).await;
        assert!(
            repaired.elapsed() < Duration::from_secs(3),
            "{:?}",
            repaired.elapsed()
        );
        assert_eq!(
            transport.request(a, Lane::Raft, text("echo"), LONG).await,
            Ok(text("echo"))
        );
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_crashed_node_is_linked_again_when_it_is_back() {
    let ca = Ca::new();
    let (tls_a, tls_b) = (ca.tls("a"), ca.tls("b"));
    let mut sim = simulation(12);
    let starts = Arc::new(std::sync::atomic::AtomicU64::new(0));
    sim.host("a", move || {
        let tls = tls_a.clone();
        let incarnation = starts.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        async move {
            let _transport = Transport::start(
                config(tls, "a", 1, incarnation),
                Arc::new(SimNetwork),
                Arc::new(Log::default()),
            )
            .await?;
            std::future::pending().await
        }
    });
    let log = Arc::new(Log::default());
    let of_b = log.clone();
    sim.client("b", async move {
        let transport =
            Transport::start(config(tls_b, "b", 2, 1), Arc::new(SimNetwork), of_b.clone()).await?;
        until("the second start is linked", || {
            transport
                .links()
                .iter()
                .any(|l| l.hello.incarnation == Incarnation(2))
        })
        .await;
        assert_eq!((of_b.ups(), of_b.downs()), (2, 1));
        assert_eq!(
            transport
                .request(NodeId(1), Lane::Control, text("echo"), LONG)
                .await,
            Ok(text("echo"))
        );
        Ok(())
    });
    while log.ups() == 0 {
        assert!(!sim.step().unwrap(), "b must not be done yet");
    }
    sim.crash("a");
    for _ in 0..700 {
        sim.step().unwrap();
    }
    sim.bounce("a");
    sim.run().unwrap();
}

/// What happens to b, and when, in a run with faults.
fn history(seed: u64, tls_a: Tls, tls_b: Tls) -> Vec<String> {
    let mut sim = simulation(seed);
    let history: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    sim.host("a", move || {
        let tls = tls_a.clone();
        async move {
            let _transport = Transport::start(
                config(tls, "a", 1, 1),
                Arc::new(SimNetwork),
                Arc::new(Log::default()),
            )
            .await?;
            std::future::pending().await
        }
    });
    let notes = history.clone();
    sim.client("b", async move {
        let log = Arc::new(Log::default());
        let transport =
            Transport::start(config(tls_b, "b", 2, 1), Arc::new(SimNetwork), log.clone()).await?;
        for n in 0..60 {
            match n {
                20 => turmoil::partition("a", "b"),
                40 => turmoil::repair("a", "b"),
                _ => {}
            }
            let frame = Frame::new("echo", vec![0u8; 40_000]);
            let outcome = transport
                .request(
                    NodeId(1),
                    Lane::ALL[n % Lane::ALL.len()],
                    frame,
                    Duration::from_millis(700),
                )
                .await;
            notes.lock().push(format!(
                "{:?} {:?} {:?}",
                turmoil::sim_elapsed().unwrap(),
                outcome.map(|f| f.bulk.len()),
                log.told.lock()
            ));
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    });
    sim.run().unwrap();
    let history = history.lock();
    history.clone()
}

#[test]
fn a_seed_repeats_the_history_and_another_does_not() {
    let ca = Ca::new();
    let (tls_a, tls_b) = (ca.tls("a"), ca.tls("b"));
    let run = |seed| history(seed, tls_a.clone(), tls_b.clone());
    let first = run(5);
    assert!(
        first.last().unwrap().contains("Down"),
        "the partition must have been felt"
    );
    assert_eq!(first, run(5));
    assert_ne!(first, run(6));
}
