//! storage-rocksdb
