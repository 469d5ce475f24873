//! Virtual hosts.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::{Shared, change, check_name, listing, users};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_model::Command;
use warren_model::command::{Permission, VhostDetails};
use warren_routing::{Table, queue_types};

/// The type of queues where no other is the default.
const USUAL_TYPE: &str = "classic";
/// What RabbitMQ's older releases call a default queue type that is not set.
const UNSET: &str = "undefined";

fn described(table: &Table, name: &str) -> Value {
    let said = table.vhost_details(name).cloned().unwrap_or_default();
    let default = said.default_queue_type.as_deref().unwrap_or(USUAL_TYPE);
    json!({
        "name": name,
        "description": said.description,
        "tags": said.tags,
        "default_queue_type": default,
        "metadata": {"description": said.description, "tags": said.tags, "default_queue_type": default},
        "tracing": false,
    })
}

/// The virtual host in an export, with what is said of it, if anything is.
pub(crate) fn exported(table: &Table, name: &str) -> Value {
    let mut row = json!({"name": name});
    let said = table.vhost_details(name).cloned().unwrap_or_default();
    if said == VhostDetails::default() {
        return row;
    }
    let mut metadata = json!({"description": said.description, "tags": said.tags});
    if let Some(kind) = &said.default_queue_type {
        metadata["default_queue_type"] = kind.as_str().into();
    }
    if let (Some(row), Some(said)) = (row.as_object_mut(), metadata.as_object()) {
        row.extend(said.clone());
    }
    row["metadata"] = metadata;
    row
}

/// What a body says of a virtual host of which `before` was said; nothing if it does not speak of it.
pub(crate) fn details(body: &Body, before: VhostDetails) -> Result<Option<VhostDetails>, Error> {
    let keys = ["description", "tags", "default_queue_type"];
    if !keys.iter().any(|key| body.0.contains_key(*key)) {
        return Ok(None);
    }
    let mut said = before;
    if let Some(description) = body.optional_text("description")? {
        said.description = description.to_owned();
    }
    if body.0.get("tags").is_some_and(|tags| !tags.is_null()) {
        said.tags = users::tags(body)?;
    }
    match body.optional_text("default_queue_type")? {
        None => {}
        Some("" | UNSET) => said.default_queue_type = None,
        Some(kind) if queue_types().any(|known| known == kind) => {
            said.default_queue_type = Some(kind.to_owned());
        }
        Some(other) => {
            let known: Vec<&str> = queue_types().collect();
            return Err(Error::bad_request(format!(
                "unsupported default queue type '{other}'; there are {}",
                known.join(" and ")
            )));
        }
    }
    Ok(Some(said))
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listing::of_table(&node, &parameters, |table| {
        let vhosts = access.vhosts(table, None)?;
        Ok(vhosts.iter().map(|name| described(table, name)).collect())
    })
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    let table = node.metadata().table().read();
    access.vhost(&table, &name)?;
    Ok(Json(described(&table, &name)))
}

/// Makes a virtual host, in which whoever makes it may do everything, as in RabbitMQ. Of one that is there, it changes what the body names.
pub(crate) async fn put(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
    body: Body,
) -> Result<StatusCode, Error> {
    check_name("name of the virtual host", &name)?;
    let (known, said) = {
        let table = node.metadata().table().read();
        let before = table.vhost_details(&name).cloned();
        (
            before.is_some(),
            details(&body, before.unwrap_or_default())?,
        )
    };
    change(&node, Command::PutVhost { name: name.clone() }).await?;
    if let Some(details) = said {
        let vhost = name.clone();
        change(&node, Command::SetVhostDetails { vhost, details }).await?;
    }
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
