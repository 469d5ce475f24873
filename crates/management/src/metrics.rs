//! `/metrics` in Prometheus' text form: this node's numbers, under RabbitMQ's names where they mean the same, and under `warren_` where nothing there does.
//!
//! As in RabbitMQ they need no login, and a cluster's numbers are the sum over its nodes: each counts its own clients and the queues that it owns.
//! `/metrics/per-object` tells queues apart. It is off unless the configuration says how many it may show, since each of them is a time series.
//! Cost: one pass over this node's queues and connections for each scrape.

use crate::error::Error;
use crate::{CHUNK, Shared};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use warren_model::QueueId;
use warren_node::{Counts, Detail, LinkStatus, MessageStats, Node, QueueStats};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Message counters: ours, RabbitMQ's since 3.9 without prefix and suffix, the one that its channels have, and what it is.
const MESSAGES: [(&str, &str, &str, &str); 11] = [
    (
        "publish",
        "messages_received_total",
        "channel_messages_published_total",
        "Messages published",
    ),
    (
        "confirm",
        "messages_confirmed_total",
        "channel_messages_confirmed_total",
        "Publishes confirmed",
    ),
    (
        "return_unroutable",
        "messages_unroutable_returned_total",
        "channel_messages_unroutable_returned_total",
        "Publishes given back because no queue took them",
    ),
    (
        "drop_unroutable",
        "messages_unroutable_dropped_total",
        "channel_messages_unroutable_dropped_total",
        "Publishes dropped because no queue took them",
    ),
    (
        "deliver",
        "messages_delivered_consume_manual_ack_total",
        "channel_messages_delivered_ack_total",
        "Messages delivered to consumers that acknowledge",
    ),
    (
        "deliver_no_ack",
        "messages_delivered_consume_auto_ack_total",
        "channel_messages_delivered_total",
        "Messages delivered to consumers that do not acknowledge",
    ),
    (
        "get",
        "messages_delivered_get_manual_ack_total",
        "channel_get_ack_total",
        "Messages got, to be acknowledged",
    ),
    (
        "get_no_ack",
        "messages_delivered_get_auto_ack_total",
        "channel_get_total",
        "Messages got without acknowledgement",
    ),
    (
        "get_empty",
        "messages_get_empty_total",
        "channel_get_empty_total",
        "Gets that found nothing",
    ),
    (
        "redeliver",
        "messages_redelivered_total",
        "channel_messages_redelivered_total",
        "Messages delivered again",
    ),
    (
        "ack",
        "messages_acknowledged_total",
        "channel_messages_acked_total",
        "Messages acknowledged",
    ),
];

/// Name, help, and where the numbers of a family of series come from.
type Family<T, N> = (&'static str, &'static str, fn(&T) -> N);

/// What is written, family by family.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    /// Begins a family of series.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# TYPE {name} {kind}\n# HELP {name} {help}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let opening = if i == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{opening}{label}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }
}

impl IntoResponse for Exposition {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, CONTENT_TYPE)], self.0).into_response()
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

pub(crate) async fn aggregated(State(node): Shared) -> Response {
    let mut out = Exposition::default();
    identity(&mut out, &node);
    clients(&mut out, &node).await;
    queues(&mut out, &node.own_queue_counts().await);
    table(&mut out, &node);
    group(&mut out, &node);
    links(&mut out, &node);
    out.into_response()
}

fn identity(out: &mut Exposition, node: &Node) {
    let cluster = node.metadata().status().cluster;
    let cluster = cluster.map_or(String::new(), |id| format!("{id:032x}"));
    let labels = [
        ("rabbitmq_node", node.name()),
        ("rabbitmq_cluster", &node.config().cluster_name),
        ("rabbitmq_cluster_permanent_id", &cluster),
    ];
    let name = "rabbitmq_identity_info";
    out.family(name, "untyped", "Node and cluster");
    out.sample(name, &labels, 1);
    let compatible = node.compatible_version();
    let labels = [
        ("rabbitmq_version", compatible.as_str()),
        ("warren_version", env!("CARGO_PKG_VERSION")),
    ];
    let name = "rabbitmq_build_info";
    out.family(
        name,
        "untyped",
        "Version of Warren, and of RabbitMQ whose behaviour it has",
    );
    out.sample(name, &labels, 1);
}

