//! What this node answers to others, and what it takes note of.
//!
//! Calls come from the transport's tasks and return at once. Appends reach openraft in the order of their arrival: each is
//! handed over within the call, and only its answer is awaited elsewhere.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::Instant;
use warren_model::{Incarnation, NodeId};
use warren_transport::{Frame, Hello, Lane};

use crate::entry::{Malformed, Proposal};
use crate::ledger::{NoGrant, NodeState};
use crate::metadata::{BOOTSTRAP, Core};
use crate::serve_raft;
use crate::wire::{Answer, Note, Reply, Request, unpack_entries};

impl Core {
    pub(crate) fn admit(&self, peer: &Hello) -> Result<(), String> {
        let (ours, level) = {
            let table = self.machine.table().read();
            (table.cluster().map(|(cluster, _)| cluster), table.level())
        };
        match (ours, peer.cluster) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(format!(
                "node '{}' belongs to cluster {theirs:032x}, node '{}' to cluster {ours:032x}: wipe the data folder of the one that is to join the other's cluster",
                peer.name, self.config.name
            )),
            (Some(_) | None, Some(_) | None) if peer.level < level => Err(format!(
                "node '{}' runs a release that knows level {}, and the cluster has come to level {level}: run the cluster's release on it",
                peer.name, peer.level
            )),
            (Some(_) | None, Some(_) | None) => Ok(()),
        }
    }

    pub(crate) fn link_up(self: &Arc<Self>, peer: &Hello) {
        self.links.lock().insert(peer.node, peer.clone());
        self.kick_all();
        // openraft pauses between attempts at a node that cannot be reached; now it can.
        let (core, node) = (Arc::clone(self), peer.node);
        drop(self.spawn(async move { core.raft.trigger().reset_backoff([node]).await }));
    }

    pub(crate) fn link_down(&self, peer: &Hello) {
        self.links.lock().remove(&peer.node);
        self.snapshots.lock().remove(&peer.node);
    }

    pub(crate) fn message(&self, from: NodeId, lane: Lane, frame: &Frame) {
        match Note::decode(&frame.head) {
            Ok(Note::Applied {
                incarnation,
                applied,
            }) => {
                self.ledger.settle(|ledger| {
                    ledger.report(
                        from,
                        NodeState {
                            incarnation,
                            applied,
                        },
                        Instant::now(),
                    )
                });
            }
            Err(error) => tracing::warn!(%from, ?lane, %error, "a message cannot be read"),
        }
    }

    pub(crate) fn request(
        self: &Arc<Self>,
        from: NodeId,
        request: Request,
        bulk: Bytes,
        answer: Answer,
    ) {
        if self.stopped.load(Ordering::Acquire) {
            // Dropping the answer tells the requester that none will come.
            return;
        }
        match request {
            Request::Append {
                vote,
                previous,
                committed,
            } => match unpack_entries(bulk) {
                Ok(entries) => {
                    let rpc = serve_raft::append_request(vote, previous, committed, entries);
                    self.answer_in_order(serve_raft::append(self.raft.clone(), rpc), answer);
                }
                Err(error) => answer.send(&Reply::Failed(error.to_string())),
            },
            Request::Vote(candidacy) => self.answer_in_order(
                serve_raft::vote(self.raft.clone(), candidacy, false),
                answer,
            ),
            Request::PreVote(candidacy) => {
                self.answer_in_order(serve_raft::vote(self.raft.clone(), candidacy, true), answer)
            }
            Request::Transfer { from, to, last } => {
                let rpc = serve_raft::transfer_request(from, to, last);
                self.answer_in_order(serve_raft::transfer(self.raft.clone(), rpc), answer);
            }
            Request::Snapshot {
                transfer,
                number,
                end,
            } => self.take_snapshot_part(from, transfer, number, end, bulk, answer),
            Request::Propose { proposals } => self.take_proposals(from, proposals, answer),
            Request::Renew {
                incarnation,
                applied,
            } => answer.send(&self.renew(
                from,
                NodeState {
                    incarnation,
                    applied,
                },
            )),
            Request::Release { incarnation } => {
                self.release(from, incarnation);
                answer.send(&Reply::Done);
            }
            Request::ReadIndex => answer.send(&self.answered_index()),
            Request::ComeUp => answer.send(&self.may_other_come_up(from)),
            Request::Probe => answer.send(&self.standing()),
            Request::Promise { names } => answer.send(&self.promise(from, &names)),
            Request::Join { name, address } => {
                let core = Arc::clone(self);
                drop(self.spawn(async move {
                    answer.send(&core.admit_member(from, name, address).await)
                }));
            }
        }
    }

    /// Hands a request to openraft within this call, and awaits its answer elsewhere.
    fn answer_in_order(&self, reply: impl Future<Output = Reply> + Send + 'static, answer: Answer) {
        serve_raft::answer_in_order(reply, answer, |rest| drop(self.spawn(rest)));
    }

    fn take_proposals(self: &Arc<Self>, from: NodeId, proposals: Vec<Proposal>, answer: Answer) {
        if proposals.iter().any(|proposal| proposal.node != from) {
            let error = Malformed::new(
                "proposals",
                "they are of another node than the one that sends them",
            );
            return answer.send(&Reply::Failed(error.to_string()));
        }
        let core = Arc::clone(self);
        let respond = move |results: Option<Vec<_>>| match results {
            Some(results) => answer.send(&Reply::Proposed { results }),
            None => answer.send(&Reply::NotLeader {
                leader: core.leader_hint(),
            }),
        };
        self.desk.submit(proposals, Box::new(respond));
    }

    fn renew(&self, node: NodeId, state: NodeState) -> Reply {
        let is_member = {
            let metrics = self.raft.metrics();
            let now = metrics.borrow_watched();
            now.committed_membership_config.get_node(&node).is_some()
        };
        let now = Instant::now();
        let mut granted = Err(NoGrant::NotLeading);
        let ack = self.quorum_ack();
        self.ledger.settle(|ledger| {
            granted = ledger.renew(node, state, ack, is_member, now);
            ledger.expire(now)
        });
        match granted {
            Ok(grant) => Reply::Granted(grant),
            Err(NoGrant::NotLeading) => Reply::NotLeader {
                leader: self.leader_hint(),
            },
            Err(NoGrant::NoQuorum) => {
                Reply::Refused("no majority has confirmed this leader of late".into())
            }
            Err(NoGrant::NotMember) => Reply::NotMember,
        }
    }

    fn release(&self, node: NodeId, incarnation: Incarnation) {
        self.ledger
            .settle(|ledger| ledger.release(node, incarnation, Instant::now()));
    }

    /// While this node holds its lease as leader, nothing beyond what it has answered can have been answered by another.
    fn answered_index(&self) -> Reply {
        self.grant_own();
        let answered = self
            .ledger
            .with(|ledger| ledger.leading().and_then(|_| ledger.answered()));
        match answered {
            Some(index) if self.lease.is_held() => Reply::Index(index),
            Some(_) | None => Reply::NotLeader {
                leader: self.leader_hint(),
            },
        }
    }

    fn may_other_come_up(&self, from: NodeId) -> Reply {
        if self.knows_continuity_for(from) {
            Reply::Done
        } else {
            Reply::Refused("whether any node has been up all the time is not known yet".into())
        }
    }

    /// What this node tells one that belongs to no cluster.
    fn standing(&self) -> Reply {
        let cluster = self
            .machine
            .table()
            .read()
            .cluster()
            .map(|(cluster, _)| cluster);
        Reply::Standing {
            cluster,
            fresh: self.may_found(),
            leader: self.leader_hint(),
        }
    }

    fn promise(&self, from: NodeId, names: &[String]) -> Reply {
        let founder = self.links.lock().get(&from).map(|hello| hello.name.clone());
        if !self.may_found() {
            return Reply::Refused(format!(
                "node '{}' has belonged to a cluster",
                self.config.name
            ));
        }
        if names != self.config.names() {
            let why = format!(
                "node '{}' is configured with the nodes {:?}, not with {names:?}: they must be the same on all nodes",
                self.config.name,
                self.config.names()
            );
            tracing::error!(%why, "no cluster can be founded");
            return Reply::Refused(why);
        }
        if founder.as_deref() != names.first().map(String::as_str) {
            return Reply::Refused(format!(
                "the node with the least name, '{}', founds the cluster",
                names.first().map_or("", String::as_str)
            ));
        }
        self.kicks[BOOTSTRAP].notify_one();
        Reply::Done
    }
}
