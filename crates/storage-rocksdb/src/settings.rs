//! How much memory the engine may take, and what that means in RocksDB's own options.

use rocksdb::{BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, LogLevel, Options};

/// Sizes in bytes. The defaults keep a node's storage well under 100 MB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Newest log entries kept in memory for replication, over all groups. Entries that wait for a sync come on top.
    pub tail_cache_bytes: usize,
    /// Blocks of files kept in memory.
    pub block_cache_bytes: usize,
    /// Newest writes that RocksDB keeps in memory, over all column families.
    pub write_buffers_bytes: usize,
    /// The write-ahead log's size that makes RocksDB write its buffers out. Bounds how long opening takes.
    pub wal_bytes: u64,
    /// The most that one sync covers.
    pub batch_bytes: usize,
    /// Files that RocksDB keeps open.
    pub open_files: i32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tail_cache_bytes: 16 << 20,
            block_cache_bytes: 8 << 20,
            write_buffers_bytes: 48 << 20,
            wal_bytes: 64 << 20,
            batch_bytes: 4 << 20,
            open_files: 256,
        }
    }
}

impl Settings {
    /// The database's options.
    pub(crate) fn database(&self) -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        // Replay ends at the first bad record. A power loss can leave any garbage behind the last sync, and no node may refuse
        // to start for it. Damage before the last sync looks the same to RocksDB: `mark` tells them apart.
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        options.set_max_total_wal_size(self.wal_bytes);
        options.set_db_write_buffer_size(self.write_buffers_bytes);
        options.set_max_background_jobs(2);
        options.set_max_open_files(self.open_files);
        options.set_bytes_per_sync(1 << 20);
        options.set_skip_stats_update_on_db_open(true);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_log_level(LogLevel::Warn);
        options.set_keep_log_file_num(2);
        options.set_max_log_file_size(1 << 20);
        options
    }

    /// The options of the column families `log`, `records` and `state`, in this order.
    pub(crate) fn families(&self) -> [Options; 3] {
        let cache = Cache::new_lru_cache(self.block_cache_bytes);
        let family = |buffer_bytes: usize| {
            let mut blocks = BlockBasedOptions::default();
            blocks.set_block_cache(&cache);
            // Otherwise they are held outside the cache and grow with what is stored.
            blocks.set_cache_index_and_filter_blocks(true);
            blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
            blocks.set_block_size(16 << 10);
            let mut options = Options::default();
            options.set_block_based_table_factory(&blocks);
            options.set_compression_type(DBCompressionType::Lz4);
            options.set_write_buffer_size(buffer_bytes);
            options.set_max_write_buffer_number(3);
            options
        };
        [
            family(self.write_buffers_bytes / 3),
            family(1 << 20),
            family(self.write_buffers_bytes / 4),
        ]
    }
}
