//! The API as its users see it, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use axum::http::Method;
use common::{Api, ready, start};
use serde_json::{Value, json};
use warren_model::command::{DeclareQueue, Destination, Place};
use warren_model::{Command, Outcome, SessionId};
use warren_protocol::{OwnedTable, OwnedValue};
use warren_routing::Check;

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

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
        json!({"exchanges": 6, "queues": 0, "consumers": 0})
    );
    assert_eq!(
        overview["listeners"][0],
        json!({"node": "node1", "protocol": "amqp", "ip_address": "127.0.0.1", "port": 5672})
    );
    assert_eq!(api.get("nodes").await[0]["running"], true);
    assert_eq!(api.get("nodes/node1").await["mem_alarm"], false);
    assert_eq!(api.try_get("nodes/node2").await.0, 404);
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
    assert_eq!(api.try_get("queues").await.0, 401, "there are no users yet");
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
    assert_eq!(
        api.get("vhosts/a%2Fb%25/permissions").await,
        json!([expected])
    );
    assert_eq!(api.get("permissions").await.as_array().unwrap().len(), 2);
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
async fn exchanges() {
    let api = ready().await;
    let body = json!({"type": "topic", "durable": true, "internal": true, "arguments": {"alternate-exchange": "a"}, "unknown": [1]});
    assert_eq!(api.put("exchanges/%2F/x%2F%25y", body.clone()).await, 201);
    assert_eq!(api.put("exchanges/%2F/x%2F%25y", body).await, 204);
    let known = api.get("exchanges/%2F/x%2F%25y").await;
    let expected = json!({
        "name": "x/%y", "vhost": "/", "type": "topic", "durable": true, "auto_delete": false, "internal": true, "arguments": {"alternate-exchange": "a"}
    });
    assert_eq!(known, expected);
    let reason = api
        .refused(
            "exchanges/%2F/x%2F%25y",
            json!({"type": "topic", "durable": "true", "internal": true}),
        )
        .await;
    assert!(
        reason.contains("inequivalent arg 'alternate-exchange' for exchange 'x/%y' in vhost '/'"),
        "{reason}"
    );
    assert!(
        api.refused("exchanges/%2F/z", json!({"type": "none"}))
            .await
            .contains("unknown exchange type 'none'")
    );
    assert!(
        api.refused("exchanges/%2F/z", json!({"durable": 3}))
            .await
            .contains("durable")
    );
    assert_eq!(
        api.put("exchanges/%2F/amq.new", json!({"type": "direct"}))
            .await,
        401,
        "as RabbitMQ answers AMQP's 403"
    );
    assert_eq!(
        api.put("exchanges/none/z", json!({"type": "direct"})).await,
        404
    );
    assert_eq!(api.get("exchanges/%2F/amq.default").await["name"], "");
    assert_eq!(
        names(&api.get("exchanges/%2F").await),
        [
            "",
            "amq.direct",
            "amq.fanout",
            "amq.headers",
            "amq.match",
            "amq.topic",
            "x/%y"
        ]
    );
    assert_eq!(api.get("exchanges").await, api.get("exchanges/%2F").await);

    api.put("queues/%2F/q", json!({"durable": true})).await;
    api.post("bindings/%2F/e/x%2F%25y/q/q", json!({})).await;
    let (status, _, body) = api
        .send(Method::DELETE, "exchanges/%2F/x%2F%25y?if-unused=true", "")
        .await;
    assert_eq!(
        (
            status.as_u16(),
            body["reason"].as_str().unwrap().contains("in use")
        ),
        (400, true),
        "{body}"
    );
    assert_eq!(
        (
            api.delete("exchanges/%2F/x%2F%25y").await,
            api.delete("exchanges/%2F/x%2F%25y").await
        ),
        (204, 404)
    );
    assert_eq!(api.delete("exchanges/%2F/amq.direct").await, 401);
}

