//! Connects to a fabric, and starts it if none is running.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rdmux_runtime::connect::{ConnectError, connect};
use rdmux_runtime::{UserDir, start};

use crate::server::{Server, ServerHandle, ServerOptions};
use crate::{Config, FabricDir, FabricError, FabricName};

/// Time that a fabric may take to answer before it counts as unresponsive.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of fabrics that may end between connect and greeting.
const ATTEMPTS: usize = 10;

/// The options for reaching a fabric.
///
/// The fabric listens at `<runtime dir>/fabrics/<name>/sock`. If none does, one is started as `rdmux fabric serve
/// NAME --on-demand`, by the program that [`start::program`] finds. If none is found, or `$RDMUX_EMBEDDED` is 1,
/// the fabric runs in a thread of this process, where other processes reach it, too.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The runtime directory of the user's fabrics.
    pub user: UserDir,
    /// The configuration of a fabric in this process.
    pub config: Config,
    /// Whether to run the fabric in this process rather than start a program.
    pub embedded: bool,
    /// The caller's `rdmux`, if the caller is a library in some other program.
    pub program: Option<PathBuf>,
}

impl ConnectOptions {
    /// Reads the options from the environment, with this configuration.
    ///
    /// # Errors
    /// Those of [`UserDir::of_environment`].
    pub fn of_environment(config: Config) -> Result<Self, FabricError> {
        Ok(Self {
            user: UserDir::of_environment()?,
            config,
            embedded: std::env::var_os("RDMUX_EMBEDDED").is_some_and(|v| v == "1"),
            program: None,
        })
    }

    /// Returns the directory of a fabric.
    ///
    /// # Errors
    /// [`FabricError::Directory`].
    pub fn dir(&self, fabric: &FabricName) -> Result<FabricDir, FabricError> {
        Ok(FabricDir::open(&self.user, fabric)?)
    }

    /// Connects to a fabric, which is started if need be, and calls `open` to greet it. Starts another if it ends
    /// meanwhile.
    pub(super) fn greet<T>(
        &self,
        fabric: &FabricName,
        open: impl Fn(OwnedFd) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let dir = self.dir(fabric)?;
        for _ in 0..ATTEMPTS {
            let socket = match connect_socket(&dir, TIMEOUT)? {
                Some(socket) => Some(socket),
                None => self.start(&dir)?,
            };
            match socket.map(&open) {
                // An idle fabric ended during the connect.
                None | Some(Err(FabricError::Gone { .. })) => {}
                Some(other) => return other,
            }
        }
        let why =
            format!("it exited right after each of {ATTEMPTS} starts: see {}", dir.log().display());
        Err(FabricError::Start { fabric: fabric.clone(), why })
    }

    /// Connects to a running fabric.
    pub(super) fn connect(&self, fabric: &FabricName) -> Result<OwnedFd, FabricError> {
        let dir = self.dir(fabric)?;
        connect_socket(&dir, TIMEOUT)?.ok_or_else(|| FabricError::NotUp { fabric: fabric.clone() })
    }

    /// Starts the fabric, unless another process has, and connects to it. None if it ended at once.
    fn start(&self, dir: &FabricDir) -> Result<Option<OwnedFd>, FabricError> {
        let _lock = dir.lock_start()?;
        if let Some(socket) = connect_socket(dir, TIMEOUT)? {
            return Ok(Some(socket));
        }
        let started = self.start_locked(dir);
        match (connect_socket(dir, TIMEOUT)?, started) {
            // If this process could not start one, another process started it without the lock.
            (Some(socket), _) => Ok(Some(socket)),
            (None, started) => started.map(|()| None),
        }
    }

    /// Starts the fabric. The caller holds the lock for that.
    pub(super) fn start_locked(&self, dir: &FabricDir) -> Result<(), FabricError> {
        match start::program(self.program.as_deref()).filter(|_| !self.embedded) {
            Some(program) => {
                let arguments = ["fabric", "serve", dir.name().as_str(), "--on-demand"];
                start::spawn(&program, &arguments, &self.user, dir)
                    .map_err(|why| FabricError::Start { fabric: dir.name().clone(), why })
            }
            None => {
                let mut options = ServerOptions::new(dir.name().clone(), self.user.clone());
                options.config = self.config.clone();
                options.idle_exit = Some(ServerOptions::IDLE_EXIT);
                options.lock_wait = ServerOptions::ENDING;
                // The thread lives as long as the fabric has clients.
                Server::spawn(options).map(ServerHandle::detach)
            }
        }
    }
}

/// Returns a socket connected to the fabric, or none if it is not up.
pub(crate) fn connect_socket(
    dir: &FabricDir,
    timeout: Duration,
) -> Result<Option<OwnedFd>, FabricError> {
    connect(dir, timeout).map_err(|e| match e {
        ConnectError::Busy(_) => FabricError::Unresponsive {
            fabric: dir.name().clone(),
            pid: dir.service_lock_holder(),
            why: e.to_string(),
        },
        ConnectError::Io(e) => FabricError::io(format!("connect to {}", dir.socket().display()), e),
    })
}
