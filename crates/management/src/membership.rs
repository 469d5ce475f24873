//! Nodes that leave, for a while or for good: drain, revive, forget.
//!
//! A drained node stays up and serves its connections, but nothing is placed on it, and the replicas and leaderships that it has go to the other nodes, at
//! the pace at which those take them. What cannot move, because it lives in the node's memory, is counted in the answers: it goes when the node stops.
//! A node is forgotten when it is down, so that it cannot come back by itself in the same moment.

use crate::error::Error;
use crate::extract::{Names, Parameters};
use crate::nodes::named;
use crate::{CHANGE_DEADLINE, PEERS_DEADLINE, Shared, change};
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use warren_model::{Command, NodeId};
use warren_node::Node;
use warren_routing::Table;

/// How often the table is looked at for nodes that have died.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// What of a node is to move, has moved, and cannot move.
pub(crate) struct Holdings {
    /// Shards that are to have a replica on it.
    placed: usize,
    /// Shards that it leads.
    led: usize,
    /// Shards of which it has a replica now, by its own word; none if it did not say.
    held: Option<u64>,
    exclusive_queues: usize,
    memory_queues: usize,
}

impl Holdings {
    fn of(node: &Node, table: &Table, id: NodeId, held: Option<u64>) -> Self {
        let ownership = node.ownership(table);
        let led = ownership.of_shards().filter(|leader| *leader == Some(id));
        let (exclusive_queues, memory_queues) = table.queues_in_memory(id);
        Self {
            placed: table.placed_on(id).count(),
            led: led.count(),
            held,
            exclusive_queues,
            memory_queues,
        }
    }

    fn is_empty(&self) -> bool {
        self.placed == 0 && self.led == 0 && self.held == Some(0)
    }

    /// What the member's entry says of it.
    fn described(&self, draining: bool) -> Value {
        json!({
            "draining": draining,
            "drained": draining && self.is_empty(),
            "shards_placed": self.placed,
            "shards_led": self.led,
            "shards_held": self.held,
            "queues_in_memory": self.memory_queues,
            "exclusive_queues": self.exclusive_queues,
        })
    }
}

/// Adds to a member's entry what of it is to move; `held` are the shards that it says it has replicas of.
pub(crate) fn add(entry: &mut Value, node: &Node, table: &Table, id: NodeId, held: Option<u64>) {
    let holdings = Holdings::of(node, table, id, held).described(table.is_draining(id));
    if let (Some(entry), Value::Object(more)) = (entry.as_object_mut(), holdings) {
        entry.extend(more);
    }
}

/// Empties a node of replicas and leaderships. Answers at once; `GET /api/cluster` shows how far it is.
pub(crate) async fn drain(
    State(node): Shared,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    set_draining(&node, &name, true).await
}

/// Gives a drained node its share again.
pub(crate) async fn revive(
    State(node): Shared,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    set_draining(&node, &name, false).await
}

/// Waits until the table says of nodes that have just died that they are down, as everybody else shows them already.
pub(crate) async fn settle(node: &Arc<Node>) {
    let until = Instant::now() + CHANGE_DEADLINE;
    while Instant::now() < until {
        let observed = node.processes(PEERS_DEADLINE).await;
        let is_settled = {
            let table = node.metadata().table().read();
            table
                .nodes()
                .all(|member| !member.up || observed.has_answered(member.id))
        };
        if is_settled {
            return;
        }
        tokio::time::sleep(LOOK_AFTER).await;
    }
}

async fn set_draining(node: &Arc<Node>, name: &str, draining: bool) -> Result<Json<Value>, Error> {
    if draining {
        settle(node).await;
    }
    let id = named(&node.metadata().table().read(), name)?.id;
    change(node, Command::DrainNode { node: id, draining }).await?;
    let table = node.metadata().table().read();
    let mut answer = json!({"name": name, "node": id.to_string()});
    add(&mut answer, node, &table, id, None);
    if draining {
        let others = table.nodes().filter(|member| !table.is_draining(member.id));
        let mut others: Vec<&str> = others.map(|member| member.name.as_str()).collect();
        others.sort_unstable();
        answer["takes_over"] = json!(others);
        answer["kept"] =
            json!("durable queues, with all that is in them: they move to the other nodes");
        answer["lost_when_it_stops"] = json!(lost(&Holdings::of(node, &table, id, None)));
    }
    Ok(Json(answer))
}

/// What the node takes along when it stops.
fn lost(holdings: &Holdings) -> String {
    format!(
        "{} non-durable and {} exclusive queues, with all that is in them, which live in its memory; new ones are declared on the other nodes, exclusive ones with their connection",
        holdings.memory_queues, holdings.exclusive_queues
    )
}

/// Takes a node that is down out of the cluster for good.
pub(crate) async fn forget(
    State(node): Shared,
    Names(name): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    settle(&node).await;
    let (id, at_risk) = {
        let table = node.metadata().table().read();
        let known = named(&table, &name)?;
        if known.up {
            return Err(Error::bad_request(format!(
                "node '{name}' is up and would join again at once: drain it, wait until it is drained, and stop its process first"
            )));
        }
        (known.id, without_majority(&table, known.id))
    };
    if at_risk > 0 && !parameters.is_true("force") {
        return Err(Error::bad_request(format!(
            "node '{name}' holds replicas of {at_risk} shards that have no majority up without it: what is in them is lost without the node; bring it, or other nodes that are down, back first, or forget it by force (force=true)"
        )));
    }
    change(&node, Command::NodeForgotten { node: id }).await?;
    Ok(Json(
        json!({"name": name, "node": id.to_string(), "forgotten": true, "shards_without_majority": at_risk}),
    ))
}

/// Shards with a replica on the node of which the other replicas that are up are no majority.
fn without_majority(table: &Table, id: NodeId) -> usize {
    let is_up = |node: &&NodeId| **node != id && table.node(**node).is_some_and(|known| known.up);
    let at_risk = |replicas: &[NodeId]| replicas.iter().filter(is_up).count() * 2 <= replicas.len();
    let placed = table.placed_on(id);
    placed.filter(|(_, p)| at_risk(&p.replicas)).count()
}
