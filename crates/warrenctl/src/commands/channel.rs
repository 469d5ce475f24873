//! `warrenctl channel`: channels of the whole cluster.

use clap::Subcommand;

use super::Context;
use super::listing::ListOptions;
use crate::client::segment;
use crate::failure::Failure;

/// What a list shows.
pub const COLUMNS: [&str; 9] = [
    "name",
    "node",
    "user",
    "vhost",
    "confirm",
    "consumer_count",
    "messages_unacknowledged",
    "messages_unconfirmed",
    "prefetch_count",
];

/// What can be done with channels.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List channels.
    #[command(after_help = "Example: warrenctl channel list --vhost /")]
    List(ListOptions),
    /// Show a channel with its consumers and rates.
    #[command(after_help = "Example: warrenctl channel show '10.0.0.7:40012 -> 10.0.0.1:5672 (1)'")]
    Show(Name),
}

/// A channel.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// Its name, as the list has it.
    name: String,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(ListOptions { vhost }) => list(context, vhost.as_deref(), &COLUMNS),
        Verb::Show(Name { name }) => {
            let path = format!("/api/channels/{}", segment(name));
            context.object(&context.client.get(&path, &[])?)
        }
    }
}

/// Lists channels with these columns.
pub fn list(context: &Context, vhost: Option<&str>, columns: &[&str]) -> Result<(), Failure> {
    let path = match vhost {
        Some(vhost) => format!("/api/vhosts/{}/channels", segment(vhost)),
        None => "/api/channels".to_owned(),
    };
    let answer = context.client.get(&path, &[])?;
    context.list(&answer, &path, columns)
}
