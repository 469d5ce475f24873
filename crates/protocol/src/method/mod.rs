//! Every method of AMQP 0-9-1 and of RabbitMQ's extensions.
//!
//! One struct per method that has arguments, in the module of its class; one enum over all. Reserved fields are not represented.
//! Decoding is strict, as RabbitMQ's is: all fields, and nothing after them.

mod basic;
mod connection;
mod fields;
mod topology;

pub use basic::*;
pub use connection::*;
use fields::{Arguments, Field};
pub use topology::*;

use crate::constants::CLASS_BASIC;
use crate::error::DecodeError;
use crate::frame::{FRAME_END, FrameKind, put_frame_head};
use crate::shortstr::ShortStr;
use crate::wire::{Reader, Writer, length_u32};

/// Writes the enum and everything that goes over all methods from one list.
macro_rules! methods {
    (
        arguments {
            $($variant:ident $(<$lt:lifetime>)? ($class:literal, $method:literal) $name:literal;)+
        }
        empty {
            $($empty:ident ($empty_class:literal, $empty_method:literal) $empty_name:literal $(skip($reserved:ty))?;)+
        }
    ) => {
        /// Any method. Variants without data have no arguments, or only reserved ones.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Method<'a> {
            $(
                #[doc = concat!("`", $name, "`")]
                $variant($variant $(<$lt>)?),
            )+
            $(
                #[doc = concat!("`", $empty_name, "`")]
                $empty,
            )+
        }

        $(
            impl<'a> From<$variant $(<$lt>)?> for Method<'a> {
                fn from(arguments: $variant $(<$lt>)?) -> Self {
                    Self::$variant(arguments)
                }
            }
        )+

        impl<'a> Method<'a> {
            /// The specification's name: `queue.declare`.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                    $(Self::$empty => $empty_name,)+
                }
            }

            /// Class and method id.
            #[must_use]
            pub const fn class_method(&self) -> (u16, u16) {
                match self {
                    $(Self::$variant(_) => ($class, $method),)+
                    $(Self::$empty => ($empty_class, $empty_method),)+
                }
            }

            fn decode_any(class: u16, method: u16, mut reader: Reader<'a>) -> Result<Self, DecodeError> {
                match (class, method) {
                    $(
                        ($class, $method) => finish(Self::$variant(Arguments::read(&mut reader)?), reader, $name),
                    )+
                    $(
                        ($empty_class, $empty_method) => {
                            $(<$reserved as Field>::read(&mut reader, concat!($empty_name, ": reserved"))?;)?
                            finish(Self::$empty, reader, $empty_name)
                        }
                    )+
                    _ => Err(DecodeError::UnknownMethod { class, method }),
                }
            }

            fn write_arguments(&self, writer: &mut Writer<'_>) {
                match self {
                    $(Self::$variant(arguments) => arguments.write(writer),)+
                    $(Self::$empty => {
                        $(<$reserved as Field>::write(&Default::default(), writer);)?
                    })+
                }
            }
        }

        /// The specification's name of a method, by its ids.
        #[must_use]
        pub const fn method_name(class: u16, method: u16) -> Option<&'static str> {
            match (class, method) {
                $(($class, $method) => Some($name),)+
                $(($empty_class, $empty_method) => Some($empty_name),)+
                _ => None,
            }
        }
    };
}

