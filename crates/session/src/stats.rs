//! What can be shown of a session: counts of what its channels did, and how they stand.
//!
//! Counts only grow. Rates are the host's affair, which has a clock: now and then it calls [`Session::mark`], and each channel then remembers its counts
//! of the last two marks to tell a rate by.

use crate::channel::State;
use crate::connection::Session;
use std::ops::{AddAssign, Sub};
use std::sync::atomic::Ordering;

/// How many messages went which way. The names are those of RabbitMQ's `message_stats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageCounts {
    /// Published.
    pub publish: u64,
    /// Publishes that were confirmed.
    pub confirm: u64,
    /// Mandatory publishes that no queue took, given back.
    pub return_unroutable: u64,
    /// Other publishes that no queue took.
    pub drop_unroutable: u64,
    /// Delivered to consumers that acknowledge.
    pub deliver: u64,
    /// Delivered to consumers that do not.
    pub deliver_no_ack: u64,
    /// Got, to be acknowledged.
    pub get: u64,
    /// Got without acknowledgement.
    pub get_no_ack: u64,
    /// Gets that found nothing.
    pub get_empty: u64,
    /// Delivered or got not for the first time.
    pub redeliver: u64,
    /// Acknowledged.
    pub ack: u64,
}

impl MessageCounts {
    /// Names and numbers, in a fixed order.
    pub fn fields(&self) -> [(&'static str, u64); 11] {
        [
            ("publish", self.publish),
            ("confirm", self.confirm),
            ("return_unroutable", self.return_unroutable),
            ("drop_unroutable", self.drop_unroutable),
            ("deliver", self.deliver),
            ("deliver_no_ack", self.deliver_no_ack),
            ("get", self.get),
            ("get_no_ack", self.get_no_ack),
            ("get_empty", self.get_empty),
            ("redeliver", self.redeliver),
            ("ack", self.ack),
        ]
    }

    fn each(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            publish: with(self.publish, other.publish),
            confirm: with(self.confirm, other.confirm),
            return_unroutable: with(self.return_unroutable, other.return_unroutable),
            drop_unroutable: with(self.drop_unroutable, other.drop_unroutable),
            deliver: with(self.deliver, other.deliver),
            deliver_no_ack: with(self.deliver_no_ack, other.deliver_no_ack),
            get: with(self.get, other.get),
            get_no_ack: with(self.get_no_ack, other.get_no_ack),
            get_empty: with(self.get_empty, other.get_empty),
            redeliver: with(self.redeliver, other.redeliver),
            ack: with(self.ack, other.ack),
        }
    }
}

impl AddAssign for MessageCounts {
    fn add_assign(&mut self, other: Self) {
        *self = self.each(other, u64::wrapping_add);
    }
}

impl Sub for MessageCounts {
    type Output = Self;

    /// What came since `earlier`; nothing where that is more.
    fn sub(self, earlier: Self) -> Self {
        self.each(earlier, u64::saturating_sub)
    }
}

/// A channel's counts now and at the last two marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marked {
    pub(crate) now: MessageCounts,
    last: MessageCounts,
    before_last: MessageCounts,
}

impl Marked {
    fn mark(&mut self) {
        self.before_last = std::mem::replace(&mut self.last, self.now);
    }
}

/// A channel as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelStatus {
    /// Its number.
    pub number: u16,
    /// Publishes are confirmed.
    pub confirm: bool,
    /// Publishes that wait for their outcome.
    pub unconfirmed: u64,
    /// Deliveries that wait for an acknowledgement.
    pub unacked: u64,
    /// Consumers.
    pub consumers: u32,
    /// Prefetch of each consumer to come; 0: no limit.
    pub prefetch: u32,
    /// Prefetch that the consumers share; 0: no limit.
    pub global_prefetch: u32,
    /// The server or the client is closing it.
    pub closing: bool,
    /// What it did.
    pub counts: MessageCounts,
    /// What it did since the mark before the last one.
    pub recent: MessageCounts,
}

/// A consumer as its session knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConsumerStatus<'a> {
    /// The number under which the host knows it.
    pub number: u32,
    /// Its channel.
    pub channel: u16,
    /// Its tag.
    pub tag: &'a [u8],
    /// What it was declared with, unless that is large: raw entries of a field table.
    pub arguments: &'a [u8],
    /// It does not acknowledge.
    pub no_ack: bool,
}

impl Session {
    /// What all channels did, those that are closed by now among them.
    pub fn counts(&self) -> MessageCounts {
        self.core.counts
    }

    /// Bytes that it keeps of publishes which have not arrived whole.
    pub fn unfinished_bytes(&self) -> u64 {
        self.core.unfinished.load(Ordering::Relaxed)
    }

    /// Remembers each channel's counts, to tell rates by.
    pub fn mark(&mut self) {
        for channel in self.channels.iter_mut().flatten() {
            channel.counts.mark();
        }
    }

    /// The channels, by number.
    pub fn channels(&self) -> impl Iterator<Item = ChannelStatus> + '_ {
        self.channels.iter().flatten().map(|channel| ChannelStatus {
            number: channel.number,
            confirm: channel.confirms.is_some(),
            unconfirmed: channel.confirms.as_ref().map_or(0, |c| c.unconfirmed()),
            unacked: channel.unacked.len() as u64,
            consumers: u32::try_from(channel.tags.len()).unwrap_or(u32::MAX),
            prefetch: channel.prefetch,
            global_prefetch: channel.shared.limit,
            closing: channel.state == State::Closing,
            counts: channel.counts.now,
            recent: channel.counts.now - channel.counts.before_last,
        })
    }

    /// The consumers that the client knows of, by number.
    pub fn consumers(&self) -> impl Iterator<Item = ConsumerStatus<'_>> {
        let known = self.core.consumers.iter();
        known
            .filter(|(_, entry)| entry.active && entry.confirmed)
            .map(|(&number, entry)| ConsumerStatus {
                number,
                channel: entry.channel,
                tag: &entry.tag,
                arguments: &entry.arguments,
                no_ack: entry.no_ack,
            })
    }
}
