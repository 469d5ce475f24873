//! Whether all of an import would succeed: it is carried out beforehand, on a table of its own.
//!
//! That table is given what the cluster has of all that the import names. Since it is the same code that will carry the import out, only what others change
//! meanwhile can make an import that passes fail.

use super::read::Definitions;
use crate::CHUNK;
use crate::error::Error;
use crate::queues::NewQueue;
use warren_model::command::{
    DeclareExchange, DeclareQueue, Destination, NodeUp, Place, VhostLimit,
};
use warren_model::{Command, Incarnation, NodeId, Outcome, SessionId, ShardId};
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
    let asked = commands(definitions, node.own_session());
    for chunk in asked.chunks(CHUNK) {
        let outcomes = apply(&mut table, chunk);
        for (command, outcome) in chunk.iter().zip(outcomes) {
            if let Outcome::Refused(refusal) = outcome {
                return Err(Error::bad_request(format!(
                    "nothing is imported, since {} would be refused: {}",
                    described(command),
                    refusal.text
                )));
            }
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Refuses queues that would pass their virtual host's limit. The table that is tried on has not all of its queues, so this is counted here.
fn within_queue_limits(table: &Table, definitions: &Definitions) -> Result<(), Error> {
    for (vhost, _) in table.all_vhost_limits() {
        let Some(limit) = table.vhost_bound(vhost, VhostLimit::MaxQueues) else {
            continue;
        };
        let is_new =
            |queue: &&NewQueue| queue.vhost == vhost && table.queue(vhost, &queue.name).is_none();
        let new = definitions.queues.iter().filter(is_new).count();
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
        let named = definitions.permissions.iter().map(|p| &p.user);
        let topics = definitions.topic_permissions.iter().map(|p| &p.user);
        let users = named
            .chain(topics)
            .filter_map(|user| table.user(user).cloned());
        live.commands.extend(users.map(Command::PutUser));
    }
    for exchange in &definitions.exchanges {
        live.exchange(&exchange.vhost, &exchange.name).await;
    }
    for queue in &definitions.queues {
        live.queue(&queue.vhost, &queue.name).await;
    }
    for binding in &definitions.bindings {
        live.exchange(&binding.vhost, &binding.source).await;
        match &binding.destination {
            Destination::Queue(name) => live.queue(&binding.vhost, name).await,
            Destination::Exchange(name) => live.exchange(&binding.vhost, name).await,
        }
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

/// The cluster's own, as commands that make the like.
struct Live<'a> {
    node: &'a Node,
    looked_up: usize,
    commands: Vec<Command>,
}

impl Live<'_> {
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

/// The import's commands, in an order in which they can succeed.
fn commands(definitions: &Definitions, session: SessionId) -> Vec<Command> {
    let vhosts = definitions.vhosts.iter().cloned();
    let details = definitions.details.iter().cloned();
    let queues = definitions.queues.iter();
    vhosts
        .map(|name| Command::PutVhost { name })
        .chain(details)
        .chain(definitions.users.iter().cloned().map(Command::PutUser))
        .chain(
            definitions
                .permissions
                .iter()
                .cloned()
                .map(Command::SetPermission),
        )
        .chain(
            definitions
                .exchanges
                .iter()
                .cloned()
                .map(Command::DeclareExchange),
        )
        .chain(queues.map(|queue| Command::DeclareQueue(queue.at(SHARD, session))))
        .chain(definitions.bindings.iter().cloned().map(Command::Bind))
        .chain(
            definitions
                .topic_permissions
                .iter()
                .cloned()
                .map(Command::SetTopicPermission),
        )
        .chain(definitions.policies.iter().cloned().map(Command::PutPolicy))
        .chain(definitions.limits.iter().cloned())
        .chain(definitions.parameters.iter().cloned())
        .collect()
}

/// What a command is about.
fn described(command: &Command) -> String {
    match command {
        Command::PutVhost { name } => format!("vhost '{name}'"),
        Command::SetVhostDetails { vhost, .. } => format!("vhost '{vhost}'"),
        Command::PutUser(user) => format!("user '{}'", user.name),
        Command::SetPermission(permission) => format!(
            "the permission of user '{}' in vhost '{}'",
            permission.user, permission.vhost
        ),
        Command::DeclareExchange(exchange) => {
            format!("exchange '{}' in vhost '{}'", exchange.name, exchange.vhost)
        }
        Command::DeclareQueue(queue) => {
            format!("queue '{}' in vhost '{}'", queue.name, queue.vhost)
        }
        Command::Bind(binding) => {
            let (Destination::Queue(name) | Destination::Exchange(name)) = &binding.destination;
            format!(
                "the binding from '{}' to '{name}' in vhost '{}'",
                binding.source, binding.vhost
            )
        }
        Command::SetTopicPermission(permission) => format!(
            "the topic permission of user '{}' in vhost '{}'",
            permission.user, permission.vhost
        ),
        Command::PutPolicy(policy) => {
            format!("policy '{}' in vhost '{}'", policy.name, policy.vhost)
        }
        Command::PutParameter { parameter, .. } => format!(
            "parameter '{}' of component '{}' in vhost '{}'",
            parameter.name, parameter.component, parameter.vhost
        ),
        Command::SetVhostLimit { vhost, .. } => format!("a limit of vhost '{vhost}'"),
        Command::SetUserLimit { user, .. } => format!("a limit of user '{user}'"),
        Command::FoundCluster { .. }
        | Command::NodeUp(_)
        | Command::NodeDown { .. }
        | Command::NodeForgotten { .. }
        | Command::DrainNode { .. }
        | Command::DeleteVhost { .. }
        | Command::DeleteUser { .. }
        | Command::ClearPermission { .. }
        | Command::DeleteExchange { .. }
        | Command::DeleteQueue { .. }
        | Command::Unbind(_)
        | Command::SessionClosed { .. }
        | Command::MoveShard { .. }
        | Command::PlaceShards { .. }
        | Command::ClearTopicPermissions { .. }
        | Command::DeletePolicy { .. }
        | Command::DeleteParameter(_)
        | Command::PutGlobalParameter { .. }
        | Command::DeleteGlobalParameter { .. } => format!("{command:?}"),
    }
}
