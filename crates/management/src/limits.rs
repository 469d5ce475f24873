//! Limits of virtual hosts and of users.
//!
//! Administrators set them; who sees a virtual host sees its limits, and users' limits are shown to whoever may use the API, as in RabbitMQ. A negative
//! number is kept and sets no bound.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::{Shared, change, listing};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};
use warren_model::Command;
use warren_model::command::{UserLimit, VhostLimit};
use warren_routing::{Limits, Table};

/// What RabbitMQ's exports call limits of virtual hosts among parameters.
pub(crate) const COMPONENT: &str = "vhost-limits";
/// The name of that parameter.
const PARAMETER: &str = "limits";

const OF_VHOSTS: [(&str, VhostLimit); 2] = [
    ("max-connections", VhostLimit::MaxConnections),
    ("max-queues", VhostLimit::MaxQueues),
];
const OF_USERS: [(&str, UserLimit); 2] = [
    ("max-connections", UserLimit::MaxConnections),
    ("max-channels", UserLimit::MaxChannels),
];

fn shown<L: Copy + Ord>(names: &[(&str, L)], limits: &Limits<L>) -> Value {
    let named = names.iter().filter_map(|(name, limit)| {
        let value = limits.get(limit)?;
        Some(((*name).to_owned(), Value::from(*value)))
    });
    Value::Object(named.collect())
}

/// A user's limits in a row; an empty object if it has none.
pub(crate) fn of_user(table: &Table, user: &str) -> Value {
    let limits = table.user_limits(user);
    limits.map_or_else(|| json!({}), |limits| shown(&OF_USERS, limits))
}

/// A virtual host's limits as RabbitMQ exports them, if it has any.
pub(crate) fn as_parameter(table: &Table, vhost: &str) -> Option<Value> {
    let limits = table.vhost_limits(vhost)?;
    Some(json!({
        "vhost": vhost,
        "component": COMPONENT,
        "name": PARAMETER,
        "value": shown(&OF_VHOSTS, limits),
    }))
}

fn known<L: Copy>(names: &[(&str, L)], name: &str) -> Result<L, Error> {
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, limit)| *limit).ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        Error::bad_request(format!(
            "'{name}' is not recognised as a limit; there are {}",
            all.join(" and ")
        ))
    })
}

fn whole(name: &str, value: &Value) -> Result<i64, Error> {
    value
        .as_i64()
        .ok_or_else(|| Error::bad_request(format!("{name} must be a whole number, not {value}")))
}

/// The object that limits are; PHP makes a list of an empty one, and RabbitMQ does so, too.
fn object(value: &Value) -> Result<Map<String, Value>, Error> {
    match value {
        Value::Object(fields) => Ok(fields.clone()),
        Value::Null => Ok(Map::new()),
        Value::Array(items) if items.is_empty() => Ok(Map::new()),
        Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(
            Error::bad_request(format!("limits must be an object, not {value}")),
        ),
    }
}

/// Sets what a virtual host's row or parameter names.
pub(crate) fn read_vhost(vhost: &str, value: &Value) -> Result<Vec<Command>, Error> {
    let set = |(name, value): (&String, &Value)| {
        Ok(Command::SetVhostLimit {
            vhost: vhost.to_owned(),
            limit: known(&OF_VHOSTS, name)?,
            value: Some(whole(name, value)?),
        })
    };
    object(value)?.iter().map(set).collect()
}

/// Sets what a parameter names, and takes away what it does not.
pub(crate) fn read_parameter(vhost: &str, value: &Value) -> Result<Vec<Command>, Error> {
    let mut all = read_vhost(vhost, value)?;
    let named = object(value)?;
    let others = OF_VHOSTS
        .iter()
        .filter(|(name, _)| !named.contains_key(*name));
    all.extend(others.map(|(_, limit)| Command::SetVhostLimit {
        vhost: vhost.to_owned(),
        limit: *limit,
        value: None,
    }));
    Ok(all)
}

