//! `warrenctl cluster`: the nodes, and who leads the metadata group.

use clap::Subcommand;
use serde_json::Value;

use super::{Context, listing};
use crate::failure::Failure;
use crate::output::{self, Table};

/// The columns of the table of nodes.
const MEMBERS: [&str; 9] = [
    "node",
    "name",
    "up",
    "voter",
    "incarnation",
    "last_seen_ms",
    "address",
    "amqp",
    "http",
];

/// What can be done with the cluster.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the nodes, the metadata leader and how far this node has applied the log.
    #[command(after_help = "Example: warrenctl cluster status --output json")]
    Status,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Status => status(context),
    }
}

fn status(context: &Context) -> Result<(), Failure> {
    let answer = context.client.get("/api/cluster", &[])?;
    let members = members(&answer)?;
    output::print(context.format, &answer, || {
        let field = |name: &str| output::cell(answer.get(name).unwrap_or(&Value::Null));
        format!(
            "cluster {}, leader {}, term {}, applied index {}, this node may route: {}\n\n{}",
            field("cluster"),
            leader(&answer, members),
            field("term"),
            field("applied_index"),
            field("lease_held"),
            Table::of(&MEMBERS, members)
        )
    })
}

/// The nodes in an answer of `/api/cluster`.
pub fn members(answer: &Value) -> Result<&[Value], Failure> {
    listing::rows(
        answer.get("members").unwrap_or(&Value::Null),
        "/api/cluster (members)",
    )
}

/// The leader by name where the answer has it by node id.
fn leader(answer: &Value, members: &[Value]) -> String {
    let leader = answer.get("leader").unwrap_or(&Value::Null);
    let named = members
        .iter()
        .find(|member| !leader.is_null() && member.get("node") == Some(leader));
    match named.and_then(|member| member.get("name")) {
        Some(name) => output::cell(name),
        None if leader.is_null() => "none".to_owned(),
        None => output::cell(leader),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_leader_is_shown_by_name() {
        let members = [
            json!({"node": 1, "name": "node1"}),
            json!({"node": 2, "name": "node2"}),
        ];
        assert_eq!(leader(&json!({"leader": 2}), &members), "node2");
        assert_eq!(leader(&json!({"leader": "node1"}), &members), "node1");
        assert_eq!(leader(&json!({"leader": null}), &members), "none");
    }
}
