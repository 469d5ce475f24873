//! A client and a host around one session: the client's bytes go in, frames come out to be compared, and the host keeps what it was asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Destination, Place};
use warren_model::message::Message;
use warren_model::{
    Command, Incarnation, NodeId, Outcome, QueueId, QueueRef, Refusal, SessionId, Settlement,
    ShardId,
};
use warren_protocol as wire;
use warren_protocol::{
    ChannelClose, ConnectionClose, FrameKind, Method, OwnedTable, OwnedValue, ShortStr,
    parse_content_header, parse_frame, write_frame,
};
use warren_session::{
    Check, Delivered, Host, Identity, Limits, Publish, Published, Reply, Request, Session,
};

/// Something that the host was told or asked.
#[derive(Clone, PartialEq, Debug)]
pub enum Call {
    Publish {
        channel: u16,
        sequence: Option<u64>,
        exchange: Vec<u8>,
        key: Vec<u8>,
        properties: Vec<u8>,
        body: Vec<u8>,
    },
    Request(u16, Request),
    Settle(u32, u64, Settlement),
    Credit(u32, u32),
    Grant(u32, u32),
    ByLeave(u32, bool),
    Release(u32),
}

/// Queues and exchanges are what the test puts there; `amq.*` names are reserved. What becomes of a publish goes by its exchange's name.
#[derive(Default)]
pub struct FakeHost {
    pub calls: Vec<Call>,
    /// Requests without an answer: channel, id, request.
    pub asked: VecDeque<(u16, u64, Request)>,
    pub queues: BTreeMap<String, QueueRef>,
    pub locked: BTreeSet<String>,
    pub exchanges: BTreeSet<String>,
    pub bindings: Vec<Binding>,
    /// Publishes taken or refused so far.
    pub offered: usize,
    /// Publishes (counted as above) that are held at their first offer.
    pub hold_once: BTreeSet<usize>,
    /// Every publish is held.
    pub hold: bool,
    /// How often a publish was held.
    pub held: usize,
    /// Fences wait for the test to answer them, like other requests.
    pub hold_fences: bool,
    /// No more channels than these may be open.
    pub channels_max: Option<usize>,
    uniques: u32,
    /// There is no memory for publishes that arrive in pieces.
    pub is_full: bool,
}

impl FakeHost {
    /// What a publish to this exchange comes to.
    fn route(exchange: &[u8]) -> Published {
        match exchange {
            b"fan" => Published::Routed(2),
            b"void" => Published::Unroutable,
            b"missing" => {
                Published::Refused(Refusal::not_found("no exchange 'missing' in vhost '/'"))
            }
            b"internal" => Published::Refused(Refusal::access_refused(
                "cannot publish to internal exchange 'internal' in vhost '/'",
            )),
            b"down" => Published::Unavailable("no routing now".into()),
            _ => Published::Routed(1),
        }
    }
}

pub fn queue_ref(id: u64) -> QueueRef {
    QueueRef {
        id: QueueId(id),
        place: Place::Shard(ShardId(id as u16)),
    }
}

pub fn session_id() -> SessionId {
    SessionId {
        node: NodeId(7),
        incarnation: Incarnation(1),
        number: 9,
    }
}

impl Host for FakeHost {
    fn session(&self) -> SessionId {
        session_id()
    }

