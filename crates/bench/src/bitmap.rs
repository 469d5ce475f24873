//! A growing set of small numbers, a bit each.

/// The set. Its memory is that of its largest member: an eighth of a byte per number up to there.
#[derive(Clone, Debug, Default)]
pub struct Bitmap {
    words: Vec<u64>,
    count: u64,
}

const BITS: u64 = u64::BITS as u64;

impl Bitmap {
    /// Adds a number; false if it was there already.
    #[inline]
    pub fn insert(&mut self, number: u64) -> bool {
        let word = index(number);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (number % BITS);
        let added = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(added);
        added
    }

    /// Whether a number is in it.
    #[inline]
    pub fn contains(&self, number: u64) -> bool {
        self.words
            .get(index(number))
            .is_some_and(|word| word >> (number % BITS) & 1 == 1)
    }

    /// How many numbers are in it.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Adds all of another set; returns how many were in both.
    pub fn absorb(&mut self, other: &Self) -> u64 {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        let mut shared = 0;
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            shared += u64::from((*mine & theirs).count_ones());
            *mine |= theirs;
        }
        self.count += other.count - shared;
        shared
    }
}

#[inline]
const fn index(number: u64) -> usize {
    (number / BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_tells_what_is_new() {
        let mut set = Bitmap::default();
        assert!(set.insert(64) && set.insert(0) && set.insert(63));
        assert!(!set.insert(64));
        assert_eq!(set.count(), 3);
        assert!(set.contains(63) && !set.contains(65) && !set.contains(1 << 40));
    }

    #[test]
    fn absorb_counts_what_both_have() {
        let (mut left, mut right) = (Bitmap::default(), Bitmap::default());
        for number in [1, 2, 200] {
            left.insert(number);
        }
        for number in [2, 200, 900] {
            right.insert(number);
        }
        assert_eq!(left.absorb(&right), 2);
        assert_eq!(left.count(), 4);
        assert!(left.contains(900) && left.contains(1));
    }
}
