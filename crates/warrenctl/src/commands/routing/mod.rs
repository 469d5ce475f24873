//! `warrenctl routing`: whether all nodes route by the same table, and why a message goes where it goes.

mod diff;
mod digest;
mod explain;

use std::time::Duration;

use clap::Subcommand;

use super::Context;
use crate::failure::Failure;

/// Between two looks at nodes that are not at the same applied index.
const PAUSE: Duration = Duration::from_millis(100);

/// What can be done with the routing table.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Compare the digest of the routing table over all nodes at equal applied index.
    #[command(
        after_help = "Exits with 70 when two nodes differ at the same applied index, with 69 when a node cannot be asked.

Example: warrenctl routing digest"
    )]
    Digest(digest::Options),
    /// Show what one node's routing table has and another's lacks.
    #[command(
        after_help = "Exits with 70 when two nodes differ at the same applied index, with 69 when a node cannot be asked.

Example: warrenctl routing diff node1 node3"
    )]
    Diff(diff::Options),
    /// Explain where a message published to EXCHANGE with KEY would go, and why.
    #[command(
        after_help = "Example: warrenctl routing explain amq.topic orders.eu.new --header priority=high"
    )]
    Explain(explain::Options),
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Digest(options) => digest::run(context, options),
        Verb::Diff(options) => diff::run(context, options),
        Verb::Explain(options) => explain::run(context, options),
    }
}
