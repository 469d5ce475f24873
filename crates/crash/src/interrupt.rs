//! Ctrl-C, and the signals that ask a program to end, as a flag: the nodes must be stopped before this program ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use thiserror::Error;

/// What a shell reports for a program that Ctrl-C ended.
pub const EX_INTERRUPTED: u8 = 130;

/// One of the signals has come.
#[derive(Debug, Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Whether one of the signals has come.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches from now on.
    pub fn watch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, flag.clone()).context("cannot watch for Ctrl-C")?;
        }
        Ok(Self(flag))
    }

    /// Whether a signal has come since.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error if a signal has come since.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.came() {
            Err(Interrupted)
        } else {
            Ok(())
        }
    }
}
