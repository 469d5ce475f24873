//! One shard's group on this node: its parts, its tasks, its end.
//!
//! Tasks: `follow` hears of leadership (woken by changes of vote, leader or membership, never by entries), `keep_released` takes
//! checkpoints and purges when asked to. What openraft runs comes on top.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{Instant as _, RaftMetrics, ServerState};
use openraft_rt_tokio::TokioInstant;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use warren_model::{NodeId, ShardId};
use warren_storage::{Storage, StorageError};
use warren_transport::Lane;

use super::config::{ShardOpenError, ShardsConfig};
use super::incoming::Incoming;
use super::machine::ShardMachine;
use super::replica::Replica;
use super::status::{ReplicaStatus, ShardStatus};
use super::voice::{Position, Voice};
use crate::log::Log;
use crate::network::{Network, Route};
use crate::raft::{LeaderId, LogId, Member, Membership, Payload, Spawner, Then, Types};
use crate::wire::{Group as Address, WireSlot};

pub(crate) type ShardRaft = openraft::Raft<Types, ShardMachine>;
pub(crate) type Metrics = RaftMetrics<Types>;

/// Appends under way to one node.
const APPENDS_MAX: usize = 64;
/// Bytes of them, beside the last one: what fills a fast link, and does not fill memory where many groups catch a node up.
const APPEND_BYTES_MAX: usize = 4 << 20;
/// How long to wait for a checkpoint before asking for it again: openraft forgets what it is asked while it takes one.
const CHECKPOINT_PATIENCE: Duration = Duration::from_secs(2);

/// A shard's group as it runs on this node.
pub(crate) struct Group {
    pub(super) shard: ShardId,
    pub(super) config: Arc<ShardsConfig>,
    pub(super) raft: ShardRaft,
    pub(super) voice: Arc<Voice>,
    metrics: WatchReceiverOf<Types, Metrics>,
    log: Log,
    pub(super) incoming: Mutex<Option<Incoming>>,
    /// What may be purged: everything below this, once a checkpoint of now is durable.
    released_below: AtomicU64,
    release: Notify,
    /// Held while replicas are being changed.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Counts changes of replicas that were asked for or given up: one that waits for replicas to catch up ends when there is a later one.
    pub(super) changes: watch::Sender<u64>,
    /// The last term in which this node began to hand over.
    pub(super) handing: AtomicU64,
    stopped: AtomicBool,
    /// openraft has stopped, by itself or not.
    pub(super) ended: AtomicBool,
    /// Before its last end this process may have confirmed a leader, who counts on it for a lease: no votes until then.
    pub(super) votes_from: Instant,
    spawner: Spawner,
    runtime: tokio::runtime::Handle,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What a group is opened with.
pub(crate) struct Opening {
    pub(crate) config: Arc<ShardsConfig>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) wire: Arc<WireSlot>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) shard: ShardId,
    pub(crate) replica: Arc<dyn Replica>,
    pub(crate) found: Option<Vec<NodeId>>,
}

impl Group {
    /// Reads back what is stored, founds the group if it is to be, and prepares it to run.
    pub(crate) async fn open(opening: Opening) -> Result<Arc<Self>, ShardOpenError> {
        let Opening {
            config,
            storage,
            wire,
            runtime,
            shard,
            replica,
            found,
        } = opening;
        let malformed = |why: String| ShardOpenError::Malformed { shard, why };
        let storage_error = |source: StorageError| ShardOpenError::Storage { shard, source };
        let raft_config = Arc::new(config.raft(shard)?);
        let position = match replica.position().map_err(storage_error)? {
            Some(bytes) => Position::decode(&bytes).map_err(|e| malformed(e.to_string()))?,
            None => Position::default(),
        };
        let applied = position.applied;
        let voice = Arc::new(Voice::new(config.node, replica, position));
        let gate: Arc<Voice> = Arc::clone(&voice);
        let log = Log::of_shard(storage.log(), shard, gate)
            .await
            .map_err(|e| malformed(e.to_string()))?;
        let purged = log.purged().map_err(|e| malformed(e.to_string()))?;
        if purged > applied {
            return Err(malformed(format!(
                "its log begins behind {purged:?}, but its state ends with {applied:?}"
            )));
        }
        let pristine = log.is_pristine().map_err(storage_error)?;
        if let Some(members) = found.filter(|members| members.contains(&config.node))
            && pristine
            && applied.is_none()
        {
            let membership = membership(&members).map_err(malformed)?;
            log.found(membership)
                .await
                .map_err(|e| malformed(e.to_string()))?;
        }
        let machine = ShardMachine::new(Arc::clone(&voice));
        let running = machine.running();
        let network = Network {
            wire,
            route: route(shard, &config),
        };
        let seed = config.seed ^ config.node.0 ^ (u64::from(shard.0) + 1).rotate_left(40);
        let spawner = Spawner::new(seed);
        let raft = spawner
            .scope(ShardRaft::build(
                config.node,
                raft_config,
                network,
                log.clone(),
                machine,
            ))
            .await
            .map_err(|error| ShardOpenError::Raft {
                shard,
                why: error.to_string(),
            })?;
        running.store(true, Ordering::Release);
        if !pristine {
            raft.runtime_config().elect(false);
        }
        let votes_from = Instant::now()
            + if pristine {
                Duration::ZERO
            } else {
                config.lease
            };
        Ok(Arc::new(Self {
            shard,
            config,
            metrics: raft.metrics(),
            raft,
            voice,
            log,
            incoming: Mutex::default(),
            released_below: AtomicU64::new(0),
            release: Notify::new(),
            changing: tokio::sync::Mutex::default(),
            changes: watch::Sender::new(0),
            handing: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            votes_from,
            spawner,
            runtime,
            tasks: Mutex::default(),
        }))
    }

