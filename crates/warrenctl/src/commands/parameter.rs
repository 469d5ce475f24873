//! `warrenctl parameter`: JSON under a name, of the cluster or of a component in a virtual host.

use clap::Subcommand;
use serde_json::{Value, json};

use super::Context;
use crate::client::{Method, segment};
use crate::failure::Failure;

/// What can be done with parameters.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List global parameters, or those of a component in virtual hosts.
    #[command(after_help = "Example: warrenctl parameter list --component shovel")]
    List(List),
    /// Show a parameter.
    #[command(after_help = "Example: warrenctl parameter show owner")]
    Show(Name),
    /// Set a parameter.
    #[command(
        visible_alias = "declare",
        after_help = "Example: warrenctl parameter set owner '{\"team\": \"orders\"}'"
    )]
    Set(SetOf),
    /// Take a parameter away.
    #[command(
        visible_alias = "delete",
        after_help = "Example: warrenctl parameter clear move --component shovel --vhost shop --yes"
    )]
    Clear(Name),
}

/// A parameter.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// Its name.
    name: String,
    #[command(flatten)]
    of: Of,
}

/// Whose parameter it is: the cluster's, if no component is named.
#[derive(Debug, clap::Args)]
pub struct Of {
    /// Of this component in a virtual host, instead of the whole cluster.
    #[arg(long)]
    component: Option<String>,
    /// The virtual host.
    #[arg(long, default_value = "/", requires = "component")]
    vhost: String,
}

/// Which parameters to list.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Of this component in virtual hosts, instead of the whole cluster.
    #[arg(long)]
    component: Option<String>,
    /// Of all components in this virtual host, or of the component there.
    #[arg(long)]
    vhost: Option<String>,
}

/// A parameter of any kind and its value.
#[derive(Debug, clap::Args)]
pub struct SetOf {
    #[command(flatten)]
    set: Set,
    #[command(flatten)]
    of: Of,
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
        Verb::List(List {
            component: None,
            vhost: None,
        }) => list(context),
        Verb::List(List { component, vhost }) => {
            list_of(context, component.as_deref(), vhost.as_deref())
        }
        Verb::Show(Name { name, of }) => context.object(&context.client.get(&of.path(name), &[])?),
        Verb::Set(SetOf { set: options, of }) => match &of.component {
            None => set(context, options),
            Some(component) => set_of(context, component, &of.vhost, options),
        },
        Verb::Clear(Name { name, of }) => {
            context.confirm(&format!("Take parameter '{name}' away"))?;
            match &of.component {
                None => clear(context, name),
                Some(component) => clear_of(context, component, &of.vhost, name),
            }
        }
    }
}

impl Of {
    fn path(&self, name: &str) -> String {
        match &self.component {
            None => path(name),
            Some(component) => path_of(component, &self.vhost, name),
        }
    }
}

fn path_of(component: &str, vhost: &str, name: &str) -> String {
    format!(
        "/api/parameters/{}/{}/{}",
        segment(component),
        segment(vhost),
        segment(name)
    )
}

/// Lists parameters of virtual hosts: of one component or virtual host, if these are named.
pub fn list_of(
    context: &Context,
    component: Option<&str>,
    vhost: Option<&str>,
) -> Result<(), Failure> {
    let path = match component {
        None => "/api/parameters".to_owned(),
        Some(component) => format!("/api/parameters/{}", segment(component)),
    };
    let mut answer = context.client.get(&path, &[])?;
    if let (Some(vhost), Some(rows)) = (vhost, answer.as_array_mut()) {
        rows.retain(|row| row["vhost"] == vhost);
    }
    context.list(&answer, &path, &["vhost", "component", "name", "value"])
}

/// Sets a parameter of a virtual host.
pub fn set_of(
    context: &Context,
    component: &str,
    vhost: &str,
    Set { name, value }: &Set,
) -> Result<(), Failure> {
    let done = format!("parameter '{name}' of component '{component}' in vhost '{vhost}' is set");
    let body = json!({"vhost": vhost, "component": component, "name": name, "value": value});
    let path = path_of(component, vhost, name);
    context.change(Method::Put, &path, Some(&body), &done)
}

/// Takes a parameter of a virtual host away without asking.
pub fn clear_of(
    context: &Context,
    component: &str,
    vhost: &str,
    name: &str,
) -> Result<(), Failure> {
    let done = format!("parameter '{name}' of component '{component}' in vhost '{vhost}' is gone");
    let path = path_of(component, vhost, name);
    context.change(Method::Delete, &path, None, &done)
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
