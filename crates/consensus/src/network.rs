//! openraft's network over the transport: replication with many appends under way, votes, hand-over, snapshots in parts.
//!
//! Everything but snapshots goes on the Raft lane. Appends of one leader to one node are sent in order and answered in
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
use crate::raft::{LogId, Member, Types, Vote};
use crate::wire::{Candidacy, Reply, Request, SnapshotEnd, WireSlot, pack_entries, pack_record};

/// Appends under way to one node.
const APPENDS_MAX: usize = 64;
/// Bytes of a snapshot's part: small enough not to hold up what shares the lane.
const PART_BYTES: usize = 256 << 10;
/// How long a node may take to install a snapshot that it has received.
const INSTALL_DEADLINE: Duration = Duration::from_secs(60);

/// Makes openraft's connections.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) wire: Arc<WireSlot>,
    /// For votes and the like, and least for appends.
    pub(crate) deadline: Duration,
}

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
        bulk: Bytes,
        deadline: Duration,
    ) -> impl Future<Output = Result<Reply, Failure>> + Send + use<> {
        let sent = request.encode().map(|head| {
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
            .ask(Lane::Raft, &candidacy, Bytes::new(), self.network.deadline)
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

    /// Sends an append; polling what is returned sends it and waits for its answer.
    fn append(
        &self,
        rpc: AppendEntriesRequest<Types>,
    ) -> impl Future<Output = Result<AppendEntriesResponse<Types>, RPCError<Types>>> + Send + use<>
    {
        // A large append, or one behind others, may take a while; a lost link ends it at once.
        let deadline = if rpc.entries.is_empty() {
            self.network.deadline
        } else {
            self.network.deadline * 4
        };
        let request = Request::Append {
            vote: rpc.vote.into(),
            previous: rpc.prev_log_id.map(Into::into),
            committed: rpc.leader_commit.map(Into::into),
        };
        let asked =
            pack_entries(&rpc.entries).map(|bulk| self.ask(Lane::Raft, &request, bulk, deadline));
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
    flights: FuturesOrdered<BoxFuture<'static, AppendResult>>,
}

impl<S: Stream<Item = AppendEntriesRequest<Types>> + Unpin + Send> Appends<S> {
    async fn next(mut self) -> Option<(AppendResult, Option<Self>)> {
        loop {
            let room = self.flights.len() < APPENDS_MAX;
            tokio::select! {
                biased;
                Some(result) = self.flights.next(), if !self.flights.is_empty() => {
                    let goes_on = matches!(result, Ok(Ok(_)));
                    return Some((result, goes_on.then_some(self)));
                }
                Some(request) = async { self.input.as_mut()?.next().await.or_else(|| { self.input = None; None }) }, if room && self.input.is_some() => {
                    let (previous, last) = (request.prev_log_id, request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id));
                    let append = self.connection.append(request);
                    self.flights.push_back(Box::pin(async move { Ok(append.await?.into_stream_result(previous, last)) }));
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
        self.append(rpc).await
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
            flights: FuturesOrdered::new(),
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
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(vote, snapshot) => Ok(sent?),
        }
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
                Lane::Raft,
                &request,
                Bytes::new(),
                self.network.deadline * 2,
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
        let SnapshotData::View(view) = snapshot.snapshot else {
            return Err(Failure::Malformed(Malformed::new(
                "snapshot",
                "it is no view that can be sent",
            ))
            .into());
        };
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
                        Lane::Control,
                        &request,
                        std::mem::take(&mut bulk).into(),
                        self.network.deadline * 8,
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
                Lane::Control,
                &Request::Snapshot {
                    transfer,
                    number,
                    end: Some(end),
                },
                bulk.into(),
                INSTALL_DEADLINE,
            )
            .await?
        {
            Reply::Snapshot { vote } => Ok(SnapshotResponse::new(vote.into())),
            _ => Err(Failure::Unfit.into()),
        }
    }
}
