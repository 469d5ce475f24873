//! The table itself: definitions, indexes, and the few look-ups that everything else is made of.

use crate::apply::{Applied, Change};
use crate::bindings::{Bindings, End};
use crate::digest::Digest;
use crate::exchange::Exchange;
use crate::hash;
use crate::limits::Limits;
use crate::members::{NodeRecord, Placed};
use crate::names::Names;
use crate::policy::Policies;
use crate::queue::Queue;
use crate::queue_arguments;
use crate::slab::Slab;
use crate::text;
use crate::topic_permissions::ByExchange;
use hashbrown::HashTable;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use warren_model::command::{
    ParameterKey, Permission, Place, User, UserLimit, VhostDetails, VhostLimit,
};
use warren_model::{Incarnation, Level, NodeId, QueueId, Refusal, SessionId, ShardId};

/// The replicated routing table of one node.
///
/// Cloning copies everything; two clones that apply the same entries stay equal.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(crate) index: u64,
    pub(crate) epoch: u64,
    /// None before it was raised for the first time.
    pub(crate) level: Option<Level>,
    pub(crate) digest: Digest,
    /// Identity and number of shards.
    pub(crate) cluster: Option<(u128, u16)>,
    pub(crate) nodes: BTreeMap<NodeId, NodeRecord>,
    /// Nodes that are to be emptied.
    pub(crate) draining: BTreeSet<NodeId>,
    /// Shards that were given to a node other than by the ring.
    pub(crate) shards: BTreeMap<ShardId, NodeId>,
    pub(crate) placements: BTreeMap<ShardId, Placed>,
    pub(crate) users: BTreeMap<String, User>,
    /// By user, then virtual host.
    pub(crate) permissions: BTreeMap<String, BTreeMap<String, Permission>>,
    /// By user, then virtual host and exchange.
    pub(crate) topic_permissions: BTreeMap<String, ByExchange>,
    /// JSON of the virtual hosts' parameters.
    pub(crate) parameters: BTreeMap<ParameterKey, String>,
    pub(crate) user_limits: BTreeMap<String, Limits<UserLimit>>,
    pub(crate) globals: BTreeMap<String, String>,
    pub(crate) vhost_numbers: BTreeMap<Arc<str>, u32>,
    pub(crate) vhosts: Slab<Vhost>,
    pub(crate) exchanges: Slab<Exchange>,
    pub(crate) exchange_index: HashTable<u32>,
    pub(crate) queues: Slab<Queue>,
    pub(crate) queue_index: HashTable<u32>,
    pub(crate) queue_ids: HashTable<u32>,
    /// Exclusive queues by the session that owns them; in order, so that all of a node's incarnation are a range.
    pub(crate) session_queues: BTreeMap<SessionId, BTreeSet<QueueId>>,
    /// Queues that live in one incarnation's memory.
    pub(crate) memory_queues: BTreeMap<(NodeId, Incarnation), BTreeSet<QueueId>>,
    /// How many queues of a shard ask for so many replicas.
    pub(crate) group_sizes: BTreeMap<(ShardId, u32), u32>,
    pub(crate) names: Names,
    pub(crate) bindings: Bindings,
}

/// A virtual host: its definitions' slots, in the order of their names.
#[derive(Clone, Debug)]
pub(crate) struct Vhost {
    pub name: Arc<str>,
    pub exchanges: BTreeMap<Arc<str>, u32>,
    pub queues: BTreeMap<Arc<str>, u32>,
    pub policies: Policies,
    pub limits: Limits<VhostLimit>,
    pub details: VhostDetails,
}

fn name_hash(vhost: u32, name: &[u8]) -> u64 {
    hash::mix(hash::bytes(name) ^ u64::from(vhost))
}

/// The shard that a queue lies in, and how many replicas it asks for.
fn asked_of(queue: &Queue) -> Option<(ShardId, u32)> {
    let Place::Shard(shard) = queue.place else {
        return None;
    };
    Some((shard, queue_arguments::group_size(&queue.arguments)?))
}

fn id_hash(id: QueueId) -> u64 {
    hash::mix(id.0)
}

impl Table {
    /// An empty table: no cluster, no virtual host, at index 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Index of the last log entry applied.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// For entries that carry no commands (blank ones, membership changes).
    ///
    /// # Panics
    /// If the index would go back: entries are applied in order.
    pub fn set_index(&mut self, index: u64) {
        assert!(
            index >= self.index,
            "log index {index} after {}: entries are applied in order",
            self.index
        );
        self.index = index;
    }

    /// Sum over the hashes of all records: tables with equal records have equal digests, whatever way they came by them.
    pub fn digest(&self) -> [u8; 32] {
        self.digest.to_bytes()
    }

