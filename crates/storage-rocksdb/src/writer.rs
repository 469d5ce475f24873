//! The log writer: one thread that turns queued calls into synced batches and answers them in order.
//!
//! Flow: take what has queued up (at most `batch_bytes`), write it as one `WriteBatch`, sync it, move the mark, let the tail
//! cache go of it, call the `done`s. Calls that arrive meanwhile are the next batch.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use rocksdb::WriteBatch;
use warren_storage::record::{self, Address};
use warren_storage::{Done, LogEntry, StorageError, key};

use crate::database::{Database, Family};
use crate::engine::{Counters, Shared};
use crate::mark::Mark;

/// Up to here deletions are single keys: a range deletion slows reads down until it is compacted away.
const SINGLE_DELETIONS_MAX: u64 = 32;

/// A queued log call.
pub(crate) struct Call {
    /// Grows by one with each call of any group.
    pub(crate) number: u64,
    pub(crate) change: Change,
    /// The answer, unless the write fails.
    pub(crate) answer: Result<(), StorageError>,
    pub(crate) done: Done,
}

/// What a call changes on disk. Ranges end before `until`.
pub(crate) enum Change {
    Append {
        group: u64,
        entries: Vec<LogEntry>,
    },
    Truncate {
        group: u64,
        from: u64,
        until: u64,
    },
    Purge {
        group: u64,
        from: u64,
        until: u64,
        through: u64,
    },
    Record {
        group: u64,
        name: &'static str,
        value: Bytes,
    },
    Nothing,
}

/// Starts the thread. It ends once the front is closing and the queue is empty.
pub(crate) fn start(shared: Arc<Shared>, mark: Mark) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("warren-log-writer".to_owned())
        .spawn(move || run(&shared, mark))
}

fn run(shared: &Shared, mut mark: Mark) {
    let mut scratch = Vec::new();
    while let Some(calls) = next_calls(shared) {
        let written = write(shared, &calls, &mut mark, &mut scratch);
        match &written {
            Ok(()) => {
                let last = calls.back().map_or(0, |call| call.number);
                shared.front.lock().tails.written(last);
            }
            Err(error) => shared.stop(error),
        }
        Counters::add(&shared.counters.log_calls, calls.len());
        for call in calls {
            answer(call, &written);
        }
    }
}

/// Waits for calls; none: the engine is closing and all is answered.
fn next_calls(shared: &Shared) -> Option<VecDeque<Call>> {
    let mut front = shared.front.lock();
    while front.queue.is_empty() {
        if front.closing {
            return None;
        }
        shared.work.wait(&mut front);
    }
    let (mut bytes, mut count) = (0usize, 0usize);
    for call in &front.queue {
        bytes = bytes.saturating_add(call.change.bytes());
        if bytes > shared.batch_bytes && count > 0 {
            break;
        }
        count += 1;
    }
    let rest = front.queue.split_off(count);
    Some(std::mem::replace(&mut front.queue, rest))
}

fn write(
    shared: &Shared,
    calls: &VecDeque<Call>,
    mark: &mut Mark,
    scratch: &mut Vec<u8>,
) -> Result<(), StorageError> {
    if calls
        .iter()
        .all(|call| matches!(call.change, Change::Nothing))
    {
        return Ok(());
    }
    // A state write may have failed since these calls were taken in.
    if let Some(cause) = &shared.front.lock().stopped {
        return Err(cause.stopping());
    }
    let database = shared.database()?;
    let bytes = calls.iter().map(|call| call.change.bytes()).sum();
    let mut batch = WriteBatch::with_capacity_bytes(bytes);
    for call in calls {
        call.change.add_to(&database, &mut batch, scratch)?;
    }
    let number = mark.next();
    batch.put_cf(
        database.family(Family::Records)?,
        key::BATCH_NUMBER,
        number.to_le_bytes(),
    );
    Counters::add(&shared.counters.log_syncs, 1);
    // Not one synced write: RocksDB would let the state's writes wait behind its sync.
    database.write(batch, "append to the log")?;
    database.sync("sync the log")?;
    mark.set(number)
}

fn answer(call: Call, written: &Result<(), StorageError>) {
    let answer = match call.change {
        Change::Nothing => call.answer,
        Change::Append { .. }
        | Change::Truncate { .. }
        | Change::Purge { .. }
        | Change::Record { .. } => written.clone().and(call.answer),
    };
    let done = call.done;
    // A caller's panic must not take the answers of all others with it.
    if catch_unwind(AssertUnwindSafe(move || done(answer))).is_err() {
        tracing::error!("a log call's done panicked");
    }
}

impl Change {
    /// About what it takes in a batch.
    fn bytes(&self) -> usize {
        const KEY_AND_HEADER: usize = 40;
        match self {
            Change::Append { entries, .. } => entries
                .iter()
                .map(|entry| entry.bytes.len() + KEY_AND_HEADER)
                .sum::<usize>(),
            Change::Record { value, .. } => value.len() + KEY_AND_HEADER,
            Change::Truncate { .. } | Change::Purge { .. } => 2 * KEY_AND_HEADER,
            Change::Nothing => 0,
        }
    }

    fn add_to(
        &self,
        database: &Database,
        batch: &mut WriteBatch,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let mut record =
            |address: Address<'_>, contents: &[u8], family, key: &[u8], batch: &mut WriteBatch| {
                scratch.clear();
                record::encode_into(address, contents, scratch);
                batch.put_cf(database.family(family)?, key, &scratch);
                Ok(())
            };
        match self {
            Change::Append { group, entries } => {
                for LogEntry { index, bytes } in entries {
                    let address = Address::Entry {
                        group: *group,
                        index: *index,
                    };
                    record(
                        address,
                        bytes,
                        Family::Log,
                        &key::log_entry(*group, *index),
                        batch,
                    )?;
                }
                Ok(())
            }
            Change::Truncate { group, from, until } => {
                delete(database, batch, *group, *from, *until)
            }
            Change::Purge {
                group,
                from,
                until,
                through,
            } => {
                let address = Address::PurgeMark { group: *group };
                record(
                    address,
                    &through.to_le_bytes(),
                    Family::Records,
                    &key::purge_mark(*group),
                    batch,
                )?;
                delete(database, batch, *group, *from, *until)
            }
            Change::Record { group, name, value } => {
                let address = Address::Record {
                    group: *group,
                    name,
                };
                record(
                    address,
                    value,
                    Family::Records,
                    &key::record(*group, name),
                    batch,
                )
            }
            Change::Nothing => Ok(()),
        }
    }
}

fn delete(
    database: &Database,
    batch: &mut WriteBatch,
    group: u64,
    from: u64,
    until: u64,
) -> Result<(), StorageError> {
    let log = database.family(Family::Log)?;
    if until.saturating_sub(from) <= SINGLE_DELETIONS_MAX {
        (from..until).for_each(|index| batch.delete_cf(log, key::log_entry(group, index)));
    } else {
        batch.delete_range_cf(
            log,
            key::log_entry(group, from),
            key::log_entry(group, until),
        );
    }
    Ok(())
}
