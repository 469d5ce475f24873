//! `warrenctl consumer`: consumers of the whole cluster.

use clap::Subcommand;

use super::Context;
use super::listing::ListOptions;
use crate::client::segment;
use crate::failure::Failure;

/// What a list shows.
pub const COLUMNS: [&str; 9] = [
    "queue.vhost",
    "queue.name",
    "consumer_tag",
    "channel_details.name",
    "channel_details.node",
    "ack_required",
    "exclusive",
    "prefetch_count",
    "active",
];

/// What can be done with consumers.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List consumers.
    #[command(after_help = "Example: warrenctl consumer list --vhost /")]
    List(ListOptions),
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(ListOptions { vhost }) => list(context, vhost.as_deref(), &COLUMNS),
    }
}

/// Lists consumers with these columns.
pub fn list(context: &Context, vhost: Option<&str>, columns: &[&str]) -> Result<(), Failure> {
    let path = match vhost {
        Some(vhost) => format!("/api/consumers/{}", segment(vhost)),
        None => "/api/consumers".to_owned(),
    };
    let answer = context.client.get(&path, &[])?;
    context.list(&answer, &path, columns)
}
