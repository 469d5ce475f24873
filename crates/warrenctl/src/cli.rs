//! The command line: global options, and one enum of nouns.

use clap::{Parser, Subcommand, ValueEnum};

use crate::commands::{binding, cluster, exchange, queue, ring, routing};

/// Look at and administer a Warren cluster through the HTTP API of any of its nodes.
#[derive(Debug, Parser)]
#[command(name = "warrenctl", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Arguments {
    /// Where and as whom to ask.
    #[command(flatten)]
    pub connection: Connection,
    /// How to print the answer.
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// What to look at.
    #[command(subcommand)]
    pub noun: Noun,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 64 usage, 65 the request is wrong, 69 node or API unavailable, 70 the cluster broke an \
invariant, 74 cannot write the answer, 76 not Warren's API, 77 user or permission, 78 address unusable.

Example: warrenctl --url http://127.0.0.1:15673 cluster status";

/// The node that is asked, and the user that asks.
#[derive(Debug, Clone, clap::Args)]
pub struct Connection {
    /// HTTP address of any node of the cluster.
    #[arg(
        long,
        global = true,
        env = "WARREN_URL",
        default_value = "http://127.0.0.1:15672"
    )]
    pub url: String,
    /// User name.
    #[arg(long, global = true, env = "WARREN_USER", default_value = "guest")]
    pub user: String,
    /// Password; the environment variable keeps it out of the process list.
    #[arg(
        long,
        global = true,
        env = "WARREN_PASSWORD",
        default_value = "guest",
        hide_env_values = true
    )]
    pub password: String,
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns, for people.
    Table,
    /// The API's own JSON, for programs.
    Json,
}

/// What can be looked at; each noun's verbs are in its own module.
#[derive(Debug, Subcommand)]
pub enum Noun {
    /// The nodes and the metadata group's leader.
    #[command(subcommand)]
    Cluster(cluster::Verb),
    /// The placement ring: which node owns which shards.
    #[command(subcommand)]
    Ring(ring::Verb),
    /// The replicated routing table.
    #[command(subcommand)]
    Routing(routing::Verb),
    /// Exchanges.
    #[command(subcommand)]
    Exchange(exchange::Verb),
    /// Queues.
    #[command(subcommand)]
    Queue(queue::Verb),
    /// Bindings.
    #[command(subcommand)]
    Binding(binding::Verb),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        fn leaves(command: &clap::Command, path: &str, found: &mut Vec<String>) {
            if command.get_subcommands().next().is_none() {
                let help = command
                    .get_after_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(
                    help.contains("Example: warrenctl "),
                    "`{path}` has no example in its help"
                );
                found.push(path.to_owned());
            }
            for sub in command.get_subcommands() {
                leaves(sub, &format!("{path} {}", sub.get_name()), found);
            }
        }
        let command = Arguments::command();
        command.clone().debug_assert();
        let mut found = Vec::new();
        leaves(&command, "warrenctl", &mut found);
        assert!(
            found.contains(&"warrenctl routing explain".to_owned()),
            "{found:?}"
        );
    }
}
