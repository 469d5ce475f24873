//! A queue's consumers: who may take the next message.
//!
//! Flow: `able` is the round of consumers that can take a message, served in turn; a consumer leaves the round when it runs out of
//! credit, prefetch or leave, and comes back when it gets more.
//! Invariant: `Consumer::in_round` says whether it stands in `able`.

use crate::{ConsumeError, Sink};
use std::collections::{BTreeMap, VecDeque};
use warren_model::{ConsumerId, Credit, SessionId, Subscription};

/// A consumer and what it may take.
#[derive(Clone, Debug)]
pub struct Consumer {
    /// Who.
    pub id: ConsumerId,
    /// How it is served.
    pub subscription: Subscription,
    /// Messages that it holds.
    pub unacked: u32,
    /// May go below zero by one message: a message larger than the window must pass, too.
    credit: i64,
    leave: u32,
    asked: bool,
    in_round: bool,
    /// Still subscribed; a cancelled consumer and a getter stay listed while they hold messages.
    active: bool,
    /// Its session's link is broken. It takes nothing until it is attached again: what it was given before it says what it holds, it would be given twice.
    away: bool,
}

impl Consumer {
    fn able(&self) -> bool {
        self.active
            && !self.away
            && self.credit > 0
            && (!self.subscription.by_leave || self.leave > 0)
            && self.below_prefetch()
    }

    fn below_prefetch(&self) -> bool {
        self.subscription.no_ack
            || self.subscription.prefetch == 0
            || self.unacked < self.subscription.prefetch
    }

