//! Connects to a host's service, and starts it if none is running.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rdmux_runtime::connect::ConnectError;
use rdmux_runtime::start;
use rdmux_verbs::control::DeviceKind;

use super::acm::{self, Acm, Starter};
use super::control::HostClient;
use super::rpc::Session;
use crate::error::HostError;
use crate::names::{Config, HostDir, HostName, NetworkNamespace, RuntimeDir};
use crate::proto::{ClientKind, DeviceRow};
use crate::service::{Service, ServiceHandle, ServiceOptions};

/// Time that a service may take to answer before it counts as unresponsive.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of services that may end between connect and greeting.
const ATTEMPTS: usize = 10;

/// The options for reaching a host's service.
///
/// The service listens at `<runtime dir>/hosts/<name>/sock`. If none does, one is started as `rdmux host serve NAME
/// --on-demand`. The program is that of `$RDMUX_DAEMON`, else [`program`](Self::program), else this program if it is
/// `rdmux`, else the `rdmux` next to it, else the one in `$PATH`. If none is found, or `$RDMUX_EMBEDDED` is 1, the
/// service runs in a thread of this process, where other processes reach it, too.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The runtime directory of the user's hosts.
    pub dir: RuntimeDir,
    /// The configuration of a service in this process.
    pub config: Config,
    /// Whether to run the service in this process rather than start a program.
    pub embedded: bool,
    /// The caller's `rdmux`, if the caller is a library in some other program.
    pub program: Option<PathBuf>,
}

/// Keeps a service that was started on demand running, for programs that use the host without further requests.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "the service sees when it is closed")] Session);

impl ConnectOptions {
    /// Reads the options from the environment.
    ///
    /// # Errors
    /// Those of [`RuntimeDir::of_environment`] and [`Config::of_environment`].
    pub fn of_environment() -> Result<Self, HostError> {
        Ok(Self {
            dir: RuntimeDir::of_environment()?,
            config: Config::of_environment()?,
            embedded: std::env::var_os("RDMUX_EMBEDDED").is_some_and(|v| v == "1"),
            program: None,
        })
    }

    /// Connects for a device of this kind. Starts the service if need be.
    ///
    /// # Errors
    /// [`HostError::Start`], and those of the connection.
    pub fn connect_or_start(
        &self,
        host: &HostName,
        kind: DeviceKind,
    ) -> Result<Arc<HostClient>, HostError> {
        let client = self.greet(host, |socket| HostClient::open(host, socket, kind))?;
        self.with_acm(client)
    }

    /// Makes the connection query ACM for paths, as set in the environment.
    fn with_acm(&self, client: Arc<HostClient>) -> Result<Arc<HostClient>, HostError> {
        let host = self.dir.host(client.host())?;
        let places = host.acm().or_of_environment();
        let starter = || {
            let (program, dir) = (self.program.clone(), self.dir.clone());
            Starter::new(program, dir, host.clone(), places.clone())
        };
        client.ask_acm(Acm::new(acm::Settings::of_environment(), places.clone(), starter));
        Ok(client)
    }

    /// Queries the devices of a host's service, which is started if need be. Cheaper than connecting: nothing is set
    /// up.
    ///
    /// # Errors
    /// As [`connect_or_start`](Self::connect_or_start).
    pub fn devices(&self, host: &HostName) -> Result<Vec<DeviceRow>, HostError> {
        self.hold(host).map(|(_, devices)| devices)
    }

    /// Like [`devices`](Self::devices), and keeps the service running.
    ///
    /// # Errors
    /// As [`connect_or_start`](Self::connect_or_start).
    pub fn hold(&self, host: &HostName) -> Result<(Hold, Vec<DeviceRow>), HostError> {
        self.greet(host, |socket| {
            let (session, welcome, _) = Session::open(host, socket, ClientKind::Tool, &[])?;
            welcome.check_network(NetworkNamespace::current())?;
            Ok((Hold(session), welcome.devices))
        })
    }

