//! Chooses the addresses of a service and opens them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::core::Core;
use super::options::ServiceOptions;
use super::poller::Poller;
use crate::error::HostError;
use crate::names::{Registry, RegistryEntry};

/// Time that clients of a killed service may take to close its sockets.
const LET_GO: Duration = Duration::from_secs(2);
/// The number of addresses that are tried for a host without one: a block of the registry.
const TRIES: usize = 256;

/// Opens everything on the host's addresses: those of the options, else those of the configuration or the machine for
/// the default host, and the registry's for another host.
///
/// # Errors
/// [`HostError::PortInUse`] and [`HostError::AssignedInUse`] when another program has the port there, and others.
pub(super) fn open_core(options: &ServiceOptions, was_killed: bool) -> Result<Core, HostError> {
    let timeout = if was_killed { LET_GO } else { Duration::ZERO };
    match &options.addresses {
        Some(_) => open_on(options, options.addresses.clone(), timeout),
        None if options.host.is_default() => {
            open_on(options, options.config.addresses.clone(), timeout)
        }
        None => open_registered(options, timeout),
    }
}

/// Opens everything on the address that the registry has for the host. If it has none, or one that was not assigned
/// and is in use (by another user's host, or one of another runtime directory), the next free one is recorded.
fn open_registered(options: &ServiceOptions, timeout: Duration) -> Result<Core, HostError> {
    let entry = Registry::open(&options.dir)?.get(&options.host).cloned();
    let Some(RegistryEntry { address, assigned, .. }) = entry else {
        return open_on_next(options, None);
    };
    // Processes of a service that ended may keep its sockets for a moment; the host should keep its address.
    let timeout = if assigned { timeout } else { LET_GO };
    match open_on(options, Some(vec![address]), timeout) {
        Err(HostError::PortInUse { address, port, holder }) if assigned => {
            let host = options.host.clone();
            Err(HostError::AssignedInUse { host, address, port, holder })
        }
        Err(HostError::PortInUse { holder, .. }) => open_on_next(options, Some((address, holder))),
        other => other,
    }
}

/// Opens everything on the next free address of the registry, and records it. The registry stays locked meanwhile, so
/// that hosts that start at the same time get different ones. `before` is the address that the host had, and the
/// program that uses it.
fn open_on_next(
    options: &ServiceOptions,
    before: Option<(IpAddr, Option<String>)>,
) -> Result<Core, HostError> {
    let mut registry = Registry::open(&options.dir)?;
    let candidates: Vec<_> = registry.candidates().take(TRIES).collect();
    let mut in_use = HostError::Start {
        host: options.host.clone(),
        why: "the registry has no free address".to_owned(),
    };
    for address in candidates {
        match open_on(options, Some(vec![address]), Duration::ZERO) {
            Ok(core) => {
                registry.record(&options.host, address)?;
                if let Some((old, holder)) = before {
                    let holder = holder.unwrap_or_else(|| "another socket".to_owned());
                    tracing::warn!(
                        "host {} moves to {address}: its address {old} is in use by {holder}",
                        options.host
                    );
                }
                return Ok(core);
            }
            Err(e @ HostError::PortInUse { .. }) => in_use = e,
            Err(e) => return Err(e),
        }
    }
    Err(in_use)
}

/// Opens everything on these addresses. If the previous service was killed, its clients hold sockets on them until
/// they notice, which is soon: `timeout` is how long they may take.
fn open_on(
    options: &ServiceOptions,
    fixed: Option<Vec<IpAddr>>,
    timeout: Duration,
) -> Result<Core, HostError> {
    let start = Instant::now();
    loop {
        let poller = Poller::new().map_err(|e| HostError::io("make an epoll", e))?;
        match Core::new(options.clone(), poller, fixed.clone()) {
            Err(HostError::PortInUse { .. }) if start.elapsed() < timeout => {
                std::thread::sleep(LET_GO / 200);
            }
            other => return other,
        }
    }
}
