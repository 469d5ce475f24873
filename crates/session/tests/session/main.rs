//! Tests of the session against a host that records what it is asked and answers when the test says so.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod channels;
mod closing;
mod cuts;
mod delivery;
mod handshake;
mod hostile;
mod peer;
mod pipeline;
mod prefetch;
mod publishing;
mod rng;
mod stats;
