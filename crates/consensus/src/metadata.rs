//! The handle of a node's part in the metadata group, and what its tasks share.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use warren_model::{Command, Incarnation, Level, NodeId};
use warren_storage::Storage;
use warren_transport::{Frame, Hello, Lane, ReplyTo, Transport};

use crate::Hooks;
use crate::config::{Config, OpenError, ProposeError};
use crate::leader::{Desk, SharedLedger};
use crate::lease::Lease;
use crate::ledger::Ledger;
use crate::log::Log;
use crate::machine::{Machine, Observer};
use crate::network::{Network, Route};
use crate::proposer::{Proposed, Proposer};
use crate::raft::{LeaderId, LogId, Payload, Raft, Spawner, Then, WriteResult};
use crate::shared::SharedTable;
use crate::snapshots::Incoming;
use crate::status::Status;
use crate::wire::{Answer, LeaderHint, Note, Reply, Request, Wire, WireSlot};

/// A node's part in the metadata group. Clones are handles of one part.
#[derive(Clone)]
pub struct Metadata {
    core: Arc<Core>,
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Metadata({}, applied {})",
            self.core.config.name,
            self.core.machine.table().version()
        )
    }
}

/// What all tasks share.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) raft: Raft,
    pub(crate) machine: Machine,
    pub(crate) lease: Arc<Lease>,
    pub(crate) ledger: Arc<SharedLedger>,
    pub(crate) proposer: Arc<Proposer>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) wire: Arc<WireSlot>,
    /// The leader, as this node knows it.
    pub(crate) leader: watch::Sender<Option<NodeId>>,
    /// Nodes that are linked now.
    pub(crate) links: Mutex<BTreeMap<NodeId, Hello>>,
    /// Woken when something changed that bootstrap, presence or duties may act on.
    pub(crate) kicks: [Notify; 3],
    /// Incarnation that this node is to be up under: the process's, or a renewed one.
    pub(crate) incarnation: AtomicU64,
    /// Nothing had been stored here when this part was opened, and it has founded nothing since.
    pub(crate) opened_fresh: AtomicBool,
    /// The leader does not know this node as a member.
    pub(crate) estranged: AtomicBool,
    /// A node that wants to come up waits for the leader, this node, to know whether any has been up all the time.
    pub(crate) in_doubt: AtomicBool,
    /// A leader that this node was told of but has no link to.
    pub(crate) hinted: Mutex<Option<LeaderHint>>,
    started: AtomicBool,
    pub(crate) leaving: AtomicBool,
    /// Requests of others are not answered any more.
    pub(crate) stopped: AtomicBool,
    pub(crate) snapshots: Mutex<BTreeMap<NodeId, Incoming>>,
    pub(crate) spawner: Spawner,
    pub(crate) runtime: tokio::runtime::Handle,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// Index of bootstrap's wake-up in [`Core::kicks`].
pub(crate) const BOOTSTRAP: usize = 0;
/// Index of presence's wake-up.
pub(crate) const PRESENCE: usize = 1;
/// Index of the leader's duties' wake-up.
pub(crate) const DUTIES: usize = 2;
/// How often bootstrap, presence and duties look around without being woken.
pub(crate) const LOOK_AROUND: Duration = Duration::from_millis(100);

impl Metadata {
    /// Restores the table from storage and prepares the node's part in the group. Nothing is sent or voted on before [`Self::start`].
    /// Must be called on the tokio runtime that its tasks are to run on.
    pub async fn open(
        config: Config,
        storage: Arc<dyn Storage>,
        hooks: Arc<dyn Hooks>,
    ) -> Result<Metadata, OpenError> {
        config.validate()?;
        let wire: Arc<WireSlot> = Arc::default();
        let leader = watch::Sender::new(None);
        let ledger = Arc::new(SharedLedger::new(Ledger::new(config.lease)));
        let lease = Arc::new(Lease::new());
        let observer = observer(&config, &wire, &leader, &ledger, &lease);
        let machine = Machine::open(
            config.node,
            config.incarnation,
            config.knows,
            storage.state(),
            hooks,
            observer,
        )?;
        lease.applied(machine.table().version(), machine.in_service());
        let log = Log::new(storage.log());
        let fresh = log.is_pristine()? && machine.applied().is_none();
        let network = Network {
            wire: Arc::clone(&wire),
            route: Route::metadata(config.heartbeat * 5),
        };
        let spawner = Spawner::new(config.seed ^ config.node.0);
        let raft = spawner
            .scope(Raft::build(
                config.node,
                Arc::new(raft_config(&config)?),
                network,
                log,
                machine.clone(),
            ))
            .await;
        let raft = raft.map_err(|error| OpenError::Raft(error.to_string()))?;
        let desk = Desk::new(Arc::clone(&ledger));
        let core = Core {
            proposer: Proposer::new(config.node, config.incarnation),
            incarnation: AtomicU64::new(config.incarnation.0),
            config,
            raft,
            machine,
            lease,
            ledger,
            desk,
            wire,
            leader,
            links: Mutex::default(),
            kicks: Default::default(),
            opened_fresh: AtomicBool::new(fresh),
            estranged: AtomicBool::new(false),
            in_doubt: AtomicBool::new(false),
            hinted: Mutex::default(),
            started: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            snapshots: Mutex::default(),
            spawner,
            runtime: tokio::runtime::Handle::current(),
            tasks: Mutex::default(),
        };
        let core = Arc::new(core);
        core.desk.write_with(core.entry_writer());
        Ok(Metadata { core })
    }

