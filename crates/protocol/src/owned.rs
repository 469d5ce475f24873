//! Tables that own their values: for what the server itself says (server properties, dead-letter headers) and for tests.
//!
//! Building is the only place of this crate that allocates besides the output buffer.

use crate::table::Table;
use crate::wire::{put_long, put_short};

/// A field value that owns its bytes: the twin of [`crate::Value`], variant by variant.
#[derive(Clone, PartialEq, Debug)]
pub enum OwnedValue {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`
    I64(i64),
    /// `L`
    L64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`
    Decimal {
        /// Digits after the point.
        scale: u8,
        /// The digits.
        value: u32,
    },
    /// `S`
    LongStr(Vec<u8>),
    /// `A`
    Array(Vec<OwnedValue>),
    /// `T`
    Timestamp(u64),
    /// `F`
    Table(OwnedTable),
    /// `V`
    Void,
    /// `x`
    Bytes(Vec<u8>),
}

impl OwnedValue {
    /// Appends the type octet and the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bool(value) => out.extend_from_slice(&[b't', u8::from(*value)]),
            Self::I8(value) => out.extend_from_slice(&[b'b', value.cast_unsigned()]),
            Self::U8(value) => out.extend_from_slice(&[b'B', *value]),
            Self::I16(value) => put(out, b's', &value.to_be_bytes()),
            Self::U16(value) => put(out, b'u', &value.to_be_bytes()),
            Self::I32(value) => put(out, b'I', &value.to_be_bytes()),
            Self::U32(value) => put(out, b'i', &value.to_be_bytes()),
            Self::I64(value) => put(out, b'l', &value.to_be_bytes()),
            Self::L64(value) => put(out, b'L', &value.to_be_bytes()),
            Self::F32(value) => put(out, b'f', &value.to_be_bytes()),
            Self::F64(value) => put(out, b'd', &value.to_be_bytes()),
            Self::Decimal { scale, value } => {
                out.extend_from_slice(&[b'D', *scale]);
                out.extend_from_slice(&value.to_be_bytes());
            }
            Self::LongStr(bytes) => {
                out.push(b'S');
                put_long(out, bytes);
            }
            Self::Array(values) => put_sized(out, b'A', |out| {
                for value in values {
                    value.encode(out);
                }
            }),
            Self::Timestamp(value) => put(out, b'T', &value.to_be_bytes()),
            Self::Table(table) => put_sized(out, b'F', |out| table.encode_entries(out)),
            Self::Void => out.push(b'V'),
            Self::Bytes(bytes) => {
                out.push(b'x');
                put_long(out, bytes);
            }
        }
    }
}

fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend_from_slice(bytes);
}

/// A value whose length is known only once it has been written.
fn put_sized(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[tag, 0, 0, 0, 0]);
    let start = out.len();
    write(out);
    let len = crate::wire::length_u32(out.len() - start).to_be_bytes();
    out[start - 4..start].copy_from_slice(&len);
}

/// A field table that owns its entries, in wire order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OwnedTable {
    /// Keys (at most 255 bytes) and values.
    pub entries: Vec<(Vec<u8>, OwnedValue)>,
}

impl OwnedTable {
    /// No entries.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// Adds an entry at the end. Keys are not checked for duplicates.
    pub fn put(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        self.entries.push((key.as_bytes().to_vec(), value.into()));
        self
    }

    /// The first value under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&OwnedValue> {
        self.entries
            .iter()
            .find(|(name, _)| name == key.as_bytes())
            .map(|(_, value)| value)
    }

    /// Appends the entries without the four bytes of length: the form that [`Table::parse`] reads.
    pub fn encode_entries(&self, out: &mut Vec<u8>) {
        for (key, value) in &self.entries {
            put_short(out, key);
            value.encode(out);
        }
    }

    /// The entries' bytes without the four bytes of length.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_entries(&mut out);
        out
    }
}

impl<K: Into<Vec<u8>>, V: Into<OwnedValue>> FromIterator<(K, V)> for OwnedTable {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let entries = entries
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        Self { entries }
    }
}

/// Encodes a table entry by entry.
#[derive(Clone, Debug, Default)]
pub struct TableBuilder {
    bytes: Vec<u8>,
}

impl TableBuilder {
    /// No entries.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Goes on after the entries of `table`.
    #[must_use]
    pub fn extending(table: Table<'_>) -> Self {
        Self {
            bytes: table.as_bytes().to_vec(),
        }
    }

    /// Appends an entry. The key is at most 255 bytes.
    pub fn put(&mut self, key: &str, value: &OwnedValue) -> &mut Self {
        put_short(&mut self.bytes, key.as_bytes());
        value.encode(&mut self.bytes);
        self
    }

    /// Appends an entry with a value that is already at hand in its borrowed form.
    pub fn put_value(&mut self, key: &[u8], value: &crate::table::Value<'_>) -> &mut Self {
        put_short(&mut self.bytes, key);
        value.encode(&mut self.bytes);
        self
    }

    /// The table so far.
    #[must_use]
    pub fn as_table(&self) -> Table<'_> {
        Table::from_encoded(&self.bytes)
    }

    /// The entries' bytes, without the four bytes of length.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl crate::table::Value<'_> {
    /// Appends the type octet and the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Array(array) => {
                out.push(b'A');
                put_long(out, array.as_bytes());
            }
            Self::Table(table) => {
                out.push(b'F');
                put_long(out, table.as_bytes());
            }
            Self::LongStr(bytes) => {
                out.push(b'S');
                put_long(out, bytes);
            }
            Self::Bytes(bytes) => {
                out.push(b'x');
                put_long(out, bytes);
            }
            Self::Bool(_)
            | Self::I8(_)
            | Self::U8(_)
            | Self::I16(_)
            | Self::U16(_)
            | Self::I32(_)
            | Self::U32(_)
            | Self::I64(_)
            | Self::L64(_)
            | Self::F32(_)
            | Self::F64(_)
            | Self::Decimal { .. }
            | Self::Timestamp(_)
            | Self::Void => self.to_owned_value().encode(out),
        }
    }
}

macro_rules! owned_value_from {
    ($($ty:ty => $variant:ident),+ $(,)?) => {
        $(
            impl From<$ty> for OwnedValue {
                fn from(value: $ty) -> Self {
                    Self::$variant(value.into())
                }
            }
        )+
    };
}

owned_value_from! {
    bool => Bool,
    i8 => I8,
    u8 => U8,
    i16 => I16,
    u16 => U16,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    f32 => F32,
    f64 => F64,
    &str => LongStr,
    String => LongStr,
    &[u8] => LongStr,
    Vec<OwnedValue> => Array,
    OwnedTable => Table,
}
