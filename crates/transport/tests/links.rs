//! How links come and go: restarts, losses, refusals, knocks.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Ca, Log, Node, Told, config, pair, text, until};
use std::{net::UdpSocket, sync::Arc, time::Duration};
use tokio::time::Instant;
use warren_transport::{
    Config, Incarnation, Lane, NodeId, PeerAddress, RequestError, Tls, TokioNetwork, Transport,
    Unreachable,
};

const LONG: Duration = Duration::from_secs(20);

/// A node with a runtime of its own that can be killed: it says nothing more then.
struct Killable {
    node: Node,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Killable {
    async fn start(config: Config) -> Killable {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let node = runtime.spawn(Node::start(config)).await.unwrap();
        Killable {
            node,
            runtime: Some(runtime),
        }
    }

    /// All tasks vanish between two polls, and with them the socket's last reader; the handle goes too.
    fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

#[tokio::test]
async fn a_shutdown_is_seen_at_once_and_fails_open_requests() {
    let (a, b) = pair().await;
    let began = Instant::now();
    let (outcome, ()) = tokio::join!(
        a.transport.request(b.id, Lane::Control, text("keep"), LONG),
        async {
            until("the request is there", || b.log.kept.lock().len() == 1).await;
            b.transport.shutdown().await;
        }
    );
    assert_eq!(outcome, Err(RequestError::LinkLost));
    assert!(
        began.elapsed() < Duration::from_millis(1_400),
        "before the idle timeout, but it took {:?}",
        began.elapsed()
    );
    assert_eq!(b.log.downs(), 1, "shutdown returns after link_down");
    until("a is told", || a.log.downs() == 1).await;
    assert_eq!(
        a.transport.send(b.id, Lane::Control, text("x")),
        Err(Unreachable::NoLink { node: b.id })
    );
}

#[tokio::test]
async fn a_killed_peer_is_noticed_by_silence() {
    let ca = Ca::new();
    let a = Node::start(config(ca.tls("a"), "a", 1, vec![])).await;
    let b = Killable::start(config(ca.tls("b"), "b", 2, vec![a.peer()])).await;
    until("both are linked", || {
        a.is_linked(&b.node) && b.node.is_linked(&a)
    })
    .await;
    let to = b.node.id;
    let began = Instant::now();
    b.kill();
    assert_eq!(
        a.transport
            .request(to, Lane::Control, text("keep"), LONG)
            .await,
        Err(RequestError::LinkLost)
    );
    let took = began.elapsed();
    assert!(
        took > Duration::from_millis(500) && took < Duration::from_secs(6),
        "{took:?}"
    );
}

#[tokio::test]
async fn a_restarted_peer_is_linked_again_well_before_the_idle_timeout() {
    let ca = Ca::new();
    let (certificate, key) = ca.issue("a");
    let tls =
        || Tls::from_pem(certificate.as_bytes(), key.as_bytes(), ca.pem().as_bytes()).unwrap();
    let a = Killable::start(config(tls(), "a", 1, vec![])).await;
    let address = a.node.transport.local_address();
    let mut of_b = config(ca.tls("b"), "b", 2, vec![a.node.peer()]);
    of_b.idle_timeout = LONG;
    let b = Node::start(of_b).await;
    until("both are linked", || {
        b.is_linked(&a.node) && a.node.is_linked(&b)
    })
    .await;
    let began = Instant::now();
    a.kill();
    let mut again = config(tls(), "a", 1, vec![]);
    again.bind = address;
    again.hello.incarnation = Incarnation(2);
    let patience = Instant::now() + LONG / 2;
    let (log, transport) = loop {
        let log = Arc::new(Log::default());
        match Transport::start(
            again.clone(),
            Arc::new(TokioNetwork::default()),
            log.clone(),
        )
        .await
        {
            Ok(transport) => break (log, transport),
            // The killed node's socket is closed by its runtime's thread.
            Err(error) => assert!(Instant::now() < patience, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    until("the link is back", || log.ups() == 1 && b.log.ups() == 2).await;
    assert!(began.elapsed() < LONG / 2, "it took {:?}", began.elapsed());
    let told = b.log.told.lock().clone();
    assert!(
        matches!(&told[..], [Told::Up(_, first), Told::Down(_, down), Told::Up(_, second)] if first == down && first != second),
        "{told:?}"
    );
    assert_eq!(b.transport.links()[0].hello.incarnation, Incarnation(2));
    assert_eq!(
        b.transport
            .request(NodeId(1), Lane::Raft, text("echo"), LONG)
            .await,
        Ok(text("echo"))
    );
    transport.shutdown().await;
}

#[tokio::test]
async fn a_restarted_dialler_replaces_its_old_link() {
    let ca = Ca::new();
    let mut of_a = config(ca.tls("a"), "a", 1, vec![]);
    of_a.idle_timeout = LONG;
    let a = Node::start(of_a).await;
    let mut first = config(ca.tls("b"), "b", 2, vec![a.peer()]);
    first.idle_timeout = LONG;
    let b = Killable::start(first).await;
    until("both are linked", || {
        a.is_linked(&b.node) && b.node.is_linked(&a)
    })
    .await;
    b.kill();
    let mut second = config(ca.tls("b"), "b", 2, vec![a.peer()]);
    second.hello.incarnation = Incarnation(2);
    let b = Node::start(second).await;
    until("the new one is linked", || {
        a.log.ups() == 2 && b.log.ups() == 1
    })
    .await;
    let told = a.log.told.lock().clone();
    assert!(
        matches!(&told[..], [Told::Up(_, first), Told::Down(_, down), Told::Up(_, second)] if first == down && first != second),
        "{told:?}"
    );
    // The earlier start is not let in any more.
    let earlier = Node::start(config(ca.tls("b"), "b", 2, vec![a.peer()])).await;
    until("it is refused", || !earlier.log.refusals().is_empty()).await;
    assert!(
        earlier.log.refusals()[0].contains("later start"),
        "{:?}",
        earlier.log.refusals()
    );
    assert!(a.is_linked(&b) && a.log.downs() == 1);
}

#[tokio::test]
async fn a_closed_link_comes_up_again() {
    let (a, b) = pair().await;
    for (n, closer) in [&a, &b].into_iter().enumerate() {
        let other = if n == 0 { b.id } else { a.id };
        closer.transport.close_link(other, "for a test");
        until("it was down and is up", || {
            a.log.downs() == n + 1
                && b.log.downs() == n + 1
                && a.log.ups() == n + 2
                && b.log.ups() == n + 2
        })
        .await;
    }
    b.transport.set_peers(vec![]);
    b.transport.close_link(a.id, "for a test");
    until("it is down", || a.log.downs() == 3 && b.log.downs() == 3).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(!b.is_linked(&a), "a is no peer any more");
    b.transport.set_peers(vec![a.peer(), b.peer()]);
    b.transport.set_peers(vec![a.peer(), b.peer()]);
    until("it is up", || b.is_linked(&a)).await;
    assert_eq!(b.transport.links().len(), 1);
}

#[tokio::test]
async fn a_foreign_ca_is_refused_on_both_sides() {
    let (ours, theirs) = (Ca::new(), Ca::new());
    let a = Node::start(config(ours.tls("a"), "a", 1, vec![])).await;
    let b = Node::start(config(theirs.tls("b"), "b", 2, vec![a.peer()])).await;
    until("b's dial fails", || !b.log.refusals().is_empty()).await;
    assert!(
        b.log.refusals()[0].contains("certificate"),
        "{:?}",
        b.log.refusals()
    );
    // A node that trusts us, but whom we do not trust: its certificate is the foreign CA's.
    let (certificate, key) = theirs.issue("c");
    let both = format!("{}{}", theirs.pem(), ours.pem());
    let tls = Tls::from_pem(certificate.as_bytes(), key.as_bytes(), both.as_bytes()).unwrap();
    let c = Node::start(config(tls, "c", 3, vec![a.peer()])).await;
    until("c is refused", || !c.log.refusals().is_empty()).await;
    assert!(
        c.log.refusals()[0].contains("refused this node's certificate"),
        "{:?}",
        c.log.refusals()
    );
    assert_eq!((a.log.ups(), b.log.ups(), c.log.ups()), (0, 0, 0));
    assert_eq!(b.log.refusals().len(), 1, "told once, not at each retry");
}

#[tokio::test]
async fn two_nodes_of_one_name_are_refused() {
    let ca = Ca::new();
    let a = Node::start(config(ca.tls("a"), "a", 1, vec![])).await;
    let b = Node::start(config(ca.tls("b"), "b", 2, vec![a.peer()])).await;
    until("both are linked", || a.is_linked(&b)).await;
    let second_b = Node::start(config(ca.tls("b"), "b", 3, vec![a.peer()])).await;
    until("the second b is refused", || {
        !second_b.log.refusals().is_empty()
    })
    .await;
    assert!(
        second_b.log.refusals()[0].contains("two nodes are called \"b\""),
        "{:?}",
        second_b.log.refusals()
    );
    // A node that is told of another one under a wrong name, and finds its own name there.
    let second_a = Node::start(config(ca.tls("a"), "a", 4, vec![])).await;
    let misled = PeerAddress {
        name: "A".into(),
        address: second_a.transport.local_address().to_string(),
    };
    a.transport.set_peers(vec![misled]);
    until("a is refused", || !a.log.refusals().is_empty()).await;
    assert!(
        a.log.refusals()[0].contains("two nodes are called \"a\""),
        "{:?}",
        a.log.refusals()
    );
    assert_eq!(
        (second_b.log.ups(), second_a.log.ups(), a.log.ups()),
        (0, 0, 1)
    );
    assert!(a.is_linked(&b));
}

#[tokio::test]
async fn a_copied_data_folder_another_cluster_and_another_version_are_refused() {
    let ca = Ca::new();
    let mut of_a = config(ca.tls("a"), "a", 1, vec![]);
    of_a.hello.cluster = Some(7);
    let a = Node::start(of_a).await;
    let refused = async |change: &dyn Fn(&mut Config), says: &[&str]| {
        let mut c = config(ca.tls("b"), "b", 2, vec![a.peer()]);
        change(&mut c);
        let b = Node::start(c).await;
        until("b is refused", || !b.log.refusals().is_empty()).await;
        for word in says {
            assert!(
                b.log.refusals()[0].contains(word),
                "{:?} lacks {word:?}",
                b.log.refusals()
            );
        }
        assert_eq!((a.log.ups(), b.log.ups()), (0, 0));
        b.transport.shutdown().await;
    };
    refused(&|c| c.hello.node = NodeId(1), &["same identity", "copy"]).await;
    refused(
        &|c| c.hello.cluster = Some(8),
        &[
            "\"a\" belongs to cluster 00000000000000000000000000000007",
            "00000008",
        ],
    )
    .await;
    refused(&|c| c.hello.version = 2, &["version 2", "other 1"]).await;
    refused(
        &|c| c.peers[0].name = "aa".into(),
        &["calls itself \"a\"", "\"aa\" was expected"],
    )
    .await;
    let joined = Node::start(config(ca.tls("b"), "b", 2, vec![])).await;
    joined.transport.set_cluster(7);
    joined.transport.set_peers(vec![a.peer()]);
    until("a node of the same cluster is linked", || {
        a.is_linked(&joined)
    })
    .await;
    assert_eq!(a.transport.links()[0].hello.cluster, Some(7));
}

#[tokio::test]
async fn the_handlers_refusal_reaches_the_other_side_whoever_refuses() {
    let ca = Ca::new();
    let a = Node::start(config(ca.tls("a"), "a", 1, vec![])).await;
    a.log
        .unwanted
        .lock()
        .push(("b".into(), "b was removed from the cluster".into()));
    let b = Node::start(config(ca.tls("b"), "b", 2, vec![a.peer()])).await;
    until("the acceptor refuses", || !b.log.refusals().is_empty()).await;
    assert_eq!(b.log.refusals(), ["b was removed from the cluster"]);
    a.log.unwanted.lock().clear();
    until("the link comes up as soon as it is allowed", || {
        a.is_linked(&b) && b.is_linked(&a)
    })
    .await;
    b.log
        .unwanted
        .lock()
        .push(("a".into(), "a is too old".into()));
    b.transport.close_link(a.id, "for a test");
    until("the dialler refuses", || b.log.refusals().len() == 2).await;
    assert_eq!(b.log.refusals()[1], "a is too old");
    until("it is down", || !a.is_linked(&b)).await;
}

#[tokio::test]
async fn a_node_of_lesser_name_is_linked_though_only_it_knows_the_other() {
    let ca = Ca::new();
    let b = Node::start(config(ca.tls("b"), "b", 2, vec![])).await;
    let address = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut of_a = config(ca.tls("a"), "a", 1, vec![b.peer()]);
    of_a.bind = address;
    of_a.hello.address = address.to_string();
    let a = Node::start(of_a).await;
    until("both are linked", || a.is_linked(&b) && b.is_linked(&a)).await;
    assert!(b.transport.links()[0].dialled && !a.transport.links()[0].dialled);
    b.transport.set_peers(vec![]);
    a.transport.close_link(b.id, "for a test");
    until("the link is back", || a.log.ups() == 2 && b.log.ups() == 2).await;
}

#[tokio::test]
async fn garbage_on_the_port_harms_nothing() {
    let (a, b) = pair().await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut state = 1u64;
    for n in 0..3_000usize {
        let datagram: Vec<u8> = (0..n % 1_400)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        socket
            .send_to(&datagram, a.transport.local_address())
            .unwrap();
    }
    assert_eq!(
        b.transport
            .request(a.id, Lane::Raft, text("echo"), LONG)
            .await,
        Ok(text("echo"))
    );
    assert_eq!((a.log.downs(), b.log.downs()), (0, 0));
}
