//! `warrenctl definitions`: all that is declared, as RabbitMQ exports and imports it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;

use super::Context;
use crate::client::{Method, Request, segment};
use crate::failure::Failure;
use crate::output;

/// Large definitions take their time.
const DEADLINE: Duration = Duration::from_secs(130);

/// What can be done with definitions.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Print the definitions of the cluster or of a virtual host, or write them to a file.
    #[command(after_help = "Example: warrenctl definitions export cluster.json")]
    Export(Options),
    /// Import definitions from a file, or from standard input: all of them, or none if anything in them is wrong.
    ///
    /// Asks first if users, policies or anything else that is there already would change.
    #[command(after_help = "Example: warrenctl definitions import cluster.json --dry-run")]
    Import(Import),
}

/// Which definitions.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The file; without it, or with -, standard input or output.
    file: Option<PathBuf>,
    /// Only this virtual host.
    #[arg(long)]
    vhost: Option<String>,
}

/// Definitions to be imported.
#[derive(Debug, clap::Args)]
pub struct Import {
    #[command(flatten)]
    options: Options,
    /// Only check them, and say what there is.
    #[arg(long)]
    dry_run: bool,
    /// Leave out these kinds, as policies,parameters.
    #[arg(long, value_name = "KIND,…")]
    ignore: Option<String>,
}

impl Options {
    fn path(&self) -> String {
        match &self.vhost {
            Some(vhost) => format!("/api/definitions/{}", segment(vhost)),
            None => "/api/definitions".to_owned(),
        }
    }

    /// The file that is named, if one is.
    fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref().filter(|file| file.as_os_str() != "-")
    }
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Export(options) => export(context, options.file(), &options.path()),
        Verb::Import(import) => {
            let Import {
                options,
                dry_run,
                ignore,
            } = import;
            let (path, ignore) = (options.path(), ignore.as_deref());
            self::import(context, options.file(), &path, *dry_run, ignore)
        }
    }
}

/// Writes definitions to a file, or prints them.
pub fn export(context: &Context, file: Option<&PathBuf>, path: &str) -> Result<(), Failure> {
    let answer = context.slowly("exporting definitions", || {
        context.client.send_with(&Request {
            deadline: Some(DEADLINE),
            ..Request::of(Method::Get, path)
        })
    })?;
    let text = format!("{answer:#}\n");
    let Some(file) = file else {
        return output::write(&text);
    };
    std::fs::write(file, text)
        .map_err(|error| Failure::Output(format!("{}: {error}", file.display())))?;
    context.done(&format!("definitions are written to {}", file.display()));
    Ok(())
}

/// Imports definitions from a file, or from standard input.
pub fn import(
    context: &Context,
    file: Option<&PathBuf>,
    path: &str,
    dry_run: bool,
    ignore: Option<&str>,
) -> Result<(), Failure> {
    let (name, read) = match file {
        Some(file) => (file.display().to_string(), std::fs::read_to_string(file)),
        None => (
            "standard input".to_owned(),
            std::io::read_to_string(std::io::stdin()),
        ),
    };
    let text = read.map_err(|error| Failure::Input(format!("cannot read {name}: {error}")))?;
    let definitions: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::Data(format!("{name} is not JSON: {error}")))?;
    let post = |what: &str, how: &str| {
        let mut query = vec![(how, "true")];
        query.extend(ignore.map(|kinds| ("ignore", kinds)));
        context.slowly(&format!("{what} the definitions in {name}"), || {
            context.client.send_with(&Request {
                query: &query,
                body: Some(&definitions),
                deadline: Some(DEADLINE),
                ..Request::of(Method::Post, path)
            })
        })
    };
    if dry_run {
        let report = post("checking", "dry_run")?;
        return output::print(context.format, &report, || planned(&report));
    }
    if !context.yes {
        let changes = counts(&post("checking", "dry_run")?, "changes");
        if let Some(changes) = changes {
            context.confirm(&format!(
                "Change what is there already: {changes} (--dry-run says what else there is)"
            ))?;
        }
    }
    let report = post("importing", "report")?;
    context.done(&format!(
        "the definitions in {name} are imported: {}",
        told(&report)
    ));
    let idle = idle(&report);
    if !idle.is_empty() {
        context.done(&format!("kept, without effect here:\n{idle}"));
    }
    Ok(())
}

/// What an import would do, for people.
fn planned(report: &Value) -> String {
    let idle = idle(report);
    let rest = if idle.is_empty() {
        "all of it has an effect here\n".to_owned()
    } else {
        format!("kept, but without effect here:\n{idle}")
    };
    format!("would be imported: {}\n{rest}", told(report))
}

/// How much is made and changed.
fn told(report: &Value) -> String {
    let counts = |of| counts(report, of).unwrap_or_else(|| "nothing".to_owned());
    format!("new {}; changed {}", counts("creates"), counts("changes"))
}

/// How many of each kind are made or changed, if any are.
fn counts(report: &Value, of: &str) -> Option<String> {
    let fields = report
        .get(of)
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let some = fields.filter(|(_, count)| count.as_u64() != Some(0));
    let texts: Vec<String> = some
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    (!texts.is_empty()).then(|| texts.join(", ").replace('_', " "))
}

/// What is kept without having an effect: one object a line, with all that is in it.
fn idle(report: &Value) -> String {
    let rows = report.get("without_effect").and_then(Value::as_array);
    let text = |row: &Value, key: &str| output::cell(row.get(key).unwrap_or(&Value::Null));
    let mut lines: Vec<(String, String)> = Vec::new();
    for row in rows.into_iter().flatten() {
        let (object, what) = (text(row, "object"), text(row, "what"));
        match lines.last_mut() {
            Some((last, parts)) if *last == object => *parts += &format!(", {what}"),
            Some(_) | None => lines.push((object, what)),
        }
    }
    let lines = lines
        .iter()
        .map(|(object, parts)| format!("  {object}: {parts}\n"));
    lines.collect()
}
