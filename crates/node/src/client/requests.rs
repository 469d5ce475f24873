//! Requests of a session that queue owners answer, and what becomes of them when an owner is lost or changes.

use super::{ATTACHMENT_SHIFT, Asked, Attachment, Client, Fence, RETRY_PAUSE, Take, Target, Then};
use crate::connection::Inbox;
use crate::wire::{Answer, Ask, Question, Settled, ToOwner, ToSession};
use crate::worker::COMMAND_DEADLINE;
use std::collections::BTreeMap;
use tokio::time::Instant;
use warren_model::command::Place;
use warren_model::message::Message;
use warren_model::{Command, NodeId, Outcome, QueueId, QueueRef, Refusal, Settlement, ShardId};
use warren_session::{Got, Reply, Session};

/// Why a queue that is there cannot be asked, in the words that clients know.
const DOWN: &str =
    "the home node of the durable queue is down or inaccessible; try again when it is back";

impl Client {
    /// Asks every lane that knows of this session whether it has dealt with what was sent before.
    pub(super) fn fence(&mut self, channel: u16, id: u64) {
        self.flush();
        let mut open = BTreeMap::new();
        for &address in &self.known_to {
            if channel == 0 {
                let _ = self
                    .node
                    .send_to_lane(address, ToOwner::SessionGone(self.id));
            }
            self.last_own_request += 1;
            let question = Question {
                session: self.id,
                id: self.last_own_request,
                queue: QueueId::default(),
                ask: Ask::Fence,
            };
            if self
                .node
                .send_to_lane(address, ToOwner::Ask(question))
                .is_ok()
            {
                open.insert(self.last_own_request, address.node);
            }
        }
        if channel == 0 && self.exclusive {
            self.exclusive = false;
            self.last_own_request += 1;
            let own = self.last_own_request;
            open.insert(own, self.node.id());
            let (inbox, deleted) = (
                self.inbox.clone(),
                self.node
                    .clone()
                    .delete_exclusive(self.id, self.proposals.clone()),
            );
            tokio::spawn(async move {
                // However it ends, the client is not kept waiting for longer than a command may take.
                let _ = tokio::time::timeout(COMMAND_DEADLINE, deleted).await;
                let _ = inbox.send(Inbox::Owner(ToSession::Answer {
                    id: own,
                    answer: Answer::Done,
                }));
            });
        }
        if open.is_empty() {
            let _ = self.inbox.send(Inbox::Reply {
                channel,
                id,
                reply: Reply::Done,
            });
        } else {
            self.fences.push(Fence { open, channel, id });
        }
    }

    /// Takes lanes that have answered, or never will, out of the fences; answers those that are done.
    pub(super) fn pass_fences(
        &mut self,
        session: &mut Session,
        passed: impl Fn(u64, NodeId) -> bool,
    ) {
        for fence in &mut self.fences {
            fence.open.retain(|&id, node| !passed(id, *node));
        }
        let done: Vec<Fence> = self.fences.extract_if(.., |f| f.open.is_empty()).collect();
        for fence in done {
            session.reply(fence.channel, fence.id, Reply::Done, self);
        }
    }

