//! The API as its users see it, against a real node: its state, who may ask, users, explanations and errors.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use axum::http::Method;
use common::{Api, ready, ready_with, start};
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|item| item["name"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_its_state() {
    let api = ready().await;
    assert_eq!(
        api.authorized(None).try_get("health").await,
        (200, json!({"status": "ok"})),
        "health needs no login"
    );
    let digest = api.get("routing/digest").await;
    {
        let table = api.node.metadata().table().read();
        let hex: String = table
            .digest()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            digest,
            json!({"node": "node1", "applied_index": table.index(), "digest": hex, "ring_epoch": table.epoch()})
        );
    }

    let ring = api.get("ring").await;
    assert_eq!(
        (&ring["shards"], &ring["owners"]),
        (&json!(8), &json!(vec!["node1"; 8]))
    );
    assert_eq!(
        ring["members"],
        json!([{"node": api.node.id().to_string(), "name": "node1", "address": "127.0.0.1:1", "up": true, "incarnation": 1, "shards_owned": 8}])
    );

    let cluster = api.get("cluster").await;
    let member = &cluster["members"][0];
    assert_eq!(
        (
            &cluster["leader"],
            &cluster["lease_held"],
            cluster["cluster"].as_str().unwrap().len()
        ),
        (&json!("node1"), &json!(true), 32)
    );
    assert_eq!(
        (
            &member["voter"],
            &member["up"],
            &member["amqp"],
            &member["http"]
        ),
        (
            &json!(true),
            &json!(true),
            &json!("127.0.0.1:5672"),
            &json!("127.0.0.1:15672")
        )
    );
    assert_eq!(member["last_seen_ms"], 0);

    let overview = api.get("overview").await;
    assert_eq!(
        (
            &overview["cluster_name"],
            &overview["node"],
            &overview["rabbitmq_version"]
        ),
        (&json!("test"), &json!("node1"), &json!("4.3.0"))
    );
    assert_eq!(
        overview["object_totals"],
        json!({"connections": 0, "channels": 0, "exchanges": 6, "queues": 0, "consumers": 0})
    );
    assert_eq!(
        overview["listeners"][0],
        json!({"node": "node1", "protocol": "amqp", "ip_address": "127.0.0.1", "port": 5672})
    );
    assert_eq!(api.get("nodes").await[0]["running"], true);
    assert_eq!(api.get("nodes/node1").await["mem_alarm"], false);
    assert_eq!(api.try_get("nodes/node2").await.0, 404);
}

/// Whoever looks after the node sends it nobody any more as soon as it begins to stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_says_so() {
    let api = ready().await;
    api.node.shutdown().await;
    let (status, body) = api.try_get("health").await;
    assert_eq!(
        (status, &body["reason"]),
        (503, &json!("this node is stopping"))
    );
}

