//! `warrenctl routing digest`: proof that all nodes hold the same routing table, to the byte.
//!
//! Digests say something only at equal applied index: under load the answers seldom meet at once, so the question is repeated until all indices are
//! equal or time is up. Two nodes that differ at the same index are reported at once, whatever the others say, and so is a node that cannot be asked:
//! all are asked at the same time, so that one that hangs costs its deadline once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::cluster;
use super::{Context, PAUSE};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Table};

/// Where a node tells its digest.
pub const PATH: &str = "/api/routing/digest";

/// How long to ask.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How many seconds to wait for all nodes to be at the same applied index.
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    wait: u64,
}

/// What one round of questions says.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All nodes are at the same index, and agree.
    Equal,
    /// Two nodes do not, and which.
    Differ(String),
    /// Nodes that cannot be asked.
    Unreachable(String),
    /// Not all nodes are at the same index.
    Apart,
}

/// Runs the verb.
pub fn run(context: &Context, options: &Options) -> Result<(), Failure> {
    let begun = Instant::now();
    let answer = context.client.get("/api/cluster", &[])?;
    let members = cluster::members(&answer)?;
    // The first node may have waited for one that hangs, and another wait for it would be too long.
    let mut spent = begun.elapsed();
    let deadline = Instant::now() + Duration::from_secs(options.wait);
    let (rows, verdict) = loop {
        let rows = cluster::of_each(members, |member| ask(&context.client, member, spent));
        spent = Duration::ZERO;
        let verdict = judge(&rows);
        if verdict != Verdict::Apart || Instant::now() >= deadline {
            break (rows, verdict);
        }
        std::thread::sleep(PAUSE);
    };
    let shown = json!({"equal": verdict == Verdict::Equal, "nodes": rows});
    output::print(context.format, &shown, || {
        Table::of(
            &[
                "node",
                "http",
                "applied_index",
                "ring_epoch",
                "digest",
                "error",
            ],
            &rows,
        )
        .to_string()
    })?;
    conclude(verdict, options.wait)
}

/// One node's row: its answer, or the error that came instead.
fn ask(client: &Client, member: &Value, spent: Duration) -> Value {
    let field = |name: &str| member.get(name).cloned().unwrap_or(Value::Null);
    let http = field("http");
    let answer = match http.as_str() {
        Some(address) => client
            .at(address)
            .and_then(|client| client.having_spent(spent).get(PATH, &[])),
        None => Err(Failure::Unavailable(
            "its HTTP address is not known: it has not joined since the cluster was created"
                .to_owned(),
        )),
    };
    match answer {
        Ok(answer) => {
            let of = |name: &str| answer.get(name).cloned().unwrap_or(Value::Null);
            json!({"node": field("name"), "http": http, "applied_index": of("applied_index"), "ring_epoch": of("ring_epoch"), "digest": of("digest"), "error": null})
        }
        Err(failure) => {
            json!({"node": field("name"), "http": http, "applied_index": null, "ring_epoch": null, "digest": null, "error": failure.to_string()})
        }
    }
}

/// What the nodes' rows say: each has `node`, `applied_index` and `digest`.
pub fn judge(rows: &[Value]) -> Verdict {
    for (position, row) in rows.iter().enumerate() {
        let twin = rows.iter().skip(position + 1).find(|other| {
            !row["digest"].is_null()
                && !other["digest"].is_null()
                && other["applied_index"] == row["applied_index"]
                && other["digest"] != row["digest"]
        });
        if let Some(twin) = twin {
            return Verdict::Differ(format!(
                "{} and {} have different routing tables at applied index {}",
                output::cell(&row["node"]),
                output::cell(&twin["node"]),
                output::cell(&row["applied_index"])
            ));
        }
    }
    let silent: Vec<String> = rows
        .iter()
        .filter(|row| row["digest"].is_null())
        .map(|row| output::cell(&row["node"]))
        .collect();
    match rows {
        _ if !silent.is_empty() => Verdict::Unreachable(silent.join(", ")),
        [] => Verdict::Unreachable("any node, for the cluster has no members".to_owned()),
        [first, rest @ ..]
            if rest
                .iter()
                .all(|row| row["applied_index"] == first["applied_index"]) =>
        {
            Verdict::Equal
        }
        [..] => Verdict::Apart,
    }
}

/// What comes of it, after so many seconds.
pub fn conclude(verdict: Verdict, waited_seconds: u64) -> Result<(), Failure> {
    match verdict {
        Verdict::Equal => Ok(()),
        Verdict::Differ(what) => Err(Failure::Software(format!(
            "{what}; that must never be: keep the logs and data folders of both, and restart the one that differs from the majority on an empty data folder"
        ))),
        Verdict::Unreachable(nodes) => Err(Failure::Unavailable(format!(
            "cannot ask {nodes}; the nodes above that have a digest agree"
        ))),
        Verdict::Apart => Err(Failure::Unavailable(format!(
            "the nodes were not at the same applied index within {waited_seconds} s; a node lags, or declarations come too fast: ask again, or --wait longer"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(node: &str, index: u64, digest: Option<&str>) -> Value {
        json!({"node": node, "applied_index": digest.map(|_| index), "digest": digest})
    }

    #[test]
    fn equal_only_at_equal_index() {
        assert_eq!(
            judge(&[row("a", 5, Some("x")), row("b", 5, Some("x"))]),
            Verdict::Equal
        );
        assert_eq!(
            judge(&[row("a", 5, Some("x")), row("b", 6, Some("x"))]),
            Verdict::Apart
        );
        assert_eq!(judge(&[row("a", 5, Some("x"))]), Verdict::Equal);
    }

    #[test]
    fn a_difference_counts_whatever_the_others_say() {
        let rows = [
            row("a", 5, Some("x")),
            row("b", 5, Some("y")),
            row("c", 6, Some("z")),
            row("d", 0, None),
        ];
        let Verdict::Differ(what) = judge(&rows) else {
            unreachable!("{:?}", judge(&rows))
        };
        assert_eq!(
            what,
            "a and b have different routing tables at applied index 5"
        );
        assert_eq!(
            conclude(Verdict::Differ(what), 5).map_err(|failure| failure.exit_code()),
            Err(70)
        );
    }

    #[test]
    fn a_silent_node_and_an_empty_cluster_are_no_agreement() {
        assert_eq!(
            judge(&[row("a", 5, Some("x")), row("b", 0, None)]),
            Verdict::Unreachable("b".to_owned())
        );
        assert!(matches!(judge(&[]), Verdict::Unreachable(_)));
        assert_eq!(
            conclude(Verdict::Apart, 5).map_err(|failure| failure.exit_code()),
            Err(69)
        );
    }
}