    /// An owner's answer.
    pub(crate) fn answered(&mut self, session: &mut Session, id: u64, answer: Answer) {
        if self.fences.iter().any(|f| f.open.contains_key(&id)) {
            return self.pass_fences(session, |open, _| open == id);
        }
        let Some(asked) = self.asked.remove(&id) else {
            return;
        };
        match (answer, &asked.then) {
            (Answer::NotHere, _) => self.ask_later(id, asked),
            (Answer::Counted(count), Then::Delete(name)) => {
                self.delete_sealed(asked.channel, id, asked.queue, name.clone(), count)
            }
            (Answer::Refused { .. }, &Then::Reattached(consumer)) => {
                self.cancelled(session, consumer)
            }
            (answer, &Then::Reattached(consumer)) => {
                let Some(attachment) = self.attachments.get_mut(&consumer) else {
                    return;
                };
                attachment.address = asked.to;
                if let Answer::Attached { lost } = answer
                    && !lost.is_empty()
                {
                    let count = attachment.count << ATTACHMENT_SHIFT;
                    let lost: Vec<u64> =
                        lost.into_iter().map(|position| position | count).collect();
                    session.lost(consumer, &lost);
                }
            }
            (
                Answer::Got {
                    remaining,
                    deliveries,
                },
                _,
            ) => {
                let Some((item, block)) = deliveries
                    .items
                    .first()
                    .and_then(|i| Some((i, deliveries.blocks.get(i.block as usize)?)))
                else {
                    return;
                };
                let (count, term) = self
                    .attachments
                    .get(&item.consumer)
                    .map_or((0, 0), |a| (a.count << ATTACHMENT_SHIFT, a.term));
                if deliveries.term < term {
                    // By an earlier leader; the one of now was asked, too.
                    self.asked.insert(id, asked);
                    return;
                }
                if matches!(asked.then, Then::Take) {
                    let take = Take {
                        channel: asked.channel,
                        id,
                        block: block.clone(),
                        offset: item.offset,
                        position: item.position | count,
                        redelivered: item.redelivered,
                        remaining,
                        refused: false,
                    };
                    return self.take(item.consumer, take);
                }
                match Message::read(block, item.offset) {
                    Ok(message) => {
                        let got = Got {
                            position: item.position | count,
                            redelivered: item.redelivered,
                            remaining,
                            message,
                        };
                        session.got(asked.channel, id, &got, self);
                    }
                    Err(error) => session.reply(
                        asked.channel,
                        id,
                        Reply::Refused(Refusal::new(541, error.to_string())),
                        self,
                    ),
                }
            }
            (answer, Then::Reply | Then::Take | Then::Delete(_)) => {
                if let (Ask::Consume { consumer, .. }, Answer::Refused { .. }) =
                    (&asked.ask, &answer)
                {
                    self.attachments.remove(consumer);
                }
                session.reply(asked.channel, id, reply_of(answer), self);
            }
        }
    }

    /// Settles what was got; see [`Take`].
    fn take(&mut self, consumer: u32, take: Take) {
        let Some(attachment) = self.attachments.get(&consumer) else {
            return;
        };
        let (Some(shard), queue) = (attachment.shard(), attachment.queue.id) else {
            return;
        };
        let index = self.outgoing(Target::Shard(shard));
        let out = &mut self.outgoing[index];
        out.settled.push(Settled {
            queue,
            consumer,
            position: take.position & ((1 << ATTACHMENT_SHIFT) - 1),
            settlement: Settlement::Got,
        });
        out.takes.push(take);
        self.flush_one(index);
    }

    /// Gives a client what it got, now that it is settled.
    pub(super) fn give(&mut self, session: &mut Session, take: &Take) {
        let (channel, id) = (take.channel, take.id);
        if take.refused {
            let reply = Reply::Refused(Refusal::not_found(DOWN));
            return session.reply(channel, id, reply, self);
        }
        match Message::read(&take.block, take.offset) {
            Ok(message) => {
                let got = Got {
                    position: take.position,
                    redelivered: take.redelivered,
                    remaining: take.remaining,
                    message,
                };
                session.got(channel, id, &got, self);
            }
            Err(error) => {
                let reply = Reply::Refused(Refusal::new(541, error.to_string()));
                session.reply(channel, id, reply, self);
            }
        }
    }

