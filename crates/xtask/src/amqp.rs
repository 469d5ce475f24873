//! A small blocking AMQP 0-9-1 client: one connection, one channel, just what proves that a cluster carries messages.
//!
//! On the wire's own crate, so that it tests the server with the same encoding that the server was tested with; strangers' clients are
//! the black-box tests' matter. Every wait has a deadline.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use warren_protocol::{
    BasicAck, BasicConsume, BasicPublish, CLASS_BASIC, ConfirmSelect, ConnectionClose,
    ConnectionOpen, ConnectionStartOk, ConnectionTuneOk, FrameKind, Method, PROTOCOL_HEADER,
    Properties, ShortStr, Table, parse_content_header, parse_frame, write_content,
};

const DEADLINE: Duration = Duration::from_secs(15);
const CHANNEL: u16 = 1;
/// Small enough for every server; the proof's messages are smaller still.
const FRAME_MAX: u32 = 4096;

/// One connection with one open channel.
pub struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    /// Bytes that have come and are not yet read as frames.
    incoming: Vec<u8>,
}

struct Frame {
    kind: FrameKind,
    payload: Vec<u8>,
}

/// `text` as a short string; names in here are short by construction.
pub fn short(text: &str) -> ShortStr<'_> {
    ShortStr::truncated(text)
}

