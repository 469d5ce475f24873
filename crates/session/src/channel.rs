//! One channel's state, and what happens to a frame on it.
//!
//! ```text
//!            channel.open                    fault, or channel.close
//!   (none) ───────────────▶ Open ──────────────────────────────▶ Closing
//!      ▲                                                            │ close-ok, of either side
//!      └────────────────────────────────────────────────────────────┘
//! ```
//! While Closing, all frames but channel.close and channel.close-ok are ignored.
//! If the channel had consumers, or got messages, what closes it is said only when a [`Request::Fence`] behind their release is answered.
//! Until then a close-ok cannot mean the server's close, and a close of the client's is answered behind it.

use crate::confirms::Confirms;
use crate::connection::Core;
use crate::consumers::SharedLimit;
use crate::publish::Content;
use crate::requests::Pending;
use crate::stats::Marked;
use crate::unacked::UnackedTags;
use crate::{Fault, Flow, Host, MessageCounts, Request};
use bytes::BytesMut;
use std::collections::{BTreeMap, VecDeque};
use warren_model::Settlement;
use warren_protocol::{
    CHANNEL_ERROR, ChannelClose, ChannelFlowOk, FrameKind, Method, NOT_IMPLEMENTED, RawFrame,
    ShortStr, UNEXPECTED_FRAME, method_id,
};

/// So many queues that a channel gets from are remembered in any case.
pub(crate) const GETTERS_KEPT: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Open,
    Closing,
}

/// What closes a channel.
#[derive(Debug)]
enum Farewell {
    /// The client's close is answered.
    CloseOk,
    /// The server's own close; if the client's crosses it, close-ok for that follows.
    Close {
        code: u16,
        text: String,
        method: (u16, u16),
        crossed: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) number: u16,
    pub(crate) state: State,
    /// The publish whose content is arriving frame by frame.
    pub(crate) content: Option<Box<Content>>,
    pub(crate) confirms: Option<Confirms>,
    /// Listed among the channels whose confirms are to be flushed.
    pub(crate) dirty: bool,
    pub(crate) unacked: UnackedTags,
    pub(crate) last_tag: u64,
    /// Consumer tag to consumer number.
    pub(crate) tags: BTreeMap<Vec<u8>, u32>,
    /// Queue id to the number under which this channel's gets from it are held.
    pub(crate) getters: BTreeMap<u64, u32>,
    /// With so many getters, the idle ones are let go.
    pub(crate) getters_max: usize,
    /// Prefetch of consumers to come (basic.qos without global).
    pub(crate) prefetch: u32,
    pub(crate) shared: SharedLimit,
    /// Requests without an answer, or whose answer waits for an earlier one's.
    pub(crate) pending: VecDeque<Pending>,
    /// Whole frames that wait until `pending` is empty; the connection counts their bytes.
    pub(crate) backlog: BytesMut,
    /// What an empty queue name stands for.
    pub(crate) last_queue: Option<String>,
    /// What the channel did.
    pub(crate) counts: Marked,
    /// What is to be said when this fence is answered.
    farewell: Option<(u64, Farewell)>,
}

impl Channel {
    pub(crate) fn new(number: u16) -> Self {
        Self {
            number,
            state: State::Open,
            content: None,
            confirms: None,
            dirty: false,
            unacked: UnackedTags::default(),
            last_tag: 0,
            tags: BTreeMap::new(),
            getters: BTreeMap::new(),
            getters_max: GETTERS_KEPT,
            prefetch: 0,
            shared: SharedLimit::default(),
            pending: VecDeque::new(),
            backlog: BytesMut::new(),
            last_queue: None,
            counts: Marked::default(),
            farewell: None,
        }
    }

    /// A frame of an open channel. Faults close the channel or the connection; the caller knows which method to name.
    pub(crate) fn frame(
        &mut self,
        core: &mut Core,
        frame: &RawFrame<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        match frame.kind {
            FrameKind::Method => {
                if let Some(content) = &self.content {
                    return Err(unexpected(content.expects_but_got_method()));
                }
                self.method(core, Method::decode(frame.payload)?, host)
            }
            FrameKind::Header => self.content_header(core, frame.payload, host),
            FrameKind::Body => self.content_body(core, frame.payload, host),
            FrameKind::Heartbeat => Err(unexpected("heartbeat frame on a channel other than 0")),
        }
    }

