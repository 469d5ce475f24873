//! One queue's state machine: messages in, deliveries out; no I/O, no clock.
//!
//! Flow: the queue's owner calls [`Queue::publish`] for each arriving record, [`Queue::settle`] for what consumers acknowledge, [`Queue::consume`],
//! [`Queue::credit`], … and hands in a [`Sink`] that takes what comes of it. Every call leaves the queue with nothing deliverable left: each
//! ready message waits for a consumer, or every consumer waits for credit.
//! Invariants: a message is ready, held by one consumer, or gone; positions only grow, and a message that is returned keeps its position,
//! so that it is delivered again before all that came after it (scenario A16).
//! Cost: O(1) a message for publish, delivery and settlement; a block of records is shared, never copied, unless a queue would pin much more memory than it uses.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blocks;
mod consumers;
pub mod entry;
pub mod index;
mod messages;
pub mod shard;
#[cfg(test)]
mod tests;

pub use consumers::Consumer;

use bytes::Bytes;
use consumers::Consumers;
use messages::{Messages, Stored};
use warren_model::{ConsumerId, Credit, SessionId, Settlement, Subscription};

/// What comes of a call, in order.
pub trait Sink {
    /// A message goes to a consumer (or answers a get).
    fn deliver(&mut self, to: ConsumerId, delivery: &Delivery<'_>);
    /// A consumer that needs leave for each message (its channel has a shared prefetch limit) has messages waiting: answer with [`Queue::grant`].
    fn ask(&mut self, to: ConsumerId);
    /// Leave that was granted and not used goes back.
    fn give_back(&mut self, to: ConsumerId, unused: u32);
    /// The queue is gone and the consumer with it.
    fn cancelled(&mut self, to: ConsumerId);
}

/// One message on its way to a consumer.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// Position in the queue: what the consumer's session settles it by. Meaningless when the consumer does not acknowledge.
    pub position: u64,
    /// It was delivered before.
    pub redelivered: bool,
    /// The block that holds its record (see [`warren_model::message`]).
    pub block: &'a Bytes,
    /// Where in the block the record starts.
    pub offset: u32,
    /// Bytes of the record.
    pub len: u32,
}

/// A consumer was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConsumeError {
    /// It wants to be alone, or somebody else is.
    #[error("the queue is in exclusive use")]
    ExclusiveUse,
    /// The same id consumes already.
    #[error("this consumer exists already")]
    Duplicate,
}

/// What of a consumer's messages is not with it, though it says so.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attached {
    /// Positions that are not here (yet).
    pub ahead: Vec<u64>,
    /// Positions that another consumer holds, or that are gone.
    pub lost: Vec<u64>,
}

/// Numbers that declare-ok and listings show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages that consumers hold.
    pub unacked: u64,
    /// Record bytes of both.
    pub bytes: u64,
    /// Consumers.
    pub consumers: u32,
}

/// A queue.
#[derive(Debug, Default)]
pub struct Queue {
    messages: Messages,
    consumers: Consumers,
    /// Nothing is delivered now.
    paused: bool,
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Numbers to show.
    pub fn counts(&self) -> Counts {
        Counts {
            ready: self.messages.ready(),
            unacked: self.messages.unacked(),
            bytes: self.messages.bytes(),
            consumers: self.consumers.len(),
        }
    }

    /// A message arrives: the record of `len` bytes at `offset` of `block`. Call [`Queue::seal`] when all of this block's records for this queue are in.
    #[inline]
    pub fn publish(&mut self, block: &Bytes, offset: u32, len: u32, sink: &mut impl Sink) {
        // Nothing waits and somebody can take it: it never touches the queue's memory unless it must be kept for an acknowledgement.
        if self.messages.ready() == 0
            && let Some(index) = self.consumers.next_able(len)
        {
            let consumer = self.consumers.get(index);
            let (id, no_ack) = (consumer.id, consumer.subscription.no_ack);
            let position = if no_ack {
                0
            } else {
                self.messages.push_held(block, offset, len, index)
            };
            sink.deliver(
                id,
                &Delivery {
                    position,
                    redelivered: false,
                    block,
                    offset,
                    len,
                },
            );
            return;
        }
        self.messages.push_ready(block, offset, len);
        if self.consumers.any_waits_for_leave() {
            self.consumers.ask(sink);
        }
    }

    /// All records of `block` for this queue are in: lets go of the block where the queue would pin much more than it keeps.
    pub fn seal(&mut self, block: &Bytes) {
        self.messages.seal(block);
    }

    /// A consumer comes.
    pub fn consume(
        &mut self,
        id: ConsumerId,
        subscription: Subscription,
        sink: &mut impl Sink,
    ) -> Result<(), ConsumeError> {
        self.begin_anew(id);
        self.consumers.add(id, subscription)?;
        self.pump(sink);
        Ok(())
    }

