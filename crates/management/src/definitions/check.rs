//! Dry runs: whether all of an import would succeed. It is carried out on a table of its own.
//!
//! That table is given what the cluster has of all that the import names. Since it is the same code that carries imports out, only what others change
//! meanwhile can make an import that passes fail.

use super::read::Definitions;
use crate::CHUNK;
use crate::error::Error;
use std::collections::BTreeSet;
use warren_model::command::{
    DeclareExchange, DeclareQueue, Destination, NodeUp, Place, VhostLimit,
};
use warren_model::{Command, Definition, Incarnation, NodeId, Outcome, SessionId, ShardId};
use warren_node::Node;
use warren_routing::{Applied, Table};

/// What stands for all nodes of the cluster in the table that is tried on.
const STAND_IN: (NodeId, Incarnation) = (NodeId(1), Incarnation(1));
const SHARD: Place = Place::Shard(ShardId(0));

/// Refuses an import of which something would be refused, naming that.
pub(super) async fn check(node: &Node, definitions: &Definitions) -> Result<(), Error> {
    within_queue_limits(&node.metadata().table().read(), definitions)?;
    let mut table = Table::new();
    let context = context(node, definitions).await;
    for chunk in context.chunks(CHUNK) {
        apply(&mut table, chunk);
        tokio::task::yield_now().await;
    }
    for chunk in definitions.all.chunks(CHUNK) {
        let definitions = chunk.iter().cloned().map(placed).collect();
        let outcomes = apply(&mut table, &[Command::Import { definitions }]);
        if let Some(Outcome::Refused(refusal)) = outcomes.into_iter().next() {
            return Err(super::refused(&refusal));
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// With a place that the table knows.
fn placed(mut definition: Definition) -> Definition {
    if let Definition::Queue(queue) = &mut definition {
        queue.place = SHARD;
    }
    definition
}

/// Refuses queues that would pass their virtual host's limit. The table that is tried on has not all of its queues, so this is counted here.
fn within_queue_limits(table: &Table, definitions: &Definitions) -> Result<(), Error> {
    for (vhost, _) in table.all_vhost_limits() {
        let Some(limit) = table.vhost_bound(vhost, VhostLimit::MaxQueues) else {
            continue;
        };
        let is_new = |definition: &&Definition| {
            matches!(definition, Definition::Queue(queue)
                if queue.vhost == vhost && table.queue(vhost, &queue.name).is_none())
        };
        let new = definitions.all.iter().filter(is_new).count();
        let known = table.queue_count_of(vhost);
        if new > 0 && (known + new) as u64 > limit {
            return Err(Error::bad_request(format!(
                "nothing is imported, since vhost '{vhost}' has {known} queues, {new} more are given, and its limit is {limit}: raise that first"
            )));
        }
    }
    Ok(())
}

fn apply(table: &mut Table, commands: &[Command]) -> Vec<Outcome> {
    table.apply(table.index() + 1, commands, &mut Applied::default())
}

/// What the cluster has of all that is named.
async fn context(node: &Node, definitions: &Definitions) -> Vec<Command> {
    let mut live = Live {
        node,
        looked_up: 0,
        commands: vec![
            Command::FoundCluster {
                cluster: 1,
                shards: 1,
            },
            Command::NodeUp(NodeUp {
                node: STAND_IN.0,
                name: "stand-in".into(),
                address: String::new(),
                amqp: String::new(),
                http: String::new(),
                incarnation: STAND_IN.1,
            }),
        ],
    };
    {
        let table = node.metadata().table().read();
        let vhosts = table.vhosts().map(str::to_owned);
        live.commands
            .extend(vhosts.map(|name| Command::PutVhost { name }));
        let users: BTreeSet<&str> = definitions.all.iter().filter_map(user_of).collect();
        let users = users
            .into_iter()
            .filter_map(|user| table.user(user).cloned());
        live.commands.extend(users.map(Command::PutUser));
    }
    for definition in &definitions.all {
        live.named_by(definition).await;
    }
    // After the queues that are there, whose type does not change any more.
    let table = node.metadata().table().read();
    for vhost in table.vhosts() {
        let details = table.vhost_details(vhost).cloned().unwrap_or_default();
        let vhost = vhost.to_owned();
        live.commands
            .push(Command::SetVhostDetails { vhost, details });
    }
    drop(table);
    live.commands
}

/// The user that a definition is about, if it has to be there.
fn user_of(definition: &Definition) -> Option<&str> {
    if let Definition::Permission(permission) = definition {
        Some(&permission.user)
    } else if let Definition::TopicPermission(permission) = definition {
        Some(&permission.user)
    } else if let Definition::UserLimit { user, .. } = definition {
        Some(user)
    } else {
        None
    }
}

/// The cluster's own, as commands that make the like.
struct Live<'a> {
    node: &'a Node,
    looked_up: usize,
    commands: Vec<Command>,
}

impl Live<'_> {
    /// The exchanges and queues that a definition names.
    async fn named_by(&mut self, definition: &Definition) {
        if let Definition::Exchange(exchange) = definition {
            self.exchange(&exchange.vhost, &exchange.name).await;
        }
        if let Definition::Queue(queue) = definition {
            self.queue(&queue.vhost, &queue.name).await;
        }
        if let Definition::Binding(binding) = definition {
            self.exchange(&binding.vhost, &binding.source).await;
            match &binding.destination {
                Destination::Queue(name) => self.queue(&binding.vhost, name).await,
                Destination::Exchange(name) => self.exchange(&binding.vhost, name).await,
            }
        }
    }

    async fn exchange(&mut self, vhost: &str, name: &str) {
        // Those that are always there come with the virtual host.
        if !name.is_empty() && !name.starts_with("amq.") {
            let table = self.node.metadata().table().read();
            self.commands
                .extend(table.exchange(vhost, name).map(|known| {
                    Command::DeclareExchange(DeclareExchange {
                        vhost: vhost.to_owned(),
                        name: name.to_owned(),
                        kind: known.kind.to_owned(),
                        durable: known.durable,
                        auto_delete: known.auto_delete,
                        internal: known.internal,
                        arguments: known.arguments.to_vec(),
                    })
                }));
        }
        self.breathe().await;
    }

    async fn queue(&mut self, vhost: &str, name: &str) {
        {
            let table = self.node.metadata().table().read();
            self.commands.extend(table.queue(vhost, name).map(|known| {
                Command::DeclareQueue(DeclareQueue {
                    vhost: vhost.to_owned(),
                    name: name.to_owned(),
                    durable: known.durable,
                    exclusive: known.exclusive.is_some(),
                    auto_delete: known.auto_delete,
                    server_named: true,
                    arguments: known.arguments.to_vec(),
                    session: SessionId {
                        node: STAND_IN.0,
                        incarnation: STAND_IN.1,
                        number: 1,
                    },
                    place: match known.exclusive {
                        Some(_) => Place::Node(STAND_IN.0, STAND_IN.1),
                        None => SHARD,
                    },
                })
            }));
        }
        self.breathe().await;
    }

    async fn breathe(&mut self) {
        self.looked_up += 1;
        if self.looked_up.is_multiple_of(CHUNK) {
            tokio::task::yield_now().await;
        }
    }
}
