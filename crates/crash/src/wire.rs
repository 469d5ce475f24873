//! A client's connection with one channel: never blocks longer than it is told to, and takes in whole messages.
//!
//! Flow: the owner puts methods and contents into the output ([`Wire::send`], [`Wire::publish`]), calls [`Wire::pump`], which writes what
//! the socket takes and reads what has come, and takes events out with [`Wire::event`] until there are none. What had come before the
//! connection ended is handed out before its end is.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use thiserror::Error;
use warren_protocol::{
    BasicConsume, BasicPublish, BasicQos, CLASS_BASIC, ConfirmSelect, ConnectionClose,
    ConnectionOpen, ConnectionStartOk, ConnectionTuneOk, DecodeError, FRAME_OVERHEAD, FrameError,
    FrameKind, Method, OwnedTable, OwnedValue, PROTOCOL_HEADER, Properties, QueueDeclare, ShortStr,
    Table, parse_content_header, parse_frame, write_content,
};

const CHANNEL: u16 = 1;
const FRAME_MAX: u32 = 131_072;
/// How long connecting may take, and each answer to a request.
const ANSWER: Duration = Duration::from_secs(5);
/// What one turn reads at most, so that a flood does not keep its client from writing.
const TURN: usize = 1 << 20;

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Gone {
    /// It cannot be made, has been closed, or is broken.
    #[error("{0}")]
    Lost(String),
    /// The broker has sent what the protocol does not allow.
    #[error("{0}")]
    Broken(String),
}

impl From<std::io::Error> for Gone {
    fn from(error: std::io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}

impl From<DecodeError> for Gone {
    fn from(error: DecodeError) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<FrameError> for Gone {
    fn from(error: FrameError) -> Self {
        Self::Broken(error.to_string())
    }
}

/// What the broker said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `basic.ack` or, if `refused`, `basic.nack` of a publish.
    Outcome {
        /// The publish.
        tag: u64,
        /// And all before it.
        multiple: bool,
        /// Refused.
        refused: bool,
    },
    /// `basic.return`.
    Returned {
        /// The message.
        body: Vec<u8>,
    },
    /// `basic.deliver`.
    Delivered {
        /// The consumer.
        consumer: String,
        /// The delivery's number.
        tag: u64,
        /// The flag.
        redelivered: bool,
        /// The message.
        body: Vec<u8>,
    },
    /// `basic.cancel`.
    Cancelled {
        /// The consumer.
        consumer: String,
    },
    /// `queue.declare-ok`.
    Declared {
        /// Messages that are ready.
        ready: u32,
    },
    /// Any other method, by its name.
    Other(&'static str),
}

/// The method that a content belongs to.
#[derive(Debug)]
enum Head {
    Return,
    Deliver {
        consumer: String,
        tag: u64,
        redelivered: bool,
    },
}

/// A content that is not complete yet.
#[derive(Debug)]
struct Content {
    head: Head,
    size: Option<u64>,
    body: Vec<u8>,
}

/// The connection.
#[derive(Debug)]
pub struct Wire {
    socket: TcpStream,
    input: Vec<u8>,
    /// How much of the input has been taken out.
    taken: usize,
    output: Vec<u8>,
    /// How much of the output has been written.
    written: usize,
    frame_max: u32,
    content: Option<Content>,
    end: Option<Gone>,
}

impl Wire {
    /// Connects as guest to the virtual host `/` and opens the channel.
    pub fn open(address: SocketAddr, name: &str) -> Result<Self, Gone> {
        let socket = TcpStream::connect_timeout(&address, ANSWER)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut wire = Self {
            socket,
            input: Vec::new(),
            taken: 0,
            output: PROTOCOL_HEADER.to_vec(),
            written: 0,
            frame_max: FRAME_MAX,
            content: None,
            end: None,
        };
        wire.expect("connection.start")?;
        wire.start_ok(name)?;
        wire.expect("connection.tune")?;
        wire.send_on(
            0,
            ConnectionTuneOk {
                channel_max: 16,
                frame_max: wire.frame_max,
                heartbeat: 0,
            },
        );
        wire.send_on(
            0,
            ConnectionOpen {
                virtual_host: ShortStr::from_static("/"),
            },
        );
        wire.expect("connection.open-ok")?;
        wire.call(Method::ChannelOpen, "channel.open-ok")?;
        Ok(wire)
    }

