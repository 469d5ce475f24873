//! How much memory the engine may take, and what that means in RocksDB's own options.

use rocksdb::{BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, LogLevel, Options};

/// So many neighbouring keys of a file are looked at for deletions.
const DELETIONS_WINDOW: usize = 4096;
/// The part of a whole file's keys that makes it mostly deletions.
const DELETIONS_RATIO: f64 = 0.5;
/// Values from here on lie in blob files.
const BLOB_BYTES_MIN: u64 = 4096;
const BLOB_FILE_BYTES: u64 = 64 << 20;

/// Sizes in bytes. The defaults keep the state well under 100 MB; the log's tail cache comes on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The Raft logs' own.
    pub log: warren_storage_log::Settings,
    /// Blocks of files kept in memory.
    pub block_cache_bytes: usize,
    /// Newest writes that RocksDB keeps in memory, over all column families.
    pub write_buffers_bytes: usize,
    /// The write-ahead log's size that makes RocksDB write its buffers out. Bounds how long opening takes.
    pub wal_bytes: u64,
    /// Files that RocksDB keeps open.
    pub open_files: i32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            log: warren_storage_log::Settings::default(),
            block_cache_bytes: 8 << 20,
            write_buffers_bytes: 24 << 20,
            wal_bytes: 64 << 20,
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
        // to start for it. What is lost is replayed from the Raft logs.
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

    /// The options of the column families `state`, `queue` and `message`, in this order.
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
        // Queues are written at one end and deleted at the other: files that are mostly deletions are compacted soon, since
        // scans of what is left would step over each of them.
        let short_lived = |buffer_bytes: usize| {
            let mut options = family(buffer_bytes);
            options.add_compact_on_deletion_collector_factory(
                DELETIONS_WINDOW,
                DELETIONS_WINDOW / 2,
                DELETIONS_RATIO,
            );
            options.set_level_compaction_dynamic_level_bytes(true);
            options
        };
        // Bodies lie in files of their own, so that compaction moves keys only. Most of them die in the order in which they
        // came: the oldest files are the emptiest, and are freed first.
        let mut message = short_lived(self.write_buffers_bytes / 3);
        message.set_enable_blob_files(true);
        message.set_min_blob_size(BLOB_BYTES_MIN);
        message.set_blob_file_size(BLOB_FILE_BYTES);
        message.set_blob_compression_type(DBCompressionType::Lz4);
        message.set_enable_blob_gc(true);
        message.set_blob_gc_age_cutoff(0.5);
        [
            family(self.write_buffers_bytes / 6),
            short_lived(self.write_buffers_bytes / 3),
            message,
        ]
    }
}
