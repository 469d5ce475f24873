//! Why bytes could not be decoded, and with which reply code the connection that sent them is to be closed.

use crate::constants::{COMMAND_INVALID, FRAME_ERROR, SYNTAX_ERROR, UNEXPECTED_FRAME};

/// A payload that is not what the protocol says it should be. Always the sender's fault; always closes its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The payload ends before the named field does.
    #[error("cannot decode {what}: the payload ends inside it")]
    Truncated {
        /// The field that was being read.
        what: &'static str,
    },
    /// Bytes are left after the last field.
    #[error("cannot decode {what}: {count} unexpected bytes follow its last field")]
    TrailingBytes {
        /// What was decoded.
        what: &'static str,
        /// How many bytes are left over.
        count: usize,
    },
    /// No such method is known.
    #[error("unknown method {method} of class {class}")]
    UnknownMethod {
        /// The class id.
        class: u16,
        /// The method id.
        method: u16,
    },
    /// A field table or array holds a value of a type that the dialect does not have.
    #[error("unknown field type {tag:#04x} in a field table")]
    UnknownFieldType {
        /// The type octet.
        tag: u8,
    },
    /// Tables and arrays are nested deeper than [`crate::MAX_NESTING`].
    #[error("field table nested deeper than {} levels", crate::MAX_NESTING)]
    NestingTooDeep,
    /// A short string that must be text is not UTF-8.
    #[error("malformed UTF-8 in shortstr")]
    BadUtf8,
    /// A content header's weight is not zero.
    #[error("content header with weight {weight}, expected 0")]
    NonZeroWeight {
        /// The weight that was sent.
        weight: u16,
    },
}

impl DecodeError {
    /// The reply code to close the connection with.
    ///
    /// RabbitMQ answers payloads that do not fit a method's fields with 501 and headers of non-zero weight with 505; on an unknown
    /// method, field type or runaway nesting its reader process dies without a close. There the specification's codes are used:
    /// 503 for a method that cannot be, 502 for an illegal field value.
    #[must_use]
    pub const fn reply_code(&self) -> u16 {
        match self {
            Self::Truncated { .. } | Self::TrailingBytes { .. } | Self::BadUtf8 => FRAME_ERROR,
            Self::UnknownMethod { .. } => COMMAND_INVALID,
            Self::UnknownFieldType { .. } | Self::NestingTooDeep => SYNTAX_ERROR,
            Self::NonZeroWeight { .. } => UNEXPECTED_FRAME,
        }
    }
}
