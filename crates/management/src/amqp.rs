//! An AMQP client of the node's own, inside the process: what the API does to queues' contents goes through a session like everybody's.
//!
//! Flow: [`Client::open`] gives one end of a pipe to [`Node::serve`] and logs in on the other as the user who asks over HTTP, from that user's address;
//! an operation or two follow, then [`Client::close`]. Dropping a client ends its session, too: what it got and did not settle goes back to the queue.
//! Invariants: permissions, checks and replies are AMQP's, since they are made by the same code; all waits together end at one deadline.

use crate::access::Login;
use crate::error::Error;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{Instant, timeout_at};
use warren_model::Refusal;
use warren_node::Node;
use warren_protocol::{
    BasicAck, BasicGet, BasicNack, BasicPublish, CLASS_BASIC, CONNECTION_FORCED, ConfirmSelect,
    ConnectionClose, ConnectionOpen, ConnectionStartOk, ConnectionTuneOk, DecodeError,
    FRAME_OVERHEAD, FrameKind, INTERNAL_ERROR, Method, NOT_ALLOWED, OwnedTable, OwnedValue,
    PROTOCOL_HEADER, QueueDeclare, QueueDelete, QueuePurge, RESOURCE_ERROR, ShortStr, Table,
    parse_content_header, parse_frame, reply_name, write_content,
};

/// For all that a client does, from opening to closing.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);
/// Bytes that may be on their way through the pipe, each way.
const PIPE_BYTES: usize = 64 * 1024;
const CHANNEL: u16 = 1;
/// Octets of a frame before its payload.
const FRAME_HEAD: usize = FRAME_OVERHEAD - 1;

/// A session with one channel.
pub(crate) struct Client {
    node: Arc<Node>,
    stream: DuplexStream,
    incoming: BytesMut,
    frame_max: u32,
    deadline: Instant,
}

/// A message that was got.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) redelivered: bool,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    /// Messages left in the queue.
    pub(crate) message_count: u32,
    /// The property list from its flags on.
    pub(crate) properties: Bytes,
    pub(crate) body: Vec<u8>,
}

/// What becomes of messages that were got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settle {
    Ack,
    /// Dropped or dead-lettered.
    Reject,
    Requeue,
}

/// A short string of a name in a path, which may be too long for one.
fn short<'a>(what: &str, name: &'a str) -> Result<ShortStr<'a>, Error> {
    crate::check_name(what, name)?;
    Ok(ShortStr::truncated(name))
}

fn closed(code: u16, text: ShortStr<'_>) -> Error {
    let text = text.to_string_lossy();
    let reason = text
        .strip_prefix(reply_name(code))
        .and_then(|rest| rest.strip_prefix(" - "))
        .unwrap_or(&text);
    match code {
        CONNECTION_FORCED | INTERNAL_ERROR | RESOURCE_ERROR => Error::unavailable(reason),
        // A virtual host that the user has no permissions in.
        NOT_ALLOWED => Error::not_authorised(reason),
        _ => Refusal::new(code, reason).into(),
    }
}

fn undecodable(error: DecodeError) -> Error {
    Error::unavailable(format!("the node's own session cannot be read: {error}"))
}

impl Client {
    /// Opens a session in a virtual host.
    pub(crate) async fn open(node: &Arc<Node>, login: &Login, vhost: &str) -> Result<Self, Error> {
        let virtual_host = short("name of the virtual host", vhost)?;
        let (stream, far) = tokio::io::duplex(PIPE_BYTES);
        tokio::spawn(node.clone().serve(far, login.peer));
        let mut client = Self {
            node: node.clone(),
            stream,
            incoming: BytesMut::new(),
            frame_max: 0,
            deadline: Instant::now() + DEADLINE,
        };
        client.log_in(login).await?;
        client.send(0, ConnectionOpen { virtual_host }).await?;
        client.expect("connection.open-ok").await?;
        client.call(Method::ChannelOpen, "channel.open-ok").await?;
        Ok(client)
    }

    async fn log_in(&mut self, login: &Login) -> Result<(), Error> {
        self.write(&PROTOCOL_HEADER).await?;
        self.expect("connection.start").await?;
        // Else a refused login would be told by closing the pipe without a word.
        let mut capabilities = OwnedTable::new();
        capabilities.put("authentication_failure_close", OwnedValue::Bool(true));
        let mut properties = OwnedTable::new();
        properties
            .put("connection_name", OwnedValue::from("HTTP API"))
            .put("capabilities", OwnedValue::Table(capabilities));
        let properties = properties.to_bytes();
        let start_ok = ConnectionStartOk {
            client_properties: Table::parse(&properties).map_err(undecodable)?,
            mechanism: ShortStr::from_static("PLAIN"),
            response: &[b"\0", &*login.user, b"\0", &*login.password].concat(),
            locale: ShortStr::from_static("en_US"),
        };
        self.send(0, start_ok).await?;
        let tune = self.expect("connection.tune").await?;
        if let Method::ConnectionTune(tune) = Method::decode(&tune).map_err(undecodable)? {
            self.frame_max = tune.frame_max;
            let tune_ok = ConnectionTuneOk {
                channel_max: tune.channel_max,
                frame_max: tune.frame_max,
                heartbeat: 0,
            };
            self.send(0, tune_ok).await?;
        }
        Ok(())
    }

