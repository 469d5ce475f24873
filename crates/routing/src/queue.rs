//! A queue's definition as the table holds it.

use crate::bindings::Chain;
use std::sync::Arc;
use warren_model::command::Place;
use warren_model::{QueueId, SessionId};

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub id: QueueId,
    pub place: Place,
    /// The virtual host's slot.
    pub vhost: u32,
    pub name: Arc<str>,
    pub durable: bool,
    pub auto_delete: bool,
    pub exclusive: Option<SessionId>,
    /// As the client sent them.
    pub arguments: Box<[u8]>,
    /// Bindings that lead here.
    pub bound: Chain,
}
