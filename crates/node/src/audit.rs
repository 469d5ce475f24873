//! The audit log: who logged in, connected and changed what, from where, and what came of it.
//!
//! Records are tracing events of the target [`TARGET`]; a server writes those as JSON lines. Without a subscriber for them they cost a look at a flag. Nodes that
//! come and go are in that of the metadata group's leader of the time. What else the broker does by itself (queues that are deleted with their connection or last consumer) is nobody's
//! deed and is not in it. Secrets are not either.

use crate::churn::Churned;
use crate::node::Node;
use crate::spans;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Span;
use warren_consensus::{ProposeError, Proposed};
use warren_model::command::{Destination, Policy};
use warren_model::{Command, Definition, NodeId, Outcome};
use warren_routing::Table;

/// The target of the events.
pub const TARGET: &str = "audit";

/// Who does something.
#[derive(Clone, Debug, Default)]
pub struct Who {
    /// The user.
    pub user: String,
    /// The address that it comes from.
    pub peer: String,
    /// The protocol that it speaks: `amqp` or `http`.
    pub via: &'static str,
}

/// A change that somebody asks for.
#[derive(Debug, PartialEq, Eq)]
struct Deed {
    /// What is done, as `queue.declare`.
    action: &'static str,
    /// The virtual host that it is done in; empty where there is none.
    vhost: String,
    /// What it is done to.
    object: String,
    /// What else there is to say.
    detail: String,
}

pub(crate) fn is_on() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::INFO)
}

/// A login was refused.
pub fn login_refused(who: &Who, reason: &str) {
    let Who { user, peer, via } = who;
    tracing::info!(target: TARGET, event = "login", user, peer, via, outcome = "refused", reason);
}

/// A client's connection is open: it has logged in and chosen its virtual host.
pub(crate) fn connected(who: &Who, vhost: &str, client: &str) {
    let Who { user, peer, via } = who;
    tracing::info!(target: TARGET, event = "connect", user, peer, via, vhost, client, outcome = "ok");
}

/// A client's connection has ended.
pub(crate) fn disconnected(who: &Who, vhost: &str, reason: &str) {
    let Who { user, peer, via } = who;
    tracing::info!(target: TARGET, event = "disconnect", user, peer, via, vhost, reason);
}

/// A node has come or gone. Nobody did it, unless a change that somebody asked for is recorded just before.
pub(crate) fn member_changed(action: &str, name: &str, peer: &str, detail: &str) {
    tracing::info!(target: TARGET, event = "membership", peer, via = "link", action, object = name, detail, outcome = "ok");
}

/// Somebody who would be a node is not let in.
pub(crate) fn member_refused(name: &str, peer: &str, reason: &str) {
    tracing::info!(target: TARGET, event = "membership", peer, via = "link", action = "node.link", object = name, outcome = "refused", reason);
}

/// Messages of a publisher do not go to a queue that it may not write to.
pub(crate) fn queue_write_denied(who: &Who, vhost: &str, exchange: &str, queue: &str) {
    let Who { user, peer, via } = who;
    tracing::info!(
        target: TARGET, event = "publish", user, peer, via, vhost, object = queue, detail = format!("exchange {exchange}"),
        outcome = "left out", reason = "the publisher has no write permission on the queue",
    );
}

impl Node {
    /// Proposes what somebody asks for, within the call, and records what came of it.
    pub fn propose_for(
        &self,
        who: &dyn Fn() -> Who,
        command: Command,
        deadline: Duration,
    ) -> impl Future<Output = Result<Proposed, ProposeError>> + Send + use<> {
        let is_told = is_on() || spans::are_on();
        let deed = is_told.then(|| Deed::of(&command)).flatten();
        let deed = deed.map(|deed| deed.with_name(&command, &self.metadata().table().read()));
        let record = deed.map(|deed| (who(), deed.span(), deed));
        self.churn()
            .count(Churned::QueueDeclared, declared(&command));
        let since = Instant::now();
        let proposed = self.metadata().propose(command, deadline);
        let commits = self.commits().clone();
        async move {
            let result = proposed.await;
            if result.is_ok() {
                commits.metadata.add(since.elapsed());
            }
            if let Some((who, span, deed)) = record {
                let outcome = deed.record(&who, &result);
                span.record("outcome", outcome);
            }
            result
        }
    }
}

/// How many queues a command declares.
fn declared(command: &Command) -> u64 {
    if let Command::DeclareQueue(_) = command {
        return 1;
    }
    let Command::Import { definitions } = command else {
        return 0;
    };
    let queues = definitions.iter();
    queues.filter(|d| matches!(d, Definition::Queue(_))).count() as u64
}

