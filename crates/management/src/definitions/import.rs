//! The import: read, and carried out as one command, so that all of it comes about on every node at once, or nothing.
//!
//! Flow: [`read`] makes definitions of the JSON, in an order in which they can succeed; queues get their places; one command carries all of them through the
//! metadata log. If one is refused, the table takes back those before it. A dry run tries them on a table of its own ([`check`]) and says what they would do
//! ([`report`]). Once begun, an import goes on though its client leaves. One at a time runs on a node.
//! Bounds: the largest body, and [`IMPORTED_QUEUES_MAX`] queues.

use super::check::check;
use super::read::{self, Definitions};
use super::{refused, report};
use crate::access::Access;
use crate::bounds::Bounds;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::{Shared, access};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::Arc;
use std::time::Duration;
use warren_model::command::IMPORTED_QUEUES_MAX;
use warren_model::{Command, Definition, Outcome};
use warren_node::Node;
use warren_node::audit::Who;

/// How long the cluster may take to commit and apply an import.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often places are chosen anew.
const TRIES: usize = 5;

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
    within_bounds(&definitions)?;
    let dry_run = parameters.is_true("dry_run");
    if dry_run {
        check(node, &definitions).await?;
    }
    let report = if dry_run || parameters.is_true("report") {
        Some(report::of(node, &definitions.all).await)
    } else {
        None
    };
    if !dry_run {
        let (node, who) = (node.clone(), access::who());
        let task = tokio::spawn(async move {
            let result = carry_out(&node, who, definitions).await;
            drop(permit);
            result
        });
        task.await
            .map_err(|_| Error::unavailable("the import was stopped: import again"))??;
    }
    Ok(match report {
        Some(report) => Json(report).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

fn within_bounds(definitions: &Definitions) -> Result<(), Error> {
    let is_queue = |definition: &&Definition| matches!(definition, Definition::Queue(_));
    let queues = definitions.all.iter().filter(is_queue).count();
    if queues <= IMPORTED_QUEUES_MAX {
        return Ok(());
    }
    Err(Error::bad_request(format!(
        "nothing is imported: {queues} queues are given, and an import may have {IMPORTED_QUEUES_MAX}; divide the file, with the bindings beside their queues"
    )))
}

async fn carry_out(node: &Arc<Node>, who: Who, definitions: Definitions) -> Result<(), Error> {
    let Definitions { mut all, passwords } = definitions;
    for (place, password) in passwords {
        if let Some(Definition::User(user)) = all.get_mut(place) {
            node.set_password(user, &password).await;
        }
    }
    for _ in 0..TRIES {
        place_queues(node, &mut all)?;
        let definitions = all.clone();
        let who = || who.clone();
        let proposed = node.propose_for(&who, Command::Import { definitions }, DEADLINE);
        let proposed = proposed.await.map_err(|error| {
            Error::unavailable(if error.changed_nothing() {
                format!("nothing is imported: {error}")
            } else {
                format!("{error}; whether the definitions are imported is not known: import again, which does no harm")
            })
        })?;
        match proposed.outcome {
            Outcome::Refused(refusal) => return Err(refused(&refusal)),
            Outcome::Done | Outcome::Queue { .. } => return Ok(()),
            // A node that was to have queues has gone down, or other imports left too little room in their entry.
            Outcome::Retry => {}
        }
    }
    Err(Error::unavailable(
        "nothing is imported, since nodes come and go; import again",
    ))
}

/// Chooses where queues are to live.
fn place_queues(node: &Node, definitions: &mut [Definition]) -> Result<(), Error> {
    let table = node.metadata().table().read();
    let ownership = node.ownership(&table);
    for definition in definitions {
        let Definition::Queue(queue) = definition else {
            continue;
        };
        let place = ownership.place_of_new(&queue.vhost, &queue.name, queue.durable);
        queue.place = place.ok_or_else(|| {
            Error::unavailable(format!(
                "nothing is imported, since no node is up that could take queue '{}' in vhost '{}'",
                queue.name, queue.vhost
            ))
        })?;
    }
    Ok(())
}
