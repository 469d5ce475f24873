//! Frames: cutting them out of a receive buffer, and appending them to a send buffer.
//!
//! Flow: the connection's reader calls [`parse_frame`] until it gets `None`, and advances by [`RawFrame::wire_len`]. The writer appends
//! whole frames to one buffer per connection and flushes that.
//!
//! A frame is `type:u8 channel:u16 size:u32 payload[size] 0xCE` (specification, section 4.2.3).

use crate::constants::{CLASS_BASIC, FRAME_ERROR};
use crate::error::DecodeError;
use crate::wire::{Reader, clip_short, length_u32};

/// Frame type octet: method.
pub const FRAME_METHOD: u8 = 1;
/// Frame type octet: content header.
pub const FRAME_HEADER: u8 = 2;
/// Frame type octet: content body.
pub const FRAME_BODY: u8 = 3;
/// Frame type octet: heartbeat.
pub const FRAME_HEARTBEAT: u8 = 8;
/// The octet that ends every frame.
pub const FRAME_END: u8 = 0xCE;
/// What a frame adds to its payload: seven octets before it, one after.
pub const FRAME_OVERHEAD: usize = 8;
/// The smallest `frame_max` that may be negotiated, and the limit before negotiation.
pub const FRAME_MIN_SIZE: u32 = 4096;
/// The eight bytes that a 0-9-1 client opens with, and the answer to any others.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\0\0\x09\x01";

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// A method and its arguments.
    Method = FRAME_METHOD,
    /// A content header: class, body size, properties.
    Header = FRAME_HEADER,
    /// A piece of a content body.
    Body = FRAME_BODY,
    /// Nothing: a sign of life.
    Heartbeat = FRAME_HEARTBEAT,
}

/// One whole frame in a receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawFrame<'a> {
    /// What it carries.
    pub kind: FrameKind,
    /// The channel; 0 is the connection itself.
    pub channel: u16,
    /// The bytes between header and end octet.
    pub payload: &'a [u8],
}

impl RawFrame<'_> {
    /// How many bytes the frame takes on the wire.
    #[inline]
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.payload.len() + FRAME_OVERHEAD
    }
}

/// Bytes that are no frame. The connection cannot be read any further: there is no telling where the next frame would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame announces more bytes than were negotiated.
    #[error("frame of {size} bytes is larger than the negotiated frame_max of {limit}")]
    TooLarge {
        /// The whole frame's size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u32,
    },
    /// The octet after the payload is not the frame-end octet.
    #[error("frame ends with octet {found:#04x}, expected 0xce")]
    BadEnd {
        /// The octet that is there.
        found: u8,
    },
    /// No frame type has this number.
    #[error("unknown frame type {0}")]
    UnknownType(u8),
}

impl FrameError {
    /// The reply code to close the connection with: 501, always.
    #[must_use]
    pub const fn reply_code(&self) -> u16 {
        FRAME_ERROR
    }
}

/// The frame at the front of `buf`, or `None` if not all of it is there yet.
///
/// `limit` is the negotiated `frame_max`. 0 means no limit at all, so a server that negotiated "no limit" passes its own cap on what it
/// is willing to buffer. As in RabbitMQ, a frame may exceed the limit by its eight bytes of overhead.
///
/// # Errors
/// A wrong type or an excessive size is reported as soon as the frame's header shows it, before the payload has arrived.
#[inline]
pub fn parse_frame(buf: &[u8], limit: u32) -> Result<Option<RawFrame<'_>>, FrameError> {
    let Some((&[kind, channel_high, channel_low, s0, s1, s2, s3], rest)) =
        buf.split_first_chunk::<7>()
    else {
        // Junk is refused from its first byte on; it may never grow to a header.
        return match buf.first() {
            Some(first) => frame_kind(*first).map(|_| None),
            None => Ok(None),
        };
    };
    let kind = frame_kind(kind)?;
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    if size > limit && limit != 0 {
        return Err(FrameError::TooLarge {
            size: u64::from(size) + FRAME_OVERHEAD as u64,
            limit,
        });
    }
    let Some((payload, rest)) = rest.split_at_checked(size as usize) else {
        return Ok(None);
    };
    match rest.first() {
        Some(&FRAME_END) => Ok(Some(RawFrame {
            kind,
            channel: u16::from_be_bytes([channel_high, channel_low]),
            payload,
        })),
        Some(&found) => Err(FrameError::BadEnd { found }),
        None => Ok(None),
    }
}