    /// The queue is sealed at its owner: deletes it.
    pub(super) fn delete_sealed(
        &mut self,
        channel: u16,
        id: u64,
        queue: QueueRef,
        name: String,
        messages: u64,
    ) {
        let command = Command::DeleteQueue {
            vhost: self.vhost.clone(),
            name,
            only: Some(queue.id),
            session: self.id,
        };
        let who = || self.who();
        let proposed = self.node.propose_for(&who, command, COMMAND_DEADLINE);
        let (node, inbox, session) = (self.node.clone(), self.inbox.clone(), self.id);
        tokio::spawn(async move {
            let reply = match proposed.await {
                Ok(proposed) => match proposed.outcome {
                    Outcome::Refused(refusal) => Reply::Refused(refusal),
                    Outcome::Done | Outcome::Queue { .. } | Outcome::Retry => {
                        Reply::Counted(messages)
                    }
                },
                Err(error) => Reply::Refused(unavailable(&error)),
            };
            if matches!(reply, Reply::Refused(_)) {
                // It goes on living.
                let address = node.owner_of(queue);
                if let Some(address) = address {
                    let question = Question {
                        session,
                        id: u64::MAX,
                        queue: queue.id,
                        ask: Ask::Unseal,
                    };
                    let _ = node.send_to_lane(address, ToOwner::Ask(question));
                }
            }
            let _ = inbox.send(Inbox::Reply { channel, id, reply });
        });
    }

    pub(super) fn ask(&mut self, channel: u16, id: u64, queue: QueueRef, ask: Ask, then: Then) {
        let asked = Asked {
            to: None,
            channel,
            queue,
            ask,
            until: Instant::now() + COMMAND_DEADLINE,
            then,
        };
        self.ask_owner(id, asked);
    }

    pub(super) fn ask_owner(&mut self, id: u64, mut asked: Asked) {
        self.flush();
        asked.to = self.node.owner_of(asked.queue);
        let Some(address) = asked.to else {
            return self.ask_later(id, asked);
        };
        if let Ask::Consume { consumer, .. }
        | Ask::Reattach { consumer, .. }
        | Ask::Get { consumer, .. } = asked.ask
            && let Some(attachment) = self.attachments.get_mut(&consumer)
        {
            attachment.address = Some(address);
            if let Some(leader) = attachment.shard().and_then(|s| self.node.leaders().get(s)) {
                attachment.term = leader.term;
            }
        }
        self.known_to.insert(address);
        let question = Question {
            session: self.id,
            id,
            queue: asked.queue.id,
            ask: asked.ask.clone(),
        };
        if self
            .node
            .send_to_lane(address, ToOwner::Ask(question))
            .is_err()
        {
            return self.ask_later(id, asked);
        }
        self.asked.insert(id, asked);
    }