/// Sets what a user's row names.
pub(crate) fn read_user(user: &str, value: &Value) -> Result<Vec<Command>, Error> {
    let set = |(name, value): (&String, &Value)| {
        Ok(Command::SetUserLimit {
            user: user.to_owned(),
            limit: known(&OF_USERS, name)?,
            value: Some(whole(name, value)?),
        })
    };
    object(value)?.iter().map(set).collect()
}

fn value(name: &str, body: &Body) -> Result<i64, Error> {
    match body.0.get("value") {
        Some(value) => whole(name, value),
        None => Err(Error::bad_request("key_missing: value")),
    }
}

pub(crate) async fn of_vhosts(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listing::of_table(&node, &parameters, |table| {
        let all = table
            .all_vhost_limits()
            .filter(|(vhost, _)| access.sees(table, vhost));
        let row = |(vhost, limits)| json!({"vhost": vhost, "value": shown(&OF_VHOSTS, limits)});
        Ok(all.map(row).collect())
    })
}

pub(crate) async fn of_vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listing::of_table(&node, &parameters, |table| {
        access.vhost(table, &vhost)?;
        let limits = table.vhost_limits(&vhost);
        let row = |limits| json!({"vhost": vhost, "value": shown(&OF_VHOSTS, limits)});
        Ok(limits.into_iter().map(row).collect())
    })
}

pub(crate) async fn of_users(
    State(node): Shared,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listing::of_table(&node, &parameters, |table| {
        let row = |(user, limits)| json!({"user": user, "value": shown(&OF_USERS, limits)});
        Ok(table.all_user_limits().map(row).collect())
    })
}

pub(crate) async fn of_one_user(
    State(node): Shared,
    Names(user): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listing::of_table(&node, &parameters, |table| {
        if table.user(&user).is_none() {
            return Err(no_user(&user));
        }
        let limits = table.user_limits(&user);
        let row = |limits| json!({"user": user, "value": shown(&OF_USERS, limits)});
        Ok(limits.into_iter().map(row).collect())
    })
}

pub(crate) async fn put_vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
    body: Body,
) -> Result<StatusCode, Error> {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    let set = Command::SetVhostLimit {
        vhost,
        limit: known(&OF_VHOSTS, &name)?,
        value: Some(value(&name, &body)?),
    };
    change(&node, set).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn put_user(
    State(node): Shared,
    Names((user, name)): Names<(String, String)>,
    body: Body,
) -> Result<StatusCode, Error> {
    let set = Command::SetUserLimit {
        user,
        limit: known(&OF_USERS, &name)?,
        value: Some(value(&name, &body)?),
    };
    change(&node, set).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes a limit away. One that is not set is fine, as in RabbitMQ.
pub(crate) async fn delete_vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
) -> Result<StatusCode, Error> {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    let clear = Command::SetVhostLimit {
        vhost,
        limit: known(&OF_VHOSTS, &name)?,
        value: None,
    };
    change(&node, clear).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The same of a user.
pub(crate) async fn delete_user(
    State(node): Shared,
    Names((user, name)): Names<(String, String)>,
) -> Result<StatusCode, Error> {
    let clear = Command::SetUserLimit {
        user,
        limit: known(&OF_USERS, &name)?,
        value: None,
    };
    change(&node, clear).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn no_user(name: &str) -> Error {
    Error::not_found(format!("user '{name}' not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_says_all_limits_and_a_row_some() {
        let set = |limit, value| Command::SetVhostLimit {
            vhost: "v".into(),
            limit,
            value,
        };
        let given = json!({"max-queues": 5});
        let max_queues = set(VhostLimit::MaxQueues, Some(5));
        assert_eq!(
            read_vhost("v", &given).unwrap(),
            std::slice::from_ref(&max_queues)
        );
        assert_eq!(
            read_parameter("v", &given).unwrap(),
            [max_queues, set(VhostLimit::MaxConnections, None)]
        );
        assert!(read_vhost("v", &json!([])).unwrap().is_empty());
        for bad in [
            json!({"max-queues": "5"}),
            json!({"max-queues": 1.5}),
            json!({"max-channels": 5}),
            json!([1]),
            json!(1),
        ] {
            assert!(read_vhost("v", &bad).is_err(), "{bad}");
        }
        assert!(read_user("u", &json!({"max-queues": 1})).is_err());
    }
}
