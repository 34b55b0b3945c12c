//! `ibacm_addr.cfg`: the host's name for the first active port of each device, the name with a number for each InfiniBand port,
//! and the IP addresses of each port.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use rdmux::DeviceKind;
use rdmux_acm_files::addresses::{Assignment, PkeyChoice, write};
use rdmux_acm_files::names;
use rdmux_wire::acm::Address;

use super::ports::Port;

/// Returns the text of the file.
///
/// # Errors
/// When the host's name is too long to be a name in ACM.
pub(super) fn text(ports: &[Port], host: &str) -> Result<String> {
    let named: Vec<names::Port<'_>> = ports.iter().map(named).collect();
    let mut all = Vec::new();
    for (text, index) in names::of_ports(host, &named) {
        all.push(assignment(name(&text)?, &ports[index]));
    }
    for port in ports {
        let addresses = port.addresses.iter().copied().filter(is_of_one_host);
        all.extend(addresses.map(|ip| assignment(ip.into(), port)));
    }
    Ok(write(&all))
}

fn named(port: &Port) -> names::Port<'_> {
    let is_of_subnet = port.kind == DeviceKind::Ib;
    names::Port { device: &port.device, is_active: port.is_active, is_of_subnet }
}

fn name(name: &str) -> Result<Address> {
    Address::name(name).with_context(|| {
        format!(
            "{name}: names have at most {} bytes in ACM; give the host a shorter one",
            rdmux_wire::acm::Name::MAX
        )
    })
}

fn assignment(address: Address, port: &Port) -> Assignment {
    let Port { device, number, .. } = port;
    Assignment { address, device: device.clone(), port: *number, pkey: PkeyChoice::First }
}

/// Returns whether an address identifies one host.
fn is_of_one_host(ip: &IpAddr) -> bool {
    match ip {
        // Virtual hosts have private addresses in 127/8; the first one exists on every host.
        IpAddr::V4(ip) => {
            !ip.is_unspecified() && !ip.is_link_local() && *ip != std::net::Ipv4Addr::LOCALHOST
        }
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(ports: &[Port]) -> Vec<Vec<String>> {
        let text = text(ports, "node").unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn host_name_is_the_first_active_port_of_each_device_and_infiniband_ports_have_numbers() {
        let ports = [
            Port::new(DeviceKind::Roce, 1, true, &["127.0.0.9"]),
            Port::new(DeviceKind::Ib, 1, false, &["127.0.0.9", "127.0.0.1", "fe80::1"]),
            Port::new(DeviceKind::Ib, 2, true, &[]),
        ];
        let expected = [
            ["node", "rdmux_roce0", "1", "default"],
            ["node", "rdmux_ib0", "2", "default"],
            ["node-1", "rdmux_ib0", "1", "default"],
            ["node-2", "rdmux_ib0", "2", "default"],
            ["127.0.0.9", "rdmux_roce0", "1", "default"],
            ["127.0.0.9", "rdmux_ib0", "1", "default"],
            ["fe80::1", "rdmux_ib0", "1", "default"],
        ];
        assert_eq!(lines(&ports), expected);
    }

    #[test]
    fn service_reads_what_was_written() {
        let ports = [Port::new(DeviceKind::Ib, 1, true, &["10.0.0.1", "2001:db8::1"])];
        let text = text(&ports, "node").unwrap();
        let (read, report) = rdmux_acm_files::addresses::parse("x", text.as_bytes(), true);
        assert!(report.problems().is_empty(), "{report:?}");
        assert_eq!(read.all.len(), 4);
    }

    #[test]
    fn name_that_is_too_long_is_refused() {
        let ports = [Port::new(DeviceKind::Ib, 1, true, &[])];
        assert!(text(&ports, &"x".repeat(64)).unwrap_err().to_string().contains("shorter"));
    }
}