    fn method(
        &mut self,
        core: &mut Core,
        method: Method<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if !self.pending.is_empty() && !self.may_overtake(core, &method) {
            return Ok(Flow::Stall);
        }
        match method {
            Method::BasicPublish(m) => self.begin_publish(&m),
            Method::BasicAck(m) => {
                let before = self.unacked.len();
                let flow = self.settle(core, m.delivery_tag, m.multiple, Settlement::Accept, host)?;
                let acked = (before - self.unacked.len()) as u64;
                self.count(core, |counts| counts.ack += acked);
                Ok(flow)
            }
            Method::BasicNack(m) => self.settle(core, m.delivery_tag, m.multiple, refuse(m.requeue), host),
            Method::BasicReject(m) => self.settle(core, m.delivery_tag, false, refuse(m.requeue), host),
            Method::BasicQos(m) => self.qos(core, &m, host),
            Method::BasicConsume(m) => self.consume(core, &m, host),
            Method::BasicCancel(m) => self.cancel(core, &m, host),
            Method::BasicGet(m) => self.get(core, &m, host),
            Method::BasicRecover(m) => self.recover(core, m.requeue, Some(Method::BasicRecoverOk), host),
            Method::BasicRecoverAsync(m) => self.recover(core, m.requeue, None, host),
            Method::ExchangeDeclare(m) => self.exchange_declare(core, &m, host),
            Method::ExchangeDelete(m) => self.exchange_delete(core, &m, host),
            Method::ExchangeBind(m) => self.exchange_bind(core, &m, host),
            Method::ExchangeUnbind(m) => self.exchange_unbind(core, &m, host),
            Method::QueueDeclare(m) => self.queue_declare(core, &m, host),
            Method::QueueBind(m) => self.queue_bind(core, &m, host),
            Method::QueueUnbind(m) => self.queue_unbind(core, &m, host),
            Method::QueuePurge(m) => self.queue_purge(core, &m, host),
            Method::QueueDelete(m) => self.queue_delete(core, &m, host),
            Method::ConfirmSelect(m) => {
                self.confirms.get_or_insert_with(|| Confirms::new(core.last_sequence));
                self.answer(core, m.no_wait, Method::ConfirmSelectOk)
            }
            Method::ChannelFlow(m) if m.active => self.answer(core, false, Method::ChannelFlowOk(ChannelFlowOk { active: true })),
            Method::ChannelFlow(_) => Err(Fault::Connection(NOT_IMPLEMENTED, "NOT_IMPLEMENTED - active=false".into())),
            Method::ChannelFlowOk(_) | Method::BasicCancelOk(_) => Ok(Flow::Done),
            Method::AccessRequest(_) => self.answer(core, false, Method::AccessRequestOk(warren_protocol::AccessRequestOk { ticket: 1 })),
            Method::ChannelOpen => Err(Fault::Connection(CHANNEL_ERROR, "CHANNEL_ERROR - second 'channel.open' seen".into())),
            Method::ChannelClose(_) => {
                self.flush_confirms(core);
                self.release_all(core, host, Farewell::CloseOk);
                Ok(Flow::Done)
            }
            Method::TxSelect | Method::TxCommit | Method::TxRollback => {
                Err(Fault::Connection(NOT_IMPLEMENTED, "NOT_IMPLEMENTED - transactions are not supported by this version; use publisher confirms".into()))
            }
            Method::ConnectionStart(_)
            | Method::ConnectionStartOk(_)
            | Method::ConnectionSecure(_)
            | Method::ConnectionSecureOk(_)
            | Method::ConnectionTune(_)
            | Method::ConnectionTuneOk(_)
            | Method::ConnectionOpen(_)
            | Method::ConnectionClose(_)
            | Method::ConnectionBlocked(_)
            | Method::ConnectionUpdateSecret(_)
            | Method::AccessRequestOk(_)
            | Method::QueueDeclareOk(_)
            | Method::QueuePurgeOk(_)
            | Method::QueueDeleteOk(_)
            | Method::BasicConsumeOk(_)
            | Method::BasicReturn(_)
            | Method::BasicDeliver(_)
            | Method::BasicGetOk(_)
            | Method::ConnectionOpenOk
            | Method::ConnectionCloseOk
            | Method::ConnectionUnblocked
            | Method::ConnectionUpdateSecretOk
            | Method::ChannelOpenOk
            | Method::ChannelCloseOk
            | Method::ExchangeDeclareOk
            | Method::ExchangeDeleteOk
            | Method::ExchangeBindOk
            | Method::ExchangeUnbindOk
            | Method::QueueBindOk
            | Method::QueueUnbindOk
            | Method::BasicQosOk
            | Method::BasicGetEmpty
            | Method::BasicRecoverOk
            | Method::ConfirmSelectOk
            | Method::TxSelectOk
            | Method::TxCommitOk
            | Method::TxRollbackOk => Err(Fault::Connection(
                warren_protocol::COMMAND_INVALID,
                format!("COMMAND_INVALID - method '{}' is not for a server, or not on this channel", method.name()),
            )),
        }
    }

