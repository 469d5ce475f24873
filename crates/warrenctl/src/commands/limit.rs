//! `warrenctl limit`: how many connections, queues and channels virtual hosts and users may have.

use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::Context;
use crate::client::{Method, segment};
use crate::failure::Failure;

/// What can be done with limits.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List the limits of virtual hosts, or those of users.
    #[command(after_help = "Example: warrenctl limit list --users")]
    List(List),
    /// Set a limit; it holds for what comes from then on, and what is there stays.
    #[command(
        visible_alias = "declare",
        after_help = "Example: warrenctl limit set max-queues 100 --vhost shop"
    )]
    Set(Set),
    /// Take a limit away.
    #[command(
        visible_alias = "delete",
        after_help = "Example: warrenctl limit clear max-connections --of-user alice --yes"
    )]
    Clear(Clear),
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Limit {
    /// Client connections, of a virtual host or a user.
    #[value(name = "max-connections")]
    Connections,
    /// Queues of a virtual host.
    #[value(name = "max-queues")]
    Queues,
    /// Channels of a user.
    #[value(name = "max-channels")]
    Channels,
}

/// Whose limits.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Of {
    /// Of this virtual host.
    #[arg(long)]
    vhost: Option<String>,
    /// Of this user.
    #[arg(long, value_name = "NAME")]
    of_user: Option<String>,
}

/// Which limits to list.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub struct List {
    /// Those of users, instead of virtual hosts.
    #[arg(long)]
    users: bool,
    /// Only those of this virtual host.
    #[arg(long)]
    vhost: Option<String>,
    /// Only those of this user.
    #[arg(long, value_name = "NAME")]
    of_user: Option<String>,
}

/// A limit to be set.
#[derive(Debug, clap::Args)]
pub struct Set {
    /// What is limited.
    #[arg(value_enum)]
    limit: Limit,
    /// To how many; a negative number sets no bound.
    #[arg(allow_hyphen_values = true)]
    value: i64,
    #[command(flatten)]
    of: Of,
}

/// A limit to be taken away.
#[derive(Debug, clap::Args)]
pub struct Clear {
    /// What is limited.
    #[arg(value_enum)]
    limit: Limit,
    #[command(flatten)]
    of: Of,
}

/// Whether limits are a virtual host's or a user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Of a virtual host.
    Vhost,
    /// Of a user.
    User,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Self::Vhost => "/api/vhost-limits",
            Self::User => "/api/user-limits",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Vhost => "vhost",
            Self::User => "user",
        }
    }

    fn columns(self) -> [&'static str; 3] {
        match self {
            Self::Vhost => ["vhost", "value.max-connections", "value.max-queues"],
            Self::User => ["user", "value.max-connections", "value.max-channels"],
        }
    }
}

impl Of {
    fn kind_and_name(&self) -> (Kind, &str) {
        match (&self.vhost, &self.of_user) {
            (Some(vhost), _) => (Kind::Vhost, vhost),
            (None, user) => (Kind::User, user.as_deref().unwrap_or_default()),
        }
    }
}

impl Limit {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(List {
            users,
            vhost,
            of_user,
        }) => {
            let kind = if *users || of_user.is_some() {
                Kind::User
            } else {
                Kind::Vhost
            };
            list(context, kind, vhost.as_deref().or(of_user.as_deref()))
        }
        Verb::Set(Set { limit, value, of }) => {
            let (kind, name) = of.kind_and_name();
            put(context, kind, name, &limit.name(), &json!(value))
        }
        Verb::Clear(Clear { limit, of }) => {
            let (kind, name) = of.kind_and_name();
            let limit = limit.name();
            context.confirm(&format!("Take {limit} of {} '{name}' away", kind.noun()))?;
            clear(context, kind, name, &limit)
        }
    }
}

/// Lists limits, of all or of one.
pub fn list(context: &Context, kind: Kind, of: Option<&str>) -> Result<(), Failure> {
    let path = match of {
        Some(name) => format!("{}/{}", kind.path(), segment(name)),
        None => kind.path().to_owned(),
    };
    let answer = context.client.get(&path, &[])?;
    context.list(&answer, &path, &kind.columns())
}

fn path(kind: Kind, name: &str, limit: &str) -> String {
    format!("{}/{}/{}", kind.path(), segment(name), segment(limit))
}

fn put(
    context: &Context,
    kind: Kind,
    name: &str,
    limit: &str,
    value: &Value,
) -> Result<(), Failure> {
    let done = format!("{limit} of {} '{name}' is {value}", kind.noun());
    let body = json!({"value": value});
    context.change(Method::Put, &path(kind, name, limit), Some(&body), &done)
}

/// Takes a limit away without asking.
fn clear(context: &Context, kind: Kind, name: &str, limit: &str) -> Result<(), Failure> {
    let what = format!("{limit} of {} '{name}'", kind.noun());
    context.take_away(&path(kind, name, limit), &what)
}

/// Sets the limits that an object names. Of a virtual host, the others are taken away, as rabbitmqctl does.
pub fn set_all(context: &Context, kind: Kind, name: &str, limits: &Value) -> Result<(), Failure> {
    let Some(limits) = limits.as_object() else {
        let text = "give limits as an object in JSON, for example '{\"max-connections\": 100}'";
        return Err(Failure::Usage(text.to_owned()));
    };
    if kind == Kind::Vhost {
        clear_but(context, name, limits)?;
    }
    for (limit, value) in limits {
        put(context, kind, name, limit, value)?;
    }
    Ok(())
}

/// Takes all limits of a virtual host or a user away, or one of them.
pub fn clear_all(
    context: &Context,
    kind: Kind,
    name: &str,
    only: Option<&str>,
) -> Result<(), Failure> {
    match (only, kind) {
        (Some(limit), _) => clear(context, kind, name, limit),
        (None, Kind::Vhost) => clear_but(context, name, &Map::new()),
        (None, Kind::User) => {
            for limit in [Limit::Connections, Limit::Channels] {
                clear(context, kind, name, &limit.name())?;
            }
            Ok(())
        }
    }
}

fn clear_but(context: &Context, vhost: &str, kept: &Map<String, Value>) -> Result<(), Failure> {
    for limit in [Limit::Connections, Limit::Queues] {
        let limit = limit.name();
        if !kept.contains_key(&limit) {
            clear(context, Kind::Vhost, vhost, &limit)?;
        }
    }
    Ok(())
}
