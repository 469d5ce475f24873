//! A network in virtual time: links come up between nodes that know each other, take a while, and can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use warren_model::{Incarnation, Level, NodeId};
use warren_transport::{Frame, Hello, Lane, PeerAddress, RequestError};

use crate::Metadata;
use crate::wire::{Answer, Wire};

const LATENCY: Duration = Duration::from_micros(500);
/// After so long a cut link is noticed.
const IDLE_TIMEOUT: Duration = Duration::from_millis(400);

#[derive(Default)]
pub(crate) struct Net {
    state: Mutex<State>,
}

/// What is on its way in one direction: when it arrives, over which link.
type Queue = mpsc::UnboundedSender<(tokio::time::Instant, u64, Delivery)>;

#[derive(Default)]
struct State {
    nodes: BTreeMap<NodeId, Peer>,
    /// Pairs, lesser id first, that nothing passes between.
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Pairs that are linked, with the number of the link.
    links: BTreeMap<(NodeId, NodeId), u64>,
    links_made: u64,
    /// One queue a direction and lane, so that each is ordered.
    queues: BTreeMap<(NodeId, NodeId, u8), Queue>,
    /// Added to the latency of what this node gets.
    slow: BTreeMap<NodeId, Duration>,
}

struct Peer {
    hello: Hello,
    peers: BTreeSet<String>,
    metadata: Metadata,
}

enum Delivery {
    Message(Lane, Frame),
    Request(Lane, Frame, oneshot::Sender<Frame>),
}

fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl Net {
    /// Adds a node that is started on the returned wire.
    pub(crate) fn wire(self: &Arc<Self>, me: NodeId) -> Arc<dyn Wire> {
        Arc::new(End {
            net: Arc::clone(self),
            me,
        })
    }

    pub(crate) fn add(
        self: &Arc<Self>,
        id: NodeId,
        name: &str,
        incarnation: Incarnation,
        knows: Level,
        seeds: &[PeerAddress],
        metadata: &Metadata,
    ) {
        let hello = Hello {
            cluster: None,
            node: id,
            name: name.into(),
            incarnation,
            address: format!("{name}:1"),
            version: 1,
            level: knows,
        };
        let peers = seeds.iter().map(|peer| peer.name.clone()).collect();
        self.state.lock().nodes.insert(
            id,
            Peer {
                hello,
                peers,
                metadata: metadata.clone(),
            },
        );
    }

    /// The node's process is gone: nobody is told.
    pub(crate) fn remove(self: &Arc<Self>, id: NodeId) {
        let others: Vec<NodeId> = {
            let mut state = self.state.lock();
            state.nodes.remove(&id);
            state.nodes.keys().copied().collect()
        };
        for other in others {
            self.lose(pair(id, other));
        }
    }

    pub(crate) fn cut(self: &Arc<Self>, a: NodeId, b: NodeId) {
        self.state.lock().cut.insert(pair(a, b));
        self.lose(pair(a, b));
    }

    pub(crate) fn heal(self: &Arc<Self>) {
        self.state.lock().cut.clear();
        self.relink();
    }

    pub(crate) fn slow_down(&self, node: NodeId, by: Duration) {
        self.state.lock().slow.insert(node, by);
    }

    /// The link is noticed to be gone after a while, unless it is back by then as a newer one.
    fn lose(self: &Arc<Self>, link: (NodeId, NodeId)) {
        let Some(number) = self.state.lock().links.get(&link).copied() else {
            return;
        };
        let net = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(IDLE_TIMEOUT).await;
            net.drop_link(link, number);
            net.relink();
        });
    }

    fn drop_link(&self, link: (NodeId, NodeId), number: u64) {
        let mut told = Vec::new();
        {
            let mut state = self.state.lock();
            if state.links.get(&link) != Some(&number) {
                return;
            }
            state.links.remove(&link);
            for (me, other) in [link, (link.1, link.0)] {
                if let Some(peer) = state.nodes.get(&me) {
                    let hello = state.nodes.get(&other).map(|other| other.hello.clone());
                    let gone = Hello {
                        cluster: None,
                        node: other,
                        name: String::new(),
                        incarnation: Incarnation(0),
                        address: String::new(),
                        version: 1,
                        level: warren_model::Level::NEWEST,
                    };
                    told.push((peer.metadata.clone(), hello.unwrap_or(gone)));
                }
            }
        }
        for (metadata, hello) in told {
            metadata.on_link_down(&hello);
        }
    }

    /// Links whoever can be linked and is not.
    pub(crate) fn relink(self: &Arc<Self>) {
        let mut told = Vec::new();
        {
            let mut state = self.state.lock();
            let ids: Vec<NodeId> = state.nodes.keys().copied().collect();
            for (at, a) in ids.iter().enumerate() {
                for b in &ids[at + 1..] {
                    let link = pair(*a, *b);
                    let (left, right) = (&state.nodes[a], &state.nodes[b]);
                    let known = left.peers.contains(&right.hello.name)
                        || right.peers.contains(&left.hello.name);
                    let admitted = || {
                        left.metadata.admit(&right.hello).is_ok()
                            && right.metadata.admit(&left.hello).is_ok()
                    };
                    if known
                        && !state.links.contains_key(&link)
                        && !state.cut.contains(&link)
                        && admitted()
                    {
                        told.push((left.metadata.clone(), right.hello.clone()));
                        told.push((right.metadata.clone(), left.hello.clone()));
                        state.links_made += 1;
                        let number = state.links_made;
                        state.links.insert(link, number);
                    }
                }
            }
        }
        for (metadata, hello) in told {
            metadata.on_link_up(&hello);
        }
    }

    fn post(self: &Arc<Self>, from: NodeId, to: NodeId, lane: Lane, delivery: Delivery) {
        let mut state = self.state.lock();
        let Some(link) = state.links.get(&pair(from, to)).copied() else {
            return;
        };
        let latency = LATENCY + state.slow.get(&to).copied().unwrap_or_default();
        let number = if lane == Lane::Raft { 0 } else { 1 };
        let net = Arc::clone(self);
        let queue = state.queues.entry((from, to, number)).or_insert_with(|| {
            let (queue, mut deliveries) = mpsc::unbounded_channel();
            tokio::spawn(async move {
                while let Some((at, link, delivery)) = deliveries.recv().await {
                    tokio::time::sleep_until(at).await;
                    net.deliver(from, to, link, delivery);
                }
            });
            queue
        });
        queue
            .send((tokio::time::Instant::now() + latency, link, delivery))
            .unwrap();
    }

    fn passes(&self, from: NodeId, to: NodeId, link: u64) -> Option<Metadata> {
        let state = self.state.lock();
        let passes =
            state.links.get(&pair(from, to)) == Some(&link) && !state.cut.contains(&pair(from, to));
        state
            .nodes
            .get(&to)
            .filter(|_| passes)
            .map(|peer| peer.metadata.clone())
    }

    fn deliver(self: &Arc<Self>, from: NodeId, to: NodeId, link: u64, delivery: Delivery) {
        let Some(metadata) = self.passes(from, to, link) else {
            return;
        };
        match delivery {
            Delivery::Message(lane, frame) => metadata.on_message(from, lane, frame),
            Delivery::Request(lane, frame, reply) => {
                let net = Arc::clone(self);
                let runtime = tokio::runtime::Handle::current();
                let answer = Answer::Call(Box::new(move |frame| {
                    drop(runtime.spawn(async move {
                        let latency = LATENCY
                            + net
                                .state
                                .lock()
                                .slow
                                .get(&from)
                                .copied()
                                .unwrap_or_default();
                        tokio::time::sleep(latency).await;
                        if net.passes(to, from, link).is_some() {
                            drop(reply.send(frame));
                        }
                    }));
                }));
                metadata.serve(from, lane, frame, answer);
            }
        }
    }
}

