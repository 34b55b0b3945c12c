//! Requests to a waiting bridge: to stay, to end, to check its state.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rdmux_link::Doorbell;

/// The state of a bridge, which any thread may change.
#[derive(Debug)]
pub(super) struct State {
    /// Whether the bridge stays when it has no clients.
    stays: AtomicBool,
    ending: AtomicBool,
    changed: Doorbell,
}

impl State {
    /// Makes the state of a bridge that starts.
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

    /// Makes the bridge check its state again.
    pub(super) fn has_changed(&self) {
        if let Err(error) = self.changed.ring() {
            tracing::warn!(%error, "cannot wake the bridge");
        }
    }

    /// Returns the descriptor that is readable after a change.
    pub(super) fn changed(&self) -> &Doorbell {
        &self.changed
    }
}
