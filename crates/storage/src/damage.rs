//! What an engine remembers of damage.

use std::sync::OnceLock;

use crate::StorageError;

/// The first damage that an engine's reads have found.
#[derive(Debug, Default)]
pub struct Damage(OnceLock<StorageError>);

impl Damage {
    /// Notes an error that a read has ended with, if it is damage and the first.
    pub fn note(&self, error: &StorageError) {
        if matches!(error, StorageError::Corrupt { .. }) {
            // Only the first is kept.
            let _ = self.0.set(error.clone());
        }
    }

    /// The first damage, if there was some.
    #[must_use]
    pub fn first(&self) -> Option<StorageError> {
        self.0.get().cloned()
    }
}