    /// How long the client may still take.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Declares a queue that is durable and nothing else.
    pub(crate) async fn declare(&mut self, queue: &str) -> Result<(), Error> {
        let declare = QueueDeclare {
            queue: short("name of the queue", queue)?,
            durable: true,
            ..QueueDeclare::default()
        };
        self.call(declare, "queue.declare-ok").await.map(drop)
    }

    /// Publishes a message and waits until it is confirmed. Says whether it was routed to any queue.
    pub(crate) async fn publish(
        &mut self,
        exchange: &str,
        routing_key: &str,
        properties: &[u8],
        body: &[u8],
    ) -> Result<bool, Error> {
        let select = ConfirmSelect { no_wait: false };
        self.call(select, "confirm.select-ok").await?;
        let publish = BasicPublish {
            exchange: short("name of the exchange", exchange)?,
            routing_key: short("routing key", routing_key)?,
            mandatory: true,
            immediate: false,
        };
        let mut bytes = Vec::new();
        Method::from(publish).write(CHANNEL, &mut bytes);
        write_content(
            &mut bytes,
            CHANNEL,
            self.frame_max,
            CLASS_BASIC,
            properties,
            body,
        );
        self.write(&bytes).await?;
        drop(bytes);
        let mut routed = true;
        loop {
            let payload = self.method("basic.ack").await?;
            match Method::decode(&payload).map_err(undecodable)?.name() {
                "basic.ack" => return Ok(routed),
                "basic.return" => {
                    routed = false;
                    self.content().await?;
                }
                "basic.nack" => {
                    return Err(Error::unavailable(
                        "the message was not taken: a queue is full, or its owner cannot be reached now",
                    ));
                }
                other => return Err(astray(other, "basic.ack")),
            }
        }
    }

    /// Gets a message, to be settled, if there is one.
    pub(crate) async fn get(&mut self, queue: &str) -> Result<Option<Got>, Error> {
        let get = BasicGet {
            queue: short("name of the queue", queue)?,
            no_ack: false,
        };
        self.send(CHANNEL, get).await?;
        let payload = self.method("basic.get-ok").await?;
        let method = Method::decode(&payload).map_err(undecodable)?;
        let Method::BasicGetOk(ok) = method else {
            return match method.name() {
                "basic.get-empty" => Ok(None),
                other => Err(astray(other, "basic.get-ok")),
            };
        };
        let (properties, body) = self.content().await?;
        Ok(Some(Got {
            redelivered: ok.redelivered,
            exchange: ok.exchange.to_string_lossy().into_owned(),
            routing_key: ok.routing_key.to_string_lossy().into_owned(),
            message_count: ok.message_count,
            properties,
            body,
        }))
    }

