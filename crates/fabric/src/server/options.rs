//! The options of a fabric, and the handle of one that runs in a thread.

use std::thread::JoinHandle;
use std::time::Duration;

use rdmux_link::Doorbell;
use rdmux_runtime::UserDir;

use crate::{Config, FabricError, FabricName};

/// The options of a fabric. The rest is in its directory: see [`Setup`](super::Setup).
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The name of the fabric.
    pub fabric: FabricName,
    /// The runtime directory with its directory.
    pub user: UserDir,
    /// The configuration, with the users who may attach.
    pub config: Config,
    /// Time after its last connection at which the fabric ends. `None` never ends it.
    pub idle_exit: Option<Duration>,
    /// Time that the fabric waits for the previous fabric of its name, if that is still ending. By
    /// default it does not wait.
    pub lock_wait: Duration,
}

impl ServerOptions {
    /// Time after its last connection at which a fabric started on demand ends.
    pub const IDLE_EXIT: Duration = Duration::from_secs(5);
    /// Time that a fabric that a program needs waits for the previous one to end.
    pub(crate) const ENDING: Duration = Duration::from_secs(10);

    /// Makes options with defaults, of a fabric that does not end by itself.
    pub fn new(fabric: FabricName, user: UserDir) -> Self {
        Self { fabric, user, config: Config::default(), idle_exit: None, lock_wait: Duration::ZERO }
    }
}

/// A fabric that runs in a thread of this process. It ends when this is dropped.
#[derive(Debug)]
pub struct ServerHandle {
    stop: Doorbell,
    thread: Option<JoinHandle<Result<(), FabricError>>>,
}

impl ServerHandle {
    pub(super) fn new(stop: Doorbell, thread: JoinHandle<Result<(), FabricError>>) -> Self {
        Self { stop, thread: Some(thread) }
    }

    /// Ends the fabric, and waits for it.
    ///
    /// # Errors
    /// The error that the fabric ended with.
    pub fn stop(mut self) -> Result<(), FabricError> {
        self.end()
    }

    /// Lets the fabric run until it ends by itself.
    pub fn detach(mut self) {
        self.thread = None;
    }

    fn end(&mut self) -> Result<(), FabricError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stop.ring().map_err(|e| FabricError::io("stop a fabric", e))?;
        thread.join().unwrap_or_else(|_| {
            Err(FabricError::io("stop a fabric", std::io::Error::other("its thread panicked")))
        })
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("a fabric failed: {e}");
        }
    }
}
