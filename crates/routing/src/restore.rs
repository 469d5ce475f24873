//! The table as records and back: snapshots, and opening a node's storage.
//!
//! Everything but the records is derived, by the same functions that `apply` uses.
//! Cost: a million bindings are rebuilt in a second or two, most of it hashing the records for the digest.

use crate::arguments;
use crate::bindings::{Chain, End};
use crate::exchange::Exchange;
use crate::queue::Queue;
use crate::record::{self, BadTable, BindingKey, Record};
use crate::table::Table;

impl Table {
    /// All records in the order of their keys.
    pub fn records(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        let cluster = self
            .cluster
            .iter()
            .map(|(id, shards)| (record::cluster_key(), record::cluster_value(*id, *shards)));
        let epoch =
            (self.epoch > 0).then(|| (record::epoch_key(), record::epoch_value(self.epoch)));
        let nodes = self
            .nodes
            .values()
            .map(|node| (record::node_key(node.id), record::node_value(node)));
        let shards = self
            .shards
            .iter()
            .map(|(shard, node)| (record::shard_key(*shard), record::shard_value(*node)));
        let placements = self.placements.iter().map(|(shard, placed)| {
            (
                record::placement_key(*shard),
                record::placement_value(placed),
            )
        });
        let draining = self
            .draining
            .iter()
            .map(|node| (record::draining_key(*node), record::draining_value()));
        let level = self
            .level
            .map(|level| (record::level_key(), record::level_value(level)));
        let users = self
            .users
            .values()
            .map(|user| (record::user_key(&user.name), record::user_value(user)));
        let vhosts = self
            .vhost_numbers
            .keys()
            .map(|name| (record::vhost_key(name), record::vhost_value()));
        let permissions = self.permissions().map(|known| {
            (
                record::permission_key(&known.user, &known.vhost),
                record::permission_value(known),
            )
        });
        cluster
            .chain(epoch)
            .chain(nodes)
            .chain(shards)
            .chain(users)
            .chain(vhosts)
            .chain(permissions)
            .chain(self.definitions())
            .chain(self.policy_records())
            .chain(self.global_records())
            .chain(self.topic_permission_records())
            .chain(placements)
            .chain(draining)
            .chain(self.limit_records())
            .chain(self.vhost_details_records())
            .chain(self.parameter_records())
            .chain(level)
    }

    fn definitions(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        let numbers = || self.vhost_numbers.values().copied();
        let exchanges = numbers().flat_map(|number| {
            let vhost = &self.vhosts[number];
            vhost.exchanges.iter().map(|(name, slot)| {
                (
                    record::exchange_key(&vhost.name, name),
                    self.exchanges[*slot].to_value(),
                )
            })
        });
        let queues = numbers().flat_map(|number| {
            let vhost = &self.vhosts[number];
            vhost.queues.iter().map(|(name, slot)| {
                (
                    record::queue_key(&vhost.name, name),
                    record::queue_value(&self.queues[*slot].as_record()),
                )
            })
        });
        let bindings = numbers().flat_map(|number| self.binding_numbers(Some(number)));
        exchanges.chain(queues).chain(
            bindings.map(|number| (self.binding_record_key(number), record::binding_value())),
        )
    }

