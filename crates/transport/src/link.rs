//! One link that is up: its lanes' readers and writers, its open requests, its end.
//!
//! Flow: [`Link::run`] starts a reader and a writer a lane and waits until the first of them ends: that ends the connection, thereby
//! all of them, then the open requests, and then the link is told down. Whatever wants a link gone closes its connection.

use crate::{
    Frame, Handler, Hello, Lane, RequestError, Unreachable,
    close::{CloseCode, Ended},
    config::Limits,
    frame::{Decoder, Encoder, Envelope, Kind, LANES},
    handler::ReplyTo,
    queue::{LaneQueue, PushError},
};
use bytes::Bytes;
use parking_lot::Mutex;
use quinn::{Connection, RecvStream, SendStream};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinSet, time::Instant};
use warren_model::NodeId;

/// Number of a link, counted from 1 within a transport's life.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct LinkId(pub u64);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {}", self.0)
    }
}

/// What can be told of a link that is up.
#[derive(Clone, Debug)]
pub struct LinkInfo {
    /// What the peer said of itself when the link opened.
    pub hello: Hello,
    /// The link's number.
    pub link: LinkId,
    /// QUIC's estimate of the round trip.
    pub rtt: Duration,
    /// Since when the link is up.
    pub since: Instant,
    /// Whether this node dialled.
    pub dialled: bool,
    /// Bytes that wait to be written, over all lanes.
    pub queued_bytes: usize,
    /// Bytes of datagrams that came over it.
    pub received_bytes: u64,
    /// Bytes of datagrams that went over it.
    pub sent_bytes: u64,
}

/// What a writer gathers at most before it writes.
const WRITE_LEN: usize = 256 * 1024;
/// Pieces taken from QUIC in one read.
const READ_CHUNKS: usize = 64;

/// The lanes of a connection, indexed by [`Lane::index`].
pub(crate) type LaneStreams = [(SendStream, RecvStream); LANES];

pub(crate) struct Link {
    pub id: LinkId,
    pub hello: Hello,
    pub connection: Connection,
    dialled: bool,
    since: Instant,
    limits: Limits,
    queues: [LaneQueue; LANES],
    requests: Mutex<Requests>,
    /// Set as soon as the end is known, before the link is taken off the list of links.
    closing: AtomicBool,
    /// Why this side closed it, if it did.
    own_reason: OnceLock<String>,
}

#[derive(Default)]
struct Requests {
    last_id: u64,
    open: BTreeMap<u64, oneshot::Sender<Result<Frame, RequestError>>>,
    closed: bool,
}

impl Link {
    pub(crate) fn new(
        id: LinkId,
        hello: Hello,
        connection: Connection,
        dialled: bool,
        limits: Limits,
    ) -> Self {
        Self {
            id,
            hello,
            connection,
            dialled,
            since: Instant::now(),
            limits,
            queues: Default::default(),
            requests: Mutex::default(),
            closing: AtomicBool::new(false),
            own_reason: OnceLock::new(),
        }
    }

