//! Whole groups in one process, in virtual time, over a network that can be cut.

mod bootstrap;
mod failover;
mod leases;
mod levels;
mod net;
mod proposals;
mod restarts;
mod world;
