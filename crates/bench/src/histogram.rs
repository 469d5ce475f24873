//! Times in microseconds, counted in buckets a sixteenth apart.

/// The counts. Values are told to within 6 percent.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u32,
}

/// Buckets per doubling, as a power of two.
const SUB_BITS: u32 = 4;
const BUCKETS: usize = ((u32::BITS - SUB_BITS + 1) << SUB_BITS) as usize;

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: vec![0; BUCKETS],
            count: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value_us: u32) {
        self.buckets[bucket(value_us)] += 1;
        self.count += 1;
        self.max = self.max.max(value_us);
    }

    /// Adds another's counts.
    pub fn absorb(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// The value that `share` (0 to 1) of all values do not exceed; `None` if there are none.
    pub fn percentile_us(&self, share: f64) -> Option<u32> {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            below += count;
            if below >= rank {
                return Some(ceiling(bucket).min(self.max));
            }
        }
        None
    }

    /// The largest value.
    pub const fn max_us(&self) -> u32 {
        self.max
    }
}

/// Small values have a bucket each; then each doubling has the same number of buckets.
#[inline]
const fn bucket(value: u32) -> usize {
    let Some(log) = value.checked_ilog2() else {
        return 0;
    };
    if log < SUB_BITS {
        return value as usize;
    }
    let shift = log - SUB_BITS;
    (((shift + 1) << SUB_BITS) + (value >> shift) - (1 << SUB_BITS)) as usize
}

/// The largest value of a bucket.
fn ceiling(bucket: usize) -> u32 {
    let (group, rest) = (bucket >> SUB_BITS, bucket & ((1 << SUB_BITS) - 1));
    let value = match group.checked_sub(1) {
        None => bucket as u64,
        Some(shift) => (((1 << SUB_BITS) + rest + 1) as u64) << shift,
    };
    let value = if group == 0 { value } else { value - 1 };
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in (0..5000).chain([65_535, 65_536, 1 << 30, u32::MAX - 1, u32::MAX]) {
            let at = bucket(value);
            assert!(value <= ceiling(at), "{value}");
            assert!(at == 0 || value > ceiling(at - 1), "{value}");
        }
        assert!(bucket(u32::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_near() {
        let mut times = Histogram::default();
        assert_eq!(times.percentile_us(0.5), None);
        for value in 1..=1000 {
            times.record(value);
        }
        let median = times.percentile_us(0.5).unwrap();
        assert!((500..=531).contains(&median), "{median}");
        assert_eq!(times.percentile_us(1.0), Some(1000));
    }
}
