//! `warrenctl queue`: queues, and their contents as a whole.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::listing::{self, InVhost, ListOptions};
use super::{Context, arguments, cluster};
use crate::client::{Method, Request};
use crate::failure::Failure;
use crate::output;

const COLUMNS: [&str; 11] = [
    "vhost",
    "name",
    "durable",
    "exclusive",
    "auto_delete",
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "consumers",
    "node",
    "arguments",
];

/// What can be done with queues.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List queues.
    #[command(after_help = "Example: warrenctl queue list --vhost / --sort -messages")]
    List(ListOptions),
    /// Show a queue with its consumers and rates.
    #[command(after_help = "Example: warrenctl queue show orders")]
    Show(InVhost),
    /// Declare a queue; one that is there as asked stays as it is.
    #[command(
        after_help = "Example: warrenctl queue declare orders --type quorum --argument x-max-length=1000"
    )]
    Declare(Declare),
    /// Delete a queue and what is in it.
    #[command(after_help = "Example: warrenctl queue delete orders --if-empty --yes")]
    Delete(Delete),
    /// Show where a durable queue's replicas are, who leads them, and how far each is.
    ///
    /// Replicas and their leader are those of the queue's shard, which other queues share.
    #[command(after_help = "Example: warrenctl queue quorum-status orders --vhost shop")]
    QuorumStatus(InVhost),
    /// Let another replica of a durable queue lead it, and the other queues of its shard.
    #[command(after_help = "Example: warrenctl queue transfer-leader orders node2 --wait")]
    TransferLeader(TransferLeader),
    /// Give a node its share of replicas again, as `cluster revive` does: the placement ring decides which.
    #[command(after_help = "Example: warrenctl queue grow node3 --wait")]
    Grow(cluster::Leaving),
    /// Take all replicas and leaderships from a node, as `cluster drain` does: they go to the others.
    #[command(after_help = "Example: warrenctl queue shrink node3 --wait --yes")]
    Shrink(cluster::Leaving),
    /// Take all messages that are ready out of a queue.
    #[command(after_help = "Example: warrenctl queue purge orders --yes")]
    Purge(InVhost),
}

/// A queue to be declared.
#[derive(Debug, clap::Args)]
pub struct Declare {
    #[command(flatten)]
    queue: InVhost,
    /// Its type; without it, the virtual host's default.
    #[arg(long = "type", value_enum)]
    kind: Option<Kind>,
    /// It is gone with its node.
    #[arg(long)]
    transient: bool,
    /// It is deleted with its last consumer.
    #[arg(long)]
    auto_delete: bool,
    /// An optional argument; may be repeated.
    #[arg(long = "argument", value_name = "NAME=VALUE", value_parser = arguments::pair)]
    arguments: Vec<(String, Value)>,
}

/// Types of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Replicated, as durable queues of both types are.
    Quorum,
    /// Without what only quorum queues have.
    Classic,
}

const TYPE: &str = "x-queue-type";

impl Declare {
    /// The arguments, with the type among them.
    fn arguments(&self) -> Result<Value, Failure> {
        let mut all = arguments::object(&self.arguments);
        if let Some(kind) = self.kind {
            if all.get(TYPE).is_some() {
                return Err(Failure::Usage(format!(
                    "give the type as --type or as --argument {TYPE}, not both"
                )));
            }
            all[TYPE] = match kind {
                Kind::Quorum => "quorum".into(),
                Kind::Classic => "classic".into(),
            };
        }
        Ok(all)
    }
}

/// A queue to be deleted.
#[derive(Debug, clap::Args)]
pub struct Delete {
    #[command(flatten)]
    queue: InVhost,
    /// Only if it has no messages.
    #[arg(long)]
    if_empty: bool,
    /// Only if it has no consumers.
    #[arg(long)]
    if_unused: bool,
}

