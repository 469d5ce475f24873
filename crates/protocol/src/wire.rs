//! The specification's data types (section 4.2.5) over a byte slice and a byte vector: big-endian integers, packed bits, strings.
//!
//! Both ends know how bits pack: consecutive bits share an octet, lowest first, and any other field starts a new octet. The position
//! is a constant after inlining, so a method's decoder compiles to straight loads.

use crate::error::DecodeError;
use crate::shortstr::ShortStr;

/// Takes fields off the front of a payload.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    bits: u8,
    bit: u8,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub(crate) const fn new(payload: &'a [u8]) -> Self {
        Self {
            rest: payload,
            bits: 0,
            bit: 0,
        }
    }

    #[inline(always)]
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline(always)]
    fn chunk<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(DecodeError::Truncated { what });
        };
        self.rest = rest;
        self.bit = 0;
        Ok(*head)
    }

    #[inline(always)]
    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(u8::from_be_bytes(self.chunk(what)?))
    }

    #[inline(always)]
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.chunk(what)?))
    }

    #[inline(always)]
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.chunk(what)?))
    }

    #[inline(always)]
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.chunk(what)?))
    }

    #[inline(always)]
    pub(crate) fn bytes(
        &mut self,
        len: usize,
        what: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(DecodeError::Truncated { what });
        };
        self.rest = rest;
        Ok(head)
    }

    #[inline(always)]
    pub(crate) fn short_str(&mut self, what: &'static str) -> Result<ShortStr<'a>, DecodeError> {
        let len = usize::from(self.u8(what)?);
        Ok(ShortStr::from_measured(self.bytes(len, what)?))
    }

    #[inline(always)]
    pub(crate) fn long_str(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        // usize is at least 32 bits on every target with threads and sockets.
        let len = self.u32(what)? as usize;
        self.bytes(len, what)
    }

    #[inline(always)]
    pub(crate) fn bit(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        if self.bit == 0 {
            self.bits = self.u8(what)?;
        }
        let value = (self.bits >> self.bit) & 1 != 0;
        self.bit = (self.bit + 1) & 7;
        Ok(value)
    }

    #[inline(always)]
    pub(crate) fn finish(&self, what: &'static str) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(DecodeError::TrailingBytes {
            what,
            count: self.rest.len(),
        })
    }
}

/// Appends fields to a payload.
pub(crate) struct Writer<'o> {
    out: &'o mut Vec<u8>,
    bit: u8,
}

impl<'o> Writer<'o> {
    #[inline(always)]
    pub(crate) const fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out, bit: 0 }
    }

    #[inline(always)]
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.bit = 0;
    }

    #[inline(always)]
    pub(crate) fn short_str(&mut self, bytes: &[u8]) {
        put_short(self.out, bytes);
        self.bit = 0;
    }

    #[inline(always)]
    pub(crate) fn long_str(&mut self, bytes: &[u8]) {
        put_long(self.out, bytes);
        self.bit = 0;
    }

    #[inline(always)]
    pub(crate) fn bit(&mut self, value: bool) {
        if self.bit == 0 {
            self.out.push(0);
        }
        if let Some(octet) = self.out.last_mut() {
            *octet |= u8::from(value) << self.bit;
        }
        self.bit = (self.bit + 1) & 7;
    }
}

/// The part of `bytes` that a short string can hold, and its length octet. Callers keep their names short; a longer one is their bug.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "cut to 255 just before")]
pub(crate) fn clip_short(bytes: &[u8]) -> (u8, &[u8]) {
    debug_assert!(bytes.len() <= ShortStr::MAX, "short string too long");
    let bytes = &bytes[..bytes.len().min(ShortStr::MAX)];
    (bytes.len() as u8, bytes)
}

#[inline(always)]
pub(crate) fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    let (len, bytes) = clip_short(bytes);
    out.push(len);
    out.extend_from_slice(bytes);
}

#[inline(always)]
pub(crate) fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&length_u32(bytes.len()).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// A length as the wire's 32 bits. What is encoded here is bounded far below 4 GiB (bodies by the message limit, tables by the frame
/// they came in).
#[inline(always)]
pub(crate) fn length_u32(len: usize) -> u32 {
    debug_assert!(u32::try_from(len).is_ok(), "length beyond 32 bits");
    u32::try_from(len).unwrap_or(u32::MAX)
}
