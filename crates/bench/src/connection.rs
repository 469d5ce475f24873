//! One blocking AMQP connection with one channel: the handshake, requests and their answers, and the socket for the fast paths.
//!
//! Nothing here waits for ever: reads and writes time out every [`TICK`], and whoever waits looks at a deadline then.

use std::fmt;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use warren_protocol::{
    ConnectionClose, ConnectionOpen, ConnectionStartOk, ConnectionTuneOk, FrameKind, Method,
    OwnedTable, PROTOCOL_HEADER, REPLY_SUCCESS, ShortStr, Table, parse_frame,
};

use crate::input::{Input, is_timeout};
use crate::target::Target;

/// How often a blocked read or write looks up.
pub const TICK: Duration = Duration::from_millis(100);
/// The one channel that is used.
pub const CHANNEL: u16 = 1;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(30);
/// The frame size that is asked for; fits the receive buffer.
const FRAME_MAX: u32 = 131_072;

/// The connection.
#[derive(Debug)]
pub struct Connection {
    /// The socket; blocking, with timeouts of [`TICK`].
    pub socket: TcpStream,
    /// What has been read.
    pub input: Input,
    /// The negotiated frame size.
    pub frame_max: u32,
}

impl Connection {
    /// Connects, opens the virtual host and one channel. `name` is shown by the broker.
    ///
    /// # Errors
    /// If the broker cannot be reached, refuses, or does not answer in time.
    pub fn open(target: &Target, name: &str) -> Result<Self> {
        Self::handshake(target, name).with_context(|| format!("connecting to {}", target.shown))
    }

    fn handshake(target: &Target, name: &str) -> Result<Self> {
        let socket = TcpStream::connect_timeout(&target.address, ANSWER)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        let mut connection = Self {
            socket,
            input: Input::new(),
            frame_max: FRAME_MAX,
        };
        connection.send(&PROTOCOL_HEADER)?;
        connection.answer("connection.start")?;
        connection.send_start_ok(target, name)?;
        connection.send_tune_ok()?;
        let open = ConnectionOpen {
            virtual_host: short(&target.vhost)?,
        };
        connection.request_on(0, &Method::ConnectionOpen(open), "connection.open-ok")?;
        connection.request(&Method::ChannelOpen, "channel.open-ok")?;
        Ok(connection)
    }

    fn send_start_ok(&mut self, target: &Target, name: &str) -> Result<()> {
        let mut capabilities = OwnedTable::new();
        for capability in [
            "publisher_confirms",
            "basic.nack",
            "consumer_cancel_notify",
            "authentication_failure_close",
        ] {
            capabilities.put(capability, warren_protocol::OwnedValue::Bool(true));
        }
        let mut properties = OwnedTable::new();
        properties.put("product", text("warren-bench"));
        properties.put("connection_name", text(name));
        properties.put(
            "capabilities",
            warren_protocol::OwnedValue::Table(capabilities),
        );
        let mut entries = Vec::new();
        properties.encode_entries(&mut entries);
        let response = format!("\0{}\0{}", target.user, target.password);
        let start_ok = ConnectionStartOk {
            client_properties: Table::parse(&entries)?,
            mechanism: ShortStr::from_static("PLAIN"),
            response: response.as_bytes(),
            locale: ShortStr::from_static("en_US"),
        };
        self.send_method(0, &Method::ConnectionStartOk(start_ok))
    }

    fn send_tune_ok(&mut self) -> Result<()> {
        let tune = self.next("connection.tune", |method| {
            if let Method::ConnectionTune(tune) = method {
                Some(*tune)
            } else {
                None
            }
        })?;
        if tune.frame_max != 0 {
            self.frame_max = tune.frame_max.min(FRAME_MAX);
        }
        // No heartbeats: a producer without confirms does not read, and every wait has a deadline of its own.
        let tune_ok = ConnectionTuneOk {
            channel_max: tune.channel_max,
            frame_max: self.frame_max,
            heartbeat: 0,
        };
        self.send_method(0, &Method::ConnectionTuneOk(tune_ok))
    }

    /// Sends a request on the channel and waits for the answer of that name.
    ///
    /// # Errors
    /// If the broker closes the channel or the connection instead, or does not answer in time.
    pub fn request(&mut self, method: &Method<'_>, answer: &'static str) -> Result<()> {
        self.request_on(CHANNEL, method, answer)
    }

    fn request_on(
        &mut self,
        channel: u16,
        method: &Method<'_>,
        answer: &'static str,
    ) -> Result<()> {
        self.send_method(channel, method)?;
        self.answer(answer)
    }

