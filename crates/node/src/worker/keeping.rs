//! The part of a lane that keeps its shards' states: checkpoints, views for other nodes, and what may go from the log.
//!
//! Flow: when enough was applied ([`Worker::reclaim`]), messages of the oldest entries are moved to the store if the log has grown long, and the shard's group
//! is told what it may purge; it asks for a checkpoint first. Only what has changed is written.
//! Cost: a short-lived message is never written here: its entry is purged when it is gone.

use super::Worker;
use crate::hosted::Hosted;
use crate::keep;
use crate::node::Node;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;
use warren_model::planted;
use warren_model::{QueueId, ShardId};
use warren_queue::entry::record_at;
use warren_queue::index::{Extent, Index, Location};
use warren_storage::{Place, Scan, Space, StateStore, StorageError, Write};

/// A replica that is behind may hold up so many times what a log may have.
const LAG_LOGS: u64 = 16;

type Done = oneshot::Sender<Result<(), StorageError>>;

impl Worker {
    fn store(&self) -> Arc<dyn StateStore> {
        self.node.storage().state()
    }

    /// Frees log space when enough has been applied.
    pub(super) fn reclaim(&mut self, shard: ShardId) {
        let node = self.node.clone();
        let limits = node.settings().logs;
        let Some(hosted) = self.shards.get_mut(&shard) else {
            return;
        };
        if hosted.unkept_bytes < limits.checkpoint_bytes || hosted.is_viewed() {
            return;
        }
        hosted.unkept_bytes = 0;
        if let Some(through) = hosted.too_old(limits.log_bytes_max)
            && let Err(error) = move_to_store(&node, shard, hosted, through)
        {
            tracing::error!(shard = shard.0, %error, "messages could not be moved from the log to the store; the log keeps them");
            return;
        }
        let unused = hosted
            .state
            .oldest_entry()
            .filter(|_| !planted!(ReleasedTooEarly))
            .map_or(hosted.state.applied(), |oldest| oldest.saturating_sub(1));
        let unused = hosted
            .lagging(&node, shard, limits.log_bytes_max)
            .map_or(unused, |matched| unused.min(matched));
        while let Some(&(index, bytes)) = hosted.log.front()
            && index <= unused
        {
            hosted.log.pop_front();
            hosted.log_bytes -= u64::from(bytes);
        }
        node.shards().release(shard, unused);
    }

    /// Makes the state durable, together with its position.
    pub(super) fn checkpoint(&mut self, shard: ShardId, position: &[u8], done: Done) {
        let store = self.store();
        let Some(hosted) = self.shards.get_mut(&shard) else {
            let _ = done.send(Err(StorageError::Closed));
            return;
        };
        let (state, messages) = hosted.changes(shard, position);
        let written = store.write_spaces(vec![(Space::Message, messages), (Space::Queue, state)]);
        sync_then(&self.node, store, written, done);
    }

    /// Makes a view that stands for the state as it is now.
    pub(super) fn view(
        &mut self,
        shard: ShardId,
        done: oneshot::Sender<Result<Scan, StorageError>>,
    ) {
        let Some(hosted) = self.shards.get_mut(&shard) else {
            let _ = done.send(Err(StorageError::Closed));
            return;
        };
        let held = Arc::new(());
        hosted.views.push(Arc::downgrade(&held));
        let sessions = hosted.state.sessions();
        let sessions = keep::encode_sessions(sessions.filter(|_| !planted!(DedupLostInView)));
        let mut first = VecDeque::new();
        let applied = hosted.state.applied().to_be_bytes();
        first.push_back(Ok((
            Bytes::from_static(&[keep::APPLIED]),
            Bytes::copy_from_slice(&applied),
        )));
        first.push_back(Ok((Bytes::from_static(&[keep::SESSIONS]), sessions.into())));
        let view = View {
            node: self.node.clone(),
            shard,
            generation: hosted.generation,
            queues: hosted
                .state
                .queues()
                .map(|(id, index)| (id, index.clone()))
                .collect(),
            extents: VecDeque::new(),
            queue: QueueId::default(),
            ready: first,
            _held: held,
        };
        let _ = done.send(Ok(Box::new(view)));
    }

