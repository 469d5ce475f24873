//! What Warren has beyond RabbitMQ: health, the table's digest, explanations, the ring and the metadata group.

use crate::access::Access;
use crate::error::Error;
use crate::extract::Parameters;
use crate::{PEERS_DEADLINE, Shared, arguments, membership, replicas};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use warren_model::command::Destination;
use warren_model::{NodeId, Refusal, ShardId};
use warren_node::{Node, Ownership};
use warren_protocol::{OwnedTable, Properties, Table as FieldTable, reply_name};
use warren_routing::{BindingExplanation, Publish, RouteError, Step, Table, Via};

/// Whether this node serves: for load balancers and for those who wait for it. Needs no login.
pub(crate) async fn health(State(node): Shared) -> Response {
    let failure = node.storage_failure();
    if node.metadata().may_route() && !node.is_stopping() && failure.is_none() {
        return Json(json!({"status": "ok"})).into_response();
    }
    let reason = match failure {
        Some(failure) => format!("{failure}; the node starts again when there is room"),
        None => why_not(&node).to_owned(),
    };
    let body = json!({"status": "unavailable", "reason": reason});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

pub(crate) fn why_not(node: &Node) -> &'static str {
    let status = node.metadata().status();
    if node.is_stopping() {
        "this node is stopping"
    } else if status.cluster.is_none() {
        "this node has not founded or joined a cluster yet"
    } else if status.leader.is_none() {
        "no leader of the metadata group is known: a majority of the nodes cannot be reached"
    } else if node.metadata().is_marked_down() {
        "the cluster has marked this node down; it is coming back under a new incarnation"
    } else {
        "this node has no lease: it is catching up with the cluster, or cut off"
    }
}

/// The table's digest with the index that it belongs to: equal indices must have equal digests.
pub(crate) async fn digest(State(node): Shared) -> Json<Value> {
    let table = node.metadata().table().read();
    Json(
        json!({"node": node.name(), "applied_index": table.index(), "digest": hex(&table.digest()), "ring_epoch": table.epoch()}),
    )
}

/// The ring's members, where each shard's replicas are, who leads it and who should, as this node has heard. A member is up if the table says so and it answers.
pub(crate) async fn ring(
    State(node): Shared,
    Extension(access): Extension<Access>,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let observed = node.processes(PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let ownership = node.ownership(&table);
    let mut owned: BTreeMap<NodeId, u32> = BTreeMap::new();
    for owner in ownership.of_shards().flatten() {
        *owned.entry(owner).or_default() += 1;
    }
    let members = table.nodes().map(|member| {
        json!({
            "node": member.id.to_string(),
            "name": member.name,
            "address": member.address,
            "up": member.up && observed.has_answered(member.id),
            "incarnation": member.incarnation.0,
            "shards_owned": owned.get(&member.id).copied().unwrap_or(0),
        })
    });
    let name = |id: NodeId| table.node(id).map(|node| node.name.as_str());
    let owners = ownership.of_shards().map(|owner| owner.and_then(name));
    let shards = ownership
        .of_shards()
        .zip(ownership.preferred())
        .zip((0..).map(ShardId))
        .map(|((leader, preferred), shard)| {
            let placed = table.placement(shard);
            let replicas = placed.map(|p| p.replicas.iter().map(|id| name(*id)));
            json!({
                "shard": shard.0,
                "leader": leader.and_then(name),
                "preferred_leader": preferred.and_then(name),
                "replicas": replicas.map(|names| names.collect::<Vec<_>>()),
            })
        });
    let given = replicas::given(&table).map(|(shard, from, to)| {
        json!({
            "shard": shard.0,
            "what": "leadership",
            "from": name(from),
            "to": name(to),
        })
    });
    Ok(Json(json!({
        "epoch": ownership.epoch(),
        "shards": ownership.shards(),
        "members": members.collect::<Vec<_>>(),
        "owners": owners.collect::<Vec<_>>(),
        "placements": shards.collect::<Vec<_>>(),
        "moves": moves(&table, &ownership),
        "given": given.collect::<Vec<_>>(),
    })))
}

/// The moves that are to come.
pub(crate) async fn plan(
    State(node): Shared,
    Extension(access): Extension<Access>,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let table = node.metadata().table().read();
    let ownership = node.ownership(&table);
    Ok(Json(
        json!({"epoch": ownership.epoch(), "moves": moves(&table, &ownership)}),
    ))
}

/// Leadership that is to go home, which it does when its node has caught up.
fn moves(table: &Table, ownership: &Ownership) -> Vec<Value> {
    let name = |id: NodeId| table.node(id).map(|node| node.name.as_str());
    let all = ownership
        .of_shards()
        .zip(ownership.preferred())
        .zip(0u16..)
        .filter(|((leader, preferred), _)| preferred.is_some() && leader != preferred)
        .map(|((leader, preferred), shard)| {
            json!({
                "shard": shard,
                "what": "leadership",
                "from": leader.and_then(name),
                "to": preferred.and_then(name),
            })
        });
    all.collect()
}

/// The metadata group as this node sees it. A member is up if the table says so and it answers.
pub(crate) async fn cluster(
    State(node): Shared,
    Extension(access): Extension<Access>,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let observed = node.processes(PEERS_DEADLINE).await;
    let status = node.metadata().status();
    let table = node.metadata().table().read();
    let members = status.members.iter().map(|member| {
        let known = table.node(member.node);
        let mut entry = json!({
            "name": member.name,
            "node": member.node.to_string(),
            "address": known.map(|known| &known.address),
            "amqp": known.map(|known| &known.amqp),
            "http": known.map(|known| &known.http),
            "up": member.up && observed.has_answered(member.node),
            "linked": member.linked,
            "voter": member.voter,
            "level": member.knows.map(|level| level.0),
            "incarnation": known.map(|known| known.incarnation.0),
            "last_seen_ms": member.last_seen.map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)),
        });
        let process = observed.of(member.node);
        let held = process.and_then(|process| process.shards_held);
        membership::add(&mut entry, &node, &table, member.node, held);
        entry
    });
    let leader = status
        .leader
        .and_then(|leader| status.members.iter().find(|member| member.node == leader));
    Ok(Json(json!({
        "cluster": status.cluster.map(|cluster| format!("{cluster:032x}")),
        "node": status.name,
        "leader": leader.map(|leader| &leader.name),
        "term": status.term,
        "applied_index": status.applied_index,
        "committed_index": status.committed_index,
        "level": status.level.0,
        "lease_held": status.lease_held,
        "members": members.collect::<Vec<_>>(),
    })))
}

