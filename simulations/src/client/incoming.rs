//! What comes from the server: frames, put together to answers and events.

use super::{CHANNEL, Client, Event, Failure, Incoming, Outcome};
use crate::message::MessageId;
use crate::options::node_name;
use std::fmt;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};
use warren_protocol::{
    FRAME_OVERHEAD, FrameKind, Method, ShortStr, parse_content_header, parse_frame, write_heartbeat,
};

/// Content that is not complete yet.
pub(super) struct Partial {
    head: Head,
    size: Option<usize>,
    body: Vec<u8>,
}

impl Partial {
    fn of(head: Head) -> Self {
        Self {
            head,
            size: None,
            body: Vec::new(),
        }
    }
}

enum Head {
    Deliver {
        tag: u64,
        redelivered: bool,
        exchange: String,
        key: String,
        /// It answers a get.
        got: bool,
    },
    Return,
}

impl Client {
    /// Reads one frame. A method that answers something is returned; of others, what they say is put into `events`.
    pub(super) async fn next_method(&mut self, until: Instant) -> Outcome<Option<Vec<u8>>> {
        let (kind, payload) = self.next_frame(until).await?;
        match kind {
            FrameKind::Heartbeat => Ok(None),
            FrameKind::Method => self.method(payload, until).await,
            FrameKind::Header | FrameKind::Body => {
                self.content(kind, &payload)?;
                Ok(None)
            }
        }
    }

    async fn method(&mut self, payload: Vec<u8>, until: Instant) -> Outcome<Option<Vec<u8>>> {
        let method = Method::decode(&payload).map_err(|error| self.garbled(error))?;
        let text = |text: &ShortStr<'_>| text.to_string_lossy().into_owned();
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "all that is not spontaneous is an answer"
        )]
        match &method {
            Method::BasicDeliver(m) => {
                let head = Head::Deliver {
                    tag: m.delivery_tag,
                    redelivered: m.redelivered,
                    exchange: text(&m.exchange),
                    key: text(&m.routing_key),
                    got: false,
                };
                self.partial = Some(Partial::of(head));
            }
            Method::BasicGetOk(m) => {
                let head = Head::Deliver {
                    tag: m.delivery_tag,
                    redelivered: m.redelivered,
                    exchange: text(&m.exchange),
                    key: text(&m.routing_key),
                    got: true,
                };
                self.partial = Some(Partial::of(head));
            }
            Method::BasicReturn(_) => self.partial = Some(Partial::of(Head::Return)),
            Method::BasicAck(m) => self.confirmed(m.delivery_tag, m.multiple, true),
            Method::BasicNack(m) => self.confirmed(m.delivery_tag, m.multiple, false),
            Method::BasicCancel(_) => self.events.push_back(Event::Cancelled),
            Method::ConnectionBlocked(_) | Method::ConnectionUnblocked => {}
            Method::ConnectionClose(m) => {
                let failure = Failure::ConnectionClosed(m.reply_code, text(&m.reply_text));
                self.send(0, Method::ConnectionCloseOk, until).await?;
                return Err(failure);
            }
            Method::ChannelClose(m) => {
                let failure = Failure::ChannelClosed(m.reply_code, text(&m.reply_text));
                self.send(CHANNEL, Method::ChannelCloseOk, until).await?;
                return Err(failure);
            }
            _ => return Ok(Some(payload)),
        }
        Ok(None)
    }

    fn content(&mut self, kind: FrameKind, payload: &[u8]) -> Outcome<()> {
        let Some(partial) = &mut self.partial else {
            return Err(self.garbled("content without a method"));
        };
        if kind == FrameKind::Body {
            partial.body.extend_from_slice(payload);
        } else {
            match parse_content_header(payload) {
                Ok(header) => {
                    partial.size = Some(usize::try_from(header.body_size).unwrap_or(usize::MAX))
                }
                Err(error) => return Err(self.garbled(error)),
            }
        }
        if partial.size != Some(partial.body.len()) {
            return Ok(());
        }
        let Some(Partial { head, body, .. }) = self.partial.take() else {
            return Ok(());
        };
        let event = match head {
            Head::Deliver {
                tag,
                redelivered,
                exchange,
                key,
                got,
            } => {
                let incoming = Incoming {
                    tag,
                    redelivered,
                    exchange,
                    key,
                    body,
                };
                if got {
                    self.got = Some(incoming);
                    return Ok(());
                }
                Event::Delivered(incoming)
            }
            Head::Return => {
                match MessageId::read(&body).filter(|id| id.publisher == self.publisher) {
                    Some(id) => Event::Returned(id),
                    None => {
                        return Err(
                            self.garbled("a message was returned that was not published here")
                        );
                    }
                }
            }
        };
        self.events.push_back(event);
        Ok(())
    }

    fn confirmed(&mut self, tag: u64, multiple: bool, ok: bool) {
        let ids: Vec<MessageId> = if multiple {
            let after = self.unconfirmed.split_off(&(tag + 1));
            std::mem::replace(&mut self.unconfirmed, after)
                .into_values()
                .collect()
        } else {
            self.unconfirmed.remove(&tag).into_iter().collect()
        };
        if ids.is_empty() {
            let what = format!(
                "{} got a confirm of publish {tag} from {}, which was not waiting for one",
                self.host,
                node_name(self.node)
            );
            self.oracle.violated("no-internal-error", what);
        }
        self.events.push_back(Event::Confirmed(ids, ok));
    }

    fn garbled(&self, what: impl fmt::Display) -> Failure {
        let what = format!(
            "{} cannot read what {} sends: {what}",
            self.host,
            node_name(self.node)
        );
        self.oracle.violated("no-internal-error", &what);
        Failure::Lost(what)
    }

    pub(super) async fn next_frame(&mut self, until: Instant) -> Outcome<(FrameKind, Vec<u8>)> {
        loop {
            match parse_frame(&self.incoming, 0) {
                Err(error) => return Err(self.garbled(error)),
                Ok(Some(frame)) => {
                    let (kind, payload) = (frame.kind, frame.payload.to_vec());
                    let _ = self.incoming.split_to(payload.len() + FRAME_OVERHEAD);
                    return Ok((kind, payload));
                }
                Ok(None) => {}
            }
            let beat = self.last_write + self.heartbeat / 2;
            let wake = if self.heartbeat.is_zero() {
                until
            } else {
                beat.min(until)
            };
            match timeout_at(wake, self.stream.read_buf(&mut self.incoming)).await {
                Ok(Ok(0)) => return Err(Failure::Lost("closed by the node".into())),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(Failure::Lost(error.to_string())),
                Err(_) if Instant::now() >= until => return Err(Failure::TimedOut),
                Err(_) => {
                    let mut beat = Vec::new();
                    write_heartbeat(&mut beat);
                    self.write(&beat, until).await?;
                }
            }
        }
    }
}
