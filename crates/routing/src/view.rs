//! Looking things up: borrowed views of definitions, in the order of their names.
//!
//! Cost: queues and exchanges are kept in order, so a page of a listing costs what it shows. Bindings are sorted one source exchange at a time.

use crate::bindings::{End, List};
use crate::members::{NodeRecord, Placed};
use crate::queue_arguments;
use crate::table::Table;
use std::cmp::Ordering;
use std::ops::Bound;
use warren_model::command::{Destination, Permission, Place, User};
use warren_model::{NodeId, QueueId, SessionId, ShardId};

/// An exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeView<'a> {
    /// Virtual host.
    pub vhost: &'a str,
    /// Name; empty for the default exchange.
    pub name: &'a str,
    /// Type.
    pub kind: &'static str,
    /// Survives a restart of the whole cluster.
    pub durable: bool,
    /// Deleted when its last binding as a source goes.
    pub auto_delete: bool,
    /// Cannot be published to by clients.
    pub internal: bool,
    /// Raw field table entries, as declared.
    pub arguments: &'a [u8],
}

/// A queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView<'a> {
    /// Its id.
    pub id: QueueId,
    /// Name.
    pub name: &'a str,
    /// Virtual host.
    pub vhost: &'a str,
    /// Survives a restart of the whole cluster.
    pub durable: bool,
    /// The session that it belongs to, if it is exclusive.
    pub exclusive: Option<SessionId>,
    /// Deleted when its last consumer goes.
    pub auto_delete: bool,
    /// Raw field table entries, as declared.
    pub arguments: &'a [u8],
    /// Where its contents live.
    pub place: Place,
    /// Name of its type (`classic`, `quorum`).
    pub kind: &'static str,
}

/// A binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingView<'a> {
    /// Virtual host.
    pub vhost: &'a str,
    /// Name of the source exchange.
    pub source: &'a str,
    /// Where it leads.
    pub destination: Destination,
    /// Binding key.
    pub key: &'a [u8],
    /// Raw field table entries in canonical form: sorted by key.
    pub arguments: &'a [u8],
    /// What tells it apart from other bindings of the same two ends, in URLs: the percent-encoded key, `~` if that is empty, and a
    /// hash of the arguments if there are any, as RabbitMQ's HTTP API names them (its hash is another one).
    pub properties_key: String,
}

impl Table {
    /// The cluster's identity and number of shards, once it is founded.
    pub fn cluster(&self) -> Option<(u128, u16)> {
        self.cluster
    }

    /// All nodes that are not forgotten, by id.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRecord> {
        self.nodes.values()
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&NodeRecord> {
        self.nodes.get(&id)
    }

    /// Whether there is an exchange that is not durable.
    pub fn has_transient_exchanges(&self) -> bool {
        let mut vhosts = self.vhost_numbers.values();
        vhosts.any(|vhost| {
            let mut slots = self.vhosts[*vhost].exchanges.values();
            slots.any(|slot| !self.exchanges[*slot].durable)
        })
    }

    /// Whether a node is to be emptied of replicas and leaderships.
    pub fn is_draining(&self, id: NodeId) -> bool {
        self.draining.contains(&id)
    }

    /// Queues in a node's memory, by whether they are exclusive to a session: those that go when its process ends.
    pub fn queues_in_memory(&self, id: NodeId) -> (usize, usize) {
        let Some(known) = self.nodes.get(&id) else {
            return (0, 0);
        };
        let all = self.memory_queues.get(&(id, known.incarnation));
        let is_exclusive = |queue: &&QueueId| {
            let slot = self.find_queue_id(**queue);
            slot.is_some_and(|slot| self.queues[slot].exclusive.is_some())
        };
        let (exclusive, others): (Vec<&QueueId>, Vec<&QueueId>) =
            all.into_iter().flatten().partition(is_exclusive);
        (exclusive.len(), others.len())
    }

