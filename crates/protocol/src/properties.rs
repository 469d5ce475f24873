//! Basic properties: the list in a content header, from its flags on (specification, section 4.2.6.1).
//!
//! The broker keeps the list as the bytes that came and looks at as little of it as it can: [`property_flags`] says in constant time what
//! is there, [`delivery_mode`] skips to the one field that every durable publish needs, [`Properties::parse`] reads all.

use crate::error::DecodeError;
use crate::shortstr::ShortStr;
use crate::table::Table;
use crate::wire::{Reader, put_long, put_short};

/// More flag words follow this one.
const CONTINUATION: u16 = 1;
/// The one bit of the first word that stands for no property.
const UNASSIGNED: u16 = 1 << 1;

/// Which of the fourteen properties a list has: the first flag word as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PropertyFlags(pub u16);

macro_rules! flags {
    ($($has:ident $bit:ident $shift:literal $name:literal;)+) => {
        impl PropertyFlags {
            $(
                #[doc = concat!("The bit of `", $name, "`.")]
                pub const $bit: u16 = 1 << $shift;

                #[doc = concat!("Whether `", $name, "` is there.")]
                #[inline]
                #[must_use]
                pub const fn $has(self) -> bool {
                    self.0 & Self::$bit != 0
                }
            )+
        }
    };
}

flags! {
    has_content_type CONTENT_TYPE 15 "content-type";
    has_content_encoding CONTENT_ENCODING 14 "content-encoding";
    has_headers HEADERS 13 "headers";
    has_delivery_mode DELIVERY_MODE 12 "delivery-mode";
    has_priority PRIORITY 11 "priority";
    has_correlation_id CORRELATION_ID 10 "correlation-id";
    has_reply_to REPLY_TO 9 "reply-to";
    has_expiration EXPIRATION 8 "expiration";
    has_message_id MESSAGE_ID 7 "message-id";
    has_timestamp TIMESTAMP 6 "timestamp";
    has_kind KIND 5 "type";
    has_user_id USER_ID 4 "user-id";
    has_app_id APP_ID 3 "app-id";
    has_cluster_id CLUSTER_ID 2 "cluster-id";
}

/// The first flag word of a property list.
///
/// # Errors
/// If the list is shorter than that.
#[inline]
pub fn property_flags(raw: &[u8]) -> Result<PropertyFlags, DecodeError> {
    Reader::new(raw).u16("property flags").map(PropertyFlags)
}

/// The delivery mode, if the list has one and is well-formed up to there. 2 is persistent, anything else transient.
#[inline]
#[must_use]
pub fn delivery_mode(raw: &[u8]) -> Option<u8> {
    let flags = property_flags(raw).ok()?;
    if !flags.has_delivery_mode() {
        return None;
    }
    let mut reader = Reader::new(raw);
    skip_flag_words(&mut reader).ok()?;
    if flags.has_content_type() {
        reader.short_str("").ok()?;
    }
    if flags.has_content_encoding() {
        reader.short_str("").ok()?;
    }
    if flags.has_headers() {
        reader.long_str("").ok()?;
    }
    reader.u8("").ok()
}

/// Whether a whole property list is well-formed: its fields fit, its table is valid, nothing is left over.
///
/// # Errors
/// As [`Properties::parse`].
pub fn validate_properties(raw: &[u8]) -> Result<(), DecodeError> {
    Properties::parse(raw).map(drop)
}

/// The first word, and whether the list may hold properties that this dialect does not know.
#[inline]
fn skip_flag_words(reader: &mut Reader<'_>) -> Result<(PropertyFlags, bool), DecodeError> {
    let first = reader.u16("property flags")?;
    let mut unknown = first & UNASSIGNED != 0;
    let mut word = first;
    while word & CONTINUATION != 0 {
        word = reader.u16("property flags")?;
        unknown |= word & !CONTINUATION != 0;
    }
    Ok((PropertyFlags(first), unknown))
}

/// All basic properties, borrowed from the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Properties<'a> {
    /// MIME type.
    pub content_type: Option<ShortStr<'a>>,
    /// MIME encoding.
    pub content_encoding: Option<ShortStr<'a>>,
    /// Application headers, `CC` and `BCC` among them.
    pub headers: Option<Table<'a>>,
    /// 2 for persistent, anything else for transient.
    pub delivery_mode: Option<u8>,
    /// Priority for queues that have priorities.
    pub priority: Option<u8>,
    /// Which request this answers.
    pub correlation_id: Option<ShortStr<'a>>,
    /// Where to send the answer.
    pub reply_to: Option<ShortStr<'a>>,
    /// Time to live in milliseconds, as text.
    pub expiration: Option<ShortStr<'a>>,
    /// The application's message id.
    pub message_id: Option<ShortStr<'a>>,
    /// Seconds since the Unix epoch.
    pub timestamp: Option<u64>,
    /// The `type` property.
    pub kind: Option<ShortStr<'a>>,
    /// The publishing user, checked against the connection's.
    pub user_id: Option<ShortStr<'a>>,
    /// The publishing application.
    pub app_id: Option<ShortStr<'a>>,
    /// Reserved.
    pub cluster_id: Option<ShortStr<'a>>,
}

