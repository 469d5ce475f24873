//! Topic permissions of users: which routing keys they may use with topic exchanges.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::permissions::check_ends;
use crate::{Shared, change, check_name, exchange_name, listing, put_status};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_model::Command;
use warren_model::command::TopicPermission;
use warren_node::Node;

pub(crate) fn described(permission: &TopicPermission) -> Value {
    let TopicPermission {
        user,
        vhost,
        exchange,
        write,
        read,
    } = permission;
    json!({"user": user, "vhost": vhost, "exchange": exchange, "write": write, "read": read})
}

/// The topic permission that a body describes.
pub(crate) fn read(user: String, vhost: String, body: &Body) -> Result<TopicPermission, Error> {
    let exchange = exchange_name(body.text("exchange")?);
    check_name("name of the exchange", exchange)?;
    Ok(TopicPermission {
        user,
        vhost,
        exchange: exchange.to_owned(),
        write: pattern(body, "write")?,
        read: pattern(body, "read")?,
    })
}

/// A regular expression once `{username}` and `{vhost}` stand for names. An empty one matches nothing but the empty key.
fn pattern(body: &Body, key: &str) -> Result<String, Error> {
    let text = body.text(key)?;
    let expanded = text.replace("{username}", "u").replace("{vhost}", "v");
    match regex::Regex::new(&expanded) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(Error::bad_request(format!(
            "{key} is no regular expression: {error}"
        ))),
    }
}

fn listed(
    node: &Node,
    access: &Access,
    parameters: &Parameters,
    vhost: Option<&str>,
    user: Option<&str>,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    listing::of_table(node, parameters, |table| {
        check_ends(table, vhost, user)?;
        let chosen = table.topic_permissions().filter(|permission| {
            vhost.is_none_or(|vhost| permission.vhost == vhost)
                && user.is_none_or(|user| permission.user == user)
        });
        Ok(chosen.map(described).collect())
    })
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, &parameters, None, None)
}

pub(crate) async fn of_user(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(user): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, &parameters, None, Some(&user))
}

pub(crate) async fn of_vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, &parameters, Some(&vhost), None)
}

/// Those of a user in a virtual host, of all exchanges.
pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, user)): Names<(String, String)>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, &parameters, Some(&vhost), Some(&user))
}

/// Sets what a user may do with one exchange, which the body names.
pub(crate) async fn put(
    State(node): Shared,
    Names((vhost, user)): Names<(String, String)>,
    body: Body,
) -> Result<StatusCode, Error> {
    let permission = read(user, vhost, &body)?;
    let known = {
        let TopicPermission {
            user,
            vhost,
            exchange,
            ..
        } = &permission;
        let table = node.metadata().table().read();
        check_ends(&table, Some(vhost), Some(user))?;
        table.topic_permission(user, vhost, exchange).is_some()
    };
    change(&node, Command::SetTopicPermission(permission)).await?;
    Ok(put_status(known))
}

/// Takes those of a user in a virtual host away: of all exchanges, or of the one that the parameter `exchange` names.
pub(crate) async fn delete(
    State(node): Shared,
    Names((vhost, user)): Names<(String, String)>,
    parameters: Parameters,
) -> Result<StatusCode, Error> {
    check_ends(&node.metadata().table().read(), Some(&vhost), Some(&user))?;
    let exchange = parameters
        .get("exchange")
        .map(|e| exchange_name(e).to_owned());
    let clear = Command::ClearTopicPermissions {
        user,
        vhost,
        exchange,
    };
    change(&node, clear).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes those of a user in a virtual host away that are about one exchange.
pub(crate) async fn delete_one(
    State(node): Shared,
    Names((vhost, user, exchange)): Names<(String, String, String)>,
) -> Result<StatusCode, Error> {
    let exchange = exchange_name(&exchange).to_owned();
    {
        let table = node.metadata().table().read();
        check_ends(&table, Some(&vhost), Some(&user))?;
        if table.topic_permission(&user, &vhost, &exchange).is_none() {
            return Err(Error::not_found(format!(
                "user '{user}' has no topic permission for exchange '{exchange}' in vhost '{vhost}'"
            )));
        }
    }
    let clear = Command::ClearTopicPermissions {
        user,
        vhost,
        exchange: Some(exchange),
    };
    change(&node, clear).await?;
    Ok(StatusCode::NO_CONTENT)
}