/// A node whose peers are not there founds nothing, says so, and does not pretend to know definitions.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_cluster_is_unavailable() {
    let api = Api::of(start(&["node2", "node3"]).await);
    let (status, body) = api.authorized(None).try_get("health").await;
    assert_eq!((status, &body["status"]), (503, &json!("unavailable")));
    assert!(
        body["reason"].as_str().unwrap().contains("cluster"),
        "{body}"
    );
    let (status, body) = api.try_get("queues").await;
    assert_eq!(status, 503);
    assert!(
        body["reason"].as_str().unwrap().contains("no users yet"),
        "{body}"
    );
    assert_eq!(api.authorized(None).try_get("queues").await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_known_users_with_a_tag_may_ask() {
    let api = ready().await;
    assert_eq!(
        api.get("whoami").await,
        json!({"name": "guest", "tags": ["administrator"]})
    );
    for (who, api) in [
        ("nobody", api.authorized(None)),
        ("wrong password", api.user("guest", "guest2")),
        ("unknown", api.user("someone", "guest")),
        ("no basic", api.authorized(Some("Bearer Z3Vlc3Q6Z3Vlc3Q="))),
        ("from afar", api.from(Some("192.0.2.7:4000"))),
        ("from nowhere", api.from(None)),
    ] {
        for path in [
            "whoami",
            "overview",
            "nodes",
            "ring",
            "cluster",
            "routing/digest",
            "routing/explain",
            "vhosts",
            "users",
            "permissions",
            "exchanges",
            "queues",
            "bindings",
        ] {
            let (status, headers, body) = api.send(Method::GET, path, "").await;
            assert_eq!(
                (status.as_u16(), &body["error"]),
                (401, &json!("not_authorised")),
                "{who} {path}"
            );
            assert!(
                headers["www-authenticate"]
                    .to_str()
                    .unwrap()
                    .starts_with("Basic "),
                "{who} {path}"
            );
        }
    }
    assert_eq!(
        api.put("users/none", json!({"password": "x", "tags": ""}))
            .await,
        201
    );
    assert_eq!(
        api.user("none", "x").try_get("whoami").await,
        (
            401,
            json!({"error": "not_authorised", "reason": "Not management user"})
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_and_permissions_decide_what_is_seen() {
    let api = ready().await;
    api.put("vhosts/a", json!({})).await;
    api.put("vhosts/b", json!({})).await;
    api.put("queues/a/qa", json!({"durable": true})).await;
    api.put("queues/b/qb", json!({"durable": true})).await;
    api.put("users/m", json!({"password": "x", "tags": "management"}))
        .await;
    api.put("users/o", json!({"password": "x", "tags": ["monitoring"]}))
        .await;
    assert_eq!(
        api.put(
            "permissions/a/m",
            json!({"configure": "", "write": "", "read": ".*"})
        )
        .await,
        201
    );
    let (manager, monitor) = (api.user("m", "x"), api.user("o", "x"));
    assert_eq!(names(&manager.get("vhosts").await), ["a"]);
    assert_eq!(names(&manager.get("queues").await), ["qa"]);
    assert_eq!(manager.try_get("queues/b").await.0, 401);
    assert_eq!(manager.try_get("queues/b/qb").await.0, 401);
    assert_eq!(
        manager
            .try_get("exchanges/b/amq.direct/bindings/source")
            .await
            .0,
        401
    );
    assert_eq!(manager.try_get("bindings/b").await.0, 401);
    assert_eq!(manager.try_get("routing/explain?vhost=b").await.0, 401);
    assert_eq!(manager.get("overview").await["object_totals"]["queues"], 1);
    assert_eq!(manager.try_get("nodes").await.0, 401);
    assert_eq!(names(&monitor.get("queues").await), ["qa", "qb"]);
    assert_eq!(names(&monitor.get("nodes").await), ["node1"]);
    for api in [manager, monitor] {
        assert_eq!(api.try_get("users").await.0, 401);
        assert_eq!(api.try_get("permissions").await.0, 401);
        assert_eq!(api.put("queues/a/new", json!({})).await, 401);
        assert_eq!(api.delete("queues/a/qa").await, 401);
        assert_eq!(
            api.put("users/m", json!({"tags": "administrator"})).await,
            401
        );
    }
    assert_eq!(names(&api.get("queues").await), ["qa", "qb"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_vhosts_and_permissions() {
    let api = ready().await;
    assert_eq!(
        api.put("vhosts/a%2Fb%25", json!({"description": "x"}))
            .await,
        201
    );
    assert_eq!(api.put("vhosts/a%2Fb%25", json!({})).await, 204);
    assert_eq!(names(&api.get("vhosts").await), ["/", "a/b%"]);
    assert_eq!(api.get("vhosts/a%2Fb%25").await["name"], "a/b%");
    assert_eq!(api.try_get("vhosts/none").await.0, 404);
    assert!(
        api.refused(&format!("vhosts/{}", "v".repeat(256)), json!({}))
            .await
            .contains("255")
    );

    assert!(
        api.refused("users/u", json!({"password": "x"}))
            .await
            .contains("tags")
    );
    assert_eq!(
        api.put(
            "users/u",
            json!({"password": "secret", "tags": "management"})
        )
        .await,
        201
    );
    assert_eq!(
        api.user("u", "secret").get("whoami").await["tags"],
        json!(["management"])
    );
    assert_eq!(
        api.put("users/u", json!({"tags": "monitoring"})).await,
        204,
        "the password stays"
    );
    assert_eq!(
        api.user("u", "secret").get("whoami").await["tags"],
        json!(["monitoring"])
    );
    // The example of RabbitMQ's documentation: test12.
    let hash = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR";
    assert_eq!(api.put("users/u", json!({"password_hash": hash, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "monitoring"})).await, 204);
    assert_eq!(api.user("u", "test12").get("whoami").await["name"], "u");
    assert_eq!(api.get("users/u").await["password_hash"], hash);
    assert!(
        api.refused("users/u", json!({"password_hash": "AAAA", "tags": ""}))
            .await
            .contains("password_hash")
    );
    assert!(
        api.refused(
            "users/u",
            json!({"password_hash": hash, "hashing_algorithm": "md5", "tags": ""})
        )
        .await
        .contains("md5")
    );

    let all = json!({"configure": "^a", "write": ".*", "read": ""});
    assert_eq!(api.put("permissions/a%2Fb%25/u", all.clone()).await, 201);
    assert_eq!(api.put("permissions/a%2Fb%25/u", all).await, 204);
    let expected =
        json!({"user": "u", "vhost": "a/b%", "configure": "^a", "write": ".*", "read": ""});
    assert_eq!(api.get("permissions/a%2Fb%25/u").await, expected);
    assert_eq!(api.get("users/u/permissions").await, json!([expected]));
    let maker =
        json!({"user": "guest", "vhost": "a/b%", "configure": ".*", "write": ".*", "read": ".*"});
    assert_eq!(
        api.get("vhosts/a%2Fb%25/permissions").await,
        json!([maker, expected]),
        "who makes a virtual host may do everything in it"
    );
    assert_eq!(api.get("permissions").await.as_array().unwrap().len(), 3);
    assert!(
        api.refused(
            "permissions/%2F/u",
            json!({"configure": "(", "write": "", "read": ""})
        )
        .await
        .contains("configure")
    );
    assert!(
        api.refused("permissions/%2F/u", json!({"configure": "", "write": ""}))
            .await
            .contains("read")
    );
    assert_eq!(
        api.put(
            "permissions/none/u",
            json!({"configure": "", "write": "", "read": ""})
        )
        .await,
        404
    );
    assert_eq!(
        api.put(
            "permissions/%2F/none",
            json!({"configure": "", "write": "", "read": ""})
        )
        .await,
        404
    );

    assert_eq!(
        (
            api.delete("permissions/a%2Fb%25/u").await,
            api.delete("permissions/a%2Fb%25/u").await
        ),
        (204, 404)
    );
    assert_eq!(
        (api.delete("users/u").await, api.delete("users/u").await),
        (204, 404)
    );
    assert_eq!(
        (
            api.delete("vhosts/a%2Fb%25").await,
            api.delete("vhosts/a%2Fb%25").await
        ),
        (204, 404)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_is_explained() {
    let api = ready().await;
    api.put("queues/%2F/q", json!({"durable": true})).await;
    api.post(
        "bindings/%2F/e/amq.headers/q/q",
        json!({"arguments": {"x-match": "all", "n": 1, "b": true, "s": "x"}}),
    )
    .await;
    let explained = api
        .get("routing/explain?exchange=amq.headers&header=n=1&header=b=true&header=s=x")
        .await;
    assert_eq!(explained["queues"], json!([{"name": "q", "node": "node1"}]));
    assert_eq!(explained["headers"], json!({"n": 1, "b": true, "s": "x"}));
    assert_eq!(
        (
            &explained["steps"][0]["bindings"][0]["matched"],
            &explained["error"]
        ),
        (&json!(true), &Value::Null)
    );
    let explained = api
        .get("routing/explain?exchange=amq.headers&header=n=2")
        .await;
    assert_eq!(
        (
            &explained["queues"],
            &explained["steps"][0]["bindings"][0]["matched"]
        ),
        (&json!([]), &json!(false))
    );
    assert_eq!(
        api.get("routing/explain?key=q").await["queues"][0]["name"],
        "q",
        "the default exchange"
    );
    assert_eq!(
        api.get("routing/explain?exchange=none").await["error"],
        "NOT_FOUND - no exchange 'none' in vhost '/'"
    );
    assert_eq!(api.try_get("routing/explain?vhost=none").await.0, 404);
    assert_eq!(api.try_get("routing/explain?header=x").await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_have_answers() {
    let api = ready().await;
    for path in ["", "none", "queues/%2F/q/none", "queues/%2F/q/bindings/x"] {
        let (status, body) = api.try_get(path).await;
        assert_eq!(
            (status, &body["error"]),
            (404, &json!("Object Not Found")),
            "{path}"
        );
    }
    let (status, headers, body) = api.send(Method::POST, "queues/%2F/q", "").await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (405, &json!("method_not_allowed"))
    );
    assert!(headers["allow"].to_str().unwrap().contains("PUT"));
    for body in ["{", "[]", "\"x\"", "7", "\u{0}"] {
        let (status, _, answer) = api.send(Method::PUT, "queues/%2F/q", body).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]),
            (400, &json!("bad_request")),
            "{body}: {answer}"
        );
    }
    assert_eq!(api.try_get("queues/%ff/q").await.0, 400, "names are UTF-8");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(
        api.send(
            Method::PUT,
            "queues/%2F/q",
            format!("{{\"arguments\":{{\"x\":{deep}}}}}")
        )
        .await
        .0,
        400
    );
    let (status, _, answer) = api
        .send(Method::PUT, "queues/%2F/q", " ".repeat((1 << 20) + 1))
        .await;
    assert_eq!(
        (status.as_u16(), &answer["error"]),
        (413, &json!("bad_request"))
    );
    for body in ["", "null", " {} "] {
        assert!(
            api.send(Method::PUT, "queues/%2F/q", body)
                .await
                .0
                .is_success(),
            "{body:?}"
        );
    }
}

/// Guessing is slowed down, for the address that guesses alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_whose_logins_fail_too_often_has_to_wait() {
    let settings = warren_node::Settings {
        login_failures_a_minute: 3,
        loopback_users: Vec::new(),
        ..warren_node::Settings::default()
    };
    let api = ready_with(settings).await;
    let far = api.from(Some("192.0.2.7:4000"));
    assert_eq!(far.try_get("whoami").await.0, 200);
    for _ in 0..3 {
        assert_eq!(far.user("guest", "wrong").try_get("whoami").await.0, 401);
    }
    assert_eq!(
        far.try_get("whoami").await.0,
        401,
        "the right one is not seen"
    );
    assert_eq!(api.try_get("whoami").await.0, 200, "from elsewhere it is");
}

/// RabbitMQ's routes that have little to do here.
#[tokio::test(flavor = "multi_thread")]
async fn rebalancing_and_actions_on_queues_are_taken() {
    let api = ready().await;
    assert_eq!(api.put("queues/%2F/q", json!({"durable": true})).await, 201);
    let actions = "queues/%2F/q/actions";
    for (path, body, expected) in [
        (actions, json!({"action": "sync"}), 204),
        (actions, json!({"action": "cancel_sync"}), 204),
        (actions, json!({"action": "other"}), 400),
        (actions, json!({}), 400),
        ("queues/%2F/none/actions", json!({"action": "sync"}), 404),
        ("rebalance/queues", json!({}), 204),
        ("rebalance/other", json!({}), 404),
    ] {
        let (status, _, answer) = api.post(path, body).await;
        assert_eq!(status, expected, "{path}: {answer}");
    }
    assert_eq!(api.get("ring").await["given"], json!([]));
}

/// A node that is alone has the same table as itself.
#[tokio::test(flavor = "multi_thread")]
async fn tables_are_compared() {
    let api = ready().await;
    let diff = api.get("routing/diff").await;
    let digest = api.get("routing/digest").await;
    assert_eq!(
        (&diff["equal"], &diff["differences"], &diff["more"]),
        (&json!(true), &json!([]), &json!(false))
    );
    assert_eq!(
        diff["nodes"],
        json!([{"node": "node1", "applied_index": digest["applied_index"], "digest": digest["digest"], "error": null}])
    );
}
