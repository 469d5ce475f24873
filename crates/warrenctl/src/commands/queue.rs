//! `warrenctl queue`: the queues of one or all virtual hosts.

use clap::Subcommand;

use super::Context;
use super::listing::{self, ListOptions};
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
    #[command(after_help = "Example: warrenctl queue list --vhost /")]
    List(ListOptions),
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(options) => listing::list(context, "queues", options, &COLUMNS),
    }
}
