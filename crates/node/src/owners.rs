//! Who owns what by the ring: places of non-replicated queues, and the preferred leaders of shards. Who leads a shard now stands in [`crate::leaders`].

use std::sync::Arc;
use warren_model::{Incarnation, NodeId, QueueId, ShardId};
use warren_placement::{Member, Ring};
use warren_routing::Table;

/// Tasks a node among which its queues are divided. Equal on all nodes, since sessions address lanes.
pub(crate) const LANES: u8 = 4;

/// A lane of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Address {
    pub(crate) node: NodeId,
    pub(crate) lane: u8,
}

/// The lane of a shard's queues.
pub(crate) fn lane_of_shard(shard: ShardId) -> u8 {
    (shard.0 % u16::from(LANES)) as u8
}

/// The lane of a queue that is not replicated.
pub(crate) fn lane_of(queue: QueueId) -> u8 {
    // Ids made by one log entry differ in their low bits, those of different entries in the others.
    (queue.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 % LANES
}

/// Owners of all shards in one epoch of the ring.
#[derive(Debug)]
pub(crate) struct Owners {
    pub(crate) epoch: u64,
    pub(crate) ring: Ring,
    by_shard: Vec<Option<NodeId>>,
    up: Vec<(NodeId, Incarnation)>,
}

impl Owners {
    pub(crate) fn of(table: &Table) -> Self {
        let ring = ring_of(table);
        let shards = table.cluster().map_or(0, |(_, shards)| shards);
        let up: Vec<_> = table
            .nodes()
            .filter(|n| n.up)
            .map(|n| (n.id, n.incarnation))
            .collect();
        let by_shard = (0..shards)
            .map(ShardId)
            .map(|shard| match table.placement(shard) {
                Some(_) => preferred_leader(table, shard),
                None => ring.owner(shard),
            })
            .collect();
        Self {
            epoch: table.epoch(),
            ring,
            by_shard,
            up,
        }
    }

    pub(crate) fn shards(&self) -> u16 {
        self.by_shard.len() as u16
    }

    /// The node that should lead a shard.
    pub(crate) fn of_shard(&self, shard: ShardId) -> Option<NodeId> {
        self.by_shard.get(usize::from(shard.0)).copied().flatten()
    }

    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.up.iter().find(|(n, _)| *n == node).map(|(_, i)| *i)
    }

    /// The node with this incarnation, if that is in service.
    pub(crate) fn of_incarnation(&self, node: NodeId, incarnation: Incarnation) -> Option<NodeId> {
        (self.incarnation(node) == Some(incarnation)).then_some(node)
    }
}

/// The ring of the nodes that take their share: a node that is drained gets nothing, unless no other one is there.
fn ring_of(table: &Table) -> Ring {
    let takes = |node: NodeId| !table.is_draining(node);
    let any = table.nodes().any(|n| takes(n.id));
    let members = table.nodes().filter(|n| takes(n.id) || !any);
    Ring::new(members.map(|n| Member {
        node: n.id,
        name: &n.name,
        up: n.up,
    }))
}

/// Who should lead a shard that is placed: the replica that it was given to, else the first one, of those that are up and not drained, or, if all are, of
/// those that are up. A node without a replica cannot lead, whatever it was given.
pub(crate) fn preferred_leader(table: &Table, shard: ShardId) -> Option<NodeId> {
    let replicas = &table.placement(shard)?.replicas;
    let is_up = |node: &NodeId| table.node(*node).is_some_and(|known| known.up);
    let given = table
        .shard_override(shard)
        .filter(|node| replicas.contains(node) && is_up(node) && !table.is_draining(*node));
    let takes = |node: &NodeId| is_up(node) && !table.is_draining(*node);
    given
        .or_else(|| replicas.iter().copied().find(takes))
        .or_else(|| replicas.iter().copied().find(is_up))
}

/// The owners as of the newest epoch that somebody asked about.
#[derive(Debug)]
pub(crate) struct CurrentOwners(parking_lot::RwLock<Arc<Owners>>);

impl CurrentOwners {
    pub(crate) fn new(table: &Table) -> Self {
        Self(parking_lot::RwLock::new(Arc::new(Owners::of(table))))
    }

    /// Owners that belong to `table`, which the caller has locked for reading.
    pub(crate) fn get(&self, table: &Table) -> Arc<Owners> {
        let current = self.0.read();
        if current.epoch == table.epoch() && (current.shards() > 0 || table.cluster().is_none()) {
            return current.clone();
        }
        drop(current);
        let fresh = Arc::new(Owners::of(table));
        *self.0.write() = fresh.clone();
        fresh
    }
}
