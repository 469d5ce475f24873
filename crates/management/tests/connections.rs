//! Connections, channels, consumers and rates as operators see them.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::amqp::{Amqp, short};
use common::{Api, ready};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;
use warren_protocol::{
    BasicAck, BasicConsume, BasicPublish, BasicQos, CLASS_BASIC, ConfirmSelect, Method,
    QueueDeclare, Table, write_content,
};

const PEER: &str = "127.0.0.1:40001";
const NAME: &str = "127.0.0.1:40001 -> 127.0.0.1:5672";
const PATH: &str = "127.0.0.1%3A40001%20-%3E%20127.0.0.1%3A5672";

/// Asks until what is answered fits: what a session has done shows when its turn is over.
async fn until(api: &Api, path: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let found = api.get(path).await;
        if fits(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{path}: {found:#}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn consuming(api: &Api) -> Amqp {
    let mut amqp = Amqp::open_from(&api.node, PEER).await;
    let declare = QueueDeclare {
        queue: short("q"),
        durable: true,
        ..QueueDeclare::default()
    };
    amqp.call(declare, "queue.declare-ok").await;
    amqp.call(ConfirmSelect { no_wait: false }, "confirm.select-ok")
        .await;
    let qos = BasicQos {
        prefetch_size: 0,
        prefetch_count: 7,
        global: false,
    };
    amqp.call(qos, "basic.qos-ok").await;
    let consume = BasicConsume {
        queue: short("q"),
        consumer_tag: short("tag"),
        arguments: Table::parse(b"\x0ax-priorityb\x05").unwrap(),
        ..BasicConsume::default()
    };
    amqp.call(consume, "basic.consume-ok").await;
    let mut bytes = Vec::new();
    for key in ["q", "q", "nowhere"] {
        let publish = BasicPublish {
            exchange: short(""),
            routing_key: short(key),
            mandatory: false,
            immediate: false,
        };
        Method::from(publish).write(1, &mut bytes);
        write_content(&mut bytes, 1, 4096, CLASS_BASIC, &[0, 0], b"body");
    }
    amqp.write(&bytes).await;
    amqp.wait_for("basic.deliver").await;
    let ack = BasicAck {
        delivery_tag: 1,
        multiple: false,
    };
    amqp.send(1, ack).await;
    amqp
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_and_what_belongs_to_it_are_shown() {
    let api = ready().await;
    assert_eq!(api.get("connections").await, json!([]));
    let _amqp = consuming(&api).await;

    let all = api.get("connections").await;
    let row = &all[0];
    let fields = [
        ("name", json!(NAME)),
        ("node", json!("node1")),
        ("user", json!("guest")),
        ("vhost", json!("/")),
        ("peer_host", json!("127.0.0.1")),
        ("peer_port", json!(40001)),
        ("host", json!("127.0.0.1")),
        ("port", json!(5672)),
        ("protocol", json!("AMQP 0-9-1")),
        ("auth_mechanism", json!("PLAIN")),
        ("state", json!("running")),
        ("channels", json!(1)),
        ("channel_max", json!(1)),
        ("frame_max", json!(4096)),
        ("timeout", json!(0)),
        ("ssl", json!(false)),
        ("user_provided_name", json!("n")),
        ("client_properties", json!({"connection_name": "n"})),
    ];
    for (field, value) in fields {
        assert_eq!(row[field], value, "{field}");
    }
    assert!(row["recv_oct"].as_u64().unwrap() > 100, "{row}");
    assert!(row["recv_oct_details"]["rate"].as_f64().unwrap() > 0.0);
    assert!(row["connected_at"].as_u64().unwrap() > 1_700_000_000_000);
    let one = api.get(&format!("connections/{PATH}")).await;
    assert_eq!(one["name"], NAME);
    for path in [
        "vhosts/%2F/connections",
        "connections/username/guest",
        "users/guest/connections",
    ] {
        assert_eq!(api.get(path).await[0]["name"], NAME, "{path}");
    }
    assert_eq!(api.get("users/nobody/connections").await, json!([]));
    assert_eq!(api.try_get("vhosts/none/connections").await.0, 404);
    assert_eq!(api.try_get("connections/none").await.0, 404);

    let acked = |channels: &Value| channels[0]["message_stats"]["ack"] == 1;
    let channels = until(&api, "channels", acked).await;
    let channel = &channels[0];
    assert_eq!(
        (&channel["name"], &channel["number"], &channel["confirm"]),
        (&json!(format!("{NAME} (1)")), &json!(1), &json!(true))
    );
    assert_eq!(
        (&channel["prefetch_count"], &channel["consumer_count"]),
        (&json!(7), &json!(1))
    );
    assert_eq!(
        (
            &channel["messages_unacknowledged"],
            &channel["messages_unconfirmed"]
        ),
        (&json!(1), &json!(0))
    );
    let stats = &channel["message_stats"];
    assert_eq!(
        (&stats["publish"], &stats["confirm"], &stats["deliver_get"]),
        (&json!(3), &json!(3), &json!(2)),
        "{stats}"
    );
    assert_eq!(stats["drop_unroutable"], 1);
    assert!(stats["publish_details"]["rate"].as_f64().unwrap() > 0.0);
    for path in [
        format!("connections/{PATH}/channels"),
        "vhosts/%2F/channels".to_owned(),
    ] {
        assert_eq!(api.get(&path).await[0]["number"], 1, "{path}");
    }
    let by_name = api.get(&format!("channels/{PATH}%20(1)")).await;
    assert_eq!(by_name["number"], 1);
    for name in [format!("{PATH}%20(2)"), "none".to_owned()] {
        assert_eq!(api.try_get(&format!("channels/{name}")).await.0, 404);
    }

    let consumers = api.get("consumers").await;
    let consumer = &consumers[0];
    assert_eq!(
        (
            &consumer["consumer_tag"],
            &consumer["queue"],
            &consumer["ack_required"]
        ),
        (
            &json!("tag"),
            &json!({"name": "q", "vhost": "/"}),
            &json!(true)
        )
    );
    assert_eq!(
        (
            &consumer["prefetch_count"],
            &consumer["channel_details"]["name"]
        ),
        (&json!(7), &json!(format!("{NAME} (1)")))
    );
    assert_eq!(consumer["arguments"], json!({"x-priority": 5}));
    assert_eq!(api.get("consumers/%2F").await, consumers);
    assert_eq!(api.get("queues/%2F/q").await["consumer_details"], consumers);
    let channel = api.get(&format!("channels/{PATH}%20(1)")).await;
    assert_eq!(channel["consumer_details"], consumers);

    let queue = until(&api, "queues/%2F/q", |q| q["message_stats"]["ack"] == 1).await;
    let stats = &queue["message_stats"];
    assert_eq!(
        (&stats["publish"], &stats["deliver_get"]),
        (&json!(2), &json!(2)),
        "{stats}"
    );
    let overview = api.get("overview").await;
    assert_eq!(overview["object_totals"]["connections"], 1);
    assert_eq!(overview["object_totals"]["channels"], 1);
    assert_eq!(overview["message_stats"]["publish"], 3, "{overview}");
    assert_eq!(overview["churn_rates"]["connection_created"], 1);
    assert_eq!(api.get("nodes").await[0]["sockets_used"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_connections_are_paged_sorted_and_narrowed() {
    let api = ready().await;
    let mut open = Vec::new();
    for port in 1..=5 {
        open.push(Amqp::open_from(&api.node, &format!("127.0.0.1:4000{port}")).await);
    }
    let page = api
        .get("connections?page=2&page_size=2&sort=peer_port&sort_reverse=true&columns=peer_port")
        .await;
    assert_eq!(
        (&page["items"], &page["page_count"], &page["total_count"]),
        (
            &json!([{"peer_port": 40003}, {"peer_port": 40002}]),
            &json!(3),
            &json!(5)
        )
    );
    let found = api
        .get("connections?page=1&name=:4000[12]&use_regex=true&columns=peer_port")
        .await;
    assert_eq!(
        found["items"],
        json!([{"peer_port": 40001}, {"peer_port": 40002}])
    );
    for list in ["users", "vhosts", "permissions", "nodes"] {
        let page = api.get(&format!("{list}?page=1&page_size=10")).await;
        assert_eq!(page["item_count"], 1, "{list}");
        assert_eq!(api.try_get(&format!("{list}?page=0")).await.0, 400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_hears_why() {
    let api = ready().await;
    let mut amqp = Amqp::open_from(&api.node, PEER).await;
    assert_eq!(api.delete("connections/none").await, 404);
    assert_eq!(
        api.delete_with(&format!("connections/{PATH}"), "x-reason", "too loud")
            .await,
        204
    );
    let close = amqp.wait_for("connection.close").await;
    assert!(
        close.contains("320") && close.contains("CONNECTION_FORCED - too loud"),
        "{close}"
    );
    amqp.send(0, Method::ConnectionCloseOk).await;
    until(&api, "connections", |all| *all == json!([])).await;
    assert_eq!(api.delete(&format!("connections/{PATH}")).await, 404);

    let mut again = Amqp::open_from(&api.node, PEER).await;
    assert_eq!(api.delete("connections/username/nobody").await, 204);
    assert_eq!(api.get("connections").await.as_array().unwrap().len(), 1);
    assert_eq!(api.delete("connections/username/guest").await, 204);
    again.wait_for("connection.close").await;
}

/// Such a client hears nothing, but its connection goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_client_does_not_read_is_shown_and_closed() {
    let api = ready().await;
    let mut amqp = Amqp::open_from(&api.node, PEER).await;
    let declare = QueueDeclare {
        queue: short("q"),
        ..QueueDeclare::default()
    };
    amqp.call(declare, "queue.declare-ok").await;
    let consume = BasicConsume {
        queue: short("q"),
        no_ack: true,
        ..BasicConsume::default()
    };
    amqp.call(consume, "basic.consume-ok").await;
    let body = "x".repeat(700_000);
    for _ in 0..3 {
        let publish = json!({"properties": {}, "routing_key": "q", "payload": body, "payload_encoding": "string"});
        let (status, ..) = api.post("exchanges/%2F/amq.default/publish", publish).await;
        assert_eq!(status, 200);
    }
    let lives = |all: &Value| all[0].get("state").is_some();
    until(&api, "connections", |all| !lives(all)).await;
    assert_eq!(api.delete(&format!("connections/{PATH}")).await, 204);
    until(&api, "connections", |all| *all == json!([])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_see_and_close_their_own() {
    let api = ready().await;
    let _amqp = Amqp::open_from(&api.node, PEER).await;
    for (name, tag) in [("m", "management"), ("w", "monitoring")] {
        let user = json!({"password": "p", "tags": tag});
        assert_eq!(api.put(&format!("users/{name}"), user).await, 201);
    }
    let (manager, monitor) = (api.user("m", "p"), api.user("w", "p"));
    assert_eq!(manager.get("connections").await, json!([]));
    assert_eq!(manager.get("channels").await, json!([]));
    assert_eq!(manager.get("consumers").await, json!([]));
    let path = format!("connections/{PATH}");
    for path in [
        path.as_str(),
        "connections/username/guest",
        "vhosts/%2F/connections",
        &format!("{path}/channels"),
    ] {
        assert_eq!(manager.try_get(path).await.0, 401, "{path}");
        assert_eq!(monitor.try_get(path).await.0, 200, "{path}");
    }
    for (who, path) in [
        (&manager, path.as_str()),
        (&monitor, path.as_str()),
        (&monitor, "connections/username/guest"),
    ] {
        assert_eq!(who.delete(path).await, 401, "{path}");
    }
    assert_eq!(manager.delete("connections/username/m").await, 204);
    assert_eq!(
        api.authorized(None).try_get("connections").await.0,
        401,
        "nobody"
    );
}
