//! The part of a lane that keeps its shards' replicas and, where this node leads, serves their queues.
//!
//! Flow of a publish: [`Worker::shard_batch`] adds a session's batch to the entry that is being gathered; at the end of the turn the entry is proposed; when
//! it is committed, [`Worker::apply`] updates the indexes, feeds queues that have nothing waiting in the log, and answers the session. Followers do the same
//! but for the last two.
//! A queue is fed from the newest entries' payloads, the log or the store, in the order of positions, as far as its consumers want messages
//! ([`Worker::feed_touched`]): so it takes no memory for what nobody asks for.
//! After a change of leader nothing is delivered until every linked node's sessions have said what their consumers hold; nor is anything while no majority
//! has confirmed this leader of late.
//!
//! Invariants:
//! - A message's settlement is in the log before its publisher's node may forget it; a message is removed from an index by an applied entry only.
//! - A queue's first delivery under any leader comes after an applied entry says that it is in use, so that a later leader knows that messages may have been
//!   delivered, and flags them.

use super::feeder::Feeder;
use super::{Answered, Local, Replicated, Worker, answer};
use crate::counts::{Counted, Flow};
use crate::hosted::{Due, ENTRIES_MAX, Hosted, Leading, ShardMessage};
use crate::meter::Meter;
use crate::outbox::{GetSink, Outbox};
use crate::wire::{Answer, Ask, Item, Question, Settled, ShardBatch, ToOwner, ToSession};
use crate::worker::LaneMessage;
use bytes::Bytes;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use warren_consensus::{Committed, Leadership};
use warren_model::planted;
use warren_model::{ConsumerId, Incarnation, NodeId, QueueId, SessionId, Settlement, ShardId};
use warren_queue::entry::{Run, Settle, record_at};
use warren_queue::index::{IN_USE, Index};
use warren_queue::shard::Effects;
use warren_queue::{Counts, Delivery};

/// How long a new leader waits for nodes to say what their consumers hold: links that were cut for a moment need a while to carry again.
const GATHER_MAX: Duration = Duration::from_secs(2);
/// How long it waits for the leader before it, which in most cases is dead.
const GATHER_FROM_EARLIER_MAX: Duration = Duration::from_millis(400);
/// How long a question may wait for its queue to be served: a little less than its session waits.
const PARKED_MAX: Duration = Duration::from_secs(9);
/// How long settlements wait for publishes to share an entry with.
const LAZY: Duration = Duration::from_millis(5);
/// Record bytes that a queue keeps in memory for consumers that do not take them yet.
const HOT_BYTES: u64 = 8 << 20;
/// A leader delivers while a majority has confirmed it within this time: less than the least time in which another can be elected.
const CONFIRMED: Duration = Duration::from_millis(190);
/// How soon a leader that is not confirmed looks again.
const CONFIRM_PAUSE: Duration = Duration::from_millis(20);

