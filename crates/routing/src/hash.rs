//! Hashes of two kinds: fast ones for the in-memory indexes, which may change with any build, and the stable one that decides which
//! queue of an x-consistent-hash exchange gets a key, which may never change.

use crate::slab::NONE;

/// Marks the end of a [`NumberSet`]'s linear part.
const LINEAR: usize = 24;

/// Finalizer of splitmix64: every input bit reaches every output bit.
#[inline]
pub(crate) const fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Both halves of a 128-bit product, folded.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product as u64) ^ ((product >> 64) as u64)
}

/// For indexes only: not stable.
#[inline]
pub(crate) fn bytes(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = fold(bytes.len() as u64 ^ K, 0xa076_1d64_78bd_642f);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        state = fold(state ^ u64::from_le_bytes(word), K);
    }
    let mut word = [0; 8];
    let rest = chunks.remainder();
    word[..rest.len()].copy_from_slice(rest);
    mix(state ^ u64::from_le_bytes(word))
}

/// For indexes only: not stable.
#[inline]
pub(crate) fn pair(a: u32, b: u32) -> u64 {
    mix(u64::from(a) << 32 | u64::from(b))
}

/// The stable hash: 64-bit FNV-1a, then the finalizer of splitmix64. Stored nowhere, but equal on every node and in every release:
/// changing it moves every key of every x-consistent-hash exchange.
#[derive(Clone, Copy)]
pub(crate) struct Stable(u64);

impl Stable {
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub const fn finish(self) -> u64 {
        mix(self.0)
    }
}

/// A set of slab numbers for the length of one call: a list, searched linearly while it is short, and a hash table beside it beyond that.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberSet {
    list: Vec<u32>,
    table: hashbrown::HashTable<u32>,
}

impl NumberSet {
    pub fn clear(&mut self) {
        self.list.clear();
        self.table.clear();
    }

    /// Whether it was not there before.
    pub fn insert(&mut self, number: u32) -> bool {
        debug_assert!(number != NONE);
        if self.list.len() < LINEAR {
            if self.list.contains(&number) {
                return false;
            }
            self.list.push(number);
            return true;
        }
        let hasher = |number: &u32| mix(u64::from(*number));
        if self.table.is_empty() {
            for known in &self.list {
                self.table.insert_unique(hasher(known), *known, hasher);
            }
        }
        if self
            .table
            .find(hasher(&number), |known| *known == number)
            .is_some()
        {
            return false;
        }
        self.table.insert_unique(hasher(&number), number, hasher);
        self.list.push(number);
        true
    }

    pub fn as_slice(&self) -> &[u32] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stable_hash_never_changes() {
        let stable = |text: &str| {
            let mut hash = Stable::new();
            hash.write(text.as_bytes());
            hash.finish()
        };
        assert_eq!(stable(""), 0xf52a_15e9_a9b5_e89b);
        assert_eq!(stable("user1"), 0xbb8f_312a_dded_6059);
        assert_eq!(stable("user2"), 0xc4ca_e7bc_6724_f325);
    }

    #[test]
    fn a_number_set_holds_each_once_short_and_long() {
        let mut set = NumberSet::default();
        for round in 0..2 {
            for number in 0..200 {
                assert_eq!(set.insert(number), round == 0, "{number} in round {round}");
            }
        }
        assert_eq!(set.as_slice().len(), 200);
        set.clear();
        assert!(set.insert(7) && !set.insert(7));
    }
}
