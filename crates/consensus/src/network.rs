//! openraft's network over the transport: replication with many appends under way, votes, hand-over, snapshots in parts.
//!
//! Which lanes they take is the group's [`Route`]. Appends of one leader to one node are sent in order and answered in
//! order; a failed one ends the stream, and openraft starts the next from what the node is known to have.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a reply that does not fit the request is one error, whichever it is"
)]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesOrdered};
use futures::{Stream, StreamExt};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::storage::Snapshot;
use openraft::type_config::alias::CommittedLeaderIdOf;
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use warren_model::NodeId;
use warren_transport::{Frame, Lane, RequestError};

use crate::entry::{Malformed, MembershipRecord};
use crate::machine::SnapshotData;
use crate::raft::{Entry, EntryPayload, LogId, Member, Types, Vote};
use crate::wire::{
    BulkForm, Candidacy, Group, Reply, Request, SnapshotEnd, WireSlot, pack_entries, pack_record,
    sole_entry,
};

/// Bytes of a snapshot's part: small enough not to hold up what shares the lane.
const PART_BYTES: usize = 256 << 10;
/// How long a node may take to install a snapshot that it has received.
const INSTALL_DEADLINE: Duration = Duration::from_secs(60);

/// How a group's requests travel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) group: Group,
    /// Heartbeats, votes, hand-over.
    pub(crate) pulse: Lane,
    /// Appends.
    pub(crate) appends: Lane,
    /// Snapshots.
    pub(crate) snapshots: Lane,
    /// Appends under way to one node.
    pub(crate) appends_max: usize,
    /// Bytes of them, beside the last one.
    pub(crate) append_bytes_max: usize,
    /// How long a heartbeat, a vote and the like may take.
    pub(crate) deadline: Duration,
    /// How long an append with entries may take: a large one, or one behind others, takes a while. A lost link ends it at once.
    pub(crate) append_deadline: Duration,
}

impl Route {
    /// The metadata group's.
    pub(crate) fn metadata(deadline: Duration) -> Self {
        Self {
            group: Group::Metadata,
            pulse: Lane::Raft,
            appends: Lane::Raft,
            snapshots: Lane::Control,
            appends_max: 64,
            append_bytes_max: usize::MAX,
            deadline,
            append_deadline: deadline * 4,
        }
    }
}

/// Makes openraft's connections.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) wire: Arc<WireSlot>,
    pub(crate) route: Route,
}

const NO_BULK: (BulkForm, Bytes) = (BulkForm::Packed, Bytes::new());

/// The connection to one node.
#[derive(Clone)]
pub(crate) struct Connection {
    network: Network,
    to: NodeId,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, to: NodeId, _: &Member) -> Connection {
        Connection {
            network: self.clone(),
            to,
        }
    }
}

/// Why a request got no usable reply.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the node answered: {0}")]
    Failed(String),
    #[error("the node's answer does not fit the question")]
    Unfit,
}

impl From<Failure> for RPCError<Types> {
    fn from(failure: Failure) -> Self {
        match failure {
            // openraft waits before it tries again.
            Failure::Request(RequestError::Unreachable)
            | Failure::Failed(_)
            | Failure::Unfit
            | Failure::Malformed(_) => RPCError::Unreachable(Unreachable::new(&failure)),
            Failure::Request(
                RequestError::LinkLost | RequestError::TimedOut | RequestError::Refused,
            ) => RPCError::Network(NetworkError::new(&failure)),
        }
    }
}

impl Connection {
    fn ask(
        &self,
        lane: Lane,
        request: &Request,
        (form, bulk): (BulkForm, Bytes),
        deadline: Duration,
    ) -> impl Future<Output = Result<Reply, Failure>> + Send + use<> {
        let sent = self.network.route.group.head(request, form).map(|head| {
            self.network
                .wire
                .request(self.to, lane, Frame { head, bulk }, deadline)
        });
        async move {
            match Reply::decode(&sent?.await?.head)? {
                Reply::Failed(why) => Err(Failure::Failed(why)),
                reply => Ok(reply),
            }
        }
    }

