//! `/metrics` against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::amqp::Amqp;
use common::{ready, ready_with};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use warren_node::Settings;

/// Samples by name and labels; each name must have been introduced, once.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let (mut all, mut known) = (BTreeMap::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(
                ["gauge", "counter", "histogram", "untyped"].contains(&kind),
                "{line}"
            );
            assert!(!known.contains(&name), "{name} is introduced twice");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            known.push(name);
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let family = *known.last().unwrap();
            let part = name.strip_prefix(family);
            assert!(
                part.is_some_and(|part| ["", "_bucket", "_sum", "_count"].contains(&part)),
                "{line}"
            );
            let value = value.parse().unwrap();
            assert!(all.insert(series.to_owned(), value).is_none(), "{line}");
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_its_numbers_to_everybody() {
    let api = ready().await;
    let nobody = api.authorized(None);
    let before = samples(&nobody.text("/metrics").await);
    assert_eq!(before["rabbitmq_connections"], 0.0);
    let _amqp = Amqp::open(&api.node).await;
    assert_eq!(api.put("queues/%2F/q", json!({"durable": true})).await, 201);
    for key in ["q", "q", "nowhere"] {
        let publish = json!({"properties": {}, "routing_key": key, "payload": "x", "payload_encoding": "string"});
        let (status, ..) = api.post("exchanges/%2F/amq.default/publish", publish).await;
        assert_eq!(status, 200);
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let found = loop {
        let found = samples(&nobody.text("/metrics").await);
        // The sessions of the publishes end in their own time, and shards hear of their leaders in theirs.
        let settled = [
            ("rabbitmq_connections", 1.0),
            ("rabbitmq_channels", 1.0),
            ("rabbitmq_channels_closed_total", 3.0),
            ("rabbitmq_queue_messages", 2.0),
            ("warren_shards_owned", 8.0),
            ("warren_shard_groups_without_leader", 0.0),
        ];
        if settled.iter().all(|(name, value)| found[*name] == *value) {
            break found;
        }
        assert!(tokio::time::Instant::now() < deadline, "{found:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    for (name, value) in [
        ("rabbitmq_channels", 1.0),
        ("rabbitmq_connections_opened_total", 4.0),
        ("rabbitmq_connections_closed_total", 3.0),
        ("rabbitmq_channels_opened_total", 4.0),
        ("rabbitmq_queues_declared_total", 1.0),
        ("rabbitmq_queues_created_total", 1.0),
        ("rabbitmq_queues_deleted_total", 0.0),
        ("warren_queue_writes_denied_total", 0.0),
        ("warren_commit_seconds_count{group=\"metadata\"}", 1.0),
        (
            "rabbitmq_global_messages_received_total{protocol=\"amqp091\"}",
            3.0,
        ),
        ("rabbitmq_channel_messages_published_total", 3.0),
        ("rabbitmq_channel_messages_unroutable_returned_total", 1.0),
        ("rabbitmq_queue_messages_ready", 2.0),
        ("rabbitmq_queue_messages", 2.0),
        ("rabbitmq_queues", 1.0),
        ("warren_shards_owned", 8.0),
        ("warren_lease_held", 1.0),
        ("warren_raft_is_leader", 1.0),
        ("rabbitmq_channel_consumers", 0.0),
        ("rabbitmq_channel_messages_unconfirmed", 0.0),
        ("rabbitmq_alarms_memory_used_watermark", 0.0),
        ("rabbitmq_alarms_free_disk_space_watermark", 0.0),
        ("warren_publishers_blocked", 0.0),
        ("warren_shard_groups", 8.0),
        ("warren_shard_groups_without_leader", 0.0),
        ("warren_shard_groups_stopped", 0.0),
    ] {
        assert_eq!(found.get(name), Some(&value), "{name}");
    }
    assert!(found["rabbitmq_connection_incoming_bytes_total"] > 500.0);
    assert!(found["rabbitmq_process_resident_memory_bytes"] > 1e6);
    assert!(found["rabbitmq_process_max_tcp_sockets"] > 100.0);
    // Each group has elected its leader, and written that it did.
    assert!(found["rabbitmq_raft_term_total"] >= 8.0);
    assert!(found["rabbitmq_raft_log_last_written_index"] >= 8.0);
    let identity = found
        .keys()
        .find(|name| name.starts_with("rabbitmq_identity_info{"));
    let identity = identity.unwrap();
    assert!(
        identity.contains("rabbitmq_node=\"node1\"")
            && identity.contains("rabbitmq_cluster=\"test\""),
        "{identity}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn single_queues_are_told_if_that_is_asked_for_and_not_too_many() {
    let api = ready().await;
    let (status, _) = api.raw("/metrics/per-object").await;
    assert_eq!(status, 404, "off unless it is configured");

    let settings = Settings {
        metrics_objects_max: 2,
        ..Settings::default()
    };
    let api = ready_with(settings).await;
    for name in ["a\"b", "c", "d"] {
        let path = format!("queues/%2F/{}", name.replace('"', "%22"));
        assert_eq!(api.put(&path, json!({"durable": true})).await, 201);
        let publish = json!({"properties": {}, "routing_key": name, "payload": "x", "payload_encoding": "string"});
        let (status, ..) = api.post("exchanges/%2F/amq.default/publish", publish).await;
        assert_eq!(status, 200);
    }
    let found = samples(&api.authorized(None).text("/metrics/per-object").await);
    let series = "rabbitmq_queue_messages{vhost=\"/\",queue=\"a\\\"b\"}";
    assert_eq!(found.get(series), Some(&1.0), "{found:?}");
    let queues = found
        .keys()
        .filter(|name| name.starts_with("rabbitmq_queue_messages{"));
    assert_eq!(queues.count(), 2);
    assert_eq!(found["warren_metrics_objects_left_out"], 1.0);
}
