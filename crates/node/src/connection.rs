//! One client connection: reads, lets the session digest, writes; one task, no locks.
//!
//! Flow of a turn: wait until there is something to read, write, or take from the inbox; let the session digest it; send what came of it to queue
//! owners; write what is for the client.
//! Invariants: the connection is not read from while too much of what it published is under way, while the node may not take publishes, or
//! while the client does not read what it is sent; memory for a connection is bounded by its windows.

use crate::audit::{self, Who};
use crate::churn::Churned;
use crate::client::{Client, IN_FLIGHT_MAX};
use crate::leaders::Reattaching;
use crate::meter::{self, MessageStats, Meter, rated};
use crate::node::Node;
use crate::registry::{ChannelInfo, Detail, Live, Origin};
use crate::spans;
use crate::wire::ToSession;
use bytes::{Buf, BytesMut};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, Sleep};
use warren_model::NodeId;
use warren_session::{MessageCounts, Phase, Reply, Session};

/// Read buffers start at this size and grow while reads fill them.
const READ_MIN: usize = 8 * 1024;
const READ_MAX: usize = 256 * 1024;
/// While so much waits to be written, nothing more is taken from the inbox.
const WRITE_HIGH: usize = 512 * 1024;
/// While so much waits to be written, the client is not read from: it does not read what it asked for.
const WRITE_MAX: usize = 8 * 1024 * 1024;
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a closing connection waits for the client's close-ok, or for its last bytes to be taken.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a client's close may wait for what belonged to it to be gone: a little more than a command may take.
const END_DEADLINE: Duration = Duration::from_secs(12);
/// How long publishes that have arrived in part may keep more than [`UNFINISHED_KEPT`] while publishes are held back because there is too little memory.
const UNFINISHED_DEADLINE: Duration = Duration::from_secs(15);
/// Bytes of unfinished publishes that a connection may keep however long publishes are held back.
const UNFINISHED_KEPT: u64 = 1 << 20;
/// How soon a publish that is held back is offered again.
const HOLD_PAUSE: Duration = Duration::from_millis(10);

/// What reaches a session other than from its client.
#[derive(Debug)]
pub(crate) enum Inbox {
    Owner(ToSession),
    Reply {
        channel: u16,
        id: u64,
        reply: Reply,
    },
    AskAgain(u64),
    /// The verdict on the client's login.
    LoginChecked(Result<(), String>),
    NodeLost(NodeId),
    MembersChanged,
    /// A shard has a leader that wants to know what consumers hold: dropped when it has been told.
    Leader(Arc<Reattaching>),
    /// An alarm starts, with its reason, or all have ended.
    Alarm(Option<String>),
    /// The connection is to end (320).
    Close(String),
    /// An operator wants to know how it is.
    Describe(Detail, oneshot::Sender<Live>),
    /// The connection is to end if it uses this virtual host.
    VhostDeleted(String),
}

/// Serves one accepted connection until it ends.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    node: Arc<Node>,
    stream: S,
    origin: Origin,
) {
    let (sender, inbox) = mpsc::unbounded_channel();
    let id = node.register_session(sender.clone());
    let mut session = Session::new(id, node.identity(), node.settings().limits);
    if let Some(user) = origin.tls.as_ref().and_then(|tls| tls.user.clone()) {
        session.set_certified(user);
    }
    let peer = origin.peer;
    let client = Client::new(node.clone(), id, peer.ip(), sender.clone());
    let now = Instant::now();
    let kill = Arc::new(Notify::new());
    let mut connection = Connection {
        node: node.clone(),
        stream,
        session,
        client,
        inbox,
        read: BytesMut::new(),
        read_size: READ_MIN,
        written: 0,
        held: None,
        unfinished: 0,
        end: false,
        opened: now,
        last_read: now,
        last_write: now,
        closing: None,
        announced: false,
        timer: Box::pin(tokio::time::sleep_until(now + HANDSHAKE_DEADLINE)),
        traffic: Meter::new(now),
        reported: MessageCounts::default(),
        reported_traffic: Traffic::default(),
        origin,
        sender,
        kill: kill.clone(),
        span: tracing::Span::none(),
    };
    let why = tokio::select! {
        biased;
        () = kill.notified() => "closed for an operator; its client did not answer".to_owned(),
        why = connection.run() => why,
    };
    connection.report();
    node.account(connection.unfinished, 0);
    if node.registry().remove(id.number) {
        node.churn().count(Churned::ConnectionClosed, 1);
    }
    connection.client.gone();
    node.forget_session(id);
    let user = connection.session.user();
    if let Some(reason) = connection.session.refused_login() {
        audit::login_refused(&connection.who(), reason);
    }
    if connection.announced {
        connection.span.record("reason", &why);
        audit::disconnected(&connection.who(), connection.session.vhost(), &why);
        tracing::info!(%peer, user, session = %id, reason = %why, "connection closed");
    } else {
        tracing::debug!(%peer, user, session = %id, reason = %why, "connection closed before it was opened");
    }
}

