//! The session's side of its consumers: what they are delivered, and the prefetch limit that a channel's consumers share.

use crate::basic::short;
use crate::channel::{Channel, State};
use crate::connection::{Core, Session};
use crate::requests::Waiting;
use crate::unacked::NOT_HELD;
use crate::{Fault, Host, Reply, host::Got};
use std::collections::VecDeque;
use warren_model::Credit;
use warren_model::message::Message;
use warren_protocol::{
    BasicCancel, BasicGetOk, CLASS_BASIC, Method, RESOURCE_ERROR, write_content, write_deliver,
};

/// Credit goes back to a queue's owner in pieces of at least so many bytes.
const CREDIT_PIECE: u32 = Credit::WINDOW.bytes / 8;
/// Bytes of a consumer's arguments that are kept at most: a connection may have many consumers.
const SHOWN_ARGUMENTS_MAX: usize = 1024;

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
    /// To show to operators: raw entries of a field table, none of one that is large.
    pub(crate) arguments: Box<[u8]>,
    pub(crate) no_ack: bool,
    pub(crate) by_leave: bool,
    /// Subscribed; a getter never is.
    pub(crate) active: bool,
    /// consume-ok is written.
    pub(crate) confirmed: bool,
    /// Its queue went away before consume-ok could be written.
    pub(crate) lost: bool,
    /// Gets are outside of prefetch limits.
    getter: bool,
    unacked: u32,
    credit_due: u32,
    /// Leave that it was granted and has not used or given back.
    granted: u32,
    /// Listed among those that wait for leave.
    waiting: bool,
}

impl ConsumerEntry {
    pub(crate) fn new(channel: u16, tag: Vec<u8>, no_ack: bool, by_leave: bool) -> Self {
        Self {
            channel,
            tag,
            arguments: Box::default(),
            no_ack,
            by_leave,
            active: true,
            confirmed: false,
            lost: false,
            getter: false,
            unacked: 0,
            credit_due: 0,
            granted: 0,
            waiting: false,
        }
    }

    /// Remembers what it was declared with.
    pub(crate) fn with_arguments(mut self, arguments: &[u8]) -> Self {
        if arguments.len() <= SHOWN_ARGUMENTS_MAX {
            self.arguments = arguments.into();
        }
        self
    }

    pub(crate) fn getter(channel: u16) -> Self {
        Self {
            active: false,
            getter: true,
            ..Self::new(channel, Vec::new(), false, false)
        }
    }

    pub(crate) fn holds_messages(&self) -> bool {
        self.unacked > 0
    }

    /// The owner forgets leave when it hears of this, and so does the session.
    pub(crate) fn set_by_leave(&mut self, by_leave: bool) {
        (self.by_leave, self.granted, self.waiting) = (by_leave, 0, false);
    }
}

/// basic.qos with global: at most `limit` unacknowledged deliveries over all consumers of a channel.
/// Owners ask for leave; all of the room is granted to one at a time, which gives back at once what it cannot use.
/// Invariant: `granted` is the sum of the channel's consumers' own, so what a consumer that goes had of it is free again.
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
    fn room(&self) -> u32 {
        self.limit
            .saturating_sub(self.used)
            .saturating_sub(self.granted)
    }

    /// The limit is set or lifted: whoever needs leave asks anew.
    pub(crate) fn forget_leave(&mut self) {
        self.granted = 0;
        self.waiting.clear();
    }

    /// `consumer` goes.
    fn leaves(&mut self, number: u32, entry: &mut ConsumerEntry) {
        self.granted -= std::mem::take(&mut entry.granted);
        if std::mem::take(&mut entry.waiting) {
            self.waiting.retain(|&n| n != number);
        }
    }
}

