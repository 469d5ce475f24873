//! `warrenctl exchange`: the exchanges of one or all virtual hosts.

use clap::Subcommand;

use super::Context;
use super::listing::{self, ListOptions};
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
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(options) => listing::list(context, "exchanges", options, &COLUMNS),
    }
}
