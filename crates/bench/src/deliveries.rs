//! Takes deliveries apart as they come in, in place, wherever reads cut them.
//!
//! A consumer's tag is its queue's index in decimal, so the queue is known without a map. Methods other than `basic.deliver` are left to the
//! protocol crate; a close or a cancel is an error.

use anyhow::{Context as _, Result, bail, ensure};
use warren_protocol::{FrameKind, Method, parse_content_header, parse_frame};

use crate::body::STAMP_LEN;
use crate::connection::refuse_close;

/// One delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The queue's index.
    pub queue: u32,
    /// Its number on the channel.
    pub tag: u64,
    /// It may have been delivered before.
    pub redelivered: bool,
    /// Size of the body in bytes.
    pub size: u64,
    /// The body's first bytes, zeros where it has none.
    pub head: [u8; STAMP_LEN],
}

/// What the next frame must be.
#[derive(Clone, Copy, Debug)]
enum Awaits {
    Method,
    Header,
    Body { got: u64 },
}

/// The parser's state between reads.
#[derive(Debug)]
pub struct Deliveries {
    awaits: Awaits,
    current: Delivery,
    frame_max: u32,
}

/// Class and method id of `basic.deliver`, as they stand on the wire.
const DELIVER: [u8; 4] = [0, 60, 0, 60];

impl Deliveries {
    /// For a connection with that largest frame.
    pub const fn new(frame_max: u32) -> Self {
        let current = Delivery {
            queue: 0,
            tag: 0,
            redelivered: false,
            size: 0,
            head: [0; STAMP_LEN],
        };
        Self {
            awaits: Awaits::Method,
            current,
            frame_max,
        }
    }

    /// Takes all whole frames from the front of `bytes`, hands on each delivery that is complete, and returns the bytes used.
    ///
    /// # Errors
    /// On anything malformed, and if the broker closes or cancels.
    #[inline]
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(&Delivery)) -> Result<usize> {
        let mut used = 0;
        while let Some(frame) = parse_frame(&bytes[used..], self.frame_max)? {
            used += frame.wire_len();
            let complete = match (frame.kind, self.awaits) {
                (FrameKind::Method, Awaits::Method) => self.method(frame.payload)?,
                (FrameKind::Header, Awaits::Header) => self.header(frame.payload)?,
                (FrameKind::Body, Awaits::Body { got }) => self.body(frame.payload, got)?,
                (FrameKind::Heartbeat, _) => false,
                // A close of the whole connection may cut a content short.
                (FrameKind::Method, Awaits::Header | Awaits::Body { .. }) => {
                    refuse_close(&Method::decode(frame.payload)?)?;
                    bail!("a method frame within a content");
                }
                (kind @ (FrameKind::Header | FrameKind::Body), awaits) => {
                    bail!("a {kind:?} frame where the {awaits:?} of a content was due")
                }
            };
            if complete {
                self.awaits = Awaits::Method;
                each(&self.current);
            }
        }
        Ok(used)
    }

    #[inline]
    fn method(&mut self, payload: &[u8]) -> Result<bool> {
        let Some(rest) = payload.strip_prefix(&DELIVER) else {
            refuse_close(&Method::decode(payload)?)?;
            return Ok(false);
        };
        let (queue, tag, redelivered) =
            deliver(rest).context("basic.deliver: cut short, or an unknown consumer tag")?;
        self.current = Delivery {
            queue,
            tag,
            redelivered,
            size: 0,
            head: [0; STAMP_LEN],
        };
        self.awaits = Awaits::Header;
        Ok(false)
    }

    #[inline]
    fn header(&mut self, payload: &[u8]) -> Result<bool> {
        self.current.size = parse_content_header(payload)?.body_size;
        self.awaits = Awaits::Body { got: 0 };
        Ok(self.current.size == 0)
    }

    #[inline]
    fn body(&mut self, payload: &[u8], got: u64) -> Result<bool> {
        // Nearly always the stamp comes in one piece; a broker may cut where it likes.
        match (got, payload.first_chunk()) {
            (0, Some(head)) => self.current.head = *head,
            (0..STAMP_END, _) => {
                for (to, from) in self
                    .current
                    .head
                    .iter_mut()
                    .skip(usize::try_from(got)?)
                    .zip(payload)
                {
                    *to = *from;
                }
            }
            (STAMP_END.., _) => {}
        }
        let got = got + payload.len() as u64;
        self.awaits = Awaits::Body { got };
        ensure!(
            got <= self.current.size,
            "a body of {got} bytes where {} were announced",
            self.current.size
        );
        Ok(got == self.current.size)
    }
}