impl Deed {
    fn span(&self) -> Span {
        spans::change(self.action, &self.vhost, &self.object)
    }

    fn record(&self, who: &Who, result: &Result<Proposed, ProposeError>) -> &'static str {
        let (outcome, reason) = match result {
            Ok(proposed) => match &proposed.outcome {
                Outcome::Refused(refusal) => ("refused", refusal.text.to_string()),
                Outcome::Done | Outcome::Queue { .. } => ("ok", String::new()),
                Outcome::Retry => ("not done", "to be tried again".into()),
            },
            Err(error) if error.changed_nothing() => ("refused", error.to_string()),
            // Nobody knows: it may still be applied.
            Err(error) => ("unknown", error.to_string()),
        };
        let Who { user, peer, via } = who;
        let Self {
            action,
            vhost,
            object,
            detail,
        } = self;
        tracing::info!(target: TARGET, event = "change", user, peer, via, action, vhost, object, detail, outcome, reason);
        outcome
    }

    /// Names the node that a command is about, which itself has but its id.
    fn with_name(mut self, command: &Command, table: &Table) -> Self {
        let name = |node: &NodeId| table.node(*node).map(|known| known.name.clone());
        if let Command::NodeForgotten { node } | Command::DrainNode { node, .. } = command {
            self.detail = format!("id {node}");
            self.object = name(node).unwrap_or(self.object);
        } else if let Command::MoveShard { to, .. } = command {
            self.detail = name(to).unwrap_or(self.detail);
        }
        self
    }

    fn new(action: &'static str, vhost: &str, object: &str, detail: String) -> Option<Self> {
        Some(Self {
            action,
            vhost: vhost.to_owned(),
            object: object.to_owned(),
            detail,
        })
    }

    /// What a command does; none for what nobody asks for.
    fn of(command: &Command) -> Option<Self> {
        let nothing = String::new;
        match command {
            Command::FoundCluster { .. }
            | Command::NodeUp(_)
            | Command::NodeDown { .. }
            | Command::SessionClosed { .. }
            | Command::PlaceShards { .. }
            | Command::RaiseLevel { .. } => None,
            Command::NodeForgotten { node } => {
                Self::new("node.forget", "", &node.to_string(), nothing())
            }
            Command::DrainNode { node, draining } => {
                let action = if *draining {
                    "node.drain"
                } else {
                    "node.revive"
                };
                Self::new(action, "", &node.to_string(), nothing())
            }
            Command::MoveShard { shard, to } => {
                Self::new("shard.move", "", &shard.0.to_string(), to.to_string())
            }
            Command::PutVhost { name } => Self::new("vhost.declare", name, name, nothing()),
            Command::DeleteVhost { name } => Self::new("vhost.delete", name, name, nothing()),
            Command::SetVhostDetails { vhost, details } => {
                let queues = details.default_queue_type.as_deref().unwrap_or("none");
                Self::new(
                    "vhost.describe",
                    vhost,
                    vhost,
                    format!("default queue type {queues}"),
                )
            }
            Command::PutUser(user) => Self::new(
                "user.declare",
                "",
                &user.name,
                format!("tags {}", user.tags.join(",")),
            ),
            Command::DeleteUser { name } => Self::new("user.delete", "", name, nothing()),
            Command::SetPermission(p) => {
                let detail = format!(
                    "configure {}, write {}, read {}",
                    p.configure, p.write, p.read
                );
                Self::new("permission.set", &p.vhost, &p.user, detail)
            }
            Command::ClearPermission { user, vhost } => {
                Self::new("permission.clear", vhost, user, nothing())
            }
            Command::SetTopicPermission(p) => {
                let detail = format!(
                    "exchange {}, write {}, read {}",
                    p.exchange, p.write, p.read
                );
                Self::new("topic-permission.set", &p.vhost, &p.user, detail)
            }
            Command::ClearTopicPermissions {
                user,
                vhost,
                exchange,
            } => {
                let detail = exchange.as_ref().map(|e| format!("exchange {e}"));
                Self::new(
                    "topic-permission.clear",
                    vhost,
                    user,
                    detail.unwrap_or_default(),
                )
            }
            Command::DeclareExchange(e) => {
                Self::new("exchange.declare", &e.vhost, &e.name, e.kind.clone())
            }
            Command::DeleteExchange { vhost, name, .. } => {
                Self::new("exchange.delete", vhost, name, nothing())
            }
            Command::DeclareQueue(q) => Self::new("queue.declare", &q.vhost, &q.name, nothing()),
            Command::DeleteQueue { vhost, name, .. } => {
                Self::new("queue.delete", vhost, name, nothing())
            }
            Command::Bind(binding) => {
                let (object, detail) = bound(&binding.source, &binding.destination, &binding.key);
                Self::new("binding.declare", &binding.vhost, &object, detail)
            }
            Command::Unbind(binding) => {
                let (object, detail) = bound(&binding.source, &binding.destination, &binding.key);
                Self::new("binding.delete", &binding.vhost, &object, detail)
            }
            Command::PutPolicy(policy) => {
                let Policy {
                    vhost,
                    name,
                    pattern,
                    operator,
                    ..
                } = policy;
                let action = policy_action(*operator, "policy.set", "operator-policy.set");
                Self::new(action, vhost, name, format!("pattern {pattern}"))
            }
            Command::DeletePolicy {
                vhost,
                operator,
                name,
            } => {
                let action = policy_action(*operator, "policy.clear", "operator-policy.clear");
                Self::new(action, vhost, name, nothing())
            }
            Command::PutGlobalParameter { name, .. } => {
                Self::new("global-parameter.set", "", name, nothing())
            }
            Command::DeleteGlobalParameter { name } => {
                Self::new("global-parameter.clear", "", name, nothing())
            }
            Command::PutParameter { parameter, .. } => {
                let component = parameter.component.clone();
                Self::new(
                    "parameter.set",
                    &parameter.vhost,
                    &parameter.name,
                    component,
                )
            }
            Command::DeleteParameter(parameter) => {
                let component = parameter.component.clone();
                Self::new(
                    "parameter.clear",
                    &parameter.vhost,
                    &parameter.name,
                    component,
                )
            }
            Command::SetVhostLimit {
                vhost,
                limit,
                value,
            } => Self::new(
                "vhost-limit.set",
                vhost,
                vhost,
                format!("{limit:?} {value:?}"),
            ),
            Command::SetUserLimit { user, limit, value } => {
                Self::new("user-limit.set", "", user, format!("{limit:?} {value:?}"))
            }
            Command::Import { definitions } => {
                Self::new("definitions.import", "", "", counted(definitions))
            }
        }
    }
}

