//! The session's side of its consumers: what they are delivered, and the prefetch limit that a channel's consumers share.

use crate::basic::short;
use crate::channel::{Channel, State};
use crate::connection::{Core, Session};
use crate::{Host, Reply, host::Got};
use std::collections::VecDeque;
use warren_model::Credit;
use warren_model::message::Message;
use warren_protocol::{BasicCancel, BasicGetOk, CLASS_BASIC, Method, write_content, write_deliver};

/// Credit goes back to a queue's owner in pieces of at least so many bytes.
const CREDIT_PIECE: u32 = Credit::WINDOW.bytes / 8;

/// A message for one of the session's consumers.
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a> {
    /// The consumer's number.
    pub consumer: u32,
    /// Position, to settle it by.
    pub position: u64,
    /// It was delivered before.
    pub redelivered: bool,
    /// The message.
    pub message: Message<'a>,
}

#[derive(Debug)]
pub(crate) struct ConsumerEntry {
    pub(crate) channel: u16,
    pub(crate) tag: Vec<u8>,
    pub(crate) no_ack: bool,
    pub(crate) by_leave: bool,
    /// Subscribed; a getter never is.
    pub(crate) active: bool,
    /// Gets are outside of prefetch limits.
    getter: bool,
    unacked: u32,
    credit_due: u32,
}

impl ConsumerEntry {
    pub(crate) fn new(channel: u16, tag: Vec<u8>, no_ack: bool, by_leave: bool) -> Self {
        Self { channel, tag, no_ack, by_leave, active: true, getter: false, unacked: 0, credit_due: 0 }
    }

    pub(crate) fn getter(channel: u16) -> Self {
        Self { active: false, getter: true, ..Self::new(channel, Vec::new(), false, false) }
    }
}

/// basic.qos with global: at most `limit` unacknowledged deliveries over all consumers of a channel.
/// Owners ask for leave; all of the room is granted to one at a time, which gives back at once what it cannot use.
#[derive(Debug, Default)]
pub(crate) struct SharedLimit {
    /// 0: none.
    pub(crate) limit: u32,
    /// Unacknowledged deliveries to consumers.
    used: u32,
    granted: u32,
    waiting: VecDeque<u32>,
}

impl SharedLimit {
    pub(crate) fn serve(&mut self, host: &mut impl Host) {
        let limit = if self.limit == 0 { u32::MAX } else { self.limit };
        let room = limit.saturating_sub(self.used).saturating_sub(self.granted);
        if room > 0
            && let Some(consumer) = self.waiting.pop_front()
        {
            self.granted += room;
            host.grant(consumer, room);
        }
    }
}

impl Core {
    pub(crate) fn add_consumer(&mut self, entry: ConsumerEntry) -> u32 {
        self.last_consumer += 1;
        self.consumers.insert(self.last_consumer, entry);
        self.last_consumer
    }

    /// A consumer is no longer subscribed; its entry stays while it holds messages.
    pub(crate) fn consumer_gone(&mut self, number: u32) {
        if let Some(entry) = self.consumers.get_mut(&number) {
            entry.active = false;
            if entry.unacked == 0 {
                self.consumers.remove(&number);
            }
        }
    }

    #[inline]
    pub(crate) fn settled(&mut self, number: u32, shared: &mut SharedLimit) {
        let Some(entry) = self.consumers.get_mut(&number) else { return };
        entry.unacked = entry.unacked.saturating_sub(1);
        if !entry.getter {
            shared.used = shared.used.saturating_sub(1);
            if !entry.active && entry.unacked == 0 {
                self.consumers.remove(&number);
            }
        }
    }
}

