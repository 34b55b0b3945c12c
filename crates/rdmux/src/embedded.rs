//! A host of this process's own: service and device in one process, away from all other hosts.
//!
//! Examples in the documentation and tests run on it; so can a program that wants RDMA semantics
//! between its own threads and leaves nothing behind.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdmux_host::service::{Service, ServiceHandle, ServiceOptions};
use rdmux_host::{Config, ConnectOptions, HostClient, HostError, HostName, RuntimeDir};
use rdmux_verbs::control::DeviceKind;
use tempfile::TempDir;

use crate::error::Cause;
use crate::umad::Fabric;

/// How many addresses are tried before giving up.
const ATTEMPTS: u32 = 64;

/// A service in a thread, and where its socket is. Both go when it is dropped.
pub(crate) struct Embedded {
    // Before the directory.
    _service: ServiceHandle,
    place: Place,
}

/// Where a service's socket is.
enum Place {
    Own(#[expect(dead_code, reason = "it goes with this")] TempDir),
    /// Beside the fabrics that the host is on.
    With(Vec<Fabric>),
}

impl Embedded {
    /// The fabric of this name, if the host was given it.
    pub(crate) fn fabric(&self, name: &str) -> Option<&Fabric> {
        match &self.place {
            Place::Own(_) => None,
            Place::With(fabrics) => fabrics.iter().find(|fabric| fabric.name() == name),
        }
    }
}

/// Starts a service, which follows this configuration file, with a port on each of these fabrics, and connects to it, for a device of this kind.
pub(crate) fn start(
    name: &HostName,
    kind: DeviceKind,
    config: Option<&Path>,
    fabrics: Vec<Fabric>,
) -> Result<(Embedded, ConnectOptions, Arc<HostClient>), Cause> {
    let names = fabrics.iter().map(|fabric| fabric.place().1.clone()).collect();
    let (place, runtime) = match fabrics.first().map(|fabric| fabric.place().0.clone()) {
        Some(user) => {
            if fabrics.iter().any(|fabric| *fabric.place().0 != user) {
                let why =
                    "its fabrics are in several directories: make the second by `Fabric::beside`";
                return Err(Cause::Invalid(why.to_owned()));
            }
            (Place::With(fabrics), RuntimeDir::at(user.path())?)
        }
        None => {
            let dir = tempfile::Builder::new().prefix("rdmux-own-").tempdir().map_err(Cause::Os)?;
            let runtime = RuntimeDir::at(dir.path())?;
            (Place::Own(dir), runtime)
        }
    };
    let mut options = ServiceOptions::new(name.clone(), runtime.clone());
    options.fabrics = names;
    if let Some(file) = config {
        options.config = Config::load(file)?;
    }
    let mut attempt = 0;
    let service = loop {
        let configured = options.config.addresses.clone();
        options.addresses = Some(configured.unwrap_or_else(|| vec![loopback_address()]));
        match Service::spawn(options.clone()) {
            Err(HostError::PortInUse { .. }) if attempt < ATTEMPTS => attempt += 1,
            other => break other?,
        }
    };
    let connect =
        ConnectOptions { dir: runtime, config: options.config, embedded: true, program: None };
    let client = connect.connect(name, kind)?;
    Ok((Embedded { _service: service, place }, connect, client))
}

/// An address of 127.78.0.0/16 that is probably free: the process id spreads processes, a count
/// the hosts of one.
fn loopback_address() -> IpAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    // A multiplicative hash: neighbours in, strangers out.
    let spread = (std::process::id().wrapping_mul(64).wrapping_add(n)).wrapping_mul(0x9e37_79b1);
    let [high, low, ..] = spread.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 78, high, low.clamp(1, 254)))
}
