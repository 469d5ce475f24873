//! `warrenctl log`: the last lines of a node's log.

use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;

use super::{Context, cluster, listing};
use crate::cli::Format;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// How often a log that is followed is asked for.
const LOOK: Duration = Duration::from_millis(500);

/// What can be done with logs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Print the last lines of a node's log, and with --follow those that come.
    #[command(after_help = "Example: warrenctl log tail --node node2 --lines 200 --follow")]
    Tail(Tail),
}

/// Which lines.
#[derive(Debug, clap::Args)]
pub struct Tail {
    /// So many of the last lines, at most 1000.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    lines: u16,
    /// Go on with the lines that come, until interrupted.
    #[arg(long, short)]
    follow: bool,
    /// The node; without it, the one that is asked.
    #[arg(long)]
    node: Option<String>,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    let Verb::Tail(options) = verb;
    let client = match &options.node {
        None => None,
        Some(name) => Some(cluster::client_of(context, name)?),
    };
    let client = client.as_ref().unwrap_or(&context.client);
    let limit = options.lines.to_string();
    let mut next = print(context, client, &[("limit", &limit)])?;
    if !options.follow {
        return Ok(());
    }
    loop {
        if output::nobody_reads() {
            return Ok(());
        }
        std::thread::sleep(LOOK);
        // A node that starts anew counts its lines anew.
        match print(
            context,
            client,
            &[("since", &next.to_string()), ("limit", "1000")],
        ) {
            Ok(number) => next = number,
            Err(Failure::Unavailable(why)) => eprintln!("warrenctl: {why}"),
            Err(other) => return Err(other),
        }
    }
}

/// Prints lines, and returns the number of the one to go on with.
fn print(context: &Context, client: &Client, query: &[(&str, &str)]) -> Result<u64, Failure> {
    let answer = client.get("/api/log", query)?;
    let lines = listing::rows(answer.get("lines").unwrap_or(&Value::Null), "/api/log")?;
    let number = |key: &str| answer.get(key).and_then(Value::as_u64).unwrap_or(0);
    if number("lost") > 0 {
        context.done(&format!(
            "{} lines came too fast and are lost",
            number("lost")
        ));
    }
    let text = |line: &Value| match context.format {
        Format::Json => format!("{line}\n"),
        Format::Table | Format::Csv | Format::Tabs => {
            let text = line.get("text").and_then(Value::as_str).unwrap_or_default();
            // A log may hold what clients sent: a terminal must not act on it.
            let shown: String = text.chars().filter(|c| !c.is_control()).collect();
            format!("{shown}\n")
        }
    };
    let all: String = lines.iter().map(text).collect();
    if !all.is_empty() {
        output::write(&all)?;
    }
    Ok(number("next"))
}
