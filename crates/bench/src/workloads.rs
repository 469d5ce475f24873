//! The named workloads. Each is a command line of this program, so that `compare` measures nothing that cannot be run by hand.

use anyhow::Result;
use clap::{Parser as _, ValueEnum};

use crate::cli::{Cli, Command};
use crate::{declare, load};

/// A workload's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// 16-byte transient messages through one queue, without acks
    #[value(name = "transient-16")]
    Transient16,
    /// The same through eight queues, two connections each way
    #[value(name = "transient-16-8q")]
    Transient16Queues8,
    /// 1 KiB transient messages through one queue
    #[value(name = "transient-1k")]
    Transient1k,
    /// 16-byte persistent messages, confirmed and acknowledged
    #[value(name = "confirmed-16")]
    Confirmed16,
    /// 1 KiB persistent messages, confirmed and acknowledged
    #[value(name = "confirmed-1k")]
    Confirmed1k,
    /// A topic exchange with ten bindings to ten queues
    #[value(name = "topic-10")]
    Topic10,
    /// A topic exchange with ten thousand bindings to ten queues
    #[value(name = "topic-10k-bindings")]
    Topic10kBindings,
    /// A fanout exchange with ten queues
    #[value(name = "fanout-10")]
    Fanout10,
    /// Bindings, one at a time
    #[value(name = "declare-bindings")]
    DeclareBindings,
    /// Bindings, pipelined
    #[value(name = "declare-bindings-pipelined")]
    DeclareBindingsPipelined,
    /// Queues, one at a time
    #[value(name = "declare-queues")]
    DeclareQueues,
}

/// What each workload runs, for `--help`.
pub const HELP: &str = "\
Workloads are commands of this program; loads count deliveries a second, declarations their answers a second:
  transient-16                load --transient --prefetch 0
  transient-16-8q             load --transient --prefetch 0 --queues 8 --producers 2 --consumers 2
  transient-1k                load --transient --prefetch 0 --size 1024
  confirmed-16                load --confirm 2000 --prefetch 2000 --multi-ack
  confirmed-1k                load --confirm 2000 --prefetch 2000 --multi-ack --size 1024
  topic-10                    load --transient --prefetch 0 --exchange-type topic --queues 10 --bindings 10
  topic-10k-bindings          load --transient --prefetch 0 --exchange-type topic --queues 10 --bindings 10000
  fanout-10                   load --transient --prefetch 0 --exchange-type fanout --queues 10
  declare-bindings            declare bindings --count 20000
  declare-bindings-pipelined  declare bindings-pipelined --count 20000
  declare-queues              declare queues --count 5000

Example: warren-bench compare --base 127.0.0.1:5672 --other 127.0.0.1:5673 transient-16 confirmed-1k declare-bindings";

/// What one run of a workload gave.
#[derive(Debug)]
pub struct Measured {
    /// Deliveries, or declarations, a second.
    pub per_second: f64,
    /// Deliveries of confirmed messages that are lost.
    pub lost_confirmed: u64,
    /// What went wrong.
    pub errors: Vec<String>,
}

impl Workload {
    /// The name.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The command, without brokers and times.
    pub const fn command(self) -> &'static str {
        match self {
            Self::Transient16 => "load --transient --prefetch 0",
            Self::Transient16Queues8 => {
                "load --transient --prefetch 0 --queues 8 --producers 2 --consumers 2"
            }
            Self::Transient1k => "load --transient --prefetch 0 --size 1024",
            Self::Confirmed16 => "load --confirm 2000 --prefetch 2000 --multi-ack",
            Self::Confirmed1k => "load --confirm 2000 --prefetch 2000 --multi-ack --size 1024",
            Self::Topic10 => {
                "load --transient --prefetch 0 --exchange-type topic --queues 10 --bindings 10"
            }
            Self::Topic10kBindings => {
                "load --transient --prefetch 0 --exchange-type topic --queues 10 --bindings 10000"
            }
            Self::Fanout10 => "load --transient --prefetch 0 --exchange-type fanout --queues 10",
            Self::DeclareBindings => "declare bindings --count 20000",
            Self::DeclareBindingsPipelined => "declare bindings-pipelined --count 20000",
            Self::DeclareQueues => "declare queues --count 5000",
        }
    }

    /// Runs it once; `times` are further options, for the brokers and the time.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(self, brokers: &[crate::target::Target], times: &Times) -> Result<Measured> {
        match self.parse()? {
            Command::Load(mut options) => {
                options.urls.url = brokers.to_vec();
                (options.seconds, options.warmup) = (times.seconds, times.warmup);
                options.durable_queues = times.durable_queues;
                let report = load::run(&options)?;
                Ok(Measured {
                    per_second: report.received_per_second(),
                    lost_confirmed: report.lost_confirmed(),
                    errors: report.outcome.errors,
                })
            }
            Command::Declare(mut options) => {
                options.urls.url = brokers.to_vec();
                options.seconds = times.seconds;
                let report = declare::run(&options)?;
                Ok(Measured {
                    per_second: report.first_per_second(),
                    lost_confirmed: 0,
                    errors: Vec::new(),
                })
            }
            Command::Compare(_) => anyhow::bail!("a workload cannot be a comparison"),
        }
    }

    fn parse(self) -> Result<Command> {
        let line = ["warren-bench"]
            .into_iter()
            .chain(self.command().split_whitespace());
        Ok(Cli::try_parse_from(line)?.command)
    }
}

/// What a comparison sets for all its workloads.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Measured seconds.
    pub seconds: u32,
    /// Seconds before them.
    pub warmup: u32,
    /// Durable queues for transient messages.
    pub durable_queues: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_a_command_and_is_documented() {
        for workload in Workload::value_variants() {
            assert!(
                matches!(
                    workload.parse().unwrap(),
                    Command::Load(_) | Command::Declare(_)
                ),
                "{workload:?}"
            );
            let line = HELP
                .lines()
                .find(|line| line.trim_start().split(' ').next() == Some(&workload.name()))
                .unwrap();
            assert!(
                line.ends_with(&format!("  {}", workload.command())),
                "{line}"
            );
        }
    }
}
