//! An AMQP client on a simulated host: one connection, one channel, everything with a deadline.
//!
//! Flow: calls write a method and read until its answer has come; what comes in between (deliveries, confirms, returns) waits in order for
//! [`Client::next_event`]. After a channel error the channel is opened anew; after any other failure the client is of no more use.
//! Invariants checked here: an operation ends within its deadline as long as the client could talk with its node (`no-hang`); nobody tells this client that it
//! broke the protocol (`no-internal-error`); and it is not cut off while nothing happens to the cluster (`calm`).

mod incoming;
mod taking;

use crate::cluster::AMQP;
use crate::message::MessageId;
use crate::options::node_name;
use crate::oracle::Oracle;
use bytes::BytesMut;
use incoming::Partial;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};
use turmoil::net::TcpStream;
use warren_protocol::{
    BasicPublish, CLASS_BASIC, ConfirmSelect, ConnectionClose, ConnectionOpen, ConnectionStartOk,
    ConnectionTuneOk, ExchangeDeclare, ExchangeDelete, Method, OwnedTable, OwnedValue,
    PROTOCOL_HEADER, Properties, QueueBind, QueueDeclare, QueueDelete, QueueUnbind, ShortStr,
    Table, write_content,
};

/// Longest that a node may take for anything: a deletion waits up to 10 s for the queue's owner and up to 10 s for the cluster.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest that connecting may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(8);
/// After so long without a disturbance, no operation that began before is excused any more.
const CALM: Duration = Duration::from_secs(22);
const CHANNEL: u16 = 1;
const FRAME_MAX: u32 = 131_072;

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No answer within the deadline.
    TimedOut,
    /// The connection broke.
    Lost(String),
    /// This client has cut it.
    Cut,
    /// The server closed the connection.
    ConnectionClosed(u16, String),
    /// The server closed the channel; there is a new one.
    ChannelClosed(u16, String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Lost(why) => write!(f, "connection lost: {why}"),
            Self::Cut => f.write_str("connection cut by the client itself"),
            Self::ConnectionClosed(code, text) => write!(f, "connection closed with {code} {text}"),
            Self::ChannelClosed(code, text) => write!(f, "channel closed with {code} {text}"),
        }
    }
}

impl Failure {
    /// The client is of no more use.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::ChannelClosed(..))
    }
}

/// What comes without being asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A message for a consumer.
    Delivered(Incoming),
    /// A message of this client that reached no queue.
    Returned(MessageId),
    /// Messages of this client are safe, or were not taken.
    Confirmed(Vec<MessageId>, bool),
    /// The server has ended this client's consumer.
    Cancelled,
}

/// A delivered message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The delivery's number.
    pub tag: u64,
    /// It may have been delivered before.
    pub redelivered: bool,
    /// Its exchange.
    pub exchange: String,
    /// Its routing key.
    pub key: String,
    /// Its body.
    pub body: Vec<u8>,
}

/// A client with an open channel.
pub struct Client {
    oracle: Oracle,
    /// Name of its host.
    host: String,
    node: usize,
    stream: TcpStream,
    incoming: BytesMut,
    events: VecDeque<Event>,
    /// Content that is not complete yet.
    partial: Option<Partial>,
    /// What a get was answered with.
    got: Option<Incoming>,
    heartbeat: Duration,
    last_write: Instant,
    /// It has kept silent for so long that the server may have cut it off; see [`Client::is_silent`].
    silent: bool,
    confirming: bool,
    publisher: u32,
    /// Messages published by this publisher.
    published: u32,
    /// Publishes on this channel in confirm mode.
    tags: u64,
    unconfirmed: BTreeMap<u64, MessageId>,
    /// Deliveries that are not settled: queue and message by tag.
    held: BTreeMap<u64, (String, MessageId)>,
    /// Cuts the connection in the middle of what it writes, now and then.
    cuts: Option<Cuts>,
}

/// When a client cuts its own connection.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    rng: StdRng,
    chance: f64,
}

