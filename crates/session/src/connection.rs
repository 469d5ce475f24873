//! The connection: handshake, channel 0, and the hand-out of frames to channels.
//!
//! ```text
//! Header ──▶ StartOk ──▶ TuneOk ──▶ Open ──▶ Running ──▶ Closing ──▶ Closed
//!    └──────────┴───────────┴─────────┴──────────┴──────────(peer closes, or cannot be talked to)──▲
//! ```
//! Closing: the server has sent connection.close and waits for close-ok; all other frames are ignored.

use crate::channel::{Channel, State};
use crate::consumers::ConsumerEntry;
use crate::publish::whole_publish;
use crate::{Fault, Flow, Host, Reply};
use std::collections::BTreeMap;
use warren_model::{Refusal, SessionId};
use warren_protocol as wire;
use warren_protocol::{
    CHANNEL_ERROR, COMMAND_INVALID, CONNECTION_FORCED, FRAME_MIN_SIZE, FRAME_OVERHEAD, FrameKind, Method, NOT_ALLOWED, OwnedTable, OwnedValue, PROTOCOL_HEADER, RawFrame, ShortStr, Table,
    UNEXPECTED_FRAME, method_id, parse_frame, write_heartbeat,
};

/// Before tuning, a frame may be this long: client properties are small.
const HANDSHAKE_FRAME_MAX: u32 = 64 * 1024;
/// When a channel has so many bytes of frames waiting for a reply, the connection is not read from.
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
        Self { channel_max: 2047, frame_max: 131_072, heartbeat_s: 60, message_max: 16 * 1024 * 1024 }
    }
}

/// Where the connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Waits for the protocol header.
    Header,
    /// Waits for connection.start-ok.
    StartOk,
    /// Waits for connection.tune-ok.
    TuneOk,
    /// Waits for connection.open.
    Open,
    /// In use.
    Running,
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
    phase: Phase,
    identity: Identity,
    limits: Limits,
    channel_max: u16,
    heartbeat_s: u16,
    authentication_failure_close: bool,
    connection_blocked: bool,
    blocked: bool,
    client: String,
    /// A login was refused, for the log.
    refused_login: Option<String>,
}

