//! What sessions publish to a shard's queues and settle in them becomes entries of its log.
//!
//! Invariant: a session's batches are taken in the order of their numbers, without a gap, each once, and none once its incarnation has ended. What is taken here is
//! what the log takes: else a message would be settled in the queue and not in the log, and lie there until another leader finds it.

use super::{Local, Worker};
use crate::hosted::{ENTRIES_MAX, ShardMessage};
use crate::wire::{Item, Settled, ShardBatch, ToSession};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use warren_model::planted;
use warren_model::{ConsumerId, QueueId, Settlement, ShardId};
use warren_queue::entry::Settle;

/// How long settlements wait for publishes to share an entry with.
const LAZY: Duration = Duration::from_millis(5);

impl Worker {
    /// A session's batch: becomes part of the entry that is being gathered, unless it is in the log already or an earlier one is missing.
    pub(super) async fn shard_batch(&mut self, batch: ShardBatch) {
        let shard = batch.shard;
        let published = |refused| ToSession::Published {
            shard: Some(shard),
            number: batch.number,
            refused,
        };
        let Some(hosted) = self.shards.get(&shard) else {
            return;
        };
        // If another node leads, or none, the session hears of the next leader and sends it again.
        let Some(leading) = &hosted.leading else {
            return;
        };
        if leading.is_over(batch.session) {
            tracing::debug!(shard = shard.0, session = %batch.session, number = batch.number, "a batch of an ended incarnation is passed over");
            return;
        }
        let applied = hosted.state.last_batch(batch.session);
        let last = leading
            .proposed
            .get(&batch.session)
            .map_or(applied, |p| applied.max(*p));
        if batch.number <= applied {
            // What was refused is known to the leader of then alone: nothing of a queue that is gone is said to be kept.
            let node = self.node.clone();
            let table = node.metadata().table().read();
            let gone = |item: &Item| table.queue_by_id(item.queue).is_none();
            let refused = batch.items.iter().zip(0u32..);
            let refused = refused.filter(|(i, _)| gone(i)).map(|(_, n)| n).collect();
            self.outbox.push(batch.session, published(refused));
            return;
        }
        if batch.number != last + 1 && !planted!(GapAccepted) {
            // It is under way, or the one before was lost with a link and comes again, with this one behind it.
            tracing::debug!(shard = shard.0, session = %batch.session, number = batch.number, last, "a batch is passed over");
            return;
        }
        let refused = self.refused_of(&batch).await;
        let settles = self.settle_batch(&batch);
        let Some(leading) = self.leading_mut(shard) else {
            return;
        };
        leading.proposed.insert(batch.session, batch.number);
        let items = batch
            .items
            .iter()
            .enumerate()
            .filter(|(n, _)| refused.binary_search(&(*n as u32)).is_err())
            .map(|(_, item)| (item.queue, item.offset, item.len));
        leading
            .pending
            .batch(batch.session, batch.number, items, &settles, &batch.block);
        leading.urgent |= !batch.items.is_empty()
            || batch
                .settled
                .iter()
                .any(|s| s.settlement == Settlement::Got);
        if planted!(ConfirmBeforeCommit) {
            self.outbox.push(batch.session, published(Vec::new()));
            return;
        }
        if !refused.is_empty() {
            leading
                .refused
                .insert((batch.session, batch.number), refused);
        }
    }

    /// Which of a batch's items go to queues that are gone or going.
    pub(super) async fn refused_of(&mut self, batch: &ShardBatch) -> Vec<u32> {
        let mut refused = Vec::new();
        let mut at = 0;
        while let Some(first) = batch.items.get(at) {
            let run = batch.items[at..]
                .iter()
                .take_while(|item| item.queue == first.queue)
                .count();
            let takes = match self.queues.get(&first.queue) {
                Some(local) => !local.sealed,
                None => self.knows(first.queue).await,
            };
            if !takes {
                refused.extend((at..at + run).map(|n| n as u32));
            }
            at += run;
        }
        refused
    }

    /// Whether the table has a queue, of which nothing is asked here yet.
    pub(super) async fn knows(&mut self, queue: QueueId) -> bool {
        let node = self.node.clone();
        if node.metadata().table().version() < queue.created_at() {
            self.flush();
            node.metadata()
                .wait_applied(queue.created_at(), super::CATCH_UP)
                .await;
        }
        node.metadata().table().read().queue_by_id(queue).is_some()
    }

