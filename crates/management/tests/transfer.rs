//! Exports and imports of definitions, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use axum::http::Method;
use common::amqp::{Amqp, short};
use common::{Api, ready};
use serde_json::{Value, json};
use warren_protocol::{
    ExchangeDeclare, OwnedTable, OwnedValue, QueueBind, QueueDeclare, QueueUnbind, Table,
};

async fn import(api: &Api, path: &str, definitions: &Value) -> (u16, String) {
    let (status, _, answer) = api.send(Method::POST, path, definitions.to_string()).await;
    let reason = answer["reason"].as_str().unwrap_or_default();
    (status.as_u16(), reason.to_owned())
}

async fn refused(api: &Api, definitions: Value) -> String {
    let before = api.get("routing/digest").await["digest"].clone();
    let (status, reason) = import(api, "definitions", &definitions).await;
    assert_eq!(status, 400, "{definitions}: {reason}");
    let after = api.get("routing/digest").await["digest"].clone();
    assert_eq!(before, after, "nothing is changed");
    reason
}

fn find<'a>(export: &'a Value, list: &str, name: &str) -> &'a Value {
    let mut items = export[list].as_array().unwrap().iter();
    items.find(|item| item["name"] == name).unwrap()
}

/// Everything that AMQP clients declare, with the types that they like.
struct Declared {
    queue: Vec<u8>,
    exchange: Vec<u8>,
    binding: Vec<u8>,
}

impl Declared {
    fn new() -> Self {
        let mut queue = OwnedTable::new();
        queue
            .put("x-message-ttl", OwnedValue::I32(60000))
            .put("x-max-length", OwnedValue::U8(10))
            .put("x-dead-letter-exchange", "d")
            .put("mine", OwnedValue::Timestamp(7));
        let mut exchange = OwnedTable::new();
        exchange.put("alternate-exchange", "a");
        let mut binding = OwnedTable::new();
        binding
            .put("x-match", "any")
            .put("n", OwnedValue::I32(1))
            .put("b", true)
            .put("s", "1")
            .put("x", OwnedValue::Bytes(vec![0xff]));
        Self {
            queue: queue.to_bytes(),
            exchange: exchange.to_bytes(),
            binding: binding.to_bytes(),
        }
    }

    async fn declare(&self, amqp: &mut Amqp) {
        let exchange = ExchangeDeclare {
            exchange: short("x/%"),
            kind: short("headers"),
            durable: true,
            arguments: Table::parse(&self.exchange).unwrap(),
            ..ExchangeDeclare::default()
        };
        amqp.call(exchange, "exchange.declare-ok").await;
        let queue = QueueDeclare {
            queue: short("q"),
            durable: true,
            arguments: Table::parse(&self.queue).unwrap(),
            ..QueueDeclare::default()
        };
        amqp.call(queue, "queue.declare-ok").await;
        let bind = QueueBind {
            queue: short("q"),
            exchange: short("x/%"),
            routing_key: short("k"),
            arguments: Table::parse(&self.binding).unwrap(),
            ..QueueBind::default()
        };
        amqp.call(bind, "queue.bind-ok").await;
    }

    async fn unbind(&self, amqp: &mut Amqp) {
        let unbind = QueueUnbind {
            queue: short("q"),
            exchange: short("x/%"),
            routing_key: short("k"),
            arguments: Table::parse(&self.binding).unwrap(),
        };
        amqp.call(unbind, "queue.unbind-ok").await;
    }
}

