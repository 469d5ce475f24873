//! A lane: a task that owns a part of this node's queues, so that queues need no locks.
//!
//! Flow: takes all messages that have come since its last turn, applies them to its queues, then sends each session what the turn had for it.
//! Replicated queues, and the shards that they belong to, are served by [`shards`]: all queues of a shard are one lane's.
//! A queue comes into being here with the first message about it; its definition is the routing table's.
//! Invariant: a queue id that the table does not know is either not applied here yet (then the lane waits for it, bounded) or deleted (then what is
//! meant for it is refused).

mod applying;
mod batches;
mod feeder;
mod keeping;
mod leading;
mod questions;
mod shards;

pub(crate) use leading::CONFIRMED;

use crate::counts::{Counted, Flow, QueueStats};
use crate::hosted::{Hosted, ShardMessage};
use crate::meter::Meter;
use crate::node::Node;
use crate::outbox::{GetSink, Outbox};
use crate::wire::{
    Answer, Ask, Batch, Call, ConsumerCall, Deliveries, Question, Settlements, ToOwner, ToSession,
};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use warren_model::command::Place;
use warren_model::{
    Command, ConsumerId, Credit, Incarnation, NodeId, QueueId, SessionId, Settlement, ShardId,
};
use warren_queue::{Counts, Queue};

/// Messages taken a turn: enough to batch, few enough that a session waits less than a millisecond for its turn's outcome.
const TURN_MAX: usize = 128;
/// How long a lane waits for the table to catch up with what a peer has already applied.
const CATCH_UP: Duration = Duration::from_secs(2);
/// How long a deletion that was prepared keeps publishes out when nothing comes of it.
pub(crate) const COMMAND_DEADLINE: Duration = Duration::from_secs(10);

/// What a lane is sent.
pub(crate) enum LaneMessage {
    Owner(ToOwner),
    /// Applied: these queues are deleted.
    Deleted(Vec<QueueId>),
    /// Sessions of a node are gone: the link to it broke, or its incarnation ended. `None`: all but this node's own.
    PeerGone(NodeId, Option<Incarnation>),
    /// Something about a shard of this lane.
    Shard(ShardId, ShardMessage),
    /// The table was replaced as a whole: queues that it does not have are deleted.
    Revise,
    /// This node was counted out: nothing that it holds is valid any more.
    Reset,
    /// Numbers of these queues; all that are here if none are named.
    Counts(Option<Vec<QueueId>>, oneshot::Sender<Vec<Counted>>),
}

struct Local {
    queue: Queue,
    /// Record bytes that the node's account has for it.
    accounted: u64,
    vhost: String,
    name: String,
    auto_delete: bool,
    meter: Meter<Flow>,
    /// A deletion is under way: publishes are refused.
    sealed: bool,
    /// What a replicated queue has besides.
    replicated: Option<Replicated>,
}

/// A replicated queue, as its leader serves it.
struct Replicated {
    shard: ShardId,
    /// The next position that is fed to the queue: what lies behind is in the log or the store.
    fed_to: u64,
    /// Messages before this position may have been delivered by an earlier leader.
    inherited: u64,
    /// Who has messages that have not been fed yet.
    holds: BTreeMap<u64, ConsumerId>,
    /// Consumers that are in `holds` and have not said since their link broke what they hold.
    unsure: BTreeSet<ConsumerId>,
    /// Positions that are settled, before the queue was fed with them, by an entry that is not applied yet.
    settling: BTreeSet<u64>,
    /// Questions that wait until the queue may be served, and since when.
    parked: Vec<(Instant, Question)>,
}

impl Local {
    /// A session's link is broken.
    fn session_away(&mut self, session: SessionId) {
        self.queue.session_away(session);
        if let Some(replicated) = &mut self.replicated {
            let holders = replicated.holds.values().copied();
            let unsure = holders.filter(|consumer| consumer.session == session);
            replicated.unsure.extend(unsure);
        }
    }

    /// A session has said over its new link what it has. True if the queue has lost its last consumer.
    fn session_back(&mut self, session: SessionId, outbox: &mut Outbox) -> bool {
        if let Some(Replicated { holds, unsure, .. }) = &mut self.replicated {
            let of_it = unsure.extract_if(.., |consumer| consumer.session == session);
            let given_up: BTreeSet<ConsumerId> = of_it.collect();
            holds.retain(|_, consumer| !given_up.contains(consumer));
        }
        self.queue.session_back(session, outbox)
    }

