//! What the leader does unasked: founding, marking silent nodes down, keeping the membership in line with the table, and raising the cluster's level.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;
use warren_model::{Command, Incarnation, Level, NodeId, planted};

use crate::entry::Proposal;
use crate::metadata::{Core, DUTIES};

/// Voters at most: more would make every commit slower and survive little more.
const VOTERS_MAX: usize = 5;
/// A learner that lacks at most so many entries has caught up.
const CAUGHT_UP: u64 = 200;
const DEADLINE: Duration = Duration::from_secs(10);

impl Core {
    /// Does the leader's duties whenever this node leads. Ends when the node leaves.
    pub(crate) async fn do_duties(self: Arc<Self>) {
        while !self.leaving.load(Ordering::Acquire) {
            if self.ledger.with(|ledger| ledger.leading()).is_some() {
                self.found_cluster().await;
                self.mark_down().await;
                self.tend_membership().await;
                self.raise_level().await;
            }
            self.look_around(DUTIES).await;
        }
    }

    /// Gives the cluster its identity and its first contents, in one entry, if it has none.
    async fn found_cluster(&self) {
        // Complete, because a leader has applied everything before its first own entry.
        if self.machine.table().read().cluster().is_some() {
            return;
        }
        let cluster =
            StdRng::seed_from_u64(self.config.seed ^ self.me().0.rotate_left(32)).random();
        let found = Command::FoundCluster {
            cluster,
            shards: self.config.shards,
        };
        let level = self.known_by_all();
        let raised = (level > Level::FIRST).then_some(Command::RaiseLevel { level: level.0 });
        let commands = std::iter::once(found)
            .chain(raised)
            .chain(self.config.first_commands.iter().cloned());
        for answer in self.proposer.propose(commands, DEADLINE) {
            match answer.await {
                Ok(Ok(proposed)) => self.wait_applied(proposed.index).await,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the new cluster's contents are not confirmed")
                }
                Err(_) => return,
            }
        }
        self.kick_all();
    }

    /// Marks nodes down that are up in the table and whose lease has been gone for long.
    async fn mark_down(&self) {
        let now = Instant::now();
        let patience = self.config.lease + self.config.node_down_after;
        let silent: Vec<(NodeId, Incarnation)> = {
            let table = self.machine.table().read();
            let up = table
                .nodes()
                .filter(|known| known.up && known.id != self.me());
            let is_silent = |node| {
                self.ledger
                    .with(|ledger| ledger.seen(node))
                    .is_some_and(|at| now.saturating_duration_since(at) > patience)
            };
            up.filter(|known| is_silent(known.id))
                .map(|known| (known.id, known.incarnation))
                .collect()
        };
        let begun_anew = self.begun_anew();
        for (node, incarnation) in silent.into_iter().chain(begun_anew) {
            tracing::warn!(%node, "a node is silent, or has begun anew, and is marked down");
            // Never proposed again, and only under this leadership: a leader that is cut off misses everyone, and must not
            // mark them down once it is back.
            self.propose_while_leading(Command::NodeDown { node, incarnation })
                .await;
        }
    }

    /// Raises the cluster's level once all its nodes know more.
    async fn raise_level(&self) {
        let level = self.machine.table().read().level();
        if level >= self.config.knows {
            return;
        }
        let known = self.known_by_all();
        if known > level {
            tracing::info!(%known, "all nodes know more: the cluster's level rises");
            self.propose_while_leading(Command::RaiseLevel { level: known.0 })
                .await;
        }
    }

    /// The newest level that all members and all nodes of the table know. Of one that is not linked now nothing is known but the first.
    fn known_by_all(&self) -> Level {
        if planted!(LevelRaisedEarly) {
            return self.config.knows;
        }
        let mut nodes: BTreeSet<NodeId> = {
            let metrics = self.raft.metrics();
            let now = metrics.borrow_watched();
            now.membership_config
                .nodes()
                .map(|(node, _)| *node)
                .collect()
        };
        nodes.extend(self.machine.table().read().nodes().map(|known| known.id));
        nodes.remove(&self.me());
        let links = self.links.lock();
        let others = nodes
            .iter()
            .map(|node| links.get(node).map_or(Level::FIRST, |peer| peer.level));
        others
            .chain([self.config.knows])
            .min()
            .unwrap_or(Level::FIRST)
    }

    async fn propose_while_leading(&self, command: Command) {
        let proposal = Proposal {
            node: self.me(),
            incarnation: self.config.incarnation,
            sequence: 0,
            settled_below: 0,
            command,
        };
        let (landed, landing) = tokio::sync::oneshot::channel();
        self.send_proposals(
            self.me(),
            vec![proposal],
            Box::new(move |landing| drop(landed.send(landing))),
        );
        if tokio::time::timeout(DEADLINE, landing).await.is_err() {
            tracing::warn!("the leader's own change is not confirmed yet");
        }
    }

    /// Makes caught up learners voters while there are few, and removes members that the table has replaced or forgotten.
    async fn tend_membership(&self) {
        let Some(Change { voters, remove }) = self.due_change() else {
            return;
        };
        let removed: BTreeSet<NodeId> = remove.iter().copied().collect();
        tracing::info!(?voters, ?removed, "the membership changes");
        let result = match voters {
            Some(voters) => {
                tokio::time::timeout(
                    DEADLINE,
                    self.raft
                        .change_membership(ChangeMembers::ReplaceAllVoters(voters), false),
                )
                .await
            }
            None => {
                tokio::time::timeout(
                    DEADLINE,
                    self.raft
                        .change_membership(ChangeMembers::RemoveNodes(removed), false),
                )
                .await
            }
        };
        match result {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the membership did not change"),
            Err(_) => tracing::warn!("the membership change is not committed yet"),
        }
    }

    fn due_change(&self) -> Option<Change> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched().clone();
        if metrics.membership_config.log_id() != metrics.committed_membership_config.log_id() {
            return None;
        }
        let membership = metrics.membership_config.membership();
        if membership.get_joint_config().len() > 1 {
            // An earlier leader's change that it did not complete: the same voters as the second set complete it.
            return Some(Change {
                voters: membership.get_joint_config().last().cloned(),
                remove: Vec::new(),
            });
        }
        let now = Instant::now();
        let patience = self.config.lease + self.config.node_down_after;
        let table = self.machine.table().read();
        let is_gone = |node: NodeId, name: &str| {
            let silent = self
                .ledger
                .with(|ledger| ledger.seen(node))
                .is_some_and(|at| now.saturating_duration_since(at) > patience);
            let replaced = table
                .nodes()
                .any(|known| known.name == name && known.id != node && known.up);
            table.node(node).is_none() && (silent || replaced)
        };
        let gone = membership
            .nodes()
            .filter(|(node, member)| **node != self.me() && is_gone(**node, &member.name))
            .map(|(node, _)| *node);
        // Who is to be removed gets no more leases, and is removed once it can hold none.
        let remove: Vec<NodeId> = gone
            .filter(|node| self.ledger.with(|ledger| ledger.bar(*node, now)))
            .collect();
        let current: BTreeSet<NodeId> = membership.voter_ids().collect();
        let mut voters: BTreeSet<NodeId> = current
            .iter()
            .copied()
            .filter(|voter| !remove.contains(voter))
            .collect();
        let replicated = metrics.replication.unwrap_or_default();
        let has_caught_up = |node: NodeId| {
            let index = replicated.get(&node).copied().flatten().map(|id| id.index);
            index.is_some_and(|index| index + CAUGHT_UP >= metrics.last_log_index.unwrap_or(0))
        };
        for learner in membership.learner_ids() {
            if voters.len() < VOTERS_MAX
                && table.node(learner).is_some_and(|known| known.up)
                && has_caught_up(learner)
            {
                voters.insert(learner);
            }
        }
        if voters != current && !voters.is_empty() {
            Some(Change {
                voters: Some(voters),
                remove,
            })
        } else if remove.is_empty() {
            None
        } else {
            Some(Change {
                voters: None,
                remove,
            })
        }
    }
}

/// A change of the membership: other voters, or members that are no voters removed.
struct Change {
    voters: Option<BTreeSet<NodeId>>,
    remove: Vec<NodeId>,
}
