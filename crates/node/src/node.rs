//! A whole node: metadata group, links, lanes of queues and client sessions, wired together.
//!
//! A publish: session → [`crate::client`] (routes, batches) → lane of the owner, here or over a link → for a replicated queue: the log of its shard, and back →
//! [`crate::outbox`] → session of the consumer.
//! A declare: session → [`crate::client`] → `Metadata::propose` → applied on every node that may route → reply.

mod first_start;
mod sending;
mod wiring;

use first_start::{first_user, identity, random_bytes, store_incarnation};
use wiring::Wiring;

use crate::alarms::Alarms;
use crate::attempts::Attempts;
use crate::churn::Churn;
use crate::config::{Config, Settings};
use crate::connection::Inbox;
use crate::denials::Denials;
use crate::latency::{CommitLatency, Latency};
use crate::leaders::{Leader, Leaders, Reattaching};
use crate::limits::InUse;
use crate::logins::Logins;
use crate::meter::{MessageStats, Meter};
use crate::owners::{Address, CurrentOwners, LANES, Owners, lane_of, lane_of_shard};
use crate::registry::{Certificate, Origin, Registry};
use crate::replicas::Keeper;
use crate::roster::Roster;
use crate::traffic::Traffic;
use crate::wire::LastLog;
use crate::worker::{COMMAND_DEADLINE, CONFIRMED, LaneMessage, Worker};
use base64::Engine;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use warren_consensus::{Metadata, OpenError};
use warren_consensus::{Shards, ShardsConfig};
use warren_model::command::{PasswordHashing, Place};
use warren_model::planted;
use warren_model::{Command, Incarnation, NodeId, QueueRef, SessionId, ShardId};
use warren_routing::Table;
use warren_session::{Identity, MessageCounts};
use warren_storage::{Space, Storage, StorageError};
use warren_transport::{Hello, Network, StartError, Transport};

