//! Two brokers, the same workloads in turn, and how many times faster the other one is.

use anyhow::Result;
use clap::ValueEnum as _;
use serde_json::json;

use crate::cli::CompareOptions;
use crate::report::say;
use crate::target::Target;
use crate::workloads::{Times, Workload};
use crate::{EXIT_FAILED, EXIT_LOST};

/// One workload's rates, in the order of the rounds.
#[derive(Debug, Default)]
struct Rates {
    base: Vec<f64>,
    other: Vec<f64>,
}

/// Runs the comparison; returns the exit code.
///
/// # Errors
/// None of its own: a workload that cannot be run is told, and the others go on.
pub fn run(options: &CompareOptions) -> Result<u8> {
    let names = if options.names.is_empty() {
        Workload::value_variants()
    } else {
        &options.names
    };
    let times = Times {
        seconds: options.seconds,
        warmup: options.warmup,
        durable_queues: options.durable_queues,
    };
    let (base_name, other_name) = (shown(&options.base), shown(&options.other));
    say(&row("per second", &base_name, &other_name, "ratio"));
    let mut code = 0;
    let mut results = serde_json::Map::new();
    for &workload in names {
        let mut rates = Rates::default();
        for _ in 0..options.rounds {
            rates
                .base
                .extend(measure(workload, &options.base, &times, &mut code));
            rates
                .other
                .extend(measure(workload, &options.other, &times, &mut code));
        }
        let (base, other) = (median(&mut rates.base), median(&mut rates.other));
        let ratio = base
            .zip(other)
            .filter(|(base, _)| *base > 0.0)
            .map(|(base, other)| other / base);
        say(&row(
            &workload.name(),
            &number(base, 0),
            &number(other, 0),
            &number(ratio, 2),
        ));
        let rounded = |value: Option<f64>| value.map(f64::round);
        results.insert(
            workload.name(),
            json!({ "base": rounded(base), "other": rounded(other), "ratio": ratio }),
        );
    }
    let (base, other, rounds) = (base_name, other_name, options.rounds);
    say(&json!({ "command": "compare", "base": base, "other": other, "rounds": rounds, "workloads": results }).to_string());
    Ok(code)
}

/// One run's rate; what goes wrong is told and leaves its mark on the exit code, where a loss outweighs a failure.
fn measure(workload: Workload, brokers: &[Target], times: &Times, code: &mut u8) -> Option<f64> {
    let place = format!("{} on {}", workload.name(), shown(brokers));
    let measured = match workload.run(brokers, times) {
        Ok(measured) => measured,
        Err(error) => {
            eprintln!("warren-bench: {place}: {error:#}");
            *code = if *code == EXIT_LOST {
                EXIT_LOST
            } else {
                EXIT_FAILED
            };
            return None;
        }
    };
    for error in &measured.errors {
        eprintln!("warren-bench: {place}: {error}");
        *code = if *code == EXIT_LOST {
            EXIT_LOST
        } else {
            EXIT_FAILED
        };
    }
    if measured.lost_confirmed > 0 {
        eprintln!(
            "warren-bench: {place}: {} confirmed messages lost",
            measured.lost_confirmed
        );
        *code = EXIT_LOST;
    }
    Some(measured.per_second)
}

fn shown(brokers: &[Target]) -> String {
    match brokers {
        [one] => one.shown.clone(),
        [first, rest @ ..] => format!("{}+{}", first.shown, rest.len()),
        [] => String::new(),
    }
}

fn row(name: &str, base: &str, other: &str, ratio: &str) -> String {
    format!("{name:<28}{base:>18}{other:>18}{ratio:>10}")
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "failed".to_owned(), |value| format!("{value:.digits$}"))
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() % 2 {
        1 => values.get(half).copied(),
        _ => Some(f64::midpoint(
            *values.get(half.checked_sub(1)?)?,
            *values.get(half)?,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn brokers_are_shown_by_address() {
        let one: Target = "amqp://u:secret@127.0.0.1:5672".parse().unwrap();
        assert_eq!(shown(std::slice::from_ref(&one)), "127.0.0.1:5672");
        assert_eq!(shown(&[one.clone(), one]), "127.0.0.1:5672+1");
    }
}