impl Core {
    pub(crate) fn add_consumer(&mut self, entry: ConsumerEntry) -> Result<u32, Fault> {
        let Some(number) = self.last_consumer.checked_add(1) else {
            return Err(Fault::Connection(RESOURCE_ERROR, "RESOURCE_ERROR - this connection has used up its consumer numbers; open another one".into()));
        };
        self.last_consumer = number;
        self.consumers.insert(number, entry);
        Ok(number)
    }

    /// Grants what room there is to the first consumer that waits for it.
    pub(crate) fn serve(&mut self, shared: &mut SharedLimit, host: &mut impl Host) {
        while shared.room() > 0
            && let Some(number) = shared.waiting.pop_front()
        {
            let Some(entry) = self.consumers.get_mut(&number) else {
                continue;
            };
            let room = shared.room();
            entry.waiting = false;
            entry.granted += room;
            shared.granted += room;
            host.grant(number, room);
        }
    }

    /// A consumer is no longer subscribed; its entry stays while it holds messages.
    pub(crate) fn consumer_gone(
        &mut self,
        number: u32,
        shared: &mut SharedLimit,
        host: &mut impl Host,
    ) {
        let Some(entry) = self.consumers.get_mut(&number) else {
            return;
        };
        entry.active = false;
        shared.leaves(number, entry);
        if !entry.holds_messages() {
            self.consumers.remove(&number);
        }
        self.serve(shared, host);
    }