    /// Waits for one answer of that name.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn answer(&mut self, name: &'static str) -> Result<()> {
        self.next(name, |method| (method.name() == name).then_some(()))
    }

    fn send_method(&mut self, channel: u16, method: &Method<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        method.write(channel, &mut bytes);
        self.send(&bytes)
            .with_context(|| format!("sending {}", method.name()))
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The socket's, or if the broker does not read for a long time.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let give_up = Instant::now() + ANSWER;
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.socket.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if is_timeout(&error) => {
                    ensure!(
                        Instant::now() < give_up,
                        "the broker has not read for {} s",
                        ANSWER.as_secs()
                    );
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads until a method is accepted. Methods that are not accepted are passed over, as are contents and heartbeats.
    fn next<T>(
        &mut self,
        what: &str,
        mut accept: impl FnMut(&Method<'_>) -> Option<T>,
    ) -> Result<T> {
        let give_up = Instant::now() + ANSWER;
        loop {
            while let Some(frame) = parse_frame(self.input.unread(), self.frame_max)? {
                let length = frame.wire_len();
                let found = match frame.kind {
                    FrameKind::Method => {
                        let method = Method::decode(frame.payload)?;
                        refuse_close(&method).map(|()| accept(&method))
                    }
                    FrameKind::Header | FrameKind::Body | FrameKind::Heartbeat => Ok(None),
                };
                // A close is consumed as well: after a channel's, the connection goes on.
                self.input.consume(length);
                if let Some(found) = found? {
                    return Ok(found);
                }
            }
            ensure!(
                Instant::now() < give_up,
                "no {what} within {} s",
                ANSWER.as_secs()
            );
            self.input
                .fill(&mut self.socket)
                .with_context(|| format!("waiting for {what}"))?;
        }
    }

    /// What the broker said before it stopped reading, if it said that it closes.
    pub fn close_reason(&mut self) -> Option<anyhow::Error> {
        loop {
            match parse_frame(self.input.unread(), self.frame_max) {
                Ok(Some(frame)) => {
                    let length = frame.wire_len();
                    if frame.kind == FrameKind::Method
                        && let Err(reason) = Method::decode(frame.payload)
                            .map_err(Into::into)
                            .and_then(|method| refuse_close(&method))
                    {
                        return Some(reason);
                    }
                    self.input.consume(length);
                }
                Ok(None) => {
                    self.input.fill(&mut self.socket).ok()??;
                }
                Err(_) => return None,
            }
        }
    }

    /// Closes in order; the broker's answer is waited for, so that what the connection held is free afterwards.
    ///
    /// # Errors
    /// If the broker does not answer in time.
    pub fn close(mut self) -> Result<()> {
        let close = ConnectionClose {
            reply_code: REPLY_SUCCESS,
            reply_text: ShortStr::from_static("done"),
            class_id: 0,
            method_id: 0,
        };
        self.request_on(0, &Method::ConnectionClose(close), "connection.close-ok")
    }
}

/// The broker closed the connection or the channel.
#[derive(Debug)]
pub struct Closed {
    what: &'static str,
    /// The reply code.
    pub code: u16,
    text: String,
}

impl fmt::Display for Closed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "the broker closed the {}: {} {}",
            self.what, self.code, self.text
        )
    }
}

impl std::error::Error for Closed {}

/// An error if the broker closes the connection or the channel, or cancels a consumer.
pub fn refuse_close(method: &Method<'_>) -> Result<()> {
    if let Method::ConnectionClose(close) = method {
        let text = close.reply_text.to_string_lossy().into_owned();
        return Err(Closed {
            what: "connection",
            code: close.reply_code,
            text,
        }
        .into());
    }
    if let Method::ChannelClose(close) = method {
        let text = close.reply_text.to_string_lossy().into_owned();
        return Err(Closed {
            what: "channel",
            code: close.reply_code,
            text,
        }
        .into());
    }
    if let Method::BasicCancel(cancel) = method {
        bail!(
            "the broker cancelled the consumer of queue number {}",
            cancel.consumer_tag.to_string_lossy()
        );
    }
    Ok(())
}

/// A short string for the wire.
///
/// # Errors
/// If it is longer than 255 bytes.
pub fn short(text: &str) -> Result<ShortStr<'_>> {
    ShortStr::new(text.as_bytes())
        .with_context(|| format!("{text}: longer than {} bytes", ShortStr::MAX))
}

fn text(value: &str) -> warren_protocol::OwnedValue {
    warren_protocol::OwnedValue::LongStr(value.as_bytes().to_vec())
}
