//! Parameters of virtual hosts over HTTP, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::ready;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_set_shown_and_taken_away() {
    let api = ready().await;
    assert_eq!(api.get("parameters").await, json!([]));
    assert_eq!(api.put("vhosts/v", json!({})).await, 201);
    let path = "parameters/shovel/v/move";
    let value = json!({"src-queue": "a", "dest-queue": "b", "ack": true});
    let body = json!({"value": value, "vhost": "v", "component": "shovel", "name": "move"});
    assert_eq!(api.put(path, body).await, 201);
    let other = json!({"value": 5});
    assert_eq!(api.put("parameters/other/%2F/n", other).await, 201);
    let shovel = json!({"vhost": "v", "component": "shovel", "name": "move", "value": value});
    assert_eq!(api.get(path).await, shovel);
    assert_eq!(api.get("parameters/shovel").await, json!([shovel]));
    assert_eq!(api.get("parameters/shovel/v").await, json!([shovel]));
    assert_eq!(api.get("parameters/shovel/%2F").await, json!([]));
    assert_eq!(api.get("parameters").await.as_array().unwrap().len(), 2);
    assert_eq!(api.put(path, json!({"value": {}})).await, 204);
    assert_eq!(api.get(path).await["value"], json!({}));
    let reason = api.refused(path, json!({})).await;
    assert!(reason.contains("key_missing: value"), "{reason}");
    assert_eq!(
        api.put("parameters/shovel/none/n", json!({"value": 1}))
            .await,
        404
    );
    for path in ["parameters/shovel/v/none", "parameters/shovel/none"] {
        assert_eq!(api.try_get(path).await.0, 404, "{path}");
    }
    assert_eq!(api.delete(path).await, 204);
    assert_eq!(api.delete(path).await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_policies_and_limits_are_parameters_too() {
    let api = ready().await;
    let value = json!({"pattern": ".*", "apply-to": "queues", "definition": {"max-length": 5}});
    let operator = "parameters/operator_policy/%2F/o";
    assert_eq!(api.put(operator, json!({"value": value})).await, 201);
    let policy = api.get("operator-policies/%2F/o").await;
    assert_eq!(policy["definition"], value["definition"]);
    let limits = "parameters/vhost-limits/%2F/limits";
    let set = json!({"value": {"max-queues": 3}});
    assert_eq!(api.put(limits, set).await, 201);
    assert_eq!(
        api.get("vhost-limits/%2F").await[0]["value"],
        json!({"max-queues": 3})
    );
    assert_eq!(api.get("parameters").await.as_array().unwrap().len(), 2);
    assert_eq!(
        api.get(limits).await,
        json!({"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 3}})
    );
    let reason = api
        .refused("parameters/policy/%2F/p", json!({"value": value}))
        .await;
    assert!(reason.contains("/api/policies"), "{reason}");
    api.refused(operator, json!({"value": 1})).await;
    for path in [operator, limits] {
        assert_eq!(api.delete(path).await, 204);
    }
    assert_eq!(api.get("operator-policies").await, json!([]));
    assert_eq!(api.get("vhost-limits").await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn policymakers_set_parameters_where_they_have_permissions() {
    let api = ready().await;
    assert_eq!(api.put("vhosts/v", json!({})).await, 201);
    for (name, tags) in [("p", "policymaker"), ("w", "monitoring")] {
        let user = json!({"password": "p", "tags": tags});
        assert_eq!(api.put(&format!("users/{name}"), user).await, 201);
    }
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    assert_eq!(api.put("permissions/v/p", all).await, 201);
    let [policymaker, monitor] = ["p", "w"].map(|name| api.user(name, "p"));
    let body = || json!({"value": 1});
    assert_eq!(policymaker.put("parameters/c/v/n", body()).await, 201);
    assert_eq!(policymaker.put("parameters/c/%2F/n", body()).await, 401);
    assert_eq!(policymaker.get("parameters").await[0]["vhost"], "v");
    let limits = json!({"value": {"max-queues": 1}});
    let path = "parameters/vhost-limits/v/limits";
    assert_eq!(policymaker.put(path, limits).await, 401);
    assert_eq!(monitor.try_get("parameters").await.0, 401);
    assert_eq!(monitor.put("parameters/c/v/n", body()).await, 401);
    assert_eq!(monitor.delete("parameters/c/v/n").await, 401);
    assert_eq!(policymaker.delete("parameters/c/v/n").await, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_exported_and_imported() {
    let api = ready().await;
    let given = json!({
        "vhosts": [{"name": "v"}],
        "parameters": [
            {"vhost": "v", "component": "operator_policy", "name": "o", "value": {"pattern": "", "apply-to": "all", "definition": {"expires": 1}, "priority": 0}},
            {"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-connections": 9}},
            {"vhost": "v", "component": "shovel", "name": "s", "value": {"a": [1, null]}},
        ],
    });
    let (status, _, answer) = api.post("definitions", given.clone()).await;
    assert_eq!(status, 204, "{answer}");
    let exported = api.get("definitions").await;
    assert_eq!(exported["parameters"], given["parameters"]);
    assert_eq!(api.post("definitions", exported).await.0, 204);
    let one = json!({"parameters": [{"component": "shovel", "name": "t", "value": 1}]});
    assert_eq!(api.post("definitions/v", one).await.0, 204);
    assert_eq!(api.get("parameters/shovel/v/t").await["value"], 1);
    assert_eq!(
        api.get("definitions/v").await["parameters"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    let bad = json!({"vhosts": [{"name": "w"}], "parameters": [{"vhost": "none", "component": "c", "name": "n", "value": 1}]});
    let (status, _, answer) = api.post("definitions", bad).await;
    assert_eq!(status, 400);
    let reason = answer["reason"].as_str().unwrap();
    assert!(
        reason.contains("parameter 'n' of component 'c'"),
        "{reason}"
    );
    assert_eq!(api.try_get("vhosts/w").await.0, 404);
}