/// Where a message would go, and why.
pub(crate) async fn explain(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    let text = |name| parameters.get(name).unwrap_or_default();
    let (vhost, exchange, key) = (
        parameters.get("vhost").unwrap_or("/"),
        crate::exchange_name(text("exchange")),
        parameters.get("routing_key").unwrap_or_else(|| text("key")),
    );
    crate::check_name("routing key", key)?;
    let mut headers = OwnedTable::new();
    for header in parameters.all("header") {
        let (name, value) = header
            .split_once('=')
            .ok_or_else(|| Error::bad_request(format!("header '{header}' is not NAME=VALUE")))?;
        crate::check_name("name of a header", name)?;
        headers.put(name, arguments::from_text(value));
    }
    let headers = headers.to_bytes();
    let mut properties = Vec::new();
    if let Ok(headers) = FieldTable::parse(&headers)
        && !headers.is_empty()
    {
        Properties {
            headers: Some(headers),
            ..Properties::default()
        }
        .encode(&mut properties);
    }
    let keys = [key.as_bytes()];
    let user = parameters.get("user");
    if let Some(user) = user {
        access.own_or_administrator(user)?;
    }
    let table = node.metadata().table().read();
    access.vhost(&table, vhost)?;
    if let Some(user) = user.filter(|user| table.user(user).is_none()) {
        return Err(Error::not_found(format!("no user '{user}'")));
    }
    let explanation = table.explain(&Publish {
        vhost,
        exchange: exchange.as_bytes(),
        routing_keys: &keys,
        properties: &properties,
    });
    let ownership = node.ownership(&table);
    let queues = explanation.queues.iter().map(|(target, name)| {
        let owner = ownership
            .of_place(target.place)
            .and_then(|owner| table.node(owner));
        let mut row = json!({"name": name, "node": owner.map(|owner| &owner.name)});
        if let Some(user) = user {
            row["left_out"] = json!(node.leaves_out(&table, user, vhost, name));
        }
        row
    });
    let queues: Vec<Value> = queues.collect();
    let refused =
        user.map(|user| node.check_publish(&table, user, vhost, exchange, key.as_bytes()));
    let refusal = explanation.error.as_ref().map(RouteError::refusal);
    let error = refusal
        .or_else(|| refused?.err())
        .map(|refusal| error(&refusal));
    let (applied_index, ring_epoch) = (table.index(), ownership.epoch());
    drop(table);
    Ok(Json(json!({
        "node": node.name(),
        "applied_index": applied_index,
        "ring_epoch": ring_epoch,
        "user": user,
        "queue_write_checks": node.settings().queue_write_checks,
        "vhost": vhost,
        "exchange": exchange,
        "routing_key": key,
        "headers": arguments::to_json(&headers),
        "error": error,
        "queues": queues,
        "steps": explanation.steps.iter().map(step).collect::<Vec<_>>(),
    })))
}

fn error(refusal: &Refusal) -> String {
    format!("{} - {}", reply_name(refusal.code), refusal.text)
}

fn step(step: &Step) -> Value {
    let via = match &step.via {
        Via::Publish => json!("publish"),
        Via::Binding { from } => json!({"binding_from": from}),
        Via::Alternate { of } => json!({"alternate_of": of}),
    };
    json!({
        "exchange": step.exchange,
        "type": step.kind,
        "via": via,
        "bindings": step.bindings.iter().map(binding).collect::<Vec<_>>(),
        "alternate": step.alternate,
        "alternate_outcome": step.alternate_outcome,
    })
}

fn binding(binding: &BindingExplanation) -> Value {
    let (kind, name) = match &binding.destination {
        Destination::Queue(name) => ("queue", name),
        Destination::Exchange(name) => ("exchange", name),
    };
    json!({
        "matched": binding.matched,
        "why": binding.why,
        "destination_type": kind,
        "destination": name,
        "routing_key": String::from_utf8_lossy(&binding.key),
        "arguments": arguments::to_json(&binding.arguments),
    })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