    /// Records of another node's view.
    pub(super) fn stage(
        &mut self,
        shard: ShardId,
        records: Vec<(Bytes, Bytes)>,
        first: bool,
        done: Done,
    ) {
        let store = self.store();
        let Some(hosted) = self.shards.get_mut(&shard) else {
            let _ = done.send(Err(StorageError::Closed));
            return;
        };
        let generation = hosted.generation + 1;
        let mut batches = Vec::new();
        if first {
            batches = keep::delete_generation(shard, generation);
            hosted.staged = true;
        } else if !hosted.staged {
            let _ = done.send(Err(incomplete()));
            return;
        }
        for (key, value) in records {
            match keep::staged(shard, generation, &key, value) {
                Some((space, write)) => batches.push((space, vec![write])),
                None => {
                    let what = format!("unknown record {} of a shard's view", key.escape_ascii());
                    let place = Place::State {
                        space: Space::Queue,
                    };
                    let _ = done.send(Err(StorageError::Corrupt { what, place }));
                    return;
                }
            }
        }
        let _ = done.send(store.write_spaces(batches));
    }

    /// What was staged is the state from now on.
    pub(super) fn install(&mut self, shard: ShardId, position: &[u8], done: Done) {
        let store = self.store();
        let Some(hosted) = self.shards.get(&shard).filter(|hosted| hosted.staged) else {
            let _ = done.send(Err(incomplete()));
            return;
        };
        let before = hosted.generation;
        let generation = before + 1;
        let install = || {
            let applied = keep::staged_applied(&*store, shard, generation)?;
            let mut batches = keep::delete_generation(shard, before);
            batches.push((
                Space::Queue,
                keep::put_position(shard, generation, applied, position),
            ));
            store.write_spaces(batches)?;
            keep::load(&*store, shard)
        };
        let installed = install();
        let written = match installed {
            Ok(Some((hosted, _))) => {
                self.follow(shard);
                self.shards.insert(shard, hosted);
                Ok(())
            }
            Ok(None) => Err(StorageError::Closed),
            Err(error) => Err(error),
        };
        sync_then(&self.node, store, written, done);
    }

    /// Entries follow the state as it is: what was staged of a view will not replace it.
    pub(super) fn drop_staged(&mut self, shard: ShardId) {
        let store = self.store();
        if let Some(hosted) = self.shards.get_mut(&shard)
            && std::mem::take(&mut hosted.staged)
            && let Err(error) =
                store.write_spaces(keep::delete_generation(shard, hosted.generation + 1))
        {
            tracing::warn!(shard = shard.0, %error, "what was sent of a state that is not used could not be deleted");
        }
    }

    /// This node is no replica any more.
    pub(super) fn forget(&mut self, shard: ShardId) {
        self.shards.remove(&shard);
        if let Err(error) = self.store().write_spaces(keep::delete_shard(shard)) {
            tracing::warn!(shard = shard.0, %error, "what a shard that has moved away left here could not be deleted");
        }
    }
}

/// The beginning of a view was dropped, or never came: its sender starts over.
fn incomplete() -> StorageError {
    StorageError::Corrupt {
        what: "parts of a shard's view are missing".into(),
        place: Place::State {
            space: Space::Queue,
        },
    }
}

/// Syncs the store where that holds up nobody, and answers.
fn sync_then(
    node: &Arc<Node>,
    store: Arc<dyn StateStore>,
    written: Result<(), StorageError>,
    done: Done,
) {
    match written {
        Ok(()) => node.in_background(move || drop(done.send(store.sync()))),
        // Whoever asked has gone, or stops the group.
        Err(error) => drop(done.send(Err(error))),
    }
}