    fn unique(&mut self) -> String {
        self.uniques += 1;
        format!("{:022}", self.uniques)
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Option<Result<(), String>> {
        match (user, password) {
            (b"slow", _) => None,
            (b"guest", b"secret") => Some(Ok(())),
            _ => Some(Err("wrong password".into())),
        }
    }

    fn admit(&mut self, user: &str) -> Result<(), String> {
        if user == "CN=known" {
            Ok(())
        } else {
            Err(format!("there is no user '{user}'"))
        }
    }

    fn open_vhost(&mut self, user: &str, vhost: &str) -> Result<(), Refusal> {
        match vhost {
            "/" => Ok(()),
            "forbidden" => Err(Refusal::access_refused(format!(
                "access to vhost 'forbidden' refused for user '{user}'"
            ))),
            _ => Err(Refusal::not_found(format!("vhost {vhost} not found"))),
        }
    }

    fn open_channel(&mut self, open: usize) -> Result<(), Refusal> {
        match self.channels_max {
            Some(most) if open >= most => {
                Err(Refusal::new(530, format!("{open} channels are open")))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn may_look_up(&mut self) -> Result<bool, Refusal> {
        Ok(true)
    }

    fn check_exchange(&self, command: &DeclareExchange) -> Check {
        if command.name.is_empty() {
            return Check::Refused(Refusal::access_refused(
                "operation not permitted on the default exchange",
            ));
        }
        if self.exchanges.contains(&command.name) {
            Check::Equivalent(Outcome::Done)
        } else {
            Check::New
        }
    }

    fn find_exchange(&self, name: &str) -> Result<(), Refusal> {
        if self.exchanges.contains(name) {
            Ok(())
        } else {
            Err(Refusal::not_found(format!(
                "no exchange '{name}' in vhost '/'"
            )))
        }
    }

    fn check_queue(&self, command: &DeclareQueue) -> Check {
        if command.name.starts_with("amq.") && !command.server_named {
            return Check::Refused(Refusal::access_refused(format!(
                "queue name '{}' contains reserved prefix 'amq.*'",
                command.name
            )));
        }
        match self.queues.get(&command.name) {
            Some(queue) => Check::Equivalent(Outcome::Queue {
                id: queue.id,
                place: queue.place,
                created: false,
            }),
            None => Check::New,
        }
    }

    fn has_room(&self) -> bool {
        !self.is_full
    }

    fn may_read(&self, queue: &str) -> Result<(), Refusal> {
        self.may_configure(queue)
    }

    fn may_configure(&self, queue: &str) -> Result<(), Refusal> {
        if queue.starts_with("secret") {
            return Err(Refusal::access_refused(format!(
                "access to queue '{queue}' in vhost '/' refused for user 'guest'"
            )));
        }
        Ok(())
    }

    fn check_consumer(&self, queue: &str, arguments: &[u8]) -> Result<(), Refusal> {
        if arguments.is_empty() {
            return Ok(());
        }
        Err(Refusal::precondition_failed(format!(
            "invalid arg for {queue}"
        )))
    }

    fn find_queue(&self, name: &str) -> Result<QueueRef, Refusal> {
        if self.locked.contains(name) {
            return Err(Refusal::resource_locked(format!(
                "cannot obtain exclusive access to locked queue '{name}' in vhost '/'"
            )));
        }
        self.queues
            .get(name)
            .copied()
            .ok_or_else(|| Refusal::not_found(format!("no queue '{name}' in vhost '/'")))
    }

    fn check_bind(&self, command: &Binding) -> Check {
        if command.source.is_empty() {
            return Check::Refused(Refusal::access_refused(
                "operation not permitted on the default exchange",
            ));
        }
        if let Destination::Queue(name) = &command.destination
            && !self.queues.contains_key(name)
        {
            return Check::Refused(Refusal::not_found(format!(
                "no queue '{name}' in vhost '/'"
            )));
        }
        if self.bindings.contains(command) {
            Check::Equivalent(Outcome::Done)
        } else {
            Check::New
        }
    }

    fn check_unbind(&self, command: &Binding) -> Check {
        if self.bindings.contains(command) {
            Check::New
        } else {
            Check::Equivalent(Outcome::Done)
        }
    }

    fn choose_place(&mut self, name: &str, _: bool, _: bool) -> Place {
        self.uniques += 1;
        Place::Shard(ShardId((name.len() + self.uniques as usize) as u16))
    }

    fn publish(&mut self, p: &Publish<'_>) -> Published {
        if self.hold || self.hold_once.remove(&self.offered) {
            self.held += 1;
            return Published::Hold;
        }
        self.offered += 1;
        self.calls.push(Call::Publish {
            channel: p.channel,
            sequence: p.sequence,
            exchange: p.exchange.to_vec(),
            key: p.routing_key.to_vec(),
            properties: p.properties.to_vec(),
            body: p.body.to_vec(),
        });
        Self::route(p.exchange)
    }

    fn request(&mut self, channel: u16, id: u64, request: Request) {
        self.calls.push(Call::Request(channel, request.clone()));
        self.asked.push_back((channel, id, request));
    }

    fn settle(&mut self, consumer: u32, position: u64, settlement: Settlement) {
        self.calls
            .push(Call::Settle(consumer, position, settlement));
    }

    fn credit(&mut self, consumer: u32, bytes: u32) {
        self.calls.push(Call::Credit(consumer, bytes));
    }

    fn grant(&mut self, consumer: u32, count: u32) {
        self.calls.push(Call::Grant(consumer, count));
    }

    fn set_by_leave(&mut self, consumer: u32, by_leave: bool) {
        self.calls.push(Call::ByLeave(consumer, by_leave));
    }

    fn release(&mut self, consumer: u32) {
        self.calls.push(Call::Release(consumer));
    }
}

/// A frame to expect.
#[derive(Clone, PartialEq, Debug)]
pub enum Say<'a> {
    M(u16, Method<'a>),
    /// Content header: channel, body size, properties.
    H(u16, u64, &'a [u8]),
    B(u16, &'a [u8]),
    Beat,
}
pub use Say::{B, Beat, H, M};

pub struct Peer {
    pub session: Session,
    pub host: FakeHost,
    input: Vec<u8>,
}

pub fn short(text: &str) -> ShortStr<'_> {
    ShortStr::new(text.as_bytes()).unwrap()
}

pub fn identity() -> Identity {
    Identity {
        compatible_version: "4.2.0".into(),
        version: "0.1.0".into(),
        cluster_name: "c".into(),
        node_name: "n1".into(),
    }
}

/// Bytes of a method frame.
pub fn frame<'a>(channel: u16, method: impl Into<Method<'a>>) -> Vec<u8> {
    let mut out = Vec::new();
    method.into().write(channel, &mut out);
    out
}

/// Bytes of a publish whose body lies in frames of at most `piece` bytes.
pub fn publish_in_pieces(
    channel: u16,
    publish: wire::BasicPublish<'_>,
    properties: &[u8],
    body: &[u8],
    mut piece: impl FnMut() -> usize,
) -> Vec<u8> {
    let mut out = frame(channel, publish);
    let mut header = vec![0, 60, 0, 0];
    header.extend_from_slice(&(body.len() as u64).to_be_bytes());
    header.extend_from_slice(properties);
    write_frame(&mut out, FrameKind::Header, channel, &header);
    let mut rest = body;
    while !rest.is_empty() {
        let (first, others) = rest.split_at(piece().min(rest.len()));
        write_frame(&mut out, FrameKind::Body, channel, first);
        rest = others;
    }
    out
}

pub fn publish(channel: u16, exchange: &str, key: &str, mandatory: bool, body: &[u8]) -> Vec<u8> {
    let publish = wire::BasicPublish {
        exchange: short(exchange),
        routing_key: short(key),
        mandatory,
        immediate: false,
    };
    publish_in_pieces(channel, publish, &[0, 0], body, || usize::MAX)
}

pub fn start_ok(mechanism: &str, response: &[u8], capabilities: &[&str]) -> Vec<u8> {
    let mut list = OwnedTable::new();
    for name in capabilities {
        list.put(name, true);
    }
    let mut properties = OwnedTable::new();
    properties
        .put("product", "test")
        .put("capabilities", OwnedValue::Table(list));
    let bytes = properties.to_bytes();
    frame(
        0,
        wire::ConnectionStartOk {
            client_properties: wire::Table::parse(&bytes).unwrap(),
            mechanism: short(mechanism),
            response,
            locale: short("en_US"),
        },
    )
}

pub fn tune_ok(channel_max: u16, frame_max: u32, heartbeat: u16) -> Vec<u8> {
    frame(
        0,
        wire::ConnectionTuneOk {
            channel_max,
            frame_max,
            heartbeat,
        },
    )
}

pub fn open_vhost(vhost: &str) -> Vec<u8> {
    frame(
        0,
        wire::ConnectionOpen {
            virtual_host: short(vhost),
        },
    )
}

/// All that a client sends before it opens a channel.
pub fn opening(capabilities: &[&str], frame_max: u32) -> Vec<u8> {
    let mut bytes = wire::PROTOCOL_HEADER.to_vec();
    bytes.extend(start_ok("PLAIN", b"\0guest\0secret", capabilities));
    bytes.extend(tune_ok(2047, frame_max, 60));
    bytes.extend(open_vhost("/"));
    bytes
}

impl Peer {
    /// A connection that has just been accepted.
    pub fn accepted(limits: Limits) -> Self {
        let mut host = FakeHost::default();
        for (id, name) in ["q1", "q2", "q3"].into_iter().enumerate() {
            host.queues.insert(name.into(), queue_ref(id as u64 + 1));
        }
        host.exchanges.insert("x1".into());
        Self {
            session: Session::new(session_id(), identity(), limits),
            host,
            input: Vec::new(),
        }
    }

    /// A connection in use, with channel 1 open.
    pub fn open() -> Self {
        Self::open_with(&["consumer_cancel_notify", "connection.blocked"], 131_072)
    }

    pub fn open_with(capabilities: &[&str], frame_max: u32) -> Self {
        let mut peer = Self::accepted(Limits::default());
        peer.send(&opening(capabilities, frame_max));
        peer.session.out().clear();
        peer.open_channel(1);
        peer
    }

    pub fn open_channel(&mut self, number: u16) {
        self.method(number, Method::ChannelOpen);
        self.expect(&[M(number, Method::ChannelOpenOk)]);
    }

    /// The client sends; what the session does not take yet stays for the next call.
    pub fn send(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        loop {
            let done = self.session.input(&self.input, &mut self.host);
            self.input.drain(..done);
            if done == 0 || self.input.is_empty() {
                break;
            }
        }
        if !self.host.hold_fences {
            self.answer_fences();
        }
    }

    /// The queues know all that they were told.
    pub fn answer_fences(&mut self) {
        while let Some(n) = self
            .host
            .asked
            .iter()
            .position(|(_, _, request)| *request == Request::Fence)
        {
            self.answer_nth(n, Reply::Done);
        }
    }

    /// Bytes that the session has not taken.
    pub fn unread(&self) -> usize {
        self.input.len()
    }

    pub fn method<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) {
        self.send(&frame(channel, method));
    }

    /// Compares all that the session has said since the last time.
    #[track_caller]
    pub fn expect(&mut self, expected: &[Say<'_>]) {
        let out = std::mem::take(self.session.out());
        let said: Vec<String> = frames(&out).iter().map(|s| format!("{s:?}")).collect();
        let expected: Vec<String> = expected.iter().map(|s| format!("{s:?}")).collect();
        assert_eq!(said, expected);
    }

    #[track_caller]
    pub fn expect_channel_close(
        &mut self,
        channel: u16,
        code: u16,
        text: &str,
        method: (u16, u16),
    ) {
        self.expect(&[M(channel, close_channel(code, text, method))]);
    }

    #[track_caller]
    pub fn expect_connection_close(&mut self, code: u16, text: &str, method: (u16, u16)) {
        self.expect(&[M(0, close_connection(code, text, method))]);
    }

    /// The host's calls since the last time.
    pub fn calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.host.calls)
    }

    /// Answers the oldest request.
    #[track_caller]
    pub fn answer(&mut self, reply: Reply) {
        let (channel, id, _) = self.host.asked.pop_front().expect("a request is under way");
        self.session.reply(channel, id, reply, &mut self.host);
        self.send(&[]);
    }

    /// Answers request number `n` of those under way.
    pub fn answer_nth(&mut self, n: usize, reply: Reply) {
        let (channel, id, _) = self.host.asked.remove(n).unwrap();
        self.session.reply(channel, id, reply, &mut self.host);
        self.send(&[]);
    }

    /// Answers everything that is asked, as a host in good health would, until nothing more is asked.
    pub fn answer_all(&mut self) {
        while let Some((channel, id, request)) = self.host.asked.pop_front() {
            let reply = self.usual_reply(&request);
            self.session.reply(channel, id, reply, &mut self.host);
            self.send(&[]);
        }
    }

    fn usual_reply(&mut self, request: &Request) -> Reply {
        match request {
            Request::Propose(Command::DeclareQueue(command)) => {
                let queue = queue_ref(100 + self.host.queues.len() as u64);
                self.host.queues.insert(command.name.clone(), queue);
                Reply::Outcome(Outcome::Queue {
                    id: queue.id,
                    place: queue.place,
                    created: true,
                })
            }
            Request::Propose(Command::Bind(binding)) => {
                self.host.bindings.push(binding.clone());
                Reply::Outcome(Outcome::Done)
            }
            Request::Propose(Command::DeclareExchange(command)) => {
                self.host.exchanges.insert(command.name.clone());
                Reply::Outcome(Outcome::Done)
            }
            Request::Propose(_) => Reply::Outcome(Outcome::Done),
            Request::Count(_) => Reply::Counts {
                messages: 3,
                consumers: 2,
            },
            Request::Consume { .. } | Request::Cancel { .. } | Request::Fence => Reply::Done,
            Request::Get { .. } => Reply::Empty,
            Request::Purge(_) | Request::Delete { .. } => Reply::Counted(4),
        }
    }

    /// Consumes from `q1` with `tag` and returns the consumer's number.
    pub fn consume(&mut self, channel: u16, tag: &str, no_ack: bool) -> u32 {
        self.method(channel, consume(tag, no_ack));
        let Some((_, _, Request::Consume { consumer, .. })) = self.host.asked.back() else {
            panic!("{:?}", self.host.asked)
        };
        let consumer = *consumer;
        self.answer(Reply::Done);
        self.expect(&[M(
            channel,
            wire::BasicConsumeOk {
                consumer_tag: short(tag),
            }
            .into(),
        )]);
        self.calls();
        consumer
    }

    pub fn deliver(&mut self, consumer: u32, position: u64, redelivered: bool) {
        let delivered = Delivered {
            consumer,
            position,
            redelivered,
            message: message(b"m"),
        };
        self.session.deliver(&delivered, &mut self.host);
    }
}

pub fn consume(tag: &str, no_ack: bool) -> wire::BasicConsume<'_> {
    wire::BasicConsume {
        queue: short("q1"),
        consumer_tag: short(tag),
        no_ack,
        ..Default::default()
    }
}

pub fn message(body: &[u8]) -> Message<'_> {
    Message {
        exchange: b"x",
        routing_key: b"k",
        properties: &[0, 0],
        body,
        persistent: false,
    }
}

