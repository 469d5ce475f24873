//! `warrenctl node`: the nodes' processes.

use clap::Subcommand;

use super::Context;
use crate::client::segment;
use crate::failure::Failure;

const COLUMNS: [&str; 9] = [
    "name",
    "running",
    "serves_clients",
    "uptime",
    "connections",
    "mem_used",
    "queued_bytes",
    "mem_alarm",
    "fd_used",
];

/// What can be done with nodes.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List the nodes; of one that does not answer only its name is known.
    #[command(after_help = "Example: warrenctl node list")]
    List,
    /// Show a node.
    #[command(after_help = "Example: warrenctl node show node2")]
    Show(Name),
}

/// A node.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// Its name.
    name: String,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List => {
            let answer = context.client.get("/api/nodes", &[])?;
            context.list(&answer, "/api/nodes", &COLUMNS)
        }
        Verb::Show(Name { name }) => {
            let path = format!("/api/nodes/{}", segment(name));
            context.object(&context.client.get(&path, &[])?)
        }
    }
}
