//! The connection: handshake, channel 0, and the hand-out of frames to channels.
//!
//! ```text
//!                                                                 ┌──▶ Ending ──┐
//! Header ──▶ StartOk (─▶ Login) ──▶ TuneOk ──▶ Open ──▶ Running ──┼──▶ Closing ─┼──▶ Closed
//!    └──────────┴───────────┴──────────┴─────────┘                └─────────────┘
//! ```
//! During the handshake and where the peer cannot be talked to, a close leads to Closed at once; faults lead to Closing in all phases but Header.
//! Ending: the client has closed; close-ok follows when exclusive queues are gone and queues have back what was held.
//! Closing: the server has sent connection.close and waits for close-ok; all other frames are ignored.

use crate::channel::{Channel, State};
use crate::consumers::ConsumerEntry;
use crate::publish::whole_publish;
use crate::{Fault, Flow, Host, MessageCounts, Reply, Request};
use bytes::Buf;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use warren_model::SessionId;
use warren_protocol as wire;
use warren_protocol::{
    CHANNEL_ERROR, COMMAND_INVALID, CONNECTION_FORCED, FRAME_ERROR, FrameKind, Method, NOT_ALLOWED,
    RawFrame, ShortStr, UNEXPECTED_FRAME, method_id, parse_frame, write_heartbeat,
};

/// Before tuning, a frame may be this long: client properties are small.
const HANDSHAKE_FRAME_MAX: u32 = 64 * 1024;
/// When channels have so many bytes of frames waiting for replies, the connection is not read from.
const BACKLOG_MAX: usize = 1024 * 1024;

/// What the server says of itself in connection.start.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Version of RabbitMQ's behaviour that clients may count on: some, kombu among them, choose by product and version.
    pub compatible_version: String,
    /// Warren's own version.
    pub version: String,
    /// Cluster name.
    pub cluster_name: String,
    /// Node name.
    pub node_name: String,
}

/// What the server offers and allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Highest channel number; 0: no limit.
    pub channel_max: u16,
    /// Largest frame in bytes; 0: no limit.
    pub frame_max: u32,
    /// Suggested heartbeat, in seconds; 0: none.
    pub heartbeat_s: u16,
    /// Largest message body in bytes.
    pub message_max: u64,
}

impl Default for Limits {
    /// RabbitMQ's.
    fn default() -> Self {
        Self {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat_s: 60,
            message_max: 16 * 1024 * 1024,
        }
    }
}

/// Where the connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Waits for the protocol header.
    Header,
    /// Waits for connection.start-ok.
    StartOk,
    /// Waits for the host's verdict on the login; the client is not listened to meanwhile.
    Login,
    /// Waits for connection.tune-ok.
    TuneOk,
    /// Waits for connection.open.
    Open,
    /// In use.
    Running,
    /// The client has closed; close-ok follows when all that belonged to the connection is gone.
    Ending,
    /// Waits for connection.close-ok.
    Closing,
    /// Over: write out what is left and close the socket.
    Closed,
}

/// What channels share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) out: Vec<u8>,
    pub(crate) session: SessionId,
    pub(crate) frame_max: u32,
    pub(crate) message_max: u64,
    pub(crate) user: String,
    pub(crate) vhost: String,
    pub(crate) consumers: BTreeMap<u32, ConsumerEntry>,
    pub(crate) last_consumer: u32,
    pub(crate) consumer_cancel_notify: bool,
    /// Channels with confirms to flush.
    pub(crate) dirty: Vec<u16>,
    /// Set by a channel that has just been closed.
    pub(crate) channel_closed: bool,
    /// The highest number that a publish of a closed channel had.
    pub(crate) last_sequence: u64,
    /// Requests without an answer, or whose answer waits for an earlier one's, over all channels.
    pub(crate) under_way: usize,
    /// What all channels did.
    pub(crate) counts: MessageCounts,
    /// Bytes of publishes that have begun to arrive, over all channels.
    pub(crate) unfinished: Arc<AtomicU64>,
    /// Bytes of channels' frames that wait.
    backlog: usize,
    last_request: u64,
}

