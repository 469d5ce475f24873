//! Where a queue's replicas are, who leads them, and giving the leadership to another one.
//!
//! A durable queue lives in a shard, together with others; it is the shard that has replicas and a leader, so that what is said and done here holds for
//! all queues of the shard. How far each replica is only the leader knows: another node's answer leaves that out.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names};
use crate::{Shared, change, membership};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_model::command::Place;
use warren_model::{Command, NodeId, Outcome, ShardId};
use warren_node::Node;
use warren_routing::Table;

/// The shard of a queue that has replicas.
fn shard_of(table: &Table, vhost: &str, name: &str) -> Result<ShardId, Error> {
    let queue = table
        .queue(vhost, name)
        .ok_or_else(|| Error::not_found(format!("no queue '{name}' in vhost '{vhost}'")))?;
    match queue.place {
        Place::Shard(shard) => Ok(shard),
        Place::Node(..) => Err(Error::bad_request(format!(
            "queue '{name}' in vhost '{vhost}' is not durable or exclusive: it lives in the memory of one node and has no replicas"
        ))),
    }
}

/// What is known of a queue's replicas.
pub(crate) async fn status(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
) -> Result<Json<Value>, Error> {
    let table = node.metadata().table().read();
    access.vhost(&table, &vhost)?;
    let shard = shard_of(&table, &vhost, &name)?;
    let mut answer = json!({"vhost": vhost, "name": name, "shard": shard.0, "asked": node.name()});
    if let (Some(answer), Value::Object(more)) =
        (answer.as_object_mut(), of_shard(&node, &table, shard))
    {
        answer.extend(more);
    }
    Ok(Json(answer))
}

fn of_shard(node: &Node, table: &Table, shard: ShardId) -> Value {
    let ownership = node.ownership(table);
    let number = usize::from(shard.0);
    let leader = ownership.of_shards().nth(number).flatten();
    let preferred = ownership.preferred().nth(number).flatten();
    let named = |id: NodeId| table.node(id).map(|known| known.name.as_str());
    let own = node.shard_status(shard);
    let matched = |id: NodeId| {
        let replicas = own.iter().flat_map(|status| &status.replicas);
        let found = replicas.into_iter().find(|replica| replica.node == id);
        found.and_then(|replica| replica.matched)
    };
    let placed = table.placement(shard).map(|placed| &placed.replicas[..]);
    let replicas = placed.unwrap_or_default().iter().map(|id| {
        let known = table.node(*id);
        let is_up = known.is_some_and(|known| known.up);
        let state = match (leader == Some(*id), is_up) {
            (_, false) => "down",
            (true, true) => "leader",
            (false, true) => "follower",
        };
        json!({
            "node": named(*id),
            "state": state,
            "draining": table.is_draining(*id),
            "last_index": matched(*id),
        })
    });
    json!({
        "leader": leader.and_then(named),
        "preferred_leader": preferred.and_then(named),
        "replicas": replicas.collect::<Vec<_>>(),
        "term": own.as_ref().map(|own| own.term),
        "commit_index": own.as_ref().and_then(|own| own.committed),
        "changing": own.as_ref().map(|own| own.changing),
    })
}

/// Gives the leadership of a queue's shard to one of its replicas. It moves once that replica has caught up, which the status shows.
pub(crate) async fn transfer_leader(
    State(node): Shared,
    Names((vhost, name)): Names<(String, String)>,
    body: Body,
) -> Result<Json<Value>, Error> {
    let to = body.text("node")?;
    let (shard, to) = {
        let table = node.metadata().table().read();
        let shard = shard_of(&table, &vhost, &name)?;
        let replicas = table.placement(shard).map(|placed| &placed.replicas[..]);
        let named = |id: &&NodeId| table.node(**id).is_some_and(|known| known.name == to);
        let id = replicas.unwrap_or_default().iter().find(named);
        let id = *id.ok_or_else(|| {
            Error::bad_request(format!(
                "node '{to}' has no replica of queue '{name}' in vhost '{vhost}'"
            ))
        })?;
        if !table.node(id).is_some_and(|known| known.up) {
            return Err(Error::bad_request(format!("node '{to}' is down")));
        }
        if table.is_draining(id) {
            return Err(Error::bad_request(format!(
                "node '{to}' is drained and takes no leadership: revive it first"
            )));
        }
        (shard, id)
    };
    if let Outcome::Retry = change(&node, Command::MoveShard { shard, to }).await? {
        return Err(Error::unavailable("the node has just gone down"));
    }
    let table = node.metadata().table().read();
    Ok(Json(of_shard(&node, &table, shard)))
}

/// Shards that were given to another node than the ring puts first: to whom, and who would lead them at home, if that one could.
pub(crate) fn given(table: &Table) -> impl Iterator<Item = (ShardId, NodeId, NodeId)> + '_ {
    table.shard_overrides().filter_map(|(shard, to)| {
        let home = *table.placement(shard)?.replicas.first()?;
        let could = table.node(home).is_some_and(|known| known.up) && !table.is_draining(home);
        (home != to && could).then_some((shard, to, home))
    })
}

/// Lets the ring decide again who leads each shard: leaderships that were given to other nodes go home. Answers when that is decided, as RabbitMQ does; each moves when
/// its node has caught up.
pub(crate) async fn rebalance(
    State(node): Shared,
    Extension(access): Extension<Access>,
) -> Result<StatusCode, Error> {
    membership::settle(&node).await;
    let home: Vec<(ShardId, NodeId)> = {
        let table = node.metadata().table().read();
        given(&table)
            .map(|(shard, _, home)| (shard, home))
            .collect()
    };
    tracing::info!(
        user = access.name,
        shards = home.len(),
        "leaderships are rebalanced"
    );
    for (shard, to) in home {
        // One whose node has just gone down stays where it is.
        change(&node, Command::MoveShard { shard, to }).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}
