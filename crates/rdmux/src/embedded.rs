//! A host private to this process: service and device in one process, isolated from all other hosts.
//!
//! Tests and examples in the documentation run on it. It also suits programs that need RDMA semantics between their own
//! threads and must leave nothing behind.

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

/// The number of addresses to try before giving up.
const ATTEMPTS: u32 = 64;

/// A service in a thread, and the location of its socket. Both are removed when it is dropped.
pub(crate) struct Embedded {
    // Dropped before the directory.
    _service: ServiceHandle,
    place: Place,
}

/// The location of a service's socket.
enum Place {
    Own(#[expect(dead_code, reason = "it goes with this")] TempDir),
    /// The directory of the fabrics that the host is attached to.
    With(Vec<Fabric>),
}

impl Embedded {
    /// Returns the fabric of this name, if the host is attached to it.
    pub(crate) fn fabric(&self, name: &str) -> Option<&Fabric> {
        match &self.place {
            Place::Own(_) => None,
            Place::With(fabrics) => fabrics.iter().find(|fabric| fabric.name() == name),
        }
    }
}

/// Starts a service and connects to it, for a device of this kind. The service follows this configuration file and has a port on each of
/// these fabrics.
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
                let why = "its fabrics are in several directories: create the second one with `Fabric::beside`";
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

/// Returns an address of 127.78.0.0/16 that is probably free: the process id distinguishes processes, a counter the
/// hosts of one process.
fn loopback_address() -> IpAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    // A multiplicative hash, which spreads neighbouring inputs.
    let spread = (std::process::id().wrapping_mul(64).wrapping_add(n)).wrapping_mul(0x9e37_79b1);
    let [high, low, ..] = spread.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 78, high, low.clamp(1, 254)))
}
