//! `warrenctl message`: single messages. For traffic, use AMQP.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Subcommand;
use serde_json::{Value, json};

use super::listing::InVhost;
use super::{Context, arguments, queue};
use crate::client::{Method, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 7] = [
    "routing_key",
    "exchange",
    "redelivered",
    "message_count",
    "payload_bytes",
    "payload",
    "properties",
];

/// What can be done with messages.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Publish a message, and say whether any queue took it.
    #[command(
        after_help = "Example: warrenctl message publish --exchange events --key orders.new --payload hello --property delivery_mode=2"
    )]
    Publish(Publish),
    /// Get messages from a queue; they go back unless --take is given.
    #[command(after_help = "Example: warrenctl message get orders --count 5")]
    Get(Get),
    /// Take all messages that are ready out of a queue.
    #[command(after_help = "Example: warrenctl message purge orders --yes")]
    Purge(InVhost),
}

/// A message.
#[derive(Debug, clap::Args)]
pub struct Publish {
    /// The exchange; the default exchange sends to the queue that the key names.
    #[arg(long, default_value = "amq.default")]
    exchange: String,
    /// The routing key.
    #[arg(long, default_value = "")]
    key: String,
    /// The virtual host.
    #[arg(long, default_value = "/")]
    vhost: String,
    /// The body; without it, standard input is.
    #[arg(long)]
    payload: Option<String>,
    /// A property, as delivery_mode=2 or headers={"a":1}; may be repeated.
    #[arg(long = "property", value_name = "NAME=VALUE", value_parser = arguments::pair)]
    properties: Vec<(String, Value)>,
}

/// Messages to be got.
#[derive(Debug, clap::Args)]
pub struct Get {
    #[command(flatten)]
    queue: InVhost,
    /// How many at most.
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Take them out of the queue.
    #[arg(long)]
    take: bool,
    /// Show so many bytes of each body at most.
    #[arg(long, value_name = "BYTES")]
    truncate: Option<u32>,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Publish(message) => publish(context, message),
        Verb::Get(options) => {
            let mode = if options.take {
                "ack_requeue_false"
            } else {
                "ack_requeue_true"
            };
            let mut body = json!({"count": options.count, "ackmode": mode, "encoding": "auto"});
            if let Some(bytes) = options.truncate {
                body["truncate"] = json!(bytes);
            }
            let path = format!("{}/get", options.queue.path("queues"));
            let answer = context.client.send(Method::Post, &path, Some(&body))?;
            context.list(&answer, &path, &COLUMNS)
        }
        Verb::Purge(queue) => {
            context.confirm(&format!(
                "Take all messages out of queue '{}' in vhost '{}'",
                queue.name, queue.vhost
            ))?;
            queue::purge(context, queue)
        }
    }
}

fn publish(context: &Context, message: &Publish) -> Result<(), Failure> {
    let payload = match &message.payload {
        Some(text) => text.as_bytes().to_vec(),
        None => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(|error| {
                Failure::Input(format!(
                    "the body cannot be read from standard input: {error}"
                ))
            })?;
            bytes
        }
    };
    let body = json!({
        "routing_key": message.key,
        "properties": arguments::object(&message.properties),
        "payload": STANDARD.encode(payload),
        "payload_encoding": "base64",
    });
    let path = format!(
        "/api/exchanges/{}/{}/publish",
        segment(&message.vhost),
        segment(&message.exchange)
    );
    let answer = context.client.send(Method::Post, &path, Some(&body))?;
    if answer["routed"] == true {
        context.done("published and routed");
        return Ok(());
    }
    Err(Failure::Data(format!(
        "published, but no queue took it; `warrenctl routing explain {} '{}' --vhost {}` says why",
        message.exchange, message.key, message.vhost
    )))
}
