//! Fields and routes of RabbitMQ's that monitoring tools and clients read, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use axum::http::Method;
use common::ready;
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<&str> {
    let items = list.as_array().unwrap().iter();
    items.map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_what_monitoring_reads() {
    let api = ready().await;
    let node = api.get("nodes/node1").await;
    for number in ["mem_limit", "disk_free_limit", "sockets_total", "proc_used"] {
        assert!(node[number].as_u64().unwrap() > 0, "{number}: {node}");
    }
    assert!(node["run_queue"].is_u64());
    assert_eq!(node["mem_limit"], node["queued_bytes_limit"]);
    assert_eq!(node["sockets_total"], node["fd_total"]);
    assert_eq!(node["rates_mode"], "basic");
    for empty in ["partitions", "enabled_plugins", "cluster_links"] {
        assert_eq!(node[empty], json!([]), "{empty}");
    }
    assert!(names(&node["exchange_types"]).contains(&"x-consistent-hash"));
    assert_eq!(
        names(&node["auth_mechanisms"]),
        ["PLAIN", "AMQPLAIN", "EXTERNAL"]
    );
    assert_eq!(
        node["applications"][0]["version"],
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(node["contexts"][0]["port"], "15672");
    for made_up in ["db_dir", "log_files", "config_files", "gc_num", "disk_free"] {
        assert_eq!(node.get(made_up), None, "{made_up}");
    }
    let contexts = &api.get("overview").await["contexts"];
    assert_eq!(
        (&contexts[0]["node"], &contexts[0]["port"]),
        (&json!("node1"), &json!("15672"))
    );
    let memory = api.get("nodes/node1/memory").await;
    assert!(memory["memory"]["total"]["rss"].as_u64().unwrap() > 1 << 20);
    assert_eq!(api.try_get("nodes/none/memory").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vhost_tells_what_is_in_it() {
    let api = ready().await;
    assert_eq!(api.put("vhosts/v", json!({})).await, 201);
    assert_eq!(api.put("queues/%2F/q", json!({"durable": true})).await, 201);
    let message =
        json!({"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"});
    for _ in 0..3 {
        let publish = "exchanges/%2F/amq.default/publish";
        assert_eq!(api.post(publish, message.clone()).await.0, 200);
    }
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    let vhost = loop {
        let vhost = api.get("vhosts/%2F").await;
        if vhost["messages"] == 3 {
            break vhost;
        }
        assert!(tokio::time::Instant::now() < until, "{vhost}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    assert_eq!(vhost["cluster_state"], json!({"node1": "running"}));
    assert_eq!(
        (&vhost["messages_ready"], &vhost["messages_unacknowledged"]),
        (&json!(3), &json!(0))
    );
    assert_eq!(vhost["message_stats"]["publish"], 3);
    let listed = api.get("vhosts?sort=name").await;
    assert_eq!(listed[0]["messages"], 3);
    assert_eq!(
        (
            &listed[1]["name"],
            &listed[1]["messages"],
            &listed[1]["recv_oct"]
        ),
        (&json!("v"), &json!(0), &json!(0))
    );
    for (path, expected) in [
        ("vhosts/v/start/node1", 204),
        ("vhosts/none/start/node1", 404),
        ("vhosts/v/start/node9", 404),
    ] {
        assert_eq!(api.post(path, json!({})).await.0, expected, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_tell_their_replicas_and_as_little_as_is_asked() {
    let api = ready().await;
    assert_eq!(api.put("queues/%2F/d", json!({"durable": true})).await, 201);
    assert_eq!(api.put("queues/%2F/t", json!({})).await, 201);
    let all = api.get("queues").await;
    for field in ["members", "online"] {
        assert_eq!(all[0][field], json!(["node1"]), "{field}");
        assert_eq!(all[1].get(field), None, "it has no replicas");
    }
    assert_eq!(
        (&all[0]["leader"], &all[0]["state"]),
        (&json!("node1"), &json!("running"))
    );
    assert!(all[0]["message_bytes"].is_u64());
    let totals = api
        .get("queues/%2F?disable_stats=true&enable_queue_totals=true")
        .await;
    assert_eq!(
        (&totals[0]["messages"], totals[0].get("message_bytes")),
        (&json!(0), None)
    );
    let plain = api.get("queues?disable_stats=true").await;
    assert_eq!(
        (plain[0].get("messages"), &plain[0]["name"]),
        (None, &json!("d"))
    );
    assert_eq!(plain[0]["state"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn explanations_take_rabbitmqs_word_for_a_key_and_tell_the_ring() {
    let api = ready().await;
    assert_eq!(api.put("queues/%2F/q", json!({"durable": true})).await, 201);
    let epoch = api.get("ring").await["epoch"].clone();
    for query in ["key=q", "routing_key=q", "routing_key=q&key=other"] {
        let told = api.get(&format!("routing/explain?{query}")).await;
        assert_eq!(told["queues"][0]["name"], "q", "{query}");
        assert_eq!(told["ring_epoch"], epoch);
    }
    let plan = api.get("ring/plan").await;
    assert_eq!(plan, json!({"epoch": epoch, "moves": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn users_without_permissions_are_listed_and_deleted_together() {
    let api = ready().await;
    for name in ["a", "b", "c"] {
        assert_eq!(
            api.put(&format!("users/{name}"), json!({"tags": ""})).await,
            201
        );
    }
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    assert_eq!(api.put("permissions/%2F/c", all).await, 201);
    assert_eq!(
        names(&api.get("users/without-permissions").await),
        ["a", "b"]
    );
    let delete = |body: Value| api.post("users/bulk-delete", body);
    assert_eq!(delete(json!({"users": ["a", "none", "c"]})).await.0, 204);
    assert_eq!(names(&api.get("users").await), ["b", "guest"]);
    for bad in [json!({}), json!({"users": "b"}), json!({"users": ["b", 5]})] {
        assert_eq!(delete(bad.clone()).await.0, 400, "{bad}");
    }
    assert_eq!(
        api.get("users/b").await["name"],
        "b",
        "a bad list deletes nobody"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_permission_is_deleted_by_its_exchange() {
    let api = ready().await;
    for exchange in ["amq.topic", "x"] {
        let body = json!({"exchange": exchange, "write": "a", "read": "b"});
        assert_eq!(api.put("topic-permissions/%2F/guest", body).await, 201);
    }
    let path = "topic-permissions/%2F/guest/x";
    assert_eq!(api.delete(path).await, 204);
    assert_eq!(api.delete(path).await, 404);
    let left = api.get("topic-permissions/%2F/guest").await;
    assert_eq!(left[0]["exchange"], "amq.topic");
    assert_eq!(left.as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_have_an_old_name_and_are_saved_under_any() {
    let api = ready().await;
    assert_eq!(
        api.get("all-configuration").await,
        api.get("definitions").await
    );
    let body = json!({"vhosts": [{"name": "v"}]});
    let (status, ..) = api.post("all-configuration", body).await;
    assert_eq!((status, api.try_get("vhosts/v").await.0), (204, 200));
    let header = async |path: &str| {
        let (_, headers, _) = api.send(Method::GET, path, "").await;
        let value = headers.get("content-disposition");
        value.map(|value| value.to_str().unwrap().to_owned())
    };
    let expected = Some("attachment; filename=\"all 1.json\"".to_owned());
    assert_eq!(header("definitions?download=all%201.json").await, expected);
    assert!(header("definitions/%2F?download=x").await.is_some());
    assert_eq!(header("definitions").await, None);
    assert_eq!(api.try_get("definitions?download=a%22b").await.0, 400);
}
