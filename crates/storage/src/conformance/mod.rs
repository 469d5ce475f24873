//! What every engine must do. An engine gives a [`Harness`] and gets its tests from
//! [`conformance_tests!`](crate::conformance_tests).
//!
//! Each test begins with an empty storage. Nothing here depends on how fast an engine is: waits have a deadline.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "these are tests"
)]

mod files;
mod logs;
mod model;
mod states;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use self::files::{copy_in_use, corrupt_record_in};
pub use self::logs::*;
pub use self::model::random_calls_agree_with_a_model;
pub use self::states::*;
use crate::{Done, LogEntry, LogStore, Storage, StorageError};

/// How the suite handles an engine.
pub trait Harness {
    /// Opens the storage. Called when it is not open.
    fn open(&self) -> Arc<dyn Storage>;

    /// Ends the storage without closing it, as a killed process or a power loss does, and opens what is left.
    fn interrupt(&self, storage: Arc<dyn Storage>) -> Arc<dyn Storage>;

    /// Lets waiting calls proceed, for an engine that does not do so by itself.
    fn pump(&self) {}

    /// Whether calls that wait at the same time share syncs.
    fn shares_syncs(&self) -> bool {
        true
    }

    /// Flips a bit of the stored record of a log entry, in the byte at `at`. Called when the storage is not open.
    fn corrupt_entry(&self, group: u64, index: u64, at: usize);

    /// The same for a small record.
    fn corrupt_record(&self, group: u64, name: &'static str, at: usize);
}

/// Makes one test of each part of the suite, with a harness from the expression.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_tests!(@each $harness;
            answers_come_in_order
            reads_see_appends_before_they_are_durable
            appends_that_do_not_follow_are_refused
            truncated_entries_are_replaced
            purged_entries_stay_purged
            reads_stop_at_their_limits
            groups_are_apart
            records_are_replaced
            what_was_answered_survives
            calls_cut_short_leave_a_prefix
            long_histories_open_again
            slow_groups_outlive_busy_ones
            corrupt_bytes_are_never_served
            waiting_groups_share_syncs
            a_closed_storage_refuses
            state_is_sorted_and_apart
            state_writes_are_in_order
            scans_look_at_a_fixed_view
            synced_state_survives
            random_calls_agree_with_a_model
        );
    };
    (@each $harness:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::$name(&$harness);
            }
        )*
    };
}

/// How long a call may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Hands out `done`s and waits for their answers.
struct Answers {
    sender: Sender<(usize, Result<(), StorageError>)>,
    receiver: Receiver<(usize, Result<(), StorageError>)>,
    given: usize,
    /// The answers that have come, in their order.
    come: Vec<(usize, Result<(), StorageError>)>,
}

impl Answers {
    fn new() -> Answers {
        let (sender, receiver) = channel();
        Answers {
            sender,
            receiver,
            given: 0,
            come: Vec::new(),
        }
    }

    /// A `done` that answers under the next number.
    fn done(&mut self) -> Done {
        let (sender, number) = (self.sender.clone(), self.given);
        self.given += 1;
        Box::new(move |answer| {
            // The test may have ended already.
            let _ = sender.send((number, answer));
        })
    }

    /// Waits until all `done`s were called, once each.
    fn wait(&mut self, harness: &dyn Harness) {
        let deadline = Instant::now() + PATIENCE;
        while self.come.len() < self.given {
            harness.pump();
            match self.receiver.recv_timeout(Duration::from_millis(10)) {
                Ok(answer) => self.come.push(answer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let (come, given) = (self.come.len(), self.given);
                    assert!(
                        Instant::now() < deadline,
                        "{come} of {given} calls were answered"
                    );
                }
            }
        }
        let mut numbers: Vec<usize> = self.come.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        assert!(
            numbers.into_iter().eq(0..self.given),
            "each done is called once"
        );
    }

    /// Waits, and insists that all went well.
    fn all_ok(&mut self, harness: &dyn Harness) {
        self.wait(harness);
        for (number, answer) in &self.come {
            assert_eq!(*answer, Ok(()), "call {number}");
        }
    }
}

/// Contents that tell group, index and edition.
fn contents(group: u64, index: u64, edition: u64) -> Bytes {
    let size = usize::try_from(index * 7 % 50).unwrap();
    Bytes::from(
        [
            format!("{group}/{index}/{edition}/").into_bytes(),
            vec![b'x'; size],
        ]
        .concat(),
    )
}

fn entries(group: u64, indexes: std::ops::RangeInclusive<u64>, edition: u64) -> Vec<LogEntry> {
    indexes
        .map(|index| LogEntry {
            index,
            bytes: contents(group, index, edition),
        })
        .collect()
}

/// Appends and waits.
fn append(harness: &dyn Harness, log: &dyn LogStore, group: u64, entries: Vec<LogEntry>) {
    let mut answers = Answers::new();
    log.append(group, entries, answers.done());
    answers.all_ok(harness);
}

/// All entries of a group.
fn all(log: &dyn LogStore, group: u64) -> Vec<LogEntry> {
    let bounds = log.bounds(group).unwrap();
    let mut all: Vec<LogEntry> = Vec::new();
    loop {
        let next = all.last().map_or(bounds.first(), |entry| entry.index + 1);
        let more = log.read(group, next, u64::MAX, 500).unwrap();
        if more.is_empty() {
            assert_eq!(next, bounds.next(), "a read ends where the bounds do");
            return all;
        }
        all.extend(more);
    }
}

/// Closes and opens again.
fn reopen(harness: &dyn Harness, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
    storage.close().unwrap();
    drop(storage);
    harness.open()
}
