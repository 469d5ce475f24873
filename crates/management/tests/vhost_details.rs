//! What is said of virtual hosts over HTTP, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::ready;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_a_vhost_is_shown_and_changed() {
    let api = ready().await;
    let plain = api.get("vhosts/%2F").await;
    assert_eq!(plain["default_queue_type"], "classic");
    assert_eq!(
        (&plain["description"], &plain["tags"]),
        (&json!(""), &json!([]))
    );
    let said =
        json!({"description": "Orders", "tags": "eu,production", "default_queue_type": "quorum"});
    assert_eq!(api.put("vhosts/v", said).await, 201);
    let vhost = api.get("vhosts/v").await;
    let metadata = json!({"description": "Orders", "tags": ["eu", "production"], "default_queue_type": "quorum"});
    assert_eq!(vhost["metadata"], metadata);
    for key in ["description", "tags", "default_queue_type"] {
        assert_eq!(vhost[key], metadata[key], "{key}");
    }
    // What is not named stays.
    assert_eq!(api.put("vhosts/v", json!({})).await, 204);
    assert_eq!(api.get("vhosts/v").await["metadata"], metadata);
    let other = json!({"description": "Stock", "default_queue_type": "undefined"});
    assert_eq!(api.put("vhosts/v", other).await, 204);
    assert_eq!(
        api.get("vhosts/v").await["metadata"],
        json!({"description": "Stock", "tags": ["eu", "production"], "default_queue_type": "classic"})
    );
    let listed = api.get("vhosts").await;
    assert_eq!(listed[1]["description"], "Stock");
    for bad in [
        json!({"default_queue_type": "stream"}),
        json!({"description": 5}),
        json!({"tags": [1]}),
    ] {
        api.refused("vhosts/v", bad.clone()).await;
        api.refused("vhosts/none", bad).await;
    }
    assert_eq!(api.try_get("vhosts/none").await.0, 404, "nothing is made");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_type_is_that_of_queues_and_comes_back_from_an_export() {
    let api = ready().await;
    let queue = || json!({"durable": true});
    assert_eq!(api.put("vhosts/v", json!({})).await, 201);
    assert_eq!(api.put("queues/v/old", queue()).await, 201);
    let quorum = json!({"default_queue_type": "quorum"});
    assert_eq!(api.put("vhosts/v", quorum).await, 204);
    assert_eq!(api.put("queues/v/new", queue()).await, 201);
    let passing = json!({"durable": true, "auto_delete": true});
    assert_eq!(api.put("queues/v/passing", passing).await, 201);
    let kinds = async || {
        let mut kinds = Vec::new();
        for name in ["old", "new", "passing"] {
            let queue = api.get(&format!("queues/v/{name}")).await;
            kinds.push(queue["type"].clone());
        }
        kinds
    };
    let expected = ["classic", "quorum", "classic"].map(Value::from);
    assert_eq!(kinds().await, expected);
    assert_eq!(
        api.get("queues/v/new").await["arguments"],
        json!({"x-queue-type": "quorum"})
    );
    let found = api.refused("queues/v/old", queue()).await;
    assert!(found.contains("inequivalent arg 'x-queue-type'"), "{found}");

    let exported = api.get("definitions").await;
    let vhosts = exported["vhosts"].as_array().unwrap();
    let vhost = vhosts.iter().find(|vhost| vhost["name"] == "v").unwrap();
    assert_eq!(vhost["default_queue_type"], "quorum");
    assert_eq!(vhost["metadata"]["default_queue_type"], "quorum");
    let (status, _, answer) = api.post("definitions", exported.clone()).await;
    assert_eq!(status, 204, "as things are: {answer}");
    assert_eq!(api.delete("vhosts/v").await, 204);
    let (status, _, answer) = api.post("definitions", exported).await;
    assert_eq!(status, 204, "anew: {answer}");
    assert_eq!(kinds().await, expected);
    assert_eq!(api.get("vhosts/v").await["default_queue_type"], "quorum");

    // RabbitMQ's older exports say it under metadata alone; their queues are of the type as well.
    let older = json!({
        "vhosts": [{"name": "w", "limits": [], "metadata": {"description": "d", "tags": ["t"], "default_queue_type": "quorum"}}],
        "queues": [{"name": "q", "vhost": "w", "durable": true, "auto_delete": false, "arguments": {}}],
    });
    assert_eq!(api.post("definitions", older).await.0, 204);
    assert_eq!(api.get("queues/w/q").await["type"], "quorum");
    assert_eq!(api.get("vhosts/w").await["tags"], json!(["t"]));
    let bad = json!({"vhosts": [{"name": "x", "default_queue_type": "stream"}]});
    assert_eq!(api.post("definitions", bad).await.0, 400);
}
