//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::target::Target;
use crate::workloads::Workload;

/// Load a broker that speaks AMQP 0-9-1, measure it, and check what comes back. Only loopback addresses are accepted.
#[derive(Debug, Parser)]
#[command(name = "warren-bench", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  warren-bench load --transient --prefetch 0                      as fast as it goes, 16-byte messages, no acks
  warren-bench load --confirm 1000 --multi-ack --size 1024        persistent and confirmed
  warren-bench load --url 127.0.0.1:5672,127.0.0.1:5673 --producers 2 --consumers 2 --queues 8
  warren-bench load --exchange-type topic --queues 10 --bindings 10000 --transient
  warren-bench declare --count 10000
  warren-bench compare --base 127.0.0.1:5672 --other 127.0.0.1:5673 transient-16 declare-bindings

Every command prints lines for people and, last, one line of JSON.
Exit codes: 0 done, 1 something confirmed is lost, 2 it could not be run to its end.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish and consume for a while; count, time and check every message.
    Load(LoadOptions),
    /// Declare queues and bind them, one at a time and pipelined; delete them again.
    Declare(DeclareOptions),
    /// Run named workloads against two brokers in turn, and print the ratios.
    Compare(CompareOptions),
}

/// Where to connect to.
#[derive(Debug, Clone, Args)]
pub struct Urls {
    /// Broker, as host:port or amqp://user:password@host:port/vhost; several, separated by commas, share the connections.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "127.0.0.1:5672"
    )]
    pub url: Vec<Target>,
}

/// `warren-bench load`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Where messages go: without --exchange-type, to each queue in turn through the default exchange. Otherwise binding i leads to queue
i modulo --queues and each message matches one binding (fanout: all queues; x-consistent-hash: any one queue).
Interrupted runs leave queues named bench.* behind.")]
pub struct LoadOptions {
    /// The brokers.
    #[command(flatten)]
    pub urls: Urls,
    /// Queues.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub queues: u32,
    /// Publishing connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub producers: u16,
    /// Consuming connections, the queues shared among them; 0: publish only.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub consumers: u16,
    /// Body size in bytes, at least 16.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(16..=16_777_216))]
    pub size: u32,
    /// Transient messages and non-durable queues and exchange, instead of persistent and durable ones.
    #[arg(long)]
    pub transient: bool,
    /// With --transient: durable queues all the same, for brokers that refuse non-durable queues which are not exclusive.
    #[arg(long)]
    pub durable_queues: bool,
    /// The queues' x-queue-type, such as classic or quorum.
    #[arg(long, value_name = "TYPE")]
    pub queue_type: Option<String>,
    /// Publisher confirms, with at most WINDOW messages unconfirmed per producer; 0: none.
    #[arg(long, value_name = "WINDOW", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub confirm: u32,
    /// Unacknowledged deliveries per consumer of a queue; 0: no acknowledgements at all.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub prefetch: u16,
    /// Acknowledge everything that one read brought with one ack.
    #[arg(long)]
    pub multi_ack: bool,
    /// The exchange's name, which must be free; one of its own by default.
    #[arg(long, value_name = "NAME", requires = "exchange_type")]
    pub exchange: Option<String>,
    /// Publish through an exchange of this type.
    #[arg(long, value_name = "TYPE")]
    pub exchange_type: Option<ExchangeType>,
    /// Bindings, at least one a queue, which is the default.
    #[arg(long, value_name = "COUNT", requires = "exchange_type", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub bindings: Option<u32>,
    /// Messages a second, over all producers; unlimited by default.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Measured time.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Time before the measured time.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=600))]
    pub warmup: u32,
    /// Stop after so many messages, over all producers, if time does not end first; without warm-up. Without consumers 5000000 by
    /// default, and at most 1 GiB.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Deliveries that may be under way before producers wait; 0: no bound. By default 200000 and at most 64 MiB.
    #[arg(long, value_name = "COUNT")]
    pub backlog: Option<u64>,
    /// Longest time for confirms and deliveries to come in after publishing.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub drain: u32,
}

/// `warren-bench declare`
#[derive(Debug, Clone, Args)]
pub struct DeclareOptions {
    /// The brokers; the first one is used.
    #[command(flatten)]
    pub urls: Urls,
    /// What to time; everything by default.
    #[arg(value_enum, value_name = "PHASE")]
    pub phases: Vec<Phase>,
    /// Queues, or bindings, per phase.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub count: u32,
    /// Longest time per phase; a phase that it ends is measured up to there.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Commands sent ahead of their answers in the pipelined phases.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub window: u32,
    /// The exchange that is bound to.
    #[arg(long, value_name = "TYPE", default_value = "topic")]
    pub exchange_type: ExchangeType,
    /// Queues that the bindings lead to, in turn.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub queues: u32,
    /// Non-durable instead of durable queues and exchange.
    #[arg(long)]
    pub transient: bool,
}

/// `warren-bench compare`
#[derive(Debug, Clone, Args)]
#[command(after_help = crate::workloads::HELP)]
pub struct CompareOptions {
    /// The broker to compare with: URL, or several separated by commas.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    pub base: Vec<Target>,
    /// The broker to compare.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    pub other: Vec<Target>,
    /// Workloads; all of them by default.
    #[arg(value_enum, value_name = "NAME")]
    pub names: Vec<Workload>,
    /// Measured seconds per run (loads), or longest time (declarations).
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Seconds before the measured time of a load.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=600))]
    pub warmup: u32,
    /// Runs per workload and broker, alternating; the median counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Durable queues for transient messages too, for brokers that refuse non-durable queues which are not exclusive.
    #[arg(long)]
    pub durable_queues: bool,
}

/// Exchange types whose routing the checker can foretell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExchangeType {
    /// `direct`
    Direct,
    /// `fanout`
    Fanout,
    /// `topic`
    Topic,
    /// `headers`
    Headers,
    /// `x-consistent-hash`
    #[value(name = "x-consistent-hash")]
    ConsistentHash,
}

impl ExchangeType {
    /// The type's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::ConsistentHash => "x-consistent-hash",
        }
    }
}

/// What `declare` times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// Queues, one at a time.
    Queues,
    /// Queues, pipelined.
    QueuesPipelined,
    /// Bindings, one at a time.
    Bindings,
    /// Bindings, pipelined.
    BindingsPipelined,
}

impl Phase {
    /// All of them, in the order in which they run.
    pub const ALL: [Self; 4] = [
        Self::Queues,
        Self::QueuesPipelined,
        Self::Bindings,
        Self::BindingsPipelined,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::QueuesPipelined => "queues-pipelined",
            Self::Bindings => "bindings",
            Self::BindingsPipelined => "bindings-pipelined",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_load_takes_several_brokers() {
        let cli =
            Cli::try_parse_from(["warren-bench", "load", "--url", "127.0.0.1:1,[::1]:2"]).unwrap();
        let Command::Load(load) = cli.command else {
            panic!("not a load")
        };
        assert_eq!(load.urls.url.len(), 2);
    }

    #[test]
    fn another_machine_is_refused() {
        assert!(Cli::try_parse_from(["warren-bench", "load", "--url", "192.0.2.1:5672"]).is_err());
    }
}
