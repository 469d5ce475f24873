//! Feeds a replicated queue with messages that it has not seen yet: from the newest entries' payloads, the log, or the store.
//!
//! Cost: an entry is read once for a run of its messages. Reading blocks on the disk only where neither our caches nor the system's have the bytes.

use super::Replicated;
use crate::hosted::Hosted;
use crate::keep;
use crate::node::Node;
use crate::outbox::Outbox;
use bytes::Bytes;
use std::sync::Arc;
use warren_model::{QueueId, ShardId};
use warren_queue::entry::record_at;
use warren_queue::index::{Extent, Index, Location};
use warren_queue::{Delivery, Queue};

/// Record bytes that a queue is fed at once.
const FEED_BYTES: usize = 1 << 20;

pub(super) struct Feeder<'a> {
    pub(super) node: &'a Arc<Node>,
    pub(super) shard: ShardId,
    pub(super) hosted: &'a Hosted,
    pub(super) queue: QueueId,
    pub(super) index: &'a Index,
}

impl Feeder<'_> {
    /// Feeds a piece, and returns the position behind it.
    pub(super) fn feed(
        &self,
        queue: &mut Queue,
        replicated: &mut Replicated,
        outbox: &mut Outbox,
    ) -> u64 {
        let (mut fed_to, mut bytes) = (replicated.fed_to, 0);
        let mut sealed: Option<Bytes> = None;
        'feeding: for extent in self.index.extents_from(fed_to) {
            let from = fed_to.saturating_sub(extent.first) as u32;
            let entry = match extent.location {
                Location::Entry { index, .. } => match self.payload(index) {
                    Some(payload) => Some(payload),
                    None => break,
                },
                Location::Stored => None,
            };
            for n in (from..extent.count).filter(|n| extent.has(*n)) {
                let position = extent.first + u64::from(n);
                if bytes >= FEED_BYTES {
                    break 'feeding;
                }
                if replicated.settling.contains(&position) {
                    fed_to = position + 1;
                    continue;
                }
                let Some((block, offset, len)) = self.record(extent, entry.as_ref(), n) else {
                    tracing::error!(
                        shard = self.shard.0,
                        queue = self.queue.0,
                        position,
                        "a message's record cannot be read"
                    );
                    break 'feeding;
                };
                if sealed.as_ref().is_none_or(|b| b.as_ptr() != block.as_ptr())
                    && let Some(last) = sealed.replace(block.clone())
                {
                    queue.seal(&last);
                }
                let record = Delivery {
                    position,
                    redelivered: position < replicated.inherited
                        || self.index.returns(position) > 0,
                    block: &block,
                    offset,
                    len,
                };
                let held = replicated.holds.remove(&position);
                queue.feed(position, &record, held, outbox);
                bytes += len as usize;
                fed_to = position + 1;
            }
            fed_to = fed_to.max(extent.end());
        }
        if let Some(last) = sealed {
            queue.seal(&last);
        }
        if bytes < FEED_BYTES && self.index.live_from(fed_to) == 0 {
            // Nothing is left behind: what lay there is gone.
            fed_to = self.index.next();
        }
        fed_to
    }

    fn payload(&self, index: u64) -> Option<Bytes> {
        if let Some(payload) = self.hosted.recent.get(index) {
            return Some(payload.clone());
        }
        match self.node.shards().read(self.shard, index) {
            Ok(Some(payload)) => Some(payload),
            Ok(None) => {
                tracing::error!(
                    shard = self.shard.0,
                    index,
                    "an entry that holds messages is missing from the log"
                );
                None
            }
            Err(error) => {
                tracing::error!(shard = self.shard.0, index, %error, "an entry of the log cannot be read");
                None
            }
        }
    }

    fn record(&self, extent: &Extent, entry: Option<&Bytes>, n: u32) -> Option<(Bytes, u32, u32)> {
        match (extent.location, entry) {
            (
                Location::Entry {
                    items_at, block_at, ..
                },
                Some(payload),
            ) => {
                let (offset, len) = record_at(payload, items_at, block_at, n)?;
                Some((payload.clone(), offset, len))
            }
            (Location::Stored | Location::Entry { .. }, _) => {
                let key = keep::message_key(
                    self.shard,
                    self.hosted.generation,
                    self.queue,
                    extent.first + u64::from(n),
                );
                let record = self.node.stored_message(&key)?;
                let len = u32::try_from(record.len()).ok()?;
                Some((record, 0, len))
            }
        }
    }
}
