//! Who leads which shard, as this node has heard.
//!
//! Flow: a lane that comes to lead a shard announces it to this node and to all that are linked; each node notes it and tells its sessions, which send again
//! what has no outcome yet, and attach their consumers again, saying what they hold. When all of a node's sessions have done so, the node says so to the
//! leader, which delivers nothing before all have.
//! Invariant: terms only grow; a node that was a leader stays noted until a later one announces itself, since nobody knows better.

use crate::node::Node;
use crate::wire::ToNode;
use parking_lot::RwLock;
use std::sync::{Arc, Weak};
use warren_model::{NodeId, ShardId};

/// A shard's leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leader {
    pub(crate) term: u64,
    pub(crate) node: NodeId,
}

/// The leaders by shard.
#[derive(Debug, Default)]
pub(crate) struct Leaders(RwLock<Vec<Option<Leader>>>);

impl Leaders {
    pub(crate) fn get(&self, shard: ShardId) -> Option<Leader> {
        self.0.read().get(usize::from(shard.0)).copied().flatten()
    }

    /// Notes a leader; false if a later one is known.
    pub(crate) fn note(&self, shard: ShardId, leader: Leader) -> bool {
        let mut leaders = self.0.write();
        let at = usize::from(shard.0);
        if leaders.len() <= at {
            leaders.resize(at + 1, None);
        }
        if leaders[at].is_some_and(|known| known.term > leader.term) {
            return false;
        }
        leaders[at] = Some(leader);
        true
    }

    /// This node leads no more: nobody is known to.
    pub(crate) fn resigned(&self, shard: ShardId, leader: Leader) {
        if let Some(known) = self.0.write().get_mut(usize::from(shard.0))
            && *known == Some(leader)
        {
            *known = None;
        }
    }

    /// Shards that a node leads.
    pub(crate) fn of(&self, node: NodeId) -> Vec<(ShardId, u64)> {
        let leaders = self.0.read();
        let led = |(at, leader): (usize, &Option<Leader>)| {
            let leader = leader.filter(|leader| leader.node == node)?;
            Some((ShardId(at as u16), leader.term))
        };
        leaders.iter().enumerate().filter_map(led).collect()
    }
}

/// Held by each session that has not yet attached its consumers to a shard's new leader; the leader hears when the last one is dropped.
#[derive(Debug)]
pub(crate) struct Reattaching {
    pub(crate) node: Weak<Node>,
    pub(crate) shard: ShardId,
    pub(crate) leader: Leader,
}

impl Drop for Reattaching {
    fn drop(&mut self) {
        if let Some(node) = self.node.upgrade() {
            node.send_to_node(
                self.leader.node,
                ToNode::Reattached {
                    shard: self.shard,
                    term: self.leader.term,
                },
            );
        }
    }
}

impl Node {
    /// A shard has a leader: itself announced it. Tells the sessions.
    pub(crate) fn leader_announced(self: &Arc<Self>, shard: ShardId, leader: Leader) {
        if !self.leaders().note(shard, leader) {
            return;
        }
        let token = Arc::new(Reattaching {
            node: Arc::downgrade(self),
            shard,
            leader,
        });
        self.tell_sessions_of_leader(&token);
    }

    /// This node leads a shard: says so everywhere.
    pub(crate) fn announce(self: &Arc<Self>, shard: ShardId, term: u64) {
        let leads = ToNode::Leads { shard, term };
        for peer in self.linked() {
            self.send_to_node(peer, leads.clone());
        }
        let node = self.id();
        self.leader_announced(shard, Leader { term, node });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_terms_win_and_only_the_one_who_resigns_goes() {
        let leaders = Leaders::default();
        let leader = |term, node| Leader {
            term,
            node: NodeId(node),
        };
        assert!(leaders.note(ShardId(2), leader(4, 1)));
        assert!(
            leaders.note(ShardId(2), leader(4, 1)),
            "it may say so again"
        );
        assert!(!leaders.note(ShardId(2), leader(3, 2)));
        leaders.resigned(ShardId(2), leader(3, 1));
        assert_eq!(leaders.get(ShardId(2)), Some(leader(4, 1)));
        assert_eq!(leaders.of(NodeId(1)), [(ShardId(2), 4)]);
        leaders.resigned(ShardId(2), leader(4, 1));
        assert_eq!(leaders.get(ShardId(2)), None);
        assert_eq!(leaders.get(ShardId(9)), None);
    }
}