impl Worker {
    /// The term in which this lane leads a shard.
    pub(super) fn leading(&self, shard: ShardId) -> Option<u64> {
        Some(self.shards.get(&shard)?.leading.as_ref()?.term)
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

    fn counts_of_any(&self, id: QueueId) -> Option<Counts> {
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

    fn counts_of(&self, id: QueueId, local: &Local) -> Counts {
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
            ShardMessage::GatherOver { term, node } => {
                self.gathered(shard, term, |gathering| match node {
                    Some(node) => drop(gathering.remove(&node)),
                    None => gathering.clear(),
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

    fn leading_mut(&mut self, shard: ShardId) -> Option<&mut Leading> {
        self.shards.get_mut(&shard)?.leading.as_mut()
    }

    /// This node leads from now on.
    fn lead(&mut self, shard: ShardId, term: u64) {
        self.follow(shard);
        // One that is up and not linked yet may be so in a moment; one that has died is waited for in vain, but not for long.
        let table = self.node.metadata().table().read();
        let up = table.nodes().filter(|n| n.up).map(|n| n.id);
        let mut gathering: BTreeSet<NodeId> = up.chain(self.node.linked()).collect();
        drop(table);
        gathering.insert(self.node.id());
        if planted!(GatherSkipped) {
            gathering.clear();
        }
        let Some(hosted) = self.shards.get_mut(&shard) else {
            return;
        };
        tracing::info!(
            shard = shard.0,
            term,
            queues = hosted.state.queues().count(),
            "this node leads the shard"
        );
        hosted.leading = Some(Leading::new(term, gathering, &hosted.state));
        self.drop_what_is_gone(shard);
        self.confirm(shard, term);
        self.node.forget_wants(shard);
        let earlier = self.node.leaders().get(shard).map(|leader| leader.node);
        if earlier.is_some() && earlier != Some(self.node.id()) {
            let over = ShardMessage::GatherOver {
                term,
                node: earlier,
            };
            self.later(shard, GATHER_FROM_EARLIER_MAX, over);
        }
        let over = ShardMessage::GatherOver { term, node: None };
        self.later(shard, GATHER_MAX, over);
        self.node.clone().announce(shard, term);
    }

    fn later(&self, shard: ShardId, after: Duration, message: ShardMessage) {
        let node = self.node.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            node.to_shard(shard, message);
        });
    }

    /// This node does not lead (any more): what it served is the next leader's.
    pub(super) fn follow(&mut self, shard: ShardId) {
        let Some(leading) = self.shards.get_mut(&shard).and_then(|h| h.leading.take()) else {
            return;
        };
        tracing::info!(
            shard = shard.0,
            term = leading.term,
            "this node no longer leads the shard"
        );
        self.node.resigned(shard, leading.term);
        if let Some(hosted) = self.shards.get(&shard) {
            self.unserved
                .retain(|id, _| hosted.state.queue(*id).is_none());
        }
        let node = self.node.clone();
        self.queues.retain(|_, local| {
            let is_of_it = local.is_of(shard);
            if is_of_it {
                node.account(local.accounted, 0);
            }
            !is_of_it
        });
    }

    /// Queues that were deleted, and sessions whose incarnation has ended, while nobody led.
    fn drop_what_is_gone(&mut self, shard: ShardId) {
        let node = self.node.clone();
        let table = node.metadata().table().read();
        let Some(hosted) = self.shards.get_mut(&shard) else {
            return;
        };
        let Some(leading) = &mut hosted.leading else {
            return;
        };
        for (id, _) in hosted.state.queues() {
            if table.index() >= id.created_at() && table.queue_by_id(id).is_none() {
                leading.pending.dropped(id);
            }
        }
        let mut ended: BTreeMap<NodeId, Incarnation> = BTreeMap::new();
        for (session, _) in hosted.state.sessions() {
            let is_over = table.node(session.node).is_none_or(|known| {
                known.incarnation > session.incarnation
                    || (known.incarnation == session.incarnation && !known.up)
            });
            if is_over {
                let last = ended.entry(session.node).or_default();
                *last = (*last).max(session.incarnation);
            }
        }
        for (node, incarnation) in ended {
            leading.pending.ended(node, incarnation);
        }
        leading.urgent |= !leading.pending.is_empty();
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
            }
        }
    }

    pub(super) fn incarnation_ended(&mut self, node: NodeId, incarnation: Incarnation) {
        for hosted in self.shards.values_mut() {
            let Some(leading) = &mut hosted.leading else {
                continue;
            };
            let ended = |s: &SessionId| s.node == node && s.incarnation <= incarnation;
            if hosted.state.sessions().any(|(s, _)| ended(&s)) {
                leading.pending.ended(node, incarnation);
                leading.urgent = true;
            }
        }
    }

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
        leading.urgent |= !batch.items.is_empty();
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
    async fn refused_of(&mut self, batch: &ShardBatch) -> Vec<u32> {
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
    async fn knows(&mut self, queue: QueueId) -> bool {
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
    fn settle_batch(&mut self, batch: &ShardBatch) -> Vec<Settle> {
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
    fn unserved_settles(&mut self, shard: ShardId, queue: QueueId, positions: &[u64]) {
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
            leading
                .under_way
                .push_back(std::mem::take(&mut leading.due));
            // If it is refused, the lane is told next that it no longer leads.
            let _ = node.shards().propose(shard, leading.term, payload);
        }
        for (shard, term) in waiting {
            self.later(shard, LAZY, ShardMessage::Lazy { term });
        }
    }

    /// At the start of a turn: what a majority confirmed before an earlier turn says nothing about now. A leader that was starved of processor time, or cut off, must
    /// neither deliver nor say that a queue is empty.
    pub(super) fn confirm_all(&mut self) {
        let node = self.node.clone();
        let unconfirmed: Vec<(ShardId, u64)> = self
            .shards
            .iter()
            .filter_map(|(&shard, hosted)| Some((shard, hosted.leading.as_ref()?)))
            .filter(|(shard, l)| l.confirmed && !node.shards().confirmed_within(*shard, CONFIRMED))
            .map(|(shard, leading)| (shard, leading.term))
            .collect();
        for (shard, term) in unconfirmed {
            self.confirm(shard, term);
        }
    }

    /// Sees whether a majority has confirmed this leader of late; if not, nothing is delivered until one has.
    fn confirm(&mut self, shard: ShardId, term: u64) {
        let confirmed = self.node.shards().confirmed_within(shard, CONFIRMED);
        let Some(leading) = self.leading_mut(shard).filter(|l| l.term == term) else {
            return;
        };
        if leading.confirmed != confirmed {
            leading.confirmed = confirmed;
            self.pause_as_due(shard);
        }
        if !confirmed {
            self.later(shard, CONFIRM_PAUSE, ShardMessage::Confirm { term });
        }
    }

    /// Whether this lane may deliver messages of a queue now.
    fn may_deliver(&self, shard: ShardId, queue: QueueId) -> bool {
        let Some(hosted) = self.shards.get(&shard) else {
            return false;
        };
        let in_use = hosted
            .state
            .queue(queue)
            .is_some_and(|index| index.touched() == IN_USE);
        in_use && hosted.leading.as_ref().is_some_and(Leading::delivers)
    }

    /// Lets a queue deliver, or not, as it may now; asks again what had to wait.
    pub(super) fn pause_queue_as_due(&mut self, queue: QueueId) {
        let Some(shard) = self
            .queues
            .get(&queue)
            .and_then(|l| Some(l.replicated.as_ref()?.shard))
        else {
            return;
        };
        let paused = !self.may_deliver(shard, queue);
        self.serve(queue);
        let Some(local) = self.queues.get_mut(&queue) else {
            return;
        };
        if local.queue.is_paused() == paused {
            return;
        }
        local.queue.set_paused(paused, &mut self.outbox);
        self.touched.push(queue);
        if paused {
            return;
        }
        if let Some(replicated) = &mut local.replicated {
            for (since, question) in std::mem::take(&mut replicated.parked) {
                if since.elapsed() >= PARKED_MAX {
                    // Its session has refused it, or is about to: it must not take a message now.
                    continue;
                }
                // In its turn, as if it came now.
                let _ = self.node.send_here(
                    crate::owners::lane_of_shard(shard),
                    LaneMessage::Owner(ToOwner::Ask(question)),
                );
            }
        }
    }

    fn pause_as_due(&mut self, shard: ShardId) {
        for queue in self.queue_ids(|_, local| local.is_of(shard)) {
            self.pause_queue_as_due(queue);
        }
    }

    /// Committed entries.
    fn apply(&mut self, shard: ShardId, entries: Vec<Committed>) {
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
                && let Some(now) = leading.under_way.pop_front()
            {
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

    /// What became of the wait for consumers.
    fn gathered(&mut self, shard: ShardId, term: u64, change: impl FnOnce(&mut BTreeSet<NodeId>)) {
        let Some(leading) = self.leading_mut(shard) else {
            return;
        };
        if leading.term != term || leading.gathering.is_empty() {
            return;
        }
        change(&mut leading.gathering);
        if !leading.gathering.is_empty() {
            return;
        }
        tracing::debug!(shard = shard.0, term, "the shard's queues are served");
        let inherited: Vec<QueueId> = leading.inherited.keys().copied().collect();
        self.pause_as_due(shard);
        self.delete_unused_of_earlier_leader(&inherited);
    }

    /// Auto-delete queues whose last consumer went with an earlier leader.
    fn delete_unused_of_earlier_leader(&mut self, used: &[QueueId]) {
        let node = self.node.clone();
        let table = node.metadata().table().read();
        let unused: Vec<QueueId> = used
            .iter()
            .copied()
            .filter(|id| table.queue_by_id(*id).is_some_and(|view| view.auto_delete))
            .filter(|id| {
                self.queues
                    .get(id)
                    .is_none_or(|l| l.queue.counts().consumers == 0)
            })
            .collect();
        let views: Vec<(QueueId, String, String)> = unused
            .iter()
            .filter_map(|id| {
                let view = table.queue_by_id(*id)?;
                Some((*id, view.vhost.to_owned(), view.name.to_owned()))
            })
            .collect();
        drop(table);
        for (queue, vhost, name) in views {
            drop(self.propose_deletion(queue, vhost, name, None));
        }
    }

    /// Answers a question about a replicated queue that is led here.
    pub(super) fn replicated_question(
        &mut self,
        queue: QueueId,
        session: SessionId,
        ask: Ask,
        id: u64,
    ) -> Answered {
        let Some(local) = self.queues.get_mut(&queue) else {
            return Answered::Now(Answer::NotHere);
        };
        let Some(replicated) = &mut local.replicated else {
            return Answered::Now(Answer::NotHere);
        };
        let shard = replicated.shard;
        let Some(hosted) = self.shards.get_mut(&shard) else {
            return Answered::Now(Answer::NotHere);
        };
        let index = hosted.state.queue(queue);
        let Some(leading) = &mut hosted.leading else {
            return Answered::Now(Answer::NotHere);
        };
        let in_use = index.is_some_and(|i| i.touched() == IN_USE);
        if !in_use
            && matches!(
                ask,
                Ask::Get { .. } | Ask::Consume { .. } | Ask::Reattach { .. }
            )
        {
            leading.pending.touched(queue, IN_USE);
            leading.urgent = true;
        }
        match ask {
            Ask::Get { consumer, .. } => {
                if !in_use || !leading.delivers() {
                    let question = Question {
                        session,
                        id,
                        queue,
                        ask,
                    };
                    replicated.parked.push((Instant::now(), question));
                    return Answered::Already;
                }
                Answered::Now(self.get(queue, session, consumer))
            }
            Ask::Consume { .. } | Ask::Reattach { .. } => self.attach(queue, session, ask, id),
            Ask::Count => {
                let counts = self
                    .queues
                    .get(&queue)
                    .map_or_else(Counts::default, |local| self.counts_of(queue, local));
                Answered::Now(Answer::Counts {
                    messages: counts.ready,
                    consumers: counts.consumers,
                })
            }
            Ask::Purge => self.purge(queue, session, id),
            Ask::Seal {
                if_unused,
                if_empty,
            } => {
                // What is on its way through the log counts, too.
                local.sealed = true;
                let due = Due::Sealed {
                    queue,
                    session,
                    id,
                    if_unused,
                    if_empty,
                };
                if let Some(due) = leading.due_when_applied(due) {
                    self.fulfil(due);
                }
                Answered::Already
            }
            Ask::Cancel { .. } | Ask::Unseal | Ask::Fence => {
                answer(local, session, ask, id, &mut self.outbox)
            }
        }
    }

    /// A consumer comes, or comes back.
    fn attach(&mut self, queue: QueueId, session: SessionId, ask: Ask, id: u64) -> Answered {
        let Some(local) = self.queues.get_mut(&queue) else {
            return Answered::Now(Answer::NotHere);
        };
        let Ask::Reattach {
            consumer,
            subscription,
            mut holds,
        } = ask
        else {
            return answer(local, session, ask, id, &mut self.outbox);
        };
        if planted!(HoldsIgnored) {
            holds.clear();
        }
        let consumer = ConsumerId {
            session,
            number: consumer,
        };
        let Some(replicated) = &mut local.replicated else {
            return Answered::Now(Answer::NotHere);
        };
        replicated.holds.retain(|_, holder| *holder != consumer);
        match local
            .queue
            .reattach(consumer, subscription, &holds, &mut self.outbox)
        {
            Ok(ahead) => {
                let index = self
                    .shards
                    .get(&replicated.shard)
                    .and_then(|h| h.state.queue(queue));
                for position in ahead {
                    if !replicated.settling.contains(&position)
                        && index.is_some_and(|i| i.find(position).is_some())
                    {
                        replicated.holds.insert(position, consumer);
                    }
                }
                Answered::Now(Answer::Done)
            }
            Err(_) => Answered::Now(super::in_exclusive_use(local)),
        }
    }

    /// The getter's session holds the message until it settles it, for its client if that does not: what was taken for good here would be lost with this leader.
    fn get(&mut self, queue: QueueId, session: SessionId, consumer: u32) -> Answer {
        self.feed(queue, true);
        let term = self
            .queues
            .get(&queue)
            .and_then(|l| self.leading(l.replicated.as_ref()?.shard))
            .unwrap_or(0);
        let Some(local) = self.queues.get_mut(&queue) else {
            return Answer::NotHere;
        };
        let mut sink = GetSink::default();
        let id = ConsumerId {
            session,
            number: consumer,
        };
        if !local.queue.get(id, false, &mut sink) {
            return Answer::Empty;
        }
        let GetSink(mut deliveries) = sink;
        deliveries.term = term;
        local.count_got(&deliveries);
        let remaining = self
            .queues
            .get(&queue)
            .map_or(0, |local| self.counts_of(queue, local).ready);
        Answer::Got {
            remaining,
            deliveries,
        }
    }

    /// Settles everything that nobody holds. Answered when that is committed.
    fn purge(&mut self, queue: QueueId, session: SessionId, id: u64) -> Answered {
        let Some(local) = self.queues.get_mut(&queue) else {
            return Answered::Now(Answer::NotHere);
        };
        let Some(replicated) = &mut local.replicated else {
            return Answered::Now(Answer::NotHere);
        };
        let Some(hosted) = self.shards.get_mut(&replicated.shard) else {
            return Answered::Now(Answer::NotHere);
        };
        let (Some(index), Some(leading)) = (hosted.state.queue(queue), &mut hosted.leading) else {
            return Answered::Now(Answer::Counted(0));
        };
        local.queue.purge();
        let runs = index.runs_without(|position| {
            replicated.holds.contains_key(&position)
                || replicated.settling.contains(&position)
                || local.queue.holds(position)
        });
        // What is held and not fed yet still has to be.
        if replicated.holds.is_empty() {
            replicated.fed_to = index.next();
        } else {
            for (first, count) in &runs {
                replicated
                    .settling
                    .extend(*first..*first + u64::from(*count));
            }
        }
        let mut purged = 0;
        for (position, count) in runs {
            purged += u64::from(count);
            leading.pending.settled(&Settle {
                queue,
                position,
                count,
            });
        }
        let due = Due::Answer(session, id, Answer::Counted(purged));
        if let Some(due) = leading.due_when_applied(due) {
            self.fulfil(due);
        }
        Answered::Already
    }

    fn fulfil(&mut self, due: Due) {
        match due {
            Due::Answer(session, id, answer) => self.outbox.answer(session, id, answer),
            // Whoever waited may have given up.
            Due::HandingOver(done) => drop(done.send(())),
            Due::Sealed {
                queue,
                session,
                id,
                if_unused,
                if_empty,
            } => {
                let counts = self
                    .queues
                    .get(&queue)
                    .map(|local| self.counts_of(queue, local));
                let answer = match (self.queues.get_mut(&queue), counts) {
                    (Some(local), Some(counts)) => {
                        local.sealed = false;
                        super::seal(local, &counts, if_unused, if_empty)
                    }
                    // Deleted meanwhile: there is nothing to count.
                    (None, _) | (_, None) => Answer::Counted(0),
                };
                self.outbox.answer(session, id, answer);
            }
        }
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
    fn feed(&mut self, queue: QueueId, get: bool) -> bool {
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

    /// Before leadership is handed over: says of each queue what was delivered, so that the next leader flags no more than that.
    fn hand_over(&mut self, shard: ShardId, done: tokio::sync::oneshot::Sender<()>) {
        let served = self.queue_ids(|_, local| local.is_of(shard));
        let delivered: Vec<(QueueId, u64)> = served
            .into_iter()
            .filter_map(|id| {
                let local = self.queues.get_mut(&id)?;
                let replicated = local.replicated.as_ref()?;
                let until = local.queue.undelivered().unwrap_or(replicated.fed_to);
                Some((id, until.max(replicated.inherited)))
            })
            .collect();
        if let Some(leading) = self.leading_mut(shard) {
            for (queue, position) in delivered {
                leading.pending.touched(queue, position);
            }
            leading.urgent = !leading.pending.is_empty();
            leading.handing_over = true;
        }
        self.pause_as_due(shard);
        if let Some(leading) = self.leading_mut(shard)
            && let Some(due) = leading.due_when_applied(Due::HandingOver(done))
        {
            self.fulfil(due);
        }
    }

    /// The hand-over came to nothing: queues are in use again.
    fn keeps_leading(&mut self, shard: ShardId, term: u64) {
        let used = self.queue_ids(|_, local| local.is_of(shard));
        let Some(leading) = self.leading_mut(shard).filter(|l| l.term == term) else {
            return;
        };
        leading.handing_over = false;
        for queue in used {
            leading.pending.touched(queue, IN_USE);
            leading.urgent = true;
        }
        self.pause_as_due(shard);
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
        if position == IN_USE && self.leading.is_some() {
            self.in_use.push(queue);
        }
    }
}