    /// Counts something, for the channel and for the session.
    #[inline]
    pub(crate) fn count(&mut self, core: &mut Core, what: impl Fn(&mut MessageCounts)) {
        what(&mut self.counts.now);
        what(&mut core.counts);
    }

    /// Writes a reply unless the client wants none.
    pub(crate) fn answer(
        &self,
        core: &mut Core,
        no_wait: bool,
        method: Method<'_>,
    ) -> Result<Flow, Fault> {
        if !no_wait {
            method.write(self.number, &mut core.out);
        }
        Ok(Flow::Done)
    }

    /// Confirms that are due go before the channel does: what they cover was taken.
    pub(crate) fn flush_confirms(&mut self, core: &mut Core) {
        if let Some(confirms) = &mut self.confirms {
            let confirmed = confirms.flush(self.number, &mut core.out);
            self.count(core, |counts| counts.confirm += confirmed);
        }
    }

    /// Everything that the channel holds goes back to the queues, and its consumers go.
    /// The farewell is said when the queues know it: what the client does next, on whatever connection, finds the messages back.
    fn release_all(&mut self, core: &mut Core, host: &mut impl Host, farewell: Farewell) {
        let number = self.number;
        core.under_way -= self.pending.len();
        self.pending.clear();
        if let Some(confirms) = self.confirms.take() {
            core.last_sequence = core.last_sequence.max(confirms.next() - 1);
        }
        let mut held = false;
        core.consumers.retain(|&consumer, entry| {
            let ours = entry.channel == number;
            if ours {
                host.release(consumer);
            }
            held |= ours;
            !ours
        });
        *self = Self {
            state: State::Closing,
            backlog: std::mem::take(&mut self.backlog),
            counts: self.counts,
            ..Self::new(number)
        };
        if held {
            let id = core.next_request();
            self.farewell = Some((id, farewell));
            host.request(number, id, Request::Fence);
        } else {
            self.say_farewell(core, farewell);
        }
    }

    fn say_farewell(&self, core: &mut Core, farewell: Farewell) {
        match farewell {
            Farewell::CloseOk => {
                Method::ChannelCloseOk.write(self.number, &mut core.out);
                core.channel_closed = true;
            }
            Farewell::Close {
                code,
                text,
                method,
                crossed,
            } => {
                let close = ChannelClose {
                    reply_code: code,
                    reply_text: ShortStr::truncated(&text),
                    class_id: method.0,
                    method_id: method.1,
                };
                Method::ChannelClose(close).write(self.number, &mut core.out);
                if crossed {
                    Method::ChannelCloseOk.write(self.number, &mut core.out);
                }
            }
        }
    }

    /// The fence's answer, if it is the one that the channel waits for.
    pub(crate) fn fenced(&mut self, core: &mut Core, id: u64) {
        if let Some((_, farewell)) = self.farewell.take_if(|(fence, _)| *fence == id) {
            self.say_farewell(core, farewell);
        }
    }

    /// The server closes the channel.
    pub(crate) fn fail(
        &mut self,
        core: &mut Core,
        code: u16,
        text: &str,
        method: (u16, u16),
        host: &mut impl Host,
    ) {
        self.flush_confirms(core);
        self.release_all(
            core,
            host,
            Farewell::Close {
                code,
                text: text.to_owned(),
                method,
                crossed: false,
            },
        );
    }

    /// A frame while the channel is being closed.
    pub(crate) fn frame_while_closing(&mut self, core: &mut Core, frame: &RawFrame<'_>) {
        if frame.kind != FrameKind::Method {
            return;
        }
        match (method_id(frame.payload), &mut self.farewell) {
            (Some((20, 40)), None) => Method::ChannelCloseOk.write(self.number, &mut core.out),
            (Some((20, 40)), Some((_, Farewell::Close { crossed, .. }))) => *crossed = true,
            (Some((20, 41)), None) => core.channel_closed = true,
            // Its close is about to be answered, or there is nothing yet that close-ok could answer.
            (Some((20, 40)), Some((_, Farewell::CloseOk))) | (Some((20, 41)), Some(_)) => {}
            (Some(_) | None, _) => {}
        }
    }
}

fn refuse(requeue: bool) -> Settlement {
    if requeue {
        Settlement::Requeue
    } else {
        Settlement::Discard
    }
}

pub(crate) fn unexpected(text: &str) -> Fault {
    Fault::Connection(UNEXPECTED_FRAME, format!("UNEXPECTED_FRAME - {text}"))
}