    /// The ring's epoch: grows with each command that changed the members or a shard's owner.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What all nodes of the cluster know. It never falls.
    pub fn level(&self) -> Level {
        self.level.unwrap_or(Level::FIRST)
    }

    /// The most replicas that a queue of a shard asks for (`x-quorum-initial-group-size`), 0 if none does.
    pub fn group_size(&self, shard: ShardId) -> u32 {
        let of_shard = self.group_sizes.range((shard, 0)..=(shard, u32::MAX));
        of_shard.last().map_or(0, |((_, size), _)| *size)
    }

    /// How many bindings there are, in all virtual hosts.
    pub fn binding_count(&self) -> usize {
        self.bindings.len()
    }

    /// How many queues there are, in all virtual hosts.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    #[inline]
    pub(crate) fn find_vhost(&self, name: &str) -> Option<u32> {
        self.vhost_numbers.get(name).copied()
    }

    pub(crate) fn vhost(&self, name: &str) -> Result<u32, Refusal> {
        self.find_vhost(name).ok_or_else(|| text::no_vhost(name))
    }

    #[inline]
    pub(crate) fn find_exchange(&self, vhost: u32, name: &[u8]) -> Option<u32> {
        let is_it = |slot: &u32| {
            let exchange = &self.exchanges[*slot];
            exchange.vhost == vhost && exchange.name.as_bytes() == name
        };
        self.exchange_index
            .find(name_hash(vhost, name), is_it)
            .copied()
    }

    #[inline]
    pub(crate) fn find_queue(&self, vhost: u32, name: &[u8]) -> Option<u32> {
        let is_it = |slot: &u32| {
            let queue = &self.queues[*slot];
            queue.vhost == vhost && queue.name.as_bytes() == name
        };
        self.queue_index
            .find(name_hash(vhost, name), is_it)
            .copied()
    }

    #[inline]
    pub(crate) fn find_queue_id(&self, id: QueueId) -> Option<u32> {
        self.queue_ids
            .find(id_hash(id), |slot| self.queues[*slot].id == id)
            .copied()
    }

    pub(crate) fn vhost_name(&self, vhost: u32) -> &Arc<str> {
        &self.vhosts[vhost].name
    }

    pub(crate) fn end_name(&self, end: End) -> &Arc<str> {
        match (end.as_queue(), end.as_exchange()) {
            (Some(queue), _) => &self.queues[queue].name,
            (None, Some(exchange)) => &self.exchanges[exchange].name,
            (None, None) => unreachable!("an end is one or the other"),
        }
    }

    pub(crate) fn is_up(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|known| known.up && known.incarnation == incarnation)
    }

    /// Takes an exchange into the indexes; it has no bindings yet.
    pub(crate) fn index_exchange(&mut self, mut exchange: Exchange) -> u32 {
        exchange.policy_alternate = self.vhosts[exchange.vhost]
            .policies
            .alternate(&exchange.name);
        let (vhost, name) = (exchange.vhost, Arc::clone(&exchange.name));
        let slot = self.exchanges.insert(exchange);
        let exchanges = &self.exchanges;
        self.exchange_index
            .insert_unique(name_hash(vhost, name.as_bytes()), slot, |slot| {
                let exchange = &exchanges[*slot];
                name_hash(exchange.vhost, exchange.name.as_bytes())
            });
        self.vhosts[vhost].exchanges.insert(name, slot);
        slot
    }

    /// Takes an exchange without bindings out of the indexes.
    pub(crate) fn unindex_exchange(&mut self, slot: u32) -> Exchange {
        let exchange = self.exchanges.remove(slot);
        debug_assert!(exchange.sources.len == 0 && exchange.bound.len == 0);
        remove_number(
            &mut self.exchange_index,
            name_hash(exchange.vhost, exchange.name.as_bytes()),
            slot,
        );
        self.vhosts[exchange.vhost].exchanges.remove(&exchange.name);
        exchange
    }

    /// Takes a queue into the indexes; it has no bindings yet.
    pub(crate) fn index_queue(&mut self, queue: Queue) -> u32 {
        let (id, vhost, name) = (queue.id, queue.vhost, Arc::clone(&queue.name));
        if let Some(session) = queue.exclusive {
            self.session_queues.entry(session).or_default().insert(id);
        }
        if let Place::Node(node, incarnation) = queue.place {
            self.memory_queues
                .entry((node, incarnation))
                .or_default()
                .insert(id);
        }
        if let Some(asked) = asked_of(&queue) {
            *self.group_sizes.entry(asked).or_default() += 1;
        }
        let slot = self.queues.insert(queue);
        let queues = &self.queues;
        self.queue_index
            .insert_unique(name_hash(vhost, name.as_bytes()), slot, |slot| {
                let queue = &queues[*slot];
                name_hash(queue.vhost, queue.name.as_bytes())
            });
        self.queue_ids
            .insert_unique(id_hash(id), slot, |slot| id_hash(queues[*slot].id));
        self.vhosts[vhost].queues.insert(name, slot);
        slot
    }

    /// Takes a queue without bindings out of the indexes.
    pub(crate) fn unindex_queue(&mut self, slot: u32) -> Queue {
        let queue = self.queues.remove(slot);
        debug_assert!(queue.bound.len == 0);
        remove_number(
            &mut self.queue_index,
            name_hash(queue.vhost, queue.name.as_bytes()),
            slot,
        );
        remove_number(&mut self.queue_ids, id_hash(queue.id), slot);
        self.vhosts[queue.vhost].queues.remove(&queue.name);
        if let Some(session) = queue.exclusive {
            remove_id(&mut self.session_queues, &session, queue.id);
        }
        if let Place::Node(node, incarnation) = queue.place {
            remove_id(&mut self.memory_queues, &(node, incarnation), queue.id);
        }
        if let Some(asked) = asked_of(&queue)
            && let Some(queues) = self.group_sizes.get_mut(&asked)
        {
            *queues -= 1;
            if *queues == 0 {
                self.group_sizes.remove(&asked);
            }
        }
        queue
    }

    /// Records a definition that was not there.
    pub(crate) fn put(&mut self, applied: &mut Applied, key: Vec<u8>, value: Vec<u8>) {
        self.digest.add(&key, &value);
        applied.changes.push(Change {
            key,
            value: Some(value),
        });
    }

    /// Records that a definition is other than it was.
    pub(crate) fn replace(
        &mut self,
        applied: &mut Applied,
        key: Vec<u8>,
        old: &[u8],
        value: Vec<u8>,
    ) {
        self.digest.remove(&key, old);
        self.put(applied, key, value);
    }

    /// Records that a definition is gone.
    pub(crate) fn erase(&mut self, applied: &mut Applied, key: Vec<u8>, old: &[u8]) {
        self.digest.remove(&key, old);
        applied.changes.push(Change { key, value: None });
    }
}

