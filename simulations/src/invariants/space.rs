//! Disks hold no more than what is there and the bounds of the logs, when queues have been drained: what is gone goes from the disk, too.

/// What a disk may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes between two checkpoints of a shard.
    pub(crate) checkpoint_bytes: u64,
    /// Bytes of a shard's log that keep what lies in them.
    pub(crate) log_bytes_max: u64,
    /// Shards of the cluster.
    pub(crate) shards: u64,
    /// Bytes that were published to queues that are not drained.
    pub(crate) kept_bytes: u64,
    /// Commands of the metadata log.
    pub(crate) commands: u64,
}

/// Largest share of a message in one entry: what a checkpoint's bound is overrun by.
const ENTRY_BYTES: u64 = 512 << 10;
/// Record bytes of a command, in the log and in the table, with its answer.
const COMMAND_BYTES: u64 = 3 << 10;
/// Whatever else a node writes.
const BASE_BYTES: u64 = 1 << 20;

impl Space {
    /// Its name.
    pub const NAME: &str = "space";

    fn most(&self) -> u64 {
        let log = (self.checkpoint_bytes + ENTRY_BYTES) * 2 + self.log_bytes_max;
        BASE_BYTES + self.shards * log + self.kept_bytes * 3 + self.commands * COMMAND_BYTES
    }

    /// Holds a disk's contents against the bound.
    pub(crate) fn check(&self, node: &str, used_bytes: u64) -> Result<(), String> {
        if used_bytes <= self.most() {
            return Ok(());
        }
        Err(format!(
            "all is drained, but the disk of {node} holds {used_bytes} bytes, of at most {} ({self:?})",
            self.most()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_keeps_what_is_gone_is_found() {
        let space = Space {
            checkpoint_bytes: 1 << 20,
            log_bytes_max: 1 << 20,
            shards: 1,
            kept_bytes: 0,
            commands: 10,
        };
        space.check("n1", 2 << 20).unwrap();
        assert!(space.check("n1", 20 << 20).is_err());
    }
}
