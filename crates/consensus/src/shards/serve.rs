//! What a shard's group answers to other nodes.
//!
//! Calls come from the transport's tasks and return at once; appends reach openraft in the order of their arrival.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::time::Instant;
use warren_model::{NodeId, ShardId};
use warren_transport::{Frame, Lane};

use super::group::Group;
use super::incoming::Part;
use crate::entry::{LogIdRecord, Malformed};
use crate::raft::Entry;
use crate::serve_raft;
use crate::wire::{
    Answer, BulkForm, Candidacy, Group as Address, Reply, Request, unpack_entries,
    unpack_sole_entry,
};

/// Serves a request to a shard's group.
pub(crate) fn request(
    find: impl FnOnce(ShardId) -> Option<Arc<Group>>,
    from: NodeId,
    lane: Lane,
    frame: Frame,
    answer: Answer,
) {
    let (shard, form, request) = match Address::of_shard(&frame.head) {
        Ok(read) => read,
        Err(error) => {
            tracing::warn!(%from, ?lane, %error, "a request to a shard cannot be read");
            return answer.send(&Reply::Failed(error.to_string()));
        }
    };
    match find(shard) {
        Some(group) => group.serve(from, request, form, frame.bulk, answer),
        None => answer.send(&Reply::Failed(format!(
            "shard {} does not run here",
            shard.0
        ))),
    }
}

impl Group {
    fn serve(
        self: &Arc<Self>,
        from: NodeId,
        request: Request,
        form: BulkForm,
        bulk: Bytes,
        answer: Answer,
    ) {
        if self.ended.load(Ordering::Acquire) {
            return answer.send(&Reply::Failed(format!(
                "the group of shard {} has stopped here",
                self.shard.0
            )));
        }
        let spawn = |rest| drop(self.spawn(rest));
        // What a leader hands over, it counts on no more.
        let may_vote =
            |candidacy: &Candidacy| candidacy.transfer || Instant::now() >= self.votes_from;
        let raft = self.raft.clone();
        match request {
            Request::Append {
                vote,
                previous,
                committed,
            } => match entries(previous, form, bulk) {
                Ok(entries) => {
                    let rpc = serve_raft::append_request(vote, previous, committed, entries);
                    serve_raft::answer_in_order(serve_raft::append(raft, rpc), answer, spawn);
                }
                Err(error) => answer.send(&Reply::Failed(error.to_string())),
            },
            Request::Vote(candidacy) | Request::PreVote(candidacy) if !may_vote(&candidacy) => {
                answer.send(&Reply::Failed("it has started just now".into()))
            }
            Request::Vote(candidacy) => {
                serve_raft::answer_in_order(serve_raft::vote(raft, candidacy, false), answer, spawn)
            }
            Request::PreVote(candidacy) => {
                serve_raft::answer_in_order(serve_raft::vote(raft, candidacy, true), answer, spawn)
            }
            Request::Transfer {
                from: vote,
                to,
                last,
            } => {
                let rpc = serve_raft::transfer_request(vote, to, last);
                serve_raft::answer_in_order(serve_raft::transfer(raft, rpc), answer, spawn);
            }
            Request::Snapshot {
                transfer,
                number,
                end,
            } => {
                let part = Part {
                    from,
                    transfer,
                    number,
                    end,
                    bulk,
                };
                self.take_part(part, answer);
            }
            Request::Propose { .. }
            | Request::Renew { .. }
            | Request::Release { .. }
            | Request::ReadIndex
            | Request::Probe
            | Request::Promise { .. }
            | Request::Join { .. }
            | Request::ComeUp => {
                answer.send(&Reply::Failed("a shard's group has no such request".into()))
            }
        }
    }
}

fn entries(
    previous: Option<LogIdRecord>,
    form: BulkForm,
    bulk: Bytes,
) -> Result<Vec<Entry>, Malformed> {
    match form {
        BulkForm::Packed => unpack_entries(bulk),
        BulkForm::Sole => {
            let index = previous.map_or(0, |previous| previous.index + 1);
            Ok(vec![unpack_sole_entry(index, &bulk)?])
        }
    }
}
