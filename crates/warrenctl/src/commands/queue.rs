//! `warrenctl queue`: queues, and their contents as a whole.

use clap::Subcommand;
use serde_json::{Value, json};

use super::listing::{self, InVhost, ListOptions};
use super::{Context, arguments};
use crate::client::{Method, Request};
use crate::failure::Failure;

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
    #[command(after_help = "Example: warrenctl queue declare orders --argument x-max-length=1000")]
    Declare(Declare),
    /// Delete a queue and what is in it.
    #[command(after_help = "Example: warrenctl queue delete orders --if-empty --yes")]
    Delete(Delete),
    /// Take all messages that are ready out of a queue.
    #[command(after_help = "Example: warrenctl queue purge orders --yes")]
    Purge(InVhost),
}

/// A queue to be declared.
#[derive(Debug, clap::Args)]
pub struct Declare {
    #[command(flatten)]
    queue: InVhost,
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

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(options) => listing::list(context, "queues", options, &COLUMNS),
        Verb::Show(queue) => context.object(&context.client.get(&queue.path("queues"), &[])?),
        Verb::Declare(declare) => {
            let body = json!({
                "durable": !declare.transient,
                "auto_delete": declare.auto_delete,
                "arguments": arguments::object(&declare.arguments),
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
