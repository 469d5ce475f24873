//! `warrenctl parameter`: global parameters, JSON under a name.

use clap::Subcommand;
use serde_json::{Value, json};

use super::Context;
use crate::client::{Method, segment};
use crate::failure::Failure;

/// What can be done with global parameters.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List global parameters.
    #[command(after_help = "Example: warrenctl parameter list")]
    List,
    /// Show a global parameter.
    #[command(after_help = "Example: warrenctl parameter show owner")]
    Show(Name),
    /// Set a global parameter.
    #[command(after_help = "Example: warrenctl parameter set owner '{\"team\": \"orders\"}'")]
    Set(Set),
    /// Take a global parameter away.
    #[command(after_help = "Example: warrenctl parameter clear owner --yes")]
    Clear(Name),
}

/// A parameter.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// Its name.
    name: String,
}

/// A parameter and its value.
#[derive(Debug, clap::Args)]
pub struct Set {
    /// Its name.
    pub name: String,
    /// Its value, in JSON.
    #[arg(value_parser = json_value)]
    pub value: Value,
}

/// Reads JSON from the command line.
pub fn json_value(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List => list(context),
        Verb::Show(Name { name }) => context.object(&context.client.get(&path(name), &[])?),
        Verb::Set(options) => set(context, options),
        Verb::Clear(Name { name }) => {
            context.confirm(&format!("Take global parameter '{name}' away"))?;
            clear(context, name)
        }
    }
}

fn path(name: &str) -> String {
    format!("/api/global-parameters/{}", segment(name))
}

/// Lists global parameters.
pub fn list(context: &Context) -> Result<(), Failure> {
    let path = "/api/global-parameters";
    context.list(&context.client.get(path, &[])?, path, &["name", "value"])
}

/// Sets a global parameter.
pub fn set(context: &Context, Set { name, value }: &Set) -> Result<(), Failure> {
    let done = format!("global parameter '{name}' is set");
    let body = json!({"value": value});
    context.change(Method::Put, &path(name), Some(&body), &done)
}

/// Takes a global parameter away without asking.
pub fn clear(context: &Context, name: &str) -> Result<(), Failure> {
    let done = format!("global parameter '{name}' is gone");
    context.change(Method::Delete, &path(name), None, &done)
}