fn remove_number(index: &mut HashTable<u32>, hash: u64, number: u32) {
    match index.find_entry(hash, |known| *known == number) {
        Ok(found) => {
            found.remove();
        }
        Err(_) => unreachable!("every definition is indexed"),
    }
}

fn remove_id<K: Ord>(lists: &mut BTreeMap<K, BTreeSet<QueueId>>, key: &K, id: QueueId) {
    if let Some(list) = lists.get_mut(key) {
        list.remove(&id);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_model::Command;
    use warren_model::command::{Binding, DeclareQueue, Destination, Place};

    fn queue(name: &str) -> Command {
        Command::DeclareQueue(DeclareQueue {
            vhost: "/".into(),
            name: name.into(),
            durable: true,
            exclusive: false,
            auto_delete: false,
            server_named: false,
            arguments: Vec::new(),
            session: SessionId::default(),
            place: Place::Shard(ShardId(0)),
        })
    }

    fn binding(source: &str, key: &str, queue: &str) -> Binding {
        Binding {
            vhost: "/".into(),
            source: source.into(),
            destination: Destination::Queue(queue.into()),
            key: key.into(),
            arguments: Vec::new(),
            session: SessionId::default(),
        }
    }

    /// Whatever comes and goes, nothing of it stays in memory.
    #[test]
    fn unbinding_and_deleting_leave_nothing_behind() {
        let mut table = Table::new();
        let mut applied = Applied::default();
        let found = Command::FoundCluster {
            cluster: 1,
            shards: 1,
        };
        table.apply(1, &[found], &mut applied);
        let digest = table.digest();
        let keys = ["", "a", "a.b.c", "a.#.b", "*.a", "#", "a.b"];
        let bindings = || {
            let sources = ["amq.topic", "amq.direct", "amq.fanout", "amq.headers"];
            sources
                .into_iter()
                .flat_map(|source| keys.map(|key| binding(source, key, "q")))
        };
        for round in 0..3u64 {
            let mut commands = vec![queue("q")];
            commands.extend(bindings().map(Command::Bind));
            table.apply(2 + round * 2, &commands, &mut applied);
            assert_eq!(table.binding_count(), 28);
            let mut commands = Vec::new();
            if round != 1 {
                commands.extend(bindings().map(Command::Unbind));
            }
            commands.push(Command::DeleteQueue {
                vhost: "/".into(),
                name: "q".into(),
                only: None,
                session: SessionId::default(),
            });
            table.apply(3 + round * 2, &commands, &mut applied);
            assert_eq!((table.names.len(), table.binding_count()), (0, 0));
            assert_eq!(table.queue_count(), 0);
            assert_eq!(table.digest(), digest);
        }
    }
}