    async fn ask_vote(&self, candidacy: Request) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self
            .ask(
                self.network.route.pulse,
                &candidacy,
                NO_BULK,
                self.network.route.deadline,
            )
            .await?
        {
            Reply::Vote {
                vote,
                granted,
                last,
            } => Ok(VoteResponse::new(
                Vote::from(vote),
                last.map(LogId::from),
                granted,
            )),
            _ => Err(Failure::Unfit.into()),
        }
    }

    /// Sends an append; polling what is returned sends it and waits for its answer. `first`: no other append is under way that
    /// it must not overtake.
    fn append(
        &self,
        rpc: AppendEntriesRequest<Types>,
        first: bool,
    ) -> impl Future<Output = Result<AppendEntriesResponse<Types>, RPCError<Types>>> + Send + use<>
    {
        let route = self.network.route;
        let (lane, deadline) = match (rpc.entries.is_empty(), first) {
            (true, true) => (route.pulse, route.deadline),
            // Behind others on a lane of bulk it takes as long as they do.
            (true, false) if route.pulse == route.appends => (route.appends, route.deadline),
            (true, false) | (false, true | false) => (route.appends, route.append_deadline),
        };
        let request = Request::Append {
            vote: rpc.vote.into(),
            previous: rpc.prev_log_id.map(Into::into),
            committed: rpc.leader_commit.map(Into::into),
        };
        let bulk = match (route.group, sole_entry(&rpc.entries)) {
            (Group::Shard(_), Some(bulk)) => Ok((BulkForm::Sole, bulk)),
            (Group::Shard(_), None) | (Group::Metadata, Some(_) | None) => {
                pack_entries(&rpc.entries).map(|bulk| (BulkForm::Packed, bulk))
            }
        };
        let asked = bulk.map(|bulk| self.ask(lane, &request, bulk, deadline));
        async move {
            match asked.map_err(Failure::from)?.await? {
                Reply::Appended => Ok(AppendEntriesResponse::Success),
                Reply::AppendedUpTo(id) => {
                    Ok(AppendEntriesResponse::PartialSuccess(id.map(Into::into)))
                }
                Reply::Conflict => Ok(AppendEntriesResponse::Conflict),
                Reply::HigherVote(vote) => Ok(AppendEntriesResponse::HigherVote(vote.into())),
                _ => Err(Failure::Unfit.into()),
            }
        }
    }
}

type AppendResult = Result<StreamAppendResult<Types>, RPCError<Types>>;

/// A stream of appends: what comes in, and what is under way.
struct Appends<S> {
    connection: Connection,
    input: Option<S>,
    first: bool,
    flights: FuturesOrdered<BoxFuture<'static, (AppendResult, usize)>>,
    /// Bytes of entries in `flights`.
    flying: usize,
}

/// Bytes of the entries of an append.
fn bytes_of(entries: &[Entry]) -> usize {
    let bytes = |entry: &Entry| match &entry.payload {
        EntryPayload::Normal(payload) => payload.bytes().len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    };
    entries.iter().map(bytes).sum()
}

impl<S: Stream<Item = AppendEntriesRequest<Types>> + Unpin + Send> Appends<S> {
    async fn next(mut self) -> Option<(AppendResult, Option<Self>)> {
        loop {
            let route = self.connection.network.route;
            let room =
                self.flights.len() < route.appends_max && self.flying < route.append_bytes_max;
            tokio::select! {
                biased;
                Some((result, bytes)) = self.flights.next(), if !self.flights.is_empty() => {
                    self.flying -= bytes;
                    let goes_on = matches!(result, Ok(Ok(_)));
                    return Some((result, goes_on.then_some(self)));
                }
                Some(request) = async { self.input.as_mut()?.next().await.or_else(|| { self.input = None; None }) }, if room && self.input.is_some() => {
                    let (previous, last) = (request.prev_log_id, request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id));
                    let first = std::mem::take(&mut self.first);
                    let bytes = bytes_of(&request.entries);
                    self.flying += bytes;
                    let append = self.connection.append(request, first);
                    self.flights.push_back(Box::pin(async move {
                        (append.await.map(|appended| appended.into_stream_result(previous, last)), bytes)
                    }));
                }
                else => if self.flights.is_empty() && self.input.is_none() { return None },
            }
        }
    }
}

