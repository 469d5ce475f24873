//! `warrenctl policy` and `warrenctl operator-policy`: arguments for all queues and exchanges whose names match, and what operators say to them.

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::listing::{InVhost, ListOptions};
use super::{Context, arguments};
use crate::client::{Method, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 6] = [
    "vhost",
    "name",
    "pattern",
    "apply-to",
    "definition",
    "priority",
];

/// What can be done with policies.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List policies.
    #[command(after_help = "Example: warrenctl policy list --vhost /")]
    List(ListOptions),
    /// Show a policy.
    #[command(after_help = "Example: warrenctl policy show lost")]
    Show(InVhost),
    /// Make or replace a policy; it applies at once.
    #[command(
        after_help = "Example: warrenctl policy declare lost --pattern '^events' --apply-to exchanges --set alternate-exchange=lost"
    )]
    Declare(Declare),
    /// Take a policy away.
    #[command(after_help = "Example: warrenctl policy delete lost --yes")]
    Delete(InVhost),
}

/// What a policy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ApplyTo {
    /// Queues and exchanges.
    All,
    /// Exchanges.
    Exchanges,
    /// Queues of all types.
    Queues,
    /// Queues of type classic.
    ClassicQueues,
    /// Queues of type quorum.
    QuorumQueues,
    /// Streams.
    Streams,
}

impl ApplyTo {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A policy.
#[derive(Debug, clap::Args)]
pub struct Declare {
    #[command(flatten)]
    policy: InVhost,
    /// Regular expression over names.
    #[arg(long, value_name = "REGEX")]
    pattern: String,
    /// What it applies to.
    #[arg(long, value_enum, default_value_t = ApplyTo::All)]
    apply_to: ApplyTo,
    /// Of several that match the one with the greatest priority applies.
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    priority: i64,
    /// What it sets; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = arguments::pair, required = true)]
    definition: Vec<(String, Value)>,
}

/// Which kind of policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A policy.
    Policy,
    /// An operator policy.
    Operator,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Self::Policy => "policies",
            Self::Operator => "operator-policies",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Operator => "operator policy",
        }
    }
}

/// Runs one verb.
pub fn run(context: &Context, kind: Kind, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List(options) => list(context, kind, options.vhost.as_deref()),
        Verb::Show(policy) => context.object(&context.client.get(&policy.path(kind.path()), &[])?),
        Verb::Declare(options) => {
            let definition = arguments::object(&options.definition);
            let body = json!({
                "pattern": options.pattern,
                "apply-to": options.apply_to.name(),
                "priority": options.priority,
                "definition": definition,
            });
            put(context, kind, &options.policy, &body)
        }
        Verb::Delete(policy) => {
            context.confirm(&format!(
                "Take {} '{}' in vhost '{}' away",
                kind.noun(),
                policy.name,
                policy.vhost
            ))?;
            delete(context, kind, policy)
        }
    }
}

/// Lists policies.
pub fn list(context: &Context, kind: Kind, vhost: Option<&str>) -> Result<(), Failure> {
    let path = match vhost {
        Some(vhost) => format!("/api/{}/{}", kind.path(), segment(vhost)),
        None => format!("/api/{}", kind.path()),
    };
    let answer = context.client.get(&path, &[])?;
    context.list(&answer, &path, &COLUMNS)
}

/// Makes or replaces a policy from its JSON.
pub fn put(context: &Context, kind: Kind, policy: &InVhost, body: &Value) -> Result<(), Failure> {
    let done = format!("{} '{}' applies", kind.noun(), policy.name);
    context.change(Method::Put, &policy.path(kind.path()), Some(body), &done)
}

/// Takes a policy away without asking.
pub fn delete(context: &Context, kind: Kind, policy: &InVhost) -> Result<(), Failure> {
    let what = format!("{} '{}'", kind.noun(), policy.name);
    context.take_away(&policy.path(kind.path()), &what)
}
