//! A shard's replicated state: its queues' indexes, and up to which batch each session has published.
//!
//! Flow: every replica calls [`Shard::apply`] with each committed entry, in order; what the entry led to goes to [`Effects`], of which only the leader
//! makes use. Equal entries make equal states on all replicas, except for where a message lies ([`crate::index::Location`]), which is each one's own matter.
//! Invariant: a batch is applied once, however often it is in the log: its number follows the session's last one, or it is passed over.

use crate::entry::{BadEntry, Op, Reader, Run, Settle, record_at};
use crate::index::{Index, Location};
use std::collections::BTreeMap;
use warren_model::planted;
use warren_model::{Incarnation, NodeId, QueueId, SessionId};

/// What comes of an entry.
pub trait Effects {
    /// Messages of a run have arrived at a queue, the first one at `position`; its index has them.
    fn arrived(&mut self, run: &Run, position: u64, index: &Index);
    /// Messages are settled.
    fn settled(&mut self, settle: &Settle);
    /// A session's batch is applied.
    fn applied(&mut self, session: SessionId, number: u64);
    /// Messages of a queue before this position may have been delivered.
    fn touched(&mut self, queue: QueueId, position: u64);
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    queues: BTreeMap<QueueId, Index>,
    sessions: BTreeMap<SessionId, u64>,
    applied: u64,
    /// Queues that are gone since [`Shard::take_dropped`].
    dropped: Vec<QueueId>,
    /// Record bytes of messages that were settled since [`Shard::take_settled_bytes`].
    settled_bytes: u64,
}

impl Shard {
    /// A state that was kept: queues, sessions' last batches, and the entry applied last.
    pub fn restore(
        queues: impl IntoIterator<Item = (QueueId, Index)>,
        sessions: impl IntoIterator<Item = (SessionId, u64)>,
        applied: u64,
    ) -> Self {
        Self {
            queues: queues.into_iter().collect(),
            sessions: sessions.into_iter().collect(),
            applied,
            dropped: Vec::new(),
            settled_bytes: 0,
        }
    }

    /// Index of the entry applied last.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// A queue's index, if anything has ever been published to it.
    pub fn queue(&self, id: QueueId) -> Option<&Index> {
        self.queues.get(&id)
    }