impl Core {
    pub(crate) fn next_request(&mut self) -> u64 {
        self.last_request += 1;
        self.last_request
    }
}

/// A client connection.
#[derive(Debug)]
pub struct Session {
    pub(crate) core: Core,
    /// By channel number.
    pub(crate) channels: Vec<Option<Box<Channel>>>,
    /// How many of them there are.
    open_channels: usize,
    pub(crate) phase: Phase,
    pub(crate) identity: Identity,
    pub(crate) limits: Limits,
    pub(crate) channel_max: u16,
    pub(crate) heartbeat_s: u16,
    pub(crate) authentication_failure_close: bool,
    pub(crate) connection_blocked: bool,
    blocked: bool,
    /// The fence whose answer ends the connection, in phase Ending.
    last_fence: Option<u64>,
    pub(crate) client: String,
    /// What the client said of itself: raw field table entries.
    pub(crate) client_properties: Vec<u8>,
    pub(crate) mechanism: String,
    /// The user that the client's certificate stands for: it may log in with EXTERNAL.
    pub(crate) certified: Option<String>,
    /// A login was refused, for the log.
    pub(crate) refused_login: Option<String>,
}

/// What [`Session::step`] did.
pub(crate) enum Step {
    Consumed(usize),
    /// Nothing: more bytes are needed, or the host must be able to take publishes again.
    Wait,
}

impl Session {
    /// A connection that has just been accepted.
    pub fn new(session: SessionId, identity: Identity, limits: Limits) -> Self {
        let core = Core {
            out: Vec::new(),
            session,
            frame_max: HANDSHAKE_FRAME_MAX,
            message_max: limits.message_max,
            user: String::new(),
            vhost: String::new(),
            consumers: BTreeMap::new(),
            last_consumer: 0,
            consumer_cancel_notify: false,
            dirty: Vec::new(),
            channel_closed: false,
            last_sequence: 0,
            under_way: 0,
            counts: MessageCounts::default(),
            unfinished: Arc::default(),
            backlog: 0,
            last_request: 0,
        };
        Self {
            core,
            channels: Vec::new(),
            open_channels: 0,
            phase: Phase::Header,
            identity,
            limits,
            channel_max: 0,
            heartbeat_s: 0,
            authentication_failure_close: false,
            connection_blocked: false,
            blocked: false,
            last_fence: None,
            client: String::new(),
            client_properties: Vec::new(),
            mechanism: String::new(),
            certified: None,
            refused_login: None,
        }
    }

    /// Offers SASL EXTERNAL: the client has shown a certificate, checked by the host, that stands for this user. Before the first input.
    pub fn set_certified(&mut self, user: String) {
        self.certified = Some(user);
    }

