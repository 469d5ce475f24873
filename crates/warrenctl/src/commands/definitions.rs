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
    let answer = context.client.send_with(&Request {
        deadline: DEADLINE,
        ..Request::of(Method::Get, path)
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
    let mut query = Vec::new();
    if dry_run {
        query.push(("dry_run", "true"));
    }
    query.extend(ignore.map(|kinds| ("ignore", kinds)));
    let answer = context.client.send_with(&Request {
        query: &query,
        body: Some(&definitions),
        deadline: DEADLINE,
        ..Request::of(Method::Post, path)
    })?;
    if dry_run {
        return context.object(&answer);
    }
    context.done(&format!("the definitions in {name} are imported"));
    Ok(())
}
