//! Alarms: while any node of the cluster is low on memory or disk, publishers are blocked on every node.
//!
//! Flow: a node notices its own state ([`Node::account`] for memory, [`watch_disk`] for disk), tells its sessions and all linked nodes, and tells a node that
//! is linked anew. What a peer has said counts while it is linked.
//! Cost: whether there is any alarm is one load.

use crate::connection::Inbox;
use crate::node::Node;
use crate::wire::ToNode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use warren_model::NodeId;

/// How often free disk space is looked at.
const LOOK_AT_DISK: Duration = Duration::from_millis(500);

/// Says how many bytes are free where the node keeps its data; `None` if that cannot be told now.
#[derive(Clone)]
pub struct FreeDisk(Arc<dyn Fn() -> Option<u64> + Send + Sync>);

impl FreeDisk {
    /// Asks `ask` each time.
    pub fn new(ask: impl Fn() -> Option<u64> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    /// Bytes that are free, if that can be told now.
    pub fn ask(&self) -> Option<u64> {
        (self.0)()
    }
}

impl fmt::Debug for FreeDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreeDisk")
    }
}

/// What a node is low on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Low {
    /// Its queues hold more in memory than they may.
    pub memory: bool,
    /// Less space is free than must be.
    pub disk: bool,
}

impl Low {
    fn any(self) -> bool {
        self.memory || self.disk
    }
}

#[derive(Debug, Default)]
pub(crate) struct Alarms {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    own: Low,
    peers: BTreeMap<NodeId, Low>,
}

impl State {
    fn reason(&self) -> Option<&'static str> {
        let all = || self.peers.values().chain([&self.own]);
        if all().any(|low| low.memory) {
            Some("low on memory")
        } else if all().any(|low| low.disk) {
            Some("low on disk")
        } else {
            None
        }
    }
}

impl Alarms {
    /// Whether publishers are blocked.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Changes what is known; returns the reason to block publishers (or not any more), if that has changed.
    fn change(&self, change: impl FnOnce(&mut State)) -> Option<Option<&'static str>> {
        let mut state = self.state.lock();
        let before = state.reason();
        change(&mut state);
        let after = state.reason();
        self.any.store(after.is_some(), Ordering::Relaxed);
        (before != after).then_some(after)
    }
}

impl Node {
    /// Whether publishers are blocked: this node or another one is low on something.
    pub fn alarm(&self) -> bool {
        self.alarms().any()
    }

    /// Why publishers are blocked, as clients are told.
    pub fn alarm_reason(&self) -> Option<&'static str> {
        self.alarms().state.lock().reason()
    }

    /// What this node itself is low on.
    pub fn low(&self) -> Low {
        self.alarms().state.lock().own
    }

    /// This node has become low on something, or is not any more.
    pub(crate) fn set_low(self: &Arc<Self>, change: impl FnOnce(&mut Low)) {
        let (mut before, mut after) = (Low::default(), Low::default());
        let changed = self.alarms().change(|state| {
            before = state.own;
            change(&mut state.own);
            after = state.own;
        });
        if before != after {
            for peer in self.linked() {
                self.send_to_node(peer, says(after));
            }
        }
        self.block_or_unblock(changed);
    }

    /// A linked node says what it is low on; `None`: the link is gone.
    pub(crate) fn peer_is_low(&self, peer: NodeId, low: Option<Low>) {
        let changed = self.alarms().change(|state| {
            match low.filter(|low| low.any()) {
                Some(low) => state.peers.insert(peer, low),
                None => state.peers.remove(&peer),
            };
        });
        self.block_or_unblock(changed);
    }

    /// Tells a node that is linked now.
    pub(crate) fn tell_alarms(self: &Arc<Self>, peer: NodeId) {
        let low = self.low();
        if low.any() {
            self.send_to_node(peer, says(low));
        }
    }

    fn block_or_unblock(&self, changed: Option<Option<&'static str>>) {
        match changed {
            None => {}
            Some(None) => {
                tracing::info!("no node is low on memory or disk any more: publishers go on");
                self.broadcast(|| Inbox::Alarm(None));
            }
            Some(Some(reason)) => {
                tracing::warn!(
                    reason,
                    "publishers are blocked: this node or another one is low on something"
                );
                self.broadcast(|| Inbox::Alarm(Some(reason.to_owned())));
            }
        }
    }
}

fn says(low: Low) -> ToNode {
    ToNode::Low {
        memory: low.memory,
        disk: low.disk,
    }
}

/// Watches free disk space until the node stops.
pub(crate) async fn watch_disk(node: Arc<Node>) {
    let Some(disk) = node.config().free_disk.clone() else {
        return;
    };
    let limit = node.settings().disk_free_limit_bytes;
    while !node.is_stopping() {
        if let Some(free) = disk.ask() {
            let disk = free < limit;
            if disk != node.low().disk {
                tracing::warn!(
                    free,
                    limit,
                    low = disk,
                    "free disk space has crossed its limit"
                );
            }
            node.set_low(|low| low.disk = disk);
        }
        tokio::time::sleep(LOOK_AT_DISK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_that_is_low_blocks_and_the_last_one_that_is_not_any_more_unblocks() {
        let alarms = Alarms::default();
        let low = |memory, disk| Low { memory, disk };
        assert_eq!(alarms.change(|s| s.own = low(false, false)), None);
        assert_eq!(
            alarms.change(|s| s.own = low(false, true)),
            Some(Some("low on disk"))
        );
        let peer = NodeId(2);
        let changed = alarms.change(|s| {
            s.peers.insert(peer, low(true, false));
        });
        assert_eq!(changed, Some(Some("low on memory")));
        assert!(alarms.any());
        assert_eq!(
            alarms.change(|s| {
                s.peers.remove(&peer);
            }),
            Some(Some("low on disk"))
        );
        assert_eq!(alarms.change(|s| s.own = Low::default()), Some(None));
        assert!(!alarms.any());
    }
}
