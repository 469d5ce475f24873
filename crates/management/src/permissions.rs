//! Permissions of users in virtual hosts.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::{Shared, change, listing, put_status};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_model::Command;
use warren_model::command::Permission;
use warren_routing::Table;

pub(crate) fn described(permission: &Permission) -> Value {
    let Permission {
        user,
        vhost,
        configure,
        write,
        read,
    } = permission;
    json!({"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read})
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    listing::of_table(&node, &parameters, |table| {
        Ok(table.permissions().map(described).collect())
    })
}

pub(crate) async fn of_user(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(user): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    listing::of_table(&node, &parameters, |table| {
        check_ends(table, None, Some(&user))?;
        let of_user = |permission: &&Permission| permission.user == user;
        Ok(table.permissions().filter(of_user).map(described).collect())
    })
}

pub(crate) async fn of_vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    listing::of_table(&node, &parameters, |table| {
        check_ends(table, Some(&vhost), None)?;
        let of_vhost = |permission: &&Permission| permission.vhost == vhost;
        Ok(table
            .permissions()
            .filter(of_vhost)
            .map(described)
            .collect())
    })
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, user)): Names<(String, String)>,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    let table = node.metadata().table().read();
    check_ends(&table, Some(&vhost), Some(&user))?;
    table
        .permission(&user, &vhost)
        .map(|permission| Json(described(permission)))
        .ok_or_else(|| none(&vhost, &user))
}

pub(crate) async fn put(
    State(node): Shared,
    Names((vhost, user)): Names<(String, String)>,
    body: Body,
) -> Result<StatusCode, Error> {
    let permission = read(user, vhost, &body)?;
    let known = {
        let table = node.metadata().table().read();
        check_ends(&table, Some(&permission.vhost), Some(&permission.user))?;
        table
            .permission(&permission.user, &permission.vhost)
            .is_some()
    };
    change(&node, Command::SetPermission(permission)).await?;
    Ok(put_status(known))
}

pub(crate) async fn delete(
    State(node): Shared,
    Names((vhost, user)): Names<(String, String)>,
) -> Result<StatusCode, Error> {
    if node
        .metadata()
        .table()
        .read()
        .permission(&user, &vhost)
        .is_none()
    {
        return Err(none(&vhost, &user));
    }
    change(&node, Command::ClearPermission { user, vhost }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The permission that a body describes.
pub(crate) fn read(user: String, vhost: String, body: &Body) -> Result<Permission, Error> {
    Ok(Permission {
        user,
        vhost,
        configure: pattern(body, "configure")?,
        write: pattern(body, "write")?,
        read: pattern(body, "read")?,
    })
}

fn none(vhost: &str, user: &str) -> Error {
    Error::not_found(format!(
        "user '{user}' has no permissions in vhost '{vhost}'"
    ))
}

/// Refuses a virtual host or a user that does not exist.
pub(crate) fn check_ends(
    table: &Table,
    vhost: Option<&str>,
    user: Option<&str>,
) -> Result<(), Error> {
    if let Some(vhost) = vhost.filter(|vhost| !table.vhost_exists(vhost)) {
        return Err(Error::not_found(format!("vhost '{vhost}' not found")));
    }
    match user.filter(|user| table.user(user).is_none()) {
        Some(user) => Err(Error::not_found(format!("user '{user}' not found"))),
        None => Ok(()),
    }
}

/// A regular expression that must be there and be one. An empty one matches nothing.
fn pattern(body: &Body, key: &str) -> Result<String, Error> {
    let text = body.text(key)?;
    match regex::Regex::new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(Error::bad_request(format!(
            "{key} is no regular expression: {error}"
        ))),
    }
}
