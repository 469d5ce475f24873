//! Keeps the node's shards where the routing table wants them: opens and closes their groups, follows placements, brings leadership home.
//!
//! Flow: [`Keeper::run`] wakes on changes of the table and now and then. The metadata group's leader places shards that have no place yet, and those whose
//! place the ring has changed, or of which a queue asks for more replicas, or no queue does any more; every node opens the groups of its replicas; the leader of a shard makes the group's members those of its placement, and hands
//! leadership to the preferred leader once that has caught up.
//! Invariants: a shard is founded once, by the nodes of its first placement; a replica is deleted on the word of its shard's leader only; a node does one change
//! at a time, so that moves are paced.

use crate::hosted::{Hosted, ShardMessage};
use crate::keep;
use crate::node::Node;
use crate::owners::preferred_leader;
use crate::wire::{LastLog, ToNode};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use warren_consensus::{ChangeError, Committed, Leadership, Replica, ShardStatus};
use warren_model::command::Placement;
use warren_model::{Command, NodeId, ShardId};
use warren_placement::REPLICAS;
use warren_storage::{Scan, StorageError};

/// How often the keeper looks around without being woken.
const LOOK_AROUND: Duration = Duration::from_millis(200);
/// How long the first placement waits for nodes of the configuration that have not come yet.
const FOUNDING_PATIENCE: Duration = Duration::from_secs(2);
const COMMAND_DEADLINE: Duration = Duration::from_secs(5);
/// A replica that lacks at most so many entries has caught up.
const CAUGHT_UP: u64 = 64;
/// How long a shard is left alone after a change that did not come about.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Leadership goes to a node that has asked for it within this time.
const WANTED_WITHIN: Duration = Duration::from_secs(1);
/// How long it may take to write down what was delivered.
const WRITTEN_DEADLINE: Duration = Duration::from_millis(500);
/// How long an orderly hand-over may take in all.
const HAND_OVER_DEADLINE: Duration = Duration::from_secs(3);

/// The state of a shard, as its group sees it: a way to the shard's lane.
struct LaneReplica {
    node: Weak<Node>,
    shard: ShardId,
    position: Option<Bytes>,
}

impl LaneReplica {
    fn tell(&self, message: ShardMessage) {
        if let Some(node) = self.node.upgrade() {
            node.to_shard(self.shard, message);
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(oneshot::Sender<Result<T, StorageError>>) -> ShardMessage,
    ) -> BoxFuture<'static, Result<T, StorageError>> {
        let (sender, receiver) = oneshot::channel();
        self.tell(question(sender));
        receiver
            .map(|answer| answer.unwrap_or(Err(StorageError::Closed)))
            .boxed()
    }
}

impl Replica for LaneReplica {
    fn position(&self) -> Result<Option<Bytes>, StorageError> {
        Ok(self.position.clone())
    }

    fn apply(&self, entries: Vec<Committed>) {
        self.tell(ShardMessage::Apply(entries));
    }

    fn checkpoint(&self, position: Bytes) -> BoxFuture<'static, Result<(), StorageError>> {
        self.ask(|done| ShardMessage::Checkpoint(position, done))
    }

    fn view(&self) -> BoxFuture<'static, Result<Scan, StorageError>> {
        self.ask(ShardMessage::View)
    }

    fn stage(
        &self,
        records: Vec<(Bytes, Bytes)>,
        first: bool,
    ) -> BoxFuture<'static, Result<(), StorageError>> {
        self.ask(|done| ShardMessage::Stage {
            records,
            first,
            done,
        })
    }

    fn install(&self, position: Bytes) -> BoxFuture<'static, Result<(), StorageError>> {
        self.ask(|done| ShardMessage::Install(position, done))
    }

    fn leadership(&self, leadership: Leadership) {
        self.tell(ShardMessage::Leadership(leadership));
    }
}

/// Does a node's part in keeping shards in their places.
pub(crate) struct Keeper {
    node: Arc<Node>,
    founded_seen: Option<Instant>,
    /// Shards of which there is something in the storage since before this start. A replica that is placed elsewhere by now may still be needed: it goes
    /// when the shard's leader says that it is no member.
    left_over: Option<BTreeSet<ShardId>>,
    /// Shards whose replicas have moved away from here: that this node was among the founders does not count any more.
    moved_away: BTreeSet<ShardId>,
    /// Shards that are left alone for a while.
    pauses: BTreeMap<ShardId, Instant>,
    /// The one change of replicas that is under way. It may take long, and everything else goes on meanwhile: two nodes that each wait for the other to
    /// open a group would wait for ever.
    change: Option<Change>,
}

/// A change of a shard's replicas.
struct Change {
    shard: ShardId,
    placed: Vec<NodeId>,
    task: JoinHandle<Result<(), ChangeError>>,
}