pub fn close_channel(code: u16, text: &str, (class_id, method_id): (u16, u16)) -> Method<'_> {
    ChannelClose {
        reply_code: code,
        reply_text: short(text),
        class_id,
        method_id,
    }
    .into()
}

pub fn close_connection(code: u16, text: &str, (class_id, method_id): (u16, u16)) -> Method<'_> {
    ConnectionClose {
        reply_code: code,
        reply_text: short(text),
        class_id,
        method_id,
    }
    .into()
}

/// Every frame of what a session has written, which must be whole frames.
pub fn frames(mut out: &[u8]) -> Vec<Say<'_>> {
    let mut found = Vec::new();
    while !out.is_empty() {
        let frame = parse_frame(out, 0)
            .expect("the session writes frames")
            .expect("whole ones");
        out = &out[frame.wire_len()..];
        found.push(match frame.kind {
            FrameKind::Method => M(
                frame.channel,
                Method::decode(frame.payload).expect("the session writes methods"),
            ),
            FrameKind::Header => {
                let header = parse_content_header(frame.payload)
                    .expect("the session writes content headers");
                H(frame.channel, header.body_size, header.properties)
            }
            FrameKind::Body => B(frame.channel, frame.payload),
            FrameKind::Heartbeat => Beat,
        });
    }
    found
}