    /// Whether it is one of the replicated queues of a shard.
    fn is_of(&self, shard: ShardId) -> bool {
        self.replicated.as_ref().is_some_and(|r| r.shard == shard)
    }

    /// Counts what a get has found.
    fn count_got(&mut self, got: &Deliveries) {
        self.meter.now.deliver_get += got.items.len() as u64;
        let again = got.items.iter().filter(|item| item.redelivered);
        self.meter.now.redeliver += again.count() as u64;
    }

    /// Counts the deliveries that calls for this queue have led to.
    #[inline]
    fn count_deliveries(&mut self, outbox: &mut Outbox) {
        let (delivered, again) = outbox.take_delivered();
        self.meter.now.deliver_get += delivered;
        self.meter.now.redeliver += again;
    }
}

impl Meter<Flow> {
    fn flow(&mut self) -> QueueStats {
        let (recent, over) = self.recent(Instant::now());
        QueueStats {
            total: self.now,
            recent,
            over_ms: u64::try_from(over.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Why a queue cannot be served here.
enum Missing {
    Deleted,
    NotHere,
}

pub(crate) struct Worker {
    node: Arc<Node>,
    queues: HashMap<QueueId, Local>,
    /// What went through replicated queues of which nothing has been asked yet.
    unserved: HashMap<QueueId, Meter<Flow>>,
    shards: BTreeMap<ShardId, Hosted>,
    /// Queues that a session consumes or got from.
    sessions: BTreeMap<SessionId, BTreeSet<QueueId>>,
    /// Of them, replicated queues of sessions whose link was lost, and which have not come back to them since. When their node says that all have, who has not
    /// is gone: it could not tell.
    absent: BTreeMap<SessionId, BTreeSet<QueueId>>,
    outbox: Outbox,
    /// Queues whose size may have changed this turn.
    touched: Vec<QueueId>,
    /// Deletions of unused queues that sessions' releases have led to and that are under way.
    deletions: BTreeMap<SessionId, Vec<JoinHandle<()>>>,
}

impl Worker {
    pub(crate) async fn run(node: Arc<Node>, mut inbox: mpsc::UnboundedReceiver<LaneMessage>) {
        let mut worker = Self {
            node,
            queues: HashMap::new(),
            unserved: HashMap::new(),
            shards: BTreeMap::new(),
            sessions: BTreeMap::new(),
            absent: BTreeMap::new(),
            outbox: Outbox::default(),
            touched: Vec::new(),
            deletions: BTreeMap::new(),
        };
        let mut turn = Vec::with_capacity(TURN_MAX);
        while inbox.recv_many(&mut turn, TURN_MAX).await > 0 {
            worker.confirm_all();
            for message in turn.drain(..) {
                worker.handle(message).await;
            }
            worker.flush();
        }
    }

    async fn handle(&mut self, message: LaneMessage) {
        match message {
            LaneMessage::Owner(ToOwner::Publish(batch)) => self.publish(batch).await,
            LaneMessage::Owner(ToOwner::Shard(batch)) => self.shard_batch(batch).await,
            LaneMessage::Shard(shard, message) => self.shard_message(shard, message).await,
            LaneMessage::Owner(ToOwner::Settle(settlements)) => self.settle(&settlements),
            LaneMessage::Owner(ToOwner::Consumer(call)) => self.consumer_call(&call),
            LaneMessage::Owner(ToOwner::Ask(Question {
                session,
                id,
                ask: Ask::Fence,
                ..
            })) => self.fence(session, id),
            LaneMessage::Owner(ToOwner::Ask(question)) => self.question(question).await,
            LaneMessage::Owner(ToOwner::SessionGone(session)) => {
                self.sessions_gone(|s| s == session, true);
                self.publishes_no_more(session);
            }
            LaneMessage::Deleted(ids) => self.deleted(ids),
            LaneMessage::PeerGone(node, incarnation) => {
                // Where only the link broke, its sessions come back and say what they hold of replicated queues.
                self.sessions_gone(
                    |s| s.node == node && incarnation.is_none_or(|i| s.incarnation <= i),
                    incarnation.is_some(),
                );
                if let Some(incarnation) = incarnation {
                    self.incarnation_ended(node, incarnation);
                }
            }
            LaneMessage::Revise => {
                let node = self.node.clone();
                let table = node.metadata().table().read();
                let gone = self.queue_ids(|id, _| table.queue_by_id(id).is_none());
                drop(table);
                self.deleted(gone);
            }
            LaneMessage::Reset => {
                // Its own sessions have ended with the incarnation. Those of other nodes go on having what they have of the replicated queues that this node goes on leading.
                let me = self.node.id();
                self.sessions_gone(|session| session.node == me, true);
                // Replicated queues are their shards' leaders' to reset, this node's among them.
                let gone = self.queue_ids(|_, local| local.replicated.is_none());
                self.deleted(gone);
            }
            LaneMessage::Counts(ids, reply) => {
                // Whoever asked may have given up.
                let _ = reply.send(self.counts(ids));
            }
        }
    }

    /// Queues that are served here, in order: what is done with them must not depend on that of a hash map.
    fn queue_ids(&self, which: impl Fn(QueueId, &Local) -> bool) -> Vec<QueueId> {
        let of_them = self.queues.iter().filter(|(id, local)| which(**id, local));
        let mut ids: Vec<QueueId> = of_them.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    fn deleted(&mut self, ids: Vec<QueueId>) {
        for id in ids {
            if let Some(local) = self.queues.remove(&id) {
                self.node.account(local.accounted, 0);
                local.queue.delete(&mut self.outbox);
            }
            self.drop_index(id);
        }
    }

    async fn publish(&mut self, batch: Batch) {
        self.outbox.serve(0, QueueId::default());
        let mut refused = Vec::new();
        let mut i = 0;
        while i < batch.items.len() {
            let queue = batch.items[i].queue;
            let run = batch.items[i..]
                .iter()
                .take_while(|item| item.queue == queue)
                .count();
            match self.local(queue).await {
                Ok(_) => {
                    if let Some(local) = self.queues.get_mut(&queue) {
                        let refused_before = refused.len();
                        for (n, item) in batch.items[i..i + run].iter().enumerate() {
                            if local.sealed {
                                refused.push((i + n) as u32);
                            } else {
                                local.queue.publish(
                                    &batch.block,
                                    item.offset,
                                    item.len,
                                    &mut self.outbox,
                                );
                            }
                        }
                        local.meter.now.publish += (run + refused_before - refused.len()) as u64;
                        local.count_deliveries(&mut self.outbox);
                    }
                }
                Err(_) => refused.extend((i..i + run).map(|n| n as u32)),
            }
            i += run;
        }
        let mut sealed: Option<QueueId> = None;
        for item in &batch.items {
            if sealed != Some(item.queue)
                && let Some(local) = self.queues.get_mut(&item.queue)
            {
                local.queue.seal(&batch.block);
                self.touched.push(item.queue);
                sealed = Some(item.queue);
            }
        }
        self.outbox.push(
            batch.session,
            ToSession::Published {
                shard: None,
                number: batch.number,
                refused,
            },
        );
    }

    fn settle(&mut self, settlements: &Settlements) {
        self.outbox.serve(0, QueueId::default());
        let mut positions = Vec::new();
        let mut items = settlements.items.as_slice();
        while let Some(first) = items.first() {
            let same = |s: &&crate::wire::Settled| {
                s.queue == first.queue
                    && s.consumer == first.consumer
                    && s.settlement == first.settlement
            };
            let run = items.iter().take_while(same).count();
            positions.clear();
            positions.extend(items[..run].iter().map(|s| s.position));
            if let Some(local) = self.queues.get_mut(&first.queue) {
                let id = ConsumerId {
                    session: settlements.session,
                    number: first.consumer,
                };
                local
                    .queue
                    .settle(id, &positions, first.settlement, &mut self.outbox);
                if first.settlement == Settlement::Accept {
                    local.meter.now.ack += run as u64;
                }
                local.count_deliveries(&mut self.outbox);
                self.touched.push(first.queue);
            }
            items = &items[run..];
        }
    }

    fn consumer_call(&mut self, call: &ConsumerCall) {
        self.serve(call.queue);
        let Some(local) = self.queues.get_mut(&call.queue) else {
            return;
        };
        if local.replicated.is_some() {
            self.touched.push(call.queue);
        }
        match call.call {
            Call::Credit(bytes) => {
                local
                    .queue
                    .credit(call.consumer, Credit { bytes }, &mut self.outbox)
            }
            Call::Grant(count) => local.queue.grant(call.consumer, count, &mut self.outbox),
            Call::ByLeave(by_leave) => {
                local
                    .queue
                    .set_by_leave(call.consumer, by_leave, &mut self.outbox)
            }
            Call::Release => {
                self.touched.push(call.queue);
                if let Some(replicated) = &mut local.replicated {
                    replicated
                        .holds
                        .retain(|_, holder| *holder != call.consumer);
                }
                if local.queue.release(call.consumer, &mut self.outbox) && local.auto_delete {
                    self.delete_unused_for(call.consumer.session, call.queue);
                }
            }
        }
        if let Some(local) = self.queues.get_mut(&call.queue) {
            self.touched.push(call.queue);
            local.count_deliveries(&mut self.outbox);
        }
    }

    async fn question(&mut self, question: Question) {
        let Question {
            session,
            id,
            queue,
            ask,
        } = question;
        let answer = match self.local(queue).await {
            Ok(()) => {
                self.touched.push(queue);
                if matches!(
                    ask,
                    Ask::Consume { .. } | Ask::Reattach { .. } | Ask::Get { no_ack: false, .. }
                ) {
                    self.sessions.entry(session).or_default().insert(queue);
                    if let Some(queues) = self.absent.get_mut(&session) {
                        queues.remove(&queue);
                    }
                }
                self.serve(queue);
                match self.queues.get_mut(&queue) {
                    Some(local) if local.replicated.is_some() => {
                        self.replicated_question(queue, session, ask, id)
                    }
                    Some(local) => {
                        let answer = answer(local, session, ask, id, &mut self.outbox);
                        local.count_deliveries(&mut self.outbox);
                        answer
                    }
                    None => Answered::Now(Answer::NotHere),
                }
            }
            Err(Missing::NotHere) => Answered::Now(Answer::NotHere),
            Err(Missing::Deleted) => Answered::Now(match ask {
                Ask::Cancel { .. } | Ask::Unseal | Ask::Fence => Answer::Done,
                Ask::Seal { .. } => Answer::Counted(0),
                Ask::Count
                | Ask::Consume { .. }
                | Ask::Reattach { .. }
                | Ask::Get { .. }
                | Ask::Purge => Answer::Refused {
                    code: 404,
                    text: "the queue was deleted meanwhile".into(),
                },
            }),
        };
        match answer {
            Answered::Now(answer) => self.outbox.answer(session, id, answer),
            Answered::Already => {}
            Answered::WhenDeleted => {
                self.delete_unused(queue, Some((session, id)));
            }
        }
    }

    /// Sessions are gone, or have lost their link: then `replicated` queues keep them.
    fn sessions_gone(&mut self, gone: impl Fn(SessionId) -> bool, replicated: bool) {
        let sessions: Vec<SessionId> = self.sessions.keys().copied().filter(|s| gone(*s)).collect();
        for session in sessions {
            let mut kept = BTreeSet::new();
            for id in self.sessions.remove(&session).unwrap_or_default() {
                let of_shard = |local: &&mut Local| local.replicated.is_some() && !replicated;
                if let Some(local) = self.queues.get_mut(&id).filter(of_shard) {
                    local.session_away(session);
                    kept.insert(id);
                    continue;
                }
                self.leaves(session, id);
            }
            if kept.is_empty() {
                self.absent.remove(&session);
            } else {
                self.absent.insert(session, kept.clone());
                self.sessions.insert(session, kept);
            }
        }
    }

    /// A session is gone from a queue: what it holds goes back.
    fn leaves(&mut self, session: SessionId, id: QueueId) {
        self.serve(id);
        let Some(local) = self.queues.get_mut(&id) else {
            return;
        };
        if let Some(replicated) = &mut local.replicated {
            replicated
                .holds
                .retain(|_, consumer| consumer.session != session);
        }
        let unused = local.queue.session_gone(session, &mut self.outbox);
        if local.replicated.is_none() {
            local.count_deliveries(&mut self.outbox);
        }
        self.touched.push(id);
        if unused && local.auto_delete {
            self.delete_unused_for(session, id);
        }
    }

    /// All sessions of a node have come back to a shard's queues: those that have not are gone.
    fn returned(&mut self, shard: ShardId, node: NodeId) {
        let of_shard = |local: &Local| local.replicated.as_ref().is_some_and(|r| r.shard == shard);
        let mut gone = Vec::new();
        for (session, queues) in self.absent.iter_mut().filter(|(s, _)| s.node == node) {
            let of_it = queues.extract_if(.., |id| self.queues.get(id).is_some_and(of_shard));
            gone.extend(of_it.map(|id| (*session, id)));
        }
        self.absent.retain(|_, queues| !queues.is_empty());
        for (session, id) in gone {
            if let Some(queues) = self.sessions.get_mut(&session) {
                queues.remove(&id);
            }
            self.leaves(session, id);
        }
        // Of those that have, consumers that were given up meanwhile.
        let of_node = self.sessions.iter().filter(|(s, _)| s.node == node);
        let back: Vec<(SessionId, QueueId)> = of_node
            .flat_map(|(session, queues)| queues.iter().map(|id| (*session, *id)))
            .collect();
        for (session, id) in back {
            let Some(local) = self.queues.get_mut(&id).filter(|local| of_shard(local)) else {
                continue;
            };
            self.touched.push(id);
            if local.session_back(session, &mut self.outbox) && local.auto_delete {
                self.delete_unused_for(session, id);
            }
        }
    }

    /// Proposes the deletion of an auto-delete queue that has lost its last consumer; answers a waiting cancel when it is applied.
    fn delete_unused(
        &mut self,
        queue: QueueId,
        waiting: Option<(SessionId, u64)>,
    ) -> Option<JoinHandle<()>> {
        let shard = self
            .queues
            .get(&queue)?
            .replicated
            .as_ref()
            .map(|r| r.shard);
        if let Some(shard) = shard.filter(|shard| !self.delivers(*shard)) {
            // Its consumers may be on their way back to this leader, or with another one by now: looked at again when that is known.
            let leading = self.leading_mut(shard)?;
            leading.doubtful.insert(queue);
            if let Some((session, id)) = waiting {
                self.outbox.answer(session, id, Answer::Done);
            }
            return None;
        }
        let local = self.queues.get_mut(&queue)?;
        local.sealed = true;
        let (vhost, name) = (local.vhost.clone(), local.name.clone());
        Some(self.propose_deletion(queue, vhost, name, waiting))
    }

    fn propose_deletion(
        &self,
        queue: QueueId,
        vhost: String,
        name: String,
        waiting: Option<(SessionId, u64)>,
    ) -> JoinHandle<()> {
        let command = Command::DeleteQueue {
            vhost,
            name,
            only: Some(queue),
            session: self.node.own_session(),
        };
        let node = self.node.clone();
        let proposed = node.metadata().propose(command, COMMAND_DEADLINE);
        tokio::spawn(async move {
            if let Err(error) = proposed.await {
                tracing::warn!(%error, "an unused auto-delete queue could not be deleted");
            }
            if let Some((session, id)) = waiting {
                node.send_to_session(
                    session,
                    vec![ToSession::Answer {
                        id,
                        answer: Answer::Done,
                    }],
                );
            }
        })
    }

    /// The same for a queue that a session's release has left unused: the session's next fence waits for it.
    fn delete_unused_for(&mut self, session: SessionId, queue: QueueId) {
        self.deletions.retain(|_, tasks| {
            tasks.retain(|t| !t.is_finished());
            !tasks.is_empty()
        });
        if let Some(task) = self.delete_unused(queue, None) {
            self.deletions.entry(session).or_default().push(task);
        }
    }

    fn fence(&mut self, session: SessionId, id: u64) {
        match self.deletions.remove(&session) {
            None => self.outbox.answer(session, id, Answer::Done),
            Some(tasks) => {
                let node = self.node.clone();
                tokio::spawn(async move {
                    for task in tasks {
                        // It reports its own failure.
                        let _ = task.await;
                    }
                    node.send_to_session(
                        session,
                        vec![ToSession::Answer {
                            id,
                            answer: Answer::Done,
                        }],
                    );
                });
            }
        }
    }

    /// Makes sure that a queue is here, if it should be.
    async fn local(&mut self, id: QueueId) -> Result<(), Missing> {
        if self.queues.contains_key(&id) {
            return Ok(());
        }
        if self.node.metadata().table().version() < id.created_at() {
            self.flush();
            self.node
                .metadata()
                .wait_applied(id.created_at(), CATCH_UP)
                .await;
        }
        let table = self.node.metadata().table().read();
        let Some(view) = table.queue_by_id(id) else {
            return Err(Missing::Deleted);
        };
        let replicated = match view.place {
            Place::Node(node, incarnation) => {
                if (node, incarnation) != (self.node.id(), self.node.incarnation()) {
                    return Err(Missing::NotHere);
                }
                None
            }
            Place::Shard(shard) => match self.leading(shard) {
                Some(_) => Some(self.replicated(shard, id)),
                None => return Err(Missing::NotHere),
            },
        };
        let local = Local {
            queue: if replicated.is_some() {
                paused()
            } else {
                Queue::new()
            },
            accounted: 0,
            vhost: view.vhost.to_owned(),
            name: view.name.to_owned(),
            auto_delete: view.auto_delete,
            meter: self.unserved.remove(&id).unwrap_or_default(),
            sealed: false,
            replicated,
        };
        drop(table);
        self.queues.insert(id, local);
        self.pause_queue_as_due(id);
        Ok(())
    }

    fn flush(&mut self) {
        self.feed_touched();
        for (queue, (delivered, again)) in self.outbox.take_served() {
            if let Some(local) = self.queues.get_mut(&queue) {
                local.meter.now.deliver_get += delivered;
                local.meter.now.redeliver += again;
            }
        }
        self.propose_pending();
        for (session, events) in self.outbox.take() {
            self.node.send_to_session(session, events);
        }
        if self.touched.is_empty() {
            return;
        }
        let now = Instant::now();
        for id in self.touched.drain(..) {
            if let Some(local) = self.queues.get_mut(&id) {
                let bytes = local.queue.counts().bytes;
                self.node.account(local.accounted, bytes);
                local.accounted = bytes;
                local.meter.tick(now);
            }
        }
    }
}

/// A replicated queue, before it is known that it may deliver.
fn paused() -> Queue {
    let mut queue = Queue::new();
    queue.set_paused(true, &mut Outbox::default());
    queue
}

fn in_exclusive_use(local: &Local) -> Answer {
    Answer::Refused {
        code: 403,
        text: format!(
            "queue '{}' in vhost '{}' in exclusive use",
            local.name, local.vhost
        ),
    }
}

/// Keeps publishes out of a queue that is about to be deleted, if it may be.
fn seal(local: &mut Local, counts: &Counts, if_unused: bool, if_empty: bool) -> Answer {
    let refused = |why| Answer::Refused {
        code: 406,
        text: format!("queue '{}' in vhost '{}' {why}", local.name, local.vhost),
    };
    if if_unused && counts.consumers > 0 {
        return refused("in use");
    }
    // What was delivered and not acknowledged would be lost as well, and it may only be on its way to the consumer.
    if if_empty && counts.ready + counts.unacked > 0 {
        return refused("not empty");
    }
    local.sealed = true;
    Answer::Counted(counts.ready)
}

enum Answered {
    Now(Answer),
    /// It stands in the outbox, before what follows from it.
    Already,
    /// When the queue is gone everywhere.
    WhenDeleted,
}

/// Answers a question about a queue that is here.
fn answer(
    local: &mut Local,
    session: SessionId,
    ask: Ask,
    id: u64,
    outbox: &mut Outbox,
) -> Answered {
    let queue = &mut local.queue;
    Answered::Now(match ask {
        Ask::Count => {
            let counts = queue.counts();
            Answer::Counts {
                messages: counts.ready,
                consumers: counts.consumers,
            }
        }
        Ask::Consume {
            consumer,
            subscription,
            tag: _,
        } => {
            // The answer goes before the first delivery.
            outbox.answer(session, id, Answer::Done);
            let at = outbox.events(session).len() - 1;
            match queue.consume(
                ConsumerId {
                    session,
                    number: consumer,
                },
                subscription,
                outbox,
            ) {
                Ok(()) => return Answered::Already,
                Err(_) => {
                    outbox.events(session).remove(at);
                    in_exclusive_use(local)
                }
            }
        }
        Ask::Cancel { consumer } => {
            if queue.cancel(ConsumerId {
                session,
                number: consumer,
            }) && local.auto_delete
            {
                return Answered::WhenDeleted;
            }
            Answer::Done
        }
        // Only of replicated queues.
        Ask::Reattach { .. } => Answer::NotHere,
        Ask::Get { consumer, no_ack } => {
            let mut sink = GetSink::default();
            if queue.get(
                ConsumerId {
                    session,
                    number: consumer,
                },
                no_ack,
                &mut sink,
            ) {
                local.count_got(&sink.0);
                Answer::Got {
                    remaining: local.queue.counts().ready,
                    deliveries: sink.0,
                }
            } else {
                Answer::Empty
            }
        }
        Ask::Purge => Answer::Counted(queue.purge()),
        Ask::Seal {
            if_unused,
            if_empty,
        } => {
            let counts = queue.counts();
            seal(local, &counts, if_unused, if_empty)
        }
        Ask::Unseal => {
            local.sealed = false;
            Answer::Done
        }
        // Of no queue, so it does not come here.
        Ask::Fence => Answer::Done,
    })
}
