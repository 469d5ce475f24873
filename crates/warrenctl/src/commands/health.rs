//! `warrenctl cluster health`: whether the cluster is well, node by node, with one verdict and the reasons for it.
//!
//! The node that is asked knows its members; each member is asked about itself, all at once, so that one that hangs costs its deadline once. What makes a
//! cluster unwell: a node that is down, does not serve or has an alarm, links that are missing between nodes that are up, no leader. A cluster that cannot
//! lose another node is unwell if it has lost one already, and only warned of if it never had enough.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Context, cluster};
use crate::client::{Client, Method, Request};
use crate::failure::Failure;
use crate::output::{self, Table};

const COLUMNS: [&str; 7] = [
    "name",
    "up",
    "serves",
    "alarms",
    "links",
    "quorum_critical",
    "problem",
];

/// Runs the verb.
pub fn run(context: &Context) -> Result<(), Failure> {
    let begun = Instant::now();
    let answer = context.client.get("/api/cluster", &[])?;
    let members = cluster::members(&answer)?;
    // The first node may have waited for one that hangs, and another wait for it would be too long.
    let spent = begun.elapsed();
    let nodes = cluster::of_each(members, |member| of_node(&context.client, member, spent));
    let (reasons, warnings) = judge(&answer, &nodes);
    let shown = json!({"healthy": reasons.is_empty(), "reasons": reasons, "warnings": warnings, "nodes": nodes});
    output::print(context.format, &shown, || {
        let said = |lines: &[String]| lines.iter().map(|line| format!("  {line}\n")).collect();
        let mut text = Table::of(&COLUMNS, &nodes).to_string();
        for (title, lines) in [("warnings", &warnings), ("unhealthy", &reasons)] {
            if !lines.is_empty() {
                let lines: String = said(lines);
                text.push_str(&format!("\n{title}:\n{lines}"));
            }
        }
        if reasons.is_empty() {
            text.push_str("\nthe cluster is healthy\n");
        }
        text
    })?;
    if reasons.is_empty() {
        return Ok(());
    }
    Err(Failure::Unhealthy(format!(
        "the cluster is not healthy: {}",
        reasons.join("; ")
    )))
}

/// One node, by its own word, or with the problem that kept it from answering.
fn of_node(client: &Client, member: &Value, spent: Duration) -> Value {
    let up = member["up"] == true;
    let mut node = json!({
        "name": member["name"], "up": up, "voter": member["voter"], "draining": member["draining"],
        "serves": null, "alarms": null, "links": null, "links_missing": null, "quorum_critical": null, "problem": null,
    });
    if !up {
        node["problem"] = json!("it is down");
        return node;
    }
    let Some(http) = member["http"].as_str() else {
        node["problem"] = json!("its HTTP address is not known");
        return node;
    };
    match client
        .at(http)
        .and_then(|client| by_its_word(&client.having_spent(spent), &mut node))
    {
        Ok(()) => {}
        Err(failure) => node["problem"] = json!(failure.to_string()),
    }
    node
}

fn by_its_word(client: &Client, node: &mut Value) -> Result<(), Failure> {
    // Failed storage is told here, as is what else keeps it from serving.
    let health = status(client, "/api/health")?;
    node["serves"] = json!(health["status"] == "ok");
    if health["status"] != "ok" {
        node["problem"] = health["reason"].clone();
    }
    let alarms = status(client, "/api/health/checks/local-alarms")?;
    let alarms = alarms["alarms"].as_array().into_iter().flatten();
    node["alarms"] = alarms.map(|alarm| alarm["resource"].clone()).collect();
    let critical = status(client, "/api/health/checks/node-is-quorum-critical")?;
    node["quorum_critical"] = json!(critical["status"] != "ok");
    let seen = client.get("/api/cluster", &[])?;
    let others = cluster::members(&seen)?
        .iter()
        .filter(|other| other["name"] != node["name"] && other["up"] == true);
    let (linked, missing): (Vec<&Value>, Vec<&Value>) =
        others.partition(|other| other["linked"] == true);
    node["links"] = json!(format!("{}/{}", linked.len(), linked.len() + missing.len()));
    node["links_missing"] = missing.iter().map(|other| other["name"].clone()).collect();
    Ok(())
}

