//! openraft's log and vote on the node's log store, as group 0.
//!
//! openraft counts entries from 0, the log store from 1: entry `i` here is entry `i + 1` there. The vote and the id of the
//! last purged entry are small records of the group. Order and durability are the log store's: votes are awaited, appends
//! report through their callback when they are on disk and are readable before.
//! Cost: entries are encoded once when appended and decoded when read; the store's tail cache makes reads of the newest cheap.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use rkyv::rancor;
use tokio::sync::oneshot;
use warren_storage::{LogEntry, LogStore, StorageError};

use crate::entry::{
    LogIdRecord, Malformed, VERSION, VoteRecord, decode_entry, decode_log_id, encode_entry,
    versioned,
};
use crate::raft::{Entry, LogId, Types, Vote};

/// The metadata group's number in the log store.
const GROUP: u64 = 0;
const VOTE: &str = "vote";
const PURGED: &str = "purged";
/// Bytes of entries that are read at once for replication.
const READ_BYTES_MAX: usize = 4 << 20;

/// The metadata group's log.
#[derive(Clone)]
pub(crate) struct Log {
    store: Arc<dyn LogStore>,
}

impl Log {
    pub(crate) fn new(store: Arc<dyn LogStore>) -> Self {
        Self { store }
    }

    /// Whether nothing was ever stored here.
    pub(crate) fn is_pristine(&self) -> Result<bool, StorageError> {
        Ok(self.store.get_record(GROUP, VOTE)?.is_none() && self.store.bounds(GROUP)?.last == 0)
    }

    fn read(&self, from: u64, until: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let stored = self
            .store
            .read(GROUP, from + 1, until.saturating_add(1), bytes_max)
            .map_err(io::Error::other)?;
        stored
            .iter()
            .map(|entry| decode_entry(entry.index - 1, &entry.bytes).map_err(Malformed::io))
            .collect()
    }

    async fn put(&self, name: &'static str, record: &impl Archived) -> io::Result<()> {
        let value = record.bytes().map_err(Malformed::io)?;
        self.durable(|done| self.store.put_record(GROUP, name, value, done))
            .await
    }

    /// Runs a writing call and waits until it is durable.
    async fn durable(&self, call: impl FnOnce(warren_storage::Done)) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        call(Box::new(move |result| drop(done.send(result))));
        match answer.await {
            Ok(result) => result.map_err(io::Error::other),
            Err(_) => Err(io::Error::other(StorageError::Closed)),
        }
    }
}

/// A small record with its version.
trait Archived {
    fn bytes(&self) -> Result<Bytes, Malformed>;
}

impl Archived for VoteRecord {
    fn bytes(&self) -> Result<Bytes, Malformed> {
        let bytes = rkyv::api::high::to_bytes_in::<_, rancor::Error>(self, vec![VERSION])
            .map_err(|e| Malformed::new("vote", e))?;
        Ok(bytes.into())
    }
}

impl Archived for LogIdRecord {
    fn bytes(&self) -> Result<Bytes, Malformed> {
        let bytes = rkyv::api::high::to_bytes_in::<_, rancor::Error>(self, vec![VERSION])
            .map_err(|e| Malformed::new("log id", e))?;
        Ok(bytes.into())
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let mut from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let until = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(until) => *until,
            Bound::Unbounded => u64::MAX,
        };
        let mut entries: Vec<Entry> = Vec::new();
        while from < until {
            let more = self.read(from, until, READ_BYTES_MAX)?;
            let Some(last) = more.last() else { break };
            from = last.log_id.index + 1;
            entries.extend(more);
        }
        Ok(entries)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, READ_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        let Some(stored) = self
            .store
            .get_record(GROUP, VOTE)
            .map_err(io::Error::other)?
        else {
            return Ok(None);
        };
        let archive = versioned(&stored, "vote").map_err(Malformed::io)?;
        let record = rkyv::from_bytes::<VoteRecord, rancor::Error>(archive)
            .map_err(|e| Malformed::new("vote", e).io())?;
        Ok(Some(record.into()))
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let purged = match self
            .store
            .get_record(GROUP, PURGED)
            .map_err(io::Error::other)?
        {
            Some(stored) => {
                let archive = versioned(&stored, "log id").map_err(Malformed::io)?;
                let record = rkyv::from_bytes::<LogIdRecord, rancor::Error>(archive)
                    .map_err(|e| Malformed::new("log id", e).io())?;
                Some(LogId::from(record))
            }
            None => None,
        };
        let bounds = self.store.bounds(GROUP).map_err(io::Error::other)?;
        // The record of the purge is written before the purge: after a crash in between, the purge is made up for.
        if let Some(purged) = purged
            && bounds.purged_through < purged.index + 1
        {
            self.durable(|done| self.store.purge(GROUP, purged.index + 1, done))
                .await?;
        }
        let last_is_purged = purged.is_some_and(|purged| bounds.last <= purged.index + 1);
        if bounds.is_empty() || last_is_purged {
            return Ok(LogState {
                last_purged_log_id: purged,
                last_log_id: purged,
            });
        }
        let last = self
            .store
            .read(GROUP, bounds.last, bounds.last + 1, 1)
            .map_err(io::Error::other)?;
        let Some(last) = last.first() else {
            return Err(Malformed::new(
                "log",
                format!("its last entry, {}, is missing", bounds.last - 1),
            )
            .io());
        };
        let last = decode_log_id(last.index - 1, &last.bytes).map_err(Malformed::io)?;
        Ok(LogState {
            last_purged_log_id: purged,
            last_log_id: Some(last),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.put(VOTE, &VoteRecord::from(*vote)).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let encode = |entry: Entry| {
            Ok(LogEntry {
                index: entry.log_id.index + 1,
                bytes: encode_entry(&entry)?,
            })
        };
        let entries: Vec<LogEntry> = entries
            .into_iter()
            .map(encode)
            .collect::<Result<_, Malformed>>()
            .map_err(Malformed::io)?;
        self.store.append(
            GROUP,
            entries,
            Box::new(move |result| callback.io_completed(result.map_err(io::Error::other))),
        );
        Ok(())
    }

    async fn truncate_after(&mut self, last_kept: Option<LogId>) -> Result<(), io::Error> {
        let last_kept = last_kept.map_or(0, |id| id.index + 1);
        self.durable(|done| self.store.truncate_after(GROUP, last_kept, done))
            .await
    }

    async fn purge(&mut self, through: LogId) -> Result<(), io::Error> {
        self.put(PURGED, &LogIdRecord::from(through)).await?;
        self.durable(|done| self.store.purge(GROUP, through.index + 1, done))
            .await
    }
}
