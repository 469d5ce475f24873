//! Groups of shards on several nodes, in virtual time, over a network that can be cut and disks that lose what was not synced.

mod changes;
mod failover;
mod faults;
mod keeper;
mod net;
mod restarts;
mod world;
