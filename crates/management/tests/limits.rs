//! Limits of virtual hosts and users over HTTP, against a real node.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Api, ready};
use serde_json::{Value, json};

async fn import(api: &Api, definitions: &Value) -> (u16, Value) {
    let (status, _, answer) = api.post("definitions", definitions.clone()).await;
    (status, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_set_shown_and_taken_away() {
    let api = ready().await;
    assert_eq!(api.get("vhost-limits").await, json!([]));
    assert_eq!(api.get("vhost-limits/%2F").await, json!([]));
    assert_eq!(api.get("user-limits/guest").await, json!([]));
    let value = |value: i64| json!({"value": value});
    assert_eq!(api.put("vhost-limits/%2F/max-queues", value(5)).await, 204);
    let path = "vhost-limits/%2F/max-connections";
    assert_eq!(api.put(path, value(-1)).await, 204);
    assert_eq!(
        api.put("user-limits/guest/max-channels", value(7)).await,
        204
    );
    let of_vhost = json!([{"vhost": "/", "value": {"max-connections": -1, "max-queues": 5}}]);
    assert_eq!(api.get("vhost-limits").await, of_vhost);
    assert_eq!(api.get("vhost-limits/%2F").await, of_vhost);
    let of_user = json!([{"user": "guest", "value": {"max-channels": 7}}]);
    assert_eq!(api.get("user-limits").await, of_user);
    assert_eq!(api.get("user-limits/guest").await, of_user);
    assert_eq!(
        api.get("users/guest").await["limits"],
        json!({"max-channels": 7})
    );
    for (path, body) in [
        ("vhost-limits/%2F/max-channels", value(1)),
        ("vhost-limits/%2F/max-queues", json!({})),
        ("vhost-limits/%2F/max-queues", json!({"value": "5"})),
        ("user-limits/guest/max-queues", value(1)),
    ] {
        api.refused(path, body).await;
    }
    assert_eq!(api.put("vhost-limits/none/max-queues", value(1)).await, 404);
    assert_eq!(
        api.put("user-limits/none/max-channels", value(1)).await,
        404
    );
    for path in ["vhost-limits/none", "user-limits/none"] {
        assert_eq!(api.try_get(path).await.0, 404);
    }
    for path in [
        "vhost-limits/%2F/max-queues",
        "vhost-limits/%2F/max-connections",
        "user-limits/guest/max-channels",
        "user-limits/guest/max-channels",
    ] {
        assert_eq!(api.delete(path).await, 204, "{path}");
    }
    assert_eq!(api.get("vhost-limits").await, json!([]));
    assert_eq!(api.get("user-limits").await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_shown_to_many_and_set_by_administrators() {
    let api = ready().await;
    for (name, tags) in [("m", "management"), ("w", "monitoring")] {
        let user = json!({"password": "p", "tags": tags});
        assert_eq!(api.put(&format!("users/{name}"), user).await, 201);
    }
    let value = json!({"value": 9});
    let (vhost, user) = ("vhost-limits/%2F/max-queues", "user-limits/m/max-channels");
    assert_eq!(api.put(vhost, value.clone()).await, 204);
    assert_eq!(api.put(user, value.clone()).await, 204);
    let [manager, monitor] = ["m", "w"].map(|name| api.user(name, "p"));
    assert_eq!(manager.get("vhost-limits").await, json!([]));
    assert_eq!(manager.try_get("vhost-limits/%2F").await.0, 401);
    assert_eq!(monitor.get("vhost-limits").await[0]["vhost"], "/");
    for who in [&manager, &monitor] {
        assert_eq!(who.get("user-limits/m").await[0]["user"], "m");
        for path in [vhost, user] {
            assert_eq!(who.put(path, value.clone()).await, 401);
            assert_eq!(who.delete(path).await, 401);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_exported_and_imported() {
    let api = ready().await;
    let given = json!({
        "vhosts": [{"name": "v", "limits": []}, {"name": "w", "limits": {"max-queues": 4}}],
        "users": [{"name": "u", "tags": [], "limits": {"max-connections": 3, "max-channels": 8}}],
        "queues": [{"name": "a", "vhost": "v"}, {"name": "b", "vhost": "v"}],
        "parameters": [{"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 2}}],
    });
    let (status, answer) = import(&api, &given).await;
    assert_eq!(status, 204, "{answer}");
    let exported = api.get("definitions").await;
    assert_eq!(
        exported["parameters"],
        json!([
            {"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 2}},
            {"vhost": "w", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 4}},
        ])
    );
    let users = exported["users"].as_array().unwrap();
    let user = users.iter().find(|user| user["name"] == "u").unwrap();
    assert_eq!(
        user["limits"],
        json!({"max-channels": 8, "max-connections": 3})
    );
    assert_eq!(
        api.get("definitions/v").await["parameters"],
        json!([{"component": "vhost-limits", "name": "limits", "value": {"max-queues": 2}}])
    );
    assert_eq!(import(&api, &exported).await.0, 204, "the same again");

    // All of it or nothing: two queues are there, and three would be too many.
    let more = json!({"queues": [{"name": "b", "vhost": "v"}, {"name": "c", "vhost": "v"}], "vhosts": [{"name": "new"}]});
    let (status, answer) = import(&api, &more).await;
    assert_eq!(status, 400);
    let reason = answer["reason"].as_str().unwrap();
    assert!(
        reason.contains("queue 'c' in vhost 'v' would be refused: ")
            && reason.contains("queue limit in vhost 'v' (2) is reached"),
        "{reason}"
    );
    let (status, _, answer) = api.post("definitions?dry_run=true", more).await;
    assert_eq!(status, 400);
    let reason = answer["reason"].as_str().unwrap();
    assert!(
        reason.contains("vhost 'v' has 2 queues, 1 more are given, and its limit is 2"),
        "{reason}"
    );
    assert_eq!(api.try_get("vhosts/new").await.0, 404);

    // The parameter says all limits of its virtual host.
    let other = json!({"parameters": [{"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-connections": 1}}]});
    assert_eq!(import(&api, &other).await.0, 204);
    assert_eq!(
        api.get("vhost-limits/v").await[0]["value"],
        json!({"max-connections": 1})
    );
    let bad = json!({"users": [{"name": "u", "tags": "", "limits": {"max-queues": 1}}]});
    assert_eq!(import(&api, &bad).await.0, 400);
}
