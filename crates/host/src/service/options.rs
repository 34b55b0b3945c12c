//! The options of a service, and the handle of one that runs in a thread.

use std::net::IpAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use rdmux_fabric::FabricName;
use rdmux_link::Doorbell;
use rdmux_verbs::port::MAX_PORTS;
use rdmux_wire::Guid;

use crate::error::HostError;
use crate::names::{Config, HostName, NodeGuid, RuntimeDir};

/// The options of a service.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The host.
    pub host: HostName,
    /// The runtime directory with its socket.
    pub dir: RuntimeDir,
    /// Limits, timers, the port.
    pub config: Config,
    /// The service's addresses. By default those of the configuration or of the machine for the default host, and the
    /// registry's for others.
    pub addresses: Option<Vec<IpAddr>>,
    /// GUID of its node. By default, that of the configuration for the default host, else one that is drawn once and
    /// kept.
    pub node_guid: Option<NodeGuid>,
    /// The fabrics of the InfiniBand adapter's ports: one for each port, [`MAX_PORTS`] at most. If empty, the default: those
    /// assigned to the host ([`HostDir::set_fabrics`](crate::HostDir::set_fabrics)), else the one that `$RDMUX_FABRIC` names, else
    /// those of the configuration.
    pub fabrics: Vec<FabricName>,
    /// Time after the last client at which the service ends. `None` never ends it.
    pub idle_exit: Option<Duration>,
    /// Time that the service waits for the host's previous service, if that is still ending. By default it does not wait.
    pub lock_wait: Duration,
}

impl ServiceOptions {
    /// Time that a service that a program needs waits for the previous one to end.
    pub(crate) const ENDING: Duration = Duration::from_secs(10);

    /// Makes options with defaults, of a service that does not end by itself.
    pub fn new(host: HostName, dir: RuntimeDir) -> Self {
        Self {
            host,
            dir,
            config: Config::default(),
            addresses: None,
            node_guid: None,
            fabrics: Vec::new(),
            idle_exit: None,
            lock_wait: Duration::ZERO,
        }
    }

    /// Returns the fabrics of the ports of the host's adapter.
    pub(super) fn fabrics(&self) -> Result<Vec<FabricName>, HostError> {
        let start = |why| HostError::Start { host: self.host.clone(), why };
        let mut fabrics = self.fabrics.clone();
        if fabrics.is_empty() {
            fabrics = self.dir.host(&self.host)?.fabrics();
        }
        if fabrics.is_empty() {
            fabrics = self.config.fabric.of_hosts().map_err(|e| start(e.to_string()))?;
        }
        if fabrics.len() > MAX_PORTS.into() {
            let n = fabrics.len();
            return Err(start(format!(
                "{n} fabrics exceed the maximum of {MAX_PORTS} ports of a device"
            )));
        }
        Ok(fabrics)
    }

    /// Returns the error text for a machine that has none of the service's addresses: why the service does not start, and a
    /// remedy.
    pub(super) fn no_address(&self) -> String {
        match &self.config.addresses {
            Some(addresses) if self.addresses.is_none() && self.host.is_default() => {
                let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                let addresses = addresses.join(" ");
                format!(
                    "this machine has none of the `addresses` ({addresses}) of the default host in \
                     the configuration file: change or remove that line"
                )
            }
            _ => "this machine has none of the host's addresses; `rdmux host up NAME --addr ADDRESS` assigns another"
                .to_owned(),
        }
    }

    /// Returns the GUID of the host's node, which is kept from now on.
    pub(super) fn node_guid(&self) -> Result<Guid, HostError> {
        let configured = self.config.node_guid.filter(|_| self.host.is_default());
        let random = || super::random_bytes().map(u64::from_ne_bytes);
        let wish = self.node_guid.or(configured);
        NodeGuid::of_host(&self.dir, &self.host, wish, random).map(NodeGuid::guid)
    }
}

/// A service that runs in a thread of this process. It ends when this is dropped.
#[derive(Debug)]
pub struct ServiceHandle {
    stop: Doorbell,
    thread: Option<JoinHandle<Result<(), HostError>>>,
}

impl ServiceHandle {
    pub(super) fn new(stop: Doorbell, thread: JoinHandle<Result<(), HostError>>) -> Self {
        Self { stop, thread: Some(thread) }
    }

    /// Ends the service, and waits for it.
    ///
    /// # Errors
    /// The error that the service ended with.
    pub fn stop(mut self) -> Result<(), HostError> {
        self.end()
    }

    /// Lets the service run until it ends by itself.
    pub fn detach(mut self) {
        self.thread = None;
    }

    /// Returns whether the service has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn end(&mut self) -> Result<(), HostError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stop.ring().map_err(|e| HostError::io("stop a service", e))?;
        thread.join().unwrap_or_else(|_| {
            let panicked = std::io::Error::other("its thread panicked");
            Err(HostError::io("stop a service", panicked))
        })
    }
}

impl Drop for ServiceHandle {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("a service failed: {e}");
        }
    }
}
