//! The segments' files as readers share them: a few are kept open, the others are opened when something in them is read.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Weak};

use warren_storage::StorageError;

use crate::disk::Disk;

pub(crate) struct Segments {
    files: BTreeMap<u32, Weak<File>>,
    /// Files kept open, in the order in which they were opened.
    open: VecDeque<(u32, Arc<File>)>,
    open_max: usize,
}

impl Segments {
    pub(crate) fn new(open_max: usize) -> Segments {
        Segments {
            files: BTreeMap::new(),
            open: VecDeque::new(),
            open_max: open_max.max(1),
        }
    }

    /// A file that someone else keeps open, too.
    pub(crate) fn add(&mut self, segment: u32, file: &Arc<File>) {
        self.files.insert(segment, Arc::downgrade(file));
    }

    pub(crate) fn get(&mut self, disk: &Disk, segment: u32) -> Result<Arc<File>, StorageError> {
        if let Some(file) = self.files.get(&segment).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = Arc::new(disk.open_for_reading(segment)?);
        self.add(segment, &file);
        if self.open.len() >= self.open_max {
            self.open.pop_front();
        }
        self.open.push_back((segment, file.clone()));
        Ok(file)
    }

    /// Lets go of a segment, and says whether a reader still uses it.
    pub(crate) fn remove(&mut self, segment: u32) -> bool {
        self.open.retain(|(open, _)| *open != segment);
        let file = self.files.remove(&segment);
        file.is_some_and(|file| file.strong_count() > 0)
    }
}
