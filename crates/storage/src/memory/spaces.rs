//! The applied state as a simulated disk holds it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Scan, Space, Write};

/// One atomic write.
pub(super) type Batch = Vec<(Space, Vec<Write>)>;

/// Copied on write only while a scan looks at it.
type Keys = Arc<BTreeMap<Bytes, Bytes>>;

#[derive(Debug, Clone, Default)]
pub(super) struct Spaces {
    spaces: BTreeMap<Space, Keys>,
    /// The size of all keys and values.
    pub(super) bytes: u64,
}

/// Bytes that the batch adds.
pub(super) fn bytes_of(batch: &Batch) -> u64 {
    let writes = batch.iter().flat_map(|(_, writes)| writes);
    writes
        .map(|write| match write {
            Write::Put(key, value) => size(key, value),
            Write::Delete(_) | Write::DeleteRange(..) | Write::DeleteAll => 0,
        })
        .sum()
}

impl Spaces {
    pub(super) fn apply(&mut self, batch: &Batch) {
        for (space, writes) in batch {
            let keys = Arc::make_mut(self.spaces.entry(*space).or_default());
            for write in writes {
                self.bytes -= apply(keys, write);
                if let Write::Put(key, value) = write {
                    self.bytes += size(key, value);
                }
            }
        }
    }

    pub(super) fn get(&self, space: Space, key: &[u8]) -> Option<Bytes> {
        self.spaces.get(&space)?.get(key).cloned()
    }

    pub(super) fn scan(&self, space: Space, from: &[u8], until: Option<&[u8]>) -> Scan {
        let keys = self.spaces.get(&space).cloned().unwrap_or_default();
        let until = until.map(Bytes::copy_from_slice);
        let mut after = Bound::Included(Bytes::copy_from_slice(from));
        Box::new(std::iter::from_fn(move || {
            let (key, value) = keys.range((after.clone(), Bound::Unbounded)).next()?;
            if until.as_ref().is_some_and(|until| key >= until) {
                return None;
            }
            after = Bound::Excluded(key.clone());
            Some(Ok((key.clone(), value.clone())))
        }))
    }
}

/// Applies a write and returns how many bytes it removed.
fn apply(keys: &mut BTreeMap<Bytes, Bytes>, write: &Write) -> u64 {
    match write {
        Write::Put(key, value) => {
            let old = keys.insert(key.clone(), value.clone());
            old.map_or(0, |old| size(key, &old))
        }
        Write::Delete(key) => keys.remove(key).map_or(0, |old| size(key, &old)),
        Write::DeleteRange(from, until) => {
            let mut removed = keys.split_off(from);
            if from < until {
                keys.append(&mut removed.split_off(until));
            } else {
                keys.append(&mut removed);
            }
            sizes(&removed)
        }
        Write::DeleteAll => sizes(&std::mem::take(keys)),
    }
}

fn sizes(keys: &BTreeMap<Bytes, Bytes>) -> u64 {
    keys.iter().map(|(key, value)| size(key, value)).sum()
}

fn size(key: &Bytes, value: &Bytes) -> u64 {
    (key.len() + value.len()) as u64
}
