//! The wire format from outside: bytes written by hand, round trips, an independent codec beside ours, and hostile input.

#![allow(clippy::unwrap_used)]

mod differential;
mod exercise;
mod frames;
mod hostile;
mod methods;
mod properties;
mod samples;
mod tables;