/// What is declared over HTTP is equivalent to what AMQP clients declare with integers of any width.
#[tokio::test(flavor = "multi_thread")]
async fn queues_are_as_if_declared_over_amqp() {
    let api = ready().await;
    let arguments = json!({"x-message-ttl": 60000, "x-max-length": 10, "x-dead-letter-exchange": "d", "mine": {"n": null, "l": [1, 2.5, "x"]}});
    let body = json!({"durable": true, "arguments": arguments});
    assert_eq!(api.put("queues/%2F/a%2Fb%25", body.clone()).await, 201);
    assert_eq!(api.put("queues/%2F/a%2Fb%25", body).await, 204);
    let reason = api
        .refused(
            "queues/%2F/a%2Fb%25",
            json!({"durable": true, "arguments": {"x-message-ttl": 1}}),
        )
        .await;
    assert!(reason.starts_with("inequivalent arg 'x-message-ttl' for queue 'a/b%' in vhost '/': received the value '1' of type"), "{reason}");
    let mut table = OwnedTable::new();
    table
        .put("x-max-length", OwnedValue::U8(10))
        .put("x-message-ttl", OwnedValue::I32(60000))
        .put("x-dead-letter-exchange", OwnedValue::LongStr(b"d".to_vec()));
    let mut declare = DeclareQueue {
        vhost: "/".into(),
        name: "a/b%".into(),
        durable: true,
        exclusive: false,
        auto_delete: false,
        server_named: false,
        arguments: table.to_bytes(),
        session: SessionId {
            number: 1,
            ..api.node.own_session()
        },
        place: Place::Shard(warren_model::ShardId(0)),
    };
    assert!(matches!(
        api.node.metadata().table().read().check_queue(&declare),
        Check::Equivalent(Outcome::Queue { created: false, .. })
    ));
    declare.durable = false;
    assert!(matches!(
        api.node.metadata().table().read().check_queue(&declare),
        Check::Refused(_)
    ));

    let queue = api.get("queues/%2F/a%2Fb%25").await;
    let expected = json!({
        "name": "a/b%", "vhost": "/", "type": "classic", "durable": true, "auto_delete": false, "exclusive": false, "arguments": arguments, "node": "node1",
        "state": "running", "messages_ready": 0, "messages_unacknowledged": 0, "messages": 0, "message_bytes": 0, "consumers": 0
    });
    assert_eq!(queue, expected);
    assert_eq!(api.get("queues").await, json!([expected]));
    assert_eq!(
        api.put("queues/%2F/t", json!({"auto_delete": true})).await,
        201
    );
    let places = ["a/b%", "t"].map(|name| {
        api.node
            .metadata()
            .table()
            .read()
            .queue("/", name)
            .unwrap()
            .place
    });
    assert!(
        matches!(places, [Place::Shard(_), Place::Node(..)]),
        "{places:?}"
    );

    assert_eq!(api.put("queues/%2F/amq.q", json!({})).await, 401);
    assert_eq!(api.put("queues/none/q", json!({})).await, 404);
    assert!(
        api.refused("queues/%2F/e", json!({"exclusive": true}))
            .await
            .contains("exclusive")
    );
    assert!(
        api.refused("queues/%2F/e", json!({"arguments": {"x-expires": 0}}))
            .await
            .contains("x-expires")
    );
    assert!(
        api.refused("queues/%2F/e", json!({"arguments": {"n": u64::MAX}}))
            .await
            .contains("64-bit")
    );
    assert!(
        api.refused("queues/%2F/e", json!({"arguments": "x"}))
            .await
            .contains("arguments")
    );
    assert_eq!(api.put("queues/%2F/e", json!({"arguments": []})).await, 201);
    for condition in ["if-empty", "if-unused"] {
        let (status, _, body) = api
            .send(
                Method::DELETE,
                &format!("queues/%2F/e?{condition}=true"),
                "",
            )
            .await;
        assert_eq!(
            (
                status.as_u16(),
                body["reason"].as_str().unwrap().contains(condition)
            ),
            (400, true)
        );
    }
    assert_eq!(
        (
            api.delete("queues/%2F/e?if-empty=false").await,
            api.delete("queues/%2F/e").await
        ),
        (204, 404)
    );
}

