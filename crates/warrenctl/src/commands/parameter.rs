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
        Verb::Show(Name { name, of }) => {
            context.object(&context.client.get(&of.owner().path(name), &[])?)
        }
        Verb::Set(SetOf { set: options, of }) => set(context, of.owner(), options),
        Verb::Clear(Name { name, of }) => {
            context.confirm(&format!("Take parameter '{name}' away"))?;
            clear(context, of.owner(), name)
        }
    }
}

/// Whose parameter it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    /// The cluster's: a global parameter.
    Cluster,
    /// A component's in a virtual host.
    Component(&'a str, &'a str),
}

impl Of {
    fn owner(&self) -> Owner<'_> {
        match &self.component {
            None => Owner::Cluster,
            Some(component) => Owner::Component(component, &self.vhost),
        }
    }
}

impl Owner<'_> {
    fn path(self, name: &str) -> String {
        match self {
            Self::Cluster => format!("/api/global-parameters/{}", segment(name)),
            Self::Component(component, vhost) => format!(
                "/api/parameters/{}/{}/{}",
                segment(component),
                segment(vhost),
                segment(name)
            ),
        }
    }

    fn called(self, name: &str) -> String {
        match self {
            Self::Cluster => format!("global parameter '{name}'"),
            Self::Component(component, vhost) => {
                format!("parameter '{name}' of component '{component}' in vhost '{vhost}'")
            }
        }
    }
}

/// Sets a parameter.
pub fn set(context: &Context, of: Owner<'_>, Set { name, value }: &Set) -> Result<(), Failure> {
    let done = format!("{} is set", of.called(name));
    let body = json!({"value": value});
    context.change(Method::Put, &of.path(name), Some(&body), &done)
}

/// Takes a parameter away without asking.
pub fn clear(context: &Context, of: Owner<'_>, name: &str) -> Result<(), Failure> {
    context.take_away(&of.path(name), &of.called(name))
}

/// Lists global parameters.
pub fn list(context: &Context) -> Result<(), Failure> {
    let path = "/api/global-parameters";
    context.list(&context.client.get(path, &[])?, path, &["name", "value"])
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