    /// Serves the link until its end and says why it ended. All that belongs to the link is over when this returns.
    pub(crate) async fn run(
        self: &Arc<Self>,
        lanes: LaneStreams,
        handler: Arc<dyn Handler>,
    ) -> String {
        let mut tasks = JoinSet::new();
        for (lane, (send, recv)) in Lane::ALL.into_iter().zip(lanes) {
            let (link, handler) = (self.clone(), handler.clone());
            tasks.spawn(async move { link.read_lane(lane, recv, &*handler).await });
            let link = self.clone();
            tasks.spawn(async move { link.write_lane(lane, send).await });
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                // A handler's panic: what it was told is in an unknown state, so the peer must not go on.
                tracing::error!(peer = %self.hello.name, %error, "a task of the link broke");
            }
            self.close(CloseCode::Protocol, "a lane ended");
        }
        let open = {
            let mut requests = self.requests.lock();
            requests.closed = true;
            std::mem::take(&mut requests.open)
        };
        for requester in open.into_values() {
            // The requester may have given up.
            let _ = requester.send(Err(RequestError::LinkLost));
        }
        self.end_reason()
    }

    fn end_reason(&self) -> String {
        match (self.connection.close_reason(), self.own_reason.get()) {
            (Some(quinn::ConnectionError::LocallyClosed) | None, Some(own)) => own.clone(),
            (Some(error), _) => Ended::of(&error).text(),
            (None, None) => "it ended".into(),
        }
    }

    /// Ends the link; the first reason given stands.
    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        self.closing.store(true, Ordering::Release);
        // A connection that has ended already ended for its own reason.
        if self.connection.close_reason().is_none()
            && self.own_reason.set(reason.to_owned()).is_ok()
        {
            self.connection.close(code.value(), reason.as_bytes());
        }
        for queue in &self.queues {
            queue.close();
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn info(&self) -> LinkInfo {
        let stats = self.connection.stats();
        LinkInfo {
            hello: self.hello.clone(),
            link: self.id,
            rtt: self.connection.rtt(),
            since: self.since,
            dialled: self.dialled,
            queued_bytes: self.queues.iter().map(LaneQueue::bytes).sum(),
            received_bytes: stats.udp_rx.bytes,
            sent_bytes: stats.udp_tx.bytes,
        }
    }

    pub(crate) fn queued_bytes(&self, lane: Lane) -> usize {
        self.queues[lane.index()].bytes()
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

    /// Queues a request. The receiver gets its outcome; [`Link::forget`] gives it up.
    pub(crate) fn request(
        &self,
        lane: Lane,
        frame: Frame,
    ) -> Result<(u64, oneshot::Receiver<Result<Frame, RequestError>>), RequestError> {
        let (requester, outcome) = oneshot::channel();
        let id = {
            let mut requests = self.requests.lock();
            if requests.closed {
                return Err(RequestError::Unreachable);
            }
            requests.last_id += 1;
            let id = requests.last_id;
            requests.open.insert(id, requester);
            id
        };
        if let Err(error) = self.push(
            lane,
            Envelope {
                kind: Kind::Request,
                id,
                frame,
            },
        ) {
            tracing::debug!(peer = %self.hello.name, %error, "a request was not sent");
            self.forget(id);
            return Err(RequestError::Unreachable);
        }
        Ok((id, outcome))
    }

    pub(crate) fn forget(&self, id: u64) {
        self.requests.lock().open.remove(&id);
    }

    pub(crate) fn reply(&self, lane: Lane, id: u64, frame: Frame) {
        match self.push(
            lane,
            Envelope {
                kind: Kind::Reply,
                id,
                frame,
            },
        ) {
            Ok(()) | Err(Unreachable::NoLink { .. }) => {}
            Err(error @ Unreachable::Stuck { .. }) => {
                tracing::debug!(peer = %self.hello.name, %error, "a reply was not sent")
            }
            Err(error @ Unreachable::TooLarge { .. }) => {
                tracing::warn!(peer = %self.hello.name, %error, "a reply was not sent");
                self.give_no_reply(lane, id);
            }
        }
    }

    pub(crate) fn give_no_reply(&self, lane: Lane, id: u64) {
        // When the link is down, the requester knows.
        let _ = self.push(
            lane,
            Envelope {
                kind: Kind::NoReply,
                id,
                frame: Frame::default(),
            },
        );
    }

    fn push(&self, lane: Lane, envelope: Envelope) -> Result<(), Unreachable> {
        let node = self.hello.node;
        let (bytes, limit) = (envelope.frame.wire_len(), self.limits.frame_bytes_max);
        if bytes > limit {
            return Err(Unreachable::TooLarge { node, bytes, limit });
        }
        match self.queues[lane.index()].push(envelope, self.limits.queued_bytes_max) {
            Ok(()) => Ok(()),
            Err(PushError::Closed) => Err(Unreachable::NoLink { node }),
            Err(PushError::Full(queued)) => {
                self.close(
                    CloseCode::Stuck,
                    &format!("{queued} bytes wait on lane {lane:?} and are not taken"),
                );
                Err(Unreachable::Stuck { node, queued })
            }
        }
    }

    /// Writes what is queued, in as large pieces as there are, and never waits for more.
    async fn write_lane(&self, lane: Lane, mut stream: SendStream) {
        let queue = &self.queues[lane.index()];
        let mut encoder = Encoder::default();
        while let Some(mut batch) = queue.take().await {
            while let Some(envelope) = batch.pop_front() {
                encoder.push(envelope);
                if encoder.len() < WRITE_LEN && !batch.is_empty() {
                    continue;
                }
                let bytes = encoder.len();
                if stream.write_all_chunks(&mut encoder.take()).await.is_err() {
                    return;
                }
                queue.written(bytes);
            }
        }
    }

    async fn read_lane(
        self: &Arc<Self>,
        lane: Lane,
        mut stream: RecvStream,
        handler: &dyn Handler,
    ) {
        let mut decoder = Decoder::new(self.limits.frame_bytes_max);
        let mut chunks = vec![Bytes::new(); READ_CHUNKS];
        while let Ok(Some(count)) = stream.read_chunks(&mut chunks).await {
            for chunk in &mut chunks[..count] {
                decoder.push(&std::mem::take(chunk));
            }
            loop {
                match decoder.next() {
                    Ok(Some(envelope)) => self.receive(lane, envelope, handler),
                    Ok(None) => break,
                    Err(problem) => {
                        self.close(CloseCode::Protocol, &format!("on lane {lane:?}: {problem}"));
                        return;
                    }
                }
            }
            // A lane that is always readable must not starve the other tasks of its thread.
            tokio::task::consume_budget().await;
        }
    }

    fn receive(self: &Arc<Self>, lane: Lane, envelope: Envelope, handler: &dyn Handler) {
        let Envelope { kind, id, frame } = envelope;
        let from: NodeId = self.hello.node;
        match kind {
            Kind::Message => handler.message(from, lane, frame),
            Kind::Request => {
                handler.request(from, lane, frame, ReplyTo::over(self.clone(), lane, id))
            }
            Kind::Reply => self.answer(id, Ok(frame)),
            Kind::NoReply => self.answer(id, Err(RequestError::Refused)),
        }
    }

    fn answer(&self, id: u64, outcome: Result<Frame, RequestError>) {
        let requester = self.requests.lock().open.remove(&id);
        match requester {
            // The requester may have given up between.
            Some(requester) => drop(requester.send(outcome)),
            None => tracing::trace!(peer = %self.hello.name, id, "a reply came too late"),
        }
    }
}
