//! Entries of a shard's log: what one turn of its leader has for all of its queues, in one piece of bytes.
//!
//! ```text
//! entry    version (1) op*
//! batch    1 session (24) number (8) runs (4) items (4) settles (4) block bytes (4)
//!            run*     queue (8) items (4)                     runs of items of one queue, in the order of arrival
//!            item*    offset (4) record bytes (4)             where in the block its record lies
//!            settle*  queue (8) position (8) count (4)
//!            block    records, see `warren_model::message`
//! settled  2 queue (8) position (8) count (4)                 by the leader itself: taken for good by whoever need not acknowledge, or purged
//! returned 3 queue (8) position (8)                           delivered, and put back
//! dropped  4 queue (8)                                        the queue was deleted
//! gone     5 session (24)                                     the session publishes no more
//! ended    6 node (8) incarnation (8)                         sessions of this and earlier incarnations publish no more
//! touched  7 queue (8) position (8)                           messages before this position may have been delivered; all that there will ever be: 2^64 - 1
//! ```
//! Numbers are little endian. A message is written once, however many queues of the shard it goes to, and stays where it is: a queue's index names the
//! entry, the run's first item and the block.
//! Invariant: [`Reader`] checks every length, so that a damaged entry is an error and never a panic.

use bytes::Bytes;
use warren_model::{Incarnation, NodeId, QueueId, SessionId};

/// The only version there is so far.
const VERSION: u8 = 1;
const BATCH: u8 = 1;
const SETTLED: u8 = 2;
const RETURNED: u8 = 3;
const DROPPED: u8 = 4;
const GONE: u8 = 5;
const ENDED: u8 = 6;
const TOUCHED: u8 = 7;
/// Bytes of a batch's head behind its kind.
const HEAD: usize = 24 + 8 + 4 * 4;
const RUN: usize = 12;
const ITEM: usize = 8;
const SETTLE: usize = 20;

/// Neighbouring messages of one queue that are settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settle {
    /// The queue.
    pub queue: QueueId,
    /// Position of the first one.
    pub position: u64,
    /// How many.
    pub count: u32,
}

/// Where a run of messages lies in its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Their queue.
    pub queue: QueueId,
    /// How many.
    pub count: u32,
    /// Where the first one's item starts in the entry.
    pub items_at: u32,
    /// Where the block that their offsets count from starts in the entry.
    pub block_at: u32,
}

/// One change of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op<'a> {
    /// What a session published and settled.
    Batch(Batch<'a>),
    /// The leader settles.
    Settled(Settle),
    /// A message was delivered and put back.
    Returned(QueueId, u64),
    /// The queue was deleted.
    Dropped(QueueId),
    /// The session publishes no more.
    Gone(SessionId),
    /// Sessions of these incarnations publish no more.
    Ended(NodeId, Incarnation),
    /// Messages before this position may have been delivered.
    Touched(QueueId, u64),
}

/// A batch as it lies in its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch<'a> {
    /// Who published.
    pub session: SessionId,
    /// Counts the session's batches for this shard, from 1 on.
    pub number: u64,
    runs: &'a [u8],
    settles: &'a [u8],
    items_at: u32,
    block_at: u32,
}

impl Batch<'_> {
    /// The runs, in order of arrival.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let (mut items_at, block_at) = (self.items_at, self.block_at);
        self.runs.chunks_exact(RUN).map(move |run| {
            let count = u32_at(run, 8);
            let at = items_at;
            items_at += count * ITEM as u32;
            Run {
                queue: QueueId(u64_at(run, 0)),
                count,
                items_at: at,
                block_at,
            }
        })
    }

    /// What is settled.
    pub fn settles(&self) -> impl Iterator<Item = Settle> + '_ {
        self.settles.chunks_exact(SETTLE).map(settle_of)
    }
}

fn settle_of(bytes: &[u8]) -> Settle {
    Settle {
        queue: QueueId(u64_at(bytes, 0)),
        position: u64_at(bytes, 8),
        count: u32_at(bytes, 16),
    }
}

/// An entry that is not one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed entry of a shard's log at byte {at}")]
pub struct BadEntry {
    /// Where it stops making sense.
    pub at: usize,
}

/// Gathers operations for one entry.
#[derive(Debug, Default)]
pub struct Builder {
    bytes: Vec<u8>,
}

