//! The part of a lane that keeps its shards' replicas and, where this node leads, serves their queues.
//!
//! Flow of a publish: [`Worker::shard_batch`] adds a session's batch to the entry that is being gathered; at the end of the turn the entry is proposed (`batches`); when
//! it is committed, [`Worker::apply`] updates the indexes, feeds queues that have nothing waiting in the log, and answers the session (`applying`). Followers do the same
//! but for the last two.
//! After a change of leader nothing is delivered until every linked node's sessions have said what their consumers hold; nor is anything while no majority
//! has confirmed this leader of late (`leading`). What sessions ask of a queue is answered in `questions`.
//!
//! Invariants:
//! - A message's settlement is in the log before its publisher's node may forget it; a message is removed from an index by an applied entry only.
//! - A queue's first delivery under any leader comes after an applied entry says that it is in use, so that a later leader knows that messages may have been
//!   delivered, and flags them.

use super::{Local, Replicated, Worker};
use crate::counts::Counted;
use crate::hosted::{Leading, Missing, ShardMessage};
use crate::meter::Meter;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use warren_consensus::Leadership;
use warren_model::{Incarnation, NodeId, QueueId, SessionId, ShardId};
use warren_queue::Counts;
use warren_queue::index::Index;

impl Worker {
    /// The term in which this lane leads a shard.
    pub(super) fn leading(&self, shard: ShardId) -> Option<u64> {
        Some(self.shards.get(&shard)?.leading.as_ref()?.term)
    }

    pub(super) fn leading_mut(&mut self, shard: ShardId) -> Option<&mut Leading> {
        self.shards.get_mut(&shard)?.leading.as_mut()
    }

    /// What comes next is of this queue.
    pub(super) fn serve(&mut self, queue: QueueId) {
        let term = self
            .queues
            .get(&queue)
            .and_then(|local| self.leading(local.replicated.as_ref()?.shard));
        self.outbox.serve(term.unwrap_or(0), queue);
    }

    /// A replicated queue that is about to be served.
    pub(super) fn replicated(&self, shard: ShardId, id: QueueId) -> Replicated {
        let hosted = self.shards.get(&shard);
        let fed_to = hosted
            .and_then(|h| h.state.queue(id))
            .map_or(0, Index::first);
        let inherited = hosted
            .and_then(|h| h.leading.as_ref()?.inherited.get(&id).copied())
            .unwrap_or(0);
        Replicated {
            shard,
            fed_to,
            inherited,
            holds: BTreeMap::new(),
            unsure: BTreeSet::new(),
            settling: BTreeSet::new(),
            parked: Vec::new(),
        }
    }

    /// Counts for listings, of replicated queues also where nothing has been asked of them since this node leads.
    pub(super) fn counts(&mut self, ids: Option<Vec<QueueId>>) -> Vec<Counted> {
        let ids = ids.unwrap_or_else(|| {
            let led = self.shards.values().filter(|h| h.leading.is_some());
            let mut all: BTreeSet<QueueId> = led
                .flat_map(|h| h.state.queues().map(|(id, _)| id))
                .collect();
            all.extend(self.queues.keys().copied());
            all.into_iter().collect()
        });
        ids.into_iter()
            .filter_map(|id| {
                let counts = self.counts_of_any(id)?;
                let meter = match self.queues.get_mut(&id) {
                    Some(local) => Some(&mut local.meter),
                    None => self.unserved.get_mut(&id),
                };
                Some((id, counts, meter.map(Meter::flow).unwrap_or_default()))
            })
            .collect()
    }

    pub(super) fn counts_of_any(&self, id: QueueId) -> Option<Counts> {
        if let Some(local) = self.queues.get(&id) {
            return Some(self.counts_of(id, local));
        }
        let led = self.shards.values().filter(|h| h.leading.is_some());
        let index = led.filter_map(|h| h.state.queue(id)).next()?;
        Some(Counts {
            ready: index.live(),
            bytes: index.bytes(),
            ..Counts::default()
        })
    }

