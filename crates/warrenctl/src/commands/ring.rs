//! `warrenctl ring`: the placement ring that says which node prefers which shards.

use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;

use super::{Context, cluster, listing};
use crate::client::Method;
use crate::failure::Failure;
use crate::output::{self, Table};

const MEMBERS: [&str; 6] = [
    "node",
    "name",
    "up",
    "incarnation",
    "shards_owned",
    "address",
];

const MOVES: [&str; 5] = ["shard", "what", "from", "to", "when"];

/// What can be done with the ring.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the ring's epoch, its members and how many shards each owns.
    #[command(
        after_help = "Example: warrenctl ring show\nWith --output json the owner of every shard is listed."
    )]
    Show,
    /// Show which leaderships are on their way, and which a rebalance would move.
    #[command(after_help = "Example: warrenctl ring plan --output json")]
    Plan,
    /// Let the ring decide again which node leads each shard: leaderships that were given to others go home.
    ///
    /// Leaderships that a node lost because it was down come back by themselves, without this.
    #[command(after_help = "Example: warrenctl ring rebalance --wait --timeout 60")]
    Rebalance(Rebalance),
}

/// Whether to wait for it.
#[derive(Debug, clap::Args)]
pub struct Rebalance {
    /// Wait until every leadership is where it belongs, and show how many are not.
    #[arg(long)]
    wait: bool,
    /// Wait at most so many seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Show => show(context),
        Verb::Plan => plan(context),
        Verb::Rebalance(options) => rebalance(context, options),
    }
}

/// The moves in an answer of `/api/ring`, each with when it happens.
fn moves(answer: &Value) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::new();
    for (list, when) in [
        ("moves", "when the node has caught up"),
        ("given", "with a rebalance"),
    ] {
        let rows = listing::rows(answer.get(list).unwrap_or(&Value::Null), "/api/ring")?;
        for row in rows {
            let mut row = row.clone();
            row["when"] = when.into();
            all.push(row);
        }
    }
    Ok(all)
}

fn plan(context: &Context) -> Result<(), Failure> {
    let answer = context.client.get("/api/ring", &[])?;
    let moves = moves(&answer)?;
    output::print(context.format, &Value::Array(moves.clone()), || {
        if moves.is_empty() {
            return "nothing moves: every shard is led by the node that the ring prefers\n"
                .to_owned();
        }
        Table::of(&MOVES, &moves).to_string()
    })
}

fn rebalance(context: &Context, options: &Rebalance) -> Result<(), Failure> {
    let path = "/api/rebalance/queues";
    if !options.wait {
        let done = "leaderships go to the nodes that the ring prefers";
        return context.change(Method::Post, path, None, done);
    }
    context.client.send(Method::Post, path, None)?;
    let what = "every shard is led by the node that the ring prefers";
    cluster::wait(context, Duration::from_secs(options.timeout), what, || {
        let left = moves(&context.client.get("/api/ring", &[])?)?.len();
        Ok((left > 0).then(|| format!("{left} leaderships still move")))
    })
}

fn show(context: &Context) -> Result<(), Failure> {
    let answer = context.client.get("/api/ring", &[])?;
    let members = listing::rows(
        answer.get("members").unwrap_or(&Value::Null),
        "/api/ring (members)",
    )?;
    output::print(context.format, &answer, || {
        let field = |name: &str| output::cell(answer.get(name).unwrap_or(&Value::Null));
        format!(
            "ring epoch {}, {} shards\n\n{}",
            field("epoch"),
            field("shards"),
            Table::of(&MEMBERS, members)
        )
    })
}