struct Connection<S> {
    node: Arc<Node>,
    stream: S,
    session: Session,
    client: Client,
    inbox: mpsc::UnboundedReceiver<Inbox>,
    read: BytesMut,
    read_size: usize,
    /// Bytes of the session's output that are written already.
    written: usize,
    /// A publish is held back, since then; try again soon.
    held: Option<Instant>,
    /// What the node has been told of bytes of unfinished publishes.
    unfinished: u64,
    /// The client has closed its side.
    end: bool,
    opened: Instant,
    last_read: Instant,
    last_write: Instant,
    /// The phase in which the connection comes to its end, and since when.
    closing: Option<(Phase, Instant)>,
    announced: bool,
    timer: Pin<Box<Sleep>>,
    traffic: Meter<Traffic>,
    /// What the node has been told of the session's counts.
    reported: MessageCounts,
    reported_traffic: Traffic,
    origin: Origin,
    /// What the inbox takes from.
    sender: mpsc::UnboundedSender<Inbox>,
    /// Ends this connection at once.
    kill: Arc<Notify>,
    /// The whole of it, where traces are exported.
    span: tracing::Span,
}

/// Bytes and system calls of a connection.
#[derive(Clone, Copy, Default)]
struct Traffic {
    received: u64,
    sent: u64,
    reads: u64,
    writes: u64,
}

impl std::ops::Sub for Traffic {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            received: self.received - earlier.received,
            sent: self.sent - earlier.sent,
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
        }
    }
}

/// What a wait has found.
#[derive(Default)]
struct Found {
    input: bool,
    inbox: bool,
    timer: bool,
    output: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Returns why the connection ended.
    async fn run(&mut self) -> String {
        let mut taken = Vec::new();
        loop {
            let found = match self.wait(&mut taken).await {
                Ok(found) => found,
                Err(error) => return error.to_string(),
            };
            self.client.refresh();
            for message in taken.drain(..) {
                self.take(message);
            }
            if found.input {
                self.last_read = Instant::now();
            }
            if found.input || found.inbox || found.timer {
                self.digest();
            }
            self.client.flush();
            if found.timer {
                self.client.refuse_overdue(&mut self.session);
            }
            if let Some(why) = self.client.give_up().or_else(|| self.wastes_memory()) {
                self.session.force_close(&why, &mut self.client);
            }
            self.client.settle_outcomes(&mut self.session);
            self.session.flush_confirms();
            self.client.count_use(&self.session);
            self.report();
            if found.timer
                && let Some(why) = self.check_time()
            {
                return why;
            }
            self.announce();
            if self.session.phase() == Phase::Closed && self.pending_output() == 0 {
                let _ = tokio::time::timeout(CLOSE_DEADLINE, self.stream.shutdown()).await;
                return self.session.refused_login().map_or_else(
                    || "closed".to_owned(),
                    |why| format!("login refused: {why}"),
                );
            }
            if self.end {
                return "client closed the socket".into();
            }
        }
    }

