//! Outcomes: what applying a command answers. Computed in `apply`, so every node agrees on it.

use crate::command::Place;
use crate::ids::QueueId;
use rkyv::{Archive, Deserialize, Serialize};

/// The answer to one command.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Done, or nothing to do.
    Done,
    /// The queue as it now is.
    Queue {
        /// Its id.
        id: QueueId,
        /// Where its contents live.
        place: Place,
        /// It did not exist before.
        created: bool,
    },
    /// Refused; nothing changed.
    Refused(Refusal),
    /// The proposer chose by an outdated view (a node that is no longer up); it must choose anew and propose again. Nothing changed.
    Retry,
}

/// Why a command is refused, in AMQP's terms.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// AMQP reply code: 403, 404, 405, 406 close the channel; 503, 530, 540 and the like close the connection.
    pub code: u16,
    /// The text after `NAME - `, for example `no queue 'q' in vhost '/'`.
    pub text: String,
}

impl Refusal {
    /// A refusal with `code` and `text`.
    pub fn new(code: u16, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// 404.
    pub fn not_found(text: impl Into<String>) -> Self {
        Self::new(404, text)
    }

    /// 403.
    pub fn access_refused(text: impl Into<String>) -> Self {
        Self::new(403, text)
    }

    /// 405.
    pub fn resource_locked(text: impl Into<String>) -> Self {
        Self::new(405, text)
    }

    /// 406.
    pub fn precondition_failed(text: impl Into<String>) -> Self {
        Self::new(406, text)
    }
}
