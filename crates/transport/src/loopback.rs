//! A node's frames to itself: delivered to its own handler by a task a lane, in order, never from within the sender's call.

use crate::{
    Frame, Handler, Lane, ReplyTo, RequestError, Unreachable,
    config::Limits,
    frame::{Envelope, Kind, LANES},
    queue::{LaneQueue, PushError},
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};
use tokio::{runtime, sync::oneshot};
use warren_model::NodeId;

pub(crate) struct Loopback {
    own: NodeId,
    limits: Limits,
    queues: [LaneQueue; LANES],
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    last_id: u64,
    open: BTreeMap<u64, oneshot::Sender<Result<Frame, RequestError>>>,
}

impl Loopback {
    pub(crate) fn start(
        own: NodeId,
        limits: Limits,
        handler: &Arc<dyn Handler>,
        runtime: &runtime::Handle,
    ) -> Arc<Self> {
        let loopback = Arc::new(Self {
            own,
            limits,
            queues: Default::default(),
            requests: Mutex::default(),
        });
        for lane in Lane::ALL {
            let (loopback, handler) = (loopback.clone(), handler.clone());
            runtime.spawn(async move { loopback.deliver(lane, &*handler).await });
        }
        loopback
    }

    async fn deliver(&self, lane: Lane, handler: &dyn Handler) {
        let queue = &self.queues[lane.index()];
        while let Some(batch) = queue.take().await {
            for Envelope { kind, id, frame } in batch {
                queue.written(frame.wire_len());
                match kind {
                    Kind::Message => handler.message(self.own, lane, frame),
                    Kind::Request => {
                        let requester = self.requests.lock().open.remove(&id);
                        if let Some(requester) = requester {
                            handler.request(self.own, lane, frame, ReplyTo::own(requester));
                        }
                    }
                    // Replies go straight to the requester.
                    Kind::Reply | Kind::NoReply => {}
                }
                tokio::task::consume_budget().await;
            }
        }
    }

    pub(crate) fn send(&self, lane: Lane, frame: Frame) -> Result<(), Unreachable> {
        self.push(
            lane,
            Envelope {
                kind: Kind::Message,
                id: 0,
                frame,
            },
        )
    }

    pub(crate) fn request(
        &self,
        lane: Lane,
        frame: Frame,
    ) -> Result<oneshot::Receiver<Result<Frame, RequestError>>, RequestError> {
        let (requester, outcome) = oneshot::channel();
        let id = {
            let mut requests = self.requests.lock();
            requests.last_id += 1;
            let id = requests.last_id;
            requests.open.insert(id, requester);
            id
        };
        if self
            .push(
                lane,
                Envelope {
                    kind: Kind::Request,
                    id,
                    frame,
                },
            )
            .is_err()
        {
            self.requests.lock().open.remove(&id);
            return Err(RequestError::Unreachable);
        }
        Ok(outcome)
    }

    fn push(&self, lane: Lane, envelope: Envelope) -> Result<(), Unreachable> {
        let node = self.own;
        let (bytes, limit) = (envelope.frame.wire_len(), self.limits.frame_bytes_max);
        if bytes > limit {
            // As if it were for another node: what works must not depend on where a queue lives.
            return Err(Unreachable::TooLarge { node, bytes, limit });
        }
        self.queues[lane.index()]
            .push(envelope, self.limits.queued_bytes_max)
            .map_err(|error| match error {
                PushError::Closed => Unreachable::NoLink { node },
                PushError::Full(queued) => Unreachable::Stuck { node, queued },
            })
    }

    pub(crate) fn queued_bytes(&self, lane: Lane) -> usize {
        self.queues[lane.index()].bytes()
    }

    pub(crate) fn close(&self) {
        for queue in &self.queues {
            queue.close();
        }
        self.requests.lock().open.clear();
    }
}