/// An exclusive queue is seen and not touched.
#[tokio::test(flavor = "multi_thread")]
async fn exclusive_queues_belong_to_their_connection() {
    let api = ready().await;
    let session = SessionId {
        number: 7,
        ..api.node.own_session()
    };
    let declare = DeclareQueue {
        vhost: "/".into(),
        name: "e".into(),
        durable: false,
        exclusive: true,
        auto_delete: false,
        server_named: false,
        arguments: Vec::new(),
        session,
        place: Place::Node(session.node, session.incarnation),
    };
    api.node
        .metadata()
        .propose(Command::DeclareQueue(declare), SECOND)
        .await
        .unwrap();
    assert_eq!(api.get("queues/%2F/e").await["exclusive"], true);
    let (status, _, body) = api.send(Method::DELETE, "queues/%2F/e", "").await;
    assert_eq!(
        (
            status.as_u16(),
            body["reason"]
                .as_str()
                .unwrap()
                .contains("exclusive access to locked queue 'e'")
        ),
        (400, true),
        "{body}"
    );
    assert!(
        api.refused("queues/%2F/e", json!({}))
            .await
            .contains("locked queue 'e'")
    );
    let (status, _, body) = api
        .post("bindings/%2F/e/amq.direct/q/e", json!({"routing_key": "k"}))
        .await;
    assert_eq!(
        (
            status,
            body["reason"]
                .as_str()
                .unwrap()
                .contains("locked queue 'e'")
        ),
        (400, true),
        "{body}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages() {
    let api = ready().await;
    for i in 0..12 {
        assert_eq!(
            api.put(&format!("queues/%2F/q{i:02}"), json!({"durable": true}))
                .await,
            201
        );
    }
    let page = api.get("queues/%2F?page=2&page_size=5").await;
    assert_eq!(names(&page["items"]), ["q05", "q06", "q07", "q08", "q09"]);
    assert_eq!(
        [
            &page["item_count"],
            &page["filtered_count"],
            &page["total_count"],
            &page["page_count"]
        ],
        [&json!(5), &json!(12), &json!(12), &json!(3)]
    );
    assert_eq!(page["items"][0]["messages"], 0);
    let page = api.get("queues?page=1&name=Q1&columns=name").await;
    assert_eq!(
        (
            &page["items"],
            &page["filtered_count"],
            &page["total_count"]
        ),
        (
            &json!([{"name": "q10"}, {"name": "q11"}]),
            &json!(2),
            &json!(12)
        )
    );
    assert_eq!(
        names(&api.get("queues?page=1&name=%5Eq.5%24&use_regex=true").await["items"]),
        ["q05"]
    );
    assert_eq!(
        names(
            &api.get("queues?page=1&page_size=2&sort=name&sort_reverse=true")
                .await["items"]
        ),
        ["q11", "q10"]
    );
    assert_eq!(
        names(&api.get("queues?page=1&page_size=2&sort_reverse=true").await["items"]),
        ["q11", "q10"]
    );
    assert_eq!(
        api.try_get("queues?page=4&page_size=5").await.1["error"],
        "page_out_of_range"
    );
    assert_eq!(api.try_get("queues?page=0").await.0, 400);
    assert_eq!(
        names(&api.get("exchanges?page=1&name=topic").await["items"]),
        ["amq.topic"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings() {
    let api = ready().await;
    api.put("queues/%2F/q%2F1", json!({"durable": true})).await;
    api.put("exchanges/%2F/x", json!({"type": "headers"})).await;
    let path = "bindings/%2F/e/x/q/q%2F1";
    assert_eq!(api.get(path).await, json!([]));
    let arguments = json!({"x-match": "any", "n": 1, "b": true, "s": "1"});
    let (status, headers, _) = api
        .post(
            path,
            json!({"routing_key": "a b#%", "arguments": arguments}),
        )
        .await;
    let location = headers["location"].to_str().unwrap().to_owned();
    assert_eq!((status, &location[..6]), (201, "q%2F1/"), "{location}");
    assert_eq!(
        api.post(
            path,
            json!({"routing_key": "a b#%", "arguments": arguments})
        )
        .await
        .0,
        201,
        "once more changes nothing"
    );
    let listed = api.get(path).await;
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let binding = &listed[0];
    let properties_key = binding["properties_key"].as_str().unwrap();
    assert!(properties_key.starts_with("a+b%23%25~"), "{properties_key}");
    assert_eq!(
        binding["arguments"],
        json!({"b": true, "n": 1, "s": "1", "x-match": "any"})
    );
    assert_eq!(
        (
            &binding["routing_key"],
            &binding["destination_type"],
            &binding["destination"]
        ),
        (&json!("a b#%"), &json!("queue"), &json!("q/1"))
    );
    assert_eq!(
        api.get(&format!("bindings/%2F/e/x/q/{location}")).await,
        *binding
    );
    assert_eq!(
        api.get(&format!("bindings/%2F/e/x/q/q%2F1/{properties_key}"))
            .await,
        *binding,
        "encoded once only"
    );

    // Bindings of the default exchange are listed, and nothing more.
    let implicit = json!({"source": "", "vhost": "/", "destination": "q/1", "destination_type": "queue", "routing_key": "q/1", "arguments": {}, "properties_key": "q%2F1"});
    assert_eq!(api.get("bindings").await, json!([implicit, binding]));
    assert_eq!(api.get("bindings/%2F").await, api.get("bindings").await);
    assert_eq!(
        api.get("queues/%2F/q%2F1/bindings").await,
        api.get("bindings").await
    );
    assert_eq!(
        api.get("exchanges/%2F/x/bindings/source").await,
        json!([binding])
    );
    assert_eq!(
        api.get("exchanges/%2F/amq.default/bindings/source").await,
        json!([implicit])
    );
    assert_eq!(
        api.get("bindings/%2F/e/amq.default/q/q%2F1").await,
        json!([implicit])
    );
    assert_eq!(
        api.get("bindings/%2F/e/amq.default/q/q%2F1/q%252F1").await,
        implicit
    );
    assert_eq!(
        api.delete("bindings/%2F/e/amq.default/q/q%2F1/q%252F1")
            .await,
        401
    );
    assert_eq!(
        api.post(
            "bindings/%2F/e/amq.default/q/q%2F1",
            json!({"routing_key": "k"})
        )
        .await
        .0,
        401
    );

    // Between exchanges, without key or arguments.
    let (status, headers, _) = api.post("bindings/%2F/e/amq.fanout/e/x", json!({})).await;
    assert_eq!(
        (status, headers["location"].to_str().unwrap()),
        (201, "x/%7E")
    );
    assert_eq!(
        api.get("bindings/%2F/e/amq.fanout/e/x/~").await["destination_type"],
        "exchange"
    );
    assert_eq!(
        api.get("exchanges/%2F/x/bindings/destination")
            .await
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(api.delete("bindings/%2F/e/amq.fanout/e/x/~").await, 204);
    assert_eq!(api.delete("bindings/%2F/e/amq.fanout/e/x/~").await, 404);

    assert_eq!(
        api.delete(&format!("bindings/%2F/e/x/q/{location}")).await,
        204
    );
    assert!(
        api.node
            .metadata()
            .table()
            .read()
            .bindings_of_destination("/", &Destination::Queue("q/1".into()))
            .next()
            .is_none()
    );
    for bad in [
        "bindings/%2F/e/none/q/q%2F1",
        "bindings/%2F/e/x/q/none",
        "bindings/none/e/x/q/q%2F1",
        "bindings/%2F/e/x/z/q%2F1",
    ] {
        assert_eq!(api.post(bad, json!({})).await.0, 404, "{bad}");
    }
    let (status, _, body) = api
        .post(path, json!({"arguments": {"x-match": "some"}}))
        .await;
    assert_eq!(
        (status, &body["error"]),
        (400, &json!("bad_request")),
        "{body}"
    );
    assert_eq!(
        api.post(path, json!({"routing_key": "k".repeat(256)}))
            .await
            .0,
        400
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
