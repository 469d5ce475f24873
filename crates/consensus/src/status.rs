//! What can be told of the metadata group, for people and for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::Instant;
use warren_model::{Level, NodeId};

use crate::metadata::Core;

/// The metadata group, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// The cluster, once founded or joined.
    pub cluster: Option<u128>,
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// The Raft term.
    pub term: u64,
    /// The last index that this node has applied.
    pub applied_index: u64,
    /// The last index that this node knows to be committed.
    pub committed_index: Option<u64>,
    /// The first index that is still in this node's log, if anything was purged.
    pub purged_index: Option<u64>,
    /// What all nodes know.
    pub level: Level,
    /// Whether this node may route.
    pub lease_held: bool,
    /// The members, by id.
    pub members: Vec<MemberStatus>,
}

/// A member of the group, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Whether it votes.
    pub voter: bool,
    /// Whether the table says that it is up.
    pub up: bool,
    /// Whether this node has a link to it; a node has one to itself.
    pub linked: bool,
    /// The newest level that it knows, if it is linked.
    pub knows: Option<Level>,
    /// How long ago the leader heard of it last; known to the leader only.
    pub last_seen: Option<Duration>,
}

impl Core {
    pub(crate) fn status(&self) -> Status {
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched().clone();
        let mut known: BTreeMap<NodeId, Level> = {
            let links = self.links.lock();
            links
                .iter()
                .map(|(node, peer)| (*node, peer.level))
                .collect()
        };
        known.insert(self.me(), self.config.knows);
        let seen: Vec<Option<Instant>> = self.ledger.with(|ledger| {
            now.membership_config
                .nodes()
                .map(|(node, _)| ledger.seen(*node))
                .collect()
        });
        let table = self.machine.table().read();
        let members = now
            .membership_config
            .nodes()
            .zip(seen)
            .map(|((node, member), seen)| MemberStatus {
                node: *node,
                name: member.name.clone(),
                voter: now
                    .membership_config
                    .voter_ids()
                    .any(|voter| voter == *node),
                up: table.node(*node).is_some_and(|known| known.up),
                linked: known.contains_key(node),
                knows: known.get(node).copied(),
                last_seen: seen.map(|at| {
                    if *node == self.me() {
                        Duration::ZERO
                    } else {
                        at.elapsed()
                    }
                }),
            });
        Status {
            node: self.me(),
            name: self.config.name.clone(),
            cluster: table.cluster().map(|(cluster, _)| cluster),
            leader: *self.leader.borrow(),
            term: now.current_term,
            applied_index: table.index(),
            committed_index: now.cluster_committed.map(|id| id.index),
            purged_index: now.purged.map(|id| id.index),
            level: table.level(),
            lease_held: self.lease.is_held(),
            members: members.collect(),
        }
    }
}