impl Keeper {
    /// Runs until the node stops.
    pub(crate) async fn run(node: Arc<Node>) {
        let mut keeper = Self {
            node,
            founded_seen: None,
            left_over: None,
            moved_away: BTreeSet::new(),
            pauses: BTreeMap::new(),
            change: None,
        };
        while !keeper.node.is_stopping() {
            keeper.place().await;
            keeper.open_and_close().await;
            keeper.ask_for_own();
            keeper.tend_led().await;
            let kick = keeper.node.keeper_kick();
            let _ = tokio::time::timeout(LOOK_AROUND, kick.notified()).await;
        }
    }

    /// As the metadata group's leader: places shards where the ring wants them.
    async fn place(&mut self) {
        let status = self.node.metadata().status();
        if status.leader != Some(self.node.id()) || !status.lease_held {
            return;
        }
        let placements = {
            let table = self.node.metadata().table().read();
            let Some((_, shards)) = table.cluster() else {
                return;
            };
            let owners = self.node.owners(&table);
            let expected = self.node.config().peers.iter();
            let all_here = expected
                .filter(|peer| peer.name != self.node.name())
                .all(|peer| table.nodes().any(|n| n.name == peer.name));
            let since = *self.founded_seen.get_or_insert_with(Instant::now);
            let is_new = table.placement(ShardId(0)).is_none();
            if is_new && !all_here && since.elapsed() < FOUNDING_PATIENCE {
                return;
            }
            let mut placements = Vec::new();
            for shard in (0..shards).map(ShardId) {
                let wanted = usize::try_from(table.group_size(shard)).unwrap_or(usize::MAX);
                let replicas = owners.ring.replicas(shard, REPLICAS.max(wanted));
                let placed = table.placement(shard);
                if !replicas.is_empty() && placed.is_none_or(|p| p.replicas != replicas) {
                    placements.push(Placement { shard, replicas });
                }
            }
            placements
        };
        if placements.is_empty() {
            return;
        }
        tracing::info!(shards = placements.len(), "shards are placed");
        let command = Command::PlaceShards { placements };
        if let Err(error) = self
            .node
            .metadata()
            .propose(command, COMMAND_DEADLINE)
            .await
        {
            tracing::warn!(%error, "the placement of shards is not confirmed");
        }
    }

    /// Opens the groups of which this node is to hold replicas, and closes those that have moved away.
    async fn open_and_close(&mut self) {
        let me = self.node.id();
        let (mut to_open, mut to_close) = (Vec::new(), Vec::new());
        let shards = self.node.metadata().table().read().cluster();
        let shards = shards.map_or(0, |(_, shards)| shards);
        let left_over = self.left_over(shards);
        let released = self.node.take_released();
        {
            let table = self.node.metadata().table().read();
            for shard in (0..shards).map(ShardId) {
                let Some(placed) = table.placement(shard) else {
                    continue;
                };
                let is_open = self.node.shards().is_open(shard);
                let wanted = placed.replicas.contains(&me);
                let founds = placed.founders.contains(&me) && !self.moved_away.contains(&shard);
                if !is_open
                    && (wanted || founds || left_over.contains(&shard))
                    && !self.is_paused(shard)
                {
                    to_open.push((shard, founds.then(|| placed.founders.clone())));
                } else if is_open && !wanted {
                    to_close.push(shard);
                }
            }
        }
        for (shard, found) in to_open {
            if let Err(error) = self.open(shard, found).await {
                tracing::error!(shard = shard.0, %error, "this node's replica of a shard cannot be opened");
                self.pause(shard);
                continue;
            }
            if let Some(left_over) = &mut self.left_over {
                left_over.remove(&shard);
            }
        }
        if let Some(left_over) = &self.left_over {
            self.node.set_unopened(left_over.len());
        }
        for shard in to_close {
            self.ask_or_close(shard, released.get(&shard).copied())
                .await;
        }
    }

    /// Closes and deletes the replica of a shard that is placed elsewhere, once the shard's leader says that the group goes on without it: who is removed may
    /// never be sent that, and what its own log says of it may be old. Until then it may be one of those that a majority needs, and asks.
    async fn ask_or_close(&mut self, shard: ShardId, released: Option<LastLog>) {
        let Some(status) = self.node.shards().status(shard) else {
            return;
        };
        // The word counts for what the replica was when it asked: one that is sent entries again is a member again.
        if released == Some(LastLog(status.last_log)) && status.leading.is_none() {
            tracing::info!(shard = shard.0, "the shard's replica has moved away");
            self.node.shards().close(shard).await;
            self.node.to_shard(shard, ShardMessage::Closed);
            self.moved_away.insert(shard);
            return;
        }
        if let Some(leader) = self.node.leaders().get(shard)
            && leader.node != self.node.id()
        {
            let last_log = LastLog(status.last_log);
            self.node
                .send_to_node(leader.node, ToNode::Holds { shard, last_log });
        }
    }

