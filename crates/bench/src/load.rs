//! A load from beginning to end: declare, connect, publish and consume, drain, judge, delete.

use std::process;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};

use crate::body::Stamp;
use crate::checker::{Received, Sent};
use crate::cli::LoadOptions;
use crate::connection::Connection;
use crate::consumer::{Acks, Consumed, Consumer};
use crate::histogram::Histogram;
use crate::meter::{Meter, Sample, sum};
use crate::plan::Plan;
use crate::producer::{Pace, Produced, Producer};
use crate::report::{Outcome, Report};
use crate::ring::{Ring, Shape};
use crate::topology;

/// How often the main thread looks.
const LOOK: Duration = Duration::from_millis(5);
/// No delivery for so long means that none comes any more.
const IDLE: Duration = Duration::from_secs(5);
/// What may be under way by default: deliveries, and bytes of their bodies.
const BACKLOG: u64 = 200_000;
const BACKLOG_BYTES: u64 = 64 << 20;
/// What is published by default if nothing is consumed: messages, and bytes of their bodies.
const UNCONSUMED: u64 = 5_000_000;
const UNCONSUMED_BYTES: u64 = 1 << 30;

/// Runs the load.
///
/// # Errors
/// If it cannot begin. What goes wrong later is in the report.
pub fn run(options: &LoadOptions) -> Result<Report> {
    let targets = &options.urls.url;
    let first = targets.first().context("no --url")?;
    if let Some(exchange) = &options.exchange {
        topology::require_free(first, exchange)?;
    }
    let (unique, run) = unique();
    let plan = Arc::new(Plan::new(options, &unique, run));
    let outcome = declare_and_drive(options, &plan);
    let deleted = topology::delete(targets, &plan.queues, &plan.exchange);
    let mut report = outcome?;
    if let Err(error) = deleted {
        report
            .outcome
            .errors
            .push(format!("deleting queues: {error:#}"));
    }
    Ok(report)
}

/// A name, and a number for messages, that other runs do not use: from the clock and the process.
pub fn unique() -> (String, u16) {
    let nanoseconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let mixed = (nanoseconds ^ u64::from(process::id()) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (
        format!("{:x}.{nanoseconds:x}", process::id()),
        (mixed >> 48) as u16,
    )
}

fn declare_and_drive(options: &LoadOptions, plan: &Arc<Plan>) -> Result<Report> {
    // Connections go to the brokers in turn: the first to declare, then the consumers', then the producers'.
    let mut targets = options.urls.url.iter().cycle().zip(0..);
    let mut connect = || {
        let (target, index) = targets.next().context("no --url")?;
        Connection::open(target, &format!("warren-bench {index}"))
    };
    let mut control = connect()?;
    topology::declare(&mut control, plan, options).context("declaring")?;
    control.close()?;
    let consumers = (0..usize::from(options.consumers))
        .map(|index| {
            let acks = Acks {
                prefetch: options.prefetch,
                multiple: options.multi_ack,
            };
            Consumer::open(
                connect()?,
                plan,
                options.size,
                index,
                usize::from(options.consumers),
                acks,
            )
        })
        .collect::<Result<Vec<_>>>()?;
    let producers = (0..options.producers)
        .map(|stream| {
            let connection = connect()?;
            let shape = Shape {
                size: options.size,
                persistent: !options.transient,
                frame_max: connection.frame_max,
            };
            Producer::open(
                connection,
                Ring::new(plan, shape)?,
                pace(options, plan, stream),
            )
        })
        .collect::<Result<Vec<_>>>()?;
    drive(options, plan, producers, consumers)
}

/// One producer's share.
fn pace(options: &LoadOptions, plan: &Plan, stream: u16) -> Pace {
    let producers = u64::from(options.producers);
    let size = u64::from(options.size);
    let messages = match (options.messages, options.consumers) {
        (Some(messages), _) => messages,
        (None, 0) => UNCONSUMED.min(UNCONSUMED_BYTES / size),
        (None, _) => u64::MAX,
    };
    let backlog = match options.consumers {
        0 => 0,
        _ => options
            .backlog
            .unwrap_or_else(|| BACKLOG.min(BACKLOG_BYTES / size).max(100)),
    };
    Pace {
        stamp: Stamp {
            run: plan.run,
            stream,
            sent_us: 0,
            seq: 0,
        },
        window: u64::from(options.confirm),
        rate: options
            .rate
            .map(|rate| f64::from(rate) / f64::from(options.producers)),
        limit: messages / producers + u64::from(u64::from(stream) < messages % producers),
        backlog,
        copies: plan.copies(),
    }
}

fn drive(
    options: &LoadOptions,
    plan: &Arc<Plan>,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
) -> Result<Report> {
    // A given number of messages is timed as a whole.
    let warmup = Duration::from_secs(if options.messages.is_some() {
        0
    } else {
        options.warmup.into()
    });
    let measured = Duration::from_secs(options.seconds.into());
    let drain = Duration::from_secs(options.drain.into());
    let meter = Arc::new(Meter::start(
        producers.len(),
        consumers.len(),
        warmup + measured + drain,
    ));
    let consuming: Vec<_> = consumers
        .into_iter()
        .map(|consumer| spawn(&meter, move |meter| consumer.run(meter)))
        .collect();
    let publishing: Vec<_> = producers
        .into_iter()
        .map(|producer| spawn(&meter, move |meter| producer.run(meter)))
        .collect();

    let all_sent = || publishing.iter().all(JoinHandle::is_finished);
    let mut from = meter.sample();
    if wait(warmup, &all_sent) {
        from = meter.sample();
    }
    meter.record(true);
    let drained_early = !wait(
        warmup + measured - meter.elapsed().min(warmup + measured),
        &all_sent,
    );
    let mut to = meter.sample();
    meter.stop_publishing();
    let produced = publishing
        .into_iter()
        .map(join)
        .collect::<Result<Vec<_>>>()?;
    let expected = produced.iter().map(|produced| produced.sent).sum::<u64>() * plan.copies();
    let drained = drain_consumers(&meter, expected, !consuming.is_empty());
    if drained_early {
        // All was sent before time was up: what is measured ends with the last delivery.
        to = Sample {
            at: drained.last,
            ..meter.sample()
        };
    }
    meter.record(false);
    meter.stop_consuming();
    let consumed = consuming
        .into_iter()
        .map(join)
        .collect::<Result<Vec<_>>>()?;
    let outcome = judge(options, plan, produced, consumed, drained.complete);
    Ok(Report {
        options: options.clone(),
        routes: plan.routes.len(),
        from,
        to,
        outcome,
    })
}

fn spawn<T: Send + 'static>(
    meter: &Arc<Meter>,
    work: impl FnOnce(&Meter) -> T + Send + 'static,
) -> JoinHandle<T> {
    let meter = Arc::clone(meter);
    thread::spawn(move || work(&meter))
}

