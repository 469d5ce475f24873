//! What a transport tells its user, and how the user answers requests.

use crate::{Frame, Hello, Lane, LinkId, RequestError, link::Link};
use std::{fmt, sync::Arc};
use tokio::sync::oneshot;
use warren_model::NodeId;

/// The user of a transport. Calls come from the transport's own tasks and must return soon: while one runs, its lane stands still.
pub trait Handler: Send + Sync + 'static {
    /// Whether to be linked with this peer. An error refuses the link; its text reaches the peer. Asked at each attempt, also
    /// when a peer only asks to be dialled.
    fn admit(&self, peer: &Hello) -> Result<(), String>;

    /// A link to the peer is up: sending works from now on, and nothing of this link has been received before.
    fn link_up(&self, peer: &Hello, link: LinkId);

    /// The link is down: nothing of it is received any more, its open requests have failed, what was queued on it is lost.
    fn link_down(&self, peer: &Hello, link: LinkId);

    /// A one-way message; in order per lane.
    fn message(&self, from: NodeId, lane: Lane, frame: Frame);

    /// A request; in order per lane, together with messages. The reply may be given later and from anywhere.
    fn request(&self, from: NodeId, lane: Lane, frame: Frame, reply: ReplyTo);

    /// The peer at this address refused our dial, or we refused the peer found there. Called once a reason, not at each retry.
    fn refused(&self, peer_address: &str, reason: String) {
        let _ = (peer_address, reason);
    }

    /// Somebody who connected from this address, as far as is known who, was not let in. Called once a reason, not at each attempt.
    fn turned_away(&self, who: &str, address: &str, reason: &str) {
        let _ = (who, address, reason);
    }
}

/// Answers one request. Dropping it tells the requester at once that no reply will come.
pub struct ReplyTo(Option<Route>);

enum Route {
    Link {
        link: Arc<Link>,
        lane: Lane,
        id: u64,
    },
    Own(oneshot::Sender<Result<Frame, RequestError>>),
}

impl ReplyTo {
    pub(crate) fn over(link: Arc<Link>, lane: Lane, id: u64) -> Self {
        Self(Some(Route::Link { link, lane, id }))
    }

    pub(crate) fn own(requester: oneshot::Sender<Result<Frame, RequestError>>) -> Self {
        Self(Some(Route::Own(requester)))
    }

    /// Sends the reply, on the lane that the request came on. It is lost if the link is down by now.
    pub fn send(mut self, frame: Frame) {
        match self.0.take() {
            Some(Route::Link { link, lane, id }) => link.reply(lane, id, frame),
            // The requester may have given up.
            Some(Route::Own(requester)) => drop(requester.send(Ok(frame))),
            None => {}
        }
    }
}

impl Drop for ReplyTo {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Route::Link { link, lane, id }) => link.give_no_reply(lane, id),
            Some(Route::Own(requester)) => drop(requester.send(Err(RequestError::Refused))),
            None => {}
        }
    }
}

impl fmt::Debug for ReplyTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(Route::Link { link, lane, id }) => {
                write!(f, "ReplyTo({}, {lane:?}, {id})", link.hello.name)
            }
            Some(Route::Own(_)) => write!(f, "ReplyTo(own)"),
            None => write!(f, "ReplyTo(answered)"),
        }
    }
}