impl Cuts {
    /// With this chance at each write; none if there is none.
    pub(crate) fn new(seed: u64, chance: f64) -> Option<Self> {
        let rng = StdRng::seed_from_u64(seed);
        (chance > 0.0).then_some(Self { rng, chance })
    }

    /// How many of so many bytes are still written, if this is the end.
    fn cut(&mut self, bytes: usize) -> Option<usize> {
        let cut = self.rng.random_bool(self.chance);
        cut.then(|| self.rng.random_range(0..bytes.max(1)))
    }
}

type Outcome<T> = Result<T, Failure>;

fn short(text: &str) -> ShortStr<'_> {
    ShortStr::truncated(text)
}

impl Client {
    /// Connects to a node as guest and opens the channel.
    ///
    /// # Errors
    /// If that does not succeed.
    pub(crate) async fn connect(
        oracle: &Oracle,
        host: &str,
        node: usize,
        heartbeat_s: u16,
        cuts: Option<Cuts>,
    ) -> Outcome<Self> {
        let since = oracle.now();
        let until = Instant::now() + CONNECT_DEADLINE;
        let opened = match timeout_at(until, TcpStream::connect((node_name(node), AMQP))).await {
            Ok(Ok(stream)) => {
                let mut client =
                    Self::on(stream, oracle.clone(), host.to_owned(), node, heartbeat_s);
                client.cuts = cuts;
                client.open(heartbeat_s, until).await.map(|()| client)
            }
            Ok(Err(error)) => Err(Failure::Lost(error.to_string())),
            Err(_) => Err(Failure::TimedOut),
        };
        opened.inspect_err(|failure| judge(oracle, host, node, "connect", since, failure))
    }

    fn on(stream: TcpStream, oracle: Oracle, host: String, node: usize, heartbeat_s: u16) -> Self {
        let publisher = oracle.new_publisher();
        oracle.state().holds.opened(publisher, node);
        Self {
            oracle,
            host,
            node,
            stream,
            incoming: BytesMut::new(),
            events: VecDeque::new(),
            partial: None,
            got: None,
            heartbeat: Duration::from_secs(heartbeat_s.into()),
            last_write: Instant::now(),
            silent: false,
            confirming: false,
            publisher,
            published: 0,
            tags: 0,
            unconfirmed: BTreeMap::new(),
            held: BTreeMap::new(),
            cuts: None,
        }
    }

    async fn open(&mut self, heartbeat: u16, until: Instant) -> Outcome<()> {
        self.write(&PROTOCOL_HEADER, until).await?;
        self.wait_for("connection.start", until).await?;
        let response = b"\0guest\0guest";
        let properties = capabilities();
        let client_properties = Table::parse(&properties).unwrap_or_default();
        self.send(
            0,
            ConnectionStartOk {
                client_properties,
                mechanism: short("PLAIN"),
                response,
                locale: short("en_US"),
            },
            until,
        )
        .await?;
        self.wait_for("connection.tune", until).await?;
        self.send(
            0,
            ConnectionTuneOk {
                channel_max: 10,
                frame_max: FRAME_MAX,
                heartbeat,
            },
            until,
        )
        .await?;
        self.send(
            0,
            ConnectionOpen {
                virtual_host: short("/"),
            },
            until,
        )
        .await?;
        self.wait_for("connection.open-ok", until).await?;
        self.send(CHANNEL, Method::ChannelOpen, until).await?;
        self.wait_for("channel.open-ok", until).await.map(drop)
    }

    /// The node that it is connected to.
    #[must_use]
    pub fn node(&self) -> usize {
        self.node
    }

    /// The number that tells this channel's consumer and publishes from all others.
    #[must_use]
    pub fn publisher(&self) -> u32 {
        self.publisher
    }

    /// Declares an exchange.
    pub async fn declare_exchange(&mut self, name: &str, kind: &str, durable: bool) -> Outcome<()> {
        let declare = ExchangeDeclare {
            exchange: short(name),
            kind: short(kind),
            durable,
            ..ExchangeDeclare::default()
        };
        self.call(declare, "exchange.declare-ok").await
    }