fn join<T>(thread: JoinHandle<T>) -> Result<T> {
    thread
        .join()
        .map_err(|_| anyhow!("a thread of the benchmark panicked"))
}

/// Waits; false if everything was sent before.
fn wait(time: Duration, all_sent: &impl Fn() -> bool) -> bool {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        if all_sent() {
            return false;
        }
        thread::sleep(left.min(LOOK));
    }
    true
}

/// How the deliveries ended.
struct Drained {
    /// All came, or no more come: what is missing now is lost.
    complete: bool,
    /// When the last one was seen.
    last: Instant,
}

fn drain_consumers(meter: &Meter, expected: u64, any: bool) -> Drained {
    let mut last = Instant::now();
    let mut received = sum(&meter.received);
    if !any {
        return Drained {
            complete: false,
            last,
        };
    }
    loop {
        if sum(&meter.fresh) >= expected {
            return Drained {
                complete: true,
                last,
            };
        }
        let now = sum(&meter.received);
        if now != received {
            (received, last) = (now, Instant::now());
        } else if last.elapsed() >= IDLE {
            return Drained {
                complete: true,
                last,
            };
        } else if meter.is_over() {
            return Drained {
                complete: false,
                last,
            };
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn judge(
    options: &LoadOptions,
    plan: &Arc<Plan>,
    produced: Vec<Produced>,
    consumed: Vec<Consumed>,
    drained: bool,
) -> Outcome {
    let mut errors = Vec::new();
    let (mut latency, mut confirm_latency) = (Histogram::default(), Histogram::default());
    let mut received = Received::new(Arc::clone(plan), options.size);
    let mut consumers_failed = false;
    for (index, consumer) in consumed.iter().enumerate() {
        received.merge(&consumer.received);
        latency.absorb(&consumer.latency);
        if let Some(error) = &consumer.error {
            consumers_failed = true;
            errors.push(format!("consumer {index}: {error:#}"));
        }
    }
    let (mut sent, mut confirmed, mut refused) = (0, 0, 0);
    for (index, producer) in produced.iter().enumerate() {
        sent += producer.sent;
        if let Some(confirms) = &producer.confirms {
            confirmed += confirms.acked();
            refused += confirms.nacked();
            confirm_latency.absorb(confirms.latency());
        }
        if let Some(error) = &producer.error {
            errors.push(format!("producer {index}: {error:#}"));
        }
    }
    let streams: Vec<Sent<'_>> = produced
        .iter()
        .map(|producer| Sent {
            count: producer.sent,
            confirms: producer.confirms.as_ref(),
        })
        .collect();
    let verdict = (options.consumers > 0).then(|| received.judge(&streams));
    if options.consumers > 0 && !drained && !consumers_failed {
        errors.push(format!(
            "deliveries were still coming in after {} s; raise --drain",
            options.drain
        ));
    }
    // A consumer that failed may have left messages in its queues: they are missing, but nobody knows whether they are lost.
    Outcome {
        sent,
        confirmed,
        refused,
        verdict,
        conclusive: drained && !consumers_failed,
        latency,
        confirm_latency,
        errors,
    }
}