    /// Shards that are to have a replica on a node.
    pub fn placed_on(&self, id: NodeId) -> impl Iterator<Item = (ShardId, &Placed)> + '_ {
        let all = self.placements.iter();
        all.filter(move |(_, placed)| placed.replicas.contains(&id))
            .map(|(shard, placed)| (*shard, placed))
    }

    /// Shards that were given to a node other than by the ring, by number.
    pub fn shard_overrides(&self) -> impl Iterator<Item = (ShardId, NodeId)> + '_ {
        self.shards.iter().map(|(shard, node)| (*shard, *node))
    }

    /// Whom a shard was given to, if it was.
    pub fn shard_override(&self, shard: ShardId) -> Option<NodeId> {
        self.shards.get(&shard).copied()
    }

    /// Where a shard's replicas are to be, once it was placed.
    pub fn placement(&self, shard: ShardId) -> Option<&Placed> {
        self.placements.get(&shard)
    }

    /// Names of the virtual hosts.
    pub fn vhosts(&self) -> impl Iterator<Item = &str> {
        self.vhost_numbers.keys().map(|name| &**name)
    }

    /// Whether there is a virtual host of that name.
    pub fn vhost_exists(&self, name: &str) -> bool {
        self.find_vhost(name).is_some()
    }

    /// A user.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    /// All users.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    /// What a user may do in a virtual host.
    pub fn permission(&self, user: &str, vhost: &str) -> Option<&Permission> {
        self.permissions.get(user)?.get(vhost)
    }

    /// All permissions, by user and virtual host.
    pub fn permissions(&self) -> impl Iterator<Item = &Permission> {
        self.permissions
            .values()
            .flat_map(|by_vhost| by_vhost.values())
    }

    /// A virtual host's exchanges, the default one first. None if there is no such virtual host.
    pub fn exchanges<'a>(
        &'a self,
        vhost: &str,
    ) -> impl Iterator<Item = ExchangeView<'a>> + use<'a> {
        let slots = self
            .find_vhost(vhost)
            .map(|number| self.vhosts[number].exchanges.values());
        slots
            .into_iter()
            .flatten()
            .map(|slot| self.exchange_view(*slot))
    }

    /// An exchange.
    pub fn exchange(&self, vhost: &str, name: &str) -> Option<ExchangeView<'_>> {
        self.find_exchange(self.find_vhost(vhost)?, name.as_bytes())
            .map(|slot| self.exchange_view(slot))
    }

    /// A virtual host's queues. None if there is no such virtual host.
    pub fn queues<'a>(&'a self, vhost: &str) -> impl Iterator<Item = QueueView<'a>> + use<'a> {
        let slots = self
            .find_vhost(vhost)
            .map(|number| self.vhosts[number].queues.values());
        slots
            .into_iter()
            .flatten()
            .map(|slot| self.queue_view(*slot))
    }

    /// A virtual host's queues whose names come after `after`: the next page of a listing.
    pub fn queues_after<'a>(
        &'a self,
        vhost: &str,
        after: &str,
    ) -> impl Iterator<Item = QueueView<'a>> + use<'a> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let slots = self
            .find_vhost(vhost)
            .map(|number| self.vhosts[number].queues.range::<str, _>(range));
        slots
            .into_iter()
            .flatten()
            .map(|(_, slot)| self.queue_view(*slot))
    }

    /// A queue by name.
    pub fn queue(&self, vhost: &str, name: &str) -> Option<QueueView<'_>> {
        self.find_queue(self.find_vhost(vhost)?, name.as_bytes())
            .map(|slot| self.queue_view(slot))
    }

    /// A queue by id.
    pub fn queue_by_id(&self, id: QueueId) -> Option<QueueView<'_>> {
        self.find_queue_id(id).map(|slot| self.queue_view(slot))
    }

    /// A virtual host's bindings, by source, destination (queues first), key and arguments. The default exchange's implicit ones
    /// (every queue under its own name) are not among them.
    pub fn bindings<'a>(&'a self, vhost: &str) -> impl Iterator<Item = BindingView<'a>> + use<'a> {
        self.binding_numbers(self.find_vhost(vhost))
            .map(|number| self.binding_view(number))
    }

    /// The bindings from an exchange.
    pub fn bindings_of_source(
        &self,
        vhost: &str,
        exchange: &str,
    ) -> impl Iterator<Item = BindingView<'_>> {
        let slot = self
            .find_vhost(vhost)
            .and_then(|number| self.find_exchange(number, exchange.as_bytes()));
        let numbers = slot.map_or_else(Vec::new, |slot| {
            self.sorted(List::Source, self.exchanges[slot].sources.head)
        });
        numbers.into_iter().map(|number| self.binding_view(number))
    }

    /// The bindings that lead to a queue or exchange.
    pub fn bindings_of_destination(
        &self,
        vhost: &str,
        destination: &Destination,
    ) -> impl Iterator<Item = BindingView<'_>> {
        let head = self.find_vhost(vhost).and_then(|number| match destination {
            Destination::Queue(name) => self
                .find_queue(number, name.as_bytes())
                .map(|slot| self.queues[slot].bound.head),
            Destination::Exchange(name) => self
                .find_exchange(number, name.as_bytes())
                .map(|slot| self.exchanges[slot].bound.head),
        });
        let numbers = head.map_or_else(Vec::new, |head| self.sorted(List::Destination, head));
        numbers.into_iter().map(|number| self.binding_view(number))
    }

    /// A virtual host's bindings in canonical order, sorted one exchange at a time.
    pub(crate) fn binding_numbers(&self, vhost: Option<u32>) -> impl Iterator<Item = u32> + '_ {
        let slots = vhost.map(|number| self.vhosts[number].exchanges.values());
        slots
            .into_iter()
            .flatten()
            .flat_map(|slot| self.sorted(List::Source, self.exchanges[*slot].sources.head))
    }

    pub(crate) fn sorted(&self, list: List, head: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.bindings.iter(list, head).collect();
        numbers.sort_unstable_by(|a, b| self.compare_bindings(*a, *b));
        numbers
    }

    fn compare_bindings(&self, a: u32, b: u32) -> Ordering {
        let (a, b) = (self.bindings.get(a), self.bindings.get(b));
        let source = |slot: u32| &self.exchanges[slot].name;
        let end = |end: End| (end.as_exchange().is_some(), self.end_name(end));
        let by_source = if a.source == b.source {
            Ordering::Equal
        } else {
            source(a.source).cmp(source(b.source))
        };
        let by_end = || {
            if a.destination == b.destination {
                Ordering::Equal
            } else {
                end(a.destination).cmp(&end(b.destination))
            }
        };
        let by_key = || self.names.get(a.key).cmp(self.names.get(b.key));
        by_source
            .then_with(by_end)
            .then_with(by_key)
            .then_with(|| self.names.get(a.arguments).cmp(self.names.get(b.arguments)))
    }

    pub(crate) fn exchange_view(&self, slot: u32) -> ExchangeView<'_> {
        let exchange = &self.exchanges[slot];
        ExchangeView {
            vhost: self.vhost_name(exchange.vhost),
            name: &exchange.name,
            kind: exchange.matcher.name(),
            durable: exchange.durable,
            auto_delete: exchange.auto_delete,
            internal: exchange.internal,
            arguments: &exchange.arguments,
        }
    }

    pub(crate) fn queue_view(&self, slot: u32) -> QueueView<'_> {
        let queue = &self.queues[slot];
        QueueView {
            id: queue.id,
            name: &queue.name,
            vhost: self.vhost_name(queue.vhost),
            durable: queue.durable,
            exclusive: queue.exclusive,
            auto_delete: queue.auto_delete,
            arguments: &queue.arguments,
            place: queue.place,
            kind: queue_arguments::type_name(&queue.arguments),
        }
    }

    pub(crate) fn binding_view(&self, number: u32) -> BindingView<'_> {
        let binding = self.bindings.get(number);
        let source = &self.exchanges[binding.source];
        let (key, arguments) = (
            self.names.get(binding.key),
            self.names.get(binding.arguments),
        );
        BindingView {
            vhost: self.vhost_name(source.vhost),
            source: &source.name,
            destination: self.destination(binding.destination),
            key,
            arguments,
            properties_key: properties_key(key, arguments),
        }
    }

    pub(crate) fn destination(&self, end: End) -> Destination {
        let name = self.end_name(end).to_string();
        if end.as_queue().is_some() {
            Destination::Queue(name)
        } else {
            Destination::Exchange(name)
        }
    }
}

fn properties_key(key: &[u8], arguments: &[u8]) -> String {
    let mut out = String::new();
    for byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                out.push(char::from(*byte))
            }
            b' ' => out.push('+'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    if arguments.is_empty() && key.is_empty() {
        return "~".to_owned();
    }
    if !arguments.is_empty() {
        let hash = blake3::hash(arguments);
        out.push('~');
        out.push_str(&hash.to_hex()[..16]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::properties_key;

    #[test]
    fn property_keys_are_rabbitmqs() {
        assert_eq!(properties_key(b"", b""), "~");
        assert_eq!(properties_key(b"a.b #~", b""), "a.b+%23%7E");
        let with = properties_key(b"", b"x");
        assert!(with.starts_with('~') && with.len() == 17, "{with}");
    }
}
