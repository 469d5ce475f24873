//! The report: what was done, what was counted, what is wrong, and how long faults held up the clients of the other nodes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::checker::{Class, Counts, Findings, Stall, Verdict, percentile};
use crate::cli::Expected;
use crate::history::{FaultKind, History, Micros};

/// The name of faults that overlap, among the kinds.
const OVERLAPPING: &str = "overlapping";

/// The report over all rounds.
#[derive(Debug, Default)]
pub struct Report {
    seed: u64,
    /// Why there were no network namespaces.
    confined: Option<String>,
    logs: Vec<PathBuf>,
    rounds: u32,
    loaded: Micros,
    counts: Counts,
    findings: Findings,
    faults: Vec<(FaultKind, usize)>,
    stalls: Vec<Stall>,
}

impl Report {
    /// Of nothing yet.
    pub fn new(seed: u64, confined: Option<String>, logs: Vec<PathBuf>) -> Self {
        Self {
            seed,
            confined,
            logs,
            ..Self::default()
        }
    }

    /// Adds a round.
    pub fn absorb(&mut self, history: &History, verdict: Verdict) {
        self.rounds += 1;
        self.loaded += history.end - history.begin;
        let (mine, theirs) = (&mut self.counts, verdict.counts);
        mine.published += theirs.published;
        mine.confirmed += theirs.confirmed;
        mine.refused += theirs.refused;
        mine.unknown += theirs.unknown;
        mine.delivered += theirs.delivered;
        mine.redelivered += theirs.redelivered;
        mine.requeued += theirs.requeued;
        mine.connections += theirs.connections;
        self.findings.absorb(verdict.findings);
        self.faults
            .extend(history.faults.iter().map(|fault| (fault.kind, fault.node)));
        self.stalls.extend(verdict.stalls);
    }

    /// How many violations there are.
    pub fn violations(&self) -> u64 {
        self.findings.violations()
    }

    /// Whether the run is what it should be.
    pub fn is_good(&self, expected: Option<Expected>) -> bool {
        match expected {
            None => self.violations() == 0,
            Some(Expected::Any) => self.violations() > 0,
            Some(Expected::Class(class)) => self.findings.of(class).violations > 0,
        }
    }