    /// Where the connection stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes to send; the host takes them from the front.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.core.out
    }

    /// The negotiated heartbeat in seconds, 0 for none; known from phase Open on.
    pub fn heartbeat_s(&self) -> u16 {
        self.heartbeat_s
    }

    /// The user, once logged in.
    pub fn user(&self) -> &str {
        &self.core.user
    }

    /// The virtual host, once opened.
    pub fn vhost(&self) -> &str {
        &self.core.vhost
    }

    /// What the client calls itself.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// What the client says of itself, as raw field table entries.
    pub fn client_properties(&self) -> &[u8] {
        &self.client_properties
    }

    /// The SASL mechanism that the client chose.
    pub fn mechanism(&self) -> &str {
        &self.mechanism
    }

    /// The highest channel number that was agreed on, and the largest frame; 0 for no limit.
    pub fn tuned(&self) -> (u16, u32) {
        (self.channel_max, self.core.frame_max)
    }

    /// Whether the client has been told that publishing is blocked.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Why a login was refused, if one was.
    pub fn refused_login(&self) -> Option<&str> {
        self.refused_login.as_deref()
    }

    /// Open channels.
    pub fn channel_count(&self) -> usize {
        self.open_channels
    }

    /// Takes bytes from the client, and returns how many of them it is done with. Offer the rest again with more behind it, or, when all of it was
    /// there already, after something has changed: a reply, or the host's ability to take publishes.
    pub fn input(&mut self, buf: &[u8], host: &mut impl Host) -> usize {
        let mut done = 0;
        while done < buf.len() {
            match self.step(&buf[done..], host) {
                Step::Consumed(n) => done += n,
                Step::Wait => break,
            }
        }
        done
    }

    #[inline]
    fn step(&mut self, buf: &[u8], host: &mut impl Host) -> Step {
        match self.phase {
            Phase::Running => {}
            Phase::Ending | Phase::Closed => return Step::Consumed(buf.len()),
            Phase::Header => return self.protocol_header(buf),
            Phase::Login => return Step::Wait,
            Phase::StartOk | Phase::TuneOk | Phase::Open | Phase::Closing => {
                return self.frame(buf, host);
            }
        }
        if let Some((number, whole, len)) =
            whole_publish(buf, self.frame_limit(), self.core.message_max)
            && let Some(channel) = self
                .channels
                .get_mut(usize::from(number))
                .and_then(Option::as_deref_mut)
            && channel.takes_publishes()
        {
            return match channel.accept(&mut self.core, &whole, host) {
                Ok(Flow::Done) => Step::Consumed(len),
                Ok(Flow::Hold | Flow::Stall) => Step::Wait,
                Err(fault) => {
                    self.fault(number, fault, (60, 40), host);
                    Step::Consumed(len)
                }
            };
        }
        self.frame(buf, host)
    }

    fn frame(&mut self, buf: &[u8], host: &mut impl Host) -> Step {
        let frame = match parse_frame(buf, self.frame_limit()) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Step::Wait,
            Err(error) => {
                self.close(
                    error.reply_code(),
                    &format!("FRAME_ERROR - {error}"),
                    (0, 0),
                    host,
                );
                // There is no telling where the next frame begins, so close-ok cannot be waited for.
                self.phase = Phase::Closed;
                return Step::Consumed(buf.len());
            }
        };
        let len = frame.wire_len();
        if frame.kind == FrameKind::Heartbeat {
            if !frame.payload.is_empty() {
                self.close(
                    FRAME_ERROR,
                    "FRAME_ERROR - heartbeat frame with a payload",
                    (0, 0),
                    host,
                );
            } else if frame.channel != 0 {
                self.close(
                    UNEXPECTED_FRAME,
                    "UNEXPECTED_FRAME - heartbeat frame on a channel other than 0",
                    (0, 0),
                    host,
                );
            }
            return Step::Consumed(len);
        }
        match self.phase {
            Phase::Running if frame.channel != 0 => {
                match self.channel_frame(&frame, &buf[..len], host) {
                    Flow::Done => Step::Consumed(len),
                    Flow::Stall | Flow::Hold => Step::Wait,
                }
            }
            Phase::Closing => {
                self.frame_while_closing(&frame);
                Step::Consumed(len)
            }
            Phase::Header
            | Phase::StartOk
            | Phase::Login
            | Phase::TuneOk
            | Phase::Open
            | Phase::Running
            | Phase::Ending
            | Phase::Closed => {
                if let Err(fault) = self.connection_frame(&frame, host) {
                    let method = method_id(frame.payload)
                        .filter(|_| frame.kind == FrameKind::Method)
                        .unwrap_or_default();
                    self.fault(0, fault, method, host);
                }
                Step::Consumed(len)
            }
        }
    }

    fn frame_limit(&self) -> u32 {
        match self.phase {
            Phase::Header | Phase::StartOk | Phase::Login | Phase::TuneOk => HANDSHAKE_FRAME_MAX,
            // No limit agreed: a whole message in one frame, with room for its frame.
            Phase::Open | Phase::Running | Phase::Ending | Phase::Closing | Phase::Closed
                if self.core.frame_max == 0 =>
            {
                u32::try_from(self.core.message_max).unwrap_or(u32::MAX)
            }
            Phase::Open | Phase::Running | Phase::Ending | Phase::Closing | Phase::Closed => {
                self.core.frame_max
            }
        }
    }

    /// A frame on a channel's number. `raw` is the whole frame.
    fn channel_frame(&mut self, frame: &RawFrame<'_>, raw: &[u8], host: &mut impl Host) -> Flow {
        let waits = self
            .channels
            .get(usize::from(frame.channel))
            .and_then(Option::as_deref)
            .is_some_and(|c| !c.backlog.is_empty());
        if !waits {
            match self.dispatch(frame, host) {
                flow @ (Flow::Done | Flow::Hold) => return flow,
                Flow::Stall => {}
            }
        }
        if self.core.backlog + raw.len() > BACKLOG_MAX {
            return Flow::Stall;
        }
        if let Some(channel) = self
            .channels
            .get_mut(usize::from(frame.channel))
            .and_then(Option::as_deref_mut)
        {
            channel.backlog.extend_from_slice(raw);
            self.core.backlog += raw.len();
        }
        Flow::Done
    }

    /// Hands a frame to its channel, or opens that.
    fn dispatch(&mut self, frame: &RawFrame<'_>, host: &mut impl Host) -> Flow {
        let number = frame.channel;
        let Some(channel) = self
            .channels
            .get_mut(usize::from(number))
            .and_then(Option::as_deref_mut)
        else {
            self.open_channel(frame, host);
            return Flow::Done;
        };
        let result = match channel.state {
            State::Closing => {
                channel.frame_while_closing(&mut self.core, frame);
                Ok(Flow::Done)
            }
            State::Open => channel.frame(&mut self.core, frame, host),
        };
        self.remove_closed(number);
        result.unwrap_or_else(|fault| {
            self.fault(number, fault, method_of(frame), host);
            Flow::Done
        })
    }

    fn open_channel(&mut self, frame: &RawFrame<'_>, host: &mut impl Host) {
        let number = frame.channel;
        if frame.kind != FrameKind::Method || method_id(frame.payload) != Some((20, 10)) {
            self.close(
                CHANNEL_ERROR,
                "CHANNEL_ERROR - expected 'channel.open'",
                method_of(frame),
                host,
            );
            return;
        }
        if self.channel_max != 0 && number > self.channel_max {
            let text = format!(
                "NOT_ALLOWED - channel number {number} is beyond the negotiated channel_max ({})",
                self.channel_max
            );
            self.close(NOT_ALLOWED, &text, (20, 10), host);
            return;
        }
        if let Err(error) = Method::decode(frame.payload) {
            self.fault(0, error.into(), (20, 10), host);
            return;
        }
        if let Err(refusal) = host.open_channel(self.open_channels) {
            let text = format!("NOT_ALLOWED - {}", refusal.text);
            self.close(NOT_ALLOWED, &text, (0, 0), host);
            return;
        }
        let index = usize::from(number);
        if self.channels.len() <= index {
            self.channels.resize_with(index + 1, || None);
        }
        self.channels[index] = Some(Box::new(Channel::new(number)));
        self.open_channels += 1;
        Method::ChannelOpenOk.write(number, &mut self.core.out);
    }

    fn remove_closed(&mut self, number: u16) {
        if std::mem::take(&mut self.core.channel_closed) {
            self.channels[usize::from(number)] = None;
            self.open_channels = self.open_channels.saturating_sub(1);
        }
    }

    /// The answer to a request of a channel; on channel 0, of the connection.
    pub fn reply(&mut self, number: u16, id: u64, reply: Reply, host: &mut impl Host) {
        if self.phase == Phase::Ending && number == 0 && self.last_fence == Some(id) {
            Method::ConnectionCloseOk.write(0, &mut self.core.out);
            self.phase = Phase::Closed;
        }
        if self.phase != Phase::Running {
            return;
        }
        let Some(channel) = self
            .channels
            .get_mut(usize::from(number))
            .and_then(Option::as_deref_mut)
        else {
            return;
        };
        if let Err((fault, method)) = channel.answered(&mut self.core, id, reply, host) {
            self.fault(number, fault, method, host);
        }
        self.remove_closed(number);
        self.drain(number, host);
    }

    /// Goes on with frames that waited, of all channels: after the host can take publishes again.
    pub fn resume(&mut self, host: &mut impl Host) {
        for index in 0..self.channels.len() {
            self.drain(index as u16, host);
        }
    }

    fn drain(&mut self, number: u16, host: &mut impl Host) {
        let index = usize::from(number);
        let Some(channel) = self.channels.get_mut(index).and_then(Option::as_deref_mut) else {
            return;
        };
        if channel.backlog.is_empty() {
            return;
        }
        let mut backlog = std::mem::take(&mut channel.backlog);
        let limit = self.frame_limit();
        while self.phase == Phase::Running
            && let Ok(Some(frame)) = parse_frame(&backlog, limit)
        {
            let len = frame.wire_len();
            match self.dispatch(&frame, host) {
                Flow::Done => {
                    backlog.advance(len);
                    self.core.backlog = self.core.backlog.saturating_sub(len);
                }
                Flow::Stall | Flow::Hold => break,
            }
        }
        // A channel that is gone has taken all of it, or the connection is over.
        if let Some(channel) = self.channels.get_mut(index).and_then(Option::as_deref_mut) {
            channel.backlog = backlog;
        }
    }

    /// Channels with frames that wait; their confirms and replies will set them going, or [`Session::resume`].
    pub fn has_backlog(&self) -> bool {
        self.channels
            .iter()
            .flatten()
            .any(|c| !c.backlog.is_empty())
    }

    /// One outcome of a publish.
    #[inline]
    pub fn confirm(&mut self, number: u16, sequence: u64, ok: bool) {
        if let Some(channel) = self
            .channels
            .get_mut(usize::from(number))
            .and_then(Option::as_deref_mut)
            && let Some(confirms) = &mut channel.confirms
        {
            confirms.settle(sequence, ok);
            channel.confirm_soon(&mut self.core);
        }
    }

    /// Writes the acks and nacks that are due.
    pub fn flush_confirms(&mut self) {
        while let Some(number) = self.core.dirty.pop() {
            if let Some(channel) = self
                .channels
                .get_mut(usize::from(number))
                .and_then(Option::as_deref_mut)
            {
                channel.dirty = false;
                channel.flush_confirms(&mut self.core);
            }
        }
    }

    fn fault(&mut self, number: u16, fault: Fault, method: (u16, u16), host: &mut impl Host) {
        match fault {
            Fault::Channel(code, text) if number != 0 => {
                if let Some(channel) = self
                    .channels
                    .get_mut(usize::from(number))
                    .and_then(Option::as_deref_mut)
                {
                    channel.fail(&mut self.core, code, &text, method, host);
                }
            }
            Fault::Channel(code, text) | Fault::Connection(code, text) => {
                self.close(code, &text, method, host)
            }
        }
    }

    /// The server closes the connection. `text` begins with the code's name.
    pub fn close(&mut self, code: u16, text: &str, method: (u16, u16), host: &mut impl Host) {
        if matches!(self.phase, Phase::Ending | Phase::Closing | Phase::Closed) {
            return;
        }
        if self.phase == Phase::Header {
            // Nobody there who is known to understand a close.
            self.phase = Phase::Closed;
            return;
        }
        self.flush_confirms();
        self.release_channels(host);
        let close = wire::ConnectionClose {
            reply_code: code,
            reply_text: ShortStr::truncated(text),
            class_id: method.0,
            method_id: method.1,
        };
        Method::ConnectionClose(close).write(0, &mut self.core.out);
        self.phase = Phase::Closing;
    }

    /// An operator or the node itself ends the connection (320).
    pub fn force_close(&mut self, why: &str, host: &mut impl Host) {
        self.close(
            CONNECTION_FORCED,
            &format!("CONNECTION_FORCED - {why}"),
            (0, 0),
            host,
        );
    }

    fn release_channels(&mut self, host: &mut impl Host) {
        for consumer in std::mem::take(&mut self.core.consumers).into_keys() {
            host.release(consumer);
        }
        self.channels.clear();
        self.open_channels = 0;
        self.core.dirty.clear();
        (self.core.under_way, self.core.backlog) = (0, 0);
    }

    /// Adds a heartbeat to what is to be sent.
    pub fn heartbeat(&mut self) {
        write_heartbeat(&mut self.core.out);
    }

    /// An alarm starts or ends: clients that understand it are told, once each.
    pub fn set_blocked(&mut self, reason: Option<&str>) {
        if self.phase != Phase::Running
            || !self.connection_blocked
            || self.blocked == reason.is_some()
        {
            return;
        }
        self.blocked = reason.is_some();
        match reason {
            Some(reason) => Method::ConnectionBlocked(wire::ConnectionBlocked {
                reason: ShortStr::truncated(reason),
            })
            .write(0, &mut self.core.out),
            None => Method::ConnectionUnblocked.write(0, &mut self.core.out),
        }
    }

    fn frame_while_closing(&mut self, frame: &RawFrame<'_>) {
        if frame.channel != 0 || frame.kind != FrameKind::Method {
            return;
        }
        match method_id(frame.payload) {
            Some((10, 50)) => {
                Method::ConnectionCloseOk.write(0, &mut self.core.out);
                self.phase = Phase::Closed;
            }
            Some((10, 51)) => self.phase = Phase::Closed,
            Some(_) | None => {}
        }
    }

    /// A frame on channel 0, or any during the handshake.
    fn connection_frame(
        &mut self,
        frame: &RawFrame<'_>,
        host: &mut impl Host,
    ) -> Result<(), Fault> {
        if frame.channel != 0 {
            return Err(crate::channel::unexpected("the connection is not open yet"));
        }
        if frame.kind != FrameKind::Method {
            return Err(crate::channel::unexpected(
                "expected method frame on channel 0, got non method frame instead",
            ));
        }
        match (self.phase, Method::decode(frame.payload)?) {
            (Phase::StartOk, Method::ConnectionStartOk(m)) => self.start_ok(&m, host),
            (Phase::TuneOk, Method::ConnectionTuneOk(m)) => self.tune_ok(&m),
            (Phase::Open, Method::ConnectionOpen(m)) => self.connection_open(&m, host),
            (_, Method::ConnectionClose(_)) => {
                self.flush_confirms();
                self.release_channels(host);
                if self.phase == Phase::Running {
                    // Close-ok says that exclusive queues are gone and what was held is back.
                    self.phase = Phase::Ending;
                    let id = self.core.next_request();
                    self.last_fence = Some(id);
                    host.request(0, id, Request::Fence);
                } else {
                    Method::ConnectionCloseOk.write(0, &mut self.core.out);
                    self.phase = Phase::Closed;
                }
                Ok(())
            }
            (Phase::Running, Method::ConnectionUpdateSecret(_)) => {
                // Passwords do not expire, so there is nothing to renew.
                Method::ConnectionUpdateSecretOk.write(0, &mut self.core.out);
                Ok(())
            }
            (Phase::Running, Method::ConnectionBlocked(_) | Method::ConnectionUnblocked) => Ok(()),
            (Phase::Running, _) => {
                let text = "CHANNEL_ERROR - unexpected method in connection state running";
                Err(Fault::Connection(CHANNEL_ERROR, text.into()))
            }
            (phase, method) => {
                let text = format!(
                    "COMMAND_INVALID - unexpected method '{}' on channel 0 in state {phase:?}",
                    method.name()
                );
                Err(Fault::Connection(COMMAND_INVALID, text))
            }
        }
    }
}

fn method_of(frame: &RawFrame<'_>) -> (u16, u16) {
    match frame.kind {
        FrameKind::Method => method_id(frame.payload).unwrap_or_default(),
        // A fault in content is basic.publish's.
        FrameKind::Header | FrameKind::Body | FrameKind::Heartbeat => (60, 40),
    }
}
