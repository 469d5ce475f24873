//! A lane: a task that owns a part of this node's queues, so that queues need no locks.
//!
//! Flow: takes all messages that have come since its last turn, applies them to its queues, then sends each session what the turn had for it.
//! A queue comes into being here with the first message about it; its definition is the routing table's.
//! Invariant: a queue id that the table does not know is either not applied here yet (then the lane waits for it, bounded) or deleted (then what is
//! meant for it is refused).

use crate::counts::{Counted, Flow, QueueStats};
use crate::meter::Meter;
use crate::node::Node;
use crate::outbox::{GetSink, Outbox};
use crate::wire::{
    Adoption, Answer, Ask, Batch, Call, ConsumerCall, Question, Settlements, ToOwner, ToSession,
};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use warren_model::{
    Command, ConsumerId, Credit, Incarnation, NodeId, QueueId, QueueRef, SessionId, Settlement,
};
use warren_queue::Queue;

/// Messages taken a turn: enough to batch, few enough that a session waits less than a millisecond for its turn's outcome.
const TURN_MAX: usize = 128;
/// How long a lane waits for the table to catch up with what a peer has already applied.
const CATCH_UP: Duration = Duration::from_secs(2);
/// How long a deletion that was prepared keeps publishes out when nothing comes of it.
pub(crate) const COMMAND_DEADLINE: Duration = Duration::from_secs(10);

/// What a lane is sent.
#[derive(Debug)]
pub(crate) enum LaneMessage {
    Owner(ToOwner),
    /// Applied: these queues are deleted.
    Deleted(Vec<QueueId>),
    /// Sessions of a node are gone: the link to it broke, or its incarnation ended. `None`: all but this node's own.
    PeerGone(NodeId, Option<Incarnation>),
    /// Shards have other owners now.
    OwnersChanged,
    /// Contents of a queue that another node hands over; the answer says whether they are here now.
    Adopt(Adoption, oneshot::Sender<bool>),
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
}

impl Local {
    /// Counts the deliveries that calls for this queue have led to.
    #[inline]
    fn count_deliveries(&mut self, outbox: &mut Outbox) {
        let (delivered, again) = outbox.take_delivered();
        self.meter.now.deliver_get += delivered;
        self.meter.now.redeliver += again;
    }