    /// Tells the node what the session has counted.
    fn report(&mut self) {
        let new = self.traffic.now - self.reported_traffic;
        if new.received + new.sent > 0 {
            self.node.registry().count_bytes(new.received, new.sent);
            self.reported_traffic = self.traffic.now;
        }
        let unfinished = self.session.unfinished_bytes();
        if unfinished != self.unfinished {
            self.node.account(self.unfinished, unfinished);
            self.unfinished = unfinished;
        }
        let counts = self.session.counts();
        if counts != self.reported {
            let now = Instant::now();
            self.tick(now);
            self.node.count_messages(counts - self.reported, now);
            self.client.count_traffic(now);
            self.reported = counts;
        }
    }

    fn tick(&mut self, now: Instant) {
        if self.traffic.tick(now) {
            self.session.mark();
        }
    }

    /// How the connection is, for operators.
    fn live(&mut self, detail: Detail) -> Live {
        let now = Instant::now();
        self.tick(now);
        let (recent, over) = self.traffic.recent(now);
        let mut stats = MessageStats::new();
        let mut channels = Vec::new();
        for status in self.session.channels() {
            let of_channel = meter::stats(&status.counts, &status.recent, over);
            meter::add_stats(&mut stats, &of_channel);
            if detail == Detail::Channels {
                channels.push(ChannelInfo {
                    number: status.number,
                    confirm: status.confirm,
                    unconfirmed: status.unconfirmed,
                    unacked: status.unacked,
                    consumers: status.consumers,
                    prefetch: status.prefetch,
                    global_prefetch: status.global_prefetch,
                    closing: status.closing,
                    stats: of_channel,
                });
            }
        }
        let state = match self.session.phase() {
            Phase::Ending | Phase::Closing | Phase::Closed => "closing",
            Phase::Header
            | Phase::StartOk
            | Phase::Login
            | Phase::TuneOk
            | Phase::Open
            | Phase::Running => {
                if self.held.is_some() {
                    "blocked"
                } else {
                    "running"
                }
            }
        };
        let traffic = self.traffic.now;
        Live {
            state: state.to_owned(),
            channel_count: self.session.channel_count() as u64,
            received: rated(traffic.received, recent.received, over),
            sent: rated(traffic.sent, recent.sent, over),
            reads: traffic.reads,
            writes: traffic.writes,
            pending: self.pending_output() as u64,
            stats,
            channels,
            consumers: if detail == Detail::Consumers {
                self.client.consumers(&self.session)
            } else {
                Vec::new()
            },
        }
    }

    /// Why publishes that have arrived in part must not be waited for any longer. They may be what there is too little memory for, and their clients dead.
    fn wastes_memory(&self) -> Option<String> {
        let since = self.held.filter(|_| self.node.alarm())?;
        let wastes = since.elapsed() >= UNFINISHED_DEADLINE
            && self.session.unfinished_bytes() > UNFINISHED_KEPT;
        wastes.then(|| {
            format!(
                "publishes that had not arrived whole were held back for {} s, since this node is low on memory or disk space",
                UNFINISHED_DEADLINE.as_secs()
            )
        })
    }

    fn pending_output(&mut self) -> usize {
        self.session.out().len() - self.written
    }

    /// While a publish is held back, reading goes on until the buffer is full: so the client's end is noticed.
    fn wants_input(&mut self) -> bool {
        !self.end
            && self.client.in_flight_bytes() < IN_FLIGHT_MAX
            && self.pending_output() < WRITE_MAX
            && self.read.len() < self.read_max()
    }

    /// How much may lie in the read buffer undigested: a whole publish of one frame, and then some.
    fn read_max(&self) -> usize {
        let frame_max = self.node.settings().limits.frame_max as usize;
        READ_MAX.max(if frame_max == 0 {
            self.node.settings().limits.message_max as usize + READ_MAX
        } else {
            frame_max * 4
        })
    }