    /// Connects to the service, which is started if need be, and calls `open` to greet it. Starts another if the
    /// service ends meanwhile.
    pub(super) fn greet<T>(
        &self,
        host: &HostName,
        open: impl Fn(OwnedFd) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        let dir = self.dir.host(host)?;
        for _ in 0..ATTEMPTS {
            let socket = match connect_socket(&dir, TIMEOUT)? {
                Some(socket) => Some(socket),
                None => self.start(&dir)?,
            };
            match socket.map(&open) {
                // An idle service ended during the connect.
                None | Some(Err(HostError::ServiceGone { .. })) => {}
                Some(other) => return other,
            }
        }
        let why =
            format!("it exited right after each of {ATTEMPTS} starts: see {}", dir.log().display());
        Err(HostError::Start { host: host.clone(), why })
    }

    /// Connects for a device of this kind to a running service.
    ///
    /// # Errors
    /// [`HostError::NotUp`], and those of the connection.
    pub fn connect(&self, host: &HostName, kind: DeviceKind) -> Result<Arc<HostClient>, HostError> {
        let socket = connect_running(&self.dir.host(host)?, TIMEOUT)?;
        self.with_acm(HostClient::open(host, socket, kind)?)
    }

    /// Starts the service, unless another process has, and connects to it. None if it ended at once.
    fn start(&self, dir: &HostDir) -> Result<Option<OwnedFd>, HostError> {
        let _lock = dir.lock_start()?;
        if let Some(socket) = connect_socket(dir, TIMEOUT)? {
            return Ok(Some(socket));
        }
        let started = match start::program(self.program.as_deref()).filter(|_| !self.embedded) {
            Some(program) => spawn_daemon(&program, &self.dir, dir),
            None => self.embed(dir.name()),
        };
        match (connect_socket(dir, TIMEOUT)?, started) {
            // If this process could not start one, another process started it without the lock.
            (Some(socket), _) => Ok(Some(socket)),
            (None, started) => started.map(|()| None),
        }
    }

    fn embed(&self, host: &HostName) -> Result<(), HostError> {
        let mut options = ServiceOptions::new(host.clone(), self.dir.clone());
        options.config = self.config.clone();
        options.idle_exit = self.config.service.idle_exit();
        options.lock_wait = ServiceOptions::ENDING;
        // The thread lives as long as the service has clients.
        Service::spawn(options).map(ServiceHandle::detach)
    }
}

/// Returns a socket connected to the service, or none if no service runs. Requests on it may take `timeout`.
///
/// # Errors
/// [`HostError::Unresponsive`] when the service's backlog stays full for all that time.
pub(crate) fn connect_socket(
    dir: &HostDir,
    timeout: Duration,
) -> Result<Option<OwnedFd>, HostError> {
    rdmux_runtime::connect::connect(dir, timeout).map_err(|e| match e {
        ConnectError::Busy(_) => HostError::Unresponsive {
            host: dir.name().clone(),
            pid: dir.service_lock_holder(),
            why: e.to_string(),
        },
        ConnectError::Io(e) => HostError::io(format!("connect to {}", dir.socket().display()), e),
    })
}

/// Returns a socket connected to the service, which must be running.
pub(super) fn connect_running(dir: &HostDir, timeout: Duration) -> Result<OwnedFd, HostError> {
    connect_socket(dir, timeout)?.ok_or_else(|| HostError::NotUp { host: dir.name().clone() })
}

/// Runs `program host serve NAME --on-demand` and waits until it listens.
fn spawn_daemon(program: &Path, runtime: &RuntimeDir, dir: &HostDir) -> Result<(), HostError> {
    let host = dir.name();
    let arguments = ["host", "serve", host.as_str(), "--on-demand"];
    start::spawn(program, &arguments, runtime.user_dir(), dir)
        .map_err(|why| HostError::Start { host: host.clone(), why })
}
