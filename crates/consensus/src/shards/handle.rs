//! The handle of a node's shards: which groups run here, and what is asked of them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use warren_model::{NodeId, ShardId};
use warren_storage::{Storage, StorageError};
use warren_transport::{Frame, Lane, ReplyTo, Transport};

use super::config::{ChangeError, ShardOpenError, ShardsConfig};
use super::group::{Group, Opening};
use super::pulse;
use super::replica::Replica;
use super::serve;
use super::status::ShardStatus;
use crate::wire::{Answer, Wire, WireSlot};

/// The groups of shards that run on this node. Clones are handles of one set.
#[derive(Clone)]
pub struct Shards {
    inner: Arc<Inner>,
}

/// The groups that are open.
pub(super) type Groups = RwLock<BTreeMap<ShardId, Arc<Group>>>;

struct Inner {
    config: Arc<ShardsConfig>,
    storage: Arc<dyn Storage>,
    wire: Arc<WireSlot>,
    runtime: tokio::runtime::Handle,
    groups: Arc<Groups>,
    /// Held while a shard is opened or closed.
    busy: Mutex<BTreeMap<ShardId, Arc<tokio::sync::Mutex<()>>>>,
    started: AtomicBool,
    stopped: AtomicBool,
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Shards({}, {} open)",
            self.inner.config.node,
            self.inner.groups.read().len()
        )
    }
}

impl Shards {
    /// Groups on this storage; none runs yet. Must be called on the tokio runtime that their tasks are to run on.
    #[must_use]
    pub fn new(config: ShardsConfig, storage: Arc<dyn Storage>) -> Self {
        Self {
            inner: Arc::new(Inner {
                config: Arc::new(config),
                storage,
                wire: Arc::default(),
                runtime: tokio::runtime::Handle::current(),
                groups: Arc::default(),
                busy: Mutex::default(),
                started: AtomicBool::new(false),
                stopped: AtomicBool::new(false),
            }),
        }
    }

    /// Sends over this transport from now on. Groups may be opened before, but take part in nothing until then. Call it once.
    pub fn start(&self, transport: Transport) {
        self.start_on(Arc::new(transport));
    }

    pub(crate) fn start_on(&self, wire: Arc<dyn Wire>) {
        let inner = &self.inner;
        if inner.stopped.load(Ordering::Acquire) {
            return;
        }
        inner.wire.set(Some(wire));
        // Under the lock that an opened group is put in place with: it runs by this or by that.
        let groups = inner.groups.read();
        inner.started.store(true, Ordering::Release);
        for group in groups.values() {
            group.run();
        }
        drop(inner.runtime.spawn(pulse::beat(
            Arc::downgrade(&inner.groups),
            inner.config.heartbeat,
        )));
    }

    /// Runs a shard's group on this node; one that runs stays as it is. `found`: if nothing was ever stored for the group on
    /// this node and it is among these nodes, the group is founded with exactly them; all founders must be given the same ones.
    /// Otherwise the group goes on from what is stored, or waits until its leader sends something.
    ///
    /// # Errors
    /// When what is stored cannot be read, or the node is shutting down.
    pub async fn open(
        &self,
        shard: ShardId,
        replica: Arc<dyn Replica>,
        found: Option<Vec<NodeId>>,
    ) -> Result<(), ShardOpenError> {
        let inner = &self.inner;
        let busy = self.busy(shard);
        let _one_at_a_time = busy.lock().await;
        if self.is_open(shard) {
            return Ok(());
        }
        if inner.stopped.load(Ordering::Acquire) {
            return Err(ShardOpenError::Stopped);
        }
        let opening = Group::open(Opening {
            config: Arc::clone(&inner.config),
            storage: Arc::clone(&inner.storage),
            wire: Arc::clone(&inner.wire),
            runtime: inner.runtime.clone(),
            shard,
            replica,
            found,
        });
        let opened = inner.runtime.spawn(opening).await;
        let group = opened.map_err(|error| ShardOpenError::Raft {
            shard,
            why: error.to_string(),
        })??;
        let rejected = {
            let mut groups = inner.groups.write();
            if inner.stopped.load(Ordering::Acquire) {
                true
            } else {
                if inner.started.load(Ordering::Acquire) {
                    group.run();
                }
                groups.insert(shard, Arc::clone(&group));
                false
            }
        };
        if rejected {
            group.stop().await;
            return Err(ShardOpenError::Stopped);
        }
        Ok(())
    }

