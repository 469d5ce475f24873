//! Health checks against a real node, good and bad.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use axum::http::Method;
use common::{Api, ready, ready_with, start};
use serde_json::json;
use std::time::{Duration, SystemTime};
use warren_node::{Certificate, Settings};

const ALL: [&str; 12] = [
    "alarms",
    "local-alarms",
    "certificate-expiration/4/weeks",
    "port-listener/5672",
    "protocol-listener/amqp",
    "virtual-hosts",
    "node-is-quorum-critical",
    "node-is-mirror-sync-critical",
    "below-node-connection-limit",
    "ready-to-serve-clients",
    "is-in-service",
    "metadata-store/initialized/with-data",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_node_passes_all_and_only_for_who_may_ask() {
    let api = ready().await;
    for check in ALL {
        let path = format!("health/checks/{check}");
        let (status, body) = api.try_get(&path).await;
        assert_eq!((status, &body["status"]), (200, &json!("ok")), "{check}");
        assert_eq!(api.authorized(None).try_get(&path).await.0, 401, "{check}");
        let (status, ..) = api.send(Method::POST, &path, "").await;
        assert_eq!(status, 405, "{check}");
    }
    for protocol in ["amqp091", "AMQP", "http", "clustering"] {
        let (status, body) = api
            .try_get(&format!("health/checks/protocol-listener/{protocol}"))
            .await;
        assert_eq!((status, &body["protocol"]), (200, &json!(protocol)));
    }
    assert_eq!(api.try_get("health/checks/none").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_fails_and_nonsense_is_refused() {
    let api = ready().await;
    let check = |name: &'static str| {
        let api = api.clone();
        async move { api.try_get(&format!("health/checks/{name}")).await }
    };
    let (status, body) = check("port-listener/5671").await;
    assert_eq!(
        (status, body),
        (
            503,
            json!({"status": "failed", "reason": "No active listener", "missing": 5671, "ports": [5672, 15672, 1]})
        )
    );
    for protocol in ["mqtt", "amqp/ssl", "https"] {
        let (status, body) = api
            .try_get(&format!("health/checks/protocol-listener/{protocol}"))
            .await;
        assert_eq!((status, &body["missing"]), (503, &json!(protocol)));
    }
    for bad in [
        "port-listener/amqp",
        "port-listener/70000",
        "certificate-expiration/4/fortnights",
        "certificate-expiration/-1/days",
    ] {
        assert_eq!(check(bad).await.0, 400, "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_expire_are_named() {
    let api = ready().await;
    api.node.set_certificates(vec![Certificate {
        what: "amqp server.pem".into(),
        subject: "CN=localhost".into(),
        not_after: SystemTime::now() + Duration::from_secs(10 * 24 * 60 * 60),
    }]);
    for (within, expected) in [("9/days", 200), ("11/days", 503), ("1/month", 503)] {
        let path = format!("health/checks/certificate-expiration/{within}");
        let (status, body) = api.try_get(&path).await;
        assert_eq!(status, expected, "{within}: {body}");
        if status == 503 {
            assert_eq!(body["expired"][0]["subject"], "CN=localhost");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_fails_the_checks_for_alarms() {
    let settings = Settings {
        memory_limit_bytes: 10,
        ..Settings::default()
    };
    let api = ready_with(settings).await;
    // What durable queues hold lies in the log.
    assert_eq!(
        api.put("queues/%2F/q", json!({"durable": false})).await,
        201
    );
    let publish = json!({"properties": {}, "routing_key": "q", "payload": "x".repeat(100), "payload_encoding": "string"});
    let (status, ..) = api.post("exchanges/%2F/amq.default/publish", publish).await;
    assert_eq!(status, 200);
    for check in ["alarms", "local-alarms"] {
        let (status, body) = api.try_get(&format!("health/checks/{check}")).await;
        assert_eq!(status, 503, "{check}");
        assert_eq!(
            body["alarms"],
            json!([{"node": "node1", "resource": "memory"}])
        );
    }
}

/// A node that stops is taken out by whoever looks after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_serves_nobody() {
    let api = ready().await;
    api.node.shutdown().await;
    for check in ["ready-to-serve-clients", "is-in-service"] {
        let (status, body) = api.try_get(&format!("health/checks/{check}")).await;
        assert_eq!(
            (status, &body["reason"]),
            (503, &json!("this node is stopping")),
            "{check}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_aliveness_test_sends_a_message_through() {
    let api = ready().await;
    for _ in 0..2 {
        assert_eq!(api.get("aliveness-test/%2F").await, json!({"status": "ok"}));
    }
    let queue = api.get("queues/%2F/aliveness-test").await;
    assert_eq!(
        (&queue["messages"], &queue["durable"]),
        (&json!(0), &json!(true))
    );
    assert_eq!(api.try_get("aliveness-test/none").await.0, 404);
    let user = json!({"password": "p", "tags": "management"});
    assert_eq!(api.put("users/m", user).await, 201);
    assert_eq!(
        api.user("m", "p").try_get("aliveness-test/%2F").await.0,
        401
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_to_log_in_is_told_to_everybody() {
    let api = Api::of(start(&["node2", "node3"]).await);
    let nobody = api.authorized(None);
    assert_eq!(nobody.get("auth").await, json!({"oauth_enabled": false}));
    assert_eq!(nobody.try_get("extensions").await.0, 401);
    let api = ready().await;
    for path in ["extensions", "feature-flags"] {
        assert_eq!(api.get(path).await, json!([]), "{path}");
    }
}
