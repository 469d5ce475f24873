//! Publishing: joining method, header and body, checking what a publish may carry, and telling the client what became of it.
//!
//! Two ways in: [`whole_publish`] finds all frames of a publish side by side in the read buffer, which is the usual case and copies nothing;
//! otherwise [`Content`] collects it frame by frame.

use crate::channel::{Channel, State, unexpected};
use crate::connection::Core;
use crate::{Fault, Flow, Host, Publish, Published};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use warren_model::Refusal;
use warren_protocol::{
    BasicPublish, BasicReturn, CLASS_BASIC, FRAME_OVERHEAD, FrameKind, Method, NO_ROUTE,
    NOT_IMPLEMENTED, Properties, SYNTAX_ERROR, ShortStr, parse_content_header, parse_frame,
    property_flags, validate_properties, write_content,
};

/// A publish that is arriving in pieces.
#[derive(Debug)]
pub(crate) struct Content {
    exchange: Vec<u8>,
    routing_key: Vec<u8>,
    mandatory: bool,
    /// From the header frame on.
    arriving: Option<Arriving>,
}

impl Content {
    pub(crate) fn expects_but_got_method(&self) -> &'static str {
        match self.arriving {
            None => "expected content header for class 60, got non content header frame instead",
            Some(_) => "expected content body, got non content body frame instead",
        }
    }
}

#[derive(Debug)]
struct Arriving {
    properties: Vec<u8>,
    body: Vec<u8>,
    size: u64,
    held: Held,
}

impl Arriving {
    fn count(&mut self) {
        self.held.set(self.properties.len() + self.body.len());
    }
}

/// Bytes of one unfinished publish, as part of those of a whole session; they are no part of it any more when the publish goes.
#[derive(Debug, Default)]
struct Held {
    of_session: Arc<AtomicU64>,
    bytes: u64,
}

impl Held {
    fn set(&mut self, bytes: usize) {
        let (before, now) = (self.bytes, bytes as u64);
        self.bytes = now;
        // Wraps around where it has become less.
        self.of_session
            .fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A publish whose parts are all there.
pub(crate) struct Whole<'a> {
    exchange: &'a [u8],
    routing_key: &'a [u8],
    mandatory: bool,
    properties: &'a [u8],
    body: &'a [u8],
}

/// The publish at the front of `buf`, and its length in bytes, if it starts there, is whole, and its body is in one frame.
/// What is wrong with a publish is for the other way to find out.
#[inline]
pub(crate) fn whole_publish(
    buf: &[u8],
    limit: u32,
    message_max: u64,
) -> Option<(u16, Whole<'_>, usize)> {
    // Type, channel, size, class 60, method 40.
    if buf.len() < 11 || buf[0] != 1 || buf[7..11] != [0, 60, 0, 40] {
        return None;
    }
    let method = parse_frame(buf, limit).ok()??;
    let Method::BasicPublish(publish) = Method::decode(method.payload).ok()? else {
        return None;
    };
    if publish.immediate
        || publish.exchange.as_str().is_err()
        || publish.routing_key.as_str().is_err()
    {
        return None;
    }
    let mut end = method.payload.len() + FRAME_OVERHEAD;
    let header_frame = parse_frame(&buf[end..], limit).ok()??;
    if header_frame.kind != FrameKind::Header || header_frame.channel != method.channel {
        return None;
    }
    let header = parse_content_header(header_frame.payload).ok()?;
    if header.class != CLASS_BASIC || header.body_size > message_max {
        return None;
    }
    end += header_frame.payload.len() + FRAME_OVERHEAD;
    let mut body: &[u8] = &[];
    if header.body_size > 0 {
        let body_frame = parse_frame(&buf[end..], limit).ok()??;
        if body_frame.kind != FrameKind::Body
            || body_frame.channel != method.channel
            || body_frame.payload.len() as u64 != header.body_size
        {
            return None;
        }
        body = body_frame.payload;
        end += body.len() + FRAME_OVERHEAD;
    }
    let whole = Whole {
        exchange: publish.exchange.as_bytes(),
        routing_key: publish.routing_key.as_bytes(),
        mandatory: publish.mandatory,
        properties: header.properties,
        body,
    };
    Some((method.channel, whole, end))
}

impl Channel {
    /// True if a publish may be handed on as soon as it is there.
    #[inline]
    pub(crate) fn takes_publishes(&self) -> bool {
        self.state == State::Open
            && self.pending.is_empty()
            && self.backlog.is_empty()
            && self.content.is_none()
    }