/// Who is to lead.
#[derive(Debug, clap::Args)]
pub struct TransferLeader {
    #[command(flatten)]
    queue: InVhost,
    /// The node, which must have a replica.
    node: String,
    /// Wait until it leads.
    #[arg(long)]
    wait: bool,
    /// Wait at most so many seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

const REPLICAS: [&str; 4] = ["node", "state", "last_index", "draining"];

/// Where a queue's replicas are told.
fn quorum(queue: &InVhost, what: &str) -> String {
    format!("{}/{what}", queue.path("queues/quorum"))
}

/// Prints what the leader says of a queue's replicas, or the asked node if it cannot be asked.
pub fn quorum_status(context: &Context, queue: &InVhost) -> Result<(), Failure> {
    let path = quorum(queue, "status");
    let mut answer = context.client.get(&path, &[])?;
    let leader = answer.get("leader").and_then(Value::as_str);
    if let Some(leader) = leader.filter(|leader| answer["asked"] != **leader)
        && let Ok(client) = cluster::client_of(context, leader)
        && let Ok(better) = client.get(&path, &[])
    {
        answer = better;
    }
    let replicas = listing::rows(answer.get("replicas").unwrap_or(&Value::Null), &path)?;
    output::print(context.format, &answer, || {
        let field = |name: &str| output::cell(answer.get(name).unwrap_or(&Value::Null));
        format!(
            "shard {}, leader {}, preferred leader {}, term {}, commit index {}\n\n{}",
            field("shard"),
            field("leader"),
            field("preferred_leader"),
            field("term"),
            field("commit_index"),
            output::Table::of(&REPLICAS, replicas)
        )
    })
}

fn transfer_leader(context: &Context, options: &TransferLeader) -> Result<(), Failure> {
    let TransferLeader { queue, node, .. } = options;
    let path = quorum(queue, "leader");
    let body = json!({"node": node});
    context.client.send(Method::Put, &path, Some(&body))?;
    if !options.wait {
        context.done(&format!("node '{node}' is to lead queue '{}'", queue.name));
        return Ok(());
    }
    let what = format!("node '{node}' leads queue '{}'", queue.name);
    cluster::wait(context, Duration::from_secs(options.timeout), &what, || {
        let answer = context.client.get(&quorum(queue, "status"), &[])?;
        let leader = answer.get("leader").unwrap_or(&Value::Null);
        Ok((leader != node.as_str()).then(|| format!("{} still leads", output::cell(leader))))
    })
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(options) => listing::list(context, "queues", options, &COLUMNS),
        Verb::Show(queue) => context.object(&context.client.get(&queue.path("queues"), &[])?),
        Verb::Declare(declare) => {
            let body = json!({
                "durable": !declare.transient,
                "auto_delete": declare.auto_delete,
                "arguments": declare.arguments()?,
            });
            let path = declare.queue.path("queues");
            let done = format!("queue '{}' is declared", declare.queue.name);
            context.change(Method::Put, &path, Some(&body), &done)
        }
        Verb::Delete(options) => {
            let InVhost { name, vhost } = &options.queue;
            context.confirm(&format!(
                "Delete queue '{name}' in vhost '{vhost}' and what is in it"
            ))?;
            delete(context, options)
        }
        Verb::QuorumStatus(queue) => quorum_status(context, queue),
        Verb::TransferLeader(options) => transfer_leader(context, options),
        Verb::Grow(options) => cluster::revive(context, options),
        Verb::Shrink(options) => cluster::drain(context, options),
        Verb::Purge(queue) => {
            context.confirm(&format!(
                "Take all messages out of queue '{}' in vhost '{}'",
                queue.name, queue.vhost
            ))?;
            purge(context, queue)
        }
    }
}

fn delete(context: &Context, options: &Delete) -> Result<(), Failure> {
    let mut query = Vec::new();
    if options.if_empty {
        query.push(("if-empty", "true"));
    }
    if options.if_unused {
        query.push(("if-unused", "true"));
    }
    let path = options.queue.path("queues");
    context.client.send_with(&Request {
        query: &query,
        ..Request::of(Method::Delete, &path)
    })?;
    context.done(&format!("queue '{}' is deleted", options.queue.name));
    Ok(())
}

/// Deletes a queue without asking.
pub fn delete_now(
    context: &Context,
    queue: InVhost,
    if_empty: bool,
    if_unused: bool,
) -> Result<(), Failure> {
    let options = Delete {
        queue,
        if_empty,
        if_unused,
    };
    delete(context, &options)
}

/// Purges a queue without asking.
pub fn purge(context: &Context, queue: &InVhost) -> Result<(), Failure> {
    let path = format!("{}/contents", queue.path("queues"));
    let done = format!("queue '{}' is purged", queue.name);
    context.change(Method::Delete, &path, None, &done)
}