    /// Settles in the queues what a batch settles, and returns what the log is to say of it.
    pub(super) fn settle_batch(&mut self, batch: &ShardBatch) -> Vec<Settle> {
        let mut settles: Vec<Settle> = Vec::new();
        let mut returned = Vec::new();
        let mut items = batch.settled.as_slice();
        let mut positions = Vec::new();
        while let Some(first) = items.first() {
            let same = |s: &&Settled| {
                s.queue == first.queue
                    && s.consumer == first.consumer
                    && s.settlement == first.settlement
            };
            let run = items.iter().take_while(same).count();
            positions.clear();
            positions.extend(items[..run].iter().map(|s| s.position));
            items = &items[run..];
            self.serve(first.queue);
            let index = self
                .shards
                .get(&batch.shard)
                .and_then(|h| h.state.queue(first.queue));
            let mut void = BTreeSet::new();
            if let Some(local) = self.queues.get_mut(&first.queue)
                && let Some(replicated) = &mut local.replicated
            {
                self.touched.push(first.queue);
                let id = ConsumerId {
                    session: batch.session,
                    number: first.consumer,
                };
                let mut missed = Vec::new();
                if first.settlement == Settlement::Accept {
                    local.meter.now.ack += run as u64;
                }
                local.queue.settle_or(
                    id,
                    &positions,
                    first.settlement,
                    &mut self.outbox,
                    |position| missed.push(position),
                );
                // Held under an earlier leader or over an earlier link, and settled before the consumer was attached again.
                for position in missed {
                    let waits = local.queue.is_ahead(position)
                        && index.is_some_and(|i| i.find(position).is_some())
                        && !replicated.settling.contains(&position);
                    if !waits {
                        void.insert(position);
                    } else if first.settlement == Settlement::Requeue {
                        replicated.holds.remove(&position);
                    } else {
                        replicated.holds.remove(&position);
                        replicated.settling.insert(position);
                    }
                }
            } else if first.settlement != Settlement::Requeue
                && let Some(index) = index
            {
                // Nothing is asked of the queue yet: whoever is, finds these gone when the entry is applied.
                void.extend(positions.iter().filter(|p| index.find(**p).is_none()));
                self.unserved_settles(batch.shard, first.queue, &positions);
            }
            for &position in positions.iter().filter(|p| !void.contains(p)) {
                if first.settlement == Settlement::Requeue {
                    returned.push((first.queue, position));
                    continue;
                }
                match settles.last_mut() {
                    Some(last)
                        if last.queue == first.queue
                            && last.position + u64::from(last.count) == position =>
                    {
                        last.count += 1;
                    }
                    _ => settles.push(Settle {
                        queue: first.queue,
                        position,
                        count: 1,
                    }),
                }
            }
        }
        if let Some(leading) = self.leading_mut(batch.shard) {
            for (queue, position) in returned {
                leading.pending.returned(queue, position);
            }
        }
        settles
    }

    /// Makes a queue that nothing is asked of yet known, so that it is not fed with what is being settled.
    pub(super) fn unserved_settles(&mut self, shard: ShardId, queue: QueueId, positions: &[u64]) {
        let node = self.node.clone();
        let table = node.metadata().table().read();
        let Some(view) = table.queue_by_id(queue) else {
            return;
        };
        let mut replicated = self.replicated(shard, queue);
        replicated.settling.extend(positions);
        let local = Local {
            queue: super::paused(),
            accounted: 0,
            vhost: view.vhost.to_owned(),
            name: view.name.to_owned(),
            auto_delete: view.auto_delete,
            meter: self.unserved.remove(&queue).unwrap_or_default(),
            sealed: false,
            replicated: Some(replicated),
        };
        self.queues.insert(queue, local);
    }

    /// Proposes what the turn has gathered for shards that this node leads.
    pub(super) fn propose_pending(&mut self) {
        let node = self.node.clone();
        let mut waiting = Vec::new();
        for (&shard, hosted) in &mut self.shards {
            let Some(leading) = &mut hosted.leading else {
                continue;
            };
            if leading.pending.is_empty() || leading.under_way.len() >= ENTRIES_MAX {
                continue;
            }
            if !leading.urgent {
                if !std::mem::replace(&mut leading.lazy, true) {
                    waiting.push((shard, leading.term));
                }
                continue;
            }
            leading.urgent = false;
            let payload = leading.pending.take();
            let due = std::mem::take(&mut leading.due);
            leading.under_way.push_back((Instant::now(), due));
            // If it is refused, the lane is told next that it no longer leads.
            let _ = node.shards().propose(shard, leading.term, payload);
        }
        for (shard, term) in waiting {
            self.later(shard, LAZY, ShardMessage::Lazy { term });
        }
    }
}
