//! The import: read, tried as a whole, and only then carried out, kind by kind.
//!
//! Flow: [`read`] makes commands of the JSON, [`check`] tries them on a table of its own, [`carry_out`] proposes them, many at a time, in an order in
//! which they can succeed. Whatever is wrong with the definitions is found before anything is changed. What remains is what happens meanwhile: if the
//! cluster becomes unavailable halfway, the answer says so, and the same import, made again, does the rest.
//! Once begun, an import goes on though its client leaves. One at a time runs on a node.

use super::check::check;
use super::read::{self, Definitions};
use crate::access::Access;
use crate::bounds::Bounds;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::{Shared, change, queues};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;
use warren_model::Command;
use warren_node::Node;

/// Proposals under way at a time: they share log entries.
const PROPOSALS: usize = 256;

/// Imports definitions of the whole cluster.
pub(crate) async fn all(
    State(node): Shared,
    Extension(bounds): Extension<Bounds>,
    parameters: Parameters,
    body: Body,
) -> Result<Response, Error> {
    imported(&node, &bounds, None, &parameters, body).await
}

/// Imports definitions into a virtual host.
pub(crate) async fn vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(bounds): Extension<Bounds>,
    Names(vhost): Names<String>,
    parameters: Parameters,
    body: Body,
) -> Result<Response, Error> {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    imported(&node, &bounds, Some(&vhost), &parameters, body).await
}

async fn imported(
    node: &Arc<Node>,
    bounds: &Bounds,
    vhost: Option<&str>,
    parameters: &Parameters,
    body: Body,
) -> Result<Response, Error> {
    let permit = bounds.import()?;
    let ignored: Vec<&str> = parameters
        .get("ignore")
        .unwrap_or_default()
        .split(',')
        .collect();
    let definitions = read::definitions(node, body, vhost, &ignored)?;
    check(node, &definitions).await?;
    if parameters.is_true("dry_run") {
        return Ok(Json(counted(&definitions)).into_response());
    }
    let node = node.clone();
    let task = tokio::spawn(async move {
        let result = carry_out(&node, definitions).await;
        drop(permit);
        result
    });
    match task.await {
        Ok(result) => result.map(|()| StatusCode::NO_CONTENT.into_response()),
        Err(_) => Err(Error::unavailable("the import was stopped: import again")),
    }
}

/// What an import would declare; all of it can be, as things stand.
fn counted(definitions: &Definitions) -> Value {
    json!({
        "vhosts": definitions.vhosts.len(),
        "users": definitions.users.len(),
        "permissions": definitions.permissions.len(),
        "exchanges": definitions.exchanges.len(),
        "queues": definitions.queues.len(),
        "bindings": definitions.bindings.len(),
        "policies": definitions.policies.len(),
        "global_parameters": definitions.globals.len(),
        "topic_permissions": definitions.topic_permissions.len(),
        "parameters": definitions.parameters.iter().filter(|set| !is_nothing(set)).count(),
        "limits": definitions.limits.iter().filter(|limit| !is_nothing(limit)).count(),
    })
}

async fn carry_out(node: &Arc<Node>, definitions: Definitions) -> Result<(), Error> {
    let Definitions {
        vhosts,
        details,
        mut users,
        passwords,
        permissions,
        exchanges,
        queues,
        bindings,
        policies,
        globals,
        topic_permissions,
        limits,
        parameters,
    } = definitions;
    let put_vhost = |name| Command::PutVhost { name };
    propose(node, vhosts.into_iter().map(put_vhost).collect()).await?;
    propose(node, details).await?;
    for (place, password) in passwords {
        if let Some(user) = users.get_mut(place) {
            node.set_password(user, &password).await;
        }
    }
    propose(node, users.into_iter().map(Command::PutUser).collect()).await?;
    let permissions = permissions.into_iter().map(Command::SetPermission);
    propose(node, permissions.collect()).await?;
    let topic_permissions = topic_permissions
        .into_iter()
        .map(Command::SetTopicPermission);
    propose(node, topic_permissions.collect()).await?;
    let exchanges = exchanges.into_iter().map(Command::DeclareExchange);
    propose(node, exchanges.collect()).await?;
    for chunk in queues.chunks(PROPOSALS) {
        let declared = chunk.iter().map(|queue| queues::declare(node, queue));
        all_well(join_all(declared).await)?;
    }
    propose(node, bindings.into_iter().map(Command::Bind).collect()).await?;
    let put_global = |(name, value)| Command::PutGlobalParameter { name, value };
    propose(node, globals.into_iter().map(put_global).collect()).await?;
    propose(node, policies.into_iter().map(Command::PutPolicy).collect()).await?;
    // Last, so that they do not stand in the way of what is imported.
    propose(node, limits).await?;
    propose(node, parameters).await
}

/// Whether a command only takes a limit away.
fn is_nothing(limit: &Command) -> bool {
    matches!(limit, Command::SetVhostLimit { value: None, .. })
}

async fn propose(node: &Node, commands: Vec<Command>) -> Result<(), Error> {
    for chunk in commands.chunks(PROPOSALS) {
        let proposed = chunk.iter().map(|command| change(node, command.clone()));
        all_well(join_all(proposed).await)?;
    }
    Ok(())
}

fn all_well<T>(results: Vec<Result<T, Error>>) -> Result<(), Error> {
    match results.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(error) => Err(error.within("part of the definitions is imported, import again")),
    }
}
