//! The engine for simulation: a [`Disk`] in memory that outlives the simulated processes that open it.
//!
//! Flow: the simulator owns a `Disk` per node and gives `disk.open()` to each process that it starts there. The process
//! dies by `disk.crash(..)` (power loss: unsynced writes are lost but for a random prefix) or by the next `disk.open()`
//! (a killed process: the operating system still writes what it was given). Handles of the dead process report `Closed`.
//!
//! Invariants: no thread, no clock, no randomness of its own, ordered maps only. With the same calls and the same draws it does the same,
//! byte for byte. `done`s are called as [`Completion`] says, never under a lock, and never once the process has died.
//!
//! Cost: everything is held twice (as written, as synced) but shares its bytes. A crash copies the maps, not the bytes.

mod completion;
mod disk;
mod fault;
mod logs;
mod spaces;
mod storage;

pub use completion::{Completion, Job, Spawner};
pub use disk::Disk;
pub use fault::Rot;
pub use storage::MemoryStorage;