impl Session {
    /// A message for a consumer. What comes for a channel that is closed is dropped: its owner puts it back when it hears of the close.
    #[inline]
    pub fn deliver(&mut self, d: &Delivered<'_>, host: &mut impl Host) {
        let core = &mut self.core;
        let Some(entry) = core.consumers.get_mut(&d.consumer) else { return };
        let Some(channel) = self.channels.get_mut(usize::from(entry.channel)).and_then(Option::as_deref_mut) else { return };
        if channel.state != State::Open {
            return;
        }
        channel.last_tag += 1;
        let tag = channel.last_tag;
        if !entry.no_ack {
            channel.unacked.push(tag, d.consumer, d.position);
            entry.unacked += 1;
            channel.shared.used += 1;
            if entry.by_leave {
                channel.shared.granted = channel.shared.granted.saturating_sub(1);
            }
        }
        let m = &d.message;
        write_deliver(&mut core.out, entry.channel, core.frame_max, &entry.tag, tag, d.redelivered, m.exchange, m.routing_key, m.properties, m.body);
        entry.credit_due += m.record_len() as u32 + Credit::OVERHEAD;
        if entry.credit_due >= CREDIT_PIECE {
            host.credit(d.consumer, std::mem::take(&mut entry.credit_due));
        }
    }

    /// The message that a [`crate::Request::Get`] found.
    pub fn got(&mut self, channel: u16, id: u64, got: &Got<'_>, host: &mut impl Host) {
        let core = &mut self.core;
        let Some(ch) = self.channels.get_mut(usize::from(channel)).and_then(Option::as_deref_mut) else { return };
        let Some((consumer, no_ack)) = ch.get_under_way(id) else { return };
        ch.last_tag += 1;
        let tag = ch.last_tag;
        if !no_ack {
            ch.unacked.push(tag, consumer, got.position);
            if let Some(entry) = core.consumers.get_mut(&consumer) {
                entry.unacked += 1;
            }
        }
        let m = &got.message;
        let ok = BasicGetOk {
            delivery_tag: tag,
            redelivered: got.redelivered,
            exchange: short(m.exchange),
            routing_key: short(m.routing_key),
            message_count: crate::requests::clamp(got.remaining),
        };
        Method::BasicGetOk(ok).write(channel, &mut core.out);
        write_content(&mut core.out, channel, core.frame_max, CLASS_BASIC, m.properties, m.body);
        self.reply(channel, id, Reply::Done, host);
    }

    /// A queue's owner has messages for a consumer that needs leave.
    pub fn wants_leave(&mut self, consumer: u32, host: &mut impl Host) {
        let Some(channel) = self.channel_of(consumer) else { return };
        channel.shared.waiting.push_back(consumer);
        channel.shared.serve(host);
    }

    /// Leave that was granted and not used.
    pub fn leave_back(&mut self, consumer: u32, unused: u32, host: &mut impl Host) {
        let Some(channel) = self.channel_of(consumer) else { return };
        channel.shared.granted = channel.shared.granted.saturating_sub(unused);
        channel.shared.serve(host);
    }

    /// A consumer's queue is gone, or its owner is: the consumer is told, if the client announced that it understands.
    pub fn cancelled(&mut self, consumer: u32, host: &mut impl Host) {
        let notify = self.core.consumer_cancel_notify;
        let Some(entry) = self.core.consumers.get(&consumer) else { return };
        if !entry.active {
            return;
        }
        let (number, tag) = (entry.channel, entry.tag.clone());
        if let Some(channel) = self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut) {
            channel.tags.retain(|_, n| *n != consumer);
            channel.shared.waiting.retain(|n| *n != consumer);
            channel.shared.serve(host);
        }
        self.core.consumer_gone(consumer);
        if notify {
            Method::BasicCancel(BasicCancel { consumer_tag: short(&tag), no_wait: true }).write(number, &mut self.core.out);
        }
    }

    fn channel_of(&mut self, consumer: u32) -> Option<&mut Channel> {
        let number = self.core.consumers.get(&consumer)?.channel;
        self.channels.get_mut(usize::from(number))?.as_deref_mut()
    }
}

impl Channel {
    /// The getter of the get with this id, if the channel still waits for it.
    fn get_under_way(&self, id: u64) -> Option<(u32, bool)> {
        let pending = self.pending.iter().find(|p| p.id == id)?;
        match pending.waiting {
            crate::requests::Waiting::Got(consumer, no_ack) => Some((consumer, no_ack)),
            _ => None,
        }
    }
}
