//! The HTTP API of a node: health, proofs and explanations of the routing table, and RabbitMQ's API for definitions and listings.
//!
//! Flow: [`serve`] accepts connections within bounds and hands requests to [`router`]; `access` asks who is there; a handler reads the node's table or
//! proposes a command and answers JSON. Bodies and errors have RabbitMQ's form (`{"error": …, "reason": …}`), so that its tools can read them.
//! Invariants: nothing but `/api/health`, `/api/auth`, `/api/openapi.json` and the metrics is answered without a login; a definition is read only from a table that shows everything that was answered
//! before (else 503); the table is locked for at most [`CHUNK`] items at a time; every request ends within a deadline; messages are touched only through
//! AMQP sessions of the user who asks.
//! Departs from RabbitMQ: changes of definitions are for administrators alone; counts and rates are asked of the queues' owners when listed. Whichever node
//! is asked answers for the cluster; nodes that do not answer in time are left out.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod amqp;
mod arguments;
mod bindings;
mod bounds;
mod checks;
mod connections;
mod definitions;
mod diff;
mod error;
mod exchanges;
mod exposition;
mod extract;
mod globals;
mod limits;
mod listing;
mod log;
mod membership;
mod messages;
mod metrics;
mod nodes;
mod openapi;
mod overview;
mod parameters;
mod permissions;
mod policies;
mod properties;
mod queues;
mod replicas;
mod router;
mod serve;
mod spans;
mod stats;
mod status;
mod topic_permissions;
mod users;
mod vhosts;

pub use log::LogWriter;
pub use router::router;
pub use serve::{serve, serve_with};

use axum::http::StatusCode;
use error::Error;
use std::sync::Arc;
use std::time::Duration;
use warren_model::{Command, Outcome};
use warren_node::Node;

/// Items that are copied out of the routing table at a time.
const CHUNK: usize = 512;
/// How long other nodes may take to answer.
const PEERS_DEADLINE: Duration = Duration::from_secs(2);
/// How long a change may take.
const CHANGE_DEADLINE: Duration = Duration::from_secs(5);
/// RabbitMQ's limit of names.
const NAME_BYTES_MAX: usize = 255;

/// What handlers share.
type Shared = axum::extract::State<Arc<Node>>;

/// Makes a change for whoever asks in this request; a refusal is an error.
async fn change(node: &Node, command: Command) -> Result<Outcome, Error> {
    let proposed = node.propose_for(&access::who, command, CHANGE_DEADLINE);
    match proposed.await {
        Ok(proposed) => match proposed.outcome {
            Outcome::Refused(refusal) => Err(refusal.into()),
            outcome @ (Outcome::Done | Outcome::Queue { .. } | Outcome::Retry) => Ok(outcome),
        },
        Err(error) => Err(Error::unavailable(error.to_string())),
    }
}

/// Changes exchanges, queues or bindings for a user: what its permissions allow, as over AMQP.
async fn change_for(
    node: &Node,
    access: &access::Access,
    command: Command,
) -> Result<Outcome, Error> {
    node.check_change(&access.name, &command)?;
    change(node, command).await
}

/// What a put answers, by whether what it puts was there.
fn put_status(known: bool) -> StatusCode {
    if known {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::CREATED
    }
}

/// Refuses names that AMQP cannot carry.
fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Error::bad_request(format!(
        "the {what} has {} bytes; at most {NAME_BYTES_MAX} are possible",
        name.len()
    )))
}

/// The name of an exchange in a path or parameter: `amq.default` stands for the default exchange, whose name is empty.
fn exchange_name(given: &str) -> &str {
    if given == "amq.default" { "" } else { given }
}
