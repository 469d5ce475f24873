//! `/metrics` in Prometheus' text form: this node's numbers, under RabbitMQ's names where they mean the same, and under `warren_` where nothing there does.
//!
//! As in RabbitMQ they need no login, and a cluster's numbers are the sum over its nodes: each counts its own clients and the queues that it owns.
//! `/metrics/per-object` tells queues apart. It is off unless the configuration says how many it may show, since each of them is a time series.
//! Cost: one pass over this node's queues and connections for each scrape.

use crate::error::Error;
use crate::exposition::Exposition;
use crate::{CHUNK, Shared};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use warren_model::{QueueId, ShardId};
use warren_node::{
    Counts, Detail, LinkStatus, MessageStats, Node, NodeInfo, QueueStats, ShardStatus,
};

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

/// What comes and goes: ours, RabbitMQ's name without prefix and suffix, and what it is.
const CHURN: [(&str, &str, &str); 7] = [
    (
        "connection_created",
        "connections_opened",
        "Connections opened",
    ),
    (
        "connection_closed",
        "connections_closed",
        "Connections closed",
    ),
    ("channel_created", "channels_opened", "Channels opened"),
    ("channel_closed", "channels_closed", "Channels closed"),
    (
        "queue_declared",
        "queues_declared",
        "Declarations of queues, of new ones and of such as were there",
    ),
    (
        "queue_created",
        "queues_created",
        "Queues created, told by the metadata group's leader of the time",
    ),
    (
        "queue_deleted",
        "queues_deleted",
        "Queues deleted, told by the metadata group's leader of the time",
    ),
];

/// Name, help, and where the numbers of a family of series come from.
type Family<T, N> = (&'static str, &'static str, fn(&T) -> N);

pub(crate) async fn aggregated(State(node): Shared) -> Response {
    let mut out = Exposition::default();
    identity(&mut out, &node);
    clients(&mut out, &node).await;
    queues(&mut out, &node.own_queue_counts().await);
    table(&mut out, &node);
    group(&mut out, &node);
    commits(&mut out, &node);
    shards(&mut out, &node);
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
    let connections = node.own_connections(Detail::Channels).await;
    let live = connections.iter().filter_map(|c| c.live.as_ref());
    let channels: Vec<_> = live.flat_map(|live| &live.channels).collect();
    out.gauge(
        "rabbitmq_connections",
        "Open connections",
        process.connections,
    );
    for (ours, name, help) in CHURN {
        let total = process.churn.get(ours).map_or(0, |rated| rated.total);
        out.counter(&format!("rabbitmq_{name}_total"), help, total);
    }
    out.gauge("rabbitmq_channels", "Open channels", channels.len());
    let consumers: u64 = channels.iter().map(|c| u64::from(c.consumers)).sum();
    let name = "rabbitmq_channel_consumers";
    out.gauge(name, "Consumers of this node's channels", consumers);
    let unacked: u64 = channels.iter().map(|c| c.unacked).sum();
    let name = "rabbitmq_channel_messages_unacked";
    out.gauge(name, "Messages that this node's channels hold", unacked);
    let unconfirmed: u64 = channels.iter().map(|c| c.unconfirmed).sum();
    let name = "rabbitmq_channel_messages_unconfirmed";
    out.gauge(name, "Publishes that wait for their confirm", unconfirmed);
    let name = "rabbitmq_connection_incoming_bytes_total";
    out.counter(name, "Bytes received from clients", process.received_bytes);
    let name = "rabbitmq_connection_outgoing_bytes_total";
    out.counter(name, "Bytes sent to clients", process.sent_bytes);
    messages(out, &process.stats);
    let name = "warren_queue_writes_denied_total";
    let help = "Queues that messages did not go to because their publishers may not write to them";
    out.counter(name, help, node.queue_writes_denied());
    resources(out, node, &process);
}

