//! How fast queues and bindings are declared: one at a time, each awaited, and pipelined.
//!
//! Each phase declares things that are not there yet. Bindings lead from one exchange to a few queues in turn, each with a pattern of its own.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cli::{DeclareOptions, Phase};
use crate::connection::Connection;
use crate::load::unique;
use crate::plan::binding;
use crate::report::say;
use crate::topology::{self, declare_exchange, pipeline, queue_arguments, write_bind, write_queue};

/// The results, phase by phase.
#[derive(Debug)]
pub struct Report {
    phases: Vec<Measured>,
}

/// One phase.
#[derive(Clone, Copy, Debug)]
struct Measured {
    phase: Phase,
    done: usize,
    took: Duration,
}

impl Measured {
    fn per_second(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

impl Report {
    /// The rate of the first phase, for a workload of one phase.
    pub fn first_per_second(&self) -> f64 {
        self.phases.first().map_or(0.0, Measured::per_second)
    }

    /// Prints a line a phase and a line of JSON.
    pub fn print(&self) {
        for measured in &self.phases {
            let (name, took) = (measured.phase.name(), measured.took.as_secs_f64());
            say(&format!(
                "{name:<20} {:>10.0}/s  ({} in {took:.2} s)",
                measured.per_second(),
                measured.done
            ));
        }
        say(&self.json().to_string());
    }

    fn json(&self) -> Value {
        let phases: serde_json::Map<String, Value> = self
            .phases
            .iter()
            .map(|measured| {
                let value = json!({
                    "per_second": measured.per_second().round(),
                    "count": measured.done,
                    "seconds": measured.took.as_secs_f64(),
                });
                (measured.phase.name().to_owned(), value)
            })
            .collect();
        json!({ "command": "declare", "phases": phases })
    }
}

/// Runs the phases.
///
/// # Errors
/// If the broker cannot be reached, refuses, or does not answer.
pub fn run(options: &DeclareOptions) -> Result<Report> {
    let (unique, _) = unique();
    let mut made = Made {
        prefix: format!("bench.{unique}"),
        queues: Vec::new(),
        exchange: String::new(),
    };
    let outcome = measure(options, &mut made);
    let deleted = topology::delete(&options.urls.url, &made.queues, &made.exchange);
    let report = outcome?;
    deleted.context("deleting what was declared")?;
    Ok(report)
}

/// What has to be deleted at the end.
struct Made {
    prefix: String,
    queues: Vec<String>,
    exchange: String,
}

impl Made {
    /// New names, noted before they are used.
    fn queues(&mut self, count: u32) -> std::ops::Range<usize> {
        let from = self.queues.len();
        let to = from + count as usize;
        self.queues
            .extend((from..to).map(|index| format!("{}.{index}", self.prefix)));
        from..to
    }
}

fn measure(options: &DeclareOptions, made: &mut Made) -> Result<Report> {
    let mut connection = Connection::open(
        options.urls.url.first().context("no --url")?,
        "warren-bench declare",
    )?;
    let mut report = Report { phases: Vec::new() };
    let mut bound = Bound::default();
    for phase in Phase::ALL {
        if !options.phases.is_empty() && !options.phases.contains(&phase) {
            continue;
        }
        let measured = match phase {
            Phase::Queues => queues(options, made, &mut connection, 1),
            Phase::QueuesPipelined => queues(options, made, &mut connection, options.window),
            Phase::Bindings => bindings(options, made, &mut connection, 1, &mut bound),
            Phase::BindingsPipelined => {
                bindings(options, made, &mut connection, options.window, &mut bound)
            }
        };
        let (done, took) = measured.with_context(|| phase.name())?;
        report.phases.push(Measured { phase, done, took });
    }
    connection.close()?;
    Ok(report)
}

fn queues(
    options: &DeclareOptions,
    made: &mut Made,
    connection: &mut Connection,
    window: u32,
) -> Result<(usize, Duration)> {
    let names = made.queues(options.count);
    let names = &made.queues[names];
    let arguments = queue_arguments(None);
    timed(
        options,
        connection,
        window,
        "queue.declare-ok",
        |index, out| write_queue(out, &names[index], !options.transient, &arguments),
    )
}

/// The queues that bindings lead to, and how many bindings there are.
#[derive(Default)]
struct Bound {
    queues: std::ops::Range<usize>,
    bindings: u32,
}

fn bindings(
    options: &DeclareOptions,
    made: &mut Made,
    connection: &mut Connection,
    window: u32,
    bound: &mut Bound,
) -> Result<(usize, Duration)> {
    if bound.queues.is_empty() {
        made.exchange.clone_from(&made.prefix);
        declare_exchange(
            connection,
            &made.exchange,
            options.exchange_type,
            !options.transient,
        )?;
        bound.queues = made.queues(options.queues);
        let arguments = queue_arguments(None);
        let names = &made.queues[bound.queues.clone()];
        pipeline(
            connection,
            names.len(),
            options.window,
            Duration::from_secs(300),
            "queue.declare-ok",
            |index, out| write_queue(out, &names[index], !options.transient, &arguments),
        )?;
    }
    let first = bound.bindings;
    bound.bindings += options.count;
    let names = &made.queues[bound.queues.clone()];
    timed(
        options,
        connection,
        window,
        "queue.bind-ok",
        |index, out| {
            let binding = binding(
                options.exchange_type,
                first + u32::try_from(index)?,
                options.queues,
            );
            write_bind(
                out,
                &names[binding.queue as usize],
                &made.exchange,
                &binding,
            )
        },
    )
}

fn timed(
    options: &DeclareOptions,
    connection: &mut Connection,
    window: u32,
    answer: &'static str,
    write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> Result<(usize, Duration)> {
    let longest = Duration::from_secs(options.seconds.into());
    let start = Instant::now();
    let done = pipeline(
        connection,
        options.count as usize,
        window,
        longest,
        answer,
        write,
    )?;
    Ok((done, start.elapsed()))
}
