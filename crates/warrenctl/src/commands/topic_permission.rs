//! `warrenctl topic-permission`: which routing keys users may use with topic exchanges.

use clap::Subcommand;
use serde_json::json;

use super::Context;
use crate::client::{Method, Request, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 5] = ["vhost", "user", "exchange", "write", "read"];

/// What can be done with topic permissions.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List topic permissions: all, those in a virtual host, or those of a user.
    #[command(after_help = "Example: warrenctl topic-permission list --vhost shop")]
    List(List),
    /// Set the routing keys that a user may publish and bind with.
    #[command(
        after_help = "Example: warrenctl topic-permission set alice events --write '^{username}' --read '.*'"
    )]
    Set(Set),
    /// Take a user's topic permissions in a virtual host away: any routing key may be used then.
    #[command(
        after_help = "Example: warrenctl topic-permission clear alice --exchange events --yes"
    )]
    Clear(Clear),
}

/// Which topic permissions.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Only in this virtual host.
    #[arg(long, conflicts_with = "of_user")]
    vhost: Option<String>,
    /// Only of this user.
    #[arg(long, value_name = "USER")]
    of_user: Option<String>,
}

/// A topic permission.
#[derive(Debug, clap::Args)]
pub struct Set {
    /// The user.
    name: String,
    /// The topic exchange.
    exchange: String,
    /// The virtual host.
    #[arg(long, default_value = "/")]
    vhost: String,
    /// Routing keys that may be published with.
    #[arg(long, default_value = "", value_name = "REGEX")]
    write: String,
    /// Binding keys that may be bound with.
    #[arg(long, default_value = "", value_name = "REGEX")]
    read: String,
}

/// Whose topic permissions.
#[derive(Debug, clap::Args)]
pub struct Clear {
    /// The user.
    name: String,
    /// The virtual host.
    #[arg(long, default_value = "/")]
    vhost: String,
    /// Only of this exchange.
    #[arg(long)]
    exchange: Option<String>,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(List { vhost, of_user }) => list(context, vhost.as_deref(), of_user.as_deref()),
        Verb::Set(options) => {
            let patterns = [options.write.as_str(), options.read.as_str()];
            let Set {
                name,
                exchange,
                vhost,
                ..
            } = options;
            set(context, name, vhost, exchange, patterns)
        }
        Verb::Clear(Clear {
            name,
            vhost,
            exchange,
        }) => {
            context.confirm(&format!(
                "Let user '{name}' use any routing key in vhost '{vhost}'"
            ))?;
            clear(context, name, vhost, exchange.as_deref())
        }
    }
}

/// Lists topic permissions.
pub fn list(context: &Context, vhost: Option<&str>, user: Option<&str>) -> Result<(), Failure> {
    let path = match (vhost, user) {
        (Some(vhost), _) => format!("/api/vhosts/{}/topic-permissions", segment(vhost)),
        (None, Some(user)) => format!("/api/users/{}/topic-permissions", segment(user)),
        (None, None) => "/api/topic-permissions".to_owned(),
    };
    context.list(&context.client.get(&path, &[])?, &path, &COLUMNS)
}

fn path(user: &str, vhost: &str) -> String {
    format!(
        "/api/topic-permissions/{}/{}",
        segment(vhost),
        segment(user)
    )
}

/// Sets a topic permission.
pub fn set(
    context: &Context,
    user: &str,
    vhost: &str,
    exchange: &str,
    [write, read]: [&str; 2],
) -> Result<(), Failure> {
    let body = json!({"exchange": exchange, "write": write, "read": read});
    let done = format!("topic permissions of user '{user}' for exchange '{exchange}' are set");
    context.change(Method::Put, &path(user, vhost), Some(&body), &done)
}

/// Takes topic permissions away without asking.
pub fn clear(
    context: &Context,
    user: &str,
    vhost: &str,
    exchange: Option<&str>,
) -> Result<(), Failure> {
    let query: Vec<(&str, &str)> = exchange.iter().map(|name| ("exchange", *name)).collect();
    let path = path(user, vhost);
    context.client.send_with(&Request {
        query: &query,
        ..Request::of(Method::Delete, &path)
    })?;
    context.done(&format!("topic permissions of user '{user}' are gone"));
    Ok(())
}