    /// Deletes an exchange.
    pub async fn delete_exchange(&mut self, name: &str) -> Outcome<()> {
        self.call(
            ExchangeDelete {
                exchange: short(name),
                ..ExchangeDelete::default()
            },
            "exchange.delete-ok",
        )
        .await
    }

    /// Declares a queue.
    pub async fn declare_queue(
        &mut self,
        name: &str,
        durable: bool,
        exclusive: bool,
    ) -> Outcome<()> {
        let declare = QueueDeclare {
            queue: short(name),
            durable,
            exclusive,
            ..QueueDeclare::default()
        };
        self.call(declare, "queue.declare-ok").await
    }

    /// Deletes a queue.
    pub async fn delete_queue(&mut self, name: &str) -> Outcome<()> {
        self.call(
            QueueDelete {
                queue: short(name),
                ..QueueDelete::default()
            },
            "queue.delete-ok",
        )
        .await
    }

    /// Binds a queue.
    pub async fn bind(&mut self, queue: &str, exchange: &str, key: &str) -> Outcome<()> {
        self.oracle.state().messages.bound(queue, exchange, key);
        self.call(
            QueueBind {
                queue: short(queue),
                exchange: short(exchange),
                routing_key: short(key),
                ..QueueBind::default()
            },
            "queue.bind-ok",
        )
        .await
    }

    /// Unbinds a queue.
    pub async fn unbind(&mut self, queue: &str, exchange: &str, key: &str) -> Outcome<()> {
        let unbind = QueueUnbind {
            queue: short(queue),
            exchange: short(exchange),
            routing_key: short(key),
            ..QueueUnbind::default()
        };
        self.call(unbind, "queue.unbind-ok").await
    }

    /// Asks for confirms on this channel.
    pub async fn confirm(&mut self) -> Outcome<()> {
        self.call(ConfirmSelect::default(), "confirm.select-ok")
            .await?;
        self.confirming = true;
        Ok(())
    }

