//! What a bridge is told while it waits: to stay, to end, to look again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rdmux_link::Doorbell;

/// What a bridge has been told, by any thread.
#[derive(Debug)]
pub(super) struct State {
    /// Whether it stays when nobody is left.
    stays: AtomicBool,
    ending: AtomicBool,
    changed: Doorbell,
}

impl State {
    /// Of a bridge that begins.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub(super) fn new(stays: bool) -> io::Result<Self> {
        let (stays, ending) = (AtomicBool::new(stays), AtomicBool::new(false));
        Ok(Self { stays, ending, changed: Doorbell::new()? })
    }

    pub(super) fn stays(&self) -> bool {
        self.stays.load(Ordering::Relaxed)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    pub(super) fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
        self.has_changed();
    }

    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.has_changed();
    }

    /// Has the bridge look at everything again.
    pub(super) fn has_changed(&self) {
        if let Err(error) = self.changed.ring() {
            tracing::warn!(%error, "a bridge cannot be woken");
        }
    }

    /// What is readable when something was told.
    pub(super) fn changed(&self) -> &Doorbell {
        &self.changed
    }
}