    fn busy(&self, shard: ShardId) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.inner.busy.lock().entry(shard).or_default())
    }

    fn group(&self, shard: ShardId) -> Option<Arc<Group>> {
        self.inner.groups.read().get(&shard).cloned()
    }

    /// Whether the shard's group runs here.
    #[must_use]
    pub fn is_open(&self, shard: ShardId) -> bool {
        self.inner.groups.read().contains_key(&shard)
    }

    /// Whether this node's storage has entries of a shard's log, be its group open or not.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn has_entries(&self, shard: ShardId) -> Result<bool, StorageError> {
        crate::log::has_entries(&*self.inner.storage.log(), shard)
    }

    /// The shards whose groups run here, in order.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardId> {
        self.inner.groups.read().keys().copied().collect()
    }

    /// Proposes an entry in a term that the replica heard [`super::Leadership::Leading`] of, and returns at once. Of the entries
    /// that are proposed in one term, those that are applied are a beginning, in the order of the calls.
    ///
    /// True: it will be applied, or the replica hears [`super::Leadership::Following`]. False: it will not be applied; this node
    /// does not lead in that term any more.
    #[must_use]
    pub fn propose(&self, shard: ShardId, term: u64, payload: Bytes) -> bool {
        self.group(shard)
            .is_some_and(|group| group.propose(term, payload))
    }

    /// The payload of an entry of the shard's log; None if it is not there (any more). Blocks on the disk when it is not cached.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn read(&self, shard: ShardId, index: u64) -> Result<Option<Bytes>, StorageError> {
        self.group(shard)
            .map_or(Ok(None), |group| group.read(index))
    }

    /// The replica's state, as of all entries that it was given, needs no entry up to `through` any more. Takes a checkpoint of
    /// it, then purges them. Several calls in a row may share a checkpoint.
    pub fn release(&self, shard: ShardId, through: u64) {
        if let Some(group) = self.group(shard) {
            group.release(through);
        }
    }

    /// Whether this node leads the shard and a majority has confirmed so within the last `lease`. As long as `lease` is no longer
    /// than [`ShardsConfig::lease`], nobody else can have been elected.
    #[must_use]
    pub fn confirmed_within(&self, shard: ShardId, lease: Duration) -> bool {
        self.group(shard)
            .is_some_and(|group| group.confirmed_within(lease))
    }

    /// What can be told of a shard's group now; None if it does not run here.
    #[must_use]
    pub fn status(&self, shard: ShardId) -> Option<ShardStatus> {
        Some(self.group(shard)?.status())
    }

    /// When leading: makes these nodes the replicas. New ones are added as learners, caught up, and made voters by joint
    /// consensus; the others are removed. Each must have, or get, the group open (without founding). A leader that is not among
    /// them hands over. May be repeated after an error, with the same or other nodes. Goes on if the future is dropped. One that waits for new replicas to
    /// catch up ends when another is asked for.
    ///
    /// # Errors
    /// When this node does not lead, or the change does not complete.
    pub async fn set_replicas(
        &self,
        shard: ShardId,
        replicas: Vec<NodeId>,
    ) -> Result<(), ChangeError> {
        self.change(
            shard,
            |group| async move { group.set_replicas(replicas).await },
        )
        .await
    }

    /// A change of a shard's replicas that waits for new ones to catch up ends, with an error; what it has done so far stays.
    pub fn give_up_change(&self, shard: ShardId) {
        if let Some(group) = self.group(shard) {
            group.give_up_change();
        }
    }

    /// When leading: hands leadership to a replica. The own replica hears [`super::Leadership::Following`] first. Returns when the
    /// other one leads. Goes on if the future is dropped.
    ///
    /// # Errors
    /// When this node does not lead, that node does not vote, or another one leads in the end.
    pub async fn transfer(&self, shard: ShardId, to: NodeId) -> Result<(), ChangeError> {
        self.change(shard, |group| async move { group.transfer(to).await })
            .await
    }

    async fn change<F>(
        &self,
        shard: ShardId,
        change: impl FnOnce(Arc<Group>) -> F,
    ) -> Result<(), ChangeError>
    where
        F: Future<Output = Result<(), ChangeError>> + Send + 'static,
    {
        let Some(group) = self.group(shard) else {
            return Err(ChangeError::NotOpen { shard });
        };
        let task = group.spawn(change(Arc::clone(&group)));
        task.await.unwrap_or_else(|error| {
            Err(ChangeError::Refused {
                shard,
                why: error.to_string(),
            })
        })
    }

    /// Stops all groups. Does not hand over leadership.
    pub async fn shutdown(&self) {
        let groups = {
            let mut groups = self.inner.groups.write();
            self.inner.stopped.store(true, Ordering::Release);
            std::mem::take(&mut *groups)
        };
        futures::future::join_all(groups.values().map(|group| group.stop())).await;
        self.inner.wire.set(None);
    }

    /// Stops a shard's group on this node and removes its log: the node is no replica any more. What was voted for is remembered.
    /// Removing the state is up to the replica's owner. The group may be opened again later, if the node becomes a replica again.
    pub async fn close(&self, shard: ShardId) {
        let busy = self.busy(shard);
        let _one_at_a_time = busy.lock().await;
        let Some(group) = self.inner.groups.write().remove(&shard) else {
            return;
        };
        group.stop().await;
        if let Err(error) = group.clear().await {
            tracing::error!(shard = shard.0, %error, "the log of a shard that was here could not be removed");
        }
    }

    /// A one-way message on one of the shards' lanes. There are none in this version.
    pub fn on_message(&self, from: NodeId, lane: Lane, frame: Frame) {
        tracing::warn!(%from, ?lane, ?frame, "an unknown message for a shard came");
    }

    /// A request on one of the shards' lanes ([`Lane::Shard`], [`Lane::ShardPulse`]).
    pub fn on_request(&self, from: NodeId, lane: Lane, frame: Frame, reply: ReplyTo) {
        self.serve(from, lane, frame, Answer::Transport(reply));
    }

    pub(crate) fn serve(&self, from: NodeId, lane: Lane, frame: Frame, answer: Answer) {
        serve::request(|shard| self.group(shard), from, lane, frame, answer);
    }

    /// A link to a node is up: what waits to be sent to it again is sent now.
    pub fn on_link_up(&self, node: NodeId) {
        for group in self.inner.groups.read().values() {
            let raft = group.raft.clone();
            let mut reset = Box::pin(async move {
                // It has stopped if this fails.
                let _ = raft.trigger().reset_backoff([node]).await;
            });
            if reset
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
            {
                drop(group.spawn(reset));
            }
        }
    }

    /// The link to a node is down.
    pub fn on_link_down(&self, node: NodeId) {
        for group in self.inner.groups.read().values() {
            group.forget_transfer(node, false);
        }
    }
}
