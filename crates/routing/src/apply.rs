//! Applying log entries: one outcome a command, with the record changes and the events that follow from it.

use crate::import;
use crate::table::Table;
use warren_model::command::Place;
use warren_model::{Command, Level, NodeId, Outcome, QueueId, ShardId};

/// Ids of queues that an entry can give.
const IDS: usize = 1 << 16;

/// What applying entries did besides answering: appended to, so that several entries can share one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Record changes in the order in which they happened; a key may occur more than once.
    pub changes: Vec<Change>,
    /// What others have to act on.
    pub events: Vec<Event>,
}

/// One record written or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The record's key.
    pub key: Vec<u8>,
    /// Its new value; `None`: it is deleted.
    pub value: Option<Vec<u8>>,
}

/// A change that others have to act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A queue was created.
    QueueCreated {
        /// Its id.
        id: QueueId,
        /// Where its contents live.
        place: Place,
    },
    /// A queue was deleted: its contents and consumers go.
    QueueDeleted {
        /// Its id.
        id: QueueId,
        /// Its virtual host.
        vhost: String,
        /// Its name.
        name: String,
        /// Where its contents lived.
        place: Place,
    },
    /// An exchange was deleted.
    ExchangeDeleted {
        /// Its virtual host.
        vhost: String,
        /// Its name.
        name: String,
    },
    /// A virtual host was deleted, after all that was in it: its connections are closed.
    VhostDeleted {
        /// Its name.
        name: String,
    },
    /// Nodes came, went, or changed: a new ring is to be made.
    MembersChanged {
        /// The ring's epoch from now on.
        epoch: u64,
    },
    /// A user or its permissions changed, or it was deleted: what sessions remember of it is outdated.
    UserChanged {
        /// Its name.
        name: String,
    },
    /// Limits changed: nodes have to know of each other's connections what they did not have to before.
    LimitsChanged,
    /// A shard was given to a node.
    ShardMoved {
        /// The shard.
        shard: ShardId,
        /// The node that it was given to before; `None`: it was where the ring puts it.
        from: Option<NodeId>,
        /// The node that it is given to.
        to: NodeId,
    },
    /// Shards have replicas on other nodes now.
    ShardsPlaced,
}

impl Table {
    /// Applies one log entry's commands in order. What happens depends on the table and the entry alone.
    ///
    /// An import whose queues do not find enough ids left in the entry is answered with [`Outcome::Retry`].
    ///
    /// # Panics
    /// If `index` is not beyond [`Table::index`] or an entry holds more than 65536 commands: both would make queue ids collide.
    pub fn apply(
        &mut self,
        index: u64,
        commands: &[Command],
        applied: &mut Applied,
    ) -> Vec<Outcome> {
        assert!(
            index > self.index,
            "log index {index} after {}: entries are applied in order and once",
            self.index
        );
        assert!(
            commands.len() <= IDS,
            "{} commands in one entry: at most 65536 have ids",
            commands.len()
        );
        self.index = index;
        // An id for each command, and what is left over for imports.
        let (mut next, mut spare) = (0u16, IDS - commands.len());
        let mut outcomes = Vec::with_capacity(commands.len());
        for command in commands {
            outcomes.push(if let Command::Import { definitions } = command {
                let queues = import::queues(definitions);
                if queues > spare {
                    Outcome::Retry
                } else {
                    let first = next;
                    spare -= queues;
                    next = next.wrapping_add(queues as u16);
                    self.import(index, first, definitions, applied)
                }
            } else {
                self.apply_one(QueueId::new(index, next), command, applied)
            });
            next = next.wrapping_add(1);
        }
        outcomes
    }

    /// `id` is what a queue that this command creates is called.
    pub(crate) fn apply_one(
        &mut self,
        id: QueueId,
        command: &Command,
        applied: &mut Applied,
    ) -> Outcome {
        let done = match command {
            Command::FoundCluster { cluster, shards } => {
                self.found_cluster(*cluster, *shards, applied)
            }
            Command::NodeUp(up) => self.node_up(up, applied),
            Command::NodeDown { node, incarnation } => self.node_down(*node, *incarnation, applied),
            Command::NodeForgotten { node } => self.node_forgotten(*node, applied),
            Command::DrainNode { node, draining } => self.drain_node(*node, *draining, applied),
            Command::MoveShard { shard, to } => {
                return self
                    .move_shard(*shard, *to, applied)
                    .unwrap_or_else(Outcome::Refused);
            }
            Command::PlaceShards { placements } => self.place_shards(placements, applied),
            Command::PutVhost { name } => self.put_vhost(name, applied),
            Command::DeleteVhost { name } => self.delete_vhost(name, applied),
            Command::PutUser(user) => self.put_user(user, applied),
            Command::DeleteUser { name } => self.delete_user(name, applied),
            Command::SetPermission(permission) => self.set_permission(permission, applied),
            Command::ClearPermission { user, vhost } => self.clear_permission(user, vhost, applied),
            Command::DeclareExchange(declare) => self.declare_exchange(declare, applied),
            Command::DeleteExchange {
                vhost,
                name,
                if_unused,
            } => self.delete_exchange_command(vhost, name, *if_unused, applied),
            Command::DeclareQueue(declare) => {
                return self
                    .declare_queue(id, declare, applied)
                    .unwrap_or_else(Outcome::Refused);
            }
            Command::DeleteQueue {
                vhost,
                name,
                only,
                session,
            } => {
                return self
                    .delete_queue_command(vhost, name, *only, *session, applied)
                    .unwrap_or_else(Outcome::Refused);
            }
            Command::Bind(binding) => self.bind(binding, applied),
            Command::Unbind(binding) => self.unbind(binding, applied),
            Command::SessionClosed { session } => self.session_closed(*session, applied),
            Command::PutPolicy(policy) => self.put_policy(policy, applied),
            Command::DeletePolicy {
                vhost,
                operator,
                name,
            } => self.delete_policy(vhost, *operator, name, applied),
            Command::PutGlobalParameter { name, value } => self.put_global(name, value, applied),
            Command::DeleteGlobalParameter { name } => self.delete_global(name, applied),
            Command::SetTopicPermission(permission) => {
                self.set_topic_permission(permission, applied)
            }
            Command::ClearTopicPermissions {
                user,
                vhost,
                exchange,
            } => self.clear_topic_permissions(user, vhost, exchange.as_deref(), applied),
            Command::SetVhostDetails { vhost, details } => {
                self.set_vhost_details(vhost, details, applied)
            }
            Command::PutParameter { parameter, value } => {
                self.put_parameter(parameter, value, applied)
            }
            Command::DeleteParameter(parameter) => self.delete_parameter(parameter, applied),
            Command::SetVhostLimit {
                vhost,
                limit,
                value,
            } => self.set_vhost_limit(vhost, *limit, *value, applied),
            Command::SetUserLimit { user, limit, value } => {
                self.set_user_limit(user, *limit, *value, applied)
            }
            Command::RaiseLevel { level } => {
                self.raise_level(Level(*level), applied);
                Ok(())
            }
            Command::Import { .. } => unreachable!("applied by the caller, which has its ids"),
        };
        done.map_or_else(Outcome::Refused, |()| Outcome::Done)
    }
}
