//! What the clients of a round and the conductor tell each other while it runs.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::history::Micros;

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Publish, consume, hold, return.
    Load,
    /// Publish nothing more; acknowledge everything at once.
    Drain,
    /// Close.
    Close,
}

/// The round's shared state.
#[derive(Debug)]
pub struct Shared {
    epoch: Instant,
    /// The run of the test, in every message.
    pub run: u64,
    /// The round, in every message.
    pub round: u16,
    /// The queues' names.
    pub queues: Vec<String>,
    /// What each publisher may publish a second.
    pub rate: f64,
    /// How many confirmed messages may wait for their acknowledgement before publishers pause.
    pub backlog: u64,
    phase: AtomicU8,
    /// Publishes.
    pub published: AtomicU64,
    /// Publishes whose answer is awaited, on connections that live.
    pub unanswered: AtomicU64,
    /// Publishes that were confirmed.
    pub confirmed: AtomicU64,
    /// Deliveries that were acknowledged.
    pub acked: AtomicU64,
    /// How many more were confirmed than acknowledged when last nothing was left to deliver: they will not come.
    pub written_off: AtomicU64,
    /// Deliveries.
    pub delivered: AtomicU64,
    /// Deliveries that consumers hold.
    pub held: AtomicU64,
    /// When the last delivery came.
    pub last_delivery: AtomicU64,
    /// Clients that are connected.
    pub connected: AtomicU64,
}

impl Shared {
    /// A round that begins now.
    pub fn new(
        epoch: Instant,
        run: u64,
        round: u16,
        queues: Vec<String>,
        rate: f64,
        backlog: u64,
    ) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            epoch,
            run,
            round,
            queues,
            rate,
            backlog,
            phase: AtomicU8::new(Phase::Load as u8),
            published: zero(),
            unanswered: zero(),
            confirmed: zero(),
            acked: zero(),
            written_off: zero(),
            delivered: zero(),
            held: zero(),
            last_delivery: zero(),
            connected: zero(),
        }
    }

    /// The time.
    pub fn now(&self) -> Micros {
        micros(self.epoch.elapsed())
    }

    /// What clients shall do now.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Load,
            1 => Phase::Drain,
            _ => Phase::Close,
        }
    }

    /// Has clients do this from now on.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// How many messages wait in the queues, about.
    pub fn waiting(&self) -> u64 {
        let gone = self.acked.load(Ordering::Relaxed) + self.written_off.load(Ordering::Relaxed);
        self.confirmed.load(Ordering::Relaxed).saturating_sub(gone)
    }

    /// Waits no longer for messages that were confirmed and have not come.
    pub fn write_off(&self) {
        self.written_off
            .fetch_add(self.waiting(), Ordering::Relaxed);
    }
}

/// A duration as the history counts it.
pub fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Takes from a counter.
pub fn take(counter: &AtomicU64, count: u64) {
    counter.fetch_sub(count, Ordering::Relaxed);
}