/// Version of RabbitMQ whose behaviour clients may count on.
const COMPATIBLE_VERSION: &str = "4.3.0";
/// Version of what nodes say to each other.
const LINK_VERSION: u32 = 2;
/// The alarm ends when this part of the limit is used.
const ALARM_CLEAR: f64 = 0.9;
/// Why connections of an incarnation that is over are closed.
const CUT_OFF: &str = "the node was cut off from the cluster; reconnect";
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What the data folder says of the node makes no sense.
    #[error(
        "the node's record {what} in its data folder is damaged; restore the folder, or wipe it and let the node join anew"
    )]
    Identity {
        /// Which record.
        what: &'static str,
    },
    /// The metadata group cannot be opened.
    #[error(transparent)]
    Metadata(#[from] OpenError),
    /// Links cannot be made.
    #[error(transparent)]
    Transport(#[from] StartError),
}

/// A running node.
pub struct Node {
    id: NodeId,
    incarnation: AtomicU64,
    config: Config,
    storage: Arc<dyn Storage>,
    metadata: OnceLock<Metadata>,
    transport: OnceLock<Transport>,
    shards: Shards,
    leaders: Leaders,
    /// Nodes that are linked now.
    linked: RwLock<BTreeSet<NodeId>>,
    /// Wakes the keeper of the shards.
    keeper_kick: Notify,
    /// Who wants to lead a shard that this node leads, and when it said so last.
    wants: Mutex<BTreeMap<ShardId, (NodeId, tokio::time::Instant)>>,
    /// Shards whose leaders have said that this node's replica is no member any more.
    released: Mutex<BTreeMap<ShardId, LastLog>>,
    /// Replicas in the storage that are not open yet; none until the keeper has looked.
    unopened: Mutex<Option<usize>>,
    owners: OnceLock<CurrentOwners>,
    roster: OnceLock<Roster>,
    lanes: Vec<mpsc::UnboundedSender<LaneMessage>>,
    sessions: RwLock<BTreeMap<u64, mpsc::UnboundedSender<Inbox>>>,
    last_session: AtomicU64,
    random: Mutex<StdRng>,
    queued_bytes: AtomicU64,
    low_on_memory: AtomicBool,
    alarms: Alarms,
    /// Client connections, for operators.
    registry: Registry,
    /// What clients did with messages.
    messages: Mutex<Meter<MessageCounts>>,
    churn: Churn,
    commits: Arc<CommitLatency>,
    failed_logins: Attempts,
    denials: Denials,
    /// What clients publish to exchanges.
    traffic: Traffic,
    logins: Logins,
    in_use: InUse,
    certificates: RwLock<Vec<Certificate>>,
    started: Instant,
    /// A reset after having been counted out is under way.
    resetting: AtomicBool,
    stopping: AtomicBool,
    /// Where lanes and sessions run.
    work: Handle,
}

impl Node {
    /// Starts a node. Links and consensus run on the calling runtime, which should have little else to do, so that heartbeats and leases are
    /// kept under load; queues run on `work`, as should [`Node::serve`].
    pub async fn start(
        config: Config,
        storage: Arc<dyn Storage>,
        network: Arc<dyn Network>,
        work: Handle,
    ) -> Result<Arc<Self>, NodeError> {
        let mut random = match config.seed {
            Some(seed) => StdRng::seed_from_u64(seed),
            None => StdRng::from_os_rng(),
        };
        let (id, incarnation) = identity(&*storage, &mut random)?;
        let (lanes, inboxes): (Vec<_>, Vec<_>) =
            (0..LANES).map(|_| mpsc::unbounded_channel()).unzip();
        let (raft_seed, shards_seed, quic_seed) = (
            random.next_u64(),
            random.next_u64(),
            config.seed.map(|_| random_bytes(&mut random)),
        );
        let hashing = config.settings.password_hashing;
        let first_commands = match &config.first_user {
            // A node that has a table founds no cluster any more, so its start need not take the time for this.
            Some(_)
                if hashing == PasswordHashing::Argon2id
                    && storage.state().scan(Space::Table)?.next().is_some() =>
            {
                Vec::new()
            }
            Some((name, password)) => first_user(name, password, hashing, &mut random),
            None => Vec::new(),
        };
        // Apart from the node's own randomness: nothing that can be seen depends on it.
        let login_key = random_bytes(&mut StdRng::from_os_rng());
        let node = Arc::new(Self {
            id,
            incarnation: AtomicU64::new(incarnation.0),
            storage: storage.clone(),
            metadata: OnceLock::new(),
            transport: OnceLock::new(),
            shards: Shards::new(ShardsConfig::new(id, shards_seed), storage.clone()),
            leaders: Leaders::default(),
            linked: RwLock::default(),
            keeper_kick: Notify::new(),
            wants: Mutex::default(),
            released: Mutex::default(),
            unopened: Mutex::default(),
            owners: OnceLock::new(),
            roster: OnceLock::new(),
            lanes,
            sessions: RwLock::default(),
            last_session: AtomicU64::new(0),
            random: Mutex::new(random),
            queued_bytes: AtomicU64::new(0),
            low_on_memory: AtomicBool::new(false),
            alarms: Alarms::default(),
            registry: Registry::default(),
            messages: Mutex::new(Meter::new(Instant::now())),
            churn: Churn::new(Instant::now()),
            commits: Arc::default(),
            failed_logins: Attempts::default(),
            denials: Denials::default(),
            traffic: Traffic::default(),
            logins: Logins::new(login_key),
            in_use: InUse::default(),
            certificates: RwLock::default(),
            started: Instant::now(),
            resetting: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            work,
            config,
        });
        let config = &node.config;
        let mut group = warren_consensus::Config::new(
            id,
            incarnation,
            &config.name,
            &config.address,
            raft_seed,
        );
        group.amqp = config.amqp.clone();
        group.http = config.http.clone();
        group.seeds = config.peers.clone();
        group.rejoins = config.rejoins;
        group.shards = config.shards;
        group.knows = config.knows;
        group.first_commands = first_commands;
        let wiring = Arc::new(Wiring(Arc::downgrade(&node)));
        let metadata = Metadata::open(group, storage, wiring.clone()).await?;
        let cluster = {
            let table = metadata.table().read();
            let _ = node.owners.set(CurrentOwners::new(&table));
            let _ = node.roster.set(Roster::new(&table));
            table.cluster().map(|(cluster, _)| cluster)
        };
        if node.metadata.set(metadata.clone()).is_err() {
            unreachable!("a node is started once");
        }
        for inbox in inboxes {
            node.work.spawn(Worker::run(node.clone(), inbox));
        }
        let hello = Hello {
            cluster,
            node: id,
            name: config.name.clone(),
            incarnation,
            address: config.address.clone(),
            version: LINK_VERSION,
            level: config.knows,
        };
        let mut links = warren_transport::Config::new(
            config.bind,
            hello,
            config.tls.clone(),
            config.peers.clone(),
        );
        links.rng_seed = quic_seed;
        let transport = Transport::start(links, network, wiring).await?;
        let _ = node.transport.set(transport.clone());
        node.shards.start(transport.clone());
        metadata.start(transport);
        node.work.spawn(Keeper::run(node.clone()));
        node.work.spawn(crate::alarms::watch_disk(node.clone()));
        node.work.spawn(crate::limits::tell(node.clone()));
        tracing::info!(node = %id, name = config.name, incarnation = incarnation.0, links = %config.bind, "node started");
        Ok(node)
    }

    /// Serves one client connection until it ends.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        self: Arc<Self>,
        stream: S,
        peer: std::net::SocketAddr,
    ) {
        let origin = Origin {
            peer,
            local: None,
            tls: None,
        };
        self.serve_from(stream, origin).await;
    }

    /// The same for a client whose connection can be told more of.
    pub async fn serve_from<S: AsyncRead + AsyncWrite + Unpin>(
        self: Arc<Self>,
        stream: S,
        origin: Origin,
    ) {
        crate::connection::serve(self, stream, origin).await;
    }

    /// Stops in good order: clients are told, leadership is handed over, the storage is synced.
    pub async fn shutdown(self: &Arc<Self>) {
        self.stopping.store(true, Ordering::Release);
        self.keeper_kick.notify_one();
        self.in_use.kick();
        self.hand_all_shards_over().await;
        self.broadcast(|| {
            Inbox::Close("broker forced connection closure with reason 'shutdown'".into())
        });
        let until = tokio::time::Instant::now() + SHUTDOWN_DEADLINE;
        while !self.sessions.read().is_empty() && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Marks this node down.
        self.metadata().shutdown().await;
        self.shards.shutdown().await;
        if let Some(transport) = self.transport.get() {
            transport.shutdown().await;
        }
        if let Err(error) = self.storage.close() {
            tracing::error!(%error, "the storage did not close well");
        }
        tracing::info!(node = %self.id, "node stopped");
    }

    /// Whether the node has begun to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Identity of the node.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The metadata group, with the routing table.
    pub fn metadata(&self) -> &Metadata {
        match self.metadata.get() {
            Some(metadata) => metadata,
            None => unreachable!("nothing runs before the metadata group is open"),
        }
    }

    /// Client connections.
    pub fn session_count(&self) -> usize {
        self.sessions.read().len()
    }

    /// The certificates that the node shows, as they were told by [`Node::set_certificates`].
    pub fn certificates(&self) -> Vec<Certificate> {
        self.certificates.read().clone()
    }

    /// Tells the node what certificates it shows; they replace those told before.
    pub fn set_certificates(&self, certificates: Vec<Certificate>) {
        *self.certificates.write() = certificates;
    }

    pub(crate) fn in_use(&self) -> &InUse {
        &self.in_use
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Record bytes in this node's queues.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    /// What this node's clients did with messages since it was started.
    pub(crate) fn message_stats(&self) -> MessageStats {
        self.messages.lock().stats(Instant::now())
    }

    pub(crate) fn churn(&self) -> &Churn {
        &self.churn
    }

    pub(crate) fn commits(&self) -> &Arc<CommitLatency> {
        &self.commits
    }

    /// How long changes that clients asked of this node took until they were made, and entries of the shards that it leads until it applied them.
    pub fn commit_latency(&self) -> (Latency, Latency) {
        (self.commits.metadata.read(), self.commits.shards.read())
    }

    /// A client did something with messages.
    pub(crate) fn count_messages(&self, counts: MessageCounts, at: Instant) {
        let mut messages = self.messages.lock();
        messages.tick(at);
        messages.now += counts;
    }

    /// The session that stands for the node itself in commands.
    pub fn own_session(&self) -> SessionId {
        SessionId {
            node: self.id,
            incarnation: self.incarnation(),
            number: 0,
        }
    }

    /// A name of 22 characters that nobody else makes.
    pub fn unique_name(&self) -> String {
        base64::engine::general_purpose::URL_SAFE_NO_PAD
            .encode(random_bytes::<16>(&mut self.random.lock()))
    }

    pub(crate) fn logins(&self) -> &Logins {
        &self.logins
    }

    pub(crate) fn denials(&self) -> &Denials {
        &self.denials
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// How often a message did not go to a queue because its publisher may not write to that, since the node was started.
    pub fn queue_writes_denied(&self) -> u64 {
        self.denials.total()
    }

    pub(crate) fn failed_logins(&self) -> &Attempts {
        &self.failed_logins
    }

    pub(crate) fn random(&self) -> &Mutex<StdRng> {
        &self.random
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Acquire))
    }

    /// What an operator may tune.
    pub fn settings(&self) -> &Settings {
        &self.config.settings
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity {
            compatible_version: COMPATIBLE_VERSION.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            cluster_name: self.config.cluster_name.clone(),
            node_name: self.config.name.clone(),
        }
    }

    /// Owners that belong to `table`.
    pub(crate) fn owners(&self, table: &Table) -> Arc<Owners> {
        match self.owners.get() {
            Some(owners) => owners.get(table),
            None => Arc::new(Owners::of(table)),
        }
    }

    pub(crate) fn current_owners(&self) -> Arc<Owners> {
        self.owners(&self.metadata().table().read())
    }

    /// Who serves a queue now, as far as is known here.
    pub(crate) fn owner_of(&self, queue: QueueRef) -> Option<Address> {
        match queue.place {
            Place::Shard(shard) => self.address_of_shard(shard),
            Place::Node(node, incarnation) => Some(Address {
                node: self.current_owners().of_incarnation(node, incarnation)?,
                lane: lane_of(queue.id),
            }),
        }
    }

    /// The lane that leads a shard.
    pub(crate) fn address_of_shard(&self, shard: ShardId) -> Option<Address> {
        Some(Address {
            node: self.leaders.get(shard)?.node,
            lane: lane_of_shard(shard),
        })
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    pub(crate) fn leaders(&self) -> &Leaders {
        &self.leaders
    }

    /// The failure since which the storage takes no more writes, if there was one: the node takes part in nothing until it is started again.
    pub fn storage_failure(&self) -> Option<StorageError> {
        self.storage.failure()
    }

    /// The first damage that a read of the storage has found, if there was some. It was not served.
    pub fn storage_damage(&self) -> Option<StorageError> {
        self.storage.damage()
    }

    /// Whether all other nodes of the cluster are up and linked, so that it can do without this one for a while; false where there are no others.
    pub fn is_dispensable(&self) -> bool {
        let linked = self.linked();
        let table = self.metadata().table().read();
        let mut others = table.nodes().filter(|n| n.id != self.id).peekable();
        others.peek().is_some() && others.all(|n| n.up && linked.contains(&n.id))
    }

    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// A message that was moved from the log to the store.
    pub(crate) fn stored_message(&self, key: &[u8]) -> Option<Bytes> {
        match self.storage.state().get(Space::Message, key) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(%error, "a stored message cannot be read");
                None
            }
        }
    }

    /// Runs something that blocks on the disk where it holds up nobody.
    pub(crate) fn in_background(&self, work: impl FnOnce() + Send + 'static) {
        if self.config.seed.is_some() {
            // In simulation everything is on one thread.
            work();
        } else {
            drop(self.work.spawn_blocking(work));
        }
    }

    /// This node has just begun or ceased to lead a shard: what others wanted before does not count any more.
    pub(crate) fn forget_wants(&self, shard: ShardId) {
        self.wants.lock().remove(&shard);
    }

    /// Whether a node has said of late that it wants to lead a shard.
    pub(crate) fn is_wanted_by(&self, shard: ShardId, node: NodeId, within: Duration) -> bool {
        let wants = self.wants.lock();
        wants
            .get(&shard)
            .is_some_and(|(who, at)| *who == node && at.elapsed() <= within)
    }

    /// Shards whose leaders have said, since this was last asked, that this node's replica is no member any more, with what its log was then.
    pub(crate) fn take_released(&self) -> BTreeMap<ShardId, LastLog> {
        std::mem::take(&mut *self.released.lock())
    }

    pub(crate) fn set_unopened(&self, replicas: usize) {
        *self.unopened.lock() = Some(replicas);
    }

    /// Shards of which this node has a replica, open or not; none until it has looked.
    pub(crate) fn held(&self) -> Option<u64> {
        let unopened = (*self.unopened.lock())?;
        Some((self.shards().shards().len() + unopened) as u64)
    }

    /// Whether this node leads a shard of which another node is no member (any more), and should not become one.
    fn has_removed(&self, shard: ShardId, node: NodeId) -> bool {
        let table = self.metadata().table().read();
        let is_placed = table
            .placement(shard)
            .is_none_or(|placed| placed.replicas.contains(&node));
        drop(table);
        !is_placed
            && self.shards().status(shard).is_some_and(|status| {
                status.leading.is_some()
                    && !status.changing
                    && !status.voters.contains(&node)
                    && !status.learners.contains(&node)
            })
            // A later leader may have made it a member again.
            && self.shards().confirmed_within(shard, CONFIRMED)
    }

    /// Wakes the keeper of the shards.
    pub(crate) fn keeper_kick(&self) -> &Notify {
        &self.keeper_kick
    }

    /// Nodes that are linked now.
    pub(crate) fn linked(&self) -> Vec<NodeId> {
        self.linked.read().iter().copied().collect()
    }

    /// This node no longer leads a shard.
    pub(crate) fn resigned(&self, shard: ShardId, term: u64) {
        let node = self.id;
        self.leaders.resigned(shard, Leader { term, node });
        self.keeper_kick.notify_one();
    }

    /// A shard's replica is damaged: it takes part no more.
    pub(crate) fn stop_shard(self: Arc<Self>, shard: ShardId) {
        let node = self.clone();
        self.work
            .spawn(async move { node.shards.close(shard).await });
    }

    pub(crate) fn tell_sessions_of_leader(&self, token: &Arc<Reattaching>) {
        self.broadcast(|| Inbox::Leader(token.clone()));
    }

    pub(crate) fn register_session(&self, inbox: mpsc::UnboundedSender<Inbox>) -> SessionId {
        let number = self.last_session.fetch_add(1, Ordering::Relaxed) + 1;
        self.sessions.write().insert(number, inbox.clone());
        if self.stopping.load(Ordering::Acquire) {
            // It has just been opened: its task will find this first.
            let _ = inbox.send(Inbox::Close("the node is shutting down".into()));
        } else if self.resetting.load(Ordering::Acquire) {
            // It belongs to the incarnation that is over: nothing would ever be answered to it.
            let _ = inbox.send(Inbox::Close(CUT_OFF.into()));
        }
        SessionId {
            node: self.id,
            incarnation: self.incarnation(),
            number,
        }
    }

    pub(crate) fn forget_session(&self, session: SessionId) {
        self.sessions.write().remove(&session.number);
    }

    /// Deletes a session's exclusive queues, however long that takes; if this node dies before, its incarnation's end does it.
    /// `proposals` is shared with the session's proposals that are still under way: what they declare must go, too.
    pub(crate) fn delete_exclusive(
        self: Arc<Self>,
        session: SessionId,
        proposals: Arc<UnderWay>,
    ) -> tokio::task::JoinHandle<()> {
        if planted!(ExclusivesKept) {
            return self.work.clone().spawn(async {});
        }
        let proposed = self
            .metadata()
            .propose(Command::SessionClosed { session }, COMMAND_DEADLINE);
        self.work.clone().spawn(async move {
            let mut result = proposed.await;
            loop {
                let under_way = proposals.any();
                match result {
                    Ok(_) if !under_way => return,
                    Ok(_) => {}
                    Err(error) => tracing::warn!(%session, %error, "exclusive queues of a closed connection are not deleted yet"),
                }
                if self.incarnation() != session.incarnation || self.stopping.load(Ordering::Acquire) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                result = self.metadata().propose(Command::SessionClosed { session }, COMMAND_DEADLINE).await;
            }
        })
    }

    /// A queue's size has changed: keeps the account, and raises or ends the alarm.
    pub(crate) fn account(self: &Arc<Self>, before: u64, after: u64) {
        let total = if after >= before {
            self.queued_bytes
                .fetch_add(after - before, Ordering::Relaxed)
                + (after - before)
        } else {
            self.queued_bytes
                .fetch_sub(before - after, Ordering::Relaxed)
                - (before - after)
        };
        let limit = self.config.settings.memory_limit_bytes;
        if total > limit && !self.low_on_memory.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                bytes = total,
                limit,
                "this node's queues hold too much in memory"
            );
            self.set_low(|low| low.memory = true);
        } else if (total as f64) < limit as f64 * ALARM_CLEAR
            && self.low_on_memory.load(Ordering::Relaxed)
            && self.low_on_memory.swap(false, Ordering::Relaxed)
        {
            tracing::info!(bytes = total, limit, "this node's queues hold less again");
            self.set_low(|low| low.memory = false);
        }
    }

    /// Tasks that wait for a thread where lanes and sessions run.
    pub(crate) fn waiting_tasks(&self) -> usize {
        self.work.metrics().global_queue_depth()
    }

    pub(crate) fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    pub(crate) fn transport(&self) -> Option<&Transport> {
        self.transport.get()
    }

    fn members_changed(self: &Arc<Self>) {
        if let Some(roster) = self.roster.get() {
            self.note_members(roster);
        }
        let nodes: Vec<_> = self
            .metadata()
            .table()
            .read()
            .nodes()
            .map(|known| (known.id, known.last_ended()))
            .collect();
        // Of a node that is up, all sessions of earlier incarnations are gone; of one that is down, this one's, too.
        for (node, ended) in nodes {
            if node != self.id {
                self.to_all_lanes(|| LaneMessage::PeerGone(node, Some(ended)));
            }
        }
        self.keeper_kick.notify_one();
        self.broadcast(|| Inbox::MembersChanged);
        if self.metadata().is_marked_down()
            && !self.stopping.load(Ordering::Acquire)
            && !self.resetting.swap(true, Ordering::AcqRel)
        {
            self.work.clone().spawn(self.clone().reset());
        }
    }

    /// The cluster has counted this node out while it could not be reached: all that belonged to its incarnation is gone. Starts another.
    async fn reset(self: Arc<Self>) {
        tracing::warn!(node = %self.id, "this node was cut off and has been marked down: its connections are closed, and it comes back as a new incarnation");
        self.broadcast(|| Inbox::Close(CUT_OFF.into()));
        let until = tokio::time::Instant::now() + SHUTDOWN_DEADLINE;
        while !self.sessions.read().is_empty() && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.to_all_lanes(|| LaneMessage::Reset);
        let next = Incarnation(self.incarnation().0 + 1);
        match store_incarnation(&*self.storage, next) {
            Ok(()) => {
                self.incarnation.store(next.0, Ordering::Release);
                self.metadata().renew_incarnation(next);
            }
            Err(error) => {
                tracing::error!(%error, "the new incarnation cannot be stored: the node stays down; mend its disk and restart it")
            }
        }
        self.resetting.store(false, Ordering::Release);
    }
}

/// Counts what is under way.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(AtomicU64);

/// One of what is under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct OneUnderWay(Arc<UnderWay>);

impl UnderWay {
    /// Counts one more.
    pub(crate) fn one(all: &Arc<Self>) -> OneUnderWay {
        all.0.fetch_add(1, Ordering::AcqRel);
        OneUnderWay(all.clone())
    }

    /// Whether anything is under way.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

impl Drop for OneUnderWay {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