/// What [`Session::step`] did.
enum Step {
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
            last_request: 0,
        };
        Self {
            core,
            channels: Vec::new(),
            phase: Phase::Header,
            identity,
            limits,
            channel_max: 0,
            heartbeat_s: 0,
            authentication_failure_close: false,
            connection_blocked: false,
            blocked: false,
            client: String::new(),
            refused_login: None,
        }
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

    /// Why a login was refused, if one was.
    pub fn refused_login(&self) -> Option<&str> {
        self.refused_login.as_deref()
    }

    /// Open channels.
    pub fn channel_count(&self) -> usize {
        self.channels.iter().flatten().count()
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
            Phase::Closed => return Step::Consumed(buf.len()),
            Phase::Header => return self.protocol_header(buf),
            Phase::StartOk | Phase::TuneOk | Phase::Open | Phase::Closing => return self.frame(buf, host),
        }
        if let Some((number, whole, len)) = whole_publish(buf, self.core.frame_max, self.core.message_max)
            && let Some(channel) = self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut)
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
                self.close(error.reply_code(), &format!("FRAME_ERROR - {error}"), (0, 0), host);
                // There is no telling where the next frame begins, so close-ok cannot be waited for.
                self.phase = Phase::Closed;
                return Step::Consumed(buf.len());
            }
        };
        let len = frame.payload.len() + FRAME_OVERHEAD;
        if frame.kind == FrameKind::Heartbeat {
            if frame.channel != 0 && self.phase == Phase::Running {
                self.close(UNEXPECTED_FRAME, "UNEXPECTED_FRAME - heartbeat frame on a channel other than 0", (0, 0), host);
            }
            return Step::Consumed(len);
        }
        match self.phase {
            Phase::Running if frame.channel != 0 => match self.channel_frame(&frame, &buf[..len], host) {
                Flow::Done => Step::Consumed(len),
                Flow::Stall | Flow::Hold => Step::Wait,
            },
            Phase::Closing => {
                self.frame_while_closing(&frame);
                Step::Consumed(len)
            }
            Phase::Header | Phase::StartOk | Phase::TuneOk | Phase::Open | Phase::Running | Phase::Closed => {
                if let Err(fault) = self.connection_frame(&frame, host) {
                    let method = method_id(frame.payload).filter(|_| frame.kind == FrameKind::Method).unwrap_or_default();
                    self.fault(0, fault, method, host);
                }
                Step::Consumed(len)
            }
        }
    }

    fn frame_limit(&self) -> u32 {
        match self.phase {
            Phase::Header | Phase::StartOk | Phase::TuneOk => HANDSHAKE_FRAME_MAX,
            // No limit agreed: a whole message in one frame, with room for its frame.
            Phase::Open | Phase::Running | Phase::Closing | Phase::Closed if self.core.frame_max == 0 => u32::try_from(self.core.message_max).unwrap_or(u32::MAX),
            Phase::Open | Phase::Running | Phase::Closing | Phase::Closed => self.core.frame_max,
        }
    }

    fn protocol_header(&mut self, buf: &[u8]) -> Step {
        let compared = buf.len().min(PROTOCOL_HEADER.len());
        if buf[..compared] != PROTOCOL_HEADER[..compared] {
            self.core.out.extend_from_slice(&PROTOCOL_HEADER);
            self.phase = Phase::Closed;
            return Step::Consumed(buf.len());
        }
        if compared < PROTOCOL_HEADER.len() {
            return Step::Wait;
        }
        let properties = server_properties(&self.identity).to_bytes();
        let start = wire::ConnectionStart {
            version_major: 0,
            version_minor: 9,
            server_properties: Table::parse(&properties).unwrap_or(Table::EMPTY),
            mechanisms: b"PLAIN AMQPLAIN",
            locales: b"en_US",
        };
        Method::ConnectionStart(start).write(0, &mut self.core.out);
        self.phase = Phase::StartOk;
        Step::Consumed(PROTOCOL_HEADER.len())
    }

    /// A frame of an open channel, or one for a channel that is not open. `raw` is the whole frame.
    fn channel_frame(&mut self, frame: &RawFrame<'_>, raw: &[u8], host: &mut impl Host) -> Flow {
        let number = frame.channel;
        let Some(channel) = self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut) else {
            self.open_channel(frame, host);
            return Flow::Done;
        };
        if channel.state == State::Closing {
            channel.frame_while_closing(&mut self.core, frame);
            self.remove_closed(number);
            return Flow::Done;
        }
        if channel.backlog.is_empty() {
            match channel.frame(&mut self.core, frame, host) {
                Ok(Flow::Stall) => {}
                Ok(flow) => {
                    self.remove_closed(number);
                    return flow;
                }
                Err(fault) => {
                    self.fault(number, fault, method_of(frame), host);
                    return Flow::Done;
                }
            }
        }
        if channel.backlog.len() + raw.len() > BACKLOG_MAX {
            return Flow::Stall;
        }
        channel.backlog.extend_from_slice(raw);
        Flow::Done
    }

    fn open_channel(&mut self, frame: &RawFrame<'_>, host: &mut impl Host) {
        let number = frame.channel;
        if frame.kind != FrameKind::Method || method_id(frame.payload) != Some((20, 10)) {
            self.close(CHANNEL_ERROR, "CHANNEL_ERROR - expected 'channel.open'", method_of(frame), host);
            return;
        }
        if self.channel_max != 0 && number > self.channel_max {
            let text = format!("NOT_ALLOWED - number of channels opened ({number}) has reached the negotiated channel_max ({})", self.channel_max);
            self.close(NOT_ALLOWED, &text, (20, 10), host);
            return;
        }
        if let Err(error) = Method::decode(frame.payload) {
            self.fault(0, error.into(), (20, 10), host);
            return;
        }
        let index = usize::from(number);
        if self.channels.len() <= index {
            self.channels.resize_with(index + 1, || None);
        }
        self.channels[index] = Some(Box::new(Channel::new(number)));
        Method::ChannelOpenOk.write(number, &mut self.core.out);
    }

    fn remove_closed(&mut self, number: u16) {
        if std::mem::take(&mut self.core.channel_closed) {
            self.channels[usize::from(number)] = None;
        }
    }

    /// The answer to a request of a channel.
    pub fn reply(&mut self, number: u16, id: u64, reply: Reply, host: &mut impl Host) {
        if self.phase != Phase::Running {
            return;
        }
        let Some(channel) = self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut) else { return };
        if let Err((fault, method)) = channel.answered(&mut self.core, id, reply, host) {
            self.fault(number, fault, method, host);
        }
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
        let Some(channel) = self.channels.get_mut(index).and_then(Option::as_deref_mut) else { return };
        if channel.backlog.is_empty() {
            return;
        }
        let backlog = std::mem::take(&mut channel.backlog);
        let limit = self.frame_limit();
        let mut done = 0;
        while let Ok(Some(frame)) = parse_frame(&backlog[done..], limit) {
            if self.phase != Phase::Running {
                return;
            }
            let len = frame.payload.len() + FRAME_OVERHEAD;
            let Some(channel) = self.channels.get_mut(index).and_then(Option::as_deref_mut) else {
                self.open_channel(&frame, host);
                done += len;
                continue;
            };
            let result = if channel.state == State::Closing {
                channel.frame_while_closing(&mut self.core, &frame);
                Ok(Flow::Done)
            } else {
                channel.frame(&mut self.core, &frame, host)
            };
            match result {
                Ok(Flow::Done) => self.remove_closed(number),
                Ok(Flow::Stall | Flow::Hold) => {
                    channel.backlog = backlog[done..].to_vec();
                    return;
                }
                Err(fault) => self.fault(number, fault, method_of(&frame), host),
            }
            done += len;
        }
    }

    /// Channels with frames that wait; their confirms and replies will set them going, or [`Session::resume`].
    pub fn has_backlog(&self) -> bool {
        self.channels.iter().flatten().any(|c| !c.backlog.is_empty())
    }

    /// One outcome of a publish.
    #[inline]
    pub fn confirm(&mut self, number: u16, sequence: u64, ok: bool) {
        if let Some(channel) = self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut)
            && let Some(confirms) = &mut channel.confirms
        {
            confirms.settle(sequence, ok);
            channel.confirm_soon(&mut self.core);
        }
    }

    /// Writes the acks and nacks that are due.
    pub fn flush_confirms(&mut self) {
        while let Some(number) = self.core.dirty.pop() {
            if let Some(channel) = self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut) {
                channel.dirty = false;
                if let Some(confirms) = &mut channel.confirms {
                    confirms.flush(number, &mut self.core.out);
                }
            }
        }
    }

    fn fault(&mut self, number: u16, fault: Fault, method: (u16, u16), host: &mut impl Host) {
        match fault {
            Fault::Channel(code, text) if number != 0 => {
                if let Some(channel) = self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut) {
                    channel.fail(&mut self.core, code, &text, method, host);
                }
            }
            Fault::Channel(code, text) | Fault::Connection(code, text) => self.close(code, &text, method, host),
        }
    }

    /// The server closes the connection. `text` begins with the code's name.
    pub fn close(&mut self, code: u16, text: &str, method: (u16, u16), host: &mut impl Host) {
        if matches!(self.phase, Phase::Closing | Phase::Closed) {
            return;
        }
        self.flush_confirms();
        self.release_channels(host);
        let close = wire::ConnectionClose { reply_code: code, reply_text: ShortStr::truncated(text), class_id: method.0, method_id: method.1 };
        Method::ConnectionClose(close).write(0, &mut self.core.out);
        self.phase = if self.phase == Phase::Header { Phase::Closed } else { Phase::Closing };
    }

    /// An operator or the node itself ends the connection (320).
    pub fn force_close(&mut self, why: &str, host: &mut impl Host) {
        self.close(CONNECTION_FORCED, &format!("CONNECTION_FORCED - {why}"), (0, 0), host);
    }

    fn release_channels(&mut self, host: &mut impl Host) {
        for consumer in std::mem::take(&mut self.core.consumers).into_keys() {
            host.release(consumer);
        }
        self.channels.clear();
        self.core.dirty.clear();
    }

    /// Adds a heartbeat to what is to be sent.
    pub fn heartbeat(&mut self) {
        write_heartbeat(&mut self.core.out);
    }

    /// An alarm starts or ends: clients that understand it are told, once each.
    pub fn set_blocked(&mut self, reason: Option<&str>) {
        if self.phase != Phase::Running || !self.connection_blocked || self.blocked == reason.is_some() {
            return;
        }
        self.blocked = reason.is_some();
        match reason {
            Some(reason) => Method::ConnectionBlocked(wire::ConnectionBlocked { reason: ShortStr::truncated(reason) }).write(0, &mut self.core.out),
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
    fn connection_frame(&mut self, frame: &RawFrame<'_>, host: &mut impl Host) -> Result<(), Fault> {
        if frame.channel != 0 {
            return Err(Fault::Connection(CHANNEL_ERROR, "CHANNEL_ERROR - the connection is not open yet".into()));
        }
        if frame.kind != FrameKind::Method {
            return Err(crate::channel::unexpected("expected method frame on channel 0, got non method frame instead"));
        }
        match (self.phase, Method::decode(frame.payload)?) {
            (Phase::StartOk, Method::ConnectionStartOk(m)) => self.start_ok(&m, host),
            (Phase::TuneOk, Method::ConnectionTuneOk(m)) => self.tune_ok(&m),
            (Phase::Open, Method::ConnectionOpen(m)) => self.connection_open(&m, host),
            (_, Method::ConnectionClose(_)) => {
                self.flush_confirms();
                self.release_channels(host);
                Method::ConnectionCloseOk.write(0, &mut self.core.out);
                self.phase = Phase::Closed;
                Ok(())
            }
            (_, Method::ConnectionCloseOk) => {
                self.phase = Phase::Closed;
                Ok(())
            }
            (Phase::Running, Method::ConnectionUpdateSecret(_)) => {
                // Passwords do not expire, so there is nothing to renew.
                Method::ConnectionUpdateSecretOk.write(0, &mut self.core.out);
                Ok(())
            }
            (Phase::Running, Method::ConnectionBlocked(_) | Method::ConnectionUnblocked) => Ok(()),
            (phase, method) => {
                let text = format!("COMMAND_INVALID - unexpected method '{}' on channel 0 in state {phase:?}", method.name());
                Err(Fault::Connection(COMMAND_INVALID, text))
            }
        }
    }

    fn start_ok(&mut self, m: &wire::ConnectionStartOk<'_>, host: &mut impl Host) -> Result<(), Fault> {
        if let Some(wire::Value::Table(capabilities)) = m.client_properties.get("capabilities") {
            let has = |name: &str| matches!(capabilities.get(name), Some(wire::Value::Bool(true)));
            self.authentication_failure_close = has("authentication_failure_close");
            self.connection_blocked = has("connection.blocked");
            self.core.consumer_cancel_notify = has("consumer_cancel_notify");
        }
        for key in ["connection_name", "product"] {
            if let Some(wire::Value::LongStr(name)) = m.client_properties.get(key) {
                self.client = String::from_utf8_lossy(&name[..name.len().min(256)]).into_owned();
                break;
            }
        }
        let mechanism = m.mechanism.as_bytes();
        let credentials = match mechanism {
            b"PLAIN" => wire::parse_plain(m.response),
            b"AMQPLAIN" => wire::parse_amqplain(m.response),
            _ => {
                let text = format!("COMMAND_INVALID - unknown authentication mechanism '{}'", m.mechanism);
                return Err(Fault::Connection(COMMAND_INVALID, text));
            }
        };
        let verdict = match credentials {
            Some((user, password)) => host.authenticate(user, password).map(|()| String::from_utf8_lossy(user).into_owned()),
            None => Err(format!("malformed response for mechanism {}", m.mechanism)),
        };
        match verdict {
            Ok(user) => {
                self.core.user = user;
                let tune = wire::ConnectionTune { channel_max: self.limits.channel_max, frame_max: self.limits.frame_max, heartbeat: self.limits.heartbeat_s };
                Method::ConnectionTune(tune).write(0, &mut self.core.out);
                self.phase = Phase::TuneOk;
            }
            Err(why) => {
                self.refused_login = Some(why);
                if self.authentication_failure_close {
                    let text = format!("ACCESS_REFUSED - Login was refused using authentication mechanism {}. For details see the broker logfile.", m.mechanism);
                    self.close(wire::ACCESS_REFUSED, &text, (0, 0), host);
                } else {
                    self.phase = Phase::Closed;
                }
            }
        }
        Ok(())
    }

    fn tune_ok(&mut self, m: &wire::ConnectionTuneOk) -> Result<(), Fault> {
        check_tuned("channel_max", u32::from(m.channel_max), 0, u32::from(self.limits.channel_max))?;
        check_tuned("frame_max", m.frame_max, FRAME_MIN_SIZE as u32, self.limits.frame_max)?;
        self.channel_max = m.channel_max;
        self.core.frame_max = m.frame_max;
        self.heartbeat_s = m.heartbeat;
        self.phase = Phase::Open;
        Ok(())
    }

    fn connection_open(&mut self, m: &wire::ConnectionOpen<'_>, host: &mut impl Host) -> Result<(), Fault> {
        let vhost = m.virtual_host.as_str()?;
        host.open_vhost(&self.core.user, vhost).map_err(|r| Refusal::new(NOT_ALLOWED, r.text))?;
        self.core.vhost = vhost.to_owned();
        Method::ConnectionOpenOk.write(0, &mut self.core.out);
        self.phase = Phase::Running;
        Ok(())
    }
}

/// Checks one tuned value against what was offered: 0 means no limit on both sides.
fn check_tuned(name: &str, value: u32, least: u32, offered: u32) -> Result<(), Fault> {
    let text = if value != 0 && value < least {
        format!("negotiated {name} = {value} is lower than the minimum allowed value ({least})")
    } else if offered != 0 && (value == 0 || value > offered) {
        let value = if value == 0 { "no limit (0)".to_owned() } else { value.to_string() };
        format!("negotiated {name} = {value} is higher than the maximum allowed value ({offered})")
    } else {
        return Ok(());
    };
    Err(Refusal::new(NOT_ALLOWED, text).into())
}

fn method_of(frame: &RawFrame<'_>) -> (u16, u16) {
    match frame.kind {
        FrameKind::Method => method_id(frame.payload).unwrap_or_default(),
        // A fault in content is basic.publish's.
        FrameKind::Header | FrameKind::Body | FrameKind::Heartbeat => (60, 40),
    }
}

fn server_properties(identity: &Identity) -> OwnedTable {
    let mut capabilities = OwnedTable::default();
    for name in [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
        "per_consumer_qos",
    ] {
        capabilities.put(name, OwnedValue::Bool(true));
    }
    let mut properties = OwnedTable::default();
    properties.put("capabilities", OwnedValue::Table(capabilities));
    for (key, value) in [
        ("cluster_name", identity.cluster_name.as_str()),
        ("copyright", "The Warren authors"),
        ("information", "Warren, a clustered broker for RabbitMQ clients"),
        ("node", &identity.node_name),
        ("platform", "Warren"),
        // Clients choose their ways by these two; Warren's ways are RabbitMQ's.
        ("product", "RabbitMQ"),
        ("version", &identity.compatible_version),
        ("warren_version", &identity.version),
    ] {
        properties.put(key, OwnedValue::LongStr(value.as_bytes().to_vec()));
    }
    properties
}
