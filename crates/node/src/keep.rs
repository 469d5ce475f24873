//! How a shard's state lies in the node's state store, and as a view in what is sent to another node.
//!
//! Keys in [`Space::Queue`], numbers big endian; a shard's state is that of its current generation:
//! ```text
//! shard (2) 'c'                         -> generation (4)
//! shard (2) 'g' generation (4) 'p'      -> applied (8) position           as the shard's group gave it
//! shard (2) 'g' generation (4) 's'      -> version (1) { node (8) incarnation (8) number (8) batch (8) }*
//! shard (2) 'g' generation (4) 'q' queue (8) -> the queue's index
//! ```
//! in [`Space::Message`]: `shard (2) generation (4) queue (8) position (8) -> record`. A view has the same without shard and generation:
//! `'a' -> applied`, `'s'`, `'q' queue`, `'m' queue position`.
//! Invariant: the current generation changes in the same write that completes a state: an interrupted transfer leaves nothing that is read.

use crate::hosted::Hosted;
use bytes::Bytes;
use warren_model::planted;
use warren_model::{Incarnation, NodeId, QueueId, SessionId, ShardId};
use warren_queue::index::Index;
use warren_queue::shard::Shard;
use warren_storage::{Place, Space, StateStore, StorageError, Write};

const VERSION: u8 = 1;
const CURRENT: u8 = b'c';
const GENERATION: u8 = b'g';
const POSITION: u8 = b'p';
/// Sessions' last batches; also in a view.
pub(crate) const SESSIONS: u8 = b's';
/// A queue's index; also in a view.
pub(crate) const QUEUE: u8 = b'q';
/// A message of a view.
pub(crate) const MESSAGE: u8 = b'm';
/// The entry applied last, in a view.
pub(crate) const APPLIED: u8 = b'a';

fn shard_key(shard: ShardId, kind: u8) -> Vec<u8> {
    let mut key = shard.0.to_be_bytes().to_vec();
    key.push(kind);
    key
}

/// First bytes of the keys of a generation.
fn generation_key(shard: ShardId, generation: u32) -> Vec<u8> {
    let mut key = shard_key(shard, GENERATION);
    key.extend_from_slice(&generation.to_be_bytes());
    key
}

/// The key that follows all with this beginning.
fn behind(mut key: Vec<u8>) -> Bytes {
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            break;
        }
    }
    key.into()
}

fn part(shard: ShardId, generation: u32, kind: u8) -> Vec<u8> {
    let mut key = generation_key(shard, generation);
    key.push(kind);
    key
}

fn queue_key(shard: ShardId, generation: u32, queue: QueueId) -> Bytes {
    let mut key = part(shard, generation, QUEUE);
    key.extend_from_slice(&queue.0.to_be_bytes());
    key.into()
}

fn messages_key(shard: ShardId, generation: u32) -> Vec<u8> {
    let mut key = shard.0.to_be_bytes().to_vec();
    key.extend_from_slice(&generation.to_be_bytes());
    key
}

/// Key of a message in the store.
pub(crate) fn message_key(
    shard: ShardId,
    generation: u32,
    queue: QueueId,
    position: u64,
) -> Vec<u8> {
    let mut key = messages_key(shard, generation);
    key.extend_from_slice(&queue.0.to_be_bytes());
    key.extend_from_slice(&position.to_be_bytes());
    key
}

/// Deletes a queue's messages from one position up to another.
pub(crate) fn delete_messages(
    shard: ShardId,
    generation: u32,
    queue: QueueId,
    from: u64,
    until: u64,
) -> Write {
    Write::DeleteRange(
        message_key(shard, generation, queue, from).into(),
        message_key(shard, generation, queue, until).into(),
    )
}

/// Deletes a generation, or what there is of it.
pub(crate) fn delete_generation(shard: ShardId, generation: u32) -> Vec<(Space, Vec<Write>)> {
    let state = generation_key(shard, generation);
    let messages = messages_key(shard, generation);
    vec![
        (
            Space::Queue,
            vec![Write::DeleteRange(state.clone().into(), behind(state))],
        ),
        (
            Space::Message,
            vec![Write::DeleteRange(
                messages.clone().into(),
                behind(messages),
            )],
        ),
    ]
}