    /// Takes part from now on: elections, bootstrap, leases. Call it once.
    pub fn start(&self, transport: Transport) {
        self.start_on(Arc::new(transport));
    }

    pub(crate) fn start_on(&self, wire: Arc<dyn Wire>) {
        let core = &self.core;
        if core.started.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some((cluster, _)) = core.machine.table().read().cluster() {
            wire.set_cluster(cluster);
        }
        core.wire.set(Some(wire));
        core.start(|core| async move { core.raft.run() });
        core.start(|core| async move { core.follow_leadership().await });
        core.start(|core| async move { core.keep_lease().await });
        core.start(|core| async move { core.ledger.run().await });
        core.start(|core| {
            let (proposer, leaders, weak) = (
                Arc::clone(&core.proposer),
                core.leader.subscribe(),
                Arc::downgrade(&core),
            );
            proposer.run(
                leaders,
                Box::new(move |leader, proposals, landed| {
                    // Dropping `landed` uncalled is a failure, too.
                    if let Some(core) = weak.upgrade() {
                        core.send_proposals(leader, proposals, landed);
                    }
                }),
            )
        });
        core.start(|core| async move { core.bootstrap().await });
        core.start(|core| async move { core.keep_present().await });
        core.start(|core| async move { core.do_duties().await });
    }

    /// The routing table of this node.
    #[must_use]
    pub fn table(&self) -> &Arc<SharedTable> {
        self.core.machine.table()
    }

    /// Proposes a change of the table. Its place among this node's proposals is fixed by this call, not when the future is
    /// polled; dropping the future changes nothing. The answer comes when the change is committed and applied on this node
    /// and on every node that may route.
    ///
    /// # Errors
    /// After an error the change may still be made, unless the error says otherwise.
    pub fn propose(
        &self,
        command: Command,
        deadline: Duration,
    ) -> impl Future<Output = Result<Proposed, ProposeError>> + Send + use<> {
        let answers = match self.core.beyond_level(&command) {
            None => Ok(self.core.proposer.propose([command], deadline)),
            Some(refused) => Err(refused),
        };
        let core = Arc::clone(&self.core);
        async move {
            let mut answers = answers?;
            let Some(answer) = answers.pop() else {
                return Err(ProposeError::Stopped);
            };
            let proposed = answer.await.unwrap_or(Err(ProposeError::Stopped))?;
            core.wait_applied(proposed.index).await;
            Ok(proposed)
        }
    }

    /// Whether this node may route by its table now: it is up in its cluster, holds a lease, and its table shows
    /// everything that was answered.
    /// Costs an atomic load and a reading of the clock.
    #[inline]
    #[must_use]
    pub fn may_route(&self) -> bool {
        self.core.lease.is_held()
    }

    /// Waits until [`Self::may_route`]; false if it does not come within the deadline.
    pub async fn wait_routable(&self, deadline: Duration) -> bool {
        let mut changes = self.core.lease.subscribe();
        let routable = changes.wait_for(|_| self.core.lease.is_held());
        tokio::time::timeout(deadline, routable)
            .await
            .is_ok_and(|result| result.is_ok())
    }