impl Hosted {
    /// The entry through which messages are to move to the store, if the log has grown too long.
    fn too_old(&self, log_bytes_max: u64) -> Option<u64> {
        let mut over = self.log_bytes.checked_sub(log_bytes_max)?;
        for &(index, bytes) in &self.log {
            over = over.saturating_sub(u64::from(bytes));
            if over == 0 {
                return Some(index);
            }
        }
        None
    }

    /// Where the log of a replica ends that is linked and behind, if this node leads: what it lacks stays, or it would have to be sent the whole state again and
    /// again, since more is purged while that is on its way. One that is very far behind holds up nothing.
    fn lagging(&self, node: &Node, shard: ShardId, log_bytes_max: u64) -> Option<u64> {
        self.leading.as_ref()?;
        let (status, linked) = (node.shards().status(shard)?, node.linked());
        let least = status
            .replicas
            .iter()
            .filter(|replica| linked.contains(&replica.node))
            .map(|replica| replica.matched.unwrap_or(0))
            .min()?;
        let lacks = self
            .log
            .iter()
            .rev()
            .take_while(|(index, _)| *index > least);
        let bytes: u64 = lacks.map(|(_, bytes)| u64::from(*bytes)).sum();
        // To send the whole state instead pays only where that is smaller.
        let state: u64 = self.state.queues().map(|(_, index)| index.bytes()).sum();
        (bytes <= log_bytes_max.saturating_mul(LAG_LOGS).max(state)).then_some(least)
    }

    /// What has changed since the last checkpoint, for the spaces of state and of messages.
    fn changes(&mut self, shard: ShardId, position: &[u8]) -> (Vec<Write>, Vec<Write>) {
        let generation = self.generation;
        let may_delete = !self.is_viewed();
        let (mut state, mut messages) = (Vec::new(), Vec::new());
        for id in self.state.take_dropped() {
            state.push(keep::delete_queue(shard, generation, id));
            if self.stored.remove(&id).is_some() {
                messages.push(keep::delete_messages(shard, generation, id, 0, u64::MAX));
            }
        }
        let applied = self.state.applied();
        for (id, index) in self.state.queues_mut() {
            if !index.take_dirty() || planted!(CheckpointBeforeIndexes) {
                continue;
            }
            state.push(keep::put_queue(
                shard,
                generation,
                id,
                index.encode().into(),
            ));
            if let Some(deleted) = self.stored.get_mut(&id)
                && may_delete
                && *deleted < index.first()
            {
                messages.push(keep::delete_messages(
                    shard,
                    generation,
                    id,
                    *deleted,
                    index.first(),
                ));
                *deleted = index.first();
            }
        }
        let sessions = keep::encode_sessions(self.state.sessions());
        state.push(keep::put_sessions(shard, generation, sessions.into()));
        state.extend(keep::put_position(shard, generation, applied, position));
        (state, messages)
    }
}

/// Copies the messages of entries up to `through` that are still there to the store.
fn move_to_store(
    node: &Arc<Node>,
    shard: ShardId,
    hosted: &mut Hosted,
    through: u64,
) -> Result<(), StorageError> {
    let store = node.storage().state();
    let generation = hosted.generation;
    let mut moved = 0u64;
    for (queue, index) in hosted.state.queues_mut() {
        let before = index.clone();
        let extents = index.moved_to_store(through);
        if extents.is_empty() {
            continue;
        }
        let mut writes = Vec::new();
        for extent in &extents {
            let Location::Entry { index: entry, .. } = extent.location else {
                continue;
            };
            let payload = match read_entry(node, shard, entry) {
                Ok(payload) => payload,
                Err(error) => {
                    *index = before;
                    return Err(error);
                }
            };
            for (position, record) in records_of(extent, &payload) {
                moved += 1;
                let key = keep::message_key(shard, generation, queue, position);
                writes.push(Write::Put(key.into(), record));
            }
        }
        if planted!(StoredMessagesLost) {
            writes.clear();
        }
        if let Err(error) = store.write(Space::Message, writes) {
            *index = before;
            return Err(error);
        }
        hosted.stored.entry(queue).or_insert(0);
    }
    tracing::debug!(
        shard = shard.0,
        through,
        moved,
        "messages moved from the log to the store"
    );
    Ok(())
}

