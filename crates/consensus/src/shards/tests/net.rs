//! A network in virtual time: every lane between two nodes is ordered, takes a while, and can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use warren_model::NodeId;
use warren_transport::{Frame, Lane, PeerAddress, RequestError};

use crate::Shards;
use crate::wire::{Answer, Wire};

const LATENCY: Duration = Duration::from_micros(500);
/// After so long without a sign of the other side a link is down.
const IDLE_TIMEOUT: Duration = Duration::from_millis(1500);

#[derive(Default)]
pub(super) struct Net {
    state: Mutex<State>,
}

type Queue = mpsc::UnboundedSender<(Instant, Lane, Frame, oneshot::Sender<Frame>)>;

#[derive(Default)]
struct State {
    nodes: BTreeMap<NodeId, Shards>,
    /// Pairs, lesser id first, that nothing passes between, and since when.
    cut: BTreeMap<(NodeId, NodeId), Instant>,
    /// Nodes whose process is gone, and since when.
    gone: BTreeMap<NodeId, Instant>,
    queues: BTreeMap<(NodeId, NodeId, u8), Queue>,
    /// Bytes that were sent on each lane.
    sent: BTreeMap<u8, usize>,
}

fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

fn number(lane: Lane) -> u8 {
    match lane {
        Lane::ShardPulse => 0,
        Lane::Shard => 1,
        Lane::Raft | Lane::Control | Lane::Publish | Lane::Delivery => {
            panic!("{lane:?} is not for shards")
        }
    }
}

impl Net {
    pub(super) fn add(self: &Arc<Self>, node: NodeId, shards: &Shards) {
        {
            let mut state = self.state.lock();
            state.gone.remove(&node);
            state.nodes.insert(node, shards.clone());
        }
        shards.start_on(Arc::new(End {
            net: Arc::clone(self),
            me: node,
        }));
        self.link_up(|_, _| true, node);
    }

    /// The node's process is gone: the others notice later.
    pub(super) fn remove(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.nodes.remove(&node);
        state.gone.insert(node, Instant::now());
    }

    pub(super) fn cut(&self, a: NodeId, b: NodeId) {
        self.state
            .lock()
            .cut
            .entry(pair(a, b))
            .or_insert_with(Instant::now);
    }

    pub(super) fn heal(&self) {
        let cut = std::mem::take(&mut self.state.lock().cut);
        for (a, _) in cut.keys() {
            self.link_up(|x, y| cut.contains_key(&pair(x, y)), *a);
        }
    }

    pub(super) fn bytes(&self, lane: Lane) -> usize {
        self.state
            .lock()
            .sent
            .get(&number(lane))
            .copied()
            .unwrap_or(0)
    }

    fn link_up(&self, which: impl Fn(NodeId, NodeId) -> bool, node: NodeId) {
        let nodes = self.state.lock().nodes.clone();
        let Some(own) = nodes.get(&node) else { return };
        for (other, shards) in nodes
            .iter()
            .filter(|(other, _)| **other != node && which(node, **other))
        {
            shards.on_link_up(node);
            own.on_link_up(*other);
        }
    }

    fn passes(&self, from: NodeId, to: NodeId) -> Option<Shards> {
        let state = self.state.lock();
        let open = !state.cut.contains_key(&pair(from, to)) && state.nodes.contains_key(&from);
        state.nodes.get(&to).filter(|_| open).cloned()
    }

    /// Whether the link is known to be down.
    fn is_down(&self, from: NodeId, to: NodeId) -> bool {
        let state = self.state.lock();
        let since = [state.cut.get(&pair(from, to)), state.gone.get(&to)];
        since
            .into_iter()
            .flatten()
            .any(|since| since.elapsed() >= IDLE_TIMEOUT)
            || (!state.nodes.contains_key(&to) && !state.gone.contains_key(&to))
    }

    fn post(
        self: &Arc<Self>,
        from: NodeId,
        to: NodeId,
        lane: Lane,
        frame: Frame,
        reply: oneshot::Sender<Frame>,
    ) {
        let mut state = self.state.lock();
        *state.sent.entry(number(lane)).or_default() += frame.wire_len();
        let net = Arc::clone(self);
        let queue = state
            .queues
            .entry((from, to, number(lane)))
            .or_insert_with(|| {
                let (queue, mut frames) = mpsc::unbounded_channel();
                tokio::spawn(async move {
                    while let Some((at, lane, frame, reply)) = frames.recv().await {
                        tokio::time::sleep_until(at).await;
                        net.deliver(from, to, lane, frame, reply);
                    }
                });
                queue
            });
        drop(queue.send((Instant::now() + LATENCY, lane, frame, reply)));
    }

    fn deliver(
        self: &Arc<Self>,
        from: NodeId,
        to: NodeId,
        lane: Lane,
        frame: Frame,
        reply: oneshot::Sender<Frame>,
    ) {
        let Some(shards) = self.passes(from, to) else {
            return;
        };
        let (net, runtime) = (Arc::clone(self), tokio::runtime::Handle::current());
        let answer = Answer::Call(Box::new(move |frame| {
            drop(runtime.spawn(async move {
                tokio::time::sleep(LATENCY).await;
                if net.passes(to, from).is_some() {
                    drop(reply.send(frame));
                }
            }));
        }));
        shards.serve(from, lane, frame, answer);
    }

    pub(super) fn nodes(&self) -> BTreeSet<NodeId> {
        self.state.lock().nodes.keys().copied().collect()
    }
}

struct End {
    net: Arc<Net>,
    me: NodeId,
}

impl Wire for End {
    fn send(&self, _: NodeId, lane: Lane, _: Frame) {
        panic!("a message on {lane:?}: shards send none");
    }

    fn request(
        &self,
        to: NodeId,
        lane: Lane,
        frame: Frame,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Frame, RequestError>> {
        let (net, me) = (Arc::clone(&self.net), self.me);
        Box::pin(async move {
            if net.is_down(me, to) {
                return Err(RequestError::Unreachable);
            }
            let (reply, mut received) = oneshot::channel();
            net.post(me, to, lane, frame, reply);
            let until = Instant::now() + deadline;
            let mut lost = false;
            while Instant::now() < until {
                let step = (Instant::now() + Duration::from_millis(20)).min(until);
                if lost {
                    tokio::time::sleep_until(step).await;
                } else {
                    match tokio::time::timeout_at(step, &mut received).await {
                        Ok(Ok(frame)) => return Ok(frame),
                        // Lost on the way: nothing comes before the deadline.
                        Ok(Err(_)) => lost = true,
                        Err(_) => {}
                    }
                }
                if net.is_down(me, to) {
                    return Err(RequestError::LinkLost);
                }
            }
            Err(RequestError::TimedOut)
        })
    }

    fn set_peers(&self, _: Vec<PeerAddress>) {}

    fn set_cluster(&self, _: u128) {}
}