impl RaftNetworkV2<Types> for Connection {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        self.append(rpc, true).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let appends = Appends {
            connection: self.clone(),
            input: Some(input),
            first: true,
            flights: FuturesOrdered::new(),
            flying: 0,
        };
        let results =
            futures::stream::unfold(
                Some(appends),
                |appends| async move { appends?.next().await },
            );
        Box::pin(async move { Ok(results.boxed()) })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_vote(Request::Vote(candidacy(&rpc))).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_vote(Request::PreVote(candidacy(&rpc))).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<CommittedLeaderIdOf<Types>, NodeId, Member, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let (to, last) = (self.to, snapshot.meta.last_log_id.map(|id| id.index));
        tracing::debug!(%to, last, "a view of the state is sent");
        let sent = tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(vote, snapshot) => sent.map_err(Into::into),
        };
        match &sent {
            Ok(_) => tracing::debug!(%to, last, "the view was installed"),
            Err(error) => tracing::debug!(%to, last, %error, "the view was not sent"),
        }
        sent
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<Types>,
        _: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let request = Request::Transfer {
            from: (*rpc.from_leader()).into(),
            to: *rpc.to_node_id(),
            last: rpc.last_log_id().copied().map(Into::into),
        };
        match self
            .ask(
                self.network.route.pulse,
                &request,
                NO_BULK,
                self.network.route.deadline * 2,
            )
            .await?
        {
            Reply::Transferring => Ok(Ok(())),
            Reply::TransferVoteChanged { expected, actual } => {
                Ok(Err(TransferLeaderError::VoteChanged {
                    expected: expected.into(),
                    actual: actual.into(),
                }))
            }
            Reply::TransferNotFlushed { expected, actual } => {
                Ok(Err(TransferLeaderError::LogNotFlushed {
                    expected: expected.map(Into::into),
                    actual: actual.map(Into::into),
                }))
            }
            _ => Err(Failure::Unfit.into()),
        }
    }
}

fn candidacy(rpc: &VoteRequest<Types>) -> Candidacy {
    Candidacy {
        vote: rpc.vote.into(),
        last: rpc.last_log_id.map(Into::into),
        transfer: rpc.leadership_transfer,
    }
}

impl Connection {
    /// Sends a view of the state in parts, each after the one before was taken.
    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot<CommittedLeaderIdOf<Types>, NodeId, Member, SnapshotData>,
    ) -> Result<SnapshotResponse<Types>, RPCError<Types>> {
        let broken = |why: &dyn std::fmt::Display| {
            RPCError::from(Failure::Malformed(Malformed::new("snapshot", why)))
        };
        let view = match snapshot.snapshot {
            SnapshotData::View(view) => view,
            SnapshotData::Coming(view) => view.await.map_err(|e| broken(&e))?,
            SnapshotData::Durable | SnapshotData::Received(_) | SnapshotData::Staged => {
                return Err(broken(&"it is no view that can be sent"));
            }
        };
        let route = self.network.route;
        let transfer = snapshot.meta.last_log_id.map_or(0, |id| id.index);
        let (mut digest, mut bulk, mut number) = (blake3::Hasher::new(), Vec::new(), 0u64);
        for record in view {
            let (key, value) =
                record.map_err(|e| Failure::Malformed(Malformed::new("state", e)))?;
            pack_record(&key, &value, &mut bulk).map_err(Failure::from)?;
            if bulk.len() >= PART_BYTES {
                digest.update(&bulk);
                let request = Request::Snapshot {
                    transfer,
                    number,
                    end: None,
                };
                match self
                    .ask(
                        route.snapshots,
                        &request,
                        (BulkForm::Packed, std::mem::take(&mut bulk).into()),
                        route.append_deadline * 2,
                    )
                    .await?
                {
                    Reply::SnapshotPart => number += 1,
                    _ => return Err(Failure::Unfit.into()),
                }
            }
        }
        digest.update(&bulk);
        let end = SnapshotEnd {
            vote: vote.into(),
            last: snapshot.meta.last_log_id.map(Into::into),
            membership: MembershipRecord::stored(&snapshot.meta.last_membership),
            digest: *digest.finalize().as_bytes(),
        };
        match self
            .ask(
                route.snapshots,
                &Request::Snapshot {
                    transfer,
                    number,
                    end: Some(end),
                },
                (BulkForm::Packed, bulk.into()),
                INSTALL_DEADLINE,
            )
            .await?
        {
            Reply::Snapshot { vote } => Ok(SnapshotResponse::new(vote.into())),
            _ => Err(Failure::Unfit.into()),
        }
    }
}
