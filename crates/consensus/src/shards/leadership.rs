//! Who leads a shard: what openraft says is told to the replica, and a leader that must not go on hands over.
//!
//! A leader hands over when it is asked to, when it is no member any more, and when openraft did not take one of its entries
//! (because no majority had answered for a lease) though it still leads: the term is fenced then, and only a new one helps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use warren_model::NodeId;

use super::config::ChangeError;
use super::group::{Group, Metrics};

/// How long the next leader may take to have all entries before it is told to lead without them.
const CATCH_UP: Duration = Duration::from_millis(500);
/// How long entries that the next leader lacks may take before anything is stopped for it.
const NEAR: Duration = Duration::from_secs(5);
/// Entries that the next leader may lack when the term is fenced.
const NEAR_ENTRIES: u64 = 64;

/// The term in which a node leads, by its metrics.
fn elected(now: &Metrics, me: NodeId) -> Option<u64> {
    let mine = now.vote.committed && now.vote.leader_id.node_id == me;
    (now.state == ServerState::Leader && mine).then_some(now.vote.leader_id.term)
}

impl Group {
    /// Tells the replica of leadership until openraft stops.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut metrics = self.raft.server_metrics();
        loop {
            let (elected, term, leader, is_member) = {
                let now = metrics.borrow_watched();
                let vote = &now.vote;
                let mine = vote.committed && vote.leader_id.node_id == self.me();
                let removed = now.committed_membership_config.log_id().is_some()
                    && !now
                        .committed_membership_config
                        .voter_ids()
                        .any(|voter| voter == self.me());
                (
                    (now.state == ServerState::Leader && mine).then_some(vote.leader_id.term),
                    vote.leader_id.term,
                    now.current_leader,
                    !removed,
                )
            };
            self.voice.heard(elected, term, leader);
            if let Some(term) = elected
                && (self.voice.is_fenced(term) || !is_member)
                && self.handing.fetch_max(term, Ordering::AcqRel) < term
            {
                let group = Arc::clone(&self);
                drop(self.spawn(async move { group.hand_over(term, None).await }));
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { break },
                () = self.voice.deposed.notified() => {}
            }
        }
        self.ended.store(true, Ordering::Release);
        let (term, failure) =
            self.with_metrics(|now| (now.current_term, now.running_state.clone().err()));
        self.voice.heard(None, term, None);
        if let Some(failure) = failure.filter(|_| !self.is_stopped()) {
            tracing::error!(shard = self.shard.0, %failure, "the group of a shard has stopped on this node");
        }
    }

    /// Leads no more in this term, and does what can be done for another to lead: that one first, the most advanced later.
    async fn hand_over(&self, term: u64, mut to: Option<NodeId>) {
        self.voice.fence(term);
        let patience = self.config.lease * 3;
        while self.with_metrics(|now| elected(now, self.me())) == Some(term) {
            let Some(next) = to.take().or_else(|| self.most_advanced()) else {
                // Alone: nobody can lead in its place.
                return;
            };
            let has_all = self.until(CATCH_UP, |now| {
                let gone = elected(now, self.me()) != Some(term);
                (gone || lacks(now, next) == Some(0)).then_some(())
            });
            // A replica without all entries is refused by the others' logs or waits for them; the others may be quicker.
            let _ = has_all.await;
            tracing::debug!(shard = self.shard.0, term, %next, "handing over");
            if self.raft.trigger().transfer_leader(next).await.is_err() {
                return;
            }
            let gone = self.until(patience, |now| {
                (elected(now, self.me()) != Some(term)).then_some(())
            });
            if gone.await.is_none() {
                self.resign_if_removed().await;
            }
        }
    }

    /// openraft lets a removed leader lead until it is told.
    async fn resign_if_removed(&self) {
        let (removed, vote, at) = self.with_metrics(|now| {
            let removed = !now
                .committed_membership_config
                .voter_ids()
                .any(|voter| voter == self.me());
            let at = *now.membership_config.log_id();
            (removed, now.vote, at)
        });
        if removed {
            // It has stopped if this fails.
            let _ = self
                .raft
                .trigger()
                .refresh_server_state(Some(vote), at)
                .await;
        }
    }

    /// The other voter with the longest log.
    fn most_advanced(&self) -> Option<NodeId> {
        self.with_metrics(|now| {
            let matched = |node: &NodeId| {
                let known = now.replication.as_ref()?.get(node)?.as_ref();
                known.map(|id| id.index)
            };
            now.membership_config
                .voter_ids()
                .filter(|voter| *voter != self.me())
                .max_by_key(|voter| matched(voter))
        })
    }

    /// Hands leadership to a voter, and waits until it leads.
    pub(super) async fn transfer(&self, to: NodeId) -> Result<(), ChangeError> {
        let shard = self.shard;
        let (term, votes) = self.with_metrics(|now| {
            let votes = now.membership_config.voter_ids().any(|voter| voter == to);
            (elected(now, self.me()), votes)
        });
        let Some(term) = term.filter(|term| self.voice.leading() == Some(*term)) else {
            return Err(self.not_leading());
        };
        if !votes {
            return Err(ChangeError::NotAReplica { shard, to });
        }
        if to == self.me() {
            return Ok(());
        }
        let near = self.until(NEAR, |now| {
            let gone = elected(now, self.me()) != Some(term);
            (gone || lacks(now, to).is_some_and(|lacks| lacks <= NEAR_ENTRIES)).then_some(())
        });
        if near.await.is_none() {
            return Err(ChangeError::TimedOut {
                shard,
                what: "catching up of the next leader",
                waited: NEAR,
            });
        }
        if self.handing.fetch_max(term, Ordering::AcqRel) < term {
            self.hand_over(term, Some(to)).await;
        }
        // Elections that follow if it does not come to lead at once.
        let waited = CATCH_UP + self.config.lease * 10;
        let leader = self.until(waited, |now| {
            let settled = now.current_term > term && elected(now, self.me()) != Some(term);
            now.current_leader.filter(|_| settled)
        });
        match leader.await {
            Some(leader) if leader == to => Ok(()),
            Some(leader) => Err(ChangeError::Refused {
                shard,
                why: format!("node {leader} was elected instead of node {to}"),
            }),
            None => Err(ChangeError::TimedOut {
                shard,
                what: "the election of the next leader",
                waited,
            }),
        }
    }

    pub(super) fn not_leading(&self) -> ChangeError {
        ChangeError::NotLeading {
            shard: self.shard,
            leader: self
                .with_metrics(|now| now.current_leader)
                .filter(|leader| *leader != self.me()),
        }
    }
}

/// Entries that a replica lacks, if this node leads and knows.
pub(super) fn lacks(now: &Metrics, node: NodeId) -> Option<u64> {
    let matched = now.replication.as_ref()?.get(&node)?.as_ref();
    let has = matched.map_or(0, |id| id.index + 1);
    let all = now.last_log_index.map_or(0, |last| last + 1);
    Some(all.saturating_sub(has))
}