    /// Waits until this node's table shows at least everything that had been answered when this was called, and returns the
    /// index that it had applied. At once while the node holds its lease.
    ///
    /// # Errors
    /// When no leader that is confirmed by a majority can be asked within the deadline.
    pub async fn barrier(&self, deadline: Duration) -> Result<u64, ProposeError> {
        let core = &self.core;
        let until = Instant::now() + deadline;
        let mut pause = Duration::from_millis(2);
        loop {
            if core.lease.is_held() {
                return Ok(core.machine.table().version());
            }
            if Instant::now() >= until {
                return Err(ProposeError::NoQuorum { waited: deadline });
            }
            let left = until - Instant::now();
            if let Some(index) = core.read_index(left).await {
                return match tokio::time::timeout_at(until, core.wait_applied(index)).await {
                    Ok(()) => Ok(core.machine.table().version()),
                    Err(_) => Err(ProposeError::TimedOut { waited: deadline }),
                };
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Waits until the table has applied `index`; false if it has not within the deadline.
    pub async fn wait_applied(&self, index: u64, deadline: Duration) -> bool {
        tokio::time::timeout(deadline, self.core.wait_applied(index))
            .await
            .is_ok()
    }

    /// The group's leader, as far as this node knows.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        *self.core.leader.borrow()
    }

    /// What can be told of the group now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// Whether the table says that this node is down although it runs: it was cut off for long. Its non-durable queues are
    /// gone. Its owner ends its sessions and calls [`Self::renew_incarnation`].
    #[must_use]
    pub fn is_marked_down(&self) -> bool {
        self.core.is_marked_down()
    }

    /// Comes up again under a new incarnation, after [`Self::is_marked_down`] and when the node has ended all that belonged
    /// to the one before. It must be greater than the one before and be stored first: a later start must be greater still.
    pub fn renew_incarnation(&self, incarnation: Incarnation) {
        self.core
            .incarnation
            .fetch_max(incarnation.0, Ordering::AcqRel);
        self.core.kicks[PRESENCE].notify_one();
    }

    /// Whether to be linked with a peer: one of another cluster is refused.
    pub fn admit(&self, peer: &Hello) -> Result<(), String> {
        self.core.admit(peer)
    }

    /// A link to a peer is up.
    pub fn on_link_up(&self, peer: &Hello) {
        self.core.link_up(peer);
    }

    /// A link to a peer is down.
    pub fn on_link_down(&self, peer: &Hello) {
        self.core.link_down(peer);
    }

    /// A one-way message on the Raft or Control lane.
    pub fn on_message(&self, from: NodeId, lane: Lane, frame: Frame) {
        self.core.message(from, lane, &frame);
    }

    /// A request on the Raft or Control lane.
    pub fn on_request(&self, from: NodeId, lane: Lane, frame: Frame, reply: ReplyTo) {
        self.serve(from, lane, frame, Answer::Transport(reply));
    }

    pub(crate) fn serve(&self, from: NodeId, lane: Lane, frame: Frame, answer: Answer) {
        match Request::decode(&frame.head, self.core.config.knows) {
            Ok(request) => self.core.request(from, request, frame.bulk, answer),
            Err(error) => {
                tracing::warn!(%from, ?lane, %error, "a request cannot be read");
                answer.send(&Reply::Failed(error.to_string()));
            }
        }
    }

    /// Leaves in good order: routes no more, marks this node down, hands leadership over, gives the lease up. Afterwards
    /// nothing is sent, answered or stored any more.
    pub async fn shutdown(&self) {
        let core = Arc::clone(&self.core);
        self.core
            .spawner
            .scope(async move { core.leave().await })
            .await;
        self.stop().await;
    }

    /// Stops at once, as if the process were killed, but for what is being stored.
    pub(crate) async fn stop(&self) {
        let core = &self.core;
        core.leaving.store(true, Ordering::Release);
        core.stopped.store(true, Ordering::Release);
        core.lease.release();
        core.proposer.stop();
        let tasks = std::mem::take(&mut *core.tasks.lock());
        for task in tasks {
            task.abort();
            // Aborted, or ended before.
            drop(task.await);
        }
        core.ledger.disown(|ledger| ledger.resign());
        let raft = core.raft.clone();
        if core
            .spawner
            .scope(async move { raft.shutdown().await })
            .await
            .is_err()
        {
            tracing::warn!("the metadata group's task had failed before it was stopped");
        }
        core.wire.set(None);
        if let Err(error) = core.machine.flush() {
            tracing::debug!(%error, "the applied state could not be written; the log replays it");
        }
    }
}

impl Core {
    /// Starts a task of the part's life.
    fn start<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Core>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = self.spawn(task(Arc::clone(self)));
        self.tasks.lock().push(task);
    }

    /// Starts a task on the part's runtime, in which openraft may be called.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.spawn(self.spawner.scope(task))
    }