fn read_entry(node: &Arc<Node>, shard: ShardId, index: u64) -> Result<Bytes, StorageError> {
    node.shards()
        .read(shard, index)?
        .ok_or_else(|| StorageError::Corrupt {
            what: "an entry that holds messages is missing".into(),
            place: Place::LogEntry {
                group: u64::from(shard.0) + 1,
                index,
            },
        })
}

/// Positions and records of an extent's messages that are still there.
fn records_of<'a>(
    extent: &'a Extent,
    payload: &'a Bytes,
) -> impl Iterator<Item = (u64, Bytes)> + 'a {
    (0..extent.count)
        .filter(|n| extent.has(*n))
        .filter_map(move |n| {
            let Location::Entry {
                items_at, block_at, ..
            } = extent.location
            else {
                return None;
            };
            let (start, len) = record_at(payload, items_at, block_at, n)?;
            let record = payload.slice(start as usize..(start + len) as usize);
            Some((extent.first + u64::from(n), record))
        })
}

/// A shard's state, read as it is sent.
struct View {
    node: Arc<Node>,
    shard: ShardId,
    generation: u32,
    queues: VecDeque<(QueueId, Index)>,
    /// Extents of the queue that is being read.
    extents: VecDeque<Extent>,
    queue: QueueId,
    ready: VecDeque<Result<(Bytes, Bytes), StorageError>>,
    /// While it is there, nothing goes from log or store that the view refers to.
    _held: Arc<()>,
}

impl View {
    fn message(&self, position: u64, record: Bytes) -> (Bytes, Bytes) {
        let mut key = vec![keep::MESSAGE];
        key.extend_from_slice(&self.queue.0.to_be_bytes());
        key.extend_from_slice(&position.to_be_bytes());
        (key.into(), record)
    }

    fn read(&self, extent: &Extent) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        if let Location::Entry { index, .. } = extent.location {
            let payload = read_entry(&self.node, self.shard, index)?;
            return Ok(records_of(extent, &payload)
                .map(|(position, record)| self.message(position, record))
                .collect());
        }
        let store = self.node.storage().state();
        let mut records = Vec::new();
        for n in (0..extent.count).filter(|n| extent.has(*n)) {
            let position = extent.first + u64::from(n);
            let key = keep::message_key(self.shard, self.generation, self.queue, position);
            let record = store
                .get(Space::Message, &key)?
                .ok_or_else(|| StorageError::Corrupt {
                    what: format!(
                        "message {position} of queue {} of shard {} is missing",
                        self.queue.0, self.shard.0
                    ),
                    place: Place::State {
                        space: Space::Message,
                    },
                })?;
            records.push(self.message(position, record));
        }
        Ok(records)
    }
}

impl Iterator for View {
    type Item = Result<(Bytes, Bytes), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Some(record);
            }
            if let Some(extent) = self.extents.pop_front() {
                match self.read(&extent) {
                    Ok(records) => self.ready.extend(records.into_iter().map(Ok)),
                    Err(error) => {
                        self.queues.clear();
                        self.extents.clear();
                        return Some(Err(error));
                    }
                }
                continue;
            }
            let (queue, index) = self.queues.pop_front()?;
            self.queue = queue;
            let mut key = vec![keep::QUEUE];
            key.extend_from_slice(&queue.0.to_be_bytes());
            self.ready
                .push_back(Ok((key.into(), index.all_stored().encode().into())));
            self.extents = index.extents_from(0).cloned().collect();
        }
    }
}