    /// See the field. Empty until the cluster is known.
    fn left_over(&mut self, shards: u16) -> BTreeSet<ShardId> {
        if shards > 0 && self.left_over.is_none() {
            let store = self.node.storage().state();
            let is_there = |shard: &ShardId| {
                keep::is_kept(&*store, *shard)
                    .and_then(|kept| Ok(kept || self.node.shards().has_entries(*shard)?))
                    .unwrap_or_else(|error| {
                        tracing::error!(shard = shard.0, %error, "it cannot be read what there is of a shard");
                        false
                    })
            };
            self.left_over = Some((0..shards).map(ShardId).filter(is_there).collect());
        }
        self.left_over.clone().unwrap_or_default()
    }

    async fn open(&self, shard: ShardId, found: Option<Vec<NodeId>>) -> Result<(), String> {
        let store = self.node.storage().state();
        let kept = keep::load(&*store, shard).map_err(|error| error.to_string())?;
        let (hosted, position) = match kept {
            Some((hosted, position)) => (hosted, Some(position)),
            None => (Hosted::default(), None),
        };
        // What an earlier process was sent of a view and did not install.
        store
            .write_spaces(keep::delete_generation(shard, hosted.generation + 1))
            .map_err(|error| error.to_string())?;
        self.node
            .to_shard(shard, ShardMessage::Opened(Box::new(hosted)));
        let replica = Arc::new(LaneReplica {
            node: Arc::downgrade(&self.node),
            shard,
            position,
        });
        let opened = self.node.shards().open(shard, replica, found).await;
        opened.map_err(|error| error.to_string())
    }

    /// Of the shards that this node leads: members as placed, leadership to whom it belongs.
    async fn tend_led(&mut self) {
        self.end_change().await;
        for (shard, _) in self.node.leaders().of(self.node.id()) {
            if self.node.is_stopping() {
                return;
            }
            if self.is_paused(shard) {
                continue;
            }
            let Some(status) = self.node.shards().status(shard) else {
                continue;
            };
            if status.leading.is_none() {
                continue;
            }
            let (placed, preferred) = {
                let table = self.node.metadata().table().read();
                let Some(placed) = table.placement(shard) else {
                    continue;
                };
                (placed.replicas.clone(), preferred_leader(&table, shard))
            };
            if !same_nodes(&status, &placed) {
                if !self.has_majority(&placed) {
                    continue;
                }
                // Who is to have no replica lets another one make the change: a leader that removes itself leaves the shard without one for an election.
                match self.successor(&status, &placed, preferred) {
                    Some(to) => self.give_up_leading(shard, to).await,
                    None => self.begin_change(shard, placed),
                }
                continue;
            }
            if let Some(to) = preferred
                && to != self.node.id()
                && has_caught_up(&status, to)
                && self.node.is_wanted_by(shard, to, WANTED_WITHIN)
                && let Err(error) = self.node.hand_shard_over(shard, to).await
            {
                tracing::info!(shard = shard.0, %to, %error, "leadership is not handed over yet");
                self.pause(shard);
            }
        }
    }

    /// Whether a majority of these nodes is here: a shard that moved to others would stand still.
    fn has_majority(&self, placed: &[NodeId]) -> bool {
        let linked = self.node.linked();
        let is_here = |node: &&NodeId| **node == self.node.id() || linked.contains(node);
        placed.iter().filter(is_here).count() > placed.len() / 2
    }

    /// Who leads a shard on when this node is to have no replica of it: the preferred leader, or another one that votes already.
    fn successor(
        &self,
        status: &ShardStatus,
        placed: &[NodeId],
        preferred: Option<NodeId>,
    ) -> Option<NodeId> {
        if placed.contains(&self.node.id()) || status.changing {
            return None;
        }
        let linked = self.node.linked();
        let could = |node: &NodeId| linked.contains(node) && has_caught_up(status, *node);
        let mut others = preferred.into_iter().chain(placed.iter().copied());
        others.find(could)
    }

    async fn give_up_leading(&mut self, shard: ShardId, to: NodeId) {
        if let Err(error) = self.node.hand_shard_over(shard, to).await {
            tracing::info!(shard = shard.0, %to, %error, "leadership is not given up yet");
            self.pause(shard);
        }
    }

