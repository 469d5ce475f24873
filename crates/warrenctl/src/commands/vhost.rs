//! `warrenctl vhost`: virtual hosts.

use clap::Subcommand;
use serde_json::json;

use super::Context;
use crate::client::{Method, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 3] = ["name", "description", "tags"];

/// What can be done with virtual hosts.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List virtual hosts.
    #[command(after_help = "Example: warrenctl vhost list")]
    List,
    /// Show a virtual host.
    #[command(after_help = "Example: warrenctl vhost show shop")]
    Show(Name),
    /// Make a virtual host; one that is there stays as it is.
    #[command(
        visible_alias = "add",
        after_help = "Example: warrenctl vhost declare shop"
    )]
    Declare(Name),
    /// Delete a virtual host and all that is in it.
    #[command(after_help = "Example: warrenctl vhost delete shop --yes")]
    Delete(Name),
}

/// A virtual host.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// Its name.
    name: String,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List => list(context, &COLUMNS),
        Verb::Show(Name { name }) => context.object(&context.client.get(&path(name), &[])?),
        Verb::Declare(Name { name }) => declare(context, name),
        Verb::Delete(Name { name }) => {
            context.confirm(&format!("Delete vhost '{name}' and all that is in it"))?;
            delete(context, name)
        }
    }
}

fn path(name: &str) -> String {
    format!("/api/vhosts/{}", segment(name))
}

/// Lists virtual hosts with these columns.
pub fn list(context: &Context, columns: &[&str]) -> Result<(), Failure> {
    let answer = context.client.get("/api/vhosts", &[])?;
    context.list(&answer, "/api/vhosts", columns)
}

/// Makes a virtual host.
pub fn declare(context: &Context, name: &str) -> Result<(), Failure> {
    let done = format!("vhost '{name}' is there");
    context.change(Method::Put, &path(name), Some(&json!({})), &done)
}

/// Deletes a virtual host without asking.
pub fn delete(context: &Context, name: &str) -> Result<(), Failure> {
    let done = format!("vhost '{name}' is deleted");
    context.change(Method::Delete, &path(name), None, &done)
}