    /// Rebuilds a table from its records, given in the order of their keys, as it was at `index`.
    ///
    /// # Errors
    /// If a record is of an unknown version, damaged, given twice, or refers to one that was not given before it.
    pub fn restore(
        records: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
        index: u64,
    ) -> Result<Self, BadTable> {
        let mut table = Self {
            index,
            ..Self::default()
        };
        for (key, value) in records {
            table.load(&key, &value)?;
            table.digest.add(&key, &value);
        }
        Ok(table)
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadTable> {
        let unfit = |what| BadTable::Unfit {
            key: key.escape_ascii().to_string(),
            what,
        };
        let twice = |before: bool| {
            if before {
                Err(unfit("it is given twice"))
            } else {
                Ok(())
            }
        };
        match Record::decode(key, value)? {
            Record::Cluster { id, shards } => twice(self.cluster.replace((id, shards)).is_some()),
            Record::Epoch(epoch) => twice(std::mem::replace(&mut self.epoch, epoch) > 0),
            Record::Level(level) => twice(self.level.replace(level).is_some()),
            Record::Node(node) => twice(self.nodes.insert(node.id, node).is_some()),
            Record::Shard(shard, node) => twice(self.shards.insert(shard, node).is_some()),
            Record::Placement(shard, placed) => {
                twice(self.placements.insert(shard, placed).is_some())
            }
            Record::Draining(node) => {
                if !self.nodes.contains_key(&node) {
                    return Err(unfit("its node is missing"));
                }
                twice(!self.draining.insert(node))
            }
            Record::User(user) => twice(self.users.insert(user.name.clone(), user).is_some()),
            Record::Vhost(name) => {
                twice(self.find_vhost(&name).is_some())?;
                self.index_vhost(&name);
                Ok(())
            }
            Record::Permission(permission) => {
                let by_vhost = self.permissions.entry(permission.user.clone()).or_default();
                twice(
                    by_vhost
                        .insert(permission.vhost.clone(), permission)
                        .is_some(),
                )
            }
            Record::Exchange {
                vhost,
                name,
                kind,
                durable,
                auto_delete,
                internal,
                arguments,
            } => {
                let number = self
                    .find_vhost(&vhost)
                    .ok_or_else(|| unfit("its virtual host is missing"))?;
                twice(self.find_exchange(number, name.as_bytes()).is_some())?;
                let exchange = Exchange::new(
                    number,
                    &name,
                    kind,
                    [durable, auto_delete, internal],
                    arguments,
                    &vhost,
                )
                .map_err(|_| unfit("this release cannot make such an exchange"))?;
                self.index_exchange(exchange);
                Ok(())
            }
            Record::Queue { vhost, name, queue } => {
                let number = self
                    .find_vhost(&vhost)
                    .ok_or_else(|| unfit("its virtual host is missing"))?;
                twice(
                    self.find_queue(number, name.as_bytes()).is_some()
                        || self.find_queue_id(queue.id).is_some(),
                )?;
                self.index_queue(Queue {
                    id: queue.id,
                    place: queue.place,
                    vhost: number,
                    name: name.into(),
                    durable: queue.durable,
                    auto_delete: queue.auto_delete,
                    exclusive: queue.exclusive,
                    arguments: queue.arguments.into(),
                    bound: Chain::default(),
                });
                Ok(())
            }
            Record::Binding(binding) => self.load_binding(&binding).map_err(unfit),
            Record::Policy(policy) => self.load_policy(policy).map_err(unfit),
            Record::TopicPermission(permission) => twice(self.load_topic_permission(permission)),
            Record::VhostLimits(vhost, limits) => {
                self.load_vhost_limits(&vhost, limits).map_err(unfit)
            }
            Record::UserLimits(user, limits) => self.load_user_limits(user, limits).map_err(unfit),
            Record::VhostDetails(vhost, details) => {
                self.load_vhost_details(&vhost, details).map_err(unfit)
            }
            Record::Parameter(parameter, value) => {
                if self.find_vhost(&parameter.vhost).is_none() {
                    return Err(unfit("its virtual host is missing"));
                }
                twice(self.parameters.insert(parameter, value).is_some())
            }
            Record::Global { name, value } => twice(self.globals.insert(name, value).is_some()),
        }
    }

    fn load_binding(&mut self, binding: &BindingKey<'_>) -> Result<(), &'static str> {
        let vhost = self
            .find_vhost(&binding.vhost)
            .ok_or("its virtual host is missing")?;
        let source = self
            .find_exchange(vhost, binding.source.as_bytes())
            .ok_or("its source is missing")?;
        let name = binding.destination.as_bytes();
        let destination = match binding.to_exchange {
            false => self.find_queue(vhost, name).map(End::queue),
            true => self.find_exchange(vhost, name).map(End::exchange),
        };
        let destination = destination.ok_or("its destination is missing")?;
        let arguments =
            arguments::parse(&binding.arguments).map_err(|_| "its arguments are malformed")?;
        if !arguments.is_empty() && arguments::canonical(arguments) != *binding.arguments {
            return Err("its arguments are not in canonical form");
        }
        self.exchanges[source]
            .matcher
            .check_binding(&binding.key, arguments)
            .map_err(|_| "its exchange takes no such binding")?;
        if let (Some(key), Some(arguments)) = (
            self.names.find(&binding.key),
            self.names.find(&binding.arguments),
        ) && self
            .bindings
            .find(source, destination, key, arguments)
            .is_some()
        {
            return Err("it is given twice");
        }
        self.index_binding(source, destination, &binding.key, &binding.arguments);
        Ok(())
    }
}