impl Builder {
    /// Whether nothing has been gathered.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    fn op(&mut self, kind: u8) -> &mut Vec<u8> {
        if self.bytes.is_empty() {
            self.bytes.push(VERSION);
        }
        self.bytes.push(kind);
        &mut self.bytes
    }

    /// Adds a batch: items as queue, offset and length of a record in `block`, and what the session settles.
    pub fn batch(
        &mut self,
        session: SessionId,
        number: u64,
        items: impl Iterator<Item = (QueueId, u32, u32)> + Clone,
        settles: &[Settle],
        block: &[u8],
    ) {
        let bytes = self.op(BATCH);
        put_session(bytes, session);
        put_u64(bytes, number);
        let head = bytes.len();
        bytes.extend_from_slice(&[0; 16]);
        let (mut runs, mut count, mut of) = (0u32, 0u32, None);
        for (queue, _, _) in items.clone() {
            if of != Some(queue) {
                if of.is_some() {
                    put_u32(bytes, count);
                }
                put_u64(bytes, queue.0);
                (of, count, runs) = (Some(queue), 0, runs + 1);
            }
            count += 1;
        }
        if of.is_some() {
            put_u32(bytes, count);
        }
        let mut all = 0u32;
        for (_, offset, len) in items {
            put_u32(bytes, offset);
            put_u32(bytes, len);
            all += 1;
        }
        for settle in settles {
            put_settle(bytes, settle);
        }
        // A batch without items has no use for a block.
        let block = if all == 0 { &[][..] } else { block };
        for (i, n) in [runs, all, settles.len() as u32, block.len() as u32]
            .into_iter()
            .enumerate()
        {
            bytes[head + i * 4..head + i * 4 + 4].copy_from_slice(&n.to_le_bytes());
        }
        bytes.extend_from_slice(block);
    }

    /// The leader settles messages.
    pub fn settled(&mut self, settle: &Settle) {
        put_settle(self.op(SETTLED), settle);
    }

    /// A message was delivered and put back.
    pub fn returned(&mut self, queue: QueueId, position: u64) {
        let bytes = self.op(RETURNED);
        put_u64(bytes, queue.0);
        put_u64(bytes, position);
    }

    /// A queue was deleted.
    pub fn dropped(&mut self, queue: QueueId) {
        put_u64(self.op(DROPPED), queue.0);
    }

    /// A session publishes no more.
    pub fn gone(&mut self, session: SessionId) {
        put_session(self.op(GONE), session);
    }

    /// Sessions of a node's incarnations up to this one publish no more.
    pub fn ended(&mut self, node: NodeId, incarnation: Incarnation) {
        let bytes = self.op(ENDED);
        put_u64(bytes, node.0);
        put_u64(bytes, incarnation.0);
    }

    /// Messages of a queue before this position may have been delivered.
    pub fn touched(&mut self, queue: QueueId, position: u64) {
        let bytes = self.op(TOUCHED);
        put_u64(bytes, queue.0);
        put_u64(bytes, position);
    }

    /// The entry; the builder is empty afterwards.
    pub fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}

fn put_u64(bytes: &mut Vec<u8>, n: u64) {
    bytes.extend_from_slice(&n.to_le_bytes());
}

fn put_u32(bytes: &mut Vec<u8>, n: u32) {
    bytes.extend_from_slice(&n.to_le_bytes());
}

fn put_session(bytes: &mut Vec<u8>, session: SessionId) {
    put_u64(bytes, session.node.0);
    put_u64(bytes, session.incarnation.0);
    put_u64(bytes, session.number);
}

fn put_settle(bytes: &mut Vec<u8>, settle: &Settle) {
    put_u64(bytes, settle.queue.0);
    put_u64(bytes, settle.position);
    put_u32(bytes, settle.count);
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut n = [0; 8];
    n.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(n)
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut n = [0; 4];
    n.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(n)
}

fn session_at(bytes: &[u8], at: usize) -> SessionId {
    SessionId {
        node: NodeId(u64_at(bytes, at)),
        incarnation: Incarnation(u64_at(bytes, at + 8)),
        number: u64_at(bytes, at + 16),
    }
}

/// Reads an entry's operations in order. An empty entry has none.
#[derive(Debug)]
pub struct Reader<'a> {
    entry: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the start.
    pub fn new(entry: &'a [u8]) -> Self {
        Self { entry, at: 0 }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], BadEntry> {
        let bad = BadEntry { at: self.at };
        let end = self.at.checked_add(len).ok_or(bad)?;
        let taken = self.entry.get(self.at..end).ok_or(bad)?;
        self.at = end;
        Ok(taken)
    }

    fn table(&mut self, count: u32, each: usize) -> Result<&'a [u8], BadEntry> {
        let bad = BadEntry { at: self.at };
        self.take((count as usize).checked_mul(each).ok_or(bad)?)
    }

    fn next_op(&mut self) -> Result<Op<'a>, BadEntry> {
        if self.at == 0 && self.take(1)? != [VERSION] {
            return Err(BadEntry { at: 0 });
        }
        let at = self.at;
        let bad = BadEntry { at };
        Ok(match self.take(1)? {
            [BATCH] => {
                let head = self.take(HEAD)?;
                let [runs, items, settles, block] = [32, 36, 40, 44].map(|i| u32_at(head, i));
                let runs = self.table(runs, RUN)?;
                let counted: u64 = runs
                    .chunks_exact(RUN)
                    .map(|run| u64::from(u32_at(run, 8)))
                    .sum();
                if counted != u64::from(items) {
                    return Err(bad);
                }
                let items_at = u32::try_from(self.at).map_err(|_| bad)?;
                let items = self.table(items, ITEM)?;
                let settles = self.table(settles, SETTLE)?;
                let block_at = u32::try_from(self.at).map_err(|_| bad)?;
                self.take(block as usize)?;
                let inside = |item: &[u8]| {
                    u64::from(u32_at(item, 0)) + u64::from(u32_at(item, 4)) <= u64::from(block)
                };
                if !items.chunks_exact(ITEM).all(inside) {
                    return Err(bad);
                }
                Op::Batch(Batch {
                    session: session_at(head, 0),
                    number: u64_at(head, 24),
                    runs,
                    settles,
                    items_at,
                    block_at,
                })
            }
            [SETTLED] => Op::Settled(settle_of(self.take(SETTLE)?)),
            [RETURNED] => {
                let op = self.take(16)?;
                Op::Returned(QueueId(u64_at(op, 0)), u64_at(op, 8))
            }
            [DROPPED] => Op::Dropped(QueueId(u64_at(self.take(8)?, 0))),
            [GONE] => Op::Gone(session_at(self.take(24)?, 0)),
            [ENDED] => {
                let op = self.take(16)?;
                Op::Ended(NodeId(u64_at(op, 0)), Incarnation(u64_at(op, 8)))
            }
            [TOUCHED] => {
                let op = self.take(16)?;
                Op::Touched(QueueId(u64_at(op, 0)), u64_at(op, 8))
            }
            _ => return Err(bad),
        })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Op<'a>, BadEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.entry.len() {
            return None;
        }
        let op = self.next_op();
        if op.is_err() {
            self.at = self.entry.len();
        }
        Some(op)
    }
}

