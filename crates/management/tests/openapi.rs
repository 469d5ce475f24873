//! The API's description has what the router has, no more and no less.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::ready;
use std::collections::{BTreeMap, BTreeSet};

type Operations = BTreeSet<(String, String)>;

/// What the router has. It shows that only in its form for debugging: paths under numbers, and for each number the methods that it tells to who uses another.
fn routed(router: &axum::Router) -> Operations {
    let shown = format!("{router:?}");
    let (shown, _) = shown.split_once(", fallback_router: ").unwrap();
    let methods =
        regex::Regex::new(r#"RouteId\((\d+)\): [^"]*allow_header: Bytes\(b"([A-Z,]+)"\)"#).unwrap();
    let methods: BTreeMap<&str, &str> = methods
        .captures_iter(shown)
        .map(|found| {
            (
                found.get(1).unwrap().as_str(),
                found.get(2).unwrap().as_str(),
            )
        })
        .collect();
    let paths = regex::Regex::new(r#"RouteId\((\d+)\): "([^"]+)""#).unwrap();
    let mut operations = Operations::new();
    for found in paths.captures_iter(shown) {
        // A name that takes the rest of a path is a name like any other in OpenAPI.
        let path = found[2].replace("{*", "{");
        for method in methods[&found[1]]
            .split(',')
            .filter(|method| *method != "HEAD")
        {
            operations.insert((method.to_lowercase(), path.clone()));
        }
    }
    operations
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_described_is_what_there_is() {
    let api = ready().await.authorized(None);
    let document = api.get("openapi.json").await;
    let mut described = Operations::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "parameters")
        {
            described.insert((method.clone(), path.clone()));
        }
    }
    let routed = routed(&warren_management::router(api.node.clone()));
    assert!(routed.len() > 100, "{routed:?}");
    let undescribed: Vec<_> = routed.difference(&described).collect();
    assert!(undescribed.is_empty(), "not described: {undescribed:?}");
    let unrouted: Vec<_> = described.difference(&routed).collect();
    assert!(unrouted.is_empty(), "not there: {unrouted:?}");
}
