//! What a session and a queue's owner say to each other about a consumer.

use crate::command::Place;
use crate::ids::{QueueId, SessionId};
use rkyv::{Archive, Deserialize, Serialize};

/// A consumer: a number that its session gives it and never uses again. A session's gets from a queue count as a consumer, too.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct ConsumerId {
    /// The session.
    pub session: SessionId,
    /// Its number within the session.
    pub number: u32,
}

/// A queue as a session addresses it.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct QueueRef {
    /// This life of the queue.
    pub id: QueueId,
    /// Where its contents live.
    pub place: Place,
}

/// How a consumer is to be served.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscription {
    /// Messages need no acknowledgement.
    pub no_ack: bool,
    /// Nobody else may consume.
    pub exclusive: bool,
    /// At most so many unacknowledged messages; 0: no limit. Not applied without acknowledgement.
    pub prefetch: u32,
    /// Each delivery needs leave: the channel has a limit shared by its consumers.
    pub by_leave: bool,
}

/// What a consumer does with messages that it holds.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settlement {
    /// Done with: they are gone.
    Accept,
    /// Gone as well, since its client does not acknowledge: nobody has accepted it.
    Taken,
    /// The same, of a get that is answered when it is known to be gone: it must not wait.
    Got,
    /// Not wanted: gone (dead-lettered where the queue says so).
    Discard,
    /// Back to their places, marked as redelivered.
    Requeue,
}

/// How much more a session can take for one consumer before it has written out what it has.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit {
    /// Bytes of records, each counted with [`Credit::OVERHEAD`].
    pub bytes: u32,
}

impl Credit {
    /// What a message costs besides its record.
    pub const OVERHEAD: u32 = 64;
    /// What a consumer starts with: enough to keep a socket busy while credit comes back, little enough that a client which does not read costs little.
    pub const WINDOW: Credit = Credit {
        bytes: 2 * 1024 * 1024,
    };

    /// What one record of `len` bytes costs.
    #[inline]
    pub fn cost(len: u32) -> i64 {
        i64::from(len) + i64::from(Self::OVERHEAD)
    }
}
