//! The suite on the in-memory engine, in two of its completion modes.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use warren_storage::Storage;
use warren_storage::conformance::Harness;
use warren_storage::memory::{Completion, Disk};

struct InMemory {
    disk: Disk,
    completion: Completion,
}

impl InMemory {
    fn new(completion: Completion) -> InMemory {
        let disk = Disk::new();
        disk.set_completion(completion.clone());
        InMemory { disk, completion }
    }
}

impl Harness for InMemory {
    fn open(&self) -> Arc<dyn Storage> {
        Arc::new(self.disk.open())
    }

    fn interrupt(&self, _: Arc<dyn Storage>) -> Arc<dyn Storage> {
        let mut draws = 0;
        self.disk.crash(&mut |limit| {
            draws += 1;
            (draws * 7 + 3) % limit
        });
        self.open()
    }

    fn pump(&self) {
        self.disk.pump();
    }

    fn shares_syncs(&self) -> bool {
        !matches!(self.completion, Completion::Inline)
    }

    fn corrupt_entry(&self, group: u64, index: u64, at: usize) {
        assert!(self.disk.flip_entry(group, index, at, 0x10));
    }

    fn corrupt_record(&self, group: u64, name: &'static str, at: usize) {
        assert!(self.disk.flip_record(group, name, at, 0x10));
    }
}

mod inline {
    warren_storage::conformance_tests!(super::InMemory::new(super::Completion::Inline));
}

mod queued {
    warren_storage::conformance_tests!(super::InMemory::new(super::Completion::Queued));
}