    pub(crate) fn begin_publish(&mut self, publish: &BasicPublish<'_>) -> Result<Flow, Fault> {
        if publish.immediate {
            return Err(Fault::Connection(
                NOT_IMPLEMENTED,
                "NOT_IMPLEMENTED - immediate=true".into(),
            ));
        }
        publish.exchange.as_str()?;
        publish.routing_key.as_str()?;
        self.content = Some(Box::new(Content {
            exchange: publish.exchange.as_bytes().to_vec(),
            routing_key: publish.routing_key.as_bytes().to_vec(),
            mandatory: publish.mandatory,
            arriving: None,
        }));
        Ok(Flow::Done)
    }

    pub(crate) fn content_header(
        &mut self,
        core: &mut Core,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if !self.pending.is_empty() {
            return Ok(Flow::Stall);
        }
        let Some(content) = &mut self.content else {
            return Err(unexpected(
                "expected method frame, got non method frame instead",
            ));
        };
        if content.arriving.is_some() {
            return Err(unexpected(
                "expected content body, got non content body frame instead",
            ));
        }
        let header = parse_content_header(payload)?;
        if header.class != CLASS_BASIC {
            return Err(unexpected(&format!(
                "expected content header for class 60, got one for class {} instead",
                header.class
            )));
        }
        if header.body_size > core.message_max {
            let text = format!(
                "message size {} is larger than configured max size {}",
                header.body_size, core.message_max
            );
            return Err(Refusal::precondition_failed(text).into());
        }
        if header.body_size == 0 {
            return self
                .finish_content(core, header.properties, Vec::new(), host)
                .map(|(flow, _)| flow);
        }
        if !host.has_room() {
            return Ok(Flow::Hold);
        }
        // The memory for a body is taken as it arrives, never as it is announced.
        let mut arriving = Arriving {
            properties: header.properties.to_vec(),
            body: Vec::with_capacity(header.body_size.min(64 * 1024) as usize),
            size: header.body_size,
            held: Held {
                of_session: core.unfinished.clone(),
                bytes: 0,
            },
        };
        arriving.count();
        content.arriving = Some(arriving);
        Ok(Flow::Done)
    }

    pub(crate) fn content_body(
        &mut self,
        core: &mut Core,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if !self.pending.is_empty() {
            return Ok(Flow::Stall);
        }
        let Some(content) = &mut self.content else {
            return Err(unexpected(
                "expected method frame, got non method frame instead",
            ));
        };
        let Some(arriving) = &mut content.arriving else {
            return Err(unexpected(
                "expected content header for class 60, got non content header frame instead",
            ));
        };
        let before = arriving.body.len();
        if (before + payload.len()) as u64 > arriving.size {
            return Err(unexpected(&format!(
                "content body is larger than the {} bytes that its header announced",
                arriving.size
            )));
        }
        if !host.has_room() {
            return Ok(Flow::Hold);
        }
        arriving.body.extend_from_slice(payload);
        arriving.count();
        if (arriving.body.len() as u64) < arriving.size {
            return Ok(Flow::Done);
        }
        let (properties, body) = (
            std::mem::take(&mut arriving.properties),
            std::mem::take(&mut arriving.body),
        );
        let (flow, body) = self.finish_content(core, &properties, body, host)?;
        if flow == Flow::Hold
            && let Some(arriving) = self.content.as_mut().and_then(|c| c.arriving.as_mut())
        {
            // The same frame comes again.
            arriving.properties = properties;
            arriving.body = body;
            arriving.body.truncate(before);
            arriving.count();
        }
        Ok(flow)
    }

    fn finish_content(
        &mut self,
        core: &mut Core,
        properties: &[u8],
        body: Vec<u8>,
        host: &mut impl Host,
    ) -> Result<(Flow, Vec<u8>), Fault> {
        let Some(content) = self.content.take() else {
            return Ok((Flow::Done, body));
        };
        let whole = Whole {
            exchange: &content.exchange,
            routing_key: &content.routing_key,
            mandatory: content.mandatory,
            properties,
            body: &body,
        };
        let flow = self.accept(core, &whole, host)?;
        if flow == Flow::Hold {
            self.content = Some(content);
        }
        Ok((flow, body))
    }