const STAMP_END: u64 = STAMP_LEN as u64;

/// Queue, delivery tag and redelivered flag from the arguments of `basic.deliver`.
#[inline]
fn deliver(arguments: &[u8]) -> Option<(u32, u64, bool)> {
    let (&length, rest) = arguments.split_first()?;
    let (consumer, rest) = rest.split_at_checked(length as usize)?;
    let mut queue = 0u32;
    for digit in consumer {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        queue = queue.checked_mul(10)?.checked_add(u32::from(digit))?;
    }
    let (tag, rest) = rest.split_first_chunk()?;
    Some((queue, u64::from_be_bytes(*tag), rest.first()? & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_protocol::{BasicAck, ConnectionClose, ShortStr, write_deliver, write_heartbeat};

    fn stream(frame_max: u32) -> (Vec<u8>, Vec<Delivery>) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (index, size) in [16usize, 0, 5, 40, 9000, 16].into_iter().enumerate() {
            let queue = u32::try_from(index * 37).unwrap();
            let body: Vec<u8> = (0..size)
                .map(|byte| u8::try_from(byte % 251).unwrap())
                .collect();
            let tag = index as u64 + 1;
            let consumer = queue.to_string();
            write_deliver(
                &mut bytes,
                1,
                frame_max,
                consumer.as_bytes(),
                tag,
                index == 2,
                b"x",
                b"key",
                &[0x10, 0, 2],
                &body,
            );
            write_heartbeat(&mut bytes);
            Method::BasicAck(BasicAck {
                delivery_tag: 1,
                multiple: false,
            })
            .write(1, &mut bytes);
            let mut head = [0; STAMP_LEN];
            let known = size.min(STAMP_LEN);
            head[..known].copy_from_slice(&body[..known]);
            expected.push(Delivery {
                queue,
                tag,
                redelivered: index == 2,
                size: size as u64,
                head,
            });
        }
        (bytes, expected)
    }

    #[test]
    fn however_reads_cut_the_stream() {
        for frame_max in [4096, 15, 131_072] {
            let (bytes, expected) = stream(frame_max);
            for step in [1, 7, 100, bytes.len()] {
                let mut parser = Deliveries::new(131_072);
                let (mut seen, mut used) = (Vec::new(), 0);
                for end in (step..bytes.len() + step).step_by(step) {
                    used += parser
                        .take(&bytes[used..end.min(bytes.len())], |delivery| {
                            seen.push(*delivery)
                        })
                        .unwrap();
                }
                assert_eq!(seen, expected, "frames of {frame_max}, reads of {step}");
                assert_eq!(used, bytes.len());
            }
        }
    }

    #[test]
    fn a_close_is_told() {
        let mut bytes = Vec::new();
        let reply_text = ShortStr::from_static("CONNECTION_FORCED - bye");
        let close = ConnectionClose {
            reply_code: 320,
            reply_text,
            class_id: 0,
            method_id: 0,
        };
        Method::ConnectionClose(close).write(0, &mut bytes);
        let error = Deliveries::new(4096)
            .take(&bytes, |_| {})
            .unwrap_err()
            .to_string();
        assert!(error.contains("320 CONNECTION_FORCED - bye"), "{error}");
    }

    #[test]
    fn frames_out_of_order_are_refused() {
        let mut bytes = Vec::new();
        warren_protocol::write_frame(&mut bytes, FrameKind::Body, 1, b"x");
        assert!(Deliveries::new(4096).take(&bytes, |_| {}).is_err());
    }
}
