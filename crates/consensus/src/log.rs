//! openraft's log and vote on the node's log store: the metadata group's as group 0, a shard's as group 1 + its number.
//!
//! openraft counts entries from 0, the log store from 1: entry `i` here is entry `base + i + 1` there. The base is 0 but where a
//! shard's log was cleared and begun anew, since the store never counts backwards. The vote, the id of the last purged entry and
//! the base are small records of the group. Order and durability are the log store's: votes are awaited, appends report through
//! their callback when they are on disk and are readable before.
//! Cost: entries are encoded once when appended and decoded when read; the store's tail cache makes reads of the newest cheap.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use rkyv::rancor;
use tokio::sync::oneshot;
use warren_model::planted;
use warren_model::{NodeId, ShardId};
use warren_storage::{LogEntry, LogStore, Place, StorageError};

use crate::entry::{
    LogIdRecord, Malformed, VERSION, VoteRecord, decode_entry, decode_log_id, encode_entry,
    versioned,
};
use crate::raft::{Entry, EntryPayload, LeaderId, LogId, Membership, Types, Vote};

/// The metadata group's number in the log store. A shard's is one more than its own.
const METADATA: u64 = 0;
const VOTE: &str = "vote";
const PURGED: &str = "purged";
const BASE: &str = "base";
/// There, and not empty: the log is being cleared, up to this index of the store.
const CLEARED: &str = "cleared";
/// Bytes of entries that are read at once to be applied.
const APPLY_BYTES_MAX: usize = 4 << 20;

/// Decides, when a leader's own entry is about to be stored, whether its payload is still wanted.
pub(crate) trait Gate: Send + Sync + 'static {
    /// False: the payload of this leader's entries is left out from now on.
    fn lets_in(&self, leader: LeaderId) -> bool;
}

/// The number of a shard's log.
fn group_of(shard: ShardId) -> u64 {
    u64::from(shard.0) + 1
}

/// Whether a shard's log has entries.
pub(crate) fn has_entries(store: &dyn LogStore, shard: ShardId) -> Result<bool, StorageError> {
    Ok(!store.bounds(group_of(shard))?.is_empty())
}

/// A group's log.
#[derive(Clone)]
pub(crate) struct Log {
    store: Arc<dyn LogStore>,
    group: u64,
    /// See the module.
    base: u64,
    /// Bytes of entries that are read, and so sent, at once.
    read_bytes_max: usize,
    gate: Option<Arc<dyn Gate>>,
}

impl Log {
    /// The metadata group's.
    pub(crate) fn new(store: Arc<dyn LogStore>) -> Self {
        Self {
            store,
            group: METADATA,
            base: 0,
            read_bytes_max: 4 << 20,
            gate: None,
        }
    }

    /// A shard's. Large entries are read and sent one by one, so that none is copied into a batch.
    pub(crate) async fn of_shard(
        store: Arc<dyn LogStore>,
        shard: ShardId,
        gate: Arc<dyn Gate>,
    ) -> io::Result<Self> {
        let mut log = Self {
            store,
            group: group_of(shard),
            base: 0,
            read_bytes_max: 256 << 10,
            gate: Some(gate),
        };
        if let Some(through) = log.number(CLEARED)? {
            log.finish_clearing(through).await?;
        }
        log.base = log.number(BASE)?.unwrap_or(0);
        Ok(log)
    }

    /// Whether nothing was ever stored here.
    pub(crate) fn is_pristine(&self) -> Result<bool, StorageError> {
        Ok(self.store.get_record(self.group, VOTE)?.is_none()
            && self.store.bounds(self.group)?.last == 0)
    }

    /// Writes the entry that a group begins with. It is the same on all founders, so that it matches whoever is elected.
    pub(crate) async fn found(&self, membership: Membership) -> io::Result<()> {
        let nobody = LeaderId {
            term: 0,
            node_id: NodeId(0),
        };
        let entry = Entry::new(LogId::new(nobody, 0), EntryPayload::Membership(membership));
        let stored = LogEntry {
            index: self.base + 1,
            bytes: encode_entry(&entry).map_err(Malformed::io)?,
        };
        self.durable(|done| self.store.append(self.group, vec![stored], done))
            .await
    }

    /// Removes all entries. The vote stays: what was promised once is promised for ever.
    pub(crate) async fn clear(&self) -> io::Result<()> {
        let last = self
            .store
            .bounds(self.group)
            .map_err(io::Error::other)?
            .last;
        self.put_number(CLEARED, Some(last)).await?;
        self.finish_clearing(last).await
    }

