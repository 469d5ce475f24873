//! When log calls on a simulated disk become durable.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a [`Spawner`] runs when the time has passed.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs a job once after a duration, on the simulator's clock. It must not run the job before it returns.
pub type Spawner = Arc<dyn Fn(Duration, Job) + Send + Sync>;

/// When log calls become durable and their `done`s are called.
#[derive(Clone, Default)]
pub enum Completion {
    /// Within the call itself, one sync a call.
    #[default]
    Inline,
    /// When [`Disk::pump`](super::Disk::pump) is called; one sync for all that wait.
    Queued,
    /// When the simulator's clock says so: a sync takes the disk's sync delay, and what arrives in the meantime shares the next one.
    Spawned(Spawner),
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Completion::Inline => "Inline",
            Completion::Queued => "Queued",
            Completion::Spawned(_) => "Spawned",
        })
    }
}
