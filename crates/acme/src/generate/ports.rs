//! The host's ports, from its devices.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use rdmux::umad::Port as Umad;
use rdmux::{Context, DeviceKind, PortState};
use rdmux_acm_files::names;
use rdmux_host::{ConnectOptions, DeviceChoice, HostName};

/// A port, as needed for the files.
#[derive(Clone, Debug)]
pub(super) struct Port {
    /// The kind of the port's device.
    pub(super) kind: DeviceKind,
    /// The device's name.
    pub(super) device: String,
    /// The number, from 1.
    pub(super) number: u8,
    /// Whether the port is active.
    pub(super) is_active: bool,
    /// The IP addresses of the port.
    pub(super) addresses: Vec<IpAddr>,
    context: Option<Context>,
}

impl Port {
    /// Returns a port without a device, for tests.
    #[cfg(test)]
    pub(super) fn new(kind: DeviceKind, number: u8, is_active: bool, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        let device = match kind {
            DeviceKind::Ib => "rdmux_ib0",
            DeviceKind::Roce => "rdmux_roce0",
            DeviceKind::Iwarp => "rdmux_iw0",
        };
        Self { kind, device: device.to_owned(), number, is_active, addresses, context: None }
    }
}

fn name_of(host: Option<&str>) -> Result<HostName> {
    let name = host.filter(|name| !name.is_empty());
    Ok(name.map_or_else(HostName::of_environment, HostName::new)?)
}

/// Returns the name of a host in the network: that of the virtual host, otherwise the machine's, without its domain.
///
/// # Errors
/// When the name is invalid.
pub(super) fn host_name(host: Option<&str>) -> Result<String> {
    let name = name_of(host)?;
    Ok(if name.is_default() { names::of_machine() } else { name.to_string() })
}

/// Returns the ports of the devices that this process sees (`$RDMUX_DEVICE`; by default all).
///
/// # Errors
/// When the host cannot be reached, or has no device.
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
                kind: row.kind,
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

/// Returns the number of adapter ports in the largest subnet of these ports; none if no port is on an InfiniBand subnet
/// that can be queried.
pub(super) fn subnet_size(ports: &[Port]) -> Option<usize> {
    let size = |port: &Port| {
        let umad = Umad::open(port.context.as_ref()?, port.number).ok()?;
        let nodes = umad.fabric().nodes().ok()?;
        Some(nodes.iter().filter(|node| !node.is_switch).map(|node| node.ports.len()).sum())
    };
    ports.iter().filter_map(size).max()
}