    /// Checks a publish and hands it to the host.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        core: &mut Core,
        whole: &Whole<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        check_properties(whole.properties, &core.user)?;
        let sequence = self.confirms.as_ref().map(|c| c.next());
        let publish = Publish {
            channel: self.number,
            sequence,
            exchange: whole.exchange,
            routing_key: whole.routing_key,
            properties: whole.properties,
            body: whole.body,
        };
        match host.publish(&publish) {
            Published::Routed(outcomes) => {
                self.count(core, |counts| counts.publish += 1);
                if let Some(confirms) = &mut self.confirms {
                    confirms.push(outcomes);
                }
            }
            Published::Unroutable => {
                self.count(core, |counts| counts.publish += 1);
                if whole.mandatory {
                    self.count(core, |counts| counts.return_unroutable += 1);
                    self.give_back(core, whole);
                } else {
                    self.count(core, |counts| counts.drop_unroutable += 1);
                }
                if let Some(confirms) = &mut self.confirms {
                    confirms.push(0);
                    self.confirm_soon(core);
                }
            }
            Published::Refused(refusal) => return Err(refusal.into()),
            Published::Hold => return Ok(Flow::Hold),
            Published::Unavailable(why) => match &mut self.confirms {
                Some(confirms) => {
                    confirms.push_failed();
                    self.confirm_soon(core);
                }
                None => {
                    return Err(Fault::Connection(
                        warren_protocol::CONNECTION_FORCED,
                        format!("CONNECTION_FORCED - {why}"),
                    ));
                }
            },
        }
        Ok(Flow::Done)
    }

    fn give_back(&self, core: &mut Core, whole: &Whole<'_>) {
        let method = BasicReturn {
            reply_code: NO_ROUTE,
            reply_text: ShortStr::from_static("NO_ROUTE"),
            exchange: ShortStr::new(whole.exchange).unwrap_or_default(),
            routing_key: ShortStr::new(whole.routing_key).unwrap_or_default(),
        };
        Method::BasicReturn(method).write(self.number, &mut core.out);
        write_content(
            &mut core.out,
            self.number,
            core.frame_max,
            CLASS_BASIC,
            whole.properties,
            whole.body,
        );
    }

    /// Lists the channel for the next flush of confirms.
    pub(crate) fn confirm_soon(&mut self, core: &mut Core) {
        if !self.dirty {
            self.dirty = true;
            core.dirty.push(self.number);
        }
    }
}

/// RabbitMQ's limit on times: ten years, in milliseconds.
const EXPIRATION_MAX: i128 = 315_360_000_000;

/// Checks an expiration: milliseconds, in decimal. The reason is as Erlang prints RabbitMQ's.
fn check_expiration(text: &str) -> Result<(), String> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err("no_integer".into());
    }
    let rest = &unsigned[digits..];
    if !rest.is_empty() {
        return Err(format!("{{leftover_string,{rest:?}}}"));
    }
    // A number of 255 digits is beyond the limit, whatever it is.
    match text.parse::<i128>() {
        Ok(time) if time < 0 => Err(format!("{{value_negative,{time}}}")),
        Ok(time) if time <= EXPIRATION_MAX => Ok(()),
        Ok(_) | Err(_) if text.starts_with('-') => Err(format!("{{value_negative,{text}}}")),
        Ok(_) | Err(_) => Err(format!("{{value_too_large,{unsigned}}}")),
    }
}

/// Checks form and content of the properties. None at all, or delivery mode alone, is the usual case and costs next to nothing.
#[inline]
fn check_properties(raw: &[u8], user: &str) -> Result<(), Fault> {
    if matches!(raw, [0, 0] | [0x10, 0, _]) {
        return Ok(());
    }
    let flags = property_flags(raw)?;
    // A second flag word: properties that nobody has defined, which consumers could not read.
    if flags.0 & 1 != 0 {
        return Err(
            Refusal::new(SYNTAX_ERROR, "property flags beyond those of class basic").into(),
        );
    }
    if !flags.has_expiration() && !flags.has_user_id() {
        return Ok(validate_properties(raw)?);
    }
    let properties = Properties::parse(raw)?;
    if let Some(expiration) = properties.expiration
        && let Err(reason) = check_expiration(expiration.as_str()?)
    {
        let text = format!("invalid expiration '{expiration}': {reason}");
        return Err(Refusal::precondition_failed(text).into());
    }
    if let Some(claimed) = properties.user_id
        && claimed.as_bytes() != user.as_bytes()
    {
        return Err(Refusal::precondition_failed(format!(
            "user_id property set to '{claimed}' but authenticated user was '{user}'"
        ))
        .into());
    }
    Ok(())
}
