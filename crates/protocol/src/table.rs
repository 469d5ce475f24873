//! Field tables and arrays in the RabbitMQ dialect, read in place.
//!
//! A [`Table`] or [`Array`] is validated once, when it is parsed, and is from then on just its bytes: iterating walks them, sending it on
//! copies them. Nothing is normalised, so a table passes through the broker with the same types, order and duplicates.
//!
//! Invariant: every `Table` and `Array` holds well-formed entries, to the innermost one. Iterators still check each step (they stop
//! rather than panic), because a check that never fails costs next to nothing.
//!
//! Types follow RabbitMQ where it departs from the specification (its errata, section 3): `s` is a signed 16-bit integer, both `l` and
//! `L` are signed 64-bit integers, `x` is a byte array, and unsigned `B`, `u`, `i` exist.

use std::fmt;

use crate::error::DecodeError;
use crate::owned::{OwnedTable, OwnedValue};
use crate::shortstr::ShortStr;
use crate::wire::Reader;

/// How deep tables and arrays may nest, the outermost one counted. Bounds the stack of whoever walks them.
pub const MAX_NESTING: usize = 64;

/// A field table: its entries' bytes, without the four bytes of length, known to be well-formed. Equal if the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Table<'a>(&'a [u8]);

/// A field array: its values' bytes, without the four bytes of length, known to be well-formed. Equal if the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Array<'a>(&'a [u8]);

/// A field value. Each variant is one type octet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    /// `t`: a boolean; any octet but 0 is true.
    Bool(bool),
    /// `b`: signed 8-bit.
    I8(i8),
    /// `B`: unsigned 8-bit.
    U8(u8),
    /// `s`: signed 16-bit.
    I16(i16),
    /// `u`: unsigned 16-bit.
    U16(u16),
    /// `I`: signed 32-bit.
    I32(i32),
    /// `i`: unsigned 32-bit.
    U32(u32),
    /// `l`: signed 64-bit.
    I64(i64),
    /// `L`: signed 64-bit as well.
    L64(i64),
    /// `f`: IEEE 754 single.
    F32(f32),
    /// `d`: IEEE 754 double.
    F64(f64),
    /// `D`: `value / 10^scale`.
    Decimal {
        /// Digits after the point.
        scale: u8,
        /// The digits.
        value: u32,
    },
    /// `S`: text or bytes.
    LongStr(&'a [u8]),
    /// `A`: an array.
    Array(Array<'a>),
    /// `T`: seconds since the Unix epoch.
    Timestamp(u64),
    /// `F`: a nested table.
    Table(Table<'a>),
    /// `V`: no value.
    Void,
    /// `x`: bytes.
    Bytes(&'a [u8]),
}

impl<'a> Table<'a> {
    /// No entries.
    pub const EMPTY: Table<'static> = Table(b"");

    /// Validates a table's entries, given without their length.
    ///
    /// # Errors
    /// If an entry does not fit, has an unknown type, or nests deeper than [`MAX_NESTING`].
    pub fn parse(entries: &'a [u8]) -> Result<Self, DecodeError> {
        validate_table(entries, 1)?;
        Ok(Self(entries))
    }

    /// For bytes that this crate has encoded itself.
    pub(crate) const fn from_encoded(entries: &'a [u8]) -> Self {
        Self(entries)
    }

    /// The entries' bytes, without the length.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Whether there are no entries.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries in wire order, duplicates included.
    #[inline]
    #[must_use]
    pub const fn iter(&self) -> TableIter<'a> {
        TableIter(Reader::new(self.0))
    }

    /// The first value under `key`. Keys are compared byte for byte. Walks the table.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.iter()
            .find(|(name, _)| name.as_bytes() == key.as_bytes())
            .map(|(_, value)| value)
    }

    /// A copy that owns its keys and values.
    #[must_use]
    pub fn to_owned_table(&self) -> OwnedTable {
        self.iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.to_owned_value()))
            .collect()
    }
}

