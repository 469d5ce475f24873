//! Committed entries: they change the indexes, and on the leader feed queues and answer sessions.
//!
//! A queue is fed from the newest entries' payloads, the log or the store, in the order of positions, as far as its consumers want messages
//! ([`Worker::feed_touched`]): so it takes no memory for what nobody asks for.

use super::feeder::Feeder;
use super::{Local, Worker};
use crate::counts::Flow;
use crate::hosted::{Hosted, Leading};
use crate::meter::Meter;
use crate::outbox::Outbox;
use crate::wire::ToSession;
use bytes::Bytes;
use hashbrown::HashMap;
use warren_consensus::Committed;
use warren_model::{QueueId, SessionId, ShardId};
use warren_queue::Delivery;
use warren_queue::entry::{Run, Settle, record_at};
use warren_queue::index::{GOT_FROM, Index};
use warren_queue::shard::Effects;

/// Record bytes that a queue keeps in memory for consumers that do not take them yet.
const HOT_BYTES: u64 = 8 << 20;

impl Worker {
    /// Committed entries.
    pub(super) fn apply(&mut self, shard: ShardId, entries: Vec<Committed>) {
        self.drop_staged(shard);
        let Some(hosted) = self.shards.get_mut(&shard) else {
            return;
        };
        let (mut in_use, mut due) = (Vec::new(), Vec::new());
        for entry in entries {
            let Hosted {
                state,
                leading,
                recent,
                ..
            } = hosted;
            let mut effects = Applying {
                shard,
                payload: &entry.payload,
                leading: leading.as_mut(),
                queues: &mut self.queues,
                unserved: &mut self.unserved,
                outbox: &mut self.outbox,
                touched: &mut self.touched,
                in_use: &mut in_use,
            };
            if let Err(error) = state.apply(entry.index, &entry.payload, &mut effects) {
                tracing::error!(shard = shard.0, index = entry.index, %error, "an entry of a shard's log makes no sense: this replica stops");
                hosted.damaged = true;
                break;
            }
            recent.push(entry.index, &entry.payload);
            hosted.applied_entry(entry.index, entry.payload.len());
            // What is settled is freed by a checkpoint only, however small the entries are that settle it.
            hosted.unkept_bytes += hosted.state.take_settled_bytes();
            if let Some(leading) = &mut hosted.leading
                && leading.term == entry.term
                && !entry.payload.is_empty()
                && let Some((since, now)) = leading.under_way.pop_front()
            {
                self.node.commits().shards.add(since.elapsed());
                due.extend(now);
            }
        }
        for queue in in_use {
            self.pause_queue_as_due(queue);
        }
        for due in due {
            self.fulfil(due);
        }
        if self.shards.get(&shard).is_some_and(|h| h.damaged) {
            self.follow(shard);
            self.node.clone().stop_shard(shard);
        }
        self.reclaim(shard);
    }

    /// Feeds queues whose consumers want messages.
    pub(super) fn feed_touched(&mut self) {
        let mut at = 0;
        while let Some(&queue) = self.touched.get(at) {
            if self
                .queues
                .get(&queue)
                .is_some_and(|l| l.replicated.is_some())
            {
                while self.feed(queue, false) {}
            }
            at += 1;
        }
    }

    /// Feeds a queue with a piece of what waits in the log or the store, if a consumer (or a `get`) wants something. True if more may be wanted.
    pub(super) fn feed(&mut self, queue: QueueId, get: bool) -> bool {
        self.serve(queue);
        let Some(local) = self.queues.get_mut(&queue) else {
            return false;
        };
        let Some(replicated) = &mut local.replicated else {
            return false;
        };
        let Some(hosted) = self.shards.get(&replicated.shard) else {
            return false;
        };
        let Some(index) = hosted.state.queue(queue) else {
            return false;
        };
        let wanted = local.queue.is_hungry() || (get && local.queue.counts().ready == 0);
        if !wanted || replicated.fed_to >= index.next() {
            return false;
        }
        let feeder = Feeder {
            node: &self.node,
            shard: replicated.shard,
            hosted,
            queue,
            index,
        };
        let until = feeder.feed(&mut local.queue, replicated, &mut self.outbox);
        let more = until > replicated.fed_to;
        replicated.fed_to = until;
        more && !get
    }
}

/// Takes what an applied entry leads to, on the leader.
struct Applying<'a> {
    shard: ShardId,
    payload: &'a Bytes,
    leading: Option<&'a mut Leading>,
    queues: &'a mut HashMap<QueueId, Local>,
    unserved: &'a mut HashMap<QueueId, Meter<Flow>>,
    outbox: &'a mut Outbox,
    touched: &'a mut Vec<QueueId>,
    /// Queues that may be served from now on.
    in_use: &'a mut Vec<QueueId>,
}

impl Effects for Applying<'_> {
    fn arrived(&mut self, run: &Run, position: u64, index: &Index) {
        let Some(leading) = &self.leading else { return };
        let Some(local) = self.queues.get_mut(&run.queue) else {
            let meter = self.unserved.entry(run.queue).or_default();
            meter.now.publish += u64::from(run.count);
            return;
        };
        let Some(replicated) = &mut local.replicated else {
            return;
        };
        self.touched.push(run.queue);
        local.meter.now.publish += u64::from(run.count);
        // Only a queue with nothing left in the log is fed at once; and one whose consumers are slow is fed when they want more.
        let follows = replicated.fed_to == position || index.first() == position;
        if !follows || local.queue.is_paused() || local.queue.counts().bytes > HOT_BYTES {
            return;
        }
        self.outbox.serve(leading.term, run.queue);
        for n in 0..run.count {
            let Some((offset, len)) = record_at(self.payload, run.items_at, run.block_at, n) else {
                break;
            };
            let position = position + u64::from(n);
            let record = Delivery {
                position,
                redelivered: false,
                block: self.payload,
                offset,
                len,
            };
            local.queue.feed(position, &record, None, self.outbox);
        }
        local.queue.seal(self.payload);
        replicated.fed_to = position + u64::from(run.count);
    }

    fn settled(&mut self, settle: &Settle) {
        if let Some(replicated) = self
            .queues
            .get_mut(&settle.queue)
            .and_then(|l| l.replicated.as_mut())
            && !replicated.settling.is_empty()
        {
            let until = settle.position.saturating_add(u64::from(settle.count));
            let gone: Vec<u64> = replicated
                .settling
                .range(settle.position..until)
                .copied()
                .collect();
            for position in gone {
                replicated.settling.remove(&position);
            }
        }
    }

    fn applied(&mut self, session: SessionId, number: u64) {
        if let Some(leading) = &mut self.leading {
            let refused = leading
                .refused
                .remove(&(session, number))
                .unwrap_or_default();
            self.outbox.push(
                session,
                ToSession::Published {
                    shard: Some(self.shard),
                    number,
                    refused,
                },
            );
        }
    }

    fn touched(&mut self, queue: QueueId, position: u64) {
        if position >= GOT_FROM && self.leading.is_some() {
            self.in_use.push(queue);
        }
    }
}