    /// Settles all that was got from a queue, and waits until its owner has done so: whoever looks afterwards sees it.
    pub(crate) async fn settle_all(&mut self, queue: &str, how: Settle) -> Result<(), Error> {
        let (delivery_tag, multiple) = (0, true);
        let nack = |requeue| BasicNack {
            delivery_tag,
            multiple,
            requeue,
        };
        let method: Method<'_> = match how {
            Settle::Ack => BasicAck {
                delivery_tag,
                multiple,
            }
            .into(),
            Settle::Reject => nack(false).into(),
            Settle::Requeue => nack(true).into(),
        };
        self.send(CHANNEL, method).await?;
        // Settlements have no answer; the owner takes this question after them.
        let count = QueueDeclare {
            queue: short("name of the queue", queue)?,
            passive: true,
            ..QueueDeclare::default()
        };
        self.call(count, "queue.declare-ok").await.map(drop)
    }

    /// Takes all messages that are ready out of a queue.
    pub(crate) async fn purge(&mut self, queue: &str) -> Result<(), Error> {
        let purge = QueuePurge {
            queue: short("name of the queue", queue)?,
            no_wait: false,
        };
        self.call(purge, "queue.purge-ok").await.map(drop)
    }

    /// Deletes a queue, if its owner finds it unused and empty as asked.
    pub(crate) async fn delete(
        &mut self,
        queue: &str,
        if_unused: bool,
        if_empty: bool,
    ) -> Result<(), Error> {
        let delete = QueueDelete {
            queue: short("name of the queue", queue)?,
            if_unused,
            if_empty,
            no_wait: false,
        };
        self.call(delete, "queue.delete-ok").await.map(drop)
    }

    /// Ends the session in good order. What was done is done whether this succeeds or not.
    pub(crate) async fn close(mut self) {
        let close = ConnectionClose {
            reply_code: warren_protocol::REPLY_SUCCESS,
            reply_text: ShortStr::from_static("done"),
            class_id: 0,
            method_id: 0,
        };
        let result = match self.send(0, close).await {
            Ok(()) => self.expect("connection.close-ok").await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            tracing::debug!(?error, "a session of the HTTP API did not close well");
        }
    }

    async fn call<'a>(
        &mut self,
        method: impl Into<Method<'a>>,
        reply: &'static str,
    ) -> Result<Bytes, Error> {
        self.send(CHANNEL, method).await?;
        self.expect(reply).await
    }

    async fn send<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        method.into().write(channel, &mut bytes);
        self.write(&bytes).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match timeout_at(self.deadline, self.stream.write_all(bytes)).await {
            // An error means that the session has ended: why, is among what can still be read.
            Ok(Ok(()) | Err(_)) => Ok(()),
            Err(_) => Err(self.late("took")),
        }
    }

    /// The payload of the next method, which must be this one.
    async fn expect(&mut self, name: &'static str) -> Result<Bytes, Error> {
        let payload = self.method(name).await?;
        let found = Method::decode(&payload).map_err(undecodable)?.name();
        if found == name {
            return Ok(payload);
        }
        Err(astray(found, name))
    }

    /// The payload of the next method, whatever it is; but a close is an error.
    async fn method(&mut self, awaited: &str) -> Result<Bytes, Error> {
        let payload = self.frame(FrameKind::Method, awaited).await?;
        let method = Method::decode(&payload).map_err(undecodable)?;
        if let Method::ChannelClose(close) = method {
            return Err(closed(close.reply_code, close.reply_text));
        }
        if let Method::ConnectionClose(close) = method {
            return Err(closed(close.reply_code, close.reply_text));
        }
        Ok(payload)
    }

    /// The content that follows a method: its property list and its body.
    async fn content(&mut self) -> Result<(Bytes, Vec<u8>), Error> {
        let payload = self.frame(FrameKind::Header, "a content header").await?;
        let header = parse_content_header(&payload).map_err(undecodable)?;
        let size = usize::try_from(header.body_size).unwrap_or(usize::MAX);
        let properties = payload.slice_ref(header.properties);
        // Bodies are bounded by what the node lets anybody publish.
        let mut body = Vec::with_capacity(size);
        while body.len() < size {
            body.extend_from_slice(&self.frame(FrameKind::Body, "a content body").await?);
        }
        Ok((properties, body))
    }

    /// The payload of the next frame, which must be of this kind. There are no heartbeats, as agreed.
    async fn frame(&mut self, kind: FrameKind, awaited: &str) -> Result<Bytes, Error> {
        loop {
            let raw = parse_frame(&self.incoming, 0).map_err(|error| {
                Error::unavailable(format!("the node's own session cannot be read: {error}"))
            })?;
            if let Some(raw) = raw {
                let (found, length) = (raw.kind, raw.wire_len());
                let whole = self.incoming.split_to(length).freeze();
                if found == kind {
                    return Ok(whole.slice(FRAME_HEAD..length - 1));
                }
                return Err(astray(&format!("a frame of kind {found:?}"), awaited));
            }
            self.incoming.reserve(PIPE_BYTES);
            match timeout_at(self.deadline, self.stream.read_buf(&mut self.incoming)).await {
                Ok(Ok(0) | Err(_)) => {
                    return Err(Error::unavailable(format!(
                        "the session ended before it sent {awaited}"
                    )));
                }
                Ok(Ok(_)) => {}
                Err(_) => return Err(self.late("answered")),
            }
        }
    }

    fn late(&self, what: &str) -> Error {
        let why = if self.node.alarm() {
            "publishers are blocked: a node is low on memory or disk"
        } else {
            "the queue's owner may be out of reach"
        };
        Error::unavailable(format!(
            "nobody {what} the request within {} s: {why}; whether it was carried out is not known",
            DEADLINE.as_secs()
        ))
    }
}

fn astray(found: &str, awaited: &str) -> Error {
    Error::unavailable(format!("the session sent {found} instead of {awaited}"))
}