    #[inline]
    pub(crate) fn settled(&mut self, number: u32, shared: &mut SharedLimit) {
        let Some(entry) = self.consumers.get_mut(&number) else {
            return;
        };
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
    /// A message for a consumer. What comes for a channel that is closed is dropped, and false comes back: its owner puts it back when it hears of the close.
    #[inline]
    pub fn deliver(&mut self, d: &Delivered<'_>, host: &mut impl Host) -> bool {
        let core = &mut self.core;
        let Some(entry) = core.consumers.get_mut(&d.consumer) else {
            return false;
        };
        let Some(channel) = self
            .channels
            .get_mut(usize::from(entry.channel))
            .and_then(Option::as_deref_mut)
        else {
            return false;
        };
        if channel.state != State::Open {
            return false;
        }
        channel.last_tag += 1;
        let tag = channel.last_tag;
        for counts in [&mut channel.counts.now, &mut core.counts] {
            counts.redeliver += u64::from(d.redelivered);
            if entry.no_ack {
                counts.deliver_no_ack += 1;
            } else {
                counts.deliver += 1;
            }
        }
        if !entry.no_ack {
            channel.unacked.push(tag, d.consumer, d.position);
            entry.unacked += 1;
            channel.shared.used += 1;
            if entry.granted > 0 {
                entry.granted -= 1;
                channel.shared.granted -= 1;
            }
        }
        let m = &d.message;
        write_deliver(
            &mut core.out,
            entry.channel,
            core.frame_max,
            &entry.tag,
            tag,
            d.redelivered,
            m.exchange,
            m.routing_key,
            m.properties,
            m.body,
        );
        entry.credit_due += m.record_len() as u32 + Credit::OVERHEAD;
        if entry.credit_due >= CREDIT_PIECE {
            host.credit(d.consumer, std::mem::take(&mut entry.credit_due));
        }
        true
    }

    /// The message that a [`crate::Request::Get`] found.
    pub fn got(&mut self, channel: u16, id: u64, got: &Got<'_>, host: &mut impl Host) {
        let core = &mut self.core;
        let Some(ch) = self
            .channels
            .get_mut(usize::from(channel))
            .and_then(Option::as_deref_mut)
        else {
            return;
        };
        let Some((consumer, no_ack)) = ch.get_under_way(id) else {
            return;
        };
        ch.last_tag += 1;
        let tag = ch.last_tag;
        let redelivered = u64::from(got.redelivered);
        ch.count(core, |counts| {
            counts.redeliver += redelivered;
            if no_ack {
                counts.get_no_ack += 1;
            } else {
                counts.get += 1;
            }
        });
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
        write_content(
            &mut core.out,
            channel,
            core.frame_max,
            CLASS_BASIC,
            m.properties,
            m.body,
        );
        self.reply(channel, id, Reply::Done, host);
    }

    /// Everything that waits for an acknowledgement: consumer and position, for a queue's new leader that does not know.
    pub fn each_held(&self, mut each: impl FnMut(u32, u64)) {
        for channel in self.channels.iter().flatten() {
            let held = channel.unacked.iter().filter(|u| u.position != NOT_HELD);
            for unacked in held {
                each(unacked.consumer, unacked.position);
            }
        }
    }

    /// A queue's leader says what a consumer does not hold of what it said it does: while its link was cut, others were given it. The client may settle it, to no
    /// effect.
    pub fn lost(&mut self, consumer: u32, positions: &[u64]) {
        for channel in self.channels.iter_mut().flatten() {
            channel.unacked.lose(consumer, positions);
        }
    }

    /// A queue's owner has messages for a consumer that needs leave.
    pub fn wants_leave(&mut self, consumer: u32, host: &mut impl Host) {
        let Some(entry) = self.core.consumers.get_mut(&consumer) else {
            return;
        };
        let Some(channel) = open(&mut self.channels, entry.channel) else {
            return;
        };
        // If it needs none any more its owner is about to hear so.
        if entry.active && entry.by_leave && !entry.waiting {
            entry.waiting = true;
            channel.shared.waiting.push_back(consumer);
        }
        self.core.serve(&mut channel.shared, host);
    }

    /// Leave that was granted and not used. After a change of owner, which may have taken leave with it: `u32::MAX`, all there was.
    pub fn leave_back(&mut self, consumer: u32, unused: u32, host: &mut impl Host) {
        let Some(entry) = self.core.consumers.get_mut(&consumer) else {
            return;
        };
        let Some(channel) = open(&mut self.channels, entry.channel) else {
            return;
        };
        let unused = unused.min(entry.granted);
        entry.granted -= unused;
        channel.shared.granted -= unused;
        self.core.serve(&mut channel.shared, host);
    }

    /// A consumer's queue is gone, or its owner is: the consumer is told, if the client announced that it understands.
    pub fn cancelled(&mut self, consumer: u32, host: &mut impl Host) {
        let Some(entry) = self.core.consumers.get_mut(&consumer) else {
            return;
        };
        if !entry.active {
            return;
        }
        if !entry.confirmed {
            // The client does not know of it yet: first consume-ok, then this.
            entry.lost = true;
            return;
        }
        if let Some(channel) = open(&mut self.channels, entry.channel) {
            channel.cancel_by_server(&mut self.core, consumer, host);
        }
    }
}

fn open(channels: &mut [Option<Box<Channel>>], number: u16) -> Option<&mut Channel> {
    channels.get_mut(usize::from(number))?.as_deref_mut()
}

impl Channel {
    pub(crate) fn cancel_by_server(
        &mut self,
        core: &mut Core,
        consumer: u32,
        host: &mut impl Host,
    ) {
        let Some(entry) = core.consumers.get(&consumer) else {
            return;
        };
        let tag = entry.tag.clone();
        // Not there: the client is cancelling it itself and will get its answer.
        let known = self.tags.get(&tag) == Some(&consumer);
        if known {
            self.tags.remove(&tag);
        }
        core.consumer_gone(consumer, &mut self.shared, host);
        if known && core.consumer_cancel_notify {
            Method::BasicCancel(BasicCancel {
                consumer_tag: short(&tag),
                no_wait: true,
            })
            .write(self.number, &mut core.out);
        }
    }

    /// The getter of the get with this id, if the channel still waits for it.
    fn get_under_way(&self, id: u64) -> Option<(u32, bool)> {
        let pending = self.pending.iter().find(|p| p.id == id)?;
        if let Waiting::Got(consumer, no_ack) = pending.waiting {
            Some((consumer, no_ack))
        } else {
            None
        }
    }
}
