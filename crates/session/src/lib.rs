//! One client connection as a state machine: bytes from the client in, bytes to the client out, questions and requests to a [`Host`]; no I/O, no clock.
//!
//! Flow: the host's loop reads from the socket and calls [`Session::input`]; what the session asks for asynchronously ([`Request`]) comes back through
//! [`Session::reply`], messages through [`Session::deliver`], outcomes of publishes through [`Session::confirm`] and [`Session::flush_confirms`];
//! whatever is to be sent lies in [`Session::out`].
//! Invariants: within a channel everything happens in the order of its frames: while a request is unanswered, later frames of that channel wait in its
//! backlog (other channels go on), but for declarations that cannot get in each other's way, which follow at once so that they share a log entry.
//! A return is written before the confirm that covers it. After a channel is closed by either side, all its frames but close and close-ok are ignored,
//! and the client is told of the close, or of its end, when what was released is back in the queues.
//! Cost: a publish whose frames lie whole in the read buffer is handed on without being copied or allocated for.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod basic;
mod channel;
mod confirms;
mod connection;
mod consumers;
mod handshake;
mod host;
mod publish;
mod requests;
mod stats;
mod topology;
mod unacked;

pub use connection::{Identity, Limits, Phase, Session};
pub use consumers::Delivered;
pub use host::{Check, Got, Host, Publish, Published, Reply, Request};
pub use stats::{ChannelStatus, ConsumerStatus, MessageCounts};

use warren_model::Refusal;
use warren_protocol::{DecodeError, is_connection_error, reply_name};

/// Why a frame cannot be accepted; the connection adds which method it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Closes the channel.
    Channel(u16, String),
    /// Closes the connection.
    Connection(u16, String),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let text = format!("{} - {}", reply_name(refusal.code), refusal.text);
        if is_connection_error(refusal.code) {
            Self::Connection(refusal.code, text)
        } else {
            Self::Channel(refusal.code, text)
        }
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Refusal::new(error.reply_code(), error.to_string()).into()
    }
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// It is dealt with.
    Done,
    /// Its channel waits for a reply: keep the frame and try again afterwards.
    Stall,
    /// The host cannot take publishes now: stop reading and try the same bytes again when it can.
    Hold,
}
