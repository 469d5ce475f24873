//! Exchanges, queues and bindings over the API, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use axum::http::Method;
use common::ready;
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

    let mut queue = api.get("queues/%2F/a%2Fb%25").await;
    let consumers = queue.as_object_mut().unwrap().remove("consumer_details");
    assert_eq!(consumers, Some(json!([])));
    let expected = json!({
        "name": "a/b%", "vhost": "/", "type": "classic", "durable": true, "auto_delete": false, "exclusive": false, "arguments": arguments, "node": "node1",
        "state": "running", "messages_ready": 0, "messages_unacknowledged": 0, "messages": 0, "message_bytes": 0, "consumers": 0,
        "leader": "node1", "members": ["node1"], "online": ["node1"]
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