/// Deletes all there is of a shard.
pub(crate) fn delete_shard(shard: ShardId) -> Vec<(Space, Vec<Write>)> {
    let all = || {
        let key = shard.0.to_be_bytes().to_vec();
        vec![Write::DeleteRange(key.clone().into(), behind(key))]
    };
    vec![(Space::Queue, all()), (Space::Message, all())]
}

/// Says which generation is the state, and of which position it is.
pub(crate) fn put_position(
    shard: ShardId,
    generation: u32,
    applied: u64,
    position: &[u8],
) -> Vec<Write> {
    let mut value = applied.to_be_bytes().to_vec();
    value.extend_from_slice(position);
    vec![
        Write::Put(part(shard, generation, POSITION).into(), value.into()),
        Write::Put(
            shard_key(shard, CURRENT).into(),
            Bytes::copy_from_slice(&generation.to_be_bytes()),
        ),
    ]
}

pub(crate) fn put_sessions(shard: ShardId, generation: u32, value: Bytes) -> Write {
    Write::Put(part(shard, generation, SESSIONS).into(), value)
}

pub(crate) fn put_queue(shard: ShardId, generation: u32, queue: QueueId, value: Bytes) -> Write {
    Write::Put(queue_key(shard, generation, queue), value)
}

pub(crate) fn delete_queue(shard: ShardId, generation: u32, queue: QueueId) -> Write {
    Write::Delete(queue_key(shard, generation, queue))
}

/// A record of a view, as a write of a generation. None if it is no record.
pub(crate) fn staged(
    shard: ShardId,
    generation: u32,
    key: &[u8],
    value: Bytes,
) -> Option<(Space, Write)> {
    let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    let (kind, rest) = key.split_first()?;
    Some(match *kind {
        APPLIED => {
            let key = part(shard, generation, APPLIED);
            (Space::Queue, Write::Put(key.into(), value))
        }
        SESSIONS => (Space::Queue, put_sessions(shard, generation, value)),
        QUEUE => {
            let queue = QueueId(number(rest)?);
            (Space::Queue, put_queue(shard, generation, queue, value))
        }
        MESSAGE => {
            let (queue, position) = rest.split_at_checked(8)?;
            let (queue, position) = (QueueId(number(queue)?), number(position)?);
            let key = message_key(shard, generation, queue, position);
            (Space::Message, Write::Put(key.into(), value))
        }
        _ => return None,
    })
}

/// The entry that a staged view had applied last.
pub(crate) fn staged_applied(
    store: &dyn StateStore,
    shard: ShardId,
    generation: u32,
) -> Result<u64, StorageError> {
    let key = part(shard, generation, APPLIED);
    let value = store.get(Space::Queue, &key)?;
    value
        .and_then(|value| Some(u64::from_be_bytes(value[..].try_into().ok()?)))
        .ok_or_else(|| damaged(&key, "the staged view does not say what it has applied"))
}

pub(crate) fn encode_sessions(sessions: impl Iterator<Item = (SessionId, u64)>) -> Vec<u8> {
    let mut out = vec![VERSION];
    for (session, batch) in sessions {
        for n in [session.node.0, session.incarnation.0, session.number, batch] {
            out.extend_from_slice(&n.to_be_bytes());
        }
    }
    out
}

fn decode_sessions(value: &[u8]) -> Option<Vec<(SessionId, u64)>> {
    let (&version, rest) = value.split_first()?;
    if version != VERSION || !rest.len().is_multiple_of(32) {
        return None;
    }
    let number = |bytes: &[u8], at: usize| -> Option<u64> {
        Some(u64::from_be_bytes(bytes[at..at + 8].try_into().ok()?))
    };
    rest.chunks_exact(32)
        .map(|s| {
            let session = SessionId {
                node: NodeId(number(s, 0)?),
                incarnation: Incarnation(number(s, 8)?),
                number: number(s, 16)?,
            };
            Some((session, number(s, 24)?))
        })
        .collect()
}

