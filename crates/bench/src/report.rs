//! What a load found, as a line for people and a line of JSON.

use std::io::{self, Write as _};

use serde_json::{Value, json};

use crate::checker::Verdict;
use crate::cli::LoadOptions;
use crate::histogram::Histogram;
use crate::meter::Sample;
use crate::{EXIT_FAILED, EXIT_LOST};

/// Prints a line. A reader who has gone, such as `head`, is no failure of the benchmark.
pub fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The whole result.
#[derive(Debug)]
pub struct Report {
    /// What was asked for.
    pub options: LoadOptions,
    /// Routes that messages took in turn.
    pub routes: usize,
    /// Where the measured time begins.
    pub from: Sample,
    /// Where it ends.
    pub to: Sample,
    /// What was counted over the whole run.
    pub outcome: Outcome,
}

/// What was counted.
#[derive(Debug)]
pub struct Outcome {
    /// Messages written.
    pub sent: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages refused by a nack.
    pub refused: u64,
    /// What the checker says; none if nothing was consumed.
    pub verdict: Option<Verdict>,
    /// Whether what is missing is lost.
    pub conclusive: bool,
    /// From write to delivery.
    pub latency: Histogram,
    /// From write to confirm.
    pub confirm_latency: Histogram,
    /// What went wrong.
    pub errors: Vec<String>,
}

impl Report {
    /// Prints both lines, and errors to standard error.
    pub fn print(&self) {
        for error in &self.outcome.errors {
            eprintln!("warren-bench: {error}");
        }
        say(&self.line());
        say(&self.json().to_string());
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        if self.lost_confirmed() > 0 {
            EXIT_LOST
        } else if !self.outcome.errors.is_empty() {
            EXIT_FAILED
        } else {
            0
        }
    }

    /// Deliveries of confirmed messages that are lost.
    pub fn lost_confirmed(&self) -> u64 {
        self.outcome
            .verdict
            .filter(|_| self.outcome.conclusive)
            .map_or(0, |verdict| verdict.missing_confirmed)
    }

    /// Messages published in a second of the measured time.
    pub fn published_per_second(&self) -> f64 {
        self.rate(self.to.published - self.from.published)
    }

    /// Messages answered for in a second of the measured time.
    pub fn confirmed_per_second(&self) -> f64 {
        self.rate(self.to.settled - self.from.settled)
    }

    /// Deliveries in a second of the measured time.
    pub fn received_per_second(&self) -> f64 {
        self.rate(self.to.received - self.from.received)
    }

    fn rate(&self, count: u64) -> f64 {
        count as f64 / (self.to.at - self.from.at).as_secs_f64().max(1e-9)
    }

    /// The line for people.
    pub fn line(&self) -> String {
        let mut line = format!("published {:.0}/s", self.published_per_second());
        if self.options.confirm > 0 {
            line += &format!(
                ", confirmed {:.0}/s{}",
                self.confirmed_per_second(),
                times(&self.outcome.confirm_latency)
            );
        }
        let Some(verdict) = self.outcome.verdict else {
            return line + &format!("; {} sent, nothing consumed", self.outcome.sent);
        };
        line += &format!(
            ", received {:.0}/s{}; {} sent, {} received",
            self.received_per_second(),
            times(&self.outcome.latency),
            self.outcome.sent,
            verdict.received
        );
        let counts = verdict.counts;
        let lost = if self.outcome.conclusive {
            "lost"
        } else {
            "not received"
        };
        for (count, what) in [
            (verdict.missing_confirmed, format!("confirmed and {lost}")),
            (
                verdict.missing - verdict.missing_confirmed,
                format!("unconfirmed and {lost}"),
            ),
            (self.outcome.refused, "refused".to_owned()),
            (counts.duplicated, "duplicated".to_owned()),
            (counts.reordered, "reordered".to_owned()),
            (counts.redelivered, "redelivered".to_owned()),
            (counts.misrouted, "misrouted".to_owned()),
            (counts.foreign, "foreign or damaged".to_owned()),
        ] {
            if count > 0 {
                line += &format!(", {count} {what}");
            }
        }
        if verdict.missing == 0 && counts == crate::checker::Counts::default() {
            line += ", none lost, duplicated or reordered";
        }
        line
    }

    /// The line for programs.
    pub fn json(&self) -> Value {
        let (options, outcome) = (&self.options, &self.outcome);
        let mut value = json!({
            "command": "load",
            "queues": options.queues,
            "producers": options.producers,
            "consumers": options.consumers,
            "size": options.size,
            "transient": options.transient,
            "confirm": options.confirm,
            "prefetch": options.prefetch,
            "multi_ack": options.multi_ack,
            "exchange_type": options.exchange_type.map(crate::cli::ExchangeType::name),
            "routes": self.routes,
            "seconds": rounded((self.to.at - self.from.at).as_secs_f64() * 1000.0) / 1000.0,
            "published_per_second": rounded(self.published_per_second()),
            "confirmed_per_second": rounded(self.confirmed_per_second()),
            "received_per_second": rounded(self.received_per_second()),
            "latency_us": percentiles(&outcome.latency),
            "confirm_latency_us": percentiles(&outcome.confirm_latency),
            "sent": outcome.sent,
            "confirmed": outcome.confirmed,
            "refused": outcome.refused,
            "checked": outcome.verdict.is_some(),
            "conclusive": outcome.conclusive,
        });
        if let Some(verdict) = outcome.verdict {
            let counts = verdict.counts;
            value["received"] = verdict.received.into();
            value["expected"] = verdict.expected.into();
            value["missing"] = verdict.missing.into();
            value["lost_confirmed"] = self.lost_confirmed().into();
            value["duplicated"] = counts.duplicated.into();
            value["reordered"] = counts.reordered.into();
            value["redelivered"] = counts.redelivered.into();
            value["misrouted"] = counts.misrouted.into();
            value["foreign"] = counts.foreign.into();
        }
        value["errors"] = json!(outcome.errors);
        value
    }
}

fn rounded(value: f64) -> f64 {
    value.round()
}

/// Median, 99th percentile and maximum.
fn percentiles(times: &Histogram) -> Value {
    match (times.percentile_us(0.5), times.percentile_us(0.99)) {
        (Some(p50), Some(p99)) => json!({ "p50": p50, "p99": p99, "max": times.max_us() }),
        _ => Value::Null,
    }
}

fn times(times: &Histogram) -> String {
    match (times.percentile_us(0.5), times.percentile_us(0.99)) {
        (Some(p50), Some(p99)) => format!(
            " ({:.1} ms median, {:.1} ms p99)",
            f64::from(p50) / 1000.0,
            f64::from(p99) / 1000.0
        ),
        _ => String::new(),
    }
}
