//! Virtual hosts.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::listing::Listing;
use crate::{Shared, change, check_name};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_model::Command;
use warren_model::command::Permission;

fn described(name: &str) -> Value {
    json!({"name": name, "description": "", "tags": [], "tracing": false})
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    let listing = Listing::new(&parameters)?;
    let vhosts = access.vhosts(&node.metadata().table().read(), None)?;
    let rows = vhosts.iter().map(|name| described(name)).collect();
    Ok(Json(listing.of_rows(rows)?))
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    access.vhost(&node.metadata().table().read(), &name)?;
    Ok(Json(described(&name)))
}

/// Makes a virtual host, in which whoever makes it may do everything, as in RabbitMQ. What RabbitMQ keeps besides its name (description, tags, default queue type) is accepted and not kept.
pub(crate) async fn put(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
    _: Body,
) -> Result<StatusCode, Error> {
    check_name("name of the virtual host", &name)?;
    let known = node.metadata().table().read().vhost_exists(&name);
    change(&node, Command::PutVhost { name: name.clone() }).await?;
    if known {
        return Ok(StatusCode::NO_CONTENT);
    }
    let all = || ".*".to_owned();
    let permission = Permission {
        user: access.name,
        vhost: name,
        configure: all(),
        write: all(),
        read: all(),
    };
    change(&node, Command::SetPermission(permission)).await?;
    Ok(StatusCode::CREATED)
}

pub(crate) async fn delete(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<StatusCode, Error> {
    access.vhost(&node.metadata().table().read(), &name)?;
    change(&node, Command::DeleteVhost { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}
