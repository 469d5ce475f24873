//! `warrenctl vhost`: virtual hosts.

use clap::Subcommand;
use serde_json::json;

use super::Context;
use crate::client::{Method, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 4] = ["name", "description", "tags", "default_queue_type"];

/// What can be done with virtual hosts.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List virtual hosts.
    #[command(after_help = "Example: warrenctl vhost list")]
    List,
    /// Show a virtual host.
    #[command(after_help = "Example: warrenctl vhost show shop")]
    Show(Name),
    /// Make a virtual host; of one that is there, what is named changes.
    #[command(
        visible_alias = "add",
        after_help = "Example: warrenctl vhost declare shop --description 'Orders and stock' --default-queue-type quorum"
    )]
    Declare(Declare),
    /// Delete a virtual host and all that is in it.
    #[command(after_help = "Example: warrenctl vhost delete shop --yes")]
    Delete(Name),
}

/// A virtual host, and what is said of it.
#[derive(Debug, clap::Args)]
pub struct Declare {
    /// Its name.
    pub name: String,
    /// What it is for.
    #[arg(long)]
    description: Option<String>,
    /// Its tags, for people.
    #[arg(long, value_delimiter = ',')]
    tags: Option<Vec<String>>,
    /// The type of queues whose declaration names none: classic or quorum.
    #[arg(long, value_name = "TYPE")]
    default_queue_type: Option<String>,
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
        Verb::Declare(options) => declare(context, options),
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

/// Makes a virtual host, or changes what is said of it.
pub fn declare(context: &Context, options: &Declare) -> Result<(), Failure> {
    let mut body = json!({});
    if let Some(description) = &options.description {
        body["description"] = json!(description);
    }
    if let Some(tags) = &options.tags {
        body["tags"] = json!(tags);
    }
    if let Some(kind) = &options.default_queue_type {
        body["default_queue_type"] = json!(kind);
    }
    let done = format!("vhost '{}' is there", options.name);
    context.change(Method::Put, &path(&options.name), Some(&body), &done)
}

/// Changes what is said of a virtual host that must be there.
pub fn update(context: &Context, options: &Declare) -> Result<(), Failure> {
    context.client.get(&path(&options.name), &[])?;
    declare(context, options)
}

/// Deletes a virtual host without asking.
pub fn delete(context: &Context, name: &str) -> Result<(), Failure> {
    let done = format!("vhost '{name}' is deleted");
    context.change(Method::Delete, &path(name), None, &done)
}
