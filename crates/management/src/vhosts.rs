//! Virtual hosts.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::nodes::named;
use crate::{PEERS_DEADLINE, Shared, change, check_name, listing, stats, users};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use warren_model::Command;
use warren_model::command::{Permission, VhostDetails};
use warren_node::{Node, Observed, VhostTotals};
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

/// What is in the virtual hosts, on nodes that answer.
struct Contents {
    totals: BTreeMap<String, VhostTotals>,
    observed: Observed<()>,
}

impl Contents {
    async fn ask(node: &Arc<Node>) -> Self {
        let (totals, observed) = node.vhost_totals(PEERS_DEADLINE).await;
        Self { totals, observed }
    }

    /// A virtual host with what is in it. Each node that runs has all of them.
    fn described(&self, table: &Table, name: &str) -> Value {
        let mut row = described(table, name);
        let totals = self.totals.get(name).cloned().unwrap_or_default();
        let states = table.nodes().map(|member| {
            let runs = member.up && self.observed.has_answered(member.id);
            let state = if runs { "running" } else { "nodedown" };
            (member.name.clone(), json!(state))
        });
        if let Some(row) = row.as_object_mut() {
            row.insert("cluster_state".into(), Value::Object(states.collect()));
            row.insert("messages".into(), json!(totals.ready + totals.unacked));
            row.insert("messages_ready".into(), json!(totals.ready));
            row.insert("messages_unacknowledged".into(), json!(totals.unacked));
            row.insert("message_stats".into(), stats::described(&totals.stats));
            stats::put(row, "recv_oct", totals.received);
            stats::put(row, "send_oct", totals.sent);
        }
        row
    }
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
    let contents = Contents::ask(&node).await;
    listing::of_table(&node, &parameters, |table| {
        let vhosts = access.vhosts(table, None)?;
        let rows = vhosts.iter().map(|name| contents.described(table, name));
        Ok(rows.collect())
    })
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    access.vhost(&node.metadata().table().read(), &name)?;
    let contents = Contents::ask(&node).await;
    let table = node.metadata().table().read();
    access.vhost(&table, &name)?;
    Ok(Json(contents.described(&table, &name)))
}

/// A virtual host runs wherever its node does, so there is nothing to start where the node does not run.
pub(crate) async fn start(
    State(node): Shared,
    Names((vhost, name)): Names<(String, String)>,
) -> Result<StatusCode, Error> {
    let observed = node.processes(PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    if !table.vhost_exists(&vhost) {
        return Err(Error::not_found(format!("vhost '{vhost}' not found")));
    }
    let member = named(&table, &name)?;
    if observed.has_answered(member.id) {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Error::unavailable(format!(
        "node '{name}' is down: its virtual hosts run as soon as it does"
    )))
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
