//! What one turn of a lane has for sessions, gathered so that each gets it in one piece.

use crate::wire::{Answer, Deliveries, DeliveryItem, ToSession};
use std::collections::BTreeMap;
use warren_model::{ConsumerId, QueueId, SessionId};
use warren_queue::{Delivery, Sink};

/// Outgoing events by session, each in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    sessions: BTreeMap<SessionId, Vec<ToSession>>,
    /// The session of the latest event, and its events: deliveries come in long runs for one.
    current: Option<(SessionId, Vec<ToSession>)>,
    /// Term of the shard whose queue is being served; 0 while none is.
    term: u64,
    queue: QueueId,
    /// Deliveries since somebody took the numbers, and those of them that are not the first ones.
    delivered: (u64, u64),
    /// The same of queues of shards that were served before.
    served: Vec<(QueueId, (u64, u64))>,
}

impl Outbox {
    #[inline]
    pub(crate) fn events(&mut self, session: SessionId) -> &mut Vec<ToSession> {
        if self
            .current
            .as_ref()
            .is_none_or(|(current, _)| *current != session)
        {
            if let Some((id, events)) = self.current.take() {
                self.sessions.insert(id, events);
            }
            self.current = Some((session, self.sessions.remove(&session).unwrap_or_default()));
        }
        match &mut self.current {
            Some((_, events)) => events,
            None => unreachable!("it was set above"),
        }
    }

    /// What follows comes of a queue of a shard that this lane leads in `term`, or, with 0, of one that is not replicated.
    pub(crate) fn serve(&mut self, term: u64, queue: QueueId) {
        if self.term > 0 && self.delivered.0 > 0 {
            let delivered = self.take_delivered();
            self.served.push((self.queue, delivered));
        }
        (self.term, self.queue) = (term, queue);
    }

    /// How many deliveries and redeliveries there were from queues of shards, since this was last asked.
    pub(crate) fn take_served(&mut self) -> Vec<(QueueId, (u64, u64))> {
        self.serve(0, QueueId::default());
        std::mem::take(&mut self.served)
    }

    pub(crate) fn push(&mut self, session: SessionId, event: ToSession) {
        self.events(session).push(event);
    }

    pub(crate) fn answer(&mut self, session: SessionId, id: u64, answer: Answer) {
        self.push(session, ToSession::Answer { id, answer });
    }

    /// How many deliveries there were since the last call, and how many of them were redeliveries.
    #[inline]
    pub(crate) fn take_delivered(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.delivered)
    }

    /// Takes everything, by session.
    pub(crate) fn take(&mut self) -> BTreeMap<SessionId, Vec<ToSession>> {
        let mut all = std::mem::take(&mut self.sessions);
        if let Some((id, events)) = self.current.take() {
            all.insert(id, events);
        }
        all
    }
}

impl Sink for Outbox {
    #[inline]
    fn deliver(&mut self, to: ConsumerId, delivery: &Delivery<'_>) {
        let term = self.term;
        self.delivered.0 += 1;
        self.delivered.1 += u64::from(delivery.redelivered);
        let events = self.events(to.session);
        if !matches!(events.last(), Some(ToSession::Deliveries(last)) if last.term == term) {
            events.push(ToSession::Deliveries(Deliveries {
                term,
                ..Deliveries::default()
            }));
        }
        if let Some(ToSession::Deliveries(deliveries)) = events.last_mut() {
            push_delivery(deliveries, to.number, delivery);
        }
    }

    fn ask(&mut self, to: ConsumerId) {
        self.push(
            to.session,
            ToSession::AskLeave {
                consumer: to.number,
            },
        );
    }

    fn give_back(&mut self, to: ConsumerId, unused: u32) {
        self.push(
            to.session,
            ToSession::GiveBack {
                consumer: to.number,
                unused,
            },
        );
    }

    fn cancelled(&mut self, to: ConsumerId) {
        self.push(
            to.session,
            ToSession::Cancelled {
                consumer: to.number,
            },
        );
    }
}

#[inline]
fn push_delivery(deliveries: &mut Deliveries, consumer: u32, delivery: &Delivery<'_>) {
    // One reference to a block for a run of messages from it, not one a message.
    if deliveries
        .blocks
        .last()
        .is_none_or(|b| b.as_ptr() != delivery.block.as_ptr() || b.len() != delivery.block.len())
    {
        deliveries.blocks.push(delivery.block.clone());
    }
    let block = deliveries.blocks.len() as u32 - 1;
    deliveries.items.push(DeliveryItem {
        position: delivery.position,
        consumer,
        block,
        offset: delivery.offset,
        len: delivery.len,
        redelivered: delivery.redelivered,
    });
}

/// Takes the message that a get found.
#[derive(Debug, Default)]
pub(crate) struct GetSink(pub(crate) Deliveries);

impl Sink for GetSink {
    fn deliver(&mut self, to: ConsumerId, delivery: &Delivery<'_>) {
        push_delivery(&mut self.0, to.number, delivery);
    }
    fn ask(&mut self, _: ConsumerId) {}
    fn give_back(&mut self, _: ConsumerId, _: u32) {}
    fn cancelled(&mut self, _: ConsumerId) {}
}
