//! AMQP 0-9-1 on the wire: frames, methods, content headers, basic properties and field tables. Bytes in, bytes out.
//!
//! Flow: a connection's reader cuts its buffer with [`parse_frame`], hands method payloads to [`Method::decode`] and header
//! payloads to [`parse_content_header`]; its writer appends with [`Method::write`], [`write_content`] and [`write_deliver`].
//!
//! Invariants:
//! - No I/O, no clock, no allocation while decoding, no panic whatever the input: a decoded value borrows the bytes that it was
//!   decoded from, hostile lengths are compared with what is there before they are used, and nesting is bounded
//!   ([`MAX_NESTING`]).
//! - What a client sent can be sent on byte for byte: tables and property lists keep their raw bytes, so no field type, order,
//!   duplicate key or odd boolean is lost by passing through.
//!
//! Cost: decoding is linear in the payload; tables inside methods are validated once, when they are decoded, and never again.
//!
//! Sources: the AMQP 0-9-1 specification (section 4.2 for the wire format), RabbitMQ's errata for the field types, and RabbitMQ's
//! extensions (`exchange.bind`, `basic.nack`, `confirm`, `connection.blocked`, `connection.update-secret`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod constants;
pub mod error;
pub mod frame;
pub mod method;
pub mod owned;
pub mod properties;
pub mod sasl;
pub mod shortstr;
pub mod table;
mod wire;

pub use constants::*;
pub use error::DecodeError;
pub use frame::*;
pub use method::*;
pub use owned::{OwnedTable, OwnedValue, TableBuilder};
pub use properties::{
    Properties, PropertyFlags, delivery_mode, property_flags, validate_properties,
};
pub use sasl::{parse_amqplain, parse_plain};
pub use shortstr::ShortStr;
pub use table::{Array, ArrayIter, MAX_NESTING, Table, TableIter, Value};