/// Export, wipe, import, compare; then redeclare and unbind over AMQP with the types of before (A36).
#[tokio::test(flavor = "multi_thread")]
async fn what_is_exported_can_be_imported() {
    let api = ready().await;
    let declared = Declared::new();
    let mut amqp = Amqp::open(&api.node).await;
    declared.declare(&mut amqp).await;
    let exclusive = QueueDeclare {
        queue: short("exclusive"),
        exclusive: true,
        ..QueueDeclare::default()
    };
    amqp.call(exclusive, "queue.declare-ok").await;
    let bind = json!({"routing_key": "k"});
    for path in [
        "bindings/%2F/e/x%2F%25/e/amq.topic",
        "bindings/%2F/e/amq.direct/q/q",
    ] {
        assert_eq!(api.post(path, bind.clone()).await.0, 201);
    }
    api.put("vhosts/v", json!({})).await;
    api.put("queues/v/plain", json!({"arguments": {"x-max-length": 3}}))
        .await;
    api.put("users/u", json!({"password": "p", "tags": "management,x"}))
        .await;
    let permission = json!({"configure": "", "write": "a", "read": ".*"});
    api.put("permissions/v/u", permission).await;

    let export = api.get("definitions").await;
    assert_eq!(export["vhosts"], json!([{"name": "/"}, {"name": "v"}]));
    let exchange = json!({
        "name": "x/%", "vhost": "/", "type": "headers", "durable": true, "auto_delete": false, "internal": false, "arguments": {"alternate-exchange": "a"}
    });
    assert_eq!(export["exchanges"], json!([exchange]));
    assert_eq!(export["queues"].as_array().unwrap().len(), 2, "{export}");
    let plain = json!({"name": "plain", "vhost": "v", "durable": false, "auto_delete": false, "arguments": {"x-max-length": 3}});
    assert_eq!(*find(&export, "queues", "plain"), plain);
    assert_eq!(export["bindings"].as_array().unwrap().len(), 3, "{export}");
    assert_eq!(export["permissions"].as_array().unwrap().len(), 3);
    assert_eq!(
        find(&export, "users", "u")["tags"],
        json!(["management", "x"])
    );

    declared.unbind(&mut amqp).await;
    for path in [
        "queues/%2F/q",
        "exchanges/%2F/x%2F%25",
        "vhosts/v",
        "users/u",
    ] {
        assert_eq!(api.delete(path).await, 204, "{path}");
    }
    assert_ne!(api.get("definitions").await, export);
    let none = (204, String::new());
    assert_eq!(import(&api, "definitions", &export).await, none);
    assert_eq!(api.get("definitions").await, export);
    assert_eq!(api.user("u", "p").get("whoami").await["name"], "u");
    assert_eq!(import(&api, "definitions", &export).await, none, "again");

    declared.declare(&mut amqp).await;
    assert_eq!(
        api.get("definitions").await,
        export,
        "nothing is declared a second time"
    );
    declared.unbind(&mut amqp).await;
    assert_eq!(
        api.get("definitions").await["bindings"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_virtual_host_can_be_copied_into_another() {
    let api = ready().await;
    Declared::new()
        .declare(&mut Amqp::open(&api.node).await)
        .await;
    let export = api.get("definitions/%2F").await;
    for list in ["users", "vhosts", "permissions"] {
        assert!(export.get(list).is_none(), "{list}");
    }
    assert!(export["queues"][0].get("vhost").is_none());
    assert_eq!(import(&api, "definitions/copy", &export).await.0, 404);
    api.put("vhosts/copy", json!({})).await;
    assert_eq!(import(&api, "definitions/copy", &export).await.0, 204);
    assert_eq!(api.get("definitions/copy").await, export);
    let (status, reason) = import(
        &api,
        "definitions/copy",
        &json!({"queues": [{"name": "q", "vhost": "/"}]}),
    )
    .await;
    assert_eq!((status, reason.contains("'copy'")), (400, true), "{reason}");
    let all = json!({"users": [{"name": "x", "tags": ""}]});
    let (status, reason) = import(&api, "definitions/copy", &all).await;
    assert_eq!(
        (status, reason.contains("users (1)")),
        (400, true),
        "{reason}"
    );
}

/// What would fail at the end is found before the beginning.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_imported_of_what_cannot_all_be() {
    let api = ready().await;
    let mut amqp = Amqp::open(&api.node).await;
    Declared::new().declare(&mut amqp).await;
    let exclusive = QueueDeclare {
        queue: short("locked"),
        exclusive: true,
        ..QueueDeclare::default()
    };
    amqp.call(exclusive, "queue.declare-ok").await;
    let good = json!({"name": "new", "vhost": "/", "durable": true});
    let queues = |other: Value| json!({"queues": [good, other]});
    let bindings = |source: &str, name: &str| {
        let binding = json!({"source": source, "vhost": "/", "destination": name, "destination_type": "queue", "routing_key": ""});
        json!({"queues": [good], "bindings": [binding]})
    };
    for (definitions, why) in [
        (
            queues(json!({"name": "q", "vhost": "/", "durable": false})),
            "queue 'q' in vhost '/' would be refused: inequivalent arg 'durable'",
        ),
        (
            queues(json!({"name": "locked", "vhost": "/"})),
            "exclusive access",
        ),
        (
            queues(json!({"name": "x", "vhost": "none"})),
            "queue 'x' in vhost 'none'",
        ),
        (queues(json!({"name": "amq.x", "vhost": "/"})), "reserved"),
        (
            queues(json!({"name": "x", "vhost": "/", "arguments": {"x-expires": 0}})),
            "x-expires",
        ),
        (
            queues(json!({"name": "new", "vhost": "/", "durable": false})),
            "inequivalent",
        ),
        (
            queues(json!({"name": "x"})),
            "queues[1]: key_missing: vhost",
        ),
        (queues(json!("x")), "queues[1]"),
        (json!({"queues": {}}), "queues must be a list"),
        (bindings("none", "new"), "the binding from 'none' to 'new'"),
        (bindings("", "new"), "default exchange"),
        (bindings("x/%", "none"), "no queue 'none'"),
        (bindings("amq.direct", "locked"), "exclusive access"),
        (
            json!({"queues": [good], "exchanges": [{"name": "x", "vhost": "/", "type": "x-none"}]}),
            "unknown exchange type",
        ),
        (
            json!({"queues": [good], "permissions": [{"user": "nobody", "vhost": "/", "configure": "", "write": "", "read": ""}]}),
            "nobody",
        ),
        (
            json!({"queues": [good], "permissions": [{"user": "guest", "vhost": "/", "configure": "(", "write": "", "read": ""}]}),
            "permissions[0]: configure is no regular expression",
        ),
        (
            json!({"vhosts": [{"name": "w"}], "users": [{"name": "x", "tags": "", "password_hash": "AA=="}]}),
            "users[0]: password_hash",
        ),
    ] {
        let reason = refused(&api, definitions).await;
        assert!(reason.contains(why), "{reason}\nshould say {why}");
    }
    let whole = json!({
        "vhosts": [{"name": "w"}], "queues": [{"name": "amq.gen-x", "vhost": "w"}],
        "bindings": [{"source": "amq.topic", "vhost": "w", "destination": "amq.gen-x", "destination_type": "queue", "routing_key": "#"}]
    });
    assert_eq!(import(&api, "definitions", &whole).await.0, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_equivalent_is_not_dropped_in_silence() {
    let api = ready().await;
    let definitions = json!({
        "rabbit_version": "3.13.0", "queues": [{"name": "q", "vhost": "/"}], "shovels": [{}],
        "vhosts": [{"name": "/", "limits": []}], "users": [{"name": "u", "tags": []}],
        "global_parameters": [{"name": "internal_cluster_id", "value": "x"}, {"name": "mine", "value": 1}], "news": [1]
    });
    let reason = refused(&api, definitions.clone()).await;
    for part in ["shovels (1)", "news (1)", "?ignore=news,shovels"] {
        assert!(reason.contains(part), "{reason}");
    }
    let path = "definitions?ignore=shovels";
    assert_eq!(import(&api, path, &definitions).await.0, 400);
    let path = format!("{path},news");
    assert_eq!(import(&api, &path, &definitions).await.0, 204);
    assert_eq!(api.get("queues/%2F/q").await["name"], "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_definitions_are_imported_together_and_by_administrators_alone() {
    let api = ready().await;
    let queues: Vec<Value> = (0..700)
        .map(|i| json!({"name": format!("q{i:03}"), "durable": true}))
        .collect();
    let bindings: Vec<Value> = (0..700)
        .map(|i| json!({"source": "amq.topic", "destination": format!("q{i:03}"), "destination_type": "queue", "routing_key": "k", "arguments": {}}))
        .collect();
    let definitions = json!({"queues": queues, "bindings": bindings});
    assert_eq!(import(&api, "definitions/%2F", &definitions).await.0, 204);
    let export = api.get("definitions/%2F").await;
    assert_eq!(export["queues"].as_array().unwrap().len(), 700);
    assert_eq!(export["bindings"], definitions["bindings"]);

    api.put("users/m", json!({"password": "p", "tags": "monitoring"}))
        .await;
    let m = api.user("m", "p");
    for path in ["definitions", "definitions/%2F"] {
        assert_eq!(m.try_get(path).await.0, 401);
        assert_eq!(import(&m, path, &json!({})).await.0, 401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_checks_everything_and_changes_nothing() {
    let api = ready().await;
    let definitions = json!({
        "vhosts": [{"name": "v"}],
        "queues": [{"name": "q", "vhost": "v", "durable": true, "auto_delete": false, "arguments": {"x-max-length": 3, "mine": 1}}],
        "bindings": [{"source": "amq.direct", "vhost": "v", "destination": "q", "destination_type": "queue", "routing_key": "k", "arguments": {}}],
    });
    let before = api.get("routing/digest").await;
    let (status, _, answer) = api
        .post("definitions?dry_run=true", definitions.clone())
        .await;
    assert_eq!(status, 200);
    let counts = |v: u8, q: u8, b: u8| json!({"vhosts": v, "users": 0, "permissions": 0, "exchanges": 0, "queues": q, "bindings": b, "policies": 0, "global_parameters": 0, "topic_permissions": 0, "parameters": 0, "limits": 0});
    let mut expected = counts(1, 1, 1);
    expected["creates"] = counts(1, 1, 1);
    expected["changes"] = counts(0, 0, 0);
    expected["without_effect"] =
        json!([{"object": "queue 'q' in vhost 'v'", "what": "x-max-length"}]);
    assert_eq!(answer, expected);
    let bad = json!({"bindings": [{"source": "none", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "k", "arguments": {}}]});
    let (status, ..) = api.post("definitions?dry_run=true", bad).await;
    assert_eq!(status, 400);
    assert_eq!(before, api.get("routing/digest").await);

    // Carried out, it says the same; made again, that there is nothing to do.
    let (status, _, answer) = api
        .post("definitions?report=true", definitions.clone())
        .await;
    assert_eq!((status, answer), (200, expected.clone()));
    assert_eq!(api.get("queues/v/q").await["name"], "q");
    expected["creates"] = counts(0, 0, 0);
    let (status, _, answer) = api.post("definitions?dry_run=true", definitions).await;
    assert_eq!((status, answer), (200, expected));
}

/// Mirroring and federation have no equivalent; an export that has them is taken all the same.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_mirrored_queues_are_kept_and_told() {
    let api = ready().await;
    let policy = json!({"name": "ha", "vhost": "/", "pattern": "", "apply-to": "queues", "priority": 0,
        "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"}});
    let definitions = json!({"policies": [policy]});
    let (status, _, report) = api.post("definitions?report=true", definitions).await;
    assert_eq!(status, 200);
    let what = |what: &str| json!({"object": "policy 'ha' in vhost '/'", "what": what});
    assert_eq!(
        report["without_effect"],
        json!([what("ha-mode"), what("ha-sync-mode")])
    );
    assert_eq!(api.get("definitions").await["policies"], json!([policy]));
    let unknown = json!({"policies": [{"name": "x", "vhost": "/", "pattern": "", "definition": {"none": 1}}]});
    assert!(refused(&api, unknown).await.contains("'none'"));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_queues_than_an_entry_can_number_are_refused() {
    let api = ready().await;
    let queues: Vec<Value> = (0..50_001)
        .map(|i| json!({"name": i.to_string(), "vhost": "/"}))
        .collect();
    let reason = refused(&api, json!({"queues": queues})).await;
    assert!(reason.contains("50001 queues are given"), "{reason}");
}
