//! How much memory and disk the log may take at a time.

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Newest log entries kept in memory for replication and consumers, over all groups. Entries that wait for a sync come on top.
    pub tail_cache_bytes: usize,
    /// The most that one sync covers, unless a single call is larger.
    pub batch_bytes: usize,
    /// A segment's size on disk. A batch that is larger gets a segment of its own.
    pub segment_bytes: u64,
    /// Dead segments kept for reuse: writing over them is cheaper than into new space, and never finds a full disk.
    pub spare_segments: usize,
    /// Sealed segments kept open for reads.
    pub open_segments: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tail_cache_bytes: 32 << 20,
            batch_bytes: 8 << 20,
            segment_bytes: 64 << 20,
            spare_segments: 2,
            open_segments: 64,
        }
    }
}