    fn waits_for_leave(&self) -> bool {
        self.active
            && !self.away
            && self.subscription.by_leave
            && self.leave == 0
            && !self.asked
            && self.credit > 0
            && self.below_prefetch()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Consumers {
    /// By index; freed indexes are used again.
    list: Vec<Option<Consumer>>,
    free: Vec<u32>,
    index: BTreeMap<ConsumerId, u32>,
    able: VecDeque<u32>,
    active: u32,
    by_leave: u32,
    exclusive: bool,
}

impl Consumers {
    /// Active consumers.
    pub(crate) fn len(&self) -> u32 {
        self.active
    }

    pub(crate) fn get(&self, index: u32) -> &Consumer {
        match &self.list[index as usize] {
            Some(consumer) => consumer,
            None => unreachable!("index {index} comes from the round of listed consumers"),
        }
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Consumer> {
        self.list.get_mut(index as usize).and_then(Option::as_mut)
    }

    pub(crate) fn index_of(&self, id: ConsumerId) -> Option<u32> {
        self.index.get(&id).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Consumer> {
        self.index
            .values()
            .filter_map(|&i| self.list[i as usize].as_ref())
            .filter(|c| c.active)
    }

    pub(crate) fn ids(&self) -> Vec<ConsumerId> {
        self.iter().map(|c| c.id).collect()
    }

    pub(crate) fn add(
        &mut self,
        id: ConsumerId,
        subscription: Subscription,
    ) -> Result<(), ConsumeError> {
        if self.exclusive || (subscription.exclusive && self.active > 0) {
            return Err(ConsumeError::ExclusiveUse);
        }
        if self.index.contains_key(&id) {
            return Err(ConsumeError::Duplicate);
        }
        let index = self.insert(id, subscription, true);
        self.active += 1;
        self.by_leave += u32::from(subscription.by_leave);
        self.exclusive = subscription.exclusive;
        self.enter_round(index);
        Ok(())
    }

    /// The holder that stands for `id`'s gets.
    pub(crate) fn getter(&mut self, id: ConsumerId) -> u32 {
        self.holder(id)
    }

    /// The consumer, or what stands for its gets, that now holds one more message.
    pub(crate) fn holder(&mut self, id: ConsumerId) -> u32 {
        let index = self.holder_at(id);
        self.holds_one_more(index);
        index
    }

    pub(crate) fn holds_one_more(&mut self, index: u32) {
        if let Some(consumer) = self.get_mut(index) {
            consumer.unacked += 1;
        }
    }

    /// Whether a consumer could take a message.
    pub(crate) fn any_able(&self) -> bool {
        self.able
            .iter()
            .any(|&i| self.list[i as usize].as_ref().is_some_and(Consumer::able))
            || (self.by_leave > 0
                && self
                    .list
                    .iter()
                    .flatten()
                    .any(|c| c.waits_for_leave() || (c.active && c.asked)))
    }

    /// The consumer, or what stands for its gets.
    pub(crate) fn holder_at(&mut self, id: ConsumerId) -> u32 {
        match self.index_of(id) {
            Some(index) => index,
            None => self.insert(
                id,
                Subscription {
                    no_ack: false,
                    exclusive: false,
                    prefetch: 0,
                    by_leave: false,
                },
                false,
            ),
        }
    }

    fn insert(&mut self, id: ConsumerId, subscription: Subscription, active: bool) -> u32 {
        let consumer = Consumer {
            id,
            subscription,
            unacked: 0,
            credit: i64::from(Credit::WINDOW.bytes),
            leave: 0,
            asked: false,
            in_round: false,
            active,
            away: false,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.list[index as usize] = Some(consumer);
                index
            }
            None => {
                self.list.push(Some(consumer));
                self.list.len() as u32 - 1
            }
        };
        self.index.insert(id, index);
        index
    }

    /// Takes a consumer out of service; true if it was in service.
    pub(crate) fn cancel(&mut self, id: ConsumerId) -> bool {
        let Some(index) = self.index_of(id) else {
            return false;
        };
        let Some(consumer) = self.get_mut(index) else {
            return false;
        };
        if !consumer.active {
            return false;
        }
        consumer.active = false;
        let subscription = consumer.subscription;
        self.active -= 1;
        self.by_leave -= u32::from(subscription.by_leave);
        if subscription.exclusive {
            self.exclusive = false;
        }
        self.forget_if_idle(index);
        true
    }

    fn forget_if_idle(&mut self, index: u32) {
        let Some(consumer) = self.get_mut(index) else {
            return;
        };
        if consumer.active || consumer.unacked > 0 {
            return;
        }
        let (id, in_round) = (consumer.id, consumer.in_round);
        if in_round {
            self.able.retain(|&i| i != index);
        }
        self.index.remove(&id);
        self.list[index as usize] = None;
        self.free.push(index);
    }

    /// Removes all of a session's consumers and getters and returns their indexes, whose messages the caller puts back at once.
    pub(crate) fn remove_session(&mut self, session: SessionId) -> Vec<u32> {
        let found = self.of_session(session);
        found.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// See [`crate::Queue::session_away`].
    pub(crate) fn session_away(&mut self, session: SessionId) {
        for id in self.of_session(session) {
            if let Some(index) = self.index_of(id)
                && let Some(consumer) = self.get_mut(index)
            {
                consumer.away = true;
            }
        }
    }

    /// See [`crate::Queue::session_back`]. Returns the indexes of those that are gone, whose messages the caller puts back at once.
    pub(crate) fn session_back(&mut self, session: SessionId) -> Vec<u32> {
        let mut found = self.of_session(session);
        found.retain(|id| self.is_away(*id));
        found.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Whether its session's link is broken, and it has not come back.
    pub(crate) fn is_away(&self, id: ConsumerId) -> bool {
        let index = self.index_of(id);
        index.is_some_and(|index| self.get(index).away)
    }

    fn of_session(&self, session: SessionId) -> Vec<ConsumerId> {
        let range = ConsumerId { session, number: 0 }..=ConsumerId {
            session,
            number: u32::MAX,
        };
        self.index.range(range).map(|(id, _)| *id).collect()
    }

    /// Removes a consumer or getter and returns its index, whose messages the caller puts back at once.
    pub(crate) fn remove(&mut self, id: ConsumerId) -> Option<u32> {
        self.cancel(id);
        let index = self.index_of(id)?;
        if let Some(consumer) = self.get_mut(index) {
            consumer.unacked = 0;
        }
        self.forget_if_idle(index);
        Some(index)
    }

    /// The consumer whose turn it is, with a message of `len` record bytes charged to it.
    #[inline]
    pub(crate) fn next_able(&mut self, len: u32) -> Option<u32> {
        loop {
            let index = *self.able.front()?;
            let alone = self.able.len() == 1;
            let Some(consumer) = self.list.get_mut(index as usize).and_then(Option::as_mut) else {
                self.able.pop_front();
                continue;
            };
            if !consumer.able() {
                consumer.in_round = false;
                self.able.pop_front();
                continue;
            }
            consumer.credit -= Credit::cost(len);
            if consumer.subscription.by_leave {
                consumer.leave -= 1;
            }
            if !consumer.subscription.no_ack {
                consumer.unacked += 1;
            }
            if !alone {
                self.able.rotate_left(1);
            }
            return Some(index);
        }
    }

    fn enter_round(&mut self, index: u32) {
        if let Some(consumer) = self.get_mut(index)
            && !consumer.in_round
            && consumer.able()
        {
            consumer.in_round = true;
            self.able.push_back(index);
        }
    }

    /// True if the consumer can now take messages, or could ask for leave.
    pub(crate) fn add_credit(&mut self, id: ConsumerId, credit: Credit) -> bool {
        let Some(index) = self.index_of(id) else {
            return false;
        };
        if let Some(consumer) = self.get_mut(index) {
            let window = i64::from(Credit::WINDOW.bytes);
            consumer.credit = (consumer.credit + i64::from(credit.bytes)).min(window);
        }
        self.enter_round(index);
        true
    }

    /// False if there is no such consumer, so that the leave must go back.
    pub(crate) fn grant(&mut self, id: ConsumerId, count: u32) -> bool {
        let Some(index) = self.index_of(id) else {
            return false;
        };
        let Some(consumer) = self.get_mut(index) else {
            return false;
        };
        if !consumer.active || !consumer.subscription.by_leave {
            return false;
        }
        consumer.leave += count;
        consumer.asked = false;
        self.enter_round(index);
        true
    }

    /// Gives back leave that could not be used at once, so that another consumer of the channel may have it.
    pub(crate) fn give_back(&mut self, id: ConsumerId, sink: &mut impl Sink) {
        if let Some(consumer) = self.index_of(id).and_then(|i| self.get_mut(i)) {
            let unused = std::mem::take(&mut consumer.leave);
            if unused > 0 {
                sink.give_back(id, unused);
            }
        }
    }

    pub(crate) fn any_waits_for_leave(&self) -> bool {
        self.by_leave > 0
    }

    /// Asks for leave for every consumer that could use some and has not asked yet.
    pub(crate) fn ask(&mut self, sink: &mut impl Sink) {
        for consumer in self.list.iter_mut().flatten() {
            if consumer.waits_for_leave() {
                consumer.asked = true;
                sink.ask(consumer.id);
            }
        }
    }

    pub(crate) fn set_by_leave(&mut self, id: ConsumerId, by_leave: bool) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        let Some(consumer) = self.get_mut(index) else {
            return;
        };
        if !consumer.active || consumer.subscription.by_leave == by_leave {
            return;
        }
        consumer.subscription.by_leave = by_leave;
        consumer.leave = 0;
        consumer.asked = false;
        if by_leave {
            self.by_leave += 1;
        } else {
            self.by_leave -= 1;
        }
        self.enter_round(index);
    }

    /// `count` messages of the holder were settled.
    pub(crate) fn settled(&mut self, index: u32, count: u32) {
        if let Some(consumer) = self.get_mut(index) {
            consumer.unacked -= count.min(consumer.unacked);
        }
        self.enter_round(index);
        self.forget_if_idle(index);
    }
}