fn damaged(key: &[u8], what: &str) -> StorageError {
    StorageError::Corrupt {
        what: format!("{what} (key {})", key.escape_ascii()),
        place: Place::State {
            space: Space::Queue,
        },
    }
}

/// Whether a state was kept.
pub(crate) fn is_kept(store: &dyn StateStore, shard: ShardId) -> Result<bool, StorageError> {
    let current = store.get(Space::Queue, &shard_key(shard, CURRENT))?;
    Ok(current.is_some())
}

/// The state that was kept, and its position. None if nothing was.
pub(crate) fn load(
    store: &dyn StateStore,
    shard: ShardId,
) -> Result<Option<(Hosted, Bytes)>, StorageError> {
    let key = shard_key(shard, CURRENT);
    let Some(current) = store.get(Space::Queue, &key)? else {
        return Ok(None);
    };
    let generation = current[..]
        .try_into()
        .map(u32::from_be_bytes)
        .map_err(|_| damaged(&key, "no generation"))?;
    let (mut queues, mut sessions, mut position) = (Vec::new(), Vec::new(), None);
    let prefix = generation_key(shard, generation);
    let until = behind(prefix.clone());
    for record in store.scan_range(Space::Queue, &prefix, Some(&until))? {
        let (key, value) = record?;
        match key[prefix.len()..].split_first() {
            Some((&QUEUE, id)) => {
                let id = id
                    .try_into()
                    .map(u64::from_be_bytes)
                    .map_err(|_| damaged(&key, "no queue id"))?;
                let index =
                    Index::decode(&value).ok_or_else(|| damaged(&key, "no index of a queue"))?;
                queues.push((QueueId(id), index));
            }
            Some((&SESSIONS, [])) => {
                sessions =
                    decode_sessions(&value).ok_or_else(|| damaged(&key, "no list of sessions"))?;
            }
            Some((&POSITION, [])) => {
                let (applied, rest) = value
                    .split_first_chunk::<8>()
                    .ok_or_else(|| damaged(&key, "no position"))?;
                position = Some((u64::from_be_bytes(*applied), Bytes::copy_from_slice(rest)));
            }
            Some((&APPLIED, [])) => {}
            Some(_) | None => return Err(damaged(&key, "unknown record of a shard")),
        }
    }
    let (applied, position) =
        position.ok_or_else(|| damaged(&prefix, "the position is missing"))?;
    let stored = queues
        .iter()
        .filter(|(_, index)| index.has_stored())
        .map(|(id, _)| (*id, 0))
        .collect();
    if planted!(IndexesNotRestored) {
        queues.clear();
    }
    let hosted = Hosted {
        state: Shard::restore(queues, sessions, applied),
        generation,
        stored,
        ..Hosted::default()
    };
    Ok(Some((hosted, position)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_read_back_and_cuts_are_refused() {
        let session = |number| SessionId {
            node: NodeId(1 << 60),
            incarnation: Incarnation(3),
            number,
        };
        let all = vec![(session(1), 7), (session(u64::MAX), 1)];
        let bytes = encode_sessions(all.iter().copied());
        assert_eq!(decode_sessions(&bytes), Some(all));
        assert_eq!(decode_sessions(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_sessions(&[2]), None);
        assert_eq!(decode_sessions(&[]), None);
    }

    #[test]
    fn a_generation_ends_before_the_next() {
        let end = behind(generation_key(ShardId(1), 0xff));
        assert!(queue_key(ShardId(1), 0xff, QueueId(u64::MAX)) < end);
        assert!(part(ShardId(1), 0x100, POSITION).as_slice() >= &end[..]);
        assert_eq!(behind(vec![1, 0xff]), Bytes::from_static(&[2]));
    }
}
