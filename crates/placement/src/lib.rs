//! Placement: which node owns what, as a pure function of the cluster's members.
//!
//! Members stand on a consistent-hash ring, each with [`VNODES`] virtual nodes at positions made from its *name*, so that a replaced node takes
//! its predecessor's place. A shard (or a non-replicated queue) has a position too; it belongs to the members met from there on clockwise.
//!
//! Flow: the routing table's members make a [`Ring`] for each epoch; the node asks it for replicas, preferred owners, present owners and the
//! place of a new non-replicated queue; the admin CLI asks [`Ring::plan`] what a change would move, before it is made.
//!
//! Invariants:
//! - Equal members, whatever their order, make equal rings, on every node and in every release: [`hash`] never changes.
//! - A member marked down stays on the ring: its share goes to the next members up, everything else stays, and when it comes back exactly its
//!   share returns. A member that joins takes about its fair share and nothing else moves.
//!
//! Cost: a ring of n members takes n × 128 × 16 bytes; a look-up is a binary search and a short walk.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ring;

pub use ring::{Member, Move, REPLICAS, Ring, VNODES, Vnode};

use warren_model::ShardId;

/// The stable hash of placement: 64-bit FNV-1a over the parts, each followed by its length (u64, little endian), then the finalizer of
/// splitmix64. Changing it would move shards between nodes and queues between shards.
pub fn hash(parts: &[&[u8]]) -> u64 {
    let mut state: u64 = 0xcbf2_9ce4_8422_2325;
    let mut write = |bytes: &[u8]| {
        for byte in bytes {
            state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for part in parts {
        write(part);
        write(&(part.len() as u64).to_le_bytes());
    }
    state ^= state >> 30;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^= state >> 27;
    state = state.wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The shard of a queue that asks for none in particular. A queue keeps the shard that it got when it was declared.
///
/// # Panics
/// If `shards` is 0: a cluster has at least one.
pub fn shard_of(vhost: &str, name: &str, shards: u16) -> ShardId {
    assert!(shards > 0, "a cluster has at least one shard");
    // The upper half of a 128-bit product spreads the hash over 0..shards without the bias of a remainder.
    let spread =
        u128::from(hash(&[b"queue", vhost.as_bytes(), name.as_bytes()])) * u128::from(shards);
    ShardId((spread >> 64) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_never_changes() {
        assert_eq!(hash(&[]), 0xf52a_15e9_a9b5_e89b);
        assert_eq!(hash(&[b"queue", b"/", b"q1"]), 0xe585_8704_863e_7ccd);
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
        assert_eq!(shard_of("/", "q1", 64), ShardId(57));
    }

    #[test]
    fn queues_spread_evenly_over_shards() {
        let mut counts = [0u32; 64];
        for i in 0..64_000 {
            counts[usize::from(shard_of("/", &format!("queue-{i}"), 64).0)] += 1;
        }
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
    }
}