impl<'a> Array<'a> {
    /// No values.
    pub const EMPTY: Array<'static> = Array(b"");

    /// Validates an array's values, given without their length in bytes.
    ///
    /// # Errors
    /// As [`Table::parse`].
    pub fn parse(values: &'a [u8]) -> Result<Self, DecodeError> {
        validate_array(values, 1)?;
        Ok(Self(values))
    }

    /// The values' bytes, without the length.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Whether there are no values.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values in wire order.
    #[inline]
    #[must_use]
    pub const fn iter(&self) -> ArrayIter<'a> {
        ArrayIter(Reader::new(self.0))
    }
}

/// Iterates a [`Table`].
#[derive(Clone)]
pub struct TableIter<'a>(Reader<'a>);

impl<'a> Iterator for TableIter<'a> {
    type Item = (ShortStr<'a>, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.0.short_str("").ok()?;
        Some((key, read_value(&mut self.0).ok()?))
    }
}

/// Iterates an [`Array`].
#[derive(Clone)]
pub struct ArrayIter<'a>(Reader<'a>);

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        read_value(&mut self.0).ok()
    }
}

impl<'a> IntoIterator for Table<'a> {
    type Item = (ShortStr<'a>, Value<'a>);
    type IntoIter = TableIter<'a>;

    fn into_iter(self) -> TableIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Value<'_> {
    /// The value as a number, if its type is one of the eight integer types, which arguments treat as one class. Timestamps, decimals
    /// and floats are not integers.
    #[must_use]
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::I8(value) => Some(i128::from(value)),
            Value::U8(value) => Some(i128::from(value)),
            Value::I16(value) => Some(i128::from(value)),
            Value::U16(value) => Some(i128::from(value)),
            Value::I32(value) => Some(i128::from(value)),
            Value::U32(value) => Some(i128::from(value)),
            Value::I64(value) | Value::L64(value) => Some(i128::from(value)),
            Value::Bool(_)
            | Value::F32(_)
            | Value::F64(_)
            | Value::Decimal { .. }
            | Value::LongStr(_)
            | Value::Array(_)
            | Value::Timestamp(_)
            | Value::Table(_)
            | Value::Void
            | Value::Bytes(_) => None,
        }
    }

    /// The type's name as RabbitMQ's error texts have it (`received the value '1' of type 'long'`).
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self {
            Value::Bool(_) => "bool",
            Value::I8(_) => "byte",
            Value::U8(_) => "unsignedbyte",
            Value::I16(_) => "short",
            Value::U16(_) => "unsignedshort",
            Value::I32(_) => "signedint",
            Value::U32(_) => "unsignedint",
            Value::I64(_) | Value::L64(_) => "long",
            Value::F32(_) => "float",
            Value::F64(_) => "double",
            Value::Decimal { .. } => "decimal",
            Value::LongStr(_) => "longstr",
            Value::Array(_) => "array",
            Value::Timestamp(_) => "timestamp",
            Value::Table(_) => "table",
            Value::Void => "void",
            Value::Bytes(_) => "binary",
        }
    }

    /// A copy that owns its bytes.
    #[must_use]
    pub fn to_owned_value(&self) -> OwnedValue {
        match *self {
            Value::Bool(value) => OwnedValue::Bool(value),
            Value::I8(value) => OwnedValue::I8(value),
            Value::U8(value) => OwnedValue::U8(value),
            Value::I16(value) => OwnedValue::I16(value),
            Value::U16(value) => OwnedValue::U16(value),
            Value::I32(value) => OwnedValue::I32(value),
            Value::U32(value) => OwnedValue::U32(value),
            Value::I64(value) => OwnedValue::I64(value),
            Value::L64(value) => OwnedValue::L64(value),
            Value::F32(value) => OwnedValue::F32(value),
            Value::F64(value) => OwnedValue::F64(value),
            Value::Decimal { scale, value } => OwnedValue::Decimal { scale, value },
            Value::LongStr(bytes) => OwnedValue::LongStr(bytes.to_vec()),
            Value::Array(array) => {
                OwnedValue::Array(array.iter().map(|value| value.to_owned_value()).collect())
            }
            Value::Timestamp(value) => OwnedValue::Timestamp(value),
            Value::Table(table) => OwnedValue::Table(table.to_owned_table()),
            Value::Void => OwnedValue::Void,
            Value::Bytes(bytes) => OwnedValue::Bytes(bytes.to_vec()),
        }
    }
}