    /// Changes a shard's replicas, unless another change is under way.
    fn begin_change(&mut self, shard: ShardId, placed: Vec<NodeId>) {
        let is_new = |change: &Change| change.shard == shard && change.placed != placed;
        if self.change.is_some() && !self.change.as_ref().is_some_and(is_new) {
            return;
        }
        // A change to an earlier placement ends when the next one begins.
        let (shards, to) = (self.node.shards().clone(), placed.clone());
        let task = tokio::spawn(async move { shards.set_replicas(shard, to).await });
        self.change = Some(Change {
            shard,
            placed,
            task,
        });
    }

    /// Takes note of a change's end. One that waits for a node that is not linked is given up: others may go on.
    async fn end_change(&mut self) {
        let Some(change) = &self.change else { return };
        if !change.task.is_finished() {
            let (me, linked) = (self.node.id(), self.node.linked());
            let is_there = |node: &NodeId| *node == me || linked.contains(node);
            if !change.placed.iter().all(is_there) {
                self.node.shards().give_up_change(change.shard);
            }
            return;
        }
        let Some(Change { shard, task, .. }) = self.change.take() else {
            return;
        };
        match task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::info!(shard = shard.0, %error, "the shard's replicas are not changed yet");
                self.pause(shard);
            }
            // The runtime is going.
            Err(_) => {}
        }
    }

    /// Tells the leaders of shards that this node should lead, once it is linked with every node that is up: sooner, it would not hear from all of them
    /// what their consumers hold.
    fn ask_for_own(&self) {
        let me = self.node.id();
        let wanted: Vec<ShardId> = {
            let table = self.node.metadata().table().read();
            let linked = self.node.linked();
            let mut up = table.nodes().filter(|n| n.up && n.id != me);
            if !up.all(|n| linked.contains(&n.id)) {
                return;
            }
            let shards = table.cluster().map_or(0, |(_, shards)| shards);
            (0..shards)
                .map(ShardId)
                .filter(|shard| preferred_leader(&table, *shard) == Some(me))
                .collect()
        };
        for shard in wanted {
            if let Some(leader) = self.node.leaders().get(shard)
                && leader.node != me
            {
                self.node.send_to_node(leader.node, ToNode::Wants { shard });
            }
        }
    }

    fn pause(&mut self, shard: ShardId) {
        self.pauses
            .insert(shard, Instant::now() + PAUSE_AFTER_FAILURE);
    }

    fn is_paused(&self, shard: ShardId) -> bool {
        self.pauses
            .get(&shard)
            .is_some_and(|until| Instant::now() < *until)
    }
}

fn same_nodes(status: &ShardStatus, placed: &[NodeId]) -> bool {
    let (mut voters, mut placed) = (status.voters.clone(), placed.to_vec());
    voters.sort_unstable();
    placed.sort_unstable();
    !status.changing && status.learners.is_empty() && voters == placed
}

fn has_caught_up(status: &ShardStatus, node: NodeId) -> bool {
    let matched = status
        .replicas
        .iter()
        .find(|replica| replica.node == node)
        .and_then(|replica| replica.matched);
    status.voters.contains(&node)
        && matched.is_some_and(|at| at + CAUGHT_UP >= status.last_log.unwrap_or(0))
}

impl Node {
    /// Hands a shard's leadership over in order: what was delivered is written down first.
    async fn hand_shard_over(
        self: &Arc<Self>,
        shard: ShardId,
        to: NodeId,
    ) -> Result<(), warren_consensus::ChangeError> {
        let Some(term) = self.shards().status(shard).and_then(|s| s.leading) else {
            return Ok(());
        };
        let (sender, written) = oneshot::channel();
        self.to_shard(shard, ShardMessage::HandingOver(sender));
        // The lane answers when that is in the log, or no longer leads.
        let _ = tokio::time::timeout(WRITTEN_DEADLINE, written).await;
        let result = self.shards().transfer(shard, to).await;
        if result.is_err() {
            self.to_shard(shard, ShardMessage::KeepsLeading { term });
        }
        result
    }

    /// Before this node stops: hands all shards over that it leads, each to a replica that has caught up.
    pub(crate) async fn hand_all_shards_over(self: &Arc<Self>) {
        let until = Instant::now() + HAND_OVER_DEADLINE;
        for (shard, _) in self.leaders().of(self.id()) {
            let Some(status) = self.shards().status(shard) else {
                continue;
            };
            let linked = self.linked();
            let next = status
                .voters
                .iter()
                .copied()
                .find(|n| *n != self.id() && linked.contains(n) && has_caught_up(&status, *n));
            let Some(next) = next else { continue };
            match tokio::time::timeout_at(until, self.hand_shard_over(shard, next)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(shard = shard.0, %error, "a shard's leadership was not handed over; another replica takes it over when this node is gone");
                }
                Err(_) => return,
            }
        }
    }
}