/// A check's answer, whether it passed or failed.
fn status(client: &Client, path: &str) -> Result<Value, Failure> {
    let answer = client.exchange(&Request::of(Method::Get, path))?;
    if answer.status == 503 {
        let body = serde_json::from_str::<Value>(&answer.text).unwrap_or_default();
        if body["status"].is_string() {
            return Ok(body);
        }
    }
    client.expected(answer)
}

/// What is wrong, and what is to be known.
fn judge(cluster: &Value, nodes: &[Value]) -> (Vec<String>, Vec<String>) {
    let (mut reasons, mut warnings) = (Vec::new(), Vec::new());
    if cluster["leader"].is_null() {
        reasons.push("the metadata group has no leader: nothing can be declared".to_owned());
    }
    for node in nodes {
        let name = output::cell(&node["name"]);
        if !node["problem"].is_null() {
            reasons.push(format!("{name}: {}", output::cell(&node["problem"])));
        } else if node["serves"] == false {
            reasons.push(format!("{name} does not serve clients"));
        }
        for alarm in node["alarms"].as_array().into_iter().flatten() {
            reasons.push(format!(
                "{name} is low on {}: publishers are blocked",
                output::cell(alarm)
            ));
        }
        for other in node["links_missing"].as_array().into_iter().flatten() {
            reasons.push(format!("{name} has no link to {}", output::cell(other)));
        }
        if node["draining"] == true {
            warnings.push(format!("{name} is drained, or being drained"));
        }
    }
    let critical: Vec<String> = nodes
        .iter()
        .filter(|node| node["quorum_critical"] == true)
        .map(|node| output::cell(&node["name"]))
        .collect();
    if !critical.is_empty() {
        let what = format!(
            "without {} the metadata group would have no majority",
            critical.join(" or ")
        );
        if nodes.iter().any(|n| n["voter"] == true && n["up"] != true) {
            reasons.push(what);
        } else {
            warnings.push(what);
        }
    }
    (reasons, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Value {
        json!({"name": name, "up": true, "voter": true, "draining": false, "serves": true, "alarms": [], "links": "1/1",
            "links_missing": [], "quorum_critical": false, "problem": null})
    }

    #[test]
    fn a_cluster_is_well_if_all_its_nodes_are() {
        let led = json!({"leader": "a"});
        let mut nodes = [node("a"), node("b")];
        assert_eq!(judge(&led, &nodes), (vec![], vec![]));
        // Two nodes never can lose one: that is no news.
        nodes[0]["quorum_critical"] = json!(true);
        let (reasons, warnings) = judge(&led, &nodes);
        assert_eq!((reasons.len(), warnings.len()), (0, 1));
        nodes[1]["up"] = json!(false);
        nodes[1]["problem"] = json!("it is down");
        let (reasons, _) = judge(&led, &nodes);
        assert_eq!(reasons.len(), 2, "{reasons:?}");
    }

    #[test]
    fn everything_that_is_wrong_is_a_reason() {
        let led = json!({"leader": "a"});
        for (field, value, said) in [
            (
                "problem",
                json!("storage has failed"),
                "a: storage has failed",
            ),
            ("serves", json!(false), "a does not serve clients"),
            (
                "alarms",
                json!(["disk"]),
                "a is low on disk: publishers are blocked",
            ),
            ("links_missing", json!(["b"]), "a has no link to b"),
        ] {
            let mut bad = node("a");
            bad[field] = value;
            assert_eq!(judge(&led, &[bad]).0, [said]);
        }
        let (reasons, _) = judge(&json!({"leader": null}), &[node("a")]);
        assert!(reasons[0].contains("no leader"), "{reasons:?}");
    }
}
