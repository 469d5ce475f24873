//! Publishing, getting, purging and conditional deletes over the API, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use axum::body::{Body, Bytes};
use axum::http::Method;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::amqp::{Amqp, short};
use common::{Api, ready, ready_with};
use serde_json::{Value, json};
use std::time::Duration;
use warren_node::Settings;
use warren_protocol::{BasicCancel, BasicConsume, QueueDeclare, QueueDelete};

const DEFAULT: &str = "exchanges/%2F/amq.default/publish";

fn message(key: &str, payload: &str) -> Value {
    json!({"properties": {}, "routing_key": key, "payload": payload, "payload_encoding": "string"})
}

async fn publish(api: &Api, path: &str, body: Value) -> Value {
    let (status, _, answer) = api.post(path, body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn get(api: &Api, queue: &str, count: u64, mode: &str) -> Vec<Value> {
    let body = json!({"count": count, "ackmode": mode, "encoding": "auto"});
    let (status, _, answer) = api.post(&format!("queues/%2F/{queue}/get"), body).await;
    assert_eq!(status, 200, "{answer}");
    answer.as_array().unwrap().clone()
}

fn payloads(rows: &[Value]) -> Vec<(&str, bool)> {
    let row = |row: &'_ Value| row["redelivered"].as_bool().unwrap();
    rows.iter()
        .map(|r| (r["payload"].as_str().unwrap(), row(r)))
        .collect()
}

async fn counted(api: &Api, queue: &str) -> (u64, u64) {
    let queue = api.get(&format!("queues/%2F/{queue}")).await;
    let of = |key: &str| queue[key].as_u64().unwrap();
    (of("messages_ready"), of("messages_unacknowledged"))
}

async fn reason(api: &Api, method: Method, path: &str, body: Value, expected: u16) -> String {
    let (status, _, answer) = api.send(method, path, body.to_string()).await;
    assert_eq!(status.as_u16(), expected, "{path} {body}: {answer}");
    answer["reason"].as_str().unwrap().to_owned()
}

/// Sessions end by themselves soon after they are closed.
async fn no_sessions(api: &Api) {
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    while api.node.session_count() > 0 {
        assert!(tokio::time::Instant::now() < until, "sessions end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Bodies of no bytes, through every type of exchange, persistent and not (A21).
#[tokio::test(flavor = "multi_thread")]
async fn empty_payloads() {
    let api = ready().await;
    api.put("queues/%2F/q", json!({"durable": true})).await;
    for exchange in ["amq.fanout", "amq.direct", "amq.topic", "amq.headers"] {
        let body = json!({"routing_key": "q"});
        assert_eq!(
            api.post(&format!("bindings/%2F/e/{exchange}/q/q"), body)
                .await
                .0,
            201
        );
    }
    let exchanges = [
        "amq.default",
        "amq.fanout",
        "amq.direct",
        "amq.topic",
        "amq.headers",
    ];
    for exchange in exchanges {
        for mode in [1, 2] {
            let mut body = message("q", "");
            body["properties"] = json!({"delivery_mode": mode, "headers": {"h": ""}});
            let path = format!("exchanges/%2F/{exchange}/publish");
            assert_eq!(publish(&api, &path, body).await, json!({"routed": true}));
        }
    }
    let rows = get(&api, "q", 20, "ack_requeue_false").await;
    assert_eq!(rows.len(), 10);
    for (position, row) in rows.iter().enumerate() {
        let exchange = exchanges[position / 2].trim_start_matches("amq.default");
        let expected = json!({
            "payload_bytes": 0, "redelivered": false, "exchange": exchange, "routing_key": "q", "message_count": 9 - position,
            "properties": {"delivery_mode": 1 + position % 2, "headers": {"h": ""}}, "payload": "", "payload_encoding": "string"
        });
        assert_eq!(*row, expected);
    }
    assert_eq!(counted(&api, "q").await, (0, 0));
    let unrouted = publish(&api, DEFAULT, message("nobody", "")).await;
    assert_eq!(unrouted, json!({"routed": false}));
    no_sessions(&api).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_got_is_settled_as_asked() {
    let api = ready().await;
    api.put("queues/%2F/dead", json!({})).await;
    let arguments = json!({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"});
    api.put("queues/%2F/q", json!({"arguments": arguments}))
        .await;
    for payload in ["1", "2", "3"] {
        publish(&api, DEFAULT, message("q", payload)).await;
    }
    let all = get(&api, "q", 9, "ack_requeue_true").await;
    assert_eq!(
        payloads(&all),
        [("1", false), ("2", false), ("3", false)],
        "each once, though all go back"
    );
    assert_eq!(counted(&api, "q").await, (3, 0));
    let two = get(&api, "q", 2, "reject_requeue_true").await;
    assert_eq!(payloads(&two), [("1", true), ("2", true)]);
    let one = get(&api, "q", 1, "ack_requeue_false").await;
    assert_eq!(
        (payloads(&one), counted(&api, "q").await),
        (vec![("1", true)], (2, 0))
    );
    let rest = get(&api, "q", 5, "reject_requeue_false").await;
    assert_eq!(payloads(&rest), [("2", true), ("3", true)]);
    assert_eq!(counted(&api, "q").await, (0, 0));
    assert!(get(&api, "q", 0, "ack_requeue_true").await.is_empty());
    assert!(get(&api, "q", 1, "ack_requeue_true").await.is_empty());
    no_sessions(&api).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_and_properties_come_through() {
    let api = ready().await;
    api.put("queues/%2F/q", json!({})).await;
    let large = vec![0xf0; 3 << 20];
    let properties = json!({"content_type": "a/b", "user_id": "guest", "headers": {"n": 1, "s": "1"}, "timestamp": 1});
    for payload in [&b"\xff\x00"[..], &large] {
        let body = json!({"properties": properties, "routing_key": "q", "payload": STANDARD.encode(payload), "payload_encoding": "base64"});
        assert_eq!(publish(&api, DEFAULT, body).await["routed"], true);
    }
    let rows = get(&api, "q", 2, "ack_requeue_false").await;
    assert_eq!(
        (&rows[0]["payload"], &rows[0]["payload_encoding"]),
        (&json!("/wA="), &json!("base64"))
    );
    assert_eq!(rows[0]["properties"], properties);
    assert_eq!(rows[1]["payload_bytes"], large.len());
    assert!(rows[1]["payload"] == STANDARD.encode(&large));

    publish(&api, DEFAULT, message("q", "größer")).await;
    let body =
        json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "base64", "truncate": 3});
    let (_, _, rows) = api.post("queues/%2F/q/get", body).await;
    assert_eq!(
        (&rows[0]["payload"], &rows[0]["payload_bytes"]),
        (
            &json!(STANDARD.encode(&"größer".as_bytes()[..3])),
            &json!(8)
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_ends_before_its_answer_is_too_large() {
    let api = ready().await;
    api.put("queues/%2F/q", json!({})).await;
    for _ in 0..3 {
        publish(&api, DEFAULT, message("q", &"x".repeat(9 << 20))).await;
    }
    assert_eq!(get(&api, "q", 3, "ack_requeue_false").await.len(), 2);
    assert_eq!(counted(&api, "q").await, (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_amqps() {
    let api = ready().await;
    api.put("queues/%2F/q", json!({})).await;
    let post = async |path: &str, body: Value, expected| {
        reason(&api, Method::POST, path, body, expected).await
    };
    let got = json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"});
    let text = post("exchanges/%2F/none/publish", message("q", "x"), 404).await;
    assert_eq!(text, "no exchange 'none' in vhost '/'");
    post("exchanges/none/amq.direct/publish", message("q", "x"), 404).await;
    let text = post("queues/%2F/none/get", got.clone(), 404).await;
    assert_eq!(text, "no queue 'none' in vhost '/'");
    let mut bad = message("q", "x");
    bad["properties"] = json!({"user_id": "somebody"});
    let text = post(DEFAULT, bad.clone(), 400).await;
    assert!(text.starts_with("user_id property set to"), "{text}");
    bad["properties"] = json!({"expiration": "soon"});
    assert_eq!(
        post(DEFAULT, bad, 400).await,
        "invalid expiration 'soon': no_integer"
    );
    for key in ["properties", "routing_key", "payload", "payload_encoding"] {
        let mut body = message("q", "x");
        body.as_object_mut().unwrap().remove(key);
        assert_eq!(
            post(DEFAULT, body, 400).await,
            format!("key_missing: {key}")
        );
    }
    for key in ["count", "ackmode", "encoding"] {
        let mut body = got.clone();
        body.as_object_mut().unwrap().remove(key);
        assert_eq!(
            post("queues/%2F/q/get", body, 400).await,
            format!("key_missing: {key}")
        );
    }
    let text = post(DEFAULT, message(&"k".repeat(256), "x"), 400).await;
    assert!(text.contains("255"), "{text}");
    let limit = usize::try_from(api.node.config().settings.limits.message_max).unwrap();
    let text = post(DEFAULT, message("q", &"x".repeat(limit + 1)), 400).await;
    assert!(text.contains("larger than configured max size"), "{text}");
    post(DEFAULT, message("q", &"x".repeat(32 << 20)), 413).await;
    reason(
        &api,
        Method::DELETE,
        "queues/%2F/none/contents",
        json!(null),
        404,
    )
    .await;
    assert_eq!(counted(&api, "q").await, (0, 0));
    no_sessions(&api).await;
}

/// It takes the tag `management` and AMQP's permissions, not more.
#[tokio::test(flavor = "multi_thread")]
async fn users_may_what_amqp_lets_them() {
    let api = ready().await;
    for name in ["q", "mine"] {
        api.put(&format!("queues/%2F/{name}"), json!({})).await;
    }
    api.put("users/u", json!({"password": "p", "tags": "management"}))
        .await;
    api.put("users/m", json!({"password": "p", "tags": "monitoring"}))
        .await;
    api.put("users/none", json!({"password": "p", "tags": ""}))
        .await;
    let permission = json!({"configure": "", "write": "amq.default|amq.direct", "read": "mine"});
    assert_eq!(api.put("permissions/%2F/u", permission).await, 201);
    let u = api.user("u", "p").from(Some("192.0.2.1:7"));
    publish(&u, DEFAULT, message("mine", "x")).await;
    publish(&u, DEFAULT, message("q", "x")).await;
    assert_eq!(
        payloads(&get(&u, "mine", 1, "ack_requeue_true").await),
        [("x", false)]
    );
    let asked = json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"});
    let refused = async |api: &Api, method, path: &str, body: &Value| {
        reason(api, method, path, body.clone(), 401).await
    };
    let text = refused(&u, Method::POST, "queues/%2F/q/get", &asked).await;
    assert!(text.contains("queue 'q' in vhost '/'"), "{text}");
    let x = message("q", "x");
    refused(&u, Method::POST, "exchanges/%2F/amq.topic/publish", &x).await;
    refused(&u, Method::DELETE, "queues/%2F/q/contents", &json!(null)).await;
    assert_eq!(u.delete("queues/%2F/mine/contents").await, 204);
    let text = refused(&u, Method::DELETE, "queues/%2F/mine?if-empty=true", &asked).await;
    assert!(text.contains("queue 'mine' in vhost '/'"), "{text}");
    for other in [
        api.user("m", "p"),
        api.user("none", "p"),
        api.user("guest", "wrong"),
        api.authorized(None),
        api.from(None),
    ] {
        refused(&other, Method::POST, DEFAULT, &x).await;
    }
    assert_eq!(
        (counted(&api, "q").await, counted(&api, "mine").await),
        ((1, 0), (0, 0))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_deleted_if_empty_and_unused() {
    let api = ready().await;
    for name in ["q", "other"] {
        api.put(&format!("queues/%2F/{name}"), json!({})).await;
    }
    publish(&api, DEFAULT, message("q", "x")).await;
    let refused = async |condition: &str| {
        let path = format!("queues/%2F/q?{condition}=true");
        reason(&api, Method::DELETE, &path, json!(null), 400).await
    };
    assert!(refused("if-empty").await.contains("not empty"));
    assert_eq!(api.delete("queues/%2F/q/contents").await, 204);
    let mut amqp = Amqp::open(&api.node).await;
    let consume = BasicConsume {
        queue: short("q"),
        consumer_tag: short("c"),
        ..BasicConsume::default()
    };
    amqp.call(consume, "basic.consume-ok").await;
    assert!(refused("if-unused").await.contains("in use"));
    let cancel = BasicCancel {
        consumer_tag: short("c"),
        no_wait: false,
    };
    amqp.call(cancel, "basic.cancel-ok").await;
    let path = "queues/%2F/q?if-empty=true&if-unused=true";
    assert_eq!((api.delete(path).await, api.delete(path).await), (204, 404));
    assert_eq!(api.delete("queues/%2F/other?if-empty=false").await, 204);

    let declare = QueueDeclare {
        queue: short("mine"),
        exclusive: true,
        ..QueueDeclare::default()
    };
    amqp.call(declare, "queue.declare-ok").await;
    for path in ["queues/%2F/mine/contents", "queues/%2F/mine?if-empty=true"] {
        let text = reason(&api, Method::DELETE, path, json!(null), 400).await;
        assert!(text.contains("exclusive access to locked queue"), "{text}");
    }
    let delete = QueueDelete {
        queue: short("mine"),
        ..QueueDelete::default()
    };
    amqp.call(delete, "queue.delete-ok").await;
}

/// While the node is low on memory, nothing is published, then or later, and getting goes on.
#[tokio::test(flavor = "multi_thread")]
async fn publishes_are_refused_while_publishers_are_blocked() {
    let api = ready_with(Settings {
        memory_limit_bytes: 1000,
        ..Settings::default()
    })
    .await;
    api.put("queues/%2F/q", json!({})).await;
    publish(&api, DEFAULT, message("q", &"x".repeat(2000))).await;
    assert!(api.node.alarm());
    let text = reason(&api, Method::POST, DEFAULT, message("q", "y"), 503).await;
    assert!(text.contains("low on memory"), "{text}");
    assert_eq!(get(&api, "q", 1, "ack_requeue_false").await.len(), 1);
    no_sessions(&api).await;
    publish(&api, DEFAULT, message("q", "z")).await;
    let rest = get(&api, "q", 5, "ack_requeue_false").await;
    assert_eq!(
        payloads(&rest),
        [("z", false)],
        "what was told to fail is not there"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_bounded() {
    let api = ready().await;
    api.put("queues/%2F/q", json!({})).await;
    let path = "queues/%2F/q/get";
    let mut slow = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let api = api.clone();
        slow.spawn(async move {
            // Refused while one of the requests below has its place; else it waits for a body that never comes.
            loop {
                let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();
                api.send(Method::POST, path, Body::from_stream(never)).await;
                tokio::task::yield_now().await;
            }
        });
    }
    let asked = json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"});
    let answers = async |expected: u16| {
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let (status, _, answer) = api.post(path, asked.clone()).await;
            if status == expected {
                return answer;
            }
            assert!(tokio::time::Instant::now() < until, "{status}: {answer}");
        }
    };
    let reason = answers(503).await["reason"].to_string();
    assert!(reason.contains("64 sessions"), "{reason}");
    slow.shutdown().await;
    assert_eq!(answers(200).await, json!([]));
}

/// Each queue that a message goes to asks for write permission, where that is configured.
#[tokio::test(flavor = "multi_thread")]
async fn queues_without_write_permission_are_left_out_if_that_is_asked_for() {
    for queue_write_checks in [false, true] {
        let api = ready_with(Settings {
            queue_write_checks,
            ..Settings::default()
        })
        .await;
        api.put("queues/%2F/open", json!({})).await;
        api.put("queues/%2F/closed", json!({})).await;
        api.put(
            "users/writer",
            json!({"password": "w", "tags": "management"}),
        )
        .await;
        let permission = json!({"configure": "", "write": "^amq|^open$", "read": ".*"});
        api.put("permissions/%2F/writer", permission).await;
        let writer = api.user("writer", "w");
        for (key, routed) in [("open", true), ("closed", !queue_write_checks)] {
            let answer = publish(&writer, DEFAULT, message(key, "x")).await;
            assert_eq!(answer["routed"], routed, "{key} {queue_write_checks}");
        }
        for (api, user, key, error, left_out) in [
            (&api, "writer", "closed", json!(null), queue_write_checks),
            (&writer, "writer", "open", json!(null), false),
            (&api, "guest", "closed", json!(null), false),
            (
                &api,
                "reader",
                "closed",
                json!(
                    "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'reader'"
                ),
                queue_write_checks,
            ),
        ] {
            api.put("users/reader", json!({"password": "r", "tags": ""}))
                .await;
            let explained = api
                .get(&format!("routing/explain?key={key}&user={user}"))
                .await;
            assert_eq!(explained["queues"][0]["left_out"], left_out, "{explained}");
            assert_eq!(
                (&explained["error"], &explained["user"]),
                (&error, &json!(user))
            );
            assert_eq!(explained["queue_write_checks"], queue_write_checks);
        }
        let others = writer.try_get("routing/explain?key=open&user=guest").await;
        assert_eq!(others.0, 401, "{others:?}");
        assert_eq!(
            api.try_get("routing/explain?key=open&user=none").await.0,
            404
        );
        let denied = u64::from(queue_write_checks);
        assert_eq!(api.node.queue_writes_denied(), denied);
        assert_eq!(counted(&api, "closed").await, (1 - denied, 0));
    }
}
