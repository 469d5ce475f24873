//! `warrenctl connection`: client connections of the whole cluster.

use clap::Subcommand;

use super::Context;
use crate::client::{Method, Request, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 9] = [
    "name",
    "node",
    "user",
    "vhost",
    "state",
    "channels",
    "recv_oct",
    "send_oct",
    "user_provided_name",
];

/// What can be done with connections.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List connections.
    #[command(
        after_help = "Example: warrenctl connection list --of-user alice --columns name,state"
    )]
    List(List),
    /// Show a connection with its channels.
    #[command(after_help = "Example: warrenctl connection show '10.0.0.7:40012 -> 10.0.0.1:5672'")]
    Show(Name),
    /// Close a connection; its client is told the reason.
    #[command(
        after_help = "Example: warrenctl connection close '10.0.0.7:40012 -> 10.0.0.1:5672' --reason 'moving house' --yes"
    )]
    Close(Close),
    /// Close all connections of a user.
    #[command(after_help = "Example: warrenctl connection close-all --of-user alice --yes")]
    CloseAll(CloseAll),
}

/// Which connections.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Only in this virtual host.
    #[arg(long, conflicts_with = "of_user")]
    vhost: Option<String>,
    /// Only of this user.
    #[arg(long, value_name = "USER")]
    of_user: Option<String>,
}

/// A connection.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// Its name, as the list has it.
    name: String,
}

/// A connection to be closed.
#[derive(Debug, clap::Args)]
pub struct Close {
    /// Its name, as the list has it.
    name: String,
    /// What its client is told.
    #[arg(long, default_value = "Closed via warrenctl")]
    reason: String,
}

/// Connections to be closed.
#[derive(Debug, clap::Args)]
pub struct CloseAll {
    /// Whose.
    #[arg(long, value_name = "USER")]
    of_user: String,
    /// What their clients are told.
    #[arg(long, default_value = "Closed via warrenctl")]
    reason: String,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(List { vhost, of_user }) => {
            let path = match (vhost, of_user) {
                (Some(vhost), _) => format!("/api/vhosts/{}/connections", segment(vhost)),
                (None, Some(user)) => format!("/api/connections/username/{}", segment(user)),
                (None, None) => "/api/connections".to_owned(),
            };
            let answer = context.client.get(&path, &[])?;
            context.list(&answer, &path, &COLUMNS)
        }
        Verb::Show(Name { name }) => {
            let path = format!("/api/connections/{}", segment(name));
            let mut answer = context.client.get(&path, &[])?;
            answer["channel_list"] = context.client.get(&format!("{path}/channels"), &[])?;
            context.object(&answer)
        }
        Verb::Close(Close { name, reason }) => {
            context.confirm(&format!("Close connection '{name}'"))?;
            close(context, name, reason)
        }
        Verb::CloseAll(CloseAll { of_user, reason }) => {
            context.confirm(&format!("Close all connections of user '{of_user}'"))?;
            close_all(context, of_user, reason)
        }
    }
}

/// Closes a connection without asking.
pub fn close(context: &Context, name: &str, reason: &str) -> Result<(), Failure> {
    delete(
        context,
        &format!("/api/connections/{}", segment(name)),
        reason,
    )?;
    context.done(&format!("connection '{name}' is told to close"));
    Ok(())
}

/// Closes a user's connections without asking.
pub fn close_all(context: &Context, user: &str, reason: &str) -> Result<(), Failure> {
    let path = format!("/api/connections/username/{}", segment(user));
    delete(context, &path, reason)?;
    context.done(&format!("connections of user '{user}' are told to close"));
    Ok(())
}

fn delete(context: &Context, path: &str, reason: &str) -> Result<(), Failure> {
    let headers = [("X-Reason", reason)];
    let request = Request {
        headers: &headers,
        ..Request::of(Method::Delete, path)
    };
    context.client.send_with(&request).map(drop)
}