    /// Publishes the next message.
    pub async fn publish(
        &mut self,
        exchange: &str,
        key: &str,
        mandatory: bool,
    ) -> Outcome<MessageId> {
        self.published += 1;
        let id = MessageId {
            publisher: self.publisher,
            number: self.published,
        };
        self.oracle
            .state()
            .messages
            .published(id, exchange, key, self.oracle.now());
        self.oracle.count_operation();
        if !crate::workloads::traffic::is_drained(exchange, key) {
            self.oracle.state().kept_bytes += id.body().len() as u64 + 200;
        }
        if self.confirming {
            self.tags += 1;
            self.unconfirmed.insert(self.tags, id);
        }
        let mut properties = Vec::new();
        Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        }
        .encode(&mut properties);
        let mut bytes = Vec::new();
        Method::from(BasicPublish {
            exchange: short(exchange),
            routing_key: short(key),
            mandatory,
            immediate: false,
        })
        .write(CHANNEL, &mut bytes);
        write_content(
            &mut bytes,
            CHANNEL,
            FRAME_MAX,
            CLASS_BASIC,
            &properties,
            &id.body(),
        );
        let since = self.oracle.now();
        let written = self.write(&bytes, Instant::now() + DEADLINE).await;
        self.checked("publish", since, written)?;
        Ok(id)
    }

    /// How many publishes have no confirm yet.
    #[must_use]
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// Nothing came although something must: the node did not answer in time.
    pub fn hung<T>(&self, what: &str) -> Outcome<T> {
        let since = self.oracle.now().saturating_sub(DEADLINE);
        self.checked(what, since, Err(Failure::TimedOut))
    }

    /// Publishes a message and waits for what becomes of it: returned or not, confirmed or not.
    pub async fn publish_and_wait(&mut self, exchange: &str, key: &str) -> Outcome<(bool, bool)> {
        let since = self.oracle.now();
        let id = self.publish(exchange, key, true).await?;
        let until = Instant::now() + DEADLINE;
        let mut returned = false;
        loop {
            match self
                .next_event(until.saturating_duration_since(Instant::now()))
                .await?
            {
                Some(Event::Returned(what)) if what == id => returned = true,
                Some(Event::Confirmed(ids, ok)) if ids.contains(&id) => return Ok((returned, ok)),
                Some(_) => {}
                None => return self.checked("publish", since, Err(Failure::TimedOut)),
            }
        }
    }

    /// The next thing that comes unasked; none if nothing does within this time. Keeps the connection alive meanwhile.
    pub async fn next_event(&mut self, within: Duration) -> Outcome<Option<Event>> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let until = Instant::now() + within;
        let since = self.oracle.now();
        let got = loop {
            match self.next_method(until).await {
                // Not a failure: nothing was asked for.
                Err(Failure::TimedOut) => break Ok(None),
                Err(failure) => break Err(failure),
                Ok(None) => {
                    if let Some(event) = self.events.pop_front() {
                        break Ok(Some(event));
                    }
                }
                Ok(Some(payload)) => self.surprised(&payload, "nothing"),
            }
        };
        let got = self.checked("wait", since, got);
        self.reopened(got).await
    }

    /// Closes in good order.
    pub async fn close(mut self) -> Outcome<()> {
        let since = self.oracle.now();
        let until = Instant::now() + DEADLINE;
        let close = ConnectionClose {
            reply_code: 200,
            reply_text: short("done"),
            class_id: 0,
            method_id: 0,
        };
        let sent = self.send(0, close, until).await;
        let closed = match sent {
            Ok(()) => loop {
                match self.next_method(until).await {
                    Ok(Some(payload)) if name(&payload) == "connection.close-ok" => break Ok(()),
                    // Whatever was under way, the end of the channel included.
                    Ok(_) | Err(Failure::ChannelClosed(..)) => {}
                    Err(failure) => break Err(failure),
                }
            },
            Err(failure) => Err(failure),
        };
        self.checked("close", since, closed)
    }

    /// Sends a method and waits for its answer.
    async fn call<'m>(
        &mut self,
        method: impl Into<Method<'m>>,
        expected: &'static str,
    ) -> Outcome<()> {
        let method = method.into();
        let since = self.oracle.now();
        self.oracle.count_operation();
        self.oracle.trace(
            &self.host,
            format_args!("asks {}: {method:?}", node_name(self.node)),
        );
        let until = Instant::now() + DEADLINE;
        let answered = match self.send(CHANNEL, method, until).await {
            Ok(()) => self.wait_for(expected, until).await.map(drop),
            Err(failure) => Err(failure),
        };
        let answered = self.checked(expected, since, answered);
        if answered.is_ok() {
            self.oracle.trace(
                &self.host,
                format_args!("got {expected} from {}", node_name(self.node)),
            );
        }
        self.reopened(answered).await
    }

    /// Sends a method that is not answered.
    async fn tell<'m>(&mut self, method: impl Into<Method<'m>>, what: &'static str) -> Outcome<()> {
        let since = self.oracle.now();
        let sent = self.send(CHANNEL, method, Instant::now() + DEADLINE).await;
        self.checked(what, since, sent)
    }

    /// Opens the channel anew if it was closed.
    async fn reopened<T>(&mut self, result: Outcome<T>) -> Outcome<T> {
        if let Err(Failure::ChannelClosed(..)) = &result {
            let (since, until) = (self.oracle.now(), Instant::now() + DEADLINE);
            self.events.clear();
            (self.partial, self.got) = (None, None);
            self.unconfirmed.clear();
            self.held.clear();
            (self.confirming, self.published, self.tags) = (false, 0, 0);
            self.ended();
            self.publisher = self.oracle.new_publisher();
            self.oracle.state().holds.opened(self.publisher, self.node);
            let opened = match self.send(CHANNEL, Method::ChannelOpen, until).await {
                Ok(()) => self.wait_for("channel.open-ok", until).await.map(drop),
                Err(failure) => Err(failure),
            };
            self.checked("channel.open-ok", since, opened)?;
        }
        result
    }

    async fn send<'m>(
        &mut self,
        channel: u16,
        method: impl Into<Method<'m>>,
        until: Instant,
    ) -> Outcome<()> {
        let mut bytes = Vec::new();
        method.into().write(channel, &mut bytes);
        self.write(&bytes, until).await
    }

    async fn write(&mut self, bytes: &[u8], until: Instant) -> Outcome<()> {
        self.silent |= self.is_silent();
        self.last_write = Instant::now();
        if let Some(left) = self.cuts.as_mut().and_then(|cuts| cuts.cut(bytes.len())) {
            self.ended();
            // Whether the rest arrives is of no matter.
            let _ = timeout_at(until, self.stream.write_all(&bytes[..left])).await;
            return Err(Failure::Cut);
        }
        match timeout_at(until, self.stream.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::Lost(error.to_string())),
            Err(_) => Err(Failure::TimedOut),
        }
    }

    /// Reads until a method of this name has come.
    async fn wait_for(&mut self, expected: &'static str, until: Instant) -> Outcome<Vec<u8>> {
        loop {
            if let Some(payload) = self.next_method(until).await? {
                if name(&payload) == expected {
                    return Ok(payload);
                }
                self.surprised(&payload, expected);
            }
        }
    }

    fn surprised(&self, payload: &[u8], expected: &str) {
        let what = format!(
            "{} got {} from {} instead of {expected}",
            self.host,
            name(payload),
            node_name(self.node)
        );
        self.oracle.violated("no-internal-error", what);
    }

    /// Whether nothing was written for so long that its node may take it for dead, which it does after two intervals of the heartbeat without a sign.
    ///
    /// A client beats only while it waits for something: it has no task of its own for that, and keeps silent while its workload thinks, or talks over another
    /// connection. To be cut off for that is right, and no calm is broken. A part of an interval is for what is under way, and for clocks that differ.
    fn is_silent(&self) -> bool {
        let least = self.heartbeat * 2 - self.heartbeat / 8;
        !self.heartbeat.is_zero() && self.last_write.elapsed() > least
    }

    /// Judges a failure, if it is one.
    fn checked<T>(&self, what: &str, since: Duration, result: Outcome<T>) -> Outcome<T> {
        result.inspect_err(|failure| {
            self.ended();
            // What it asked after its silence may have met a connection that the node had ended.
            let excused = self.silent || self.is_silent();
            if excused && matches!(failure, Failure::Lost(_) | Failure::ConnectionClosed(..)) {
                return;
            }
            judge(&self.oracle, &self.host, self.node, what, since, failure);
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.ended();
    }
}

/// This client wants to know when its consumers are ended.
fn capabilities() -> Vec<u8> {
    let mut capabilities = OwnedTable::default();
    capabilities.put("consumer_cancel_notify", OwnedValue::Bool(true));
    let mut properties = OwnedTable::default();
    properties.put("capabilities", OwnedValue::Table(capabilities));
    properties.to_bytes()
}

fn name(payload: &[u8]) -> &'static str {
    Method::decode(payload).map_or("an unknown method", |method| method.name())
}

/// Whether a failure is excused by what has happened to the cluster.
fn judge(oracle: &Oracle, host: &str, node: usize, what: &str, since: Duration, failure: &Failure) {
    let whom = node_name(node);
    oracle.note(host, format_args!("{what} at {whom}: {failure}"));
    match failure {
        Failure::TimedOut if oracle.was_there_since(node, since) => {
            oracle.violated(
                "no-hang",
                format_args!("{host} asked {whom} at {since:?} ({what}) and got no answer"),
            );
        }
        Failure::ConnectionClosed(code @ (501..=505 | 541), text) => {
            oracle.violated(
                "no-internal-error",
                format_args!("{host} was told by {whom}: {code} {text} ({what})"),
            );
        }
        Failure::ChannelClosed(..) | Failure::Cut => {}
        Failure::TimedOut | Failure::Lost(_) | Failure::ConnectionClosed(..) => {
            if oracle.is_calm_for(CALM) && !oracle.is_gone(node) {
                oracle.violated("calm", format_args!("{host} at {whom} ({what}): {failure}, although nothing has happened since {:?}", oracle.last_disturbed()));
            }
        }
    }
}
