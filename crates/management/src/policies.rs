//! Policies and operator policies.
//!
//! Administrators make both; policymakers make policies in the virtual hosts that they have permissions in. Keys and values are checked here as RabbitMQ
//! checks them, so that a mistake is told at once. Which of them have an effect is the README's to say: a policy may set what an argument may set.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::{Shared, arguments, change, check_name, listing, put_status};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};
use warren_model::Command;
use warren_model::command::{ApplyTo, Policy};
use warren_routing::Effective;

/// What RabbitMQ's exports call operator policies among parameters.
pub(crate) const OPERATOR_COMPONENT: &str = "operator_policy";

/// Which kind of policy a path is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Policy,
    Operator,
}

impl Kind {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Policy => "policies",
            Self::Operator => "operator-policies",
        }
    }

    fn is_operator(self) -> bool {
        self == Self::Operator
    }
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// A whole number from this on.
    From(i64),
    /// A text.
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
}

/// All keys, and whether operators may set them.
const KEYS: [(&str, Takes, bool); 21] = [
    ("alternate-exchange", Takes::Text, false),
    ("message-ttl", Takes::From(0), true),
    ("expires", Takes::From(1), true),
    ("max-length", Takes::From(0), true),
    ("max-length-bytes", Takes::From(0), true),
    ("max-in-memory-length", Takes::From(0), true),
    ("max-in-memory-bytes", Takes::From(0), true),
    ("delivery-limit", Takes::From(-1), true),
    ("target-group-size", Takes::From(1), true),
    ("initial-cluster-size", Takes::From(0), false),
    ("dead-letter-exchange", Takes::Text, false),
    ("dead-letter-routing-key", Takes::Text, false),
    (
        "dead-letter-strategy",
        Takes::OneOf(&["at-most-once", "at-least-once"]),
        false,
    ),
    (
        "overflow",
        Takes::OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"]),
        false,
    ),
    (
        "queue-leader-locator",
        Takes::OneOf(&["client-local", "balanced", "random", "least-leaders"]),
        false,
    ),
    (
        "queue-master-locator",
        Takes::OneOf(&["client-local", "min-masters", "random"]),
        false,
    ),
    ("queue-mode", Takes::OneOf(&["default", "lazy"]), false),
    ("queue-version", Takes::From(1), false),
    ("consumer-timeout", Takes::From(0), false),
    ("max-age", Takes::Text, false),
    ("stream-max-segment-size-bytes", Takes::From(0), false),
];

/// Keys of mirrored queues, which RabbitMQ had up to 3.13, and of federation begin so.
const FOREIGN: [&str; 2] = ["ha-", "federation-upstream"];
/// The keys that have an effect.
const EFFECTIVE: [&str; 1] = ["alternate-exchange"];

/// The keys of a policy that have no effect here.
pub(crate) fn without_effect(policy: &Policy) -> Vec<String> {
    let Value::Object(definition) = arguments::to_json(&policy.definition) else {
        return Vec::new();
    };
    let keys = definition.into_iter().map(|(key, _)| key);
    keys.filter(|key| !EFFECTIVE.contains(&key.as_str()))
        .collect()
}

/// RabbitMQ's names of what policies apply to.
const APPLY_TO: [(&str, ApplyTo); 6] = [
    ("all", ApplyTo::All),
    ("exchanges", ApplyTo::Exchanges),
    ("queues", ApplyTo::Queues),
    ("classic_queues", ApplyTo::ClassicQueues),
    ("quorum_queues", ApplyTo::QuorumQueues),
    ("streams", ApplyTo::Streams),
];

fn apply_to(policy: &Policy) -> &'static str {
    let known = APPLY_TO.iter().find(|(_, value)| *value == policy.apply_to);
    known.map_or("all", |(name, _)| name)
}

pub(crate) fn described(policy: &Policy) -> Value {
    json!({
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": apply_to(policy),
        "definition": arguments::to_json(&policy.definition),
        "priority": policy.priority,
    })
}

/// As RabbitMQ exports operator policies.
pub(crate) fn as_parameter(policy: &Policy) -> Value {
    json!({
        "vhost": policy.vhost,
        "component": OPERATOR_COMPONENT,
        "name": policy.name,
        "value": {
            "pattern": policy.pattern,
            "apply-to": apply_to(policy),
            "definition": arguments::to_json(&policy.definition),
            "priority": policy.priority,
        },
    })
}

/// Says in a row what policies apply.
pub(crate) fn put_effective(row: &mut Value, effective: &Effective<'_>) {
    if effective.policy.is_none() && effective.operator_policy.is_none() {
        return;
    }
    row["policy"] = json!(effective.policy);
    row["operator_policy"] = json!(effective.operator_policy);
    row["effective_policy_definition"] = arguments::to_json(&effective.definition);
}

/// The policy that a body describes.
pub(crate) fn read(kind: Kind, vhost: String, name: String, body: &Body) -> Result<Policy, Error> {
    of_body(kind, vhost, name, body, false)
}

/// The same with keys that only earlier releases of RabbitMQ know, or that belong to its plugins: an export may have them, and they have no effect.
pub(crate) fn read_imported(
    kind: Kind,
    vhost: String,
    name: String,
    body: &Body,
) -> Result<Policy, Error> {
    of_body(kind, vhost, name, body, true)
}

