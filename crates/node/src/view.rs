//! What the HTTP API asks of a node beyond its table: who owns what, and where a new queue goes.

use crate::node::Node;
use crate::owners::Owners;
use std::sync::Arc;
use warren_model::command::Place;
use warren_model::{NodeId, ShardId};
use warren_placement::shard_of;
use warren_routing::Table;

/// Who owns what in one epoch of the ring.
#[derive(Clone, Debug)]
pub struct Ownership(Arc<Owners>);

impl Ownership {
    /// The epoch of the ring.
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// The cluster's number of shards; 0 while it is not founded.
    pub fn shards(&self) -> u16 {
        self.0.shards()
    }

    /// The owner of each shard, by number; none while no node that could own it is up.
    pub fn of_shards(&self) -> impl Iterator<Item = Option<NodeId>> + '_ {
        (0..self.0.shards()).map(|shard| self.0.of_shard(ShardId(shard)))
    }

    /// The node that owns a place now, if one that is up does.
    pub fn of_place(&self, place: Place) -> Option<NodeId> {
        self.0.of_place(place)
    }

    /// Where a queue that is not exclusive lives if it is declared now: a durable one in its shard, another one in the memory of the node that the ring
    /// chooses; none while no node is up that could take it.
    pub fn place_of_new(&self, vhost: &str, name: &str, durable: bool) -> Option<Place> {
        if durable {
            return (self.0.shards() > 0)
                .then(|| Place::Shard(shard_of(vhost, name, self.0.shards())));
        }
        let node = self.0.ring.place(vhost, name)?;
        Some(Place::Node(node, self.0.incarnation(node)?))
    }
}

impl Node {
    /// Who owns what by `table`, which the caller has locked for reading.
    pub fn ownership(&self, table: &Table) -> Ownership {
        Ownership(self.owners(table))
    }

    /// The version of RabbitMQ whose behaviour clients may count on.
    pub fn compatible_version(&self) -> String {
        self.identity().compatible_version
    }
}