    fn counted(&mut self, id: QueueId) -> Counted {
        let (recent, over) = self.meter.recent(Instant::now());
        let stats = QueueStats {
            total: self.meter.now,
            recent,
            over_ms: u64::try_from(over.as_millis()).unwrap_or(u64::MAX),
        };
        (id, self.queue.counts(), stats)
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
    /// Queues that a session consumes or got from.
    sessions: BTreeMap<SessionId, BTreeSet<QueueId>>,
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
            sessions: BTreeMap::new(),
            outbox: Outbox::default(),
            touched: Vec::new(),
            deletions: BTreeMap::new(),
        };
        let mut turn = Vec::with_capacity(TURN_MAX);
        while inbox.recv_many(&mut turn, TURN_MAX).await > 0 {
            for message in turn.drain(..) {
                worker.handle(message).await;
            }
            worker.flush();
        }
    }

    async fn handle(&mut self, message: LaneMessage) {
        match message {
            LaneMessage::Owner(ToOwner::Publish(batch)) => self.publish(batch).await,
            LaneMessage::Owner(ToOwner::Settle(settlements)) => self.settle(&settlements),
            LaneMessage::Owner(ToOwner::Consumer(call)) => self.consumer_call(&call),
            LaneMessage::Owner(ToOwner::Ask(Question {
                session,
                id,
                ask: Ask::Fence,
                ..
            })) => self.fence(session, id),
            LaneMessage::Owner(ToOwner::Ask(question)) => self.question(question).await,
            LaneMessage::Owner(ToOwner::Adopt(_)) => {
                tracing::warn!("a hand-over must be asked for, so that it can be answered")
            }
            LaneMessage::Adopt(adoption, done) => {
                let adopted = self.adopt(adoption).await;
                // The sender hears of it, or sends it again.
                let _ = done.send(adopted);
            }
            LaneMessage::OwnersChanged => self.hand_over(),
            LaneMessage::Owner(ToOwner::SessionGone(session)) => {
                self.sessions_gone(|s| s == session)
            }
            LaneMessage::Deleted(ids) => self.deleted(ids),
            LaneMessage::PeerGone(node, incarnation) => self.sessions_gone(|s| {
                s.node == node && incarnation.is_none_or(|i| s.incarnation <= i)
            }),
            LaneMessage::Revise => {
                let node = self.node.clone();
                let table = node.metadata().table().read();
                let gone: Vec<QueueId> = self
                    .queues
                    .keys()
                    .copied()
                    .filter(|id| table.queue_by_id(*id).is_none())
                    .collect();
                drop(table);
                self.deleted(gone);
            }
            LaneMessage::Reset => {
                self.sessions.clear();
                for (_, local) in self.queues.drain() {
                    self.node.account(local.accounted, 0);
                    local.queue.delete(&mut self.outbox);
                }
            }
            LaneMessage::Counts(ids, reply) => {
                let counts = match ids {
                    Some(ids) => ids
                        .into_iter()
                        .filter_map(|id| Some(self.queues.get_mut(&id)?.counted(id)))
                        .collect(),
                    None => self
                        .queues
                        .iter_mut()
                        .map(|(id, local)| local.counted(*id))
                        .collect(),
                };
                // Whoever asked may have given up.
                let _ = reply.send(counts);
            }
        }
    }

    fn deleted(&mut self, ids: Vec<QueueId>) {
        for id in ids {
            if let Some(local) = self.queues.remove(&id) {
                self.node.account(local.accounted, 0);
                local.queue.delete(&mut self.outbox);
            }
        }
    }

    async fn publish(&mut self, batch: Batch) {
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
                number: batch.number,
                refused,
            },
        );
    }

    fn settle(&mut self, settlements: &Settlements) {
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
        let Some(local) = self.queues.get_mut(&call.queue) else {
            return;
        };
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
                if matches!(ask, Ask::Consume { .. } | Ask::Get { no_ack: false, .. }) {
                    self.sessions.entry(session).or_default().insert(queue);
                }
                match self.queues.get_mut(&queue) {
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
                Ask::Count | Ask::Consume { .. } | Ask::Get { .. } | Ask::Purge => {
                    Answer::Refused {
                        code: 404,
                        text: "the queue was deleted meanwhile".into(),
                    }
                }
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

    fn sessions_gone(&mut self, gone: impl Fn(SessionId) -> bool) {
        let sessions: Vec<SessionId> = self.sessions.keys().copied().filter(|s| gone(*s)).collect();
        for session in sessions {
            for id in self.sessions.remove(&session).unwrap_or_default() {
                let Some(local) = self.queues.get_mut(&id) else {
                    continue;
                };
                let unused = local.queue.session_gone(session, &mut self.outbox);
                local.count_deliveries(&mut self.outbox);
                self.touched.push(id);
                if unused && local.auto_delete {
                    self.delete_unused_for(session, id);
                }
            }
        }
    }

    /// Proposes the deletion of an auto-delete queue that has lost its last consumer; answers a waiting cancel when it is applied.
    fn delete_unused(
        &mut self,
        queue: QueueId,
        waiting: Option<(SessionId, u64)>,
    ) -> Option<JoinHandle<()>> {
        let local = self.queues.get_mut(&queue)?;
        local.sealed = true;
        let command = Command::DeleteQueue {
            vhost: local.vhost.clone(),
            name: local.name.clone(),
            only: Some(queue),
            session: self.node.own_session(),
        };
        let node = self.node.clone();
        let proposed = node.metadata().propose(command, COMMAND_DEADLINE);
        Some(tokio::spawn(async move {
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
        }))
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

    /// Takes messages of a queue over from its earlier owner. False if they belong elsewhere; messages of a deleted queue are gone with it.
    async fn adopt(&mut self, adoption: Adoption) -> bool {
        if self.node.metadata().table().version() < adoption.index {
            self.flush();
            self.node
                .metadata()
                .wait_applied(adoption.index, CATCH_UP)
                .await;
        }
        match self.local(adoption.queue).await {
            Ok(()) => {
                if let Some(local) = self.queues.get_mut(&adoption.queue) {
                    local.queue.adopt(
                        &adoption.block,
                        adoption
                            .items
                            .iter()
                            .map(|i| (i.offset, i.len, i.redelivered)),
                        &mut self.outbox,
                    );
                    local.count_deliveries(&mut self.outbox);
                    self.touched.push(adoption.queue);
                }
                true
            }
            Err(Missing::Deleted) => true,
            Err(Missing::NotHere) => false,
        }
    }

    /// Sends the contents of queues that have another owner now to it.
    fn hand_over(&mut self) {
        let node = self.node.clone();
        let table = node.metadata().table().read();
        let (owners, index) = (node.owners(&table), table.index());
        let elsewhere = |id: &QueueId| {
            let view = table.queue_by_id(*id)?;
            // A queue without any owner stays until there is one.
            let owner = owners.of_place(view.place)?;
            (owner != node.id()).then_some((
                *id,
                QueueRef {
                    id: *id,
                    place: view.place,
                },
            ))
        };
        let moved: Vec<(QueueId, QueueRef)> = self.queues.keys().filter_map(elsewhere).collect();
        drop(table);
        for (id, queue) in moved {
            let Some(local) = self.queues.remove(&id) else {
                continue;
            };
            node.account(local.accounted, 0);
            let contents = local.queue.into_contents();
            if !contents.is_empty() {
                tracing::debug!(
                    queue = local.name,
                    vhost = local.vhost,
                    messages = contents.len(),
                    "handing a queue over to its owner"
                );
                crate::handover::start(node.clone(), queue, index, contents);
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
        if self.node.owners(&table).of_place(view.place) != Some(self.node.id()) {
            return Err(Missing::NotHere);
        }
        let local = Local {
            queue: Queue::new(),
            accounted: 0,
            vhost: view.vhost.to_owned(),
            name: view.name.to_owned(),
            auto_delete: view.auto_delete,
            meter: Meter::new(Instant::now()),
            sealed: false,
        };
        drop(table);
        self.queues.insert(id, local);
        Ok(())
    }

    fn flush(&mut self) {
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
                    Answer::Refused {
                        code: 403,
                        text: format!(
                            "queue '{}' in vhost '{}' in exclusive use",
                            local.name, local.vhost
                        ),
                    }
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
                local.meter.now.deliver_get += 1;
                let again = sink.0.items.iter().filter(|item| item.redelivered);
                local.meter.now.redeliver += again.count() as u64;
                Answer::Got {
                    remaining: queue.counts().ready,
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
            if if_unused && counts.consumers > 0 {
                Answer::Refused {
                    code: 406,
                    text: format!("queue '{}' in vhost '{}' in use", local.name, local.vhost),
                }
            } else if if_empty && counts.ready > 0 {
                Answer::Refused {
                    code: 406,
                    text: format!(
                        "queue '{}' in vhost '{}' is not empty",
                        local.name, local.vhost
                    ),
                }
            } else {
                local.sealed = true;
                Answer::Counted(counts.ready)
            }
        }
        Ask::Unseal => {
            local.sealed = false;
            Answer::Done
        }
        // Of no queue, so it does not come here.
        Ask::Fence => Answer::Done,
    })
}
