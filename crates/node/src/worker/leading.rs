//! When a lane leads a shard, and when what it leads may be delivered.
//!
//! A leader first gathers: it waits for every node's sessions to attach their consumers with what they hold. It delivers only while a majority has confirmed it of late, which is
//! looked at before each turn: no other can have been elected then. Before it hands over, it says what was delivered.

use super::Worker;
use crate::hosted::{Due, Leading, Missing, ShardMessage};
use crate::wire::{Ask, Question, ToOwner};
use crate::worker::LaneMessage;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use warren_model::planted;
use warren_model::{Incarnation, NodeId, QueueId, ShardId};
use warren_queue::index::{GOT_FROM, IN_USE, Index};

/// How long a new leader waits for nodes that are not linked to say what their consumers hold: links that were cut for a moment need a while to carry again.
const GATHER_UNLINKED_MAX: Duration = Duration::from_secs(2);
/// How long it waits for nodes that are linked: they live, and what their consumers hold would be delivered twice. A node that hangs loses its links before.
const GATHER_MAX: Duration = Duration::from_secs(6);
/// How long it waits for the leader before it, which in most cases is dead.
const GATHER_FROM_EARLIER_MAX: Duration = Duration::from_millis(400);
/// How long a question may wait for its queue to be served: a little less than its session waits.
const PARKED_MAX: Duration = Duration::from_secs(9);
/// A leader delivers while a majority has confirmed it within this time: less than the least time in which another can be elected.
pub(crate) const CONFIRMED: Duration = Duration::from_millis(190);
/// How soon a leader that is not confirmed looks again.
const CONFIRM_PAUSE: Duration = Duration::from_millis(20);

impl Worker {
    /// This node leads from now on.
    pub(super) fn lead(&mut self, shard: ShardId, term: u64) {
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
        if let Some(earlier) = earlier.filter(|earlier| *earlier != self.node.id()) {
            let over = ShardMessage::GatherOver {
                term,
                of: Missing::Earlier(earlier),
            };
            self.later(shard, GATHER_FROM_EARLIER_MAX, over);
        }
        for (wait, of) in [
            (GATHER_UNLINKED_MAX, Missing::Unlinked),
            (GATHER_MAX, Missing::All),
        ] {
            self.later(shard, wait, ShardMessage::GatherOver { term, of });
        }
        self.node.clone().announce(shard, term);
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
    pub(super) fn drop_what_is_gone(&mut self, shard: ShardId) {
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
        for known in table.nodes() {
            leading.note_ended(known.id, known.last_ended());
        }
        let mut ended: BTreeMap<NodeId, Incarnation> = BTreeMap::new();
        for (session, _) in hosted.state.sessions() {
            let known = table.node(session.node);
            if known.is_none_or(|known| known.has_ended(session.incarnation)) {
                let last = ended.entry(session.node).or_default();
                *last = (*last).max(session.incarnation);
            }
        }
        for (node, incarnation) in ended {
            leading.pending.ended(node, incarnation);
        }
        leading.urgent |= !leading.pending.is_empty();
    }

    /// What became of the wait for consumers.
    pub(super) fn gathered(
        &mut self,
        shard: ShardId,
        term: u64,
        change: impl FnOnce(&mut BTreeSet<NodeId>),
    ) {
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
        self.pause_as_due(shard);
    }

    /// Those auto-delete queues among these, which have had consumers, that have none now: their last one went with an earlier leader, or before all were back.
    fn delete_unused_of(&mut self, doubtful: &BTreeSet<QueueId>) {
        let node = self.node.clone();
        let table = node.metadata().table().read();
        let unused: Vec<QueueId> = doubtful
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
    pub(super) fn confirm(&mut self, shard: ShardId, term: u64) {
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
    pub(super) fn may_deliver(&self, shard: ShardId, queue: QueueId) -> bool {
        let Some(hosted) = self.shards.get(&shard) else {
            return false;
        };
        let in_use = hosted.state.queue(queue).is_some_and(Index::is_in_use);
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
        let delivers = self.delivers(shard);
        self.serve(queue);
        let Some(local) = self.queues.get_mut(&queue) else {
            return;
        };
        if local.queue.is_paused() != paused {
            local.queue.set_paused(paused, &mut self.outbox);
            self.touched.push(queue);
        }
        if let Some(replicated) = &mut local.replicated
            && delivers
        {
            // A queue that is not in use yet gives nothing, though it can say what it has.
            let due = |question: &Question| !paused || !matches!(question.ask, Ask::Get { .. });
            let parked = replicated
                .parked
                .extract_if(.., |(_, question)| due(question));
            for (since, question) in parked {
                if question.ask.must_be_answered() && since.elapsed() >= PARKED_MAX {
                    // Its session has refused it, or is about to: it must not take effect now.
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

    /// Whether this lane leads a shard, knows all its consumers, and may deliver to them.
    pub(super) fn delivers(&self, shard: ShardId) -> bool {
        let leading = self.shards.get(&shard).and_then(|h| h.leading.as_ref());
        leading.is_some_and(Leading::delivers)
    }

    pub(super) fn pause_as_due(&mut self, shard: ShardId) {
        for queue in self.queue_ids(|_, local| local.is_of(shard)) {
            self.pause_queue_as_due(queue);
        }
        if self.delivers(shard)
            && let Some(leading) = self.leading_mut(shard)
        {
            let doubtful = std::mem::take(&mut leading.doubtful);
            self.delete_unused_of(&doubtful);
        }
    }

    /// Before leadership is handed over: says of each queue what was delivered, so that the next leader flags no more than that.
    pub(super) fn hand_over(&mut self, shard: ShardId, done: tokio::sync::oneshot::Sender<()>) {
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
    pub(super) fn keeps_leading(&mut self, shard: ShardId, term: u64) {
        let of_shard = self.queues.iter().filter(|(_, local)| local.is_of(shard));
        let used: Vec<(QueueId, u64)> = of_shard
            .map(|(id, local)| match local.queue.counts().consumers {
                0 => (*id, GOT_FROM),
                _ => (*id, IN_USE),
            })
            .collect();
        let Some(leading) = self.leading_mut(shard).filter(|l| l.term == term) else {
            return;
        };
        leading.handing_over = false;
        for (queue, use_of_it) in used {
            leading.pending.touched(queue, use_of_it);
            leading.urgent = true;
        }
        self.pause_as_due(shard);
    }
}