    /// Gives entries to openraft within the call; only if its queue is full, a task waits for room.
    fn entry_writer(
        self: &Arc<Self>,
    ) -> Box<dyn Fn(Payload, LeaderId, Then<WriteResult>) + Send + Sync> {
        let core = Arc::downgrade(self);
        Box::new(move |payload, leader, then| {
            // Dropping `then` unanswered tells the proposers to ask again.
            let Some(core) = core.upgrade() else { return };
            let raft = core.raft.clone();
            let mut write = Box::pin(async move {
                if let Err(error) = raft
                    .write(payload)
                    .with_leader(leader)
                    .responder(then)
                    .await
                {
                    tracing::warn!(%error, "the metadata group takes no more entries");
                }
            });
            if write
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
            {
                drop(core.spawn(write));
            }
        })
    }

    /// Why a command may not be proposed yet: the cluster has not come to its level. Most are of the first one, for which the table is not looked at.
    fn beyond_level(&self, command: &Command) -> Option<ProposeError> {
        let needed = command.level();
        if needed == Level::FIRST {
            return None;
        }
        let level = self.machine.table().read().level();
        (needed > level).then_some(ProposeError::Level { needed, level })
    }

    pub(crate) fn me(&self) -> NodeId {
        self.config.node
    }

    pub(crate) async fn wait_applied(&self, index: u64) {
        if self.machine.table().version() >= index {
            return;
        }
        let mut changes = self.lease.subscribe();
        // The sender lives as long as `self`.
        drop(
            changes
                .wait_for(|_| self.machine.table().version() >= index)
                .await,
        );
    }

    /// Waits until kicked, or for a while.
    pub(crate) async fn look_around(&self, kick: usize) {
        tokio::select! {
            () = self.kicks[kick].notified() => {}
            () = tokio::time::sleep(LOOK_AROUND) => {}
        }
    }

    pub(crate) fn kick_all(&self) {
        for kick in &self.kicks {
            kick.notify_one();
        }
    }
}

/// What tells lease, ledger and leader of every applied index.
fn observer(
    config: &Config,
    wire: &Arc<WireSlot>,
    leader: &watch::Sender<Option<NodeId>>,
    ledger: &Arc<SharedLedger>,
    lease: &Arc<Lease>,
) -> Observer {
    let (wire, leader, ledger, lease) = (
        Arc::clone(wire),
        leader.subscribe(),
        Arc::clone(ledger),
        Arc::clone(lease),
    );
    let (me, incarnation) = (config.node, config.incarnation);
    Arc::new(move |id: LogId, in_service: bool| {
        ledger.with(|ledger| ledger.applied_here(id));
        lease.applied(id.index, in_service);
        // Sent from here, without waking a task in between: somebody waits for it.
        let to = (*leader.borrow()).filter(|leader| *leader != me);
        if let Some(leader) = to {
            match (Note::Applied {
                incarnation,
                applied: id.index,
            })
            .encode()
            {
                Ok(head) => wire.send(leader, Lane::Control, Frame::of_head(head)),
                Err(error) => tracing::error!(%error, "a report cannot be encoded"),
            }
        }
    })
}

fn raft_config(config: &Config) -> Result<openraft::Config, OpenError> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let raft = openraft::Config {
        cluster_name: "metadata".into(),
        heartbeat_interval: millis(config.heartbeat),
        election_timeout_min: millis(config.election_timeout.0),
        election_timeout_max: millis(config.election_timeout.1),
        enable_pre_vote: Some(true),
        max_payload_entries: 1024,
        broadcast_submitted_on_append: Some(true),
        // A leader that restarts may have applied less than it answered for: it must be elected anew, and apply its first
        // entry, before the ledger may count on what it has applied.
        enable_leader_restore: Some(false),
        snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(config.snapshot_every),
        max_in_snapshot_log_to_keep: config.log_kept,
        // Behind what is kept, a node gets a snapshot; before that, entries.
        replication_lag_threshold: config.snapshot_every + config.log_kept,
        purge_batch_size: 256,
        backoff: "50ms 100ms 200ms ...500ms".into(),
        ..openraft::Config::default()
    };
    raft.validate()
        .map_err(|error| OpenError::Config(error.to_string()))
}
