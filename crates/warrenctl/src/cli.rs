//! The command line: global options, and one enum of nouns.

use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::commands::{
    alias, binding, cert, channel, check, cluster, completions, connection, consumer, definitions,
    exchange, limit, log, message, node, parameter, password, permission, policy, queue, ring,
    routing, topic_permission, user, vhost,
};

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
    /// Of a list, only these columns, in this order.
    #[arg(long, global = true, value_delimiter = ',', value_name = "NAME,…")]
    pub columns: Vec<String>,
    /// Sort a list by a column; with a minus before it, from the greatest on.
    #[arg(long, global = true, value_name = "COLUMN", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Print only what was asked for: no headings, no word about what was done.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Delete, purge, close, drain and overwrite without asking first.
    #[arg(long, short, global = true)]
    pub yes: bool,
    /// Look again every so many seconds, until interrupted; of commands that only look.
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds)]
    pub watch: Option<Duration>,
    /// Give a node so long to take the connection and to begin its answer [default: 2, and 15 for changes, 130 for definitions].
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds)]
    pub deadline: Option<Duration>,
    /// What rabbitmqctl's commands take besides.
    #[arg(skip)]
    pub alike: alias::Options,
    /// What to look at.
    #[command(subcommand)]
    pub noun: Noun,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 64 usage, 65 the request is wrong, 69 node or API unavailable, 70 the cluster broke an \
invariant, 66 input cannot be read, 74 cannot write the answer, 76 not Warren's API, 77 user or permission, 78 address unusable.

Example: warrenctl --url http://127.0.0.1:15673 cluster status";

/// A time in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "a number of seconds from 0.1 on".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if duration < Duration::from_millis(100) {
        return Err(wrong());
    }
    Ok(duration)
}

/// The whole command line.
pub fn command() -> clap::Command {
    alias::taken(Arguments::command())
}

impl Arguments {
    /// What the command line says.
    pub fn of(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let mut arguments = Self::from_arg_matches(matches)?;
        arguments.alike = alias::of(matches)?;
        Ok(arguments)
    }
}

/// The node that is asked, and the user that asks.
#[derive(Debug, Clone, clap::Args)]
pub struct Connection {
    /// HTTP address of any node of the cluster [default: http://127.0.0.1:15672].
    #[arg(long, global = true, env = "WARREN_URL")]
    pub url: Option<String>,
    /// User name [default: guest].
    #[arg(long, global = true, env = "WARREN_USER")]
    pub user: Option<String>,
    /// Password [default: guest]; the environment variable and profiles keep it out of the process list.
    #[arg(long, global = true, env = "WARREN_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// CA of the nodes' certificates, in PEM form, for https.
    #[arg(long, global = true, env = "WARREN_CA", value_name = "FILE")]
    pub ca: Option<std::path::PathBuf>,
    /// Take what is not said here from the profile of this name.
    #[arg(long, global = true, env = "WARREN_PROFILE", value_name = "NAME")]
    pub profile: Option<String>,
    /// The file with the profiles [default: ~/.config/warren/profiles.toml].
    #[arg(long, global = true, env = "WARREN_PROFILES", value_name = "FILE")]
    pub profiles: Option<std::path::PathBuf>,
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns, for people.
    Table,
    /// The API's own JSON, for programs.
    Json,
    /// Comma-separated values with a heading.
    Csv,
    /// Columns divided by tabs, as rabbitmqctl has them.
    #[value(skip)]
    Tabs,
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
    /// Virtual hosts.
    #[command(subcommand)]
    Vhost(vhost::Verb),
    /// Users, their passwords and tags.
    #[command(subcommand)]
    User(user::Verb),
    /// What users may do in virtual hosts.
    #[command(subcommand)]
    Permission(permission::Verb),
    /// Which routing keys users may use with topic exchanges.
    #[command(subcommand)]
    TopicPermission(topic_permission::Verb),
    /// Arguments for all queues and exchanges whose names match.
    #[command(subcommand)]
    Policy(policy::Verb),
    /// Bounds that operators set to policies.
    #[command(subcommand)]
    OperatorPolicy(policy::Verb),
    /// How many connections, queues and channels virtual hosts and users may have.
    #[command(subcommand)]
    Limit(limit::Verb),
    /// Parameters: JSON under a name, of the cluster or of a component in a virtual host.
    #[command(subcommand)]
    Parameter(parameter::Verb),
    /// Client connections.
    #[command(subcommand)]
    Connection(connection::Verb),
    /// Channels of client connections.
    #[command(subcommand)]
    Channel(channel::Verb),
    /// Consumers.
    #[command(subcommand)]
    Consumer(consumer::Verb),
    /// The nodes' processes.
    #[command(subcommand)]
    Node(node::Verb),
    /// Single messages: for tests and for looking into things.
    #[command(subcommand)]
    Message(message::Verb),
    /// Everything that is declared, as one file.
    #[command(subcommand)]
    Definitions(definitions::Verb),
    /// Run a health check of the node.
    Check(check::Options),
    /// Passwords for definitions files.
    #[command(subcommand)]
    Password(password::Verb),
    /// Certificates for the links between nodes, and for clients.
    #[command(subcommand)]
    Cert(cert::Verb),
    /// The log of a node.
    #[command(subcommand)]
    Log(log::Verb),
    /// Print completions for a shell.
    Completions(completions::Options),
    /// The common commands by rabbitmqctl's names.
    #[command(flatten)]
    Alias(alias::Command),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        fn leaves(
            command: &clap::Command,
            path: &str,
            global: &[&clap::Id],
            found: &mut Vec<String>,
        ) {
            if command.get_subcommands().next().is_none() {
                let help = command
                    .get_after_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(
                    help.contains("Example: warrenctl "),
                    "`{path}` has no example in its help"
                );
                // Such an argument would take the global one's value.
                let mut own = command.get_arguments().map(clap::Arg::get_id);
                let clash = own.find(|id| global.contains(id));
                assert_eq!(clash, None, "`{path}` has a global option's name");
                found.push(path.to_owned());
            }
            for sub in command.get_subcommands() {
                leaves(sub, &format!("{path} {}", sub.get_name()), global, found);
            }
        }
        let command = command();
        command.clone().debug_assert();
        let global = command.get_arguments().filter(|a| a.is_global_set());
        let global: Vec<_> = global.map(clap::Arg::get_id).collect();
        let mut found = Vec::new();
        leaves(&command, "warrenctl", &global, &mut found);
        assert!(
            found.contains(&"warrenctl routing explain".to_owned()),
            "{found:?}"
        );
    }
}