fn of_body(
    kind: Kind,
    vhost: String,
    name: String,
    body: &Body,
    imported: bool,
) -> Result<Policy, Error> {
    let pattern = body.text("pattern")?.to_owned();
    if let Err(error) = regex::Regex::new(&pattern) {
        return Err(Error::bad_request(format!(
            "pattern is no regular expression: {error}"
        )));
    }
    let given = body.optional_text("apply-to")?.unwrap_or("all");
    let known = APPLY_TO.iter().find(|(known, _)| *known == given);
    let (_, apply_to) = known.ok_or_else(|| {
        let names = APPLY_TO.map(|(name, _)| name).join(", ");
        Error::bad_request(format!("apply-to must be one of {names}, not '{given}'"))
    })?;
    let priority = match body.0.get("priority") {
        None | Some(Value::Null) => 0,
        Some(number) => number.as_i64().ok_or_else(|| {
            Error::bad_request(format!("priority must be a whole number, not {number}"))
        })?,
    };
    let definition = match body.0.get("definition") {
        Some(Value::Object(definition)) if !definition.is_empty() => definition,
        None => return Err(Error::bad_request("key_missing: definition")),
        Some(other) => {
            return Err(Error::bad_request(format!(
                "definition must be an object with at least one key, not {other}"
            )));
        }
    };
    check_definition(kind, definition, imported)?;
    Ok(Policy {
        vhost,
        operator: kind.is_operator(),
        name,
        pattern,
        apply_to: *apply_to,
        priority,
        definition: arguments::to_table(definition)?,
    })
}

fn check_definition(
    kind: Kind,
    definition: &Map<String, Value>,
    imported: bool,
) -> Result<(), Error> {
    for (key, value) in definition {
        if imported && FOREIGN.iter().any(|prefix| key.starts_with(prefix)) {
            continue;
        }
        let known = KEYS.iter().find(|(known, ..)| known == key);
        let Some((_, takes, operator)) = known else {
            return Err(Error::bad_request(format!(
                "'{key}' is not recognised in a policy"
            )));
        };
        if kind.is_operator() && !operator {
            return Err(Error::bad_request(format!(
                "'{key}' is not recognised in an operator policy"
            )));
        }
        let (fits, wanted) = match takes {
            Takes::From(least) => (
                value.as_i64().is_some_and(|number| number >= *least),
                format!("a whole number from {least} on"),
            ),
            Takes::Text => (value.is_string(), "a text".to_owned()),
            Takes::OneOf(texts) => (
                value.as_str().is_some_and(|text| texts.contains(&text)),
                format!("one of {}", texts.join(", ")),
            ),
        };
        if !fits {
            return Err(Error::bad_request(format!(
                "{key} must be {wanted}, not {value}"
            )));
        }
    }
    Ok(())
}

pub(crate) async fn list_all(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(kind): Extension<Kind>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, kind, None, &parameters)
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(kind): Extension<Kind>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, kind, Some(&vhost), &parameters)
}

fn listed(
    node: &warren_node::Node,
    access: &Access,
    kind: Kind,
    vhost: Option<&str>,
    parameters: &Parameters,
) -> Result<Json<Value>, Error> {
    listing::of_table(node, parameters, |table| {
        let vhosts = access.vhosts(table, vhost)?;
        let policies = vhosts
            .iter()
            .flat_map(|vhost| table.policies(vhost, kind.is_operator()));
        Ok(policies.map(described).collect())
    })
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(kind): Extension<Kind>,
    Names((vhost, name)): Names<(String, String)>,
) -> Result<Json<Value>, Error> {
    let table = node.metadata().table().read();
    access.vhost(&table, &vhost)?;
    let found = table.policy(&vhost, kind.is_operator(), &name);
    found
        .map(|policy| Json(described(policy)))
        .ok_or_else(|| none(&vhost, &name))
}

/// Refuses who may not make policies of this kind.
fn may_change(access: &Access, kind: Kind) -> Result<(), Error> {
    match kind {
        Kind::Policy => access.policymaker(),
        Kind::Operator => access.administrator(),
    }
}

/// Makes or replaces a policy: 201 if it is new, 204 if not. It applies from now on.
pub(crate) async fn put(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(kind): Extension<Kind>,
    Names((vhost, name)): Names<(String, String)>,
    body: Body,
) -> Result<StatusCode, Error> {
    may_change(&access, kind)?;
    check_name("name of the policy", &name)?;
    let known = {
        let table = node.metadata().table().read();
        access.vhost(&table, &vhost)?;
        table.policy(&vhost, kind.is_operator(), &name).is_some()
    };
    let policy = read(kind, vhost, name, &body)?;
    change(&node, Command::PutPolicy(policy)).await?;
    Ok(put_status(known))
}

pub(crate) async fn delete(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(kind): Extension<Kind>,
    Names((vhost, name)): Names<(String, String)>,
) -> Result<StatusCode, Error> {
    may_change(&access, kind)?;
    {
        let table = node.metadata().table().read();
        access.vhost(&table, &vhost)?;
        if table.policy(&vhost, kind.is_operator(), &name).is_none() {
            return Err(none(&vhost, &name));
        }
    }
    let operator = kind.is_operator();
    let delete = Command::DeletePolicy {
        vhost,
        operator,
        name,
    };
    change(&node, delete).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn none(vhost: &str, name: &str) -> Error {
    Error::not_found(format!("no policy '{name}' in vhost '{vhost}'"))
}
