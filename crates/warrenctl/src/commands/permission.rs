//! `warrenctl permission`: what users may do in virtual hosts, by three regular expressions over names.

use clap::Subcommand;
use serde_json::json;

use super::Context;
use crate::client::{Method, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 5] = ["vhost", "user", "configure", "write", "read"];

/// What can be done with permissions.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List permissions: all, those in a virtual host, or those of a user.
    #[command(after_help = "Example: warrenctl permission list --vhost shop")]
    List(List),
    /// Set what a user may do in a virtual host.
    #[command(
        after_help = "Example: warrenctl permission set alice --vhost shop --configure '^$' --write '.*' --read '.*'"
    )]
    Set(Set),
    /// Take all permissions of a user in a virtual host away.
    #[command(after_help = "Example: warrenctl permission clear alice --vhost shop --yes")]
    Clear(Clear),
}

/// Which permissions.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Only in this virtual host.
    #[arg(long, conflicts_with = "of_user")]
    vhost: Option<String>,
    /// Only of this user.
    #[arg(long, value_name = "USER")]
    of_user: Option<String>,
}

/// A user's permissions.
#[derive(Debug, clap::Args)]
pub struct Set {
    /// The user.
    name: String,
    /// The virtual host.
    #[arg(long, default_value = "/")]
    vhost: String,
    /// Names that may be declared and deleted.
    #[arg(long, default_value = "", value_name = "REGEX")]
    configure: String,
    /// Names that may be published to and bound.
    #[arg(long, default_value = "", value_name = "REGEX")]
    write: String,
    /// Names that may be consumed from and bound from.
    #[arg(long, default_value = "", value_name = "REGEX")]
    read: String,
}

/// Whose permissions.
#[derive(Debug, clap::Args)]
pub struct Clear {
    /// The user.
    name: String,
    /// The virtual host.
    #[arg(long, default_value = "/")]
    vhost: String,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(list) => match (&list.vhost, &list.of_user) {
            (Some(vhost), _) => of_vhost(context, vhost, &COLUMNS),
            (None, Some(user)) => of_user(context, user, &COLUMNS),
            (None, None) => print(context, "/api/permissions", &COLUMNS),
        },
        Verb::Set(options) => {
            let patterns = [&options.configure, &options.write, &options.read];
            set(context, &options.name, &options.vhost, patterns)
        }
        Verb::Clear(Clear { name, vhost }) => {
            context.confirm(&format!(
                "Take all permissions of user '{name}' in vhost '{vhost}' away"
            ))?;
            clear(context, name, vhost)
        }
    }
}

fn path(user: &str, vhost: &str) -> String {
    format!("/api/permissions/{}/{}", segment(vhost), segment(user))
}

fn print(context: &Context, path: &str, columns: &[&str]) -> Result<(), Failure> {
    let answer = context.client.get(path, &[])?;
    context.list(&answer, path, columns)
}

/// Lists the permissions in a virtual host with these columns.
pub fn of_vhost(context: &Context, vhost: &str, columns: &[&str]) -> Result<(), Failure> {
    let path = format!("/api/vhosts/{}/permissions", segment(vhost));
    print(context, &path, columns)
}

/// Lists the permissions of a user with these columns.
pub fn of_user(context: &Context, user: &str, columns: &[&str]) -> Result<(), Failure> {
    let path = format!("/api/users/{}/permissions", segment(user));
    print(context, &path, columns)
}

/// Sets what a user may configure, write and read.
pub fn set(
    context: &Context,
    user: &str,
    vhost: &str,
    [configure, write, read]: [&String; 3],
) -> Result<(), Failure> {
    let body = json!({"configure": configure, "write": write, "read": read});
    let done = format!("permissions of user '{user}' in vhost '{vhost}' are set");
    context.change(Method::Put, &path(user, vhost), Some(&body), &done)
}

/// Takes permissions away without asking.
pub fn clear(context: &Context, user: &str, vhost: &str) -> Result<(), Failure> {
    let done = format!("user '{user}' has no permissions in vhost '{vhost}' any more");
    context.change(Method::Delete, &path(user, vhost), None, &done)
}