#[inline(always)]
const fn frame_kind(octet: u8) -> Result<FrameKind, FrameError> {
    match octet {
        FRAME_METHOD => Ok(FrameKind::Method),
        FRAME_HEADER => Ok(FrameKind::Header),
        FRAME_BODY => Ok(FrameKind::Body),
        FRAME_HEARTBEAT => Ok(FrameKind::Heartbeat),
        _ => Err(FrameError::UnknownType(octet)),
    }
}

/// A content header frame's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContentHeader<'a> {
    /// The class of the method that the content belongs to.
    pub class: u16,
    /// The size of the whole body, over all its frames, in bytes.
    pub body_size: u64,
    /// The property list from its flags on, not validated: see [`crate::Properties::parse`] and [`crate::validate_properties`].
    pub properties: &'a [u8],
}

/// Reads a content header: `class:u16 weight:u16 body_size:u64 properties`.
///
/// # Errors
/// If it is shorter than its fixed part, or its weight is not zero.
#[inline]
pub fn parse_content_header(payload: &[u8]) -> Result<ContentHeader<'_>, DecodeError> {
    let mut reader = Reader::new(payload);
    let class = reader.u16("content header class")?;
    let weight = reader.u16("content header weight")?;
    let body_size = reader.u64("content header body size")?;
    if weight != 0 {
        return Err(DecodeError::NonZeroWeight { weight });
    }
    Ok(ContentHeader {
        class,
        body_size,
        properties: reader.rest(),
    })
}

/// Appends a frame.
pub fn write_frame(out: &mut Vec<u8>, kind: FrameKind, channel: u16, payload: &[u8]) {
    out.reserve(payload.len() + FRAME_OVERHEAD);
    put_frame(out, kind, channel, payload);
}

/// Appends a heartbeat.
pub fn write_heartbeat(out: &mut Vec<u8>) {
    out.extend_from_slice(&[FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END]);
}

/// Appends a content: a header frame and the body, cut to frames of at most `frame_max` bytes (0: uncut). An empty body has no frame.
///
/// `properties` are the bytes of the property list from its flags on. The header frame cannot be cut, so a property list beyond
/// `frame_max` makes a frame beyond it: callers that mind check first ([`header_frame_len`]).
#[inline]
pub fn write_content(
    out: &mut Vec<u8>,
    channel: u16,
    frame_max: u32,
    class: u16,
    properties: &[u8],
    body: &[u8],
) {
    out.reserve(content_len(frame_max, properties.len(), body.len()));
    put_content(out, channel, frame_max, class, properties, body);
}