/// What the node has of memory, disk and descriptors, and whether it has enough.
fn resources(out: &mut Exposition, node: &Node, process: &NodeInfo) {
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
    let name = "rabbitmq_process_open_tcp_sockets";
    out.gauge(name, "Open sockets of clients", process.connections);
    let name = "rabbitmq_process_max_tcp_sockets";
    out.gauge(name, "Open sockets limit", process.fd_total);
    let name = "rabbitmq_resident_memory_limit_bytes";
    let help = "Bytes of memory that messages may take before publishers are blocked";
    out.gauge(name, help, process.queued_bytes_limit);
    if let Some(free) = node.config().free_disk.as_ref().and_then(|disk| disk.ask()) {
        let name = "rabbitmq_disk_space_available_bytes";
        out.gauge(name, "Disk space available in bytes", free);
    }
    let name = "rabbitmq_disk_space_available_limit_bytes";
    let help = "Free disk space below which publishers are blocked";
    out.gauge(name, help, node.config().settings.disk_free_limit_bytes);
    let low = node.low();
    let name = "rabbitmq_alarms_memory_used_watermark";
    let help = "1 while messages take too much of this node's memory";
    out.gauge(name, help, u8::from(low.memory));
    let name = "rabbitmq_alarms_free_disk_space_watermark";
    let help = "1 while too little disk space is free on this node";
    out.gauge(name, help, u8::from(low.disk));
    let name = "warren_publishers_blocked";
    let help = "1 while publishers are blocked, for want of something on this node or another one";
    out.gauge(name, help, u8::from(process.alarm));
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

/// How long commits take.
fn commits(out: &mut Exposition, node: &Node) {
    let name = "warren_commit_seconds";
    let help = "From the proposal until it is committed and applied: of changes that clients asked of this node (metadata), until every node that may route has made them; of entries of the shards that this node leads (shards)";
    out.family(name, "histogram", help);
    let (metadata, shards) = node.commit_latency();
    out.histogram(name, ("group", "metadata"), &metadata);
    out.histogram(name, ("group", "shards"), &shards);
}

/// The groups of the shards that this node has replicas of, under the names that RabbitMQ has for the groups of quorum queues: sums over them.
fn shards(out: &mut Exposition, node: &Node) {
    let all = {
        let table = node.metadata().table().read();
        node.ownership(&table).shards()
    };
    let of_shard = |shard| node.shard_status(ShardId(shard));
    let groups: Vec<ShardStatus> = (0..all).filter_map(of_shard).collect();
    let families: [Family<ShardStatus, u64>; 5] = [
        ("rabbitmq_raft_term_total", "Terms", |s| s.term),
        (
            "rabbitmq_raft_log_snapshot_index",
            "Last index that a checkpoint covers",
            |s| s.checkpointed.unwrap_or(0),
        ),
        (
            "rabbitmq_raft_log_last_applied_index",
            "Last index applied",
            |s| s.applied.unwrap_or(0),
        ),
        (
            "rabbitmq_raft_log_commit_index",
            "Last index that is known to be committed",
            |s| s.committed.unwrap_or(0),
        ),
        (
            "rabbitmq_raft_log_last_written_index",
            "Last index written",
            |s| s.last_log.unwrap_or(0),
        ),
    ];
    for (name, help, of) in families {
        let kind = if name.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        out.family(name, kind, help);
        out.sample(name, &[], groups.iter().map(of).sum::<u64>());
    }
    let name = "warren_shard_groups";
    out.gauge(name, "Shards that this node has a replica of", groups.len());
    let failed = groups
        .iter()
        .filter(|group| group.failure.is_some())
        .count();
    let name = "warren_shard_groups_stopped";
    out.gauge(name, "Those whose group has stopped on this node", failed);
    let leaderless = groups.iter().filter(|group| group.leader.is_none()).count();
    let name = "warren_shard_groups_without_leader";
    out.gauge(
        name,
        "Those without a leader that this node knows of",
        leaderless,
    );
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
