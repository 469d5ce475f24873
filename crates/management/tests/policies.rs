//! Policies, operator policies, global parameters and topic permissions over HTTP, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Api, ready};
use serde_json::{Value, json};

fn lost() -> Value {
    json!({"pattern": "^x", "apply-to": "exchanges", "definition": {"alternate-exchange": "amq.fanout"}})
}

async fn routed(api: &Api) -> Value {
    let publish =
        json!({"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"});
    let (status, _, answer) = api.post("exchanges/%2F/x1/publish", publish).await;
    assert_eq!(status, 200, "{answer}");
    answer["routed"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_made_shown_applied_and_taken_away() {
    let api = ready().await;
    assert_eq!(api.get("policies").await, json!([]));
    assert_eq!(
        api.put("exchanges/%2F/x1", json!({"type": "direct"})).await,
        201
    );
    assert_eq!(api.put("queues/%2F/q", json!({"durable": true})).await, 201);
    let (status, ..) = api.post("bindings/%2F/e/amq.fanout/q/q", json!({})).await;
    assert_eq!(status, 201);
    assert_eq!(routed(&api).await, false);

    assert_eq!(api.put("policies/%2F/lost", lost()).await, 201);
    assert_eq!(routed(&api).await, true, "it applies at once");
    let policy = json!({
        "vhost": "/", "name": "lost", "pattern": "^x", "apply-to": "exchanges", "definition": {"alternate-exchange": "amq.fanout"}, "priority": 0
    });
    assert_eq!(api.get("policies/%2F/lost").await, policy);
    assert_eq!(api.get("policies").await, json!([policy]));
    assert_eq!(api.get("policies/%2F").await, json!([policy]));
    assert_eq!(api.get("operator-policies").await, json!([]));
    let exchange = api.get("exchanges/%2F/x1").await;
    assert_eq!(
        (
            &exchange["policy"],
            &exchange["operator_policy"],
            &exchange["effective_policy_definition"]
        ),
        (
            &json!("lost"),
            &Value::Null,
            &json!({"alternate-exchange": "amq.fanout"})
        )
    );
    assert!(
        api.get("exchanges/%2F/amq.topic")
            .await
            .get("policy")
            .is_none()
    );
    let explained = api.get("routing/explain?exchange=x1&key=k").await;
    assert_eq!(explained["steps"][0]["alternate"], "amq.fanout");

    let mut other = lost();
    other["pattern"] = json!("^y");
    assert_eq!(api.put("policies/%2F/lost", other).await, 204);
    assert_eq!(routed(&api).await, false);
    assert_eq!(api.delete("policies/%2F/lost").await, 204);
    assert_eq!(api.delete("policies/%2F/lost").await, 404);
    assert_eq!(api.try_get("policies/%2F/lost").await.0, 404);
    assert_eq!(api.try_get("policies/none").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_bound_what_queues_get() {
    let api = ready().await;
    assert_eq!(api.put("queues/%2F/q", json!({"durable": true})).await, 201);
    let policy = json!({"pattern": ".*", "apply-to": "queues", "definition": {"max-length": 10, "expires": 9}, "priority": 1});
    assert_eq!(api.put("policies/%2F/p", policy).await, 201);
    let bound = json!({"pattern": "q", "definition": {"max-length": 100, "expires": 5}});
    assert_eq!(api.put("operator-policies/%2F/o", bound).await, 201);
    for queue in [
        api.get("queues/%2F/q").await,
        api.get("queues").await[0].clone(),
    ] {
        assert_eq!(
            (
                &queue["policy"],
                &queue["operator_policy"],
                &queue["effective_policy_definition"]
            ),
            (
                &json!("p"),
                &json!("o"),
                &json!({"expires": 5, "max-length": 10})
            )
        );
    }
    assert_eq!(api.get("operator-policies/%2F/o").await["apply-to"], "all");
    assert_eq!(api.delete("operator-policies/%2F/o").await, 204);
    assert_eq!(
        api.get("queues/%2F/q").await["operator_policy"],
        Value::Null
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused() {
    let api = ready().await;
    let before = api.get("routing/digest").await;
    let with = |field: &str, value: Value| {
        let mut body = lost();
        body[field] = value;
        body
    };
    for (body, reason) in [
        (json!({}), "pattern"),
        (with("pattern", json!("(")), "regular expression"),
        (with("apply-to", json!("everything")), "apply-to"),
        (with("priority", json!("high")), "priority"),
        (with("priority", json!(1.5)), "priority"),
        (with("definition", json!({})), "at least one key"),
        (with("definition", json!({"ha-mode": "all"})), "ha-mode"),
        (with("definition", json!({"max-length": "5"})), "max-length"),
        (with("definition", json!({"max-length": -1})), "max-length"),
        (
            with("definition", json!({"overflow": "spill"})),
            "drop-head",
        ),
        (
            with("definition", json!({"alternate-exchange": 5})),
            "alternate-exchange",
        ),
    ] {
        let found = api.refused("policies/%2F/p", body.clone()).await;
        assert!(found.contains(reason), "{body}: {found}");
    }
    let found = api.refused("operator-policies/%2F/p", lost()).await;
    assert!(found.contains("operator policy"), "{found}");
    assert_eq!(api.put("policies/none/p", lost()).await, 404);
    assert_eq!(before, api.get("routing/digest").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn policymakers_make_policies_where_they_have_permissions() {
    let api = ready().await;
    for (name, tag) in [
        ("p", "policymaker"),
        ("m", "management"),
        ("w", "monitoring"),
    ] {
        let user = json!({"password": "p", "tags": tag});
        assert_eq!(api.put(&format!("users/{name}"), user).await, 201);
        if name != "w" {
            let all = json!({"configure": "", "write": "", "read": ""});
            assert_eq!(api.put(&format!("permissions/%2F/{name}"), all).await, 201);
        }
    }
    assert_eq!(api.put("vhosts/v", json!({})).await, 201);
    let [policymaker, manager, monitor] = ["p", "m", "w"].map(|name| api.user(name, "p"));
    assert_eq!(policymaker.put("policies/%2F/a", lost()).await, 201);
    assert_eq!(policymaker.put("policies/v/a", lost()).await, 401);
    let bound = json!({"pattern": "q", "definition": {"max-length": 100}});
    for who in [&policymaker, &manager, &monitor] {
        assert_eq!(who.put("operator-policies/%2F/o", bound.clone()).await, 401);
        assert_eq!(who.get("policies/%2F/a").await["name"], "a");
    }
    for who in [&manager, &monitor, &api.authorized(None)] {
        assert_eq!(who.put("policies/%2F/b", lost()).await, 401);
        assert_eq!(who.delete("policies/%2F/a").await, 401);
        assert_eq!(
            who.put("global-parameters/g", json!({"value": 1})).await,
            401
        );
        assert_eq!(who.try_get("global-parameters").await.0, 401);
    }
    assert_eq!(policymaker.delete("policies/%2F/a").await, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn global_parameters_are_kept() {
    let api = ready().await;
    let value = json!({"value": {"team": "orders", "n": [1, 2]}});
    assert_eq!(api.put("global-parameters/owner", value.clone()).await, 201);
    assert_eq!(api.put("global-parameters/owner", value.clone()).await, 204);
    let row = json!({"name": "owner", "value": value["value"]});
    assert_eq!(api.get("global-parameters/owner").await, row);
    assert_eq!(api.get("global-parameters").await, json!([row]));
    api.refused("global-parameters/x", json!({})).await;
    assert_eq!(api.delete("global-parameters/owner").await, 204);
    assert_eq!(api.delete("global-parameters/owner").await, 404);
    assert_eq!(api.try_get("global-parameters/owner").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_go_out_and_come_back() {
    let api = ready().await;
    assert_eq!(api.put("vhosts/v", json!({})).await, 201);
    assert_eq!(api.put("policies/v/p", lost()).await, 201);
    let bound = json!({"pattern": "q", "apply-to": "queues", "priority": -3, "definition": {"max-length": 100}});
    assert_eq!(api.put("operator-policies/v/o", bound).await, 201);
    assert_eq!(
        api.put("global-parameters/g", json!({"value": 5})).await,
        201
    );
    let export = api.get("definitions").await;
    assert_eq!(
        export["parameters"],
        json!([{"vhost": "v", "component": "operator_policy", "name": "o",
            "value": {"pattern": "q", "apply-to": "queues", "definition": {"max-length": 100}, "priority": -3}}])
    );
    assert_eq!(
        export["global_parameters"],
        json!([{"name": "g", "value": 5}])
    );
    let of_vhost = api.get("definitions/v").await;
    assert_eq!(of_vhost["policies"][0]["name"], "p");
    assert!(of_vhost["policies"][0].get("vhost").is_none());
    let before = api.get("routing/digest").await["digest"].clone();
    for path in [
        "policies/v/p",
        "operator-policies/v/o",
        "global-parameters/g",
    ] {
        assert_eq!(api.delete(path).await, 204);
    }
    let (status, _, answer) = api.post("definitions", export).await;
    assert_eq!(status, 204, "{answer}");
    assert_eq!(api.get("routing/digest").await["digest"], before);

    assert_eq!(api.delete("policies/v/p").await, 204);
    let (status, _, answer) = api.post("definitions/v", of_vhost).await;
    assert_eq!(status, 204, "{answer}");
    assert_eq!(api.get("policies/v/p").await["pattern"], "^x");
    for bad in [
        json!({"policies": [{"vhost": "v", "name": "b", "pattern": "(", "definition": {"max-length": 1}}]}),
        json!({"policies": [{"vhost": "none", "name": "b", "pattern": "a", "definition": {"max-length": 1}}]}),
        json!({"parameters": [{"vhost": "v", "component": "operator_policy", "name": "b", "value": 5}]}),
        json!({"parameters": [{"vhost": "v", "component": "policy", "name": "b", "value": {}}]}),
    ] {
        let (status, _, answer) = api.post("definitions", bad.clone()).await;
        assert_eq!(status, 400, "{bad}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topic_permissions_decide_which_keys_a_user_may_use() {
    let api = ready().await;
    let user = json!({"password": "p", "tags": "management"});
    assert_eq!(api.put("users/u.x", user).await, 201);
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    assert_eq!(api.put("permissions/%2F/u.x", all).await, 201);
    let u = api.user("u.x", "p");
    let publish = |exchange: &'static str, key: &'static str| {
        let u = u.clone();
        async move {
            let body = json!({"properties": {}, "routing_key": key, "payload": "", "payload_encoding": "string"});
            let path = format!("exchanges/%2F/{exchange}/publish");
            u.post(&path, body).await.0
        }
    };
    assert_eq!(publish("amq.topic", "k").await, 200);
    let permission = json!({"exchange": "amq.topic", "write": r"^{username}\.", "read": "^b"});
    let path = "topic-permissions/%2F/u.x";
    assert_eq!(api.put(path, permission.clone()).await, 201);
    assert_eq!(api.put(path, permission.clone()).await, 204);
    assert_eq!(publish("amq.topic", "k").await, 401);
    assert_eq!(publish("amq.topic", "uyx.k").await, 401, "a name is text");
    assert_eq!(publish("amq.topic", "u.x.k").await, 200);
    assert_eq!(publish("amq.direct", "k").await, 200, "no topic exchange");

    let mut row = permission.clone();
    row["user"] = json!("u.x");
    row["vhost"] = json!("/");
    for path in [
        path,
        "topic-permissions",
        "users/u.x/topic-permissions",
        "vhosts/%2F/topic-permissions",
    ] {
        assert_eq!(api.get(path).await, json!([row]), "{path}");
        assert_eq!(u.try_get(path).await.0, 401, "{path}");
    }
    let export = api.get("definitions").await;
    assert_eq!(export["topic_permissions"], json!([row]));
    assert_eq!(u.put(path, permission.clone()).await, 401);
    assert_eq!(u.delete(path).await, 401);
    assert_eq!(
        api.put("topic-permissions/%2F/none", permission.clone())
            .await,
        404
    );
    assert_eq!(api.put("topic-permissions/none/u.x", permission).await, 404);
    let bad = json!({"exchange": "amq.topic", "write": "(", "read": ""});
    api.refused(path, bad).await;
    api.refused(path, json!({"write": "", "read": ""})).await;

    assert_eq!(api.delete(&format!("{path}?exchange=other")).await, 204);
    assert_eq!(publish("amq.topic", "k").await, 401);
    assert_eq!(api.delete(path).await, 204);
    assert_eq!(publish("amq.topic", "k").await, 200);
    assert_eq!(api.post("definitions", export).await.0, 204);
    assert_eq!(publish("amq.topic", "k").await, 401, "it is back");
}