/// Appends one delivery: `basic.deliver` and its content. The path that every consumed message takes, so it grows the buffer once and
/// copies each part straight to its place.
///
/// The strings are short strings: at most 255 bytes each.
#[inline]
#[expect(
    clippy::too_many_arguments,
    reason = "a struct would be built and taken apart per message"
)]
pub fn write_deliver(
    out: &mut Vec<u8>,
    channel: u16,
    frame_max: u32,
    consumer_tag: &[u8],
    delivery_tag: u64,
    redelivered: bool,
    exchange: &[u8],
    routing_key: &[u8],
    properties: &[u8],
    body: &[u8],
) {
    const FIXED: usize = 4 + 1 + 8 + 1 + 1 + 1;
    let (tag_len, consumer_tag) = clip_short(consumer_tag);
    let (exchange_len, exchange) = clip_short(exchange);
    let (key_len, routing_key) = clip_short(routing_key);
    let arguments = FIXED + consumer_tag.len() + exchange.len() + routing_key.len();
    out.reserve(arguments + FRAME_OVERHEAD + content_len(frame_max, properties.len(), body.len()));

    let [c0, c1] = channel.to_be_bytes();
    let [s0, s1, s2, s3] = length_u32(arguments).to_be_bytes();
    let [class0, class1] = CLASS_BASIC.to_be_bytes();
    out.extend_from_slice(&[
        FRAME_METHOD,
        c0,
        c1,
        s0,
        s1,
        s2,
        s3,
        class0,
        class1,
        0,
        60,
        tag_len,
    ]);
    out.extend_from_slice(consumer_tag);
    let [t0, t1, t2, t3, t4, t5, t6, t7] = delivery_tag.to_be_bytes();
    out.extend_from_slice(&[
        t0,
        t1,
        t2,
        t3,
        t4,
        t5,
        t6,
        t7,
        u8::from(redelivered),
        exchange_len,
    ]);
    out.extend_from_slice(exchange);
    out.push(key_len);
    out.extend_from_slice(routing_key);
    out.push(FRAME_END);
    put_content(out, channel, frame_max, CLASS_BASIC, properties, body);
}

/// The size on the wire of a content header frame with that many bytes of properties.
#[inline]
#[must_use]
pub const fn header_frame_len(properties_len: usize) -> usize {
    FRAME_OVERHEAD + CONTENT_HEADER_FIXED + properties_len
}

const CONTENT_HEADER_FIXED: usize = 2 + 2 + 8;

#[inline(always)]
fn content_len(frame_max: u32, properties_len: usize, body_len: usize) -> usize {
    let frames = body_len.div_ceil(body_chunk(frame_max));
    header_frame_len(properties_len) + body_len + frames * FRAME_OVERHEAD
}

/// How much of a body fits one frame. At least one byte, so that not even a nonsensical limit can stall the writer.
#[inline(always)]
const fn body_chunk(frame_max: u32) -> usize {
    match frame_max {
        0 => u32::MAX as usize,
        1..=9 => 1,
        _ => frame_max as usize - FRAME_OVERHEAD,
    }
}

#[inline(always)]
fn put_content(
    out: &mut Vec<u8>,
    channel: u16,
    frame_max: u32,
    class: u16,
    properties: &[u8],
    body: &[u8],
) {
    put_frame_head(
        out,
        FrameKind::Header,
        channel,
        CONTENT_HEADER_FIXED + properties.len(),
    );
    let [c0, c1] = class.to_be_bytes();
    let [b0, b1, b2, b3, b4, b5, b6, b7] = (body.len() as u64).to_be_bytes();
    out.extend_from_slice(&[c0, c1, 0, 0, b0, b1, b2, b3, b4, b5, b6, b7]);
    out.extend_from_slice(properties);
    out.push(FRAME_END);
    let chunk = body_chunk(frame_max);
    if body.is_empty() {
        return;
    }
    if body.len() <= chunk {
        put_frame(out, FrameKind::Body, channel, body);
        return;
    }
    for piece in body.chunks(chunk) {
        put_frame(out, FrameKind::Body, channel, piece);
    }
}

#[inline(always)]
fn put_frame(out: &mut Vec<u8>, kind: FrameKind, channel: u16, payload: &[u8]) {
    put_frame_head(out, kind, channel, payload.len());
    out.extend_from_slice(payload);
    out.push(FRAME_END);
}

#[inline(always)]
pub(crate) fn put_frame_head(out: &mut Vec<u8>, kind: FrameKind, channel: u16, size: usize) {
    let [c0, c1] = channel.to_be_bytes();
    let [s0, s1, s2, s3] = length_u32(size).to_be_bytes();
    out.extend_from_slice(&[kind as u8, c0, c1, s0, s1, s2, s3]);
}
