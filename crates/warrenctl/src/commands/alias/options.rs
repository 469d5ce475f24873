//! The options that all of rabbitmqctl's commands have, with its meaning: `--quiet` keeps headings, `--silent` does without them.

use std::time::Duration;

use clap::{Args, FromArgMatches as _, Subcommand as _, ValueEnum};

use super::super::{Context, cluster};
use super::Command;
use crate::cli::Format;
use crate::failure::Failure;

/// What rabbitmqctl's commands take besides.
#[derive(Debug, Default, Args)]
pub struct Options {
    /// How to print lists: json, csv, table (divided by tabs) or pretty_table.
    #[arg(long, value_enum)]
    formatter: Option<Formatter>,
    /// No words and no headings.
    #[arg(long, short)]
    silent: bool,
    /// No headings.
    #[arg(long)]
    no_table_headers: bool,
    /// Ask the node of this name.
    #[arg(long, short, value_name = "NODE")]
    node: Option<String>,
    /// Give the node so long, as --deadline does; of await_startup, so long in all.
    #[arg(long, short, value_name = "SECONDS", value_parser = crate::cli::seconds)]
    pub timeout: Option<Duration>,
}

/// rabbitmqctl's names of formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Formatter {
    /// What is shown, as JSON.
    Json,
    /// Comma-separated values.
    Csv,
    /// Divided by tabs.
    Table,
    /// Aligned.
    PrettyTable,
}

/// The command line with these options at each of rabbitmqctl's commands, and before it, where only those who know rabbitmqctl look for them.
pub fn taken(command: clap::Command) -> clap::Command {
    let alone = Options::augment_args(clap::Command::new("rabbitmqctl"));
    let before = alone.get_arguments().map(|arg| arg.clone().hide(true));
    let command = command.args(before);
    names().into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, Options::augment_args)
    })
}

fn names() -> Vec<String> {
    let all = Command::augment_subcommands(clap::Command::new("rabbitmqctl"));
    let names = all.get_subcommands().map(|c| c.get_name().to_owned());
    names.collect()
}

/// What the command line says of them.
pub fn of(matches: &clap::ArgMatches) -> Result<Options, clap::Error> {
    let before = Options::from_arg_matches(matches)?;
    match matches.subcommand() {
        Some((name, below)) if names().iter().any(|known| known == name) => {
            Ok(Options::from_arg_matches(below)?.or(before))
        }
        Some((name, _)) if before.is_given() => Err(clap::Error::raw(
            clap::error::ErrorKind::UnknownArgument,
            format!(
                "--formatter, --silent, --no-table-headers, --node and --timeout go with rabbitmqctl's commands, of which `{name}` is none: \
                 use --output, --quiet, --url and --deadline\n"
            ),
        )),
        Some(_) | None => Ok(Options::default()),
    }
}

impl Options {
    fn or(self, before: Self) -> Self {
        Self {
            formatter: self.formatter.or(before.formatter),
            silent: self.silent || before.silent,
            no_table_headers: self.no_table_headers || before.no_table_headers,
            node: self.node.or(before.node),
            timeout: self.timeout.or(before.timeout),
        }
    }

    fn is_given(&self) -> bool {
        self.formatter.is_some()
            || self.silent
            || self.no_table_headers
            || self.node.is_some()
            || self.timeout.is_some()
    }

    /// The same context, as they would have it.
    pub fn apply(&self, context: &Context) -> Result<Context, Failure> {
        let mut client = match &self.node {
            Some(node) => cluster::client_of(context, node)?,
            None => context.client.clone(),
        };
        if let Some(timeout) = self.timeout {
            client = client.with_deadline(timeout);
        }
        let format = match self.formatter {
            None => context.format,
            Some(Formatter::Json) => Format::Json,
            Some(Formatter::Csv) => Format::Csv,
            Some(Formatter::Table) => Format::Tabs,
            Some(Formatter::PrettyTable) => Format::Table,
        };
        Ok(Context {
            client,
            format,
            columns: context.columns.clone(),
            sort: context.sort.clone(),
            quiet: context.quiet || self.silent,
            headings: !(self.silent || self.no_table_headers),
            yes: true,
        })
    }

    /// Whether JSON has what is shown alone, as rabbitmqctl's has.
    pub fn narrow(&self) -> bool {
        self.formatter.is_some()
    }
}
