//! What the HTTP API asks of a node beyond its table: who owns what, and where a new queue goes.

use crate::node::Node;
use crate::owners::Owners;
use std::sync::Arc;
use warren_consensus::ShardStatus;
use warren_model::command::Place;
use warren_model::{NodeId, ShardId};
use warren_placement::shard_of;
use warren_routing::Table;

/// Who owns what in one epoch of the ring.
#[derive(Clone, Debug)]
pub struct Ownership {
    owners: Arc<Owners>,
    /// Leaders of the shards, by number.
    leaders: Vec<Option<NodeId>>,
}

impl Ownership {
    /// The epoch of the ring.
    pub fn epoch(&self) -> u64 {
        self.owners.epoch
    }

    /// The cluster's number of shards; 0 while it is not founded.
    pub fn shards(&self) -> u16 {
        self.owners.shards()
    }

    /// The leader of each shard, by number, as far as is known.
    pub fn of_shards(&self) -> impl Iterator<Item = Option<NodeId>> + '_ {
        self.leaders.iter().copied()
    }

    /// The node that should lead each shard, by number; none while no node that could is up.
    pub fn preferred(&self) -> impl Iterator<Item = Option<NodeId>> + '_ {
        (0..self.owners.shards()).map(|shard| self.owners.of_shard(ShardId(shard)))
    }

    /// The node that serves a place now, if one that is up does.
    pub fn of_place(&self, place: Place) -> Option<NodeId> {
        match place {
            Place::Shard(shard) => self.leaders.get(usize::from(shard.0)).copied().flatten(),
            Place::Node(node, incarnation) => self.owners.of_incarnation(node, incarnation),
        }
    }

    /// Where a queue that is not exclusive lives if it is declared now: a durable one in its shard, another one in the memory of the node that the ring
    /// chooses; none while no node is up that could take it.
    pub fn place_of_new(&self, vhost: &str, name: &str, durable: bool) -> Option<Place> {
        if durable {
            return (self.owners.shards() > 0)
                .then(|| Place::Shard(shard_of(vhost, name, self.owners.shards())));
        }
        let node = self.owners.ring.place(vhost, name)?;
        Some(Place::Node(node, self.owners.incarnation(node)?))
    }
}

impl Node {
    /// Who owns what by `table`, which the caller has locked for reading.
    pub fn ownership(&self, table: &Table) -> Ownership {
        let owners = self.owners(table);
        let leaders = (0..owners.shards())
            .map(|shard| self.leaders().get(ShardId(shard)).map(|l| l.node))
            .collect();
        Ownership { owners, leaders }
    }

    /// The node that serves a place now.
    pub(crate) fn serving(&self, owners: &Owners, place: Place) -> Option<NodeId> {
        match place {
            Place::Shard(shard) => self.leaders().get(shard).map(|leader| leader.node),
            Place::Node(node, incarnation) => owners.of_incarnation(node, incarnation),
        }
    }

    /// The group of a shard as this node sees it; none if it has no replica.
    pub fn shard_status(&self, shard: ShardId) -> Option<ShardStatus> {
        self.shards().status(shard)
    }

    /// The version of RabbitMQ whose behaviour clients may count on.
    pub fn compatible_version(&self) -> String {
        self.identity().compatible_version
    }
}