impl Connection {
    /// Connects as guest to the virtual host `/` and opens the channel.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, DEADLINE)
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream,
            address,
            incoming: Vec::new(),
        };
        connection.stream.write_all(&PROTOCOL_HEADER)?;
        connection.expect("connection.start")?;
        let start_ok = ConnectionStartOk {
            client_properties: Table::EMPTY,
            mechanism: short("PLAIN"),
            response: b"\0guest\0guest",
            locale: short("en_US"),
        };
        connection.send(0, start_ok)?;
        let tune = connection.expect("connection.tune")?;
        let Method::ConnectionTune(tune) = Method::decode(&tune)? else {
            bail!("{address} sent no connection.tune")
        };
        connection.send(
            0,
            ConnectionTuneOk {
                channel_max: tune.channel_max,
                frame_max: FRAME_MAX,
                heartbeat: 0,
            },
        )?;
        connection.send(
            0,
            ConnectionOpen {
                virtual_host: short("/"),
            },
        )?;
        connection.expect("connection.open-ok")?;
        connection.call(Method::ChannelOpen, "channel.open-ok")?;
        Ok(connection)
    }

    /// Sends a method on the channel and waits for its reply.
    pub fn call<'a>(&mut self, method: impl Into<Method<'a>>, reply: &str) -> Result<()> {
        self.send(CHANNEL, method)?;
        self.expect(reply).map(drop)
    }

    /// Makes the channel confirm what is published on it.
    pub fn confirm(&mut self) -> Result<()> {
        self.call(ConfirmSelect { no_wait: false }, "confirm.select-ok")
    }

    /// Publishes one persistent message that must be routed, and waits until it is confirmed.
    pub fn publish(&mut self, exchange: &str, key: &str, body: &[u8]) -> Result<()> {
        let mut properties = Vec::new();
        Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        }
        .encode(&mut properties);
        let publish = BasicPublish {
            exchange: short(exchange),
            routing_key: short(key),
            mandatory: true,
            immediate: false,
        };
        let mut bytes = Vec::new();
        Method::from(publish).write(CHANNEL, &mut bytes);
        write_content(
            &mut bytes,
            CHANNEL,
            FRAME_MAX,
            CLASS_BASIC,
            &properties,
            body,
        );
        self.stream.write_all(&bytes)?;
        let outcome = self.next_method("basic.ack")?;
        match Method::decode(&outcome)?.name() {
            "basic.ack" => Ok(()),
            "basic.return" => bail!(
                "{} found no queue for the message: its routing table lacks the binding",
                self.address
            ),
            other => bail!("{} answered the publish with {other}", self.address),
        }
    }

    /// Consumes from a queue until one message has come, and acknowledges it.
    pub fn receive(&mut self, queue: &str) -> Result<Vec<u8>> {
        let consume = BasicConsume {
            queue: short(queue),
            ..BasicConsume::default()
        };
        self.call(consume, "basic.consume-ok")?;
        let delivery = self.expect("basic.deliver")?;
        let Method::BasicDeliver(deliver) = Method::decode(&delivery)? else {
            bail!("{} sent no basic.deliver", self.address)
        };
        let delivery_tag = deliver.delivery_tag;
        let header = self.frame(FrameKind::Header, "a content header")?;
        let size = usize::try_from(parse_content_header(&header.payload)?.body_size)?;
        let mut body = Vec::new();
        while body.len() < size {
            body.extend_from_slice(&self.frame(FrameKind::Body, "a body")?.payload);
        }
        self.send(
            CHANNEL,
            BasicAck {
                delivery_tag,
                multiple: false,
            },
        )?;
        Ok(body)
    }

    /// Closes in order, so that the server has seen everything that was sent before.
    pub fn close(mut self) -> Result<()> {
        self.send(
            0,
            ConnectionClose {
                reply_code: 200,
                reply_text: short("done"),
                class_id: 0,
                method_id: 0,
            },
        )?;
        self.expect("connection.close-ok").map(drop)
    }

    fn send<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) -> Result<()> {
        let mut bytes = Vec::new();
        method.into().write(channel, &mut bytes);
        self.stream
            .write_all(&bytes)
            .with_context(|| format!("cannot write to {}", self.address))
    }

    /// The payload of the next method, which must be this one.
    fn expect(&mut self, name: &str) -> Result<Vec<u8>> {
        let payload = self.next_method(name)?;
        let found = Method::decode(&payload)?.name();
        if found != name {
            bail!("{} sent {found} instead of {name}", self.address);
        }
        Ok(payload)
    }

    /// The payload of the next method, whatever it is; a close is an error with the server's words.
    fn next_method(&mut self, awaited: &str) -> Result<Vec<u8>> {
        let frame = self.frame(FrameKind::Method, awaited)?;
        let method = Method::decode(&frame.payload)?;
        let closed = if let Method::ConnectionClose(close) = &method {
            Some((close.reply_code, close.reply_text))
        } else if let Method::ChannelClose(close) = &method {
            Some((close.reply_code, close.reply_text))
        } else {
            None
        };
        match closed {
            Some((code, text)) => bail!(
                "{} closed with {code} {}",
                self.address,
                text.as_str().unwrap_or("")
            ),
            None => Ok(frame.payload),
        }
    }

    /// The next frame but for heartbeats, which must be of this kind.
    fn frame(&mut self, kind: FrameKind, awaited: &str) -> Result<Frame> {
        loop {
            if let Some(frame) = self.buffered()? {
                if frame.kind == kind {
                    return Ok(frame);
                }
                if frame.kind == FrameKind::Heartbeat {
                    continue;
                }
                bail!(
                    "{} sent a frame of kind {:?} instead of {awaited}",
                    self.address,
                    frame.kind
                );
            }
            let mut chunk = [0; 8192];
            let read = self.stream.read(&mut chunk);
            let count = read.with_context(|| {
                format!(
                    "no {awaited} from {} within {} s",
                    self.address,
                    DEADLINE.as_secs()
                )
            })?;
            if count == 0 {
                bail!(
                    "{} closed the connection instead of sending {awaited}",
                    self.address
                );
            }
            self.incoming
                .extend_from_slice(chunk.get(..count).unwrap_or_default());
        }
    }

    fn buffered(&mut self) -> Result<Option<Frame>> {
        let Some(raw) = parse_frame(&self.incoming, 0)? else {
            return Ok(None);
        };
        let frame = Frame {
            kind: raw.kind,
            payload: raw.payload.to_vec(),
        };
        self.incoming
            .drain(..warren_protocol::FRAME_OVERHEAD + frame.payload.len());
        Ok(Some(frame))
    }
}