    pub(super) fn counts_of(&self, id: QueueId, local: &Local) -> Counts {
        let counts = local.queue.counts();
        let Some(replicated) = &local.replicated else {
            return counts;
        };
        let index = self
            .shards
            .get(&replicated.shard)
            .and_then(|h| h.state.queue(id));
        let (behind, bytes) = index.map_or((0, 0), |i| (i.live_from(replicated.fed_to), i.bytes()));
        let held = replicated.holds.range(replicated.fed_to..).count();
        let settling = replicated.settling.range(replicated.fed_to..).count();
        Counts {
            ready: counts.ready + behind.saturating_sub((held + settling) as u64),
            unacked: counts.unacked + held as u64,
            bytes,
            ..counts
        }
    }

    pub(super) async fn shard_message(&mut self, shard: ShardId, message: ShardMessage) {
        match message {
            ShardMessage::Opened(hosted) => {
                self.shards.insert(shard, *hosted);
            }
            ShardMessage::Apply(entries) => self.apply(shard, entries),
            ShardMessage::Leadership(Leadership::Leading { term }) => self.lead(shard, term),
            ShardMessage::Leadership(Leadership::Following { .. }) => self.follow(shard),
            ShardMessage::Reattached { node, term } => {
                if self.leading(shard) == Some(term) {
                    self.returned(shard, node);
                }
                self.gathered(shard, term, |gathering| {
                    gathering.remove(&node);
                });
            }
            ShardMessage::GatherOver { term, of } => {
                let mut living: BTreeSet<NodeId> = self.node.linked().into_iter().collect();
                living.insert(self.node.id());
                self.gathered(shard, term, |gathering| {
                    gathering.retain(|node| match of {
                        Missing::Earlier(earlier) => *node != earlier,
                        Missing::Unlinked => living.contains(node),
                        Missing::All => false,
                    });
                });
            }
            ShardMessage::Lazy { term } => {
                if let Some(leading) = self.leading_mut(shard)
                    && leading.term == term
                {
                    leading.lazy = false;
                    leading.urgent |= !leading.pending.is_empty();
                }
            }
            ShardMessage::HandingOver(done) => self.hand_over(shard, done),
            ShardMessage::KeepsLeading { term } => self.keeps_leading(shard, term),
            ShardMessage::Confirm { term } => self.confirm(shard, term),
            ShardMessage::Closed => {
                self.follow(shard);
                self.forget(shard);
            }
            ShardMessage::Checkpoint(position, done) => self.checkpoint(shard, &position, done),
            ShardMessage::View(done) => self.view(shard, done),
            ShardMessage::Stage {
                records,
                first,
                done,
            } => self.stage(shard, records, first, done),
            ShardMessage::Install(position, done) => self.install(shard, &position, done),
        }
    }

    pub(super) fn later(&self, shard: ShardId, after: Duration, message: ShardMessage) {
        let node = self.node.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            node.to_shard(shard, message);
        });
    }

    pub(super) fn drop_index(&mut self, id: QueueId) {
        self.unserved.remove(&id);
        for hosted in self.shards.values_mut() {
            if let Some(leading) = &mut hosted.leading
                && hosted.state.queue(id).is_some()
            {
                leading.pending.dropped(id);
                leading.urgent = true;
            }
        }
    }

    /// A session of this node or another one is over.
    pub(super) fn publishes_no_more(&mut self, session: SessionId) {
        for hosted in self.shards.values_mut() {
            if let Some(leading) = &mut hosted.leading
                && (hosted.state.last_batch(session) > 0 || leading.proposed.contains_key(&session))
            {
                leading.pending.gone(session);
                leading.proposed.remove(&session);
            }
        }
    }

    pub(super) fn incarnation_ended(&mut self, node: NodeId, incarnation: Incarnation) {
        for hosted in self.shards.values_mut() {
            let Some(leading) = &mut hosted.leading else {
                continue;
            };
            let ended = |s: &SessionId| s.node == node && s.incarnation <= incarnation;
            leading.note_ended(node, incarnation);
            let under_way = leading.proposed.extract_if(.., |s, _| ended(s)).count();
            if under_way > 0 || hosted.state.sessions().any(|(s, _)| ended(&s)) {
                leading.pending.ended(node, incarnation);
                leading.urgent = true;
            }
        }
    }
}