    async fn finish_clearing(&self, through: u64) -> io::Result<()> {
        self.durable(|done| self.store.purge(self.group, through, done))
            .await?;
        self.put_number(PURGED, None).await?;
        self.put_number(BASE, Some(through)).await?;
        self.put_number(CLEARED, None).await
    }

    /// A record that is a number; an empty one counts as none.
    fn number(&self, name: &'static str) -> io::Result<Option<u64>> {
        let stored = self.record(name)?;
        stored
            .map(|bytes| {
                let number = bytes[..].try_into().map(u64::from_le_bytes);
                number.map_err(|_| Malformed::new("number", format!("{name} is none")).io())
            })
            .transpose()
    }

    async fn put_number(&self, name: &'static str, number: Option<u64>) -> io::Result<()> {
        let value = number.map_or_else(Bytes::new, |number| number.to_le_bytes().to_vec().into());
        self.durable(|done| self.store.put_record(self.group, name, value, done))
            .await
    }

    /// A record, if it is there and not empty.
    fn record(&self, name: &'static str) -> io::Result<Option<Bytes>> {
        let stored = self
            .store
            .get_record(self.group, name)
            .map_err(io::Error::other)?;
        Ok(stored.filter(|stored| !stored.is_empty()))
    }

    /// The id of the last entry that was purged.
    pub(crate) fn purged(&self) -> io::Result<Option<LogId>> {
        let Some(stored) = self.record(PURGED)? else {
            return Ok(None);
        };
        let archive = versioned(&stored, "log id").map_err(Malformed::io)?;
        let record = rkyv::from_bytes::<LogIdRecord, rancor::Error>(archive)
            .map_err(|e| Malformed::new("log id", e).io())?;
        Ok(Some(record.into()))
    }

    /// The payload of one entry, if the entry is there; empty if it has none.
    pub(crate) fn payload(&self, index: u64) -> Result<Option<Bytes>, StorageError> {
        let at = self.base + index + 1;
        let stored = self.store.read(self.group, at, at + 1, 1)?;
        let Some(stored) = stored.first() else {
            return Ok(None);
        };
        let malformed = |error: Malformed| StorageError::Corrupt {
            what: error.to_string(),
            place: Place::LogEntry {
                group: self.group,
                index: at,
            },
        };
        match decode_entry(index, &stored.bytes)
            .map_err(malformed)?
            .payload
        {
            EntryPayload::Normal(payload) => Ok(Some(payload.into_bytes())),
            EntryPayload::Blank | EntryPayload::Membership(_) => Ok(Some(Bytes::new())),
        }
    }

    fn read(&self, from: u64, until: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let (first, end) = (self.base + from + 1, (self.base + 1).saturating_add(until));
        let stored = self
            .store
            .read(self.group, first, end, bytes_max)
            .map_err(io::Error::other)?;
        stored
            .iter()
            .map(|entry| {
                decode_entry(entry.index - self.base - 1, &entry.bytes).map_err(Malformed::io)
            })
            .collect()
    }

    async fn put(&self, name: &'static str, record: &impl Archived) -> io::Result<()> {
        let value = record.bytes().map_err(Malformed::io)?;
        self.durable(|done| self.store.put_record(self.group, name, value, done))
            .await
    }