    /// Whoever asks again after its link was broken, instead of saying what it holds, has had no answer: what it was given lies in its place again.
    fn begin_anew(&mut self, id: ConsumerId) {
        if self.consumers.is_away(id)
            && let Some(holder) = self.consumers.remove(id)
        {
            self.messages.requeue_all(holder);
        }
    }

    /// A consumer goes; what it holds stays with it until it is settled. True if this was the last one.
    pub fn cancel(&mut self, id: ConsumerId) -> bool {
        self.consumers.cancel(id) && self.consumers.len() == 0
    }

    /// A consumer's session has written out deliveries and can take as many more.
    pub fn credit(&mut self, id: ConsumerId, credit: Credit, sink: &mut impl Sink) {
        if self.consumers.add_credit(id, credit) {
            self.pump(sink);
        }
    }

    /// Leave for `count` messages, asked for through [`Sink::ask`].
    pub fn grant(&mut self, id: ConsumerId, count: u32, sink: &mut impl Sink) {
        if !self.consumers.grant(id, count) {
            sink.give_back(id, count);
            return;
        }
        self.pump(sink);
        self.consumers.give_back(id, sink);
        if self.messages.ready() > 0 {
            self.consumers.ask(sink);
        }
    }

    /// Changes whether a consumer needs leave (basic.qos with global set or lifted on its channel).
    pub fn set_by_leave(&mut self, id: ConsumerId, by_leave: bool, sink: &mut impl Sink) {
        self.consumers.set_by_leave(id, by_leave);
        self.pump(sink);
    }

    /// Takes the next ready message without a subscription. `id` holds it until it settles it, unless `no_ack`.
    pub fn get(&mut self, id: ConsumerId, no_ack: bool, sink: &mut impl Sink) -> bool {
        self.begin_anew(id);
        let holder = if no_ack {
            None
        } else {
            Some(self.consumers.getter(id))
        };
        let Some(stored) = self.messages.take_ready(holder) else {
            return false;
        };
        self.hand_over(id, &stored, no_ack, sink);
        true
    }

    /// `id` settles messages it holds, by position. Positions that it does not hold are passed over: the session has checked the tags, so they are
    /// what a purge, a deletion or an earlier owner has taken away. Returns how many were settled.
    pub fn settle(
        &mut self,
        id: ConsumerId,
        positions: &[u64],
        settlement: Settlement,
        sink: &mut impl Sink,
    ) -> u32 {
        self.settle_or(id, positions, settlement, sink, |_| {})
    }

    /// The same; `missed` gets each position that the consumer does not hold here.
    pub fn settle_or(
        &mut self,
        id: ConsumerId,
        positions: &[u64],
        settlement: Settlement,
        sink: &mut impl Sink,
        mut missed: impl FnMut(u64),
    ) -> u32 {
        let Some(holder) = self.consumers.index_of(id) else {
            positions.iter().copied().for_each(missed);
            return 0;
        };
        let mut settled = 0;
        for &position in positions {
            let found = match settlement {
                Settlement::Accept | Settlement::Taken | Settlement::Got | Settlement::Discard => {
                    self.messages.remove(position, holder)
                }
                Settlement::Requeue => self.messages.requeue(position, holder),
            };
            if !found {
                missed(position);
            }
            settled += u32::from(found);
        }
        self.consumers.settled(holder, settled);
        self.pump(sink);
        settled
    }

    /// A consumer's (or getter's) channel is closed: it goes, and what it holds goes back to its places. True if it was the last consumer.
    pub fn release(&mut self, id: ConsumerId, sink: &mut impl Sink) -> bool {
        let last = self.cancel(id);
        if let Some(holder) = self.consumers.remove(id) {
            self.messages.requeue_all(holder);
        }
        self.pump(sink);
        last
    }

    /// A session's link is broken: its consumers keep what they hold, and take nothing until each is attached again by [`Queue::reattach`].
    pub fn session_away(&mut self, session: SessionId) {
        self.consumers.session_away(session);
    }

    /// A session whose link was broken has attached all consumers and getters that it has, over another one. Those that are still away it gave up meanwhile, and
    /// nothing has told the queue so: they go, and what they held goes back. True if the queue had consumers and has none now.
    pub fn session_back(&mut self, session: SessionId, sink: &mut impl Sink) -> bool {
        let had = self.consumers.len() > 0;
        for holder in self.consumers.session_back(session) {
            self.messages.requeue_all(holder);
        }
        self.pump(sink);
        had && self.consumers.len() == 0
    }

    /// A session is gone: its consumers go, and what they held goes back to its places. True if the queue had consumers and has none now.
    pub fn session_gone(&mut self, session: SessionId, sink: &mut impl Sink) -> bool {
        let had = self.consumers.len() > 0;
        for holder in self.consumers.remove_session(session) {
            self.messages.requeue_all(holder);
        }
        self.pump(sink);
        had && self.consumers.len() == 0
    }

    /// Drops all ready messages and says how many there were.
    pub fn purge(&mut self) -> u64 {
        self.messages.purge()
    }