fn validate_table(entries: &[u8], depth: usize) -> Result<(), DecodeError> {
    let mut reader = Reader::new(entries);
    while !reader.rest().is_empty() {
        reader.short_str("a field table's key")?;
        validate_value(&mut reader, depth)?;
    }
    Ok(())
}

fn validate_array(values: &[u8], depth: usize) -> Result<(), DecodeError> {
    let mut reader = Reader::new(values);
    while !reader.rest().is_empty() {
        validate_value(&mut reader, depth)?;
    }
    Ok(())
}

/// Validates the value at the front; `depth` is that of the table or array it stands in. Recursion ends at [`MAX_NESTING`].
fn validate_value(reader: &mut Reader<'_>, depth: usize) -> Result<(), DecodeError> {
    match read_value(reader)? {
        Value::Table(_) | Value::Array(_) if depth >= MAX_NESTING => {
            Err(DecodeError::NestingTooDeep)
        }
        Value::Table(Table(entries)) => validate_table(entries, depth + 1),
        Value::Array(Array(values)) => validate_array(values, depth + 1),
        Value::Bool(_)
        | Value::I8(_)
        | Value::U8(_)
        | Value::I16(_)
        | Value::U16(_)
        | Value::I32(_)
        | Value::U32(_)
        | Value::I64(_)
        | Value::L64(_)
        | Value::F32(_)
        | Value::F64(_)
        | Value::Decimal { .. }
        | Value::LongStr(_)
        | Value::Timestamp(_)
        | Value::Void
        | Value::Bytes(_) => Ok(()),
    }
}

/// Reads the value at the front. A table or array in it is only measured: the caller validates it, or knows that it was.
#[inline]
fn read_value<'a>(reader: &mut Reader<'a>) -> Result<Value<'a>, DecodeError> {
    const WHAT: &str = "a field table's value";
    let value = match reader.u8(WHAT)? {
        b't' => Value::Bool(reader.u8(WHAT)? != 0),
        b'b' => Value::I8(reader.u8(WHAT)?.cast_signed()),
        b'B' => Value::U8(reader.u8(WHAT)?),
        b's' => Value::I16(reader.u16(WHAT)?.cast_signed()),
        b'u' => Value::U16(reader.u16(WHAT)?),
        b'I' => Value::I32(reader.u32(WHAT)?.cast_signed()),
        b'i' => Value::U32(reader.u32(WHAT)?),
        b'l' => Value::I64(reader.u64(WHAT)?.cast_signed()),
        b'L' => Value::L64(reader.u64(WHAT)?.cast_signed()),
        b'f' => Value::F32(f32::from_bits(reader.u32(WHAT)?)),
        b'd' => Value::F64(f64::from_bits(reader.u64(WHAT)?)),
        b'D' => Value::Decimal {
            scale: reader.u8(WHAT)?,
            value: reader.u32(WHAT)?,
        },
        b'S' => Value::LongStr(reader.long_str(WHAT)?),
        b'A' => Value::Array(Array(reader.long_str(WHAT)?)),
        b'T' => Value::Timestamp(reader.u64(WHAT)?),
        b'F' => Value::Table(Table(reader.long_str(WHAT)?)),
        b'V' => Value::Void,
        b'x' => Value::Bytes(reader.long_str(WHAT)?),
        tag => return Err(DecodeError::UnknownFieldType { tag }),
    };
    Ok(value)
}