    /// Writes, and waits for something to do.
    async fn wait(&mut self, taken: &mut Vec<Inbox>) -> io::Result<Found> {
        let wants_input = self.wants_input();
        let takes_inbox = self.pending_output() < WRITE_HIGH;
        let deadline = self.next_deadline();
        if self.timer.deadline() != deadline {
            self.timer.as_mut().reset(deadline);
        }
        if wants_input {
            let spare = self.read.capacity() - self.read.len();
            if spare < self.read_size / 2 {
                self.read.reserve(self.read_size);
            }
        }
        poll_fn(|cx| {
            let mut found = Found::default();
            let out = self.session.out();
            while self.written < out.len() {
                match Pin::new(&mut self.stream).poll_write(cx, &out[self.written..]) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(n)) => {
                        self.written += n;
                        self.traffic.now.sent += n as u64;
                        self.traffic.now.writes += 1;
                        self.last_write = Instant::now();
                        found.output = self.written == out.len();
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
            if self.written == out.len() {
                out.clear();
                self.written = 0;
                // A burst must not pin its peak for ever.
                if out.capacity() > 4 * WRITE_HIGH {
                    out.shrink_to(WRITE_HIGH);
                }
            } else if self.written > WRITE_HIGH {
                out.drain(..self.written);
                self.written = 0;
            }
            if wants_input {
                match pin!(self.stream.read_buf(&mut self.read)).poll(cx) {
                    Poll::Ready(Ok(0)) => {
                        self.end = true;
                        found.input = true;
                    }
                    Poll::Ready(Ok(n)) => {
                        self.traffic.now.received += n as u64;
                        self.traffic.now.reads += 1;
                        found.input = true;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
            if takes_inbox {
                match self.inbox.poll_recv_many(cx, taken, 64) {
                    Poll::Ready(n) => found.inbox = n > 0,
                    Poll::Pending => {}
                }
            }
            found.timer = self.timer.as_mut().poll(cx).is_ready();
            let closed = self.session.phase() == Phase::Closed && found.output;
            if found.input || found.inbox || found.timer || closed || (found.output && !takes_inbox)
            {
                Poll::Ready(Ok(found))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    fn take(&mut self, message: Inbox) {
        if let Inbox::Describe(detail, reply) = message {
            // Whoever asked may have given up.
            let _ = reply.send(self.live(detail));
            return;
        }
        let (session, client) = (&mut self.session, &mut self.client);
        match message {
            Inbox::Owner(ToSession::Deliveries(deliveries)) => {
                client.deliveries(session, &deliveries)
            }
            Inbox::Owner(ToSession::Published {
                shard,
                number,
                refused,
            }) => client.published(shard, number, &refused),
            Inbox::Owner(ToSession::Answer { id, answer }) => client.answered(session, id, answer),
            Inbox::Owner(ToSession::AskLeave { consumer }) => session.wants_leave(consumer, client),
            Inbox::Owner(ToSession::GiveBack { consumer, unused }) => {
                session.leave_back(consumer, unused, client)
            }
            Inbox::Owner(ToSession::Cancelled { consumer }) => client.cancelled(session, consumer),
            Inbox::Reply { channel, id, reply } => session.reply(channel, id, reply, client),
            Inbox::LoginChecked(verdict) => session.login_checked(verdict, client),
            Inbox::AskAgain(id) => client.ask_again(session, id),
            Inbox::NodeLost(node) => client.node_lost(session, node),
            Inbox::MembersChanged => client.members_changed(session),
            Inbox::Leader(token) => {
                client.leader_announced(session, token.shard, token.leader.term)
            }
            Inbox::Alarm(reason) => {
                if reason.is_none() {
                    session.set_blocked(None);
                }
            }
            Inbox::Close(why) => session.force_close(&why, client),
            // It is answered above.
            Inbox::Describe(..) => {}
            Inbox::VhostDeleted(vhost) => {
                if session.vhost() == vhost && session.phase() == Phase::Running {
                    session.force_close(&format!("vhost '{vhost}' is deleted"), client);
                }
            }
        }
    }

    /// Lets the session digest what has been read.
    fn digest(&mut self) {
        if !self.read.is_empty() || self.held.is_some() {
            let before = self.read.len();
            if self.held.is_some() {
                self.session.resume(&mut self.client);
            }
            let done = self.session.input(&self.read, &mut self.client);
            self.read.advance(done);
            // Whole frames left over can only mean that the session waits for something that the timer or the inbox brings.
            let is_held =
                !self.client.can_publish() && (before > done || self.session.has_backlog());
            self.held = is_held.then(|| self.held.unwrap_or_else(Instant::now));
            if is_held && let Some(reason) = self.node.alarm_reason() {
                self.session.set_blocked(Some(reason));
            }
            if before >= self.read_size && self.read_size < READ_MAX {
                self.read_size *= 2;
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        if self.held.is_some() {
            return Instant::now() + HOLD_PAUSE;
        }
        match self.session.phase() {
            Phase::Header | Phase::StartOk | Phase::Login | Phase::TuneOk | Phase::Open => {
                self.opened + HANDSHAKE_DEADLINE
            }
            Phase::Ending => self.closing_since() + END_DEADLINE,
            Phase::Closing | Phase::Closed => self.closing_since() + CLOSE_DEADLINE,
            Phase::Running => {
                let heartbeat = match self.session.heartbeat_s() {
                    0 => Instant::now() + Duration::from_secs(3600),
                    seconds => {
                        let interval = Duration::from_secs(seconds.into());
                        (self.last_write + interval / 2).min(self.last_read + 2 * interval)
                    }
                };
                self.client
                    .next_deadline()
                    .map_or(heartbeat, |deadline| heartbeat.min(deadline))
            }
        }
    }

    fn closing_since(&self) -> Instant {
        self.closing.map_or_else(Instant::now, |(_, since)| since)
    }

    /// Heartbeats and deadlines. Returns why the connection must end, if it must.
    fn check_time(&mut self) -> Option<String> {
        let now = Instant::now();
        match self.session.phase() {
            Phase::Header | Phase::StartOk | Phase::Login | Phase::TuneOk | Phase::Open
                if now >= self.opened + HANDSHAKE_DEADLINE =>
            {
                Some("handshake timed out".into())
            }
            Phase::Ending => (now >= self.closing_since() + END_DEADLINE)
                .then(|| "closed, but its queues did not answer in time".into()),
            Phase::Closing | Phase::Closed => (now >= self.closing_since() + CLOSE_DEADLINE)
                .then(|| "the client did not answer connection.close in time".into()),
            Phase::Running if self.session.heartbeat_s() > 0 => {
                let interval = Duration::from_secs(self.session.heartbeat_s().into());
                // A client that is not read from cannot be blamed for its silence.
                if now >= self.last_read + 2 * interval && self.wants_input() {
                    return Some(format!(
                        "missed heartbeats from client, timeout: {}s",
                        self.session.heartbeat_s()
                    ));
                }
                if now >= self.last_write + interval / 2 {
                    if self.pending_output() == 0 {
                        self.session.heartbeat();
                    }
                    self.last_write = now;
                }
                if now >= self.last_read + 2 * interval {
                    self.last_read = now;
                }
                None
            }
            Phase::Header
            | Phase::StartOk
            | Phase::Login
            | Phase::TuneOk
            | Phase::Open
            | Phase::Running => None,
        }
    }

    fn announce(&mut self) {
        let phase = self.session.phase();
        if matches!(phase, Phase::Ending | Phase::Closing | Phase::Closed)
            && self.closing.is_none_or(|(known, _)| known != phase)
        {
            self.closing = Some((phase, Instant::now()));
        }
        if !self.announced && self.session.phase() == Phase::Running {
            self.announced = true;
            self.node.registry().insert(
                self.client.number(),
                &self.session,
                &self.origin,
                self.sender.clone(),
                self.kill.clone(),
            );
            self.node.churn().count(Churned::ConnectionOpened, 1);
            let who = self.who();
            audit::connected(&who, self.session.vhost(), self.session.client());
            self.span = spans::connection(&who.user, self.session.vhost(), &who.peer);
            tracing::info!(
                user = self.session.user(),
                vhost = self.session.vhost(),
                client = self.session.client(),
                "connection opened"
            );
        }
    }

    /// Who the client is, for the audit log.
    fn who(&self) -> Who {
        Who {
            user: self.session.user().to_owned(),
            peer: self.origin.peer.to_string(),
            via: "amqp",
        }
    }
}
