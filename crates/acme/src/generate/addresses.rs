//! `ibacm_addr.cfg`: the host's name for the first active port, the name with a number for each port, as in ib_acme of
//! rdma-core, and the IP addresses of each port.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use rdmux_acm_files::addresses::{Assignment, PkeyChoice, write};
use rdmux_wire::acm::Address;

use super::ports::Port;

/// Returns the text of the file.
///
/// # Errors
/// When the host's name is too long to be a name in ACM.
pub(super) fn text(ports: &[Port], host: &str) -> Result<String> {
    let mut all = Vec::new();
    // Falls back to the first port, if the subnet manager has not activated any yet: the host needs a name by then.
    if let Some(first) = ports.iter().find(|port| port.is_active).or(ports.first()) {
        all.push(assignment(name(host)?, first));
    }
    for (index, port) in ports.iter().enumerate() {
        all.push(assignment(name(&format!("{host}-{}", index + 1))?, port));
        let addresses = port.addresses.iter().copied().filter(is_of_one_host);
        all.extend(addresses.map(|ip| assignment(ip.into(), port)));
    }
    Ok(write(&all))
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
    fn host_name_is_the_first_active_port_and_every_port_has_a_number() {
        let ports = [
            Port::new("rdmux_ib0", 1, false, &["127.0.0.9", "127.0.0.1", "fe80::1"]),
            Port::new("rdmux_ib0", 2, true, &[]),
        ];
        let expected = [
            ["node", "rdmux_ib0", "2", "default"],
            ["node-1", "rdmux_ib0", "1", "default"],
            ["127.0.0.9", "rdmux_ib0", "1", "default"],
            ["fe80::1", "rdmux_ib0", "1", "default"],
            ["node-2", "rdmux_ib0", "2", "default"],
        ];
        assert_eq!(lines(&ports), expected);
    }

    #[test]
    fn host_without_an_active_port_has_a_name_nevertheless() {
        let ports = [Port::new("rdmux_ib0", 1, false, &[]), Port::new("rdmux_ib0", 2, false, &[])];
        assert_eq!(lines(&ports)[0], ["node", "rdmux_ib0", "1", "default"]);
    }

    #[test]
    fn service_reads_what_was_written() {
        let ports = [Port::new("rdmux_ib0", 1, true, &["10.0.0.1", "2001:db8::1"])];
        let text = text(&ports, "node").unwrap();
        let (read, report) = rdmux_acm_files::addresses::parse("x", text.as_bytes(), true);
        assert!(report.problems().is_empty(), "{report:?}");
        assert_eq!(read.all.len(), 4);
    }

    #[test]
    fn name_that_is_too_long_is_refused() {
        let ports = [Port::new("a", 1, true, &[])];
        assert!(text(&ports, &"x".repeat(64)).unwrap_err().to_string().contains("shorter"));
    }
}