async fn clients(out: &mut Exposition, node: &Arc<Node>) {
    let process = node.process();
    let connections = node.own_connections(Detail::Connections).await;
    let live = connections.iter().filter_map(|c| c.live.as_ref());
    let channels: u64 = live.map(|live| live.channel_count).sum();
    out.gauge(
        "rabbitmq_connections",
        "Open connections",
        process.connections,
    );
    out.counter(
        "rabbitmq_connections_opened_total",
        "Connections opened",
        process.connections_opened,
    );
    out.counter(
        "rabbitmq_connections_closed_total",
        "Connections closed",
        process.connections_closed,
    );
    out.gauge("rabbitmq_channels", "Open channels", channels);
    let name = "rabbitmq_connection_incoming_bytes_total";
    out.counter(name, "Bytes received from clients", process.received_bytes);
    let name = "rabbitmq_connection_outgoing_bytes_total";
    out.counter(name, "Bytes sent to clients", process.sent_bytes);
    messages(out, &process.stats);
    out.gauge(
        "rabbitmq_process_open_fds",
        "Open file descriptors",
        process.fd_used,
    );
    out.gauge(
        "rabbitmq_process_max_fds",
        "Open file descriptors limit",
        process.fd_total,
    );
    out.gauge(
        "rabbitmq_process_resident_memory_bytes",
        "Memory used in bytes",
        process.memory_used,
    );
    let name = "rabbitmq_alarms_memory_used_watermark";
    out.gauge(
        name,
        "1 while publishers are blocked",
        u8::from(process.alarm),
    );
    let name = "warren_queued_bytes";
    out.gauge(
        name,
        "Bytes of messages in this node's queues",
        process.queued_bytes,
    );
    out.gauge(
        "warren_queued_bytes_limit",
        "Bytes of messages at which publishers are blocked",
        process.queued_bytes_limit,
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let started = now.map_or(0.0, |now| now.as_secs_f64()) - process.uptime_ms as f64 / 1e3;
    out.gauge(
        "process_start_time_seconds",
        "Start of the process, in seconds since 1970",
        format_args!("{started:.3}"),
    );
}

fn messages(out: &mut Exposition, stats: &MessageStats) {
    let of = |name: &str| stats.get(name).map_or(0, |rated| rated.total);
    for (ours, global, channel, help) in MESSAGES {
        let name = format!("rabbitmq_global_{global}");
        out.family(&name, "counter", help);
        out.sample(&name, &[("protocol", "amqp091")], of(ours));
        out.counter(&format!("rabbitmq_{channel}"), help, of(ours));
    }
    let delivered = ["deliver", "deliver_no_ack", "get", "get_no_ack"];
    let name = "rabbitmq_global_messages_delivered_total";
    out.family(name, "counter", "Messages delivered or got");
    let sum: u64 = delivered.iter().map(|name| of(name)).sum();
    out.sample(name, &[("protocol", "amqp091")], sum);
}

fn queues(out: &mut Exposition, counted: &BTreeMap<QueueId, (Counts, QueueStats)>) {
    let sum = |of: fn(&Counts) -> u64| counted.values().map(|(c, _)| of(c)).sum::<u64>();
    for (name, help, value) in [
        (
            "rabbitmq_queue_messages_ready",
            "Messages that wait for a consumer",
            sum(|c| c.ready),
        ),
        (
            "rabbitmq_queue_messages_unacked",
            "Messages that consumers hold",
            sum(|c| c.unacked),
        ),
        (
            "rabbitmq_queue_messages",
            "Messages that wait or are held",
            sum(|c| c.ready + c.unacked),
        ),
        (
            "rabbitmq_queue_messages_bytes",
            "Bytes of messages",
            sum(|c| c.bytes),
        ),
        (
            "rabbitmq_queue_consumers",
            "Consumers of this node's queues",
            sum(|c| c.consumers.into()),
        ),
        (
            "rabbitmq_consumers",
            "Consumers of this node's queues",
            sum(|c| c.consumers.into()),
        ),
    ] {
        out.gauge(name, help, value);
    }
}

fn table(out: &mut Exposition, node: &Node) {
    let table = node.metadata().table().read();
    let ownership = node.ownership(&table);
    let owned = ownership
        .of_shards()
        .flatten()
        .filter(|id| *id == node.id());
    let owned = owned.count();
    let exchanges: usize = table.vhosts().map(|v| table.exchanges(v).count()).sum();
    // Each node has the whole table; only one of them says so, or the sum over the cluster would be a multiple.
    let status = node.metadata().status();
    let leads = status.leader == Some(node.id());
    let one = |n: usize| if leads { n } else { 0 };
    out.gauge(
        "rabbitmq_queues",
        "Queues of the cluster, told by the metadata group's leader; 0 on the others",
        one(table.queue_count()),
    );
    out.gauge(
        "warren_queues",
        "Queues in this node's table",
        table.queue_count(),
    );
    out.gauge(
        "warren_exchanges",
        "Exchanges in this node's table",
        exchanges,
    );
    out.gauge(
        "warren_bindings",
        "Bindings in this node's table",
        table.binding_count(),
    );
    out.gauge(
        "warren_vhosts",
        "Virtual hosts in this node's table",
        table.vhosts().count(),
    );
    out.gauge(
        "warren_users",
        "Users in this node's table",
        table.users().count(),
    );
    out.gauge(
        "warren_ring_epoch",
        "Epoch of the placement ring",
        ownership.epoch(),
    );
    let members = table.nodes().filter(|n| n.up).count();
    out.gauge(
        "warren_ring_members_up",
        "Members of the ring that are up",
        members,
    );
    out.gauge("warren_shards", "Shards of the cluster", ownership.shards());
    out.gauge("warren_shards_owned", "Shards that this node owns", owned);
}

fn group(out: &mut Exposition, node: &Node) {
    let status = node.metadata().status();
    out.gauge(
        "warren_raft_term",
        "Term of the metadata group",
        status.term,
    );
    out.gauge(
        "warren_raft_applied_index",
        "Last index of the metadata log that this node has applied",
        status.applied_index,
    );
    if let Some(committed) = status.committed_index {
        out.gauge(
            "warren_raft_committed_index",
            "Last index of the metadata log that this node knows to be committed",
            committed,
        );
    }
    let leads = status.leader == Some(node.id());
    out.gauge(
        "warren_raft_is_leader",
        "1 on the metadata group's leader",
        u8::from(leads),
    );
    let known = u8::from(status.leader.is_some());
    out.gauge("warren_raft_has_leader", "1 while a leader is known", known);
    let voters = status.members.iter().filter(|m| m.voter).count();
    out.gauge("warren_raft_voters", "Voters of the metadata group", voters);
    let held = u8::from(status.lease_held);
    out.gauge("warren_lease_held", "1 while this node may route", held);
}

fn links(out: &mut Exposition, node: &Node) {
    let links = node.links();
    out.gauge("warren_links", "Links to other nodes", links.len());
    let families: [Family<LinkStatus, f64>; 3] = [
        (
            "warren_link_rtt_seconds",
            "Round trip as QUIC estimates it",
            |link| link.rtt.as_secs_f64(),
        ),
        (
            "warren_link_queued_bytes",
            "Bytes that wait to be written to the peer",
            |link| link.queued_bytes as f64,
        ),
        (
            "warren_link_age_seconds",
            "Since when the link is up",
            |link| link.age.as_secs_f64(),
        ),
    ];
    for (name, help, of) in families {
        if !links.is_empty() {
            out.family(name, "gauge", help);
        }
        for link in &links {
            out.sample(name, &[("peer", &link.peer)], of(link));
        }
    }
}

/// This node's queues one by one, as many as the configuration allows.
pub(crate) async fn per_object(State(node): Shared) -> Result<Response, Error> {
    let most = node.config().settings.metrics_objects_max;
    if most == 0 {
        return Err(Error::not_found(
            "metrics of single queues are off: set http.metrics_objects_max to how many may be shown",
        ));
    }
    let counted = node.own_queue_counts().await;
    let mut named: Vec<(String, String, Counts, QueueStats)> = Vec::new();
    let all: Vec<_> = counted.iter().take(most).collect();
    for chunk in all.chunks(CHUNK) {
        let table = node.metadata().table().read();
        named.extend(chunk.iter().filter_map(|(id, (counts, stats))| {
            let queue = table.queue_by_id(**id)?;
            Some((queue.vhost.into(), queue.name.into(), *counts, *stats))
        }));
    }
    let mut out = Exposition::default();
    identity(&mut out, &node);
    let gauges: [Family<Counts, u64>; 5] = [
        (
            "rabbitmq_queue_messages_ready",
            "Messages that wait for a consumer",
            |c| c.ready,
        ),
        (
            "rabbitmq_queue_messages_unacked",
            "Messages that consumers hold",
            |c| c.unacked,
        ),
        (
            "rabbitmq_queue_messages",
            "Messages that wait or are held",
            |c| c.ready + c.unacked,
        ),
        ("rabbitmq_queue_messages_bytes", "Bytes of messages", |c| {
            c.bytes
        }),
        ("rabbitmq_queue_consumers", "Consumers", |c| {
            c.consumers.into()
        }),
    ];
    for (name, help, of) in gauges {
        out.family(name, "gauge", help);
        for (vhost, queue, counts, _) in &named {
            out.sample(name, &[("vhost", vhost), ("queue", queue)], of(counts));
        }
    }
    for (ours, name, help) in [
        (
            "publish",
            "warren_queue_messages_published_total",
            "Messages published to the queue",
        ),
        (
            "deliver_get",
            "warren_queue_messages_delivered_total",
            "Messages delivered or got",
        ),
        (
            "redeliver",
            "warren_queue_messages_redelivered_total",
            "Messages delivered again",
        ),
        (
            "ack",
            "warren_queue_messages_acked_total",
            "Messages acknowledged",
        ),
    ] {
        out.family(name, "counter", help);
        for (vhost, queue, _, stats) in &named {
            let total = stats.messages().get(ours).map_or(0, |rated| rated.total);
            out.sample(name, &[("vhost", vhost), ("queue", queue)], total);
        }
    }
    let left_out = counted.len().saturating_sub(most);
    let name = "warren_metrics_objects_left_out";
    out.gauge(name, "Queues beyond http.metrics_objects_max", left_out);
    Ok(out.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_as_prometheus_reads_them() {
        let mut out = Exposition::default();
        out.gauge("a", "What it is", 1.5);
        out.family("b", "counter", "Other");
        out.sample("b", &[("x", "a\"b\\c\nd"), ("y", "")], 7);
        assert_eq!(
            out.0,
            "# TYPE a gauge\n# HELP a What it is\na 1.5\n# TYPE b counter\n# HELP b Other\nb{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 7\n"
        );
    }
}
