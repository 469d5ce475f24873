//! `warrenctl binding`: bindings from exchanges to queues and exchanges.

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::listing::{self, ListOptions};
use super::{Context, arguments};
use crate::client::{Method, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 6] = [
    "vhost",
    "source",
    "destination_type",
    "destination",
    "routing_key",
    "arguments",
];

/// What can be done with bindings.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List bindings.
    #[command(after_help = "Example: warrenctl binding list --vhost /")]
    List(ListOptions),
    /// Bind a queue or an exchange to an exchange.
    #[command(after_help = "Example: warrenctl binding declare events orders --key orders.#")]
    Declare(Ends),
    /// Take a binding away.
    #[command(after_help = "Example: warrenctl binding delete events orders --key orders.# --yes")]
    Delete(Ends),
}

/// What a binding leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum To {
    /// A queue.
    Queue,
    /// An exchange.
    Exchange,
}

/// A binding, by all that identifies it.
#[derive(Debug, clap::Args)]
pub struct Ends {
    /// The exchange that messages come from.
    source: String,
    /// The queue or exchange that they go to.
    destination: String,
    /// What the destination is.
    #[arg(long, value_enum, default_value_t = To::Queue)]
    to: To,
    /// The binding key.
    #[arg(long, default_value = "")]
    key: String,
    /// The virtual host.
    #[arg(long, default_value = "/")]
    vhost: String,
    /// An argument; may be repeated.
    #[arg(long = "argument", value_name = "NAME=VALUE", value_parser = arguments::pair)]
    arguments: Vec<(String, Value)>,
}

impl Ends {
    fn path(&self) -> String {
        let kind = match self.to {
            To::Queue => "q",
            To::Exchange => "e",
        };
        format!(
            "/api/bindings/{}/e/{}/{kind}/{}",
            segment(&self.vhost),
            segment(&self.source),
            segment(&self.destination)
        )
    }
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(options) => listing::list(context, "bindings", options, &COLUMNS),
        Verb::Declare(ends) => {
            let body = json!({
                "routing_key": ends.key,
                "arguments": arguments::object(&ends.arguments),
            });
            let done = format!("'{}' is bound to '{}'", ends.destination, ends.source);
            context.change(Method::Post, &ends.path(), Some(&body), &done)
        }
        Verb::Delete(ends) => delete(context, ends),
    }
}

/// Finds the binding's own name among those between the two ends, and deletes it.
fn delete(context: &Context, ends: &Ends) -> Result<(), Failure> {
    let path = ends.path();
    let answer = context.client.get(&path, &[])?;
    let wanted = arguments::object(&ends.arguments);
    let found = listing::rows(&answer, &path)?
        .iter()
        .find(|row| row["routing_key"] == ends.key.as_str() && row["arguments"] == wanted);
    let Some(name) = found.and_then(|row| row["properties_key"].as_str()) else {
        return Err(Failure::Data(format!(
            "there is no binding from '{}' to '{}' in vhost '{}' with key '{}' and arguments {wanted}; `warrenctl binding list` shows those that there are",
            ends.source, ends.destination, ends.vhost, ends.key
        )));
    };
    context.confirm(&format!(
        "Take the binding of '{}' to '{}' with key '{}' away",
        ends.destination, ends.source, ends.key
    ))?;
    let path = format!("{path}/{}", segment(name));
    let done = format!("'{}' is unbound from '{}'", ends.destination, ends.source);
    context.change(Method::Delete, &path, None, &done)
}
