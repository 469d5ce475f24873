//! `warrenctl ring`: the placement ring that says which node prefers which shards.

use clap::Subcommand;
use serde_json::Value;

use super::{Context, listing};
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

/// What can be done with the ring.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the ring's epoch, its members and how many shards each owns.
    #[command(
        after_help = "Example: warrenctl ring show\nWith --output json the owner of every shard is listed."
    )]
    Show,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Show => show(context),
    }
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