    /// For people.
    pub fn text(&self, expected: Option<Expected>) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out, expected);
        out
    }

    fn write(&self, out: &mut String, expected: Option<Expected>) -> std::fmt::Result {
        let Counts {
            published,
            confirmed,
            refused,
            unknown,
            delivered,
            redelivered,
            requeued,
            connections,
        } = self.counts;
        writeln!(
            out,
            "\ncrash test, seed {}: {} rounds in {:.0} s, {} faults ({})",
            self.seed,
            self.rounds,
            self.loaded as f64 / 1e6,
            self.faults.len(),
            self.kinds()
        )?;
        if let Some(reason) = &self.confined {
            writeln!(out, "nodes on loopback, no partitions: {reason}")?;
        }
        writeln!(
            out,
            "published {published}: confirmed {confirmed}, refused {refused}, without an answer {unknown}"
        )?;
        writeln!(
            out,
            "delivered {delivered}: redelivered {redelivered}, returned by consumers {requeued}; {connections} connections\n"
        )?;
        writeln!(out, "{:22}{:>10}{:>10}", "", "wrong", "excused")?;
        for class in Class::ALL {
            let tally = self.findings.of(class);
            let (wrong, excused) = (tally.violations, tally.excused);
            writeln!(out, "{:22}{wrong:>10}{excused:>10}", class.name())?;
        }
        writeln!(
            out,
            "(excused: seen by a client whose own node was under fault)"
        )?;
        for class in Class::ALL {
            for (at, words) in &self.findings.of(class).examples {
                writeln!(
                    out,
                    "  {} at {:.3} s: {words}",
                    class.name(),
                    *at as f64 / 1e6
                )?;
            }
        }
        self.write_stalls(out)?;
        let good = self.is_good(expected);
        writeln!(
            out,
            "\n{}",
            match (expected, good) {
                (None, true) => "nothing is wrong".to_owned(),
                (None, false) => format!("{} violations", self.violations()),
                (Some(_), true) => format!("{} violations, as expected", self.violations()),
                (Some(_), false) => "the violations that were expected did not come".to_owned(),
            }
        )?;
        if self.violations() > 0 {
            for log in &self.logs {
                writeln!(out, "log: {}", log.display())?;
            }
        }
        Ok(())
    }

    fn kinds(&self) -> String {
        let count = |kind| {
            self.faults
                .iter()
                .filter(|(other, _)| *other == kind)
                .count()
        };
        FaultKind::ALL
            .map(|kind| format!("{} {}", kind.name(), count(kind)))
            .join(", ")
    }

    fn write_stalls(&self, out: &mut String) -> std::fmt::Result {
        if self.stalls.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\n{:12}{:>7}{:>30}{:>30}",
            "ms at the", "", "confirms flow again", "slowest confirm"
        )?;
        writeln!(
            out,
            "{:12}{:>7}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "other nodes", "faults", "p50", "p99", "max", "p50", "p99", "max"
        )?;
        for (kind, mut times) in self.times() {
            write!(out, "{kind:12}{:>7}", times.faults)?;
            for values in [&mut times.flow, &mut times.slowest] {
                for percent in [50, 99, 100] {
                    let text = percentile(values, percent)
                        .map_or("-".to_owned(), |value| format!("{:.1}", value as f64 / 1e3));
                    write!(out, "{text:>10}")?;
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn times(&self) -> BTreeMap<&'static str, Times> {
        let mut kinds: BTreeMap<&'static str, Times> = BTreeMap::new();
        for stall in &self.stalls {
            let kind = if stall.overlapping {
                OVERLAPPING
            } else {
                stall.kind.name()
            };
            let times = kinds.entry(kind).or_default();
            times.flow.extend(stall.flow);
            times.slowest.extend(stall.slowest);
            times.faults += 1;
        }
        kinds
    }

    /// For programs.
    pub fn json(&self, expected: Option<Expected>) -> Value {
        let classes: serde_json::Map<String, Value> = Class::ALL
            .into_iter()
            .map(|class| {
                let tally = self.findings.of(class);
                let examples: Vec<Value> = tally
                    .examples
                    .iter()
                    .map(|(at, words)| json!({"at_us": at, "what": words}))
                    .collect();
                let value = json!({"violations": tally.violations, "excused": tally.excused, "examples": examples});
                (class.name().to_owned(), value)
            })
            .collect();
        let stalls: serde_json::Map<String, Value> = self
            .times()
            .into_iter()
            .map(|(kind, mut times)| {
                let figures = |values: &mut Vec<Micros>| {
                    json!({"p50": percentile(values, 50), "p99": percentile(values, 99), "max": percentile(values, 100)})
                };
                let value = json!({
                    "faults": times.faults,
                    "flow_us": figures(&mut times.flow),
                    "slowest_confirm_us": figures(&mut times.slowest),
                });
                (kind.to_owned(), value)
            })
            .collect();
        let counts = &self.counts;
        json!({
            "seed": self.seed,
            "good": self.is_good(expected),
            "violations": self.violations(),
            "namespaces": self.confined.is_none(),
            "rounds": self.rounds,
            "loaded_us": self.loaded,
            "faults": FaultKind::ALL.map(|kind| {
                json!({"kind": kind.name(), "count": self.faults.iter().filter(|(other, _)| *other == kind).count()})
            }),
            "published": counts.published,
            "confirmed": counts.confirmed,
            "refused": counts.refused,
            "unanswered": counts.unknown,
            "delivered": counts.delivered,
            "redelivered": counts.redelivered,
            "requeued": counts.requeued,
            "connections": counts.connections,
            "classes": classes,
            "stalls": stalls,
            "logs": if self.violations() > 0 { self.logs.iter().map(|log| log.display().to_string()).collect() } else { Vec::new() },
        })
    }
}

/// The times of one kind of faults.
#[derive(Debug, Default)]
struct Times {
    faults: usize,
    flow: Vec<Micros>,
    slowest: Vec<Micros>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(classes: &[Class]) -> Report {
        let mut verdict = Verdict::default();
        for class in classes {
            verdict
                .findings
                .add(*class, false, 1_500_000, || "message 7".to_owned());
        }
        verdict.stalls = vec![Stall {
            kind: FaultKind::Kill,
            overlapping: false,
            flow: Some(480_000),
            slowest: Some(500_000),
        }];
        let mut report = Report::new(5, None, vec![PathBuf::from("node1.log")]);
        report.absorb(&History::default(), verdict);
        report
    }

    #[test]
    fn a_violation_fails_the_run_unless_it_is_expected() {
        assert!(report(&[]).is_good(None));
        assert!(!report(&[]).is_good(Some(Expected::Any)));
        let lost = report(&[Class::Lost]);
        assert!(!lost.is_good(None));
        assert!(lost.is_good(Some(Expected::Any)));
        assert!(lost.is_good(Some(Expected::Class(Class::Lost))));
        assert!(!lost.is_good(Some(Expected::Class(Class::Phantom))));
    }

    #[test]
    fn both_forms_tell_what_is_wrong_and_where_the_logs_are() {
        let text = report(&[Class::Lost]).text(None);
        for part in [
            "lost at 1.500 s: message 7",
            "480.0",
            "1 violations",
            "log: node1.log",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let json = report(&[Class::Lost]).json(None);
        assert_eq!(json["classes"]["lost"]["violations"], 1);
        assert_eq!(json["stalls"]["kill"]["flow_us"]["p99"], 480_000);
        assert_eq!(json["good"], false);
        assert!(!report(&[]).text(None).contains("log: "));
    }
}
