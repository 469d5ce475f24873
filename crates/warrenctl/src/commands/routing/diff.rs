//! `warrenctl routing diff`: what one node's routing table has and another's lacks, object by object, where the digest says only that they differ.
//!
//! The node that is asked reads the tables of all and compares them. As with the digest, only tables at the same applied index must be equal: while the
//! indices differ, a difference may be a change on its way, so the question is repeated for a while.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::listing;
use super::digest::{self, Verdict, conclude, judge};
use super::{Context, PAUSE};
use crate::client::{Method, Request};
use crate::failure::Failure;
use crate::output::{self, Table};

const PATH: &str = "/api/routing/diff";
/// Large tables that differ take seconds to compare.
const DEADLINE: Duration = Duration::from_secs(10);

/// Whose tables are compared.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these nodes; without any, all of them.
    nodes: Vec<String>,
    /// How many seconds to wait for all nodes to be at the same applied index.
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    wait: u64,
}

/// Runs the verb.
pub fn run(context: &Context, options: &Options) -> Result<(), Failure> {
    // A node that hangs is found out by a question that takes it no time.
    context.client.get(digest::PATH, &[])?;
    let until = Instant::now() + Duration::from_secs(options.wait);
    let (shown, verdict) = loop {
        let answer = context.client.send_with(&Request {
            deadline: Some(DEADLINE),
            ..Request::of(Method::Get, PATH)
        })?;
        let answer = narrowed(answer, &options.nodes)?;
        let verdict = verdict(&answer)?;
        if verdict != Verdict::Apart || Instant::now() >= until {
            break (answer, verdict);
        }
        std::thread::sleep(PAUSE);
    };
    let (nodes, differences) = (rows(&shown, "nodes")?, rows(&shown, "differences")?);
    output::print(context.format, &shown, || table(nodes, differences))?;
    if shown["more"] == true {
        context.done("there are more differences than are shown");
    }
    conclude(verdict, options.wait)
}

fn table(nodes: &[Value], differences: &[Value]) -> String {
    let nodes = Table::of(&["node", "applied_index", "digest", "error"], nodes);
    if differences.is_empty() {
        return format!("{nodes}\nno node has what another one lacks\n");
    }
    let columns = ["kind", "object", "present_on", "absent_on"];
    let joined = |names: &Value| {
        let names = names.as_array().into_iter().flatten();
        let names: Vec<String> = names.map(output::cell).collect();
        Value::from(names.join(" "))
    };
    let differences: Vec<Value> = differences
        .iter()
        .map(|row| {
            let (on, off) = (joined(&row["present_on"]), joined(&row["absent_on"]));
            json!({"kind": row["kind"], "object": row["object"], "present_on": on, "absent_on": off})
        })
        .collect();
    format!("{nodes}\n{}", Table::of(&columns, &differences))
}

fn rows<'a>(answer: &'a Value, key: &str) -> Result<&'a [Value], Failure> {
    listing::rows(answer.get(key).unwrap_or(&Value::Null), PATH)
}

fn verdict(answer: &Value) -> Result<Verdict, Failure> {
    let verdict = judge(rows(answer, "nodes")?);
    // The node that was asked has compared more than digests.
    if verdict == Verdict::Equal && !rows(answer, "differences")?.is_empty() {
        let what = "the nodes at the same applied index differ as shown";
        return Ok(Verdict::Differ(what.to_owned()));
    }
    Ok(verdict)
}

/// Of an answer about all nodes, what concerns these: differences between them.
fn narrowed(mut answer: Value, names: &[String]) -> Result<Value, Failure> {
    if names.is_empty() {
        return Ok(answer);
    }
    let known: Vec<String> = rows(&answer, "nodes")?
        .iter()
        .map(|row| output::cell(&row["node"]))
        .collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        return Err(Failure::Data(format!(
            "no node '{unknown}' in the cluster; it has {}",
            known.join(", ")
        )));
    }
    let wanted = |name: &Value| name.as_str().is_some_and(|n| names.iter().any(|w| w == n));
    let keep = |list: &mut Value| {
        if let Some(list) = list.as_array_mut() {
            list.retain(&wanted);
        }
    };
    if let Some(nodes) = answer["nodes"].as_array_mut() {
        nodes.retain(|row| wanted(&row["node"]));
    }
    if let Some(differences) = answer["differences"].as_array_mut() {
        for row in differences.iter_mut() {
            keep(&mut row["present_on"]);
            keep(&mut row["absent_on"]);
        }
        let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
        differences.retain(|row| some(&row["present_on"]) && some(&row["absent_on"]));
    }
    answer["equal"] = match verdict(&answer)? {
        Verdict::Equal => json!(true),
        Verdict::Differ(_) => json!(false),
        Verdict::Unreachable(_) | Verdict::Apart => Value::Null,
    };
    Ok(answer)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn answer() -> Value {
        let node = |name: &str, digest: &str| json!({"node": name, "applied_index": 7, "digest": digest, "error": null});
        json!({"equal": false, "nodes": [node("a", "x"), node("b", "x"), node("c", "y")], "differences": [
            {"kind": "queue", "object": {"vhost": "/", "name": "q"}, "present_on": ["a", "b"], "absent_on": ["c"]},
        ]})
    }

    #[test]
    fn nodes_that_are_named_are_compared_with_each_other_alone() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            narrowed(answer(), &names)
        };
        let same = of(&["a", "b"]).unwrap();
        assert_eq!(
            (&same["equal"], &same["differences"]),
            (&json!(true), &json!([]))
        );
        let other = of(&["b", "c"]).unwrap();
        assert_eq!(other["equal"], json!(false));
        assert_eq!(other["differences"][0]["present_on"], json!(["b"]));
        let unknown = of(&["d"]).unwrap_err();
        assert!(unknown.to_string().contains("it has a, b, c"), "{unknown}");
    }

    #[test]
    fn a_difference_at_equal_index_is_told_even_if_digests_agree() {
        assert!(matches!(verdict(&answer()), Ok(Verdict::Differ(_))));
        let mut odd = answer();
        odd["nodes"][2]["digest"] = json!("x");
        assert!(matches!(verdict(&odd), Ok(Verdict::Differ(_))));
        odd["nodes"][2]["applied_index"] = json!(8);
        assert_eq!(verdict(&odd), Ok(Verdict::Apart));
    }

    #[test]
    fn what_differs_is_laid_out_by_node() {
        let answer = answer();
        let shown = table(
            rows(&answer, "nodes").unwrap(),
            rows(&answer, "differences").unwrap(),
        );
        let words: Vec<&str> = shown
            .lines()
            .last()
            .map_or_else(Vec::new, |line| line.split_whitespace().collect());
        assert_eq!(words.len(), 5, "{shown}");
        assert_eq!((words[0], &words[2..]), ("queue", &["a", "b", "c"][..]));
    }
}
