//! `warrenctl exchange`: exchanges.

use clap::Subcommand;
use serde_json::{Value, json};

use super::listing::{self, InVhost, ListOptions};
use super::{Context, arguments};
use crate::client::{Method, Request};
use crate::failure::Failure;

const COLUMNS: [&str; 7] = [
    "vhost",
    "name",
    "type",
    "durable",
    "auto_delete",
    "internal",
    "arguments",
];

/// What can be done with exchanges.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List exchanges.
    #[command(after_help = "Example: warrenctl exchange list --vhost /")]
    List(ListOptions),
    /// Show an exchange.
    #[command(after_help = "Example: warrenctl exchange show amq.topic")]
    Show(InVhost),
    /// Declare an exchange; one that is there as asked stays as it is.
    #[command(
        after_help = "Example: warrenctl exchange declare events --type topic --argument alternate-exchange=lost"
    )]
    Declare(Declare),
    /// Delete an exchange and its bindings.
    #[command(after_help = "Example: warrenctl exchange delete events --if-unused --yes")]
    Delete(Delete),
}

/// An exchange to be declared.
#[derive(Debug, clap::Args)]
pub struct Declare {
    #[command(flatten)]
    exchange: InVhost,
    /// direct, fanout, topic, headers or x-consistent-hash.
    #[arg(long = "type", default_value = "direct")]
    kind: String,
    /// It is gone when all nodes have stopped.
    #[arg(long)]
    transient: bool,
    /// It is deleted with its last binding.
    #[arg(long)]
    auto_delete: bool,
    /// Only other exchanges can send to it.
    #[arg(long)]
    internal: bool,
    /// An optional argument; may be repeated.
    #[arg(long = "argument", value_name = "NAME=VALUE", value_parser = arguments::pair)]
    arguments: Vec<(String, Value)>,
}

/// An exchange to be deleted.
#[derive(Debug, clap::Args)]
pub struct Delete {
    #[command(flatten)]
    exchange: InVhost,
    /// Only if nothing is bound to it.
    #[arg(long)]
    if_unused: bool,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(options) => listing::list(context, "exchanges", options, &COLUMNS),
        Verb::Show(exchange) => {
            context.object(&context.client.get(&exchange.path("exchanges"), &[])?)
        }
        Verb::Declare(declare) => {
            let body = json!({
                "type": declare.kind,
                "durable": !declare.transient,
                "auto_delete": declare.auto_delete,
                "internal": declare.internal,
                "arguments": arguments::object(&declare.arguments),
            });
            let path = declare.exchange.path("exchanges");
            let done = format!("exchange '{}' is declared", declare.exchange.name);
            context.change(Method::Put, &path, Some(&body), &done)
        }
        Verb::Delete(options) => {
            let InVhost { name, vhost } = &options.exchange;
            context.confirm(&format!(
                "Delete exchange '{name}' in vhost '{vhost}' and its bindings"
            ))?;
            let query: &[(&str, &str)] = if options.if_unused {
                &[("if-unused", "true")]
            } else {
                &[]
            };
            let path = options.exchange.path("exchanges");
            context.client.send_with(&Request {
                query,
                ..Request::of(Method::Delete, &path)
            })?;
            context.done(&format!("exchange '{name}' is deleted"));
            Ok(())
        }
    }
}