struct End {
    net: Arc<Net>,
    me: NodeId,
}

impl Wire for End {
    fn send(&self, to: NodeId, lane: Lane, frame: Frame) {
        self.net
            .post(self.me, to, lane, Delivery::Message(lane, frame));
    }

    fn request(
        &self,
        to: NodeId,
        lane: Lane,
        frame: Frame,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Frame, RequestError>> {
        let (reply, received) = oneshot::channel();
        let link = self.net.state.lock().links.get(&pair(self.me, to)).copied();
        if link.is_none() {
            return Box::pin(std::future::ready(Err(RequestError::Unreachable)));
        }
        let (net, me) = (Arc::clone(&self.net), self.me);
        Box::pin(async move {
            net.post(me, to, lane, Delivery::Request(lane, frame, reply));
            let lost = async {
                while net.state.lock().links.get(&pair(me, to)).copied() == link {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                biased;
                frame = tokio::time::timeout(deadline, received) => match frame {
                    Ok(Ok(frame)) => Ok(frame),
                    // The queue or the answer was dropped: nothing comes before the deadline either.
                    Ok(Err(_)) => { tokio::time::sleep(deadline).await; Err(RequestError::TimedOut) }
                    Err(_) => Err(RequestError::TimedOut),
                },
                () = lost => Err(RequestError::LinkLost),
            }
        })
    }

    fn set_peers(&self, peers: Vec<PeerAddress>) {
        if let Some(peer) = self.net.state.lock().nodes.get_mut(&self.me) {
            peer.peers = peers.into_iter().map(|peer| peer.name).collect();
        }
        let net = Arc::clone(&self.net);
        tokio::spawn(async move { net.relink() });
    }

    fn set_cluster(&self, cluster: u128) {
        if let Some(peer) = self.net.state.lock().nodes.get_mut(&self.me) {
            peer.hello.cluster = Some(cluster);
        }
    }
}