    /// The queue is deleted: tells its consumers. Returns the number of ready messages that go with it.
    pub fn delete(mut self, sink: &mut impl Sink) -> u64 {
        for id in self.consumers.ids() {
            sink.cancelled(id);
        }
        self.messages.purge()
    }

    /// A message of a replicated queue comes in its turn: at `position`, behind all that came before. `held` names who has it already.
    pub fn feed(
        &mut self,
        position: u64,
        record: &Delivery<'_>,
        held: Option<ConsumerId>,
        sink: &mut impl Sink,
    ) {
        let (block, offset, len, redelivered) =
            (record.block, record.offset, record.len, record.redelivered);
        if !self.messages.is_ahead(position) {
            debug_assert!(false, "position {position} comes a second time");
            return;
        }
        if let Some(holder) = held.map(|id| self.consumers.holder(id)) {
            self.messages
                .push_held_at(position, block, offset, len, redelivered, holder);
            return;
        }
        if self.messages.ready() == 0
            && !self.paused
            && let Some(index) = self.consumers.next_able(len)
        {
            let consumer = self.consumers.get(index);
            let (id, no_ack) = (consumer.id, consumer.subscription.no_ack);
            if no_ack {
                self.messages.pass(position);
            } else {
                self.messages
                    .push_held_at(position, block, offset, len, redelivered, index);
            }
            sink.deliver(
                id,
                &Delivery {
                    position,
                    ..*record
                },
            );
            return;
        }
        self.messages
            .push_ready_at(position, block, offset, len, redelivered);
        if self.consumers.any_waits_for_leave() {
            self.consumers.ask(sink);
        }
    }

    /// A consumer whose session was served by another leader before, or over another link, and says what it holds. Messages that it held here and does not
    /// have go back to their places.
    pub fn reattach(
        &mut self,
        id: ConsumerId,
        subscription: Option<Subscription>,
        holds: &[u64],
        sink: &mut impl Sink,
    ) -> Result<Attached, ConsumeError> {
        self.cancel(id);
        if let Some(holder) = self.consumers.remove(id) {
            self.messages.requeue_all(holder);
        }
        if let Some(subscription) = subscription {
            self.consumers.add(id, subscription)?;
        }
        let mut attached = Attached::default();
        if !holds.is_empty() {
            let holder = self.consumers.holder_at(id);
            for &position in holds {
                if self.messages.hold(position, holder) {
                    self.consumers.holds_one_more(holder);
                } else if self.messages.is_ahead(position) {
                    attached.ahead.push(position);
                } else {
                    attached.lost.push(position);
                }
            }
            self.consumers.settled(holder, 0);
        }
        self.pump(sink);
        Ok(attached)
    }

    /// Whether a consumer could take a message and none is ready.
    pub fn is_hungry(&self) -> bool {
        !self.paused && self.messages.ready() == 0 && self.consumers.any_able()
    }

    /// Delivers nothing from now on, or delivers again.
    pub fn set_paused(&mut self, paused: bool, sink: &mut impl Sink) {
        self.paused = paused;
        self.pump(sink);
    }

    /// Whether nothing is delivered now.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether somebody holds the message of this position.
    pub fn holds(&self, position: u64) -> bool {
        self.messages.is_held(position)
    }

    /// Position of the first message that was never delivered, if there is one here.
    pub fn undelivered(&mut self) -> Option<u64> {
        self.messages.undelivered()
    }

    /// Whether a message of this position would come behind all that were here.
    pub fn is_ahead(&self, position: u64) -> bool {
        self.messages.is_ahead(position)
    }

    /// Consumers, in the order of their ids.
    pub fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers.iter()
    }

    /// Hands ready messages to consumers, in turn, until one of the two runs out.
    fn pump(&mut self, sink: &mut impl Sink) {
        if self.paused {
            return;
        }
        while let Some(len) = self.messages.next_ready_len() {
            let Some(index) = self.consumers.next_able(len) else {
                break;
            };
            let (id, no_ack) = {
                let consumer = self.consumers.get(index);
                (consumer.id, consumer.subscription.no_ack)
            };
            let Some(stored) = self
                .messages
                .take_ready(if no_ack { None } else { Some(index) })
            else {
                break;
            };
            self.hand_over(id, &stored, no_ack, sink);
        }
        if self.messages.ready() > 0 && self.consumers.any_waits_for_leave() {
            self.consumers.ask(sink);
        }
    }

    fn hand_over(&mut self, id: ConsumerId, stored: &Stored, no_ack: bool, sink: &mut impl Sink) {
        let Some(block) = self.messages.block(stored.block) else {
            debug_assert!(false, "a ready message's block is there");
            return;
        };
        sink.deliver(
            id,
            &Delivery {
                position: stored.position,
                redelivered: stored.redelivered,
                block,
                offset: stored.offset,
                len: stored.len,
            },
        );
        if no_ack {
            self.messages.release(stored);
        }
    }
}
