//! The cluster and its nodes in RabbitMQ's form, with no field that would have to be made up.

use crate::access::Access;
use crate::error::Error;
use crate::extract::Names;
use crate::{PEERS_DEADLINE, Shared};
use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_node::Node;
use warren_routing::NodeRecord;

/// What there is, as far as the user may see it. Totals of messages are those of the owners that answered; the others are named.
pub(crate) async fn overview(
    State(node): Shared,
    Extension(access): Extension<Access>,
) -> Json<Value> {
    let (counts, silent) = node.queue_counts(None, PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let vhosts: Vec<&str> = table
        .vhosts()
        .filter(|vhost| access.sees(&table, vhost))
        .collect();
    let (mut ready, mut unacked, mut consumers) = (0, 0, 0);
    for (id, count) in &counts {
        if table
            .queue_by_id(*id)
            .is_some_and(|queue| vhosts.contains(&queue.vhost))
        {
            ready += count.ready;
            unacked += count.unacked;
            consumers += u64::from(count.consumers);
        }
    }
    let silent = silent
        .iter()
        .filter_map(|id| table.node(*id))
        .map(|member| member.name.as_str());
    Json(json!({
        "product_name": "Warren",
        "product_version": env!("CARGO_PKG_VERSION"),
        "management_version": env!("CARGO_PKG_VERSION"),
        "rabbitmq_version": node.compatible_version(),
        "cluster_name": node.config().cluster_name,
        "node": node.name(),
        "rates_mode": "none",
        "object_totals": {
            "exchanges": vhosts.iter().map(|vhost| table.exchanges(vhost).count()).sum::<usize>(),
            "queues": vhosts.iter().map(|vhost| table.queues(vhost).count()).sum::<usize>(),
            "consumers": consumers,
        },
        "queue_totals": {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked},
        "silent_nodes": silent.collect::<Vec<_>>(),
        "listeners": table.nodes().filter(|member| member.up).flat_map(listeners).collect::<Vec<_>>(),
    }))
}

fn listeners(member: &NodeRecord) -> impl Iterator<Item = Value> + use<> {
    let listener = |protocol: &str, address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        let port: u16 = port.parse().ok()?;
        Some(
            json!({"node": member.name, "protocol": protocol, "ip_address": host.trim_matches(['[', ']']), "port": port}),
        )
    };
    [
        listener("amqp", &member.amqp),
        listener("http", &member.http),
        listener("clustering", &member.address),
    ]
    .into_iter()
    .flatten()
}

/// The cluster's name.
pub(crate) async fn cluster_name(State(node): Shared) -> Json<Value> {
    Json(json!({"name": node.config().cluster_name}))
}

pub(crate) async fn nodes(
    State(node): Shared,
    Extension(access): Extension<Access>,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let table = node.metadata().table().read();
    Ok(Json(
        table
            .nodes()
            .map(|member| described(member, &node))
            .collect(),
    ))
}

pub(crate) async fn node(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let table = node.metadata().table().read();
    let member = table.nodes().find(|member| member.name == name);
    member
        .map(|member| Json(described(member, &node)))
        .ok_or_else(|| Error::not_found(format!("no node '{name}' in the cluster")))
}

/// A node as the table knows it, and more of the one that answers.
fn described(member: &NodeRecord, answering: &Node) -> Value {
    let mut row = json!({
        "name": member.name,
        "type": "disc",
        "running": member.up,
        "node_id": member.id.to_string(),
        "incarnation": member.incarnation.0,
    });
    if member.id == answering.id() {
        row["mem_alarm"] = json!(answering.low().memory);
        row["disk_free_alarm"] = json!(answering.low().disk);
        row["queued_bytes_limit"] = json!(answering.config().settings.memory_limit_bytes);
        row["connections"] = json!(answering.session_count());
    }
    row
}
