//! Message records: how a published message lies in a batch, in a queue's memory, on the wire between nodes and later in the log.
//!
//! A record is written once, by the session that decoded the publish, and only referred to afterwards. Layout, little endian:
//! `body_len u32, properties_len u32, exchange_len u8, key_len u8, flags u8, version u8`, then exchange, routing key, properties (the content
//! header's payload from its flags word on), body.
//! Cost: reading a view is five bounds checks; nothing is copied.

/// Bytes of a record before its variable part.
pub const RECORD_HEADER: usize = 12;
/// The only version of the record there is so far.
const VERSION: u8 = 1;
/// Flag: delivery mode 2.
const PERSISTENT: u8 = 1;

/// A published message, borrowed from wherever its record lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Exchange it was published to, at most 255 bytes.
    pub exchange: &'a [u8],
    /// Routing key it was published with, at most 255 bytes.
    pub routing_key: &'a [u8],
    /// Content header payload from the property flags on.
    pub properties: &'a [u8],
    /// Body.
    pub body: &'a [u8],
    /// Delivery mode 2.
    pub persistent: bool,
}

/// A record that is not one: cut short, or of a version this build does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message record at offset {offset}")]
pub struct BadRecord {
    /// Where in its block the record should start.
    pub offset: u32,
}

impl<'a> Message<'a> {
    /// Bytes of this message's record.
    #[inline]
    pub fn record_len(&self) -> usize {
        RECORD_HEADER
            + self.exchange.len()
            + self.routing_key.len()
            + self.properties.len()
            + self.body.len()
    }

    /// Appends the record. Exchange and key must be at most 255 bytes, properties and body less than 4 GiB (AMQP's frames and our limits see to it).
    #[inline]
    pub fn append(&self, out: &mut Vec<u8>) {
        out.reserve(self.record_len());
        append_head(
            out,
            self.exchange,
            self.routing_key,
            self.properties,
            self.body.len(),
            self.persistent,
        );
        out.extend_from_slice(self.body);
    }

    /// The record at `offset` of `block`.
    #[inline]
    pub fn read(block: &'a [u8], offset: u32) -> Result<Self, BadRecord> {
        let bad = BadRecord { offset };
        let record = block.get(offset as usize..).ok_or(bad)?;
        let (head, rest) = record.split_first_chunk::<RECORD_HEADER>().ok_or(bad)?;
        let body_len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let properties_len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if head[11] != VERSION {
            return Err(bad);
        }
        let (exchange, rest) = rest.split_at_checked(usize::from(head[8])).ok_or(bad)?;
        let (routing_key, rest) = rest.split_at_checked(usize::from(head[9])).ok_or(bad)?;
        let (properties, rest) = rest.split_at_checked(properties_len).ok_or(bad)?;
        let body = rest.get(..body_len).ok_or(bad)?;
        Ok(Self {
            exchange,
            routing_key,
            properties,
            body,
            persistent: head[10] & PERSISTENT != 0,
        })
    }
}

/// Appends a record up to its body, which the caller appends itself as it arrives: exactly `body_len` bytes of it.
#[inline]
pub fn append_head(
    out: &mut Vec<u8>,
    exchange: &[u8],
    routing_key: &[u8],
    properties: &[u8],
    body_len: usize,
    persistent: bool,
) {
    debug_assert!(exchange.len() < 256 && routing_key.len() < 256);
    let mut head = [0u8; RECORD_HEADER];
    head[0..4].copy_from_slice(&(body_len as u32).to_le_bytes());
    head[4..8].copy_from_slice(&(properties.len() as u32).to_le_bytes());
    head[8] = exchange.len() as u8;
    head[9] = routing_key.len() as u8;
    head[10] = if persistent { PERSISTENT } else { 0 };
    head[11] = VERSION;
    out.extend_from_slice(&head);
    out.extend_from_slice(exchange);
    out.extend_from_slice(routing_key);
    out.extend_from_slice(properties);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_every_cut_is_refused() {
        let m = Message {
            exchange: b"x",
            routing_key: b"a.b",
            properties: &[0x10, 0, 2],
            body: b"hello",
            persistent: true,
        };
        let mut block = vec![9, 9];
        m.append(&mut block);
        assert_eq!(block.len(), 2 + m.record_len());
        assert_eq!(Message::read(&block, 2).unwrap(), m);
        for end in 0..block.len() {
            assert_eq!(
                Message::read(&block[..end], 2),
                Err(BadRecord { offset: 2 }),
                "cut at {end}"
            );
        }
        assert!(Message::read(&block, u32::MAX).is_err());
    }
}