    fn start_ok(&mut self, name: &str) -> Result<(), Gone> {
        let mut capabilities = OwnedTable::new();
        for capability in [
            "publisher_confirms",
            "basic.nack",
            "consumer_cancel_notify",
            "authentication_failure_close",
        ] {
            capabilities.put(capability, OwnedValue::Bool(true));
        }
        let mut properties = OwnedTable::new();
        properties.put(
            "connection_name",
            OwnedValue::LongStr(name.as_bytes().to_vec()),
        );
        properties.put("capabilities", OwnedValue::Table(capabilities));
        let entries = properties.to_bytes();
        self.send_on(
            0,
            ConnectionStartOk {
                client_properties: Table::parse(&entries)?,
                mechanism: ShortStr::from_static("PLAIN"),
                response: b"\0guest\0guest",
                locale: ShortStr::from_static("en_US"),
            },
        );
        Ok(())
    }

    /// Makes the channel confirm what is published on it.
    pub fn confirm(&mut self) -> Result<(), Gone> {
        self.call(ConfirmSelect { no_wait: false }, "confirm.select-ok")
    }

    /// Bounds the unacknowledged deliveries of each consumer that is started after it.
    pub fn prefetch(&mut self, count: u16) -> Result<(), Gone> {
        let qos = BasicQos {
            prefetch_size: 0,
            prefetch_count: count,
            global: false,
        };
        self.call(qos, "basic.qos-ok")
    }

    /// Asks for a queue's messages. The answer comes among the events, as deliveries may before it.
    pub fn consume(&mut self, queue: &str, consumer: &str) {
        self.send(BasicConsume {
            queue: ShortStr::truncated(queue),
            consumer_tag: ShortStr::truncated(consumer),
            ..BasicConsume::default()
        });
    }

    /// Declares a durable queue of this type, or only asks for it; answers how many messages are ready.
    pub fn declare(&mut self, queue: &str, kind: &str, passive: bool) -> Result<u32, Gone> {
        let mut arguments = OwnedTable::new();
        arguments.put("x-queue-type", OwnedValue::LongStr(kind.into()));
        let entries = arguments.to_bytes();
        self.send(QueueDeclare {
            queue: ShortStr::truncated(queue),
            passive,
            durable: true,
            arguments: Table::parse(&entries)?,
            ..QueueDeclare::default()
        });
        let answer = self.wait("queue.declare-ok")?;
        if let Event::Declared { ready } = answer {
            return Ok(ready);
        }
        Err(Gone::Broken(format!(
            "{answer:?} instead of queue.declare-ok"
        )))
    }

    /// Closes in order: what was sent before has then arrived.
    pub fn close(mut self) -> Result<(), Gone> {
        self.send_on(
            0,
            ConnectionClose {
                reply_code: 200,
                reply_text: ShortStr::from_static("done"),
                class_id: 0,
                method_id: 0,
            },
        );
        // Deliveries that are under way when it is sent are not ours any more.
        let deadline = Instant::now() + ANSWER;
        loop {
            if self.next(deadline, "connection.close-ok")? == Event::Other("connection.close-ok") {
                return Ok(());
            }
        }
    }

    /// Puts a method into the output.
    pub fn send<'a>(&mut self, method: impl Into<Method<'a>>) {
        self.send_on(CHANNEL, method);
    }

    fn send_on<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) {
        method.into().write(channel, &mut self.output);
    }