    /// All queues that have an index, in the order of their ids.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, &Index)> {
        self.queues.iter().map(|(id, index)| (*id, index))
    }

    /// The same, to be changed: only in what is each replica's own matter.
    pub fn queues_mut(&mut self) -> impl Iterator<Item = (QueueId, &mut Index)> {
        self.queues.iter_mut().map(|(id, index)| (*id, index))
    }

    /// The number of a session's last batch, 0 if there was none.
    pub fn last_batch(&self, session: SessionId) -> u64 {
        self.sessions.get(&session).copied().unwrap_or(0)
    }

    /// Sessions and the numbers of their last batches.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, u64)> {
        self.sessions.iter().map(|(id, number)| (*id, *number))
    }

    /// Oldest entry of the log that a message lies in.
    pub fn oldest_entry(&self) -> Option<u64> {
        self.queues.values().filter_map(Index::oldest_entry).min()
    }

    /// Queues that are gone since this was last asked.
    pub fn take_dropped(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.dropped)
    }

    /// Record bytes of messages that were settled since this was last asked: what a checkpoint would free.
    pub fn take_settled_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.settled_bytes)
    }

    /// Applies the entry of this index. An error means a damaged entry, of which nothing further can be applied.
    pub fn apply(
        &mut self,
        index: u64,
        entry: &[u8],
        effects: &mut impl Effects,
    ) -> Result<(), BadEntry> {
        self.applied = index;
        for op in Reader::new(entry) {
            match op? {
                Op::Batch(batch) => {
                    let last = self.sessions.entry(batch.session).or_default();
                    if batch.number != *last + 1 && !(planted!(GapAccepted) && batch.number > *last)
                    {
                        continue;
                    }
                    *last = batch.number;
                    for run in batch.runs() {
                        self.arrive(index, entry, &run, effects);
                    }
                    for settle in batch.settles() {
                        self.settle(&settle, effects);
                    }
                    effects.applied(batch.session, batch.number);
                }
                Op::Settled(settle) => self.settle(&settle, effects),
                Op::Returned(queue, position) => {
                    if let Some(index) = self.queues.get_mut(&queue) {
                        index.put_back(position);
                    }
                }
                Op::Dropped(queue) => {
                    if self.queues.remove(&queue).is_some() {
                        self.dropped.push(queue);
                    }
                }
                Op::Gone(session) => {
                    self.sessions.remove(&session);
                }
                Op::Ended(node, incarnation) => self.end(node, incarnation),
                Op::Touched(queue, position) => {
                    self.queues.entry(queue).or_default().touch(position);
                    effects.touched(queue, position);
                }
            }
        }
        Ok(())
    }

    fn arrive(&mut self, index: u64, entry: &[u8], run: &Run, effects: &mut impl Effects) {
        let bytes = (0..run.count)
            .filter_map(|n| record_at(entry, run.items_at, run.block_at, n))
            .map(|(_, len)| u64::from(len))
            .sum();
        let location = Location::Entry {
            index,
            items_at: run.items_at,
            block_at: run.block_at,
        };
        let queue = self.queues.entry(run.queue).or_default();
        let position = queue.arrive(run.count, bytes, location);
        effects.arrived(run, position, queue);
    }

    fn settle(&mut self, settle: &Settle, effects: &mut impl Effects) {
        if let Some(index) = self.queues.get_mut(&settle.queue) {
            let before = index.bytes();
            index.settle(settle.position, settle.count);
            self.settled_bytes += before - index.bytes();
            effects.settled(settle);
        }
    }

    fn end(&mut self, node: NodeId, incarnation: Incarnation) {
        let first = SessionId {
            node,
            incarnation: Incarnation(0),
            number: 0,
        };
        let last = SessionId {
            node,
            incarnation,
            number: u64::MAX,
        };
        let ended: Vec<SessionId> = self.sessions.range(first..=last).map(|(s, _)| *s).collect();
        for session in ended {
            self.sessions.remove(&session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Builder;

    #[derive(Default)]
    struct Seen(Vec<String>);

    impl Effects for Seen {
        fn arrived(&mut self, run: &Run, position: u64, _: &Index) {
            self.0
                .push(format!("{} x{} at {position}", run.queue.0, run.count));
        }
        fn settled(&mut self, settle: &Settle) {
            self.0.push(format!("settled {}", settle.position));
        }
        fn applied(&mut self, session: SessionId, number: u64) {
            self.0.push(format!("{} applied {number}", session.number));
        }
        fn touched(&mut self, queue: QueueId, position: u64) {
            self.0.push(format!("{} touched to {position}", queue.0));
        }
    }

    fn session(number: u64) -> SessionId {
        SessionId {
            node: NodeId(1),
            incarnation: Incarnation(1),
            number,
        }
    }

    fn publish(number: u64, batch: u64) -> bytes::Bytes {
        let mut builder = Builder::default();
        builder.batch(
            session(number),
            batch,
            [(QueueId(1), 0, 2), (QueueId(1), 2, 3)].into_iter(),
            &[],
            b"abcde",
        );
        builder.take()
    }

    #[test]
    fn a_batch_counts_once_and_only_in_its_turn() {
        let (mut shard, mut seen) = (Shard::default(), Seen::default());
        for (index, batch) in [(1, 1), (2, 1), (3, 3), (4, 2), (5, 3)] {
            shard.apply(index, &publish(7, batch), &mut seen).unwrap();
        }
        assert_eq!(
            seen.0,
            [
                "1 x2 at 1",
                "7 applied 1",
                "1 x2 at 3",
                "7 applied 2",
                "1 x2 at 5",
                "7 applied 3"
            ]
        );
        let queue = shard.queue(QueueId(1)).unwrap();
        assert_eq!(
            (queue.live(), queue.bytes(), shard.oldest_entry()),
            (6, 15, Some(1))
        );
        assert_eq!((shard.last_batch(session(7)), shard.applied()), (3, 5));
        let mut builder = Builder::default();
        builder.settled(&Settle {
            queue: QueueId(1),
            position: 1,
            count: 6,
        });
        assert_eq!(shard.take_settled_bytes(), 0);
        shard.apply(6, &builder.take(), &mut seen).unwrap();
        assert_eq!(shard.take_settled_bytes(), 15);
        assert_eq!(shard.take_settled_bytes(), 0);
    }

    #[test]
    fn ended_incarnations_and_dropped_queues_leave_nothing() {
        let (mut shard, mut seen) = (Shard::default(), Seen::default());
        shard.apply(1, &publish(7, 1), &mut seen).unwrap();
        shard.apply(2, &publish(8, 1), &mut seen).unwrap();
        let mut builder = Builder::default();
        builder.gone(session(7));
        builder.dropped(QueueId(1));
        shard.apply(3, &builder.take(), &mut seen).unwrap();
        assert_eq!(shard.sessions().count(), 1);
        assert_eq!(
            (shard.queues().count(), shard.take_dropped()),
            (0, vec![QueueId(1)])
        );
        builder.ended(NodeId(1), Incarnation(1));
        shard.apply(4, &builder.take(), &mut seen).unwrap();
        assert_eq!(shard.sessions().count(), 0);
        assert!(shard.apply(5, &[9], &mut seen).is_err());
    }
}
