//! The ports that a host has, by its devices.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use rdmux::umad::Port as Umad;
use rdmux::{Context, PortState};
use rdmux_host::{ConnectOptions, DeviceChoice, HostName};

/// A port, as far as files tell of it.
#[derive(Clone, Debug)]
pub(super) struct Port {
    /// The device's name.
    pub(super) device: String,
    /// From 1.
    pub(super) number: u8,
    /// Whether data passes.
    pub(super) is_active: bool,
    /// The IP addresses that lead to it.
    pub(super) addresses: Vec<IpAddr>,
    context: Option<Context>,
}

impl Port {
    /// A port of no device, for tests.
    #[cfg(test)]
    pub(super) fn new(device: &str, number: u8, is_active: bool, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        Self { device: device.to_owned(), number, is_active, addresses, context: None }
    }
}

fn name_of(host: Option<&str>) -> Result<HostName> {
    let name = host.filter(|name| !name.is_empty());
    Ok(name.map_or_else(HostName::of_environment, HostName::new)?)
}

/// The name that a host has in the network: a virtual one's is its own, otherwise the system's counts.
///
/// # Errors
/// When the name is none.
pub(super) fn host_name(host: Option<&str>) -> Result<String> {
    let name = name_of(host)?;
    let system = rustix::system::uname();
    Ok(if name.is_default() {
        system.nodename().to_string_lossy().into_owned()
    } else {
        name.to_string()
    })
}

/// The ports of the devices that this process sees (`$RDMUX_DEVICE`; all, if it does not say).
///
/// # Errors
/// When the host cannot be asked, or has no device.
pub(super) fn of_host(host: Option<&str>) -> Result<Vec<Port>> {
    let name = name_of(host)?;
    let choice = match std::env::var_os(DeviceChoice::VARIABLE).filter(|word| !word.is_empty()) {
        Some(_) => DeviceChoice::of_environment()?,
        None => DeviceChoice::All,
    };
    let rows = ConnectOptions::of_environment()?.devices(&name)?;
    let mut ports = Vec::new();
    for row in rows.iter().filter(|row| choice.sees(row)) {
        let context = Context::builder().host(name.as_str()).device(row.kind).open()?;
        for number in 1..=context.num_ports() {
            let addresses = context.addresses_of_port(number).into_iter();
            let addresses =
                addresses.filter(|entry| !entry.gid.is_zero()).map(|entry| entry.gid.ip());
            ports.push(Port {
                device: context.name().to_owned(),
                number,
                is_active: context.query_port_number(number)?.state == PortState::Active,
                addresses: addresses.collect(),
                context: Some(context.clone()),
            });
        }
    }
    ensure!(!ports.is_empty(), "ibv_get_device_list - no devices present?");
    Ok(ports)
}

/// How many ports of adapters the largest subnet has that one of these is on; none if none is on an InfiniBand subnet that
/// can be asked.
pub(super) fn subnet_size(ports: &[Port]) -> Option<usize> {
    let size = |port: &Port| {
        let umad = Umad::open(port.context.as_ref()?, port.number).ok()?;
        let nodes = umad.fabric().nodes().ok()?;
        Some(nodes.iter().filter(|node| !node.is_switch).map(|node| node.ports.len()).sum())
    };
    ports.iter().filter_map(size).max()
}
