//! The cluster in RabbitMQ's form, with no field that would have to be made up.

use crate::access::Access;
use crate::error::Error;
use crate::extract::Parameters;
use crate::listing::Listing;
use crate::{PEERS_DEADLINE, Shared, connections, nodes, stats};
use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_node::{MessageStats, add_stats};
use warren_routing::NodeRecord;

/// What there is, as far as the user may see it. Totals of messages are those of the owners that answered; the others are named.
pub(crate) async fn overview(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    let listing = Listing::new(&parameters)?;
    let ((counts, silent), observed, (connections, channels)) = tokio::join!(
        node.queue_counts(None, PEERS_DEADLINE),
        node.processes(PEERS_DEADLINE),
        connections::totals(&node, &access),
    );
    let table = node.metadata().table().read();
    let vhosts: Vec<&str> = table
        .vhosts()
        .filter(|vhost| access.sees(&table, vhost))
        .collect();
    let (mut ready, mut unacked, mut consumers) = (0, 0, 0);
    let mut stats = MessageStats::new();
    for (id, (count, of_queue)) in &counts {
        if table
            .queue_by_id(*id)
            .is_some_and(|queue| vhosts.contains(&queue.vhost))
        {
            ready += count.ready;
            unacked += count.unacked;
            consumers += u64::from(count.consumers);
            if !access.is_monitor() {
                add_stats(&mut stats, &of_queue.messages());
            }
        }
    }
    let mut churn = MessageStats::new();
    let (mut more_listeners, mut contexts) = (Vec::new(), Vec::new());
    for (id, process) in &observed.answers {
        add_stats(&mut churn, &process.churn);
        if access.is_monitor() {
            add_stats(&mut stats, &process.stats);
        }
        let name = table.node(*id).map_or("", |member| member.name.as_str());
        let of_node = nodes::contexts(table.node(*id), process).into_iter();
        contexts.extend(of_node.map(|mut context| {
            context["node"] = json!(name);
            context
        }));
        let of_node = process.listeners.iter();
        more_listeners
            .extend(of_node.filter_map(|(protocol, address)| listener(name, protocol, address)));
    }
    let silent = silent
        .iter()
        .filter_map(|id| table.node(*id))
        .map(|member| member.name.as_str());
    let overview = json!({
        "product_name": "Warren",
        "product_version": env!("CARGO_PKG_VERSION"),
        "management_version": env!("CARGO_PKG_VERSION"),
        "rabbitmq_version": node.compatible_version(),
        "cluster_name": node.config().cluster_name,
        "node": node.name(),
        "rates_mode": "basic",
        "exchange_types": nodes::exchange_types(),
        "contexts": contexts,
        "message_stats": stats::described(&stats),
        "churn_rates": stats::described(&churn),
        "object_totals": {
            "connections": connections,
            "channels": channels,
            "exchanges": vhosts.iter().map(|vhost| table.exchanges(vhost).count()).sum::<usize>(),
            "queues": vhosts.iter().map(|vhost| table.queues(vhost).count()).sum::<usize>(),
            "consumers": consumers,
        },
        "queue_totals": {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked},
        "silent_nodes": silent.collect::<Vec<_>>(),
        "listeners": table.nodes().filter(|member| member.up && observed.has_answered(member.id)).flat_map(listeners).chain(more_listeners).collect::<Vec<_>>(),
    });
    Ok(Json(listing.narrowed(overview)))
}

pub(crate) fn listener(node: &str, protocol: &str, address: &str) -> Option<Value> {
    let (host, port) = address.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    Some(
        json!({"node": node, "protocol": protocol, "ip_address": host.trim_matches(['[', ']']), "port": port}),
    )
}

/// The listeners of a node that the table knows.
pub(crate) fn listeners(member: &NodeRecord) -> impl Iterator<Item = Value> + use<> {
    [
        listener(&member.name, "amqp", &member.amqp),
        listener(&member.name, "http", &member.http),
        listener(&member.name, "clustering", &member.address),
    ]
    .into_iter()
    .flatten()
}

/// The cluster's name.
pub(crate) async fn cluster_name(State(node): Shared) -> Json<Value> {
    Json(json!({"name": node.config().cluster_name}))
}
