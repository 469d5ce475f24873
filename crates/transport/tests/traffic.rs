//! What goes over a link that is up: order, requests, large bulk, priorities, limits.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use bytes::Bytes;
use common::{Ca, Node, config, pair, text, until};
use std::{sync::atomic::Ordering, time::Duration};
use tokio::time::{Instant, timeout};
use warren_transport::{Frame, Lane, NodeId, RequestError, Unreachable};

const LONG: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_lane_keeps_its_order_both_ways() {
    let (a, b) = pair().await;
    for n in 0..2_000u32 {
        for lane in Lane::ALL {
            // Sizes on both sides of every boundary that the encoder knows.
            let bulk = vec![n as u8; [0, 100, 5_000, 16_384, 40_000][n as usize % 5]];
            for (from, to) in [(&a, &b), (&b, &a)] {
                from.transport
                    .send(
                        to.id,
                        lane,
                        Frame::new(n.to_le_bytes().to_vec(), bulk.clone()),
                    )
                    .unwrap();
            }
        }
    }
    for (from, to) in [(&a, &b), (&b, &a)] {
        until("all has come", || {
            to.log.messages().len() == 2_000 * Lane::ALL.len()
        })
        .await;
        for lane in Lane::ALL {
            let got: Vec<Frame> = to
                .log
                .messages()
                .into_iter()
                .filter(|(n, l, _)| *n == from.id && *l == lane)
                .map(|(_, _, f)| f)
                .collect();
            for (n, frame) in got.iter().enumerate() {
                assert_eq!(frame.head[..], (n as u32).to_le_bytes(), "on {lane:?}");
                assert!(
                    frame.bulk.iter().all(|byte| *byte == n as u8),
                    "on {lane:?}"
                );
            }
        }
        assert_eq!(
            Lane::ALL.map(|lane| from.transport.queued_bytes(to.id, lane)),
            [0; Lane::ALL.len()]
        );
    }
}

#[tokio::test]
async fn requests_get_their_own_replies() {
    let (a, b) = pair().await;
    let asked = (0..100u32).map(|n| {
        let (from, to) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let lane = Lane::ALL[n as usize % Lane::ALL.len()];
        let frame = Frame::new("echo", n.to_le_bytes().to_vec());
        async move { (n, from.transport.request(to.id, lane, frame, LONG).await) }
    });
    for (n, reply) in futures::future::join_all(asked).await {
        assert_eq!(reply.unwrap().bulk[..], n.to_le_bytes());
    }
}