    /// Puts a persistent, mandatory message to a queue into the output.
    pub fn publish(&mut self, queue: &str, body: &[u8]) {
        self.send(BasicPublish {
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::truncated(queue),
            mandatory: true,
            immediate: false,
        });
        let mut properties = Vec::new();
        Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        }
        .encode(&mut properties);
        write_content(
            &mut self.output,
            CHANNEL,
            self.frame_max,
            CLASS_BASIC,
            &properties,
            body,
        );
    }

    /// How many bytes wait to be written.
    pub fn unwritten(&self) -> usize {
        self.output.len() - self.written
    }

    /// Sends a method and waits for its answer.
    pub fn call<'a>(&mut self, method: impl Into<Method<'a>>, answer: &str) -> Result<(), Gone> {
        self.send(method);
        self.expect(answer)
    }

    fn expect(&mut self, answer: &str) -> Result<(), Gone> {
        let event = self.wait(answer)?;
        if matches!(event, Event::Other(name) if name == answer) {
            return Ok(());
        }
        Err(Gone::Broken(format!("{event:?} instead of {answer}")))
    }

    fn wait(&mut self, answer: &str) -> Result<Event, Gone> {
        self.next(Instant::now() + ANSWER, answer)
    }

    fn next(&mut self, deadline: Instant, awaited: &str) -> Result<Event, Gone> {
        loop {
            if let Some(event) = self.event()? {
                return Ok(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Gone::Lost(format!("no {awaited} within {ANSWER:?}")));
            }
            self.pump(left);
        }
    }

    /// Writes what the socket takes and reads what has come; waits for either, but not longer than this.
    pub fn pump(&mut self, wait: Duration) {
        if self.end.is_none()
            && let Err(end) = self.try_pump(wait)
        {
            self.end = Some(end);
        }
    }

    fn try_pump(&mut self, wait: Duration) -> Result<(), Gone> {
        self.flush()?;
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, self.unwritten() > 0);
        // A wait of less than a millisecond would be none at all, and the loop around it would spin.
        let millis = u16::try_from(wait.as_millis()).unwrap_or(u16::MAX).max(1);
        let mut polled = [PollFd::new(self.socket.as_fd(), flags)];
        match poll(&mut polled, PollTimeout::from(millis)) {
            Ok(0) | Err(Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(Gone::Lost(format!("poll: {error}"))),
        }
        self.flush()?;
        self.fill()
    }

    fn flush(&mut self) -> Result<(), Gone> {
        while self.unwritten() > 0 {
            match self.socket.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // Its reason may be in what the broker has sent before.
                    let _ = self.fill();
                    return Err(error.into());
                }
            }
        }
        if self.unwritten() == 0 {
            self.output.clear();
            self.written = 0;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), Gone> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let mut chunk = [0; 64 * 1024];
        let mut read = 0;
        while read < TURN {
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(Gone::Lost("the broker closed the socket".to_owned())),
                Ok(count) => {
                    self.input.extend_from_slice(&chunk[..count]);
                    read += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The next event, if one has come; the connection's end comes after all events that came before it.
    pub fn event(&mut self) -> Result<Option<Event>, Gone> {
        loop {
            let Some(frame) = parse_frame(&self.input[self.taken..], self.frame_max)? else {
                return self.end.clone().map_or(Ok(None), Err);
            };
            let (kind, payload) = (
                frame.kind,
                self.taken + 7..self.taken + 7 + frame.payload.len(),
            );
            self.taken = payload.end + FRAME_OVERHEAD - 7;
            let event = match kind {
                FrameKind::Heartbeat => None,
                FrameKind::Method => self.method(payload)?,
                FrameKind::Header => self.header(payload)?,
                FrameKind::Body => self.body(payload)?,
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    fn method(&mut self, payload: std::ops::Range<usize>) -> Result<Option<Event>, Gone> {
        let method = Method::decode(&self.input[payload])?;
        if self.content.is_some() {
            return Err(Gone::Broken(format!("{} inside a content", method.name())));
        }
        let text = |text: ShortStr<'_>| text.to_string_lossy().into_owned();
        if let Method::BasicAck(ack) = method {
            return Ok(Some(Event::Outcome {
                tag: ack.delivery_tag,
                multiple: ack.multiple,
                refused: false,
            }));
        }
        if let Method::BasicNack(nack) = method {
            return Ok(Some(Event::Outcome {
                tag: nack.delivery_tag,
                multiple: nack.multiple,
                refused: true,
            }));
        }
        if let Method::BasicDeliver(deliver) = method {
            self.begin(Head::Deliver {
                consumer: text(deliver.consumer_tag),
                tag: deliver.delivery_tag,
                redelivered: deliver.redelivered,
            });
            return Ok(None);
        }
        if let Method::BasicReturn(_) = method {
            self.begin(Head::Return);
            return Ok(None);
        }
        if let Method::BasicCancel(cancel) = method {
            return Ok(Some(Event::Cancelled {
                consumer: text(cancel.consumer_tag),
            }));
        }
        if let Method::QueueDeclareOk(declared) = method {
            return Ok(Some(Event::Declared {
                ready: declared.message_count,
            }));
        }
        if let Method::ConnectionTune(tune) = method {
            if tune.frame_max != 0 {
                self.frame_max = tune.frame_max.min(FRAME_MAX);
            }
            return Ok(Some(Event::Other(method.name())));
        }
        if let Method::ConnectionClose(close) = method {
            let why = format!(
                "connection closed: {} {}",
                close.reply_code,
                text(close.reply_text)
            );
            self.send_on(0, Method::ConnectionCloseOk);
            let _ = self.flush();
            return Err(Gone::Lost(why));
        }
        if let Method::ChannelClose(close) = method {
            let why = format!(
                "channel closed: {} {}",
                close.reply_code,
                text(close.reply_text)
            );
            return Err(Gone::Lost(why));
        }
        Ok(Some(Event::Other(method.name())))
    }

    fn begin(&mut self, head: Head) {
        self.content = Some(Content {
            head,
            size: None,
            body: Vec::new(),
        });
    }

    fn header(&mut self, payload: std::ops::Range<usize>) -> Result<Option<Event>, Gone> {
        let header = parse_content_header(&self.input[payload])?;
        match &mut self.content {
            Some(content) if content.size.is_none() => content.size = Some(header.body_size),
            Some(_) | None => {
                return Err(Gone::Broken("a content header out of place".to_owned()));
            }
        }
        self.complete()
    }

    fn body(&mut self, payload: std::ops::Range<usize>) -> Result<Option<Event>, Gone> {
        let Some(content) = &mut self.content else {
            return Err(Gone::Broken("a body out of place".to_owned()));
        };
        content.body.extend_from_slice(&self.input[payload]);
        self.complete()
    }

    /// The content as an event, once all of it has come.
    fn complete(&mut self) -> Result<Option<Event>, Gone> {
        let Some(content) = self.content.take() else {
            return Ok(None);
        };
        let Some(size) = content.size else {
            return Err(Gone::Broken("a body before its header".to_owned()));
        };
        match (content.body.len() as u64).cmp(&size) {
            std::cmp::Ordering::Less => {
                self.content = Some(content);
                Ok(None)
            }
            std::cmp::Ordering::Greater => Err(Gone::Broken(format!(
                "a body of {} bytes where {size} were announced",
                content.body.len()
            ))),
            std::cmp::Ordering::Equal => Ok(Some(match content.head {
                Head::Return => Event::Returned { body: content.body },
                Head::Deliver {
                    consumer,
                    tag,
                    redelivered,
                } => Event::Delivered {
                    consumer,
                    tag,
                    redelivered,
                    body: content.body,
                },
            })),
        }
    }
}
