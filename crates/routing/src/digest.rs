//! The table's digest: a 256-bit sum over the hashes of its records, so that it follows each change at constant cost and is the same
//! whatever order the records came in.
//!
//! It tells accidental differences apart (a bug, a broken disk), which is what it is for; it is no defence against somebody who
//! chooses records to cancel out.

/// The sum. Empty table: zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Digest([u64; 4]);

impl Digest {
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let mut carry = false;
        for (sum, word) in self.0.iter_mut().zip(record(key, value)) {
            let (first, over) = sum.overflowing_add(word);
            let (second, again) = first.overflowing_add(u64::from(carry));
            *sum = second;
            carry = over | again;
        }
    }

    pub fn remove(&mut self, key: &[u8], value: &[u8]) {
        let mut borrow = false;
        for (sum, word) in self.0.iter_mut().zip(record(key, value)) {
            let (first, under) = sum.overflowing_sub(word);
            let (second, again) = first.overflowing_sub(u64::from(borrow));
            *sum = second;
            borrow = under | again;
        }
    }

    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// BLAKE3 of the key's length (u32, little endian), the key and the value, as four little-endian words.
fn record(key: &[u8], value: &[u8]) -> [u64; 4] {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&(key.len() as u32).to_le_bytes())
        .update(key)
        .update(value);
    let hash = *hasher.finalize().as_bytes();
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().zip(hash.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(chunk);
        *word = u64::from_le_bytes(bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_ignores_order_and_undoes_itself() {
        let (mut a, mut b) = (Digest::default(), Digest::default());
        for i in 0..100u8 {
            a.add(&[i], b"x");
            b.add(&[99 - i], b"x");
        }
        assert_eq!(a, b);
        b.remove(&[1], b"x");
        assert_ne!(a, b);
        b.add(&[1, b'x'], b"");
        assert_ne!(a, b, "where the key ends counts");
        for i in 0..100u8 {
            a.remove(&[i], b"x");
        }
        assert_eq!(a, Digest::default());
    }
}
