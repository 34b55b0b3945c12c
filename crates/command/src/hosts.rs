//! Virtual hosts for the duration of a command.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rdmux_host::client::admin;
use rdmux_host::proto::Status;
use rdmux_host::{ConnectOptions, HostError, HostName, RuntimeDir};
use rdmux_runtime::Lock;
use rdmux_runtime::file::open_private;
use rustix::fs::FlockOperation;

/// Running hosts. Those that this value started, or was told to end, end when it is dropped.
pub struct Hosts {
    options: ConnectOptions,
    names: Vec<HostName>,
    started: Vec<HostName>,
}

impl Hosts {
    /// Starts the hosts that are not running.
    pub fn up(names: &[&str]) -> Result<Self> {
        let options = ConnectOptions::of_environment()?;
        let running = admin::running(&options.dir)?;
        let mut this = Self { options, names: Vec::new(), started: Vec::new() };
        for name in names {
            let name = HostName::new(name)?;
            admin::up(&this.options, &name, None)?;
            if !running.contains(&name) {
                this.started.push(name.clone());
            }
            this.names.push(name);
        }
        Ok(this)
    }

    /// Starts the hosts that are not running. All of them end with this value, because no other command uses their
    /// names.
    pub fn up_to_end(names: &[&str]) -> Result<Self> {
        let mut this = Self::up(names)?;
        this.started.clone_from(&this.names);
        Ok(this)
    }

    /// Starts hosts that are configured by a file. Other hosts must not have these names.
    pub fn up_configured(names: &[&str], config: &Path) -> Result<Self> {
        let options = ConnectOptions::of_environment()?;
        let mut this = Self { options, names: Vec::new(), started: Vec::new() };
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        for name in names {
            let mut up = Command::new(&program);
            up.args(["host", "up", name]).env("RDMUX_CONFIG", config).stdout(Stdio::null());
            let host = HostName::new(name)?;
            // It may have started even if the command fails, for example by Ctrl-C.
            this.started.push(host.clone());
            this.names.push(host);
            let status = up.status().with_context(|| format!("cannot start host {name}"))?;
            ensure!(status.success(), "host {name} did not start: {status}");
        }
        Ok(this)
    }

    /// Returns the state of the n-th host.
    pub fn status(&self, n: usize) -> Result<Status> {
        Ok(admin::status(&self.options.dir, &self.names[n])?)
    }

    /// Returns whether a program listens for connections at a port of the n-th host.
    pub fn has_listener(&self, n: usize, port: u16) -> Result<bool> {
        let ids = self.status(n)?.ids;
        let at = |src: Option<&str>| {
            let src = src.and_then(|src| src.parse::<SocketAddr>().ok());
            src.is_some_and(|src| src.port() == port)
        };
        Ok(ids.iter().any(|id| id.state == "LISTEN" && at(id.src.as_deref())))
    }

    /// Returns the address of the n-th host.
    pub fn address(&self, n: usize) -> Result<IpAddr> {
        let status = self.status(n)?;
        let row = status.gids.first();
        Ok(row.with_context(|| format!("host {} has no address", self.names[n]))?.gid.ip())
    }
}

/// Takes a command's lock, held until the value is dropped: its hosts have fixed names, and another instance of the command
/// would end them. `command` is its name.
///
/// # Errors
/// When another instance is running, or the lock file cannot be created.
pub fn alone(command: &str) -> Result<Lock> {
    let dir = RuntimeDir::of_environment()?;
    let path = dir.path().join(format!("{command}.lock"));
    let file =
        open_private(&path, false).with_context(|| format!("cannot open {}", path.display()))?;
    let lock = Lock::take(file, FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("cannot lock {}", path.display()))?;
    lock.with_context(|| format!("another {command} is running: wait until it ends"))
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.started {
            match admin::down(&self.options.dir, name) {
                Ok(()) | Err(HostError::NotUp { .. }) => {}
                Err(error) => {
                    tracing::warn!(%name, %error, "cannot stop a host that this command started");
                }
            }
        }
    }
}
