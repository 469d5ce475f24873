//! Changes of a shard's replicas: new ones learn, then all are replaced by joint consensus, then the others are forgotten.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use tokio::time::Instant;
use warren_model::NodeId;

use super::config::ChangeError;
use super::group::Group;
use super::leadership::lacks;
use crate::raft::{Member, Types};

/// Pause before a change is tried again while an earlier one is not committed yet.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a change of the membership may take to be committed.
const COMMIT: Duration = Duration::from_secs(10);

type Failed = RaftError<Types, ClientWriteError<Types>>;

impl Group {
    /// Makes these the replicas, if this node leads.
    pub(super) async fn set_replicas(&self, replicas: Vec<NodeId>) -> Result<(), ChangeError> {
        let wanted: BTreeSet<NodeId> = replicas.into_iter().collect();
        if wanted.is_empty() {
            return Err(ChangeError::NoReplicas { shard: self.shard });
        }
        let mut superseded = self.changes.subscribe();
        self.changes.send_modify(|changes| *changes += 1);
        let mine = *superseded.borrow_and_update();
        let _one_at_a_time = self.changing.lock().await;
        if *superseded.borrow() != mine {
            return Err(self.given_up());
        }
        let Some(term) = self.voice.leading() else {
            return Err(self.not_leading());
        };
        let known: BTreeSet<NodeId> = self.with_metrics(|now| {
            now.membership_config
                .nodes()
                .map(|(node, _)| *node)
                .collect()
        });
        for node in wanted.difference(&known) {
            self.commit("adding a replica", || {
                self.raft.add_learner(*node, Member::default(), false)
            })
            .await?;
        }
        // Who votes already need not be waited for: a majority of them is there, or nothing is committed.
        let learning: BTreeSet<NodeId> = self.with_metrics(|now| {
            let votes = |node: &NodeId| now.membership_config.voter_ids().any(|n| n == *node);
            wanted.iter().copied().filter(|node| !votes(node)).collect()
        });
        tokio::select! {
            caught_up = self.catch_up(term, &learning) => caught_up?,
            // The sender lives as long as the group.
            _ = superseded.changed() => return Err(self.given_up()),
        }
        let (voters, joint) = self.with_metrics(|now| {
            let voters: BTreeSet<NodeId> = now.membership_config.voter_ids().collect();
            let sets = now.membership_config.membership().get_joint_config().len();
            (voters, sets > 1)
        });
        if voters != wanted || joint {
            self.commit("replacing the replicas", || {
                let change = ChangeMembers::ReplaceAllVoters(wanted.clone());
                self.raft.change_membership(change, false)
            })
            .await?;
        }
        let others: BTreeSet<NodeId> = self.with_metrics(|now| {
            let nodes = now.membership_config.nodes().map(|(node, _)| *node);
            nodes.filter(|node| !wanted.contains(node)).collect()
        });
        if !others.is_empty() {
            self.commit("removing replicas", || {
                self.raft
                    .change_membership(ChangeMembers::RemoveNodes(others.clone()), false)
            })
            .await?;
        }
        Ok(())
    }

    /// A change of replicas that waits for some to catch up waits no longer.
    pub(super) fn give_up_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn given_up(&self) -> ChangeError {
        ChangeError::GivenUp { shard: self.shard }
    }

    /// Waits until each of them has what the log held when it had what the log holds now.
    async fn catch_up(&self, term: u64, wanted: &BTreeSet<NodeId>) -> Result<(), ChangeError> {
        let within = self.config.catch_up_deadline;
        let until = Instant::now() + within;
        for round in 0..2 {
            let last = self.with_metrics(|now| now.last_log_index);
            let left = until.saturating_duration_since(Instant::now());
            let caught_up = self.until(left, |now| {
                let gone = self.voice.leading() != Some(term);
                let grown = now
                    .last_log_index
                    .unwrap_or(0)
                    .saturating_sub(last.unwrap_or(0));
                let all = wanted.iter().all(|node| {
                    *node == self.me() || lacks(now, *node).is_some_and(|lacks| lacks <= grown)
                });
                (gone || all).then_some(gone)
            });
            match caught_up.await {
                Some(false) => tracing::debug!(shard = self.shard.0, round, "replicas caught up"),
                Some(true) => return Err(self.not_leading()),
                None => {
                    return Err(ChangeError::TimedOut {
                        shard: self.shard,
                        what: "catching up of new replicas",
                        waited: within,
                    });
                }
            }
        }
        Ok(())
    }

    /// Makes a change, again and again while an earlier one is not committed yet.
    async fn commit<R, F>(
        &self,
        what: &'static str,
        change: impl Fn() -> F,
    ) -> Result<(), ChangeError>
    where
        F: Future<Output = Result<R, Failed>>,
    {
        let until = Instant::now() + COMMIT;
        loop {
            let timed_out = ChangeError::TimedOut {
                shard: self.shard,
                what,
                waited: COMMIT,
            };
            match tokio::time::timeout_at(until, change()).await {
                Ok(Ok(_)) => return Ok(()),
                Err(_) => return Err(timed_out),
                Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                    return Err(self.not_leading());
                }
                Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_),
                )))) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
                Ok(Err(error)) => {
                    return Err(ChangeError::Refused {
                        shard: self.shard,
                        why: format!("{what} failed: {error}"),
                    });
                }
            }
        }
    }
}
