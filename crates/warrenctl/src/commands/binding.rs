//! `warrenctl binding`: the bindings of one or all virtual hosts.

use clap::Subcommand;

use super::Context;
use super::listing::{self, ListOptions};
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
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(options) => listing::list(context, "bindings", options, &COLUMNS),
    }
}
