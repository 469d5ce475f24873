//! Nodes in RabbitMQ's form: what the table knows of each, and what its process says of itself if it answers.
//!
//! What RabbitMQ tells of Erlang, Mnesia and its files has no counterpart here and is left out, rather than made up.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Names, Parameters};
use crate::listing::Listing;
use crate::overview::listener;
use crate::{PEERS_DEADLINE, Shared, stats};
use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_node::{NodeInfo, Observed};
use warren_routing::{NodeRecord, Table};

/// What can be declared.
const EXCHANGE_TYPES: [&str; 5] = ["direct", "fanout", "headers", "topic", "x-consistent-hash"];
/// What clients may log in with, and how.
const AUTH_MECHANISMS: [(&str, &str); 3] = [
    ("PLAIN", "User name and password"),
    ("AMQPLAIN", "User name and password in a field table"),
    ("EXTERNAL", "The client's certificate, over TLS"),
];

pub(crate) fn exchange_types() -> Value {
    json!(EXCHANGE_TYPES.map(|name| json!({"name": name, "enabled": true})))
}

fn auth_mechanisms() -> Value {
    json!(
        AUTH_MECHANISMS
            .map(|(name, what)| json!({"name": name, "description": what, "enabled": true}))
    )
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let listing = Listing::new(&parameters)?;
    let observed = node.processes(PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let mut members: Vec<&NodeRecord> = table.nodes().collect();
    members.sort_by_key(|member| &member.name);
    let rows = members
        .iter()
        .map(|member| described(member, &table, &observed));
    let rows = rows.collect();
    drop(table);
    Ok(Json(listing.of_rows(rows)?))
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let observed = node.processes(PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let member = named(&table, &name)?;
    Ok(Json(described(member, &table, &observed)))
}

/// How much memory a node takes, as far as it is known what for.
pub(crate) async fn memory(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let observed = node.processes(PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let member = named(&table, &name)?;
    let memory = match observed.of(member.id) {
        Some(process) => json!({
            "strategy": "rss",
            "total": {"rss": process.memory_used},
            "queued_messages": process.queued_bytes,
        }),
        None => json!("not_available"),
    };
    Ok(Json(json!({"memory": memory})))
}

pub(crate) fn named<'a>(table: &'a Table, name: &str) -> Result<&'a NodeRecord, Error> {
    let known = table.nodes().find(|member| member.name == name);
    known.ok_or_else(|| Error::not_found(format!("no node '{name}' in the cluster")))
}

/// Where a node's HTTP API is, as RabbitMQ tells it.
pub(crate) fn contexts(member: Option<&NodeRecord>, process: &NodeInfo) -> Vec<Value> {
    let plain = member.map(|member| ("http", member.http.as_str()));
    let more = process.listeners.iter();
    let more = more.map(|(protocol, address)| (protocol.as_str(), address.as_str()));
    let all = plain.into_iter().chain(more);
    let http = all.filter(|(protocol, _)| ["http", "https"].contains(protocol));
    let contexts = http.filter_map(|(protocol, address)| {
        let place = listener("", protocol, address)?;
        Some(json!({
            "description": "HTTP API",
            "path": "/",
            "protocol": protocol,
            "ip": place["ip_address"],
            "port": place["port"].to_string(),
        }))
    });
    contexts.collect()
}

/// A node as the table knows it, and what it says of itself if it answers: one that does not is not running, whatever the table says.
fn described(member: &NodeRecord, table: &Table, observed: &Observed<NodeInfo>) -> Value {
    let process = observed.of(member.id);
    let mut row = json!({
        "name": member.name,
        "type": "disc",
        "running": member.up && process.is_some(),
        "node_id": member.id.to_string(),
        "incarnation": member.incarnation.0,
    });
    if let Some(process) = process
        && let (Some(row), Value::Object(more)) =
            (row.as_object_mut(), of_process(member, table, process))
    {
        row.extend(more);
    }
    row
}

fn of_process(member: &NodeRecord, table: &Table, process: &NodeInfo) -> Value {
    let mut row = json!({
        "uptime": process.uptime_ms,
        "os_pid": process.os_pid.to_string(),
        "processors": process.processors,
        "mem_used": process.memory_used,
        "mem_limit": process.queued_bytes_limit,
        "mem_alarm": process.alarm,
        "disk_free_limit": process.disk_free_limit,
        "disk_free_alarm": process.low_on_disk,
        "fd_used": process.fd_used,
        "fd_total": process.fd_total,
        "sockets_used": process.connections,
        "sockets_total": process.fd_total,
        "proc_used": process.threads,
        "run_queue": process.run_queue,
        "rates_mode": "basic",
        "partitions": [],
        "enabled_plugins": [],
        "exchange_types": exchange_types(),
        "auth_mechanisms": auth_mechanisms(),
        "applications": [{"name": "warren", "description": "Warren", "version": process.version}],
        "contexts": contexts(Some(member), process),
        "cluster_links": links(member, table, process),
        "queued_bytes": process.queued_bytes,
        "queued_bytes_limit": process.queued_bytes_limit,
        "connections": process.connections,
        "serves_clients": process.serves,
        "message_stats": stats::described(&process.stats),
    });
    if let Some(free) = process.disk_free {
        row["disk_free"] = json!(free);
    }
    if let Some(most) = process.threads_total {
        row["proc_total"] = json!(most);
    }
    row
}

/// The links to other nodes, at whose addresses both ends listen.
fn links(member: &NodeRecord, table: &Table, process: &NodeInfo) -> Vec<Value> {
    let end = |of: Option<&NodeRecord>| {
        let place = of.and_then(|of| listener("", "clustering", &of.address));
        place.map_or((Value::Null, Value::Null), |place| {
            (place["ip_address"].clone(), place["port"].clone())
        })
    };
    let (sock_addr, sock_port) = end(Some(member));
    let described = process.links.iter().map(|link| {
        let (peer_addr, peer_port) = end(table.nodes().find(|other| other.name == link.peer));
        json!({
            "name": link.peer,
            "peer_addr": peer_addr,
            "peer_port": peer_port,
            "sock_addr": sock_addr,
            "sock_port": sock_port,
            "recv_bytes": link.received_bytes,
            "send_bytes": link.sent_bytes,
            "stats": {"recv_bytes": link.received_bytes, "send_bytes": link.sent_bytes},
        })
    });
    described.collect()
}