    /// The owner cannot be reached, or is another one by now: tries again after a pause, until the deadline.
    pub(super) fn ask_later(&mut self, id: u64, mut asked: Asked) {
        asked.to = None;
        self.asked.insert(id, asked);
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            tokio::time::sleep(RETRY_PAUSE).await;
            let _ = inbox.send(Inbox::AskAgain(id));
        });
    }

    /// When something that was asked of an owner must be answered at the latest. Consumers wait for as long as their queue is there.
    pub(super) fn answer_deadline(&self) -> Option<Instant> {
        let asked = self.asked.values();
        asked
            .filter(|a| a.ask.must_be_answered())
            .map(|a| a.until)
            .min()
    }

    /// Refuses what was asked of an owner that does not answer in time: one that leads and has no majority, for instance.
    pub(crate) fn refuse_overdue(&mut self, session: &mut Session) {
        let now = Instant::now();
        let overdue = |a: &Asked| a.ask.must_be_answered() && a.until <= now;
        let ids: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, a)| overdue(a))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(asked) = self.asked.get_mut(&id) {
                asked.to = None;
            }
            self.ask_again(session, id);
        }
    }

    pub(crate) fn ask_again(&mut self, session: &mut Session, id: u64) {
        if self.asked.get(&id).is_none_or(|a| a.to.is_some()) {
            return;
        }
        let Some(asked) = self.asked.remove(&id) else {
            return;
        };
        let gone = self
            .node
            .metadata()
            .table()
            .read()
            .queue_by_id(asked.queue.id)
            .is_none();
        if !gone && Instant::now() < asked.until {
            return self.ask_owner(id, asked);
        }
        if let Then::Reattached(consumer) = asked.then {
            if let Ask::Reattach { .. } = asked.ask
                && !gone
            {
                let held = held_by(session, |c| c == consumer);
                return self.reattach(consumer, held);
            }
            if gone {
                return self.cancelled(session, consumer);
            }
            // A consumer whose queue exists is never given up: its owner comes back or is replaced.
            return self.ask_owner(
                id,
                Asked {
                    until: Instant::now() + COMMAND_DEADLINE,
                    ..asked
                },
            );
        }
        let reply = match asked.ask {
            Ask::Cancel { .. } => Reply::Done,
            Ask::Seal {
                if_unused: false,
                if_empty: false,
            } => {
                // Nobody holds contents that could be asked about.
                if let Then::Delete(name) = asked.then {
                    return self.delete_sealed(asked.channel, id, asked.queue, name, 0);
                }
                Reply::Counted(0)
            }
            Ask::Count
            | Ask::Consume { .. }
            | Ask::Reattach { .. }
            | Ask::Get { .. }
            | Ask::Purge
            | Ask::Seal { .. }
            | Ask::Unseal
            | Ask::Fence => {
                if let Ask::Consume { consumer, .. } = asked.ask {
                    self.attachments.remove(&consumer);
                }
                let text = if gone {
                    "the queue was deleted meanwhile"
                } else {
                    DOWN
                };
                Reply::Refused(Refusal::not_found(text))
            }
        };
        session.reply(asked.channel, id, reply, self);
    }

    /// The link to a node broke, or the node is gone: nothing that is under way there will be answered.
    pub(crate) fn node_lost(&mut self, session: &mut Session, node: NodeId) {
        let lost: Vec<u64> = self
            .in_flight
            .iter()
            .filter(|(_, b)| b.node == node)
            .map(|(n, _)| *n)
            .collect();
        for number in lost {
            self.batch_failed(number);
        }
        let unanswered: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, a)| a.to.is_some_and(|to| to.node == node))
            .map(|(id, _)| *id)
            .collect();
        for id in unanswered {
            if let Some(asked) = self.asked.remove(&id) {
                self.ask_later(id, asked);
            }
        }
        self.pass_fences(session, |_, at| at == node);
        // Consumers of replicated queues are attached again when a leader is there, and keep what they hold.
        self.detach(session, |a| {
            a.shard().is_none() && a.address.is_some_and(|address| address.node == node)
        });
    }

    /// A shard has a leader, a new one or over a new link: it is sent what has no outcome yet, and consumers are attached there with what they hold.
    pub(crate) fn leader_announced(&mut self, session: &mut Session, shard: ShardId, term: u64) {
        if self
            .node
            .leaders()
            .get(shard)
            .is_none_or(|l| l.term != term)
        {
            // Another one has announced itself since.
            return;
        }
        self.flush();
        self.send_batches_again(shard);
        let of_shard = |a: &Attachment| a.shard() == Some(shard);
        let asked_for: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, a)| a.queue.place == Place::Shard(shard))
            .filter(|(_, a)| !matches!(a.then, Then::Reattached(_)))
            .map(|(id, _)| *id)
            .collect();
        let consumers: Vec<u32> = self
            .attachments
            .iter()
            .filter(|(_, a)| of_shard(a))
            .map(|(c, _)| *c)
            .collect();
        if !consumers.is_empty() {
            let mut held = held_by(session, |c| self.attachments.get(&c).is_some_and(of_shard));
            let mut consumers = consumers;
            consumers.sort_unstable();
            for consumer in consumers {
                session.leave_back(consumer, u32::MAX, self);
                let own = held.remove(&consumer);
                let held = own.map(|positions| (consumer, positions));
                self.reattach(consumer, held.into_iter().collect());
            }
        }
        // What was asked of an earlier leader, or waits for one.
        for id in asked_for {
            if let Some(asked) = self.asked.remove(&id) {
                self.ask_owner(id, asked);
            }
        }
    }

    /// Attaches a consumer of a replicated queue to the shard's leader, with what it holds.
    fn reattach(&mut self, consumer: u32, mut held: BTreeMap<u32, Vec<u64>>) {
        let Some(attachment) = self.attachments.get_mut(&consumer) else {
            return;
        };
        let pending = self
            .asked
            .values()
            .any(|a| matches!(a.ask, Ask::Consume { consumer: c, .. } if c == consumer));
        let count = attachment.count << ATTACHMENT_SHIFT;
        let holds: Vec<u64> = held
            .remove(&consumer)
            .unwrap_or_default()
            .into_iter()
            .map(|position| position & !count)
            .collect();
        if pending || (!attachment.consumes && holds.is_empty()) {
            return;
        }
        let ask = Ask::Reattach {
            consumer,
            subscription: attachment.consumes.then_some(attachment.subscription),
            holds,
        };
        let queue = attachment.queue;
        self.asked
            .retain(|_, a| !matches!(a.ask, Ask::Reattach { consumer: c, .. } if c == consumer));
        self.last_own_request += 1;
        self.ask(
            0,
            self.last_own_request,
            queue,
            ask,
            Then::Reattached(consumer),
        );
    }

    /// The ring has changed: consumers whose queue has another owner now are attached there.
    pub(crate) fn members_changed(&mut self, session: &mut Session) {
        let owners = self.node.current_owners();
        let is_lost = |a: &Attachment| match a.queue.place {
            Place::Shard(_) => false,
            Place::Node(node, incarnation) => {
                a.address.is_some() && owners.of_incarnation(node, incarnation).is_none()
            }
        };
        self.detach(session, is_lost);
    }

    pub(super) fn detach(&mut self, session: &mut Session, lost: impl Fn(&Attachment) -> bool) {
        let mut consumers: Vec<u32> = self
            .attachments
            .iter()
            .filter(|(_, a)| lost(a))
            .map(|(c, _)| *c)
            .collect();
        consumers.sort_unstable();
        for consumer in consumers {
            // Grants that are under way to the owner that was are lost.
            session.leave_back(consumer, u32::MAX, self);
            let pending = self
                .asked
                .values()
                .any(|a| matches!(a.ask, Ask::Consume { consumer: c, .. } if c == consumer));
            let Some(attachment) = self.attachments.get_mut(&consumer) else {
                continue;
            };
            attachment.address = None;
            attachment.count += 1;
            if !attachment.consumes || pending {
                continue;
            }
            let ask = Ask::Consume {
                consumer,
                subscription: attachment.subscription,
                tag: attachment.tag.clone(),
            };
            let queue = attachment.queue;
            self.last_own_request += 1;
            self.ask_later(
                self.last_own_request,
                Asked {
                    to: None,
                    channel: 0,
                    queue,
                    ask,
                    until: Instant::now() + COMMAND_DEADLINE,
                    then: Then::Reattached(consumer),
                },
            );
        }
    }
}

/// What some of a session's consumers hold.
fn held_by(session: &Session, wanted: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<u64>> {
    let mut held: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    session.each_held(|consumer, position| {
        if wanted(consumer) {
            held.entry(consumer).or_default().push(position);
        }
    });
    held
}

fn reply_of(answer: Answer) -> Reply {
    match answer {
        Answer::Done => Reply::Done,
        Answer::Counts {
            messages,
            consumers,
        } => Reply::Counts {
            messages,
            consumers,
        },
        Answer::Counted(count) => Reply::Counted(count),
        Answer::Empty => Reply::Empty,
        Answer::Refused { code, text } => Reply::Refused(Refusal { code, text }),
        Answer::Got { .. } | Answer::NotHere | Answer::Attached { .. } => {
            Reply::Refused(Refusal::new(541, "unexpected answer of a queue's owner"))
        }
    }
}

/// A command that the cluster could not take in time.
pub(super) fn unavailable(error: &warren_consensus::ProposeError) -> Refusal {
    Refusal::new(
        506,
        format!("the cluster could not agree on the change: {error}"),
    )
}
