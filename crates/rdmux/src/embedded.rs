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

/// How many addresses are tried before giving up.
const ATTEMPTS: u32 = 64;

/// A service in a thread, and the directory of its socket. Both go when it is dropped.
pub(crate) struct Embedded {
    // Before the directory.
    _service: ServiceHandle,
    _dir: TempDir,
}

/// Starts a service, which follows this configuration file, and connects to it, for a device of this kind.
pub(crate) fn start(
    name: &HostName,
    kind: DeviceKind,
    config: Option<&Path>,
) -> Result<(Embedded, Arc<HostClient>), Cause> {
    let dir = tempfile::Builder::new().prefix("rdmux-own-").tempdir().map_err(Cause::Os)?;
    let runtime = RuntimeDir::at(dir.path())?;
    let mut options = ServiceOptions::new(name.clone(), runtime.clone());
    if let Some(file) = config {
        options.config = Config::load(file)?;
    }
    let mut attempt = 0;
    let service = loop {
        options.addresses = Some(vec![loopback_address()]);
        match Service::spawn(options.clone()) {
            Err(HostError::PortInUse { .. }) if attempt < ATTEMPTS => attempt += 1,
            other => break other?,
        }
    };
    let connect =
        ConnectOptions { dir: runtime, config: options.config, embedded: true, program: None };
    let client = connect.connect(name, kind)?;
    Ok((Embedded { _service: service, _dir: dir }, client))
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
