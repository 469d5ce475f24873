//! What the threads of a load share: the clock, the phase, and counters that each thread writes once per read or write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The shared state. The counters order nothing, so all accesses are relaxed.
#[derive(Debug)]
pub struct Meter {
    start: Instant,
    /// When everybody gives up.
    pub give_up: Instant,
    stop: AtomicBool,
    done: AtomicBool,
    recording: AtomicBool,
    /// Messages written, by producer.
    pub published: Vec<AtomicU64>,
    /// Messages answered for, by producer.
    pub settled: Vec<AtomicU64>,
    /// Deliveries, by consumer.
    pub received: Vec<AtomicU64>,
    /// Deliveries that are certainly no repetition, by consumer.
    pub fresh: Vec<AtomicU64>,
}

/// The sums at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// Messages written.
    pub published: u64,
    /// Messages answered for.
    pub settled: u64,
    /// Deliveries.
    pub received: u64,
}

impl Meter {
    /// Starts the clock; `longest` is when everybody gives up.
    pub fn start(producers: usize, consumers: usize, longest: Duration) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let start = Instant::now();
        Self {
            start,
            give_up: start + longest,
            stop: AtomicBool::new(false),
            done: AtomicBool::new(false),
            recording: AtomicBool::new(false),
            published: zeros(producers),
            settled: zeros(producers),
            received: zeros(consumers),
            fresh: zeros(consumers),
        }
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Microseconds since the start, modulo 2³².
    pub fn now_us(&self) -> u32 {
        self.elapsed().as_micros() as u32
    }

    /// Whether everybody gives up.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.give_up
    }

    /// Producers end.
    pub fn stop_publishing(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether producers end.
    pub fn publishing_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Consumers end.
    pub fn stop_consuming(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// Whether consumers end.
    pub fn consuming_stopped(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Latencies count from now on, or no longer.
    pub fn record(&self, on: bool) {
        self.recording.store(on, Ordering::Relaxed);
    }

    /// Whether latencies count.
    pub fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    /// The sums now.
    pub fn sample(&self) -> Sample {
        Sample {
            at: Instant::now(),
            published: sum(&self.published),
            settled: sum(&self.settled),
            received: sum(&self.received),
        }
    }
}

/// The sum of some counters.
pub fn sum(counters: &[AtomicU64]) -> u64 {
    counters
        .iter()
        .map(|counter| counter.load(Ordering::Relaxed))
        .sum()
}