methods! {
    arguments {
        ConnectionStart<'a> (10, 10) "connection.start";
        ConnectionStartOk<'a> (10, 11) "connection.start-ok";
        ConnectionSecure<'a> (10, 20) "connection.secure";
        ConnectionSecureOk<'a> (10, 21) "connection.secure-ok";
        ConnectionTune (10, 30) "connection.tune";
        ConnectionTuneOk (10, 31) "connection.tune-ok";
        ConnectionOpen<'a> (10, 40) "connection.open";
        ConnectionClose<'a> (10, 50) "connection.close";
        ConnectionBlocked<'a> (10, 60) "connection.blocked";
        ConnectionUpdateSecret<'a> (10, 70) "connection.update-secret";
        ChannelFlow (20, 20) "channel.flow";
        ChannelFlowOk (20, 21) "channel.flow-ok";
        ChannelClose<'a> (20, 40) "channel.close";
        AccessRequest<'a> (30, 10) "access.request";
        AccessRequestOk (30, 11) "access.request-ok";
        ExchangeDeclare<'a> (40, 10) "exchange.declare";
        ExchangeDelete<'a> (40, 20) "exchange.delete";
        ExchangeBind<'a> (40, 30) "exchange.bind";
        ExchangeUnbind<'a> (40, 40) "exchange.unbind";
        QueueDeclare<'a> (50, 10) "queue.declare";
        QueueDeclareOk<'a> (50, 11) "queue.declare-ok";
        QueueBind<'a> (50, 20) "queue.bind";
        QueuePurge<'a> (50, 30) "queue.purge";
        QueuePurgeOk (50, 31) "queue.purge-ok";
        QueueDelete<'a> (50, 40) "queue.delete";
        QueueDeleteOk (50, 41) "queue.delete-ok";
        QueueUnbind<'a> (50, 50) "queue.unbind";
        BasicQos (60, 10) "basic.qos";
        BasicConsume<'a> (60, 20) "basic.consume";
        BasicConsumeOk<'a> (60, 21) "basic.consume-ok";
        BasicCancel<'a> (60, 30) "basic.cancel";
        BasicCancelOk<'a> (60, 31) "basic.cancel-ok";
        BasicPublish<'a> (60, 40) "basic.publish";
        BasicReturn<'a> (60, 50) "basic.return";
        BasicDeliver<'a> (60, 60) "basic.deliver";
        BasicGet<'a> (60, 70) "basic.get";
        BasicGetOk<'a> (60, 71) "basic.get-ok";
        BasicAck (60, 80) "basic.ack";
        BasicReject (60, 90) "basic.reject";
        BasicRecoverAsync (60, 100) "basic.recover-async";
        BasicRecover (60, 110) "basic.recover";
        BasicNack (60, 120) "basic.nack";
        ConfirmSelect (85, 10) "confirm.select";
    }
    empty {
        ConnectionOpenOk (10, 41) "connection.open-ok" skip(ShortStr<'_>);
        ConnectionCloseOk (10, 51) "connection.close-ok";
        ConnectionUnblocked (10, 61) "connection.unblocked";
        ConnectionUpdateSecretOk (10, 71) "connection.update-secret-ok";
        ChannelOpen (20, 10) "channel.open" skip(ShortStr<'_>);
        ChannelOpenOk (20, 11) "channel.open-ok" skip(&[u8]);
        ChannelCloseOk (20, 41) "channel.close-ok";
        ExchangeDeclareOk (40, 11) "exchange.declare-ok";
        ExchangeDeleteOk (40, 21) "exchange.delete-ok";
        ExchangeBindOk (40, 31) "exchange.bind-ok";
        ExchangeUnbindOk (40, 51) "exchange.unbind-ok";
        QueueBindOk (50, 21) "queue.bind-ok";
        QueueUnbindOk (50, 51) "queue.unbind-ok";
        BasicQosOk (60, 11) "basic.qos-ok";
        BasicGetEmpty (60, 72) "basic.get-empty" skip(ShortStr<'_>);
        BasicRecoverOk (60, 111) "basic.recover-ok";
        ConfirmSelectOk (85, 11) "confirm.select-ok";
        TxSelect (90, 10) "tx.select";
        TxSelectOk (90, 11) "tx.select-ok";
        TxCommit (90, 20) "tx.commit";
        TxCommitOk (90, 21) "tx.commit-ok";
        TxRollback (90, 30) "tx.rollback";
        TxRollbackOk (90, 31) "tx.rollback-ok";
    }
}

const BASIC_PUBLISH: u16 = 40;
const BASIC_ACK: u16 = 80;

impl<'a> Method<'a> {
    /// Reads a method frame's payload.
    ///
    /// The two methods that make up nearly all traffic are tried first and are decoded inline in the caller.
    ///
    /// # Errors
    /// See [`DecodeError`]; its [`reply_code`](DecodeError::reply_code) closes the connection.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let class = reader.u16("class id")?;
        let method = reader.u16("method id")?;
        if class == CLASS_BASIC && method == BASIC_PUBLISH {
            let publish = Arguments::read(&mut reader)?;
            return finish(Self::BasicPublish(publish), reader, "basic.publish");
        }
        if class == CLASS_BASIC && method == BASIC_ACK {
            let ack = Arguments::read(&mut reader)?;
            return finish(Self::BasicAck(ack), reader, "basic.ack");
        }
        Self::decode_any(class, method, reader)
    }

    /// Appends a method frame's payload: class, method id, arguments.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (class, method) = self.class_method();
        let mut writer = Writer::new(out);
        writer.raw(&class.to_be_bytes());
        writer.raw(&method.to_be_bytes());
        self.write_arguments(&mut writer);
    }

    /// Appends a whole method frame.
    pub fn write(&self, channel: u16, out: &mut Vec<u8>) {
        put_frame_head(out, FrameKind::Method, channel, 0);
        let start = out.len();
        self.encode(out);
        let size = length_u32(out.len() - start).to_be_bytes();
        out[start - 4..start].copy_from_slice(&size);
        out.push(FRAME_END);
    }

    /// Whether a content header and body follow the method.
    #[inline]
    #[must_use]
    pub const fn has_content(&self) -> bool {
        matches!(
            self,
            Self::BasicPublish(_)
                | Self::BasicReturn(_)
                | Self::BasicDeliver(_)
                | Self::BasicGetOk(_)
        )
    }
}

#[inline(always)]
fn finish<'a>(
    method: Method<'a>,
    reader: Reader<'_>,
    what: &'static str,
) -> Result<Method<'a>, DecodeError> {
    reader.finish(what)?;
    Ok(method)
}

/// Class and method id of a method frame's payload, without decoding the arguments.
#[inline]
#[must_use]
pub fn method_id(payload: &[u8]) -> Option<(u16, u16)> {
    let [c0, c1, m0, m1] = *payload.first_chunk()?;
    Some((u16::from_be_bytes([c0, c1]), u16::from_be_bytes([m0, m1])))
}
