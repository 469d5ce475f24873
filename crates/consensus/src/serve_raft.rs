//! What a group of whatever machine answers to its leader and to candidates.
//!
//! Each function's future hands the request to openraft when it is first polled, so requests that are polled in the order of
//! their arrival reach openraft in this order.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use futures::future::BoxFuture;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use openraft::storage::RaftStateMachine;
use warren_model::NodeId;

use crate::entry::{LogIdRecord, VoteRecord};
use crate::raft::{Entry, LogId, Types};
use crate::wire::{Answer, Candidacy, Reply};

type Raft<M> = openraft::Raft<Types, M>;

/// Polls once within this call, which hands the request to openraft; what is left to wait for goes to `spawn`.
pub(crate) fn answer_in_order(
    reply: impl Future<Output = Reply> + Send + 'static,
    answer: Answer,
    spawn: impl FnOnce(BoxFuture<'static, ()>),
) {
    let mut reply = Box::pin(reply);
    match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => answer.send(&reply),
        Poll::Pending => spawn(Box::pin(async move { answer.send(&reply.await) })),
    }
}

pub(crate) fn append_request(
    vote: VoteRecord,
    previous: Option<LogIdRecord>,
    committed: Option<LogIdRecord>,
    entries: Vec<Entry>,
) -> AppendEntriesRequest<Types> {
    AppendEntriesRequest {
        vote: vote.into(),
        prev_log_id: previous.map(LogId::from),
        entries,
        leader_commit: committed.map(LogId::from),
    }
}

pub(crate) async fn append<M: RaftStateMachine<Types>>(
    raft: Raft<M>,
    request: AppendEntriesRequest<Types>,
) -> Reply {
    match raft.append_entries(request).await {
        Ok(AppendEntriesResponse::Success) => Reply::Appended,
        Ok(AppendEntriesResponse::PartialSuccess(id)) => Reply::AppendedUpTo(id.map(Into::into)),
        Ok(AppendEntriesResponse::Conflict) => Reply::Conflict,
        Ok(AppendEntriesResponse::HigherVote(vote)) => Reply::HigherVote(vote.into()),
        Err(error) => Reply::Failed(error.to_string()),
    }
}

pub(crate) async fn vote<M: RaftStateMachine<Types>>(
    raft: Raft<M>,
    candidacy: Candidacy,
    is_pre_vote: bool,
) -> Reply {
    let request = VoteRequest {
        vote: candidacy.vote.into(),
        last_log_id: candidacy.last.map(LogId::from),
        leadership_transfer: candidacy.transfer,
    };
    let response = if is_pre_vote {
        raft.pre_vote(request).await
    } else {
        raft.vote(request).await
    };
    match response {
        Ok(VoteResponse {
            vote,
            vote_granted,
            last_log_id,
        }) => Reply::Vote {
            vote: vote.into(),
            granted: vote_granted,
            last: last_log_id.map(Into::into),
        },
        Err(error) => Reply::Failed(error.to_string()),
    }
}

pub(crate) fn transfer_request(
    from: VoteRecord,
    to: NodeId,
    last: Option<LogIdRecord>,
) -> TransferLeaderRequest<Types> {
    TransferLeaderRequest::new(from.into(), to, last.map(LogId::from))
}

pub(crate) async fn transfer<M: RaftStateMachine<Types>>(
    raft: Raft<M>,
    request: TransferLeaderRequest<Types>,
) -> Reply {
    match raft.handle_transfer_leader(request).await {
        Ok(Ok(())) => Reply::Transferring,
        Ok(Err(TransferLeaderError::VoteChanged { expected, actual })) => {
            Reply::TransferVoteChanged {
                expected: expected.into(),
                actual: actual.into(),
            }
        }
        Ok(Err(TransferLeaderError::LogNotFlushed { expected, actual })) => {
            Reply::TransferNotFlushed {
                expected: expected.map(Into::into),
                actual: actual.map(Into::into),
            }
        }
        Err(error) => Reply::Failed(error.to_string()),
    }
}