/// How much of what an import brings.
fn counted(definitions: &[Definition]) -> String {
    let mut counts = BTreeMap::new();
    for definition in definitions {
        let kind = match definition {
            Definition::Vhost { .. } => "vhosts",
            Definition::VhostDetails { .. } => "vhost details",
            Definition::User(_) => "users",
            Definition::Permission(_) => "permissions",
            Definition::TopicPermission(_) => "topic permissions",
            Definition::Exchange(_) => "exchanges",
            Definition::Queue(_) => "queues",
            Definition::Binding(_) => "bindings",
            Definition::Policy(_) => "policies",
            Definition::GlobalParameter { .. } => "global parameters",
            Definition::Parameter { .. } => "parameters",
            Definition::VhostLimit { .. } | Definition::UserLimit { .. } => "limits",
        };
        *counts.entry(kind).or_insert(0_usize) += 1;
    }
    let counts = counts.iter().map(|(kind, count)| format!("{count} {kind}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn policy_action(operator: bool, users: &'static str, operators: &'static str) -> &'static str {
    if operator { operators } else { users }
}

fn bound(source: &str, destination: &Destination, key: &[u8]) -> (String, String) {
    let (kind, name) = match destination {
        Destination::Queue(name) => ("queue", name),
        Destination::Exchange(name) => ("exchange", name),
    };
    let key = String::from_utf8_lossy(key);
    (source.to_owned(), format!("to {kind} {name}, key {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_model::command::{PasswordHashing, User};

    #[test]
    fn secrets_are_not_recorded() {
        let user = User {
            name: "u".into(),
            password_hash: b"SECRET".to_vec(),
            hashing: PasswordHashing::Argon2id,
            tags: vec!["monitoring".into(), "policymaker".into()],
        };
        let deed = Deed::of(&Command::PutUser(user)).unwrap();
        assert!(!format!("{deed:?}").contains("SECRET"), "{deed:?}");
        assert_eq!(
            (deed.object.as_str(), deed.detail.as_str()),
            ("u", "tags monitoring,policymaker")
        );
        let value = r#"{"uri": "amqp://user:SECRET@host"}"#.to_owned();
        let parameter = warren_model::command::ParameterKey {
            vhost: "/".into(),
            component: "shovel".into(),
            name: "s".into(),
        };
        let deed = Deed::of(&Command::PutParameter { parameter, value }).unwrap();
        assert!(!format!("{deed:?}").contains("SECRET"), "{deed:?}");
    }

    #[test]
    fn what_the_broker_does_by_itself_is_nobodys_deed() {
        let session = warren_model::SessionId::default();
        assert_eq!(Deed::of(&Command::SessionClosed { session }), None);
    }
}