impl<'a> Properties<'a> {
    /// Reads a property list.
    ///
    /// Further flag words are skipped. If they (or the first word's spare bit) announce properties, those come after the known ones and
    /// have unknown types, so whatever follows is ignored; otherwise nothing may follow.
    ///
    /// # Errors
    /// If a field does not fit or the headers are no table.
    pub fn parse(raw: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(raw);
        let (flags, unknown) = skip_flag_words(&mut reader)?;
        let reader = &mut reader;
        let short = |reader: &mut Reader<'a>, bit: u16, what| match flags.0 & bit {
            0 => Ok(None),
            _ => reader.short_str(what).map(Some),
        };
        let octet = |reader: &mut Reader<'a>, bit: u16, what| match flags.0 & bit {
            0 => Ok(None),
            _ => reader.u8(what).map(Some),
        };
        // Struct fields are evaluated in the order written: the wire's.
        let properties = Self {
            content_type: short(reader, PropertyFlags::CONTENT_TYPE, "content-type")?,
            content_encoding: short(reader, PropertyFlags::CONTENT_ENCODING, "content-encoding")?,
            headers: match flags.has_headers() {
                true => Some(Table::parse(reader.long_str("headers")?)?),
                false => None,
            },
            delivery_mode: octet(reader, PropertyFlags::DELIVERY_MODE, "delivery-mode")?,
            priority: octet(reader, PropertyFlags::PRIORITY, "priority")?,
            correlation_id: short(reader, PropertyFlags::CORRELATION_ID, "correlation-id")?,
            reply_to: short(reader, PropertyFlags::REPLY_TO, "reply-to")?,
            expiration: short(reader, PropertyFlags::EXPIRATION, "expiration")?,
            message_id: short(reader, PropertyFlags::MESSAGE_ID, "message-id")?,
            timestamp: match flags.has_timestamp() {
                true => Some(reader.u64("timestamp")?),
                false => None,
            },
            kind: short(reader, PropertyFlags::KIND, "type")?,
            user_id: short(reader, PropertyFlags::USER_ID, "user-id")?,
            app_id: short(reader, PropertyFlags::APP_ID, "app-id")?,
            cluster_id: short(reader, PropertyFlags::CLUSTER_ID, "cluster-id")?,
        };
        if !unknown {
            reader.finish("property list")?;
        }
        Ok(properties)
    }

    /// The flag word that stands for what is set.
    #[must_use]
    pub fn flags(&self) -> PropertyFlags {
        let set = |present: bool, bit: u16| if present { bit } else { 0 };
        PropertyFlags(
            set(self.content_type.is_some(), PropertyFlags::CONTENT_TYPE)
                | set(
                    self.content_encoding.is_some(),
                    PropertyFlags::CONTENT_ENCODING,
                )
                | set(self.headers.is_some(), PropertyFlags::HEADERS)
                | set(self.delivery_mode.is_some(), PropertyFlags::DELIVERY_MODE)
                | set(self.priority.is_some(), PropertyFlags::PRIORITY)
                | set(self.correlation_id.is_some(), PropertyFlags::CORRELATION_ID)
                | set(self.reply_to.is_some(), PropertyFlags::REPLY_TO)
                | set(self.expiration.is_some(), PropertyFlags::EXPIRATION)
                | set(self.message_id.is_some(), PropertyFlags::MESSAGE_ID)
                | set(self.timestamp.is_some(), PropertyFlags::TIMESTAMP)
                | set(self.kind.is_some(), PropertyFlags::KIND)
                | set(self.user_id.is_some(), PropertyFlags::USER_ID)
                | set(self.app_id.is_some(), PropertyFlags::APP_ID)
                | set(self.cluster_id.is_some(), PropertyFlags::CLUSTER_ID),
        )
    }

    /// Appends the property list: one flag word and the properties that are set.
    pub fn encode(&self, out: &mut Vec<u8>) {
        fn short(out: &mut Vec<u8>, value: Option<ShortStr<'_>>) {
            if let Some(text) = value {
                put_short(out, text.as_bytes());
            }
        }
        out.extend_from_slice(&self.flags().0.to_be_bytes());
        short(out, self.content_type);
        short(out, self.content_encoding);
        if let Some(headers) = self.headers {
            put_long(out, headers.as_bytes());
        }
        out.extend(self.delivery_mode);
        out.extend(self.priority);
        short(out, self.correlation_id);
        short(out, self.reply_to);
        short(out, self.expiration);
        short(out, self.message_id);
        if let Some(timestamp) = self.timestamp {
            out.extend_from_slice(&timestamp.to_be_bytes());
        }
        short(out, self.kind);
        short(out, self.user_id);
        short(out, self.app_id);
        short(out, self.cluster_id);
    }
}