    /// An entry as it is stored; without its payload if the gate says so.
    fn stored(&self, mut entry: Entry) -> Result<LogEntry, Malformed> {
        if let (EntryPayload::Normal(_), Some(gate)) = (&entry.payload, &self.gate)
            && !gate.lets_in(*entry.log_id.committed_leader_id())
        {
            entry.payload = EntryPayload::Blank;
        }
        Ok(LogEntry {
            index: self.base + entry.log_id.index + 1,
            bytes: encode_entry(&entry)?,
        })
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

/// The indexes of a range: the first, and the one after the last.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before + 1,
        Bound::Unbounded => 0,
    };
    let until = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(until) => *until,
        Bound::Unbounded => u64::MAX,
    };
    (from, until)
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let (mut from, until) = bounds(&range);
        let mut entries: Vec<Entry> = Vec::new();
        while from < until {
            let more = self.read(from, until, self.read_bytes_max)?;
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
        self.read(start, end, self.read_bytes_max)
    }

    /// Reads piece by piece: what is replayed after a start may be more than fits in memory.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (log, (from, until)) = (self.clone(), bounds(&range));
        let pieces = futures::stream::unfold(Some(from), move |from| {
            let log = log.clone();
            async move {
                let from = from.filter(|from| *from < until)?;
                let read = log.read(from, until, APPLY_BYTES_MAX);
                let next = read.as_ref().ok().and_then(|entries| entries.last());
                let next = next.map(|last| last.log_id.index + 1);
                // Where entries are missing, openraft notices that the stream ends too early.
                Some((read, next))
            }
        });
        pieces.flat_map(|read| {
            futures::stream::iter(match read {
                Ok(entries) => entries.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(error) => vec![Err(error)],
            })
        })
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        let Some(stored) = self.record(VOTE)? else {
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
        let purged = self.purged()?;
        let bounds = self.store.bounds(self.group).map_err(io::Error::other)?;
        let stored_at = |id: LogId| self.base + id.index + 1;
        // The record of the purge is written before the purge: after a crash in between, the purge is made up for.
        if let Some(purged) = purged
            && bounds.purged_through < stored_at(purged)
        {
            self.durable(|done| self.store.purge(self.group, stored_at(purged), done))
                .await?;
        }
        let last_is_purged = purged.is_some_and(|purged| bounds.last <= stored_at(purged));
        if bounds.is_empty() || last_is_purged {
            return Ok(LogState {
                last_purged_log_id: purged,
                last_log_id: purged,
            });
        }
        let last = self
            .store
            .read(self.group, bounds.last, bounds.last + 1, 1)
            .map_err(io::Error::other)?;
        let Some(last) = last.first() else {
            return Err(Malformed::new(
                "log",
                format!("its last entry, {} in the store, is missing", bounds.last),
            )
            .io());
        };
        let last = decode_log_id(last.index - self.base - 1, &last.bytes).map_err(Malformed::io)?;
        Ok(LogState {
            last_purged_log_id: purged,
            last_log_id: Some(last),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        if planted!(VoteNotPersisted) {
            return Ok(());
        }
        self.put(VOTE, &VoteRecord::from(*vote)).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<LogEntry> = entries
            .into_iter()
            .map(|entry| self.stored(entry))
            .collect::<Result<_, Malformed>>()
            .map_err(Malformed::io)?;
        if planted!(ConfirmBeforeSync) {
            self.store.append(self.group, entries, Box::new(drop));
            callback.io_completed(Ok(()));
            return Ok(());
        }
        self.store.append(
            self.group,
            entries,
            Box::new(move |result| callback.io_completed(result.map_err(io::Error::other))),
        );
        Ok(())
    }

    async fn truncate_after(&mut self, last_kept: Option<LogId>) -> Result<(), io::Error> {
        if planted!(TruncationForgotten) && self.gate.is_none() {
            return Ok(());
        }
        let last_kept = self.base + last_kept.map_or(0, |id| id.index + 1);
        self.durable(|done| self.store.truncate_after(self.group, last_kept, done))
            .await
    }

    async fn purge(&mut self, through: LogId) -> Result<(), io::Error> {
        let record = LogIdRecord::from(through).bytes().map_err(Malformed::io)?;
        // In order and on one sync: the purge is not durable before the record, and fails if the record does.
        self.store
            .put_record(self.group, PURGED, record, Box::new(drop));
        let through = self.base + through.index + 1;
        self.durable(|done| self.store.purge(self.group, through, done))
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    use warren_storage::Storage;
    use warren_storage::memory::Disk;

    use super::*;
    use crate::raft::{Member, Payload};

    /// Lets terms in that are above its number.
    struct Above(AtomicU64);

    impl Gate for Above {
        fn lets_in(&self, leader: LeaderId) -> bool {
            leader.term > self.0.load(Ordering::Relaxed)
        }
    }

    fn entry(term: u64, index: u64, payload: &'static str) -> Entry {
        let leader = LeaderId {
            term,
            node_id: NodeId(1),
        };
        let payload = EntryPayload::Normal(Payload::new(Bytes::from_static(payload.as_bytes())));
        Entry::new(LogId::new(leader, index), payload)
    }

    async fn open(disk: &Disk, gate: u64) -> Log {
        let gate = Arc::new(Above(AtomicU64::new(gate)));
        Log::of_shard(disk.open().log(), ShardId(4), gate)
            .await
            .unwrap()
    }

    async fn append(log: &mut Log, entries: Vec<Entry>) {
        log.append(entries, IOFlushed::noop()).await.unwrap();
    }

    #[tokio::test]
    async fn what_the_gate_refuses_keeps_its_place_without_its_payload() {
        let disk = Disk::new();
        let mut log = open(&disk, 3).await;
        append(&mut log, vec![entry(3, 0, "old"), entry(4, 1, "new")]).await;
        assert_eq!(log.payload(0).unwrap(), Some(Bytes::new()));
        assert_eq!(log.payload(1).unwrap(), Some(Bytes::from_static(b"new")));
        assert_eq!(log.payload(2).unwrap(), None);
        let read = log.try_get_log_entries(0..2).await.unwrap();
        assert_eq!(read[0].payload, EntryPayload::Blank);
        assert_eq!(read[0].log_id, entry(3, 0, "").log_id);
    }

    #[tokio::test]
    async fn a_cleared_log_begins_anew_and_remembers_its_vote() {
        let disk = Disk::new();
        let mut log = open(&disk, 0).await;
        assert!(log.is_pristine().unwrap());
        let members: BTreeMap<_, _> = [(NodeId(1), Member::default())].into();
        let membership = Membership::new(vec![[NodeId(1)].into()], members).unwrap();
        log.found(membership).await.unwrap();
        assert!(!log.is_pristine().unwrap());
        append(&mut log, (1..10).map(|n| entry(1, n, "a")).collect()).await;
        log.purge(entry(1, 4, "").log_id).await.unwrap();
        let vote = Vote::new(1, NodeId(1));
        log.save_vote(&vote).await.unwrap();
        for round in 0..2 {
            log.clear().await.unwrap();
            let mut again = open(&disk, 0).await;
            assert_eq!(again.read_vote().await.unwrap(), Some(vote));
            assert!(!again.is_pristine().unwrap());
            let state = again.get_log_state().await.unwrap();
            assert_eq!((state.last_purged_log_id, state.last_log_id), (None, None));
            append(&mut again, vec![entry(2, 0, "b"), entry(2, 1, "c")]).await;
            assert_eq!(again.payload(1).unwrap(), Some(Bytes::from_static(b"c")));
            again
                .truncate_after(Some(entry(2, 0, "").log_id))
                .await
                .unwrap();
            assert_eq!(again.payload(1).unwrap(), None, "round {round}");
            append(&mut again, vec![entry(3, 1, "d"), entry(3, 2, "e")]).await;
            again.purge(entry(3, 1, "").log_id).await.unwrap();
            let mut third = open(&disk, 0).await;
            let state = third.get_log_state().await.unwrap();
            assert_eq!(state.last_purged_log_id, Some(entry(3, 1, "").log_id));
            assert_eq!(state.last_log_id, Some(entry(3, 2, "").log_id));
            assert_eq!(third.payload(2).unwrap(), Some(Bytes::from_static(b"e")));
            log = third;
        }
    }

    /// Whatever of a clearing had become durable when the power went: opened again, the log is whole or empty.
    #[tokio::test]
    async fn a_clearing_that_was_cut_short_is_finished() {
        let mut seed = 1u64;
        let mut outcomes = [0; 2];
        for _ in 0..64 {
            let disk = Disk::new();
            let mut log = open(&disk, 0).await;
            append(&mut log, (0..10).map(|n| entry(1, n, "a")).collect()).await;
            log.purge(entry(1, 3, "").log_id).await.unwrap();
            disk.set_completion(warren_storage::memory::Completion::Queued);
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // So many syncs are done, then the power goes.
            let mut clearing = Box::pin(log.clear());
            for _ in 0..(seed >> 33) % 6 {
                assert!(futures::poll!(clearing.as_mut()).is_pending());
                disk.pump();
                if futures::poll!(clearing.as_mut()).is_ready() {
                    break;
                }
            }
            let mut draws = seed;
            disk.crash(&mut |below| {
                draws = draws
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (draws >> 33) % below
            });
            disk.set_completion(warren_storage::memory::Completion::Inline);
            let mut again = open(&disk, 0).await;
            let state = again.get_log_state().await.unwrap();
            let next = match state.last_log_id {
                Some(last) => {
                    assert_eq!(last, entry(1, 9, "").log_id);
                    outcomes[0] += 1;
                    10
                }
                None => {
                    assert_eq!(state.last_purged_log_id, None);
                    outcomes[1] += 1;
                    0
                }
            };
            append(&mut again, vec![entry(5, next, "z")]).await;
            assert_eq!(again.payload(next).unwrap(), Some(Bytes::from_static(b"z")));
        }
        assert!(outcomes.iter().all(|count| *count > 5), "{outcomes:?}");
    }
}