    /// Takes part from now on. Calling it again changes nothing.
    pub(crate) fn run(self: &Arc<Self>) {
        let mut tasks = self.tasks.lock();
        if !tasks.is_empty() || self.stopped.load(Ordering::Acquire) {
            return;
        }
        let group = Arc::clone(self);
        tasks.push(self.spawn(async move {
            group.raft.run();
            group.follow().await;
        }));
        let group = Arc::clone(self);
        tasks.push(self.spawn(async move {
            // Where nobody else votes, there is nobody either whose leadership an earlier process of this node may have confirmed.
            let wait = group.votes_from.saturating_duration_since(Instant::now());
            let is_alone = group.until(wait, Group::is_only_voter).await;
            let elected = match is_alone {
                Some(true) => group.raft.trigger().elect(false).await,
                Some(false) | None => Ok(()),
            };
            if let Err(error) = elected {
                tracing::debug!(shard = group.shard.0, %error, "no election");
            }
            tokio::time::sleep_until(group.votes_from).await;
            group.raft.runtime_config().elect(true);
        }));
        let group = Arc::clone(self);
        tasks.push(self.spawn(async move { group.keep_released().await }));
    }

    /// Starts a task on the groups' runtime, in which openraft may be called.
    pub(super) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.spawn(self.spawner.scope(task))
    }

    pub(super) fn me(&self) -> NodeId {
        self.config.node
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Hands an entry to openraft within the call; only if its queue is full, a task waits for room.
    pub(crate) fn propose(self: &Arc<Self>, term: u64, payload: Bytes) -> bool {
        if self.voice.leading() != Some(term) {
            return false;
        }
        let leader = LeaderId {
            term,
            node_id: self.me(),
        };
        let voice = Arc::clone(&self.voice);
        let then = Then::new(move |result: crate::raft::WriteResult| {
            if let Err(error) = result {
                tracing::debug!(term, %error, "an entry was not taken");
                voice.fence(term);
            }
        });
        let (raft, voice) = (self.raft.clone(), Arc::clone(&self.voice));
        let mut write = Box::pin(async move {
            let write = raft.write(Payload::new(payload)).with_leader(leader);
            let sent = write.responder(then).await;
            if sent.is_err() {
                voice.fence(term);
            }
            sent.is_ok()
        });
        match write.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(sent) => sent,
            Poll::Pending => {
                drop(self.spawn(write));
                true
            }
        }
    }

    /// Whether this node is the only one that votes; None until it is known who does.
    fn is_only_voter(now: &Metrics) -> Option<bool> {
        let mut voters = now.membership_config.voter_ids();
        let first = voters.next()?;
        Some(first == now.id && voters.next().is_none())
    }

    /// Sends a heartbeat to each replica, if this node leads. Returns at once; one that finds openraft's queue full is left out.
    pub(super) fn beat(&self) {
        let leads = self.with_metrics(|now| now.state) == ServerState::Leader;
        // A leader waits for no election, and to look at the clock is most of what a group costs that does nothing.
        self.raft.runtime_config().tick(!leads);
        if !leads {
            return;
        }
        let trigger = self.raft.trigger();
        let sent =
            std::pin::pin!(trigger.heartbeat()).poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(Err(error)) = sent {
            tracing::debug!(shard = self.shard.0, %error, "no heartbeat");
        }
    }

    /// The payload of an entry in the log.
    pub(crate) fn read(&self, index: u64) -> Result<Option<Bytes>, StorageError> {
        self.log.payload(index)
    }

    /// Entries up to this one may go, once a checkpoint of now is durable.
    pub(crate) fn release(&self, through: u64) {
        let below = through.saturating_add(1);
        if self.released_below.fetch_max(below, Ordering::AcqRel) < below {
            self.release.notify_one();
        }
    }

    /// Takes checkpoints and purges as the replica releases entries, until openraft stops.
    async fn keep_released(self: Arc<Self>) {
        let mut snapshots = self.raft.watch_snapshot_progress();
        loop {
            self.release.notified().await;
            let below = self.released_below.load(Ordering::Acquire);
            // Whatever the replica had been given when it released the entries, it has given up their being needed.
            let (applied, _) = self.voice.progress();
            let Some(applied) = applied else { continue };
            loop {
                let covers = |last: &Option<LogId>| last.is_some_and(|last| last.index >= applied);
                if covers(&snapshots.get()) {
                    break;
                }
                if self.raft.trigger().snapshot().await.is_err() {
                    return;
                }
                let covered = snapshots.wait_until(covers);
                match tokio::time::timeout(CHECKPOINT_PATIENCE, covered).await {
                    Ok(Ok(_)) => break,
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
            }
            if let Some(through) = below.checked_sub(1)
                && self.raft.trigger().purge_log(through).await.is_err()
            {
                return;
            }
        }
    }

    /// openraft's metrics of now.
    pub(super) fn with_metrics<R>(&self, read: impl FnOnce(&Metrics) -> R) -> R {
        read(&self.metrics.borrow_watched())
    }

    /// Waits until something is so; None if it is not in time, or openraft has stopped.
    pub(super) async fn until<R>(
        &self,
        within: Duration,
        mut check: impl FnMut(&Metrics) -> Option<R>,
    ) -> Option<R> {
        let mut metrics = self.metrics.clone();
        let waiting = async {
            loop {
                let found = check(&metrics.borrow_and_update());
                if found.is_some() {
                    return found;
                }
                metrics.changed().await.ok()?;
            }
        };
        tokio::time::timeout(within, waiting).await.ok().flatten()
    }

    /// Whether this node leads and a majority has said so within the last `lease`.
    pub(crate) fn confirmed_within(&self, lease: Duration) -> bool {
        if self.voice.leading().is_none() {
            return false;
        }
        self.with_metrics(|now| {
            if now.state != ServerState::Leader {
                return false;
            }
            let recent = now
                .last_quorum_acked
                .is_some_and(|acked| TokioInstant::now() - acked.into_inner() <= lease);
            recent
                || now
                    .membership_config
                    .voter_ids()
                    .all(|voter| voter == self.me())
        })
    }

    pub(crate) fn status(&self) -> ShardStatus {
        let (applied, checkpointed) = self.voice.progress();
        self.with_metrics(|now| ShardStatus {
            shard: self.shard,
            leader: now.current_leader,
            leading: self.voice.leading(),
            term: now.current_term,
            last_log: now.last_log_index,
            committed: now.cluster_committed.map(|id| id.index),
            applied,
            checkpointed,
            purged: now.purged.map(|id| id.index),
            voters: now.membership_config.voter_ids().collect(),
            learners: now.membership_config.membership().learner_ids().collect(),
            changing: now.membership_config.membership().get_joint_config().len() > 1
                || now.membership_config.log_id() != now.committed_membership_config.log_id(),
            replicas: now
                .replication
                .iter()
                .flatten()
                .map(|(node, matched)| ReplicaStatus {
                    node: *node,
                    matched: matched.map(|id| id.index),
                })
                .collect(),
            failure: now
                .running_state
                .as_ref()
                .err()
                .filter(|_| !self.is_stopped())
                .map(ToString::to_string),
        })
    }

    /// Stops at once, but for what is being stored. The replica hears that it does not lead.
    pub(crate) async fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.abort();
            // Aborted, or ended before.
            drop(task.await);
        }
        let term = self.with_metrics(|now| now.current_term);
        self.voice.heard(None, term, None);
        let raft = self.raft.clone();
        if self
            .spawn(async move { raft.shutdown().await })
            .await
            .is_err()
        {
            tracing::warn!(
                shard = self.shard.0,
                "a group's task had failed before it was stopped"
            );
        }
    }

    /// Removes the log of a group that has stopped.
    pub(crate) async fn clear(&self) -> std::io::Result<()> {
        self.log.clear().await
    }
}

/// A membership of voters.
fn membership(members: &[NodeId]) -> Result<Membership, String> {
    let voters = members.iter().copied().collect();
    let nodes: std::collections::BTreeMap<NodeId, Member> = members
        .iter()
        .map(|node| (*node, Member::default()))
        .collect();
    Membership::new(vec![voters], nodes).map_err(|error| error.to_string())
}

fn route(shard: ShardId, config: &ShardsConfig) -> Route {
    Route {
        group: Address::Shard(shard),
        pulse: Lane::ShardPulse,
        appends: Lane::Shard,
        snapshots: Lane::Shard,
        appends_max: APPENDS_MAX,
        append_bytes_max: APPEND_BYTES_MAX,
        deadline: config.lease,
        append_deadline: config.append_deadline,
    }
}