#[tokio::test]
async fn a_request_that_nobody_answers_ends_at_once_and_one_kept_at_its_deadline() {
    let (a, b) = pair().await;
    let began = Instant::now();
    assert_eq!(
        a.transport
            .request(b.id, Lane::Control, text("drop"), LONG)
            .await,
        Err(RequestError::Refused)
    );
    assert!(began.elapsed() < LONG / 2);
    let began = Instant::now();
    let deadline = Duration::from_millis(150);
    assert_eq!(
        a.transport
            .request(b.id, Lane::Control, text("keep"), deadline)
            .await,
        Err(RequestError::TimedOut)
    );
    assert!(began.elapsed() >= deadline && began.elapsed() < LONG / 2);
    // The late reply harms nobody.
    let late = b.log.kept.lock().pop().unwrap();
    late.send(text("late"));
    assert_eq!(
        a.transport
            .request(b.id, Lane::Control, text("echo"), LONG)
            .await,
        Ok(text("echo"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_of_64_mib_arrives_intact() {
    let (a, b) = pair().await;
    let bulk: Bytes = (0..64u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect::<Vec<u8>>()
        .into();
    let reply = timeout(
        LONG,
        a.transport
            .request(b.id, Lane::Publish, Frame::new("echo", bulk.clone()), LONG),
    )
    .await
    .unwrap()
    .unwrap();
    assert!(reply.bulk == bulk);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saturated_publish_lane_does_not_delay_the_raft_lane() {
    let (a, b) = pair().await;
    b.log.discards.store(true, Ordering::Relaxed);
    let (transport, to) = (a.transport.clone(), b.id);
    let flood = tokio::spawn(async move {
        let body = Bytes::from(vec![1u8; 4_096]);
        loop {
            while transport.queued_bytes(to, Lane::Publish) < 32 << 20 {
                transport
                    .send(to, Lane::Publish, Frame::new("flood", body.clone()))
                    .unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let round_trip = async |lane: Lane| {
        let began = Instant::now();
        a.transport
            .request(b.id, lane, text("echo"), LONG)
            .await
            .unwrap();
        began.elapsed()
    };
    until("the lane is full", || {
        a.transport.queued_bytes(b.id, Lane::Publish) > 24 << 20
    })
    .await;
    let (mut raft, mut publish) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        // At the end of the full lane, as a measure of this machine's pace.
        publish.push(round_trip(Lane::Publish).await);
        for _ in 0..20 {
            raft.push(round_trip(Lane::Raft).await);
        }
    }
    flood.abort();
    assert_eq!((a.log.downs(), b.log.downs()), (0, 0));
    raft.sort();
    publish.sort();
    println!(
        "round trips: Raft lane median {:?}, worst {:?}; full Publish lane {publish:?}",
        raft[50], raft[99]
    );
    assert!(
        raft[50] * 4 < publish[2],
        "median of {:?} on the Raft lane, {:?} on the full one",
        raft[50],
        publish[2]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// The guard is what keeps the lane still; whoever waits for it gives its thread up first.
#[allow(clippy::await_holding_lock)]
async fn a_publish_lane_that_stands_still_does_not_stop_the_others() {
    let (a, b) = pair().await;
    b.log.discards.store(true, Ordering::Relaxed);
    let closed_gate = b.log.gate.lock();
    let sent = 16 << 20;
    for _ in 0..sent / 65_536 {
        a.transport
            .send(b.id, Lane::Publish, Frame::new("x", vec![0; 65_536]))
            .unwrap();
    }
    // The window is 2 MiB, and what QUIC has taken is counted in writes of 256 KiB.
    until("the window is full", || {
        a.transport.queued_bytes(b.id, Lane::Publish) < sent - (3 << 19)
    })
    .await;
    for lane in Lane::ALL.into_iter().filter(|lane| *lane != Lane::Publish) {
        for _ in 0..3 {
            let bulk = Frame::new("echo", vec![0; 1 << 20]);
            assert_eq!(
                a.transport.request(b.id, lane, bulk.clone(), LONG).await,
                Ok(bulk),
                "on {lane:?}"
            );
        }
    }
    assert!(
        a.transport.queued_bytes(b.id, Lane::Publish) > sent / 2,
        "it must have stood still all the time"
    );
    drop(closed_gate);
    until("it moves on", || {
        a.transport.queued_bytes(b.id, Lane::Publish) == 0
    })
    .await;
}

#[tokio::test]
async fn a_node_reaches_itself_in_order() {
    let ca = Ca::new();
    let node = Node::start(config(ca.tls("n"), "n", 7, vec![])).await;
    for n in 0..1_000u32 {
        node.transport
            .send(
                node.id,
                Lane::ALL[n as usize % Lane::ALL.len()],
                Frame::of_head(n.to_le_bytes().to_vec()),
            )
            .unwrap();
    }
    until("all has come", || node.log.messages().len() == 1_000).await;
    for lane in Lane::ALL {
        let got: Vec<u32> = node
            .log
            .messages()
            .iter()
            .filter(|(_, l, _)| *l == lane)
            .map(|(_, _, f)| u32::from_le_bytes(f.head[..].try_into().unwrap()))
            .collect();
        assert!(
            got.len() >= 1_000 / Lane::ALL.len() && got.is_sorted(),
            "on {lane:?}: {got:?}"
        );
    }
    assert_eq!(
        node.transport
            .request(node.id, Lane::Raft, text("echo"), LONG)
            .await,
        Ok(text("echo"))
    );
    assert_eq!(
        node.transport
            .request(node.id, Lane::Raft, text("drop"), LONG)
            .await,
        Err(RequestError::Refused)
    );
    assert_eq!(
        node.transport
            .request(node.id, Lane::Raft, text("keep"), Duration::from_millis(50))
            .await,
        Err(RequestError::TimedOut)
    );
    node.transport.shutdown().await;
    assert_eq!(
        node.transport.send(node.id, Lane::Raft, text("x")),
        Err(Unreachable::NoLink { node: node.id })
    );
}

#[tokio::test]
async fn frames_over_the_limit_are_refused_by_the_sender() {
    let ca = Ca::new();
    let small = |name: &str, id, peers| {
        let mut c = config(ca.tls(name), name, id, peers);
        c.limits.frame_bytes_max = 2_000;
        c
    };
    let a = Node::start(small("a", 1, vec![])).await;
    let b = Node::start(small("b", 2, vec![a.peer()])).await;
    until("both are linked", || a.is_linked(&b) && b.is_linked(&a)).await;
    let too_large = Frame::new("echo", vec![0; 1_980]);
    let limit = 2_000;
    for to in [b.id, a.id] {
        assert_eq!(
            a.transport.send(to, Lane::Publish, too_large.clone()),
            Err(Unreachable::TooLarge {
                node: to,
                bytes: 2_001,
                limit
            })
        );
    }
    assert_eq!(
        a.transport
            .request(
                b.id,
                Lane::Publish,
                Frame::new("echo", vec![0; 1_979]),
                LONG
            )
            .await
            .unwrap()
            .bulk
            .len(),
        1_979
    );
    assert_eq!(
        a.transport
            .request(b.id, Lane::Publish, too_large, LONG)
            .await,
        Err(RequestError::Unreachable)
    );
    assert_eq!(
        a.transport.send(NodeId(99), Lane::Raft, text("x")),
        Err(Unreachable::NoLink { node: NodeId(99) })
    );
}

#[tokio::test]
async fn a_frame_over_the_receivers_limit_ends_the_link_with_a_reason() {
    let ca = Ca::new();
    let mut strict = config(ca.tls("a"), "a", 1, vec![]);
    strict.limits.frame_bytes_max = 2_000;
    let a = Node::start(strict).await;
    let b = Node::start(config(ca.tls("b"), "b", 2, vec![a.peer()])).await;
    until("both are linked", || a.is_linked(&b) && b.is_linked(&a)).await;
    assert_eq!(
        b.transport
            .request(
                a.id,
                Lane::Control,
                Frame::new("echo", vec![0; 3_000]),
                LONG
            )
            .await,
        Err(RequestError::LinkLost)
    );
    until("the link is back", || a.log.ups() == 2 && b.log.ups() == 2).await;
    assert!(a.log.messages().is_empty());
}

#[tokio::test]
async fn a_peer_that_takes_nothing_in_loses_its_link() {
    let ca = Ca::new();
    let a = Node::start(config(ca.tls("a"), "a", 1, vec![])).await;
    let mut tight = config(ca.tls("b"), "b", 2, vec![a.peer()]);
    tight.limits.queued_bytes_max = 1 << 20;
    let b = Node::start(tight).await;
    until("both are linked", || a.is_linked(&b) && b.is_linked(&a)).await;
    // Nothing runs between these sends, so nothing is written.
    let error = loop {
        if let Err(error) =
            b.transport
                .send(a.id, Lane::Delivery, Frame::new("x", vec![0; 100_000]))
        {
            break error;
        }
    };
    assert!(
        matches!(error, Unreachable::Stuck { node, queued } if node == a.id && queued > 900_000 && queued <= 1 << 20),
        "{error:?}"
    );
    until("both have heard of it", || {
        a.log.downs() == 1 && b.log.downs() == 1
    })
    .await;
}