/// Offset and length, in the entry, of the record of the `n`th message of a run. None if the entry is too short for it.
#[inline]
pub fn record_at(entry: &[u8], items_at: u32, block_at: u32, n: u32) -> Option<(u32, u32)> {
    let at = items_at as usize + n as usize * ITEM;
    let item = entry.get(at..at + ITEM)?;
    let (offset, len) = (u32_at(item, 0), u32_at(item, 4));
    let start = block_at.checked_add(offset)?;
    let end = start.checked_add(len)?;
    (end as usize <= entry.len()).then_some((start, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64) -> SessionId {
        SessionId {
            node: NodeId(3),
            incarnation: Incarnation(2),
            number,
        }
    }

    fn sample() -> Bytes {
        let mut b = Builder::default();
        let (a, c) = (QueueId(7), QueueId(9));
        b.batch(
            session(1),
            5,
            [(a, 0, 3), (a, 3, 2), (c, 0, 3)].into_iter(),
            &[Settle {
                queue: c,
                position: 11,
                count: 4,
            }],
            b"helloworld",
        );
        b.settled(&Settle {
            queue: a,
            position: 1,
            count: 2,
        });
        b.returned(a, 8);
        b.dropped(c);
        b.gone(session(4));
        b.ended(NodeId(8), Incarnation(6));
        b.touched(a, u64::MAX);
        b.take()
    }

    #[test]
    fn operations_read_back_in_order() {
        let entry = sample();
        let ops: Vec<_> = Reader::new(&entry).collect::<Result<_, _>>().unwrap();
        let Op::Batch(batch) = &ops[0] else { panic!() };
        assert_eq!((batch.session, batch.number), (session(1), 5));
        let runs: Vec<_> = batch.runs().collect();
        assert_eq!(runs.len(), 2);
        assert_eq!((runs[0].queue, runs[0].count), (QueueId(7), 2));
        assert_eq!((runs[1].queue, runs[1].count), (QueueId(9), 1));
        let text = |run: &Run, n| {
            let (start, len) = record_at(&entry, run.items_at, run.block_at, n).unwrap();
            &entry[start as usize..(start + len) as usize]
        };
        assert_eq!(
            (text(&runs[0], 0), text(&runs[0], 1), text(&runs[1], 0)),
            (&b"hel"[..], &b"lo"[..], &b"hel"[..])
        );
        assert_eq!(batch.settles().next().map(|s| s.count), Some(4));
        assert_eq!(
            ops[1..],
            [
                Op::Settled(Settle {
                    queue: QueueId(7),
                    position: 1,
                    count: 2
                }),
                Op::Returned(QueueId(7), 8),
                Op::Dropped(QueueId(9)),
                Op::Gone(session(4)),
                Op::Ended(NodeId(8), Incarnation(6)),
                Op::Touched(QueueId(7), u64::MAX),
            ]
        );
        assert_eq!(Reader::new(&[]).count(), 0);
    }

    #[test]
    fn cuts_and_flips_are_errors_or_other_operations_and_never_a_panic() {
        let entry = sample();
        for end in 1..entry.len() {
            let whole = Reader::new(&entry[..end]).all(|op| op.is_ok());
            let ops = Reader::new(&entry[..end]).count();
            assert!(!whole || ops < 7, "cut at {end}");
        }
        for at in 0..entry.len() {
            for bit in 0..8 {
                let mut bad = entry.to_vec();
                bad[at] ^= 1 << bit;
                for op in Reader::new(&bad).flatten() {
                    if let Op::Batch(batch) = op {
                        for run in batch.runs() {
                            for n in 0..run.count {
                                assert!(record_at(&bad, run.items_at, run.block_at, n).is_some());
                            }
                        }
                    }
                }
            }
        }
    }
}
