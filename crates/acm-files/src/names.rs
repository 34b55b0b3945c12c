//! The default names of a host's ports, which `ib_acme -A` writes and which a service without a file of addresses uses.

use std::collections::BTreeSet;

/// Returns this machine's name in the network: the node's name up to its first dot, as ibacm uses it.
pub fn of_machine() -> String {
    label(&rustix::system::uname().nodename().to_string_lossy()).to_owned()
}

/// Returns a node's name without its domain.
fn label(node: &str) -> &str {
    let mut labels = node.split('.').filter(|label| !label.is_empty());
    labels.next().unwrap_or(node)
}

/// The properties of a port on which its names depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port<'a> {
    /// The device's name.
    pub device: &'a str,
    /// Whether the port is active.
    pub is_active: bool,
    /// Whether the port is on an InfiniBand subnet, where each port has a name of its own.
    pub is_of_subnet: bool,
}

/// Returns the names of a host's ports, each with the index of its port. Each device's first active port, or its first port if none is
/// active, has the host's name: devices of different kinds do not receive each other's requests. Each InfiniBand port also has the
/// host's name with a number.
pub fn of_ports(host: &str, ports: &[Port<'_>]) -> Vec<(String, usize)> {
    let devices: BTreeSet<&str> = ports.iter().map(|port| port.device).collect();
    let first = |device: &&str| {
        let find = |is_meant: fn(&Port<'_>) -> bool| {
            ports.iter().position(|port| port.device == *device && is_meant(port))
        };
        find(|port| port.is_active).or_else(|| find(|_| true))
    };
    let mut firsts: Vec<usize> = devices.iter().filter_map(first).collect();
    firsts.sort_unstable();
    let firsts = firsts.into_iter().map(|index| (host.to_owned(), index));
    let of_subnets = (0..ports.len()).filter(|index| ports[*index].is_of_subnet);
    let numbered = (1..).zip(of_subnets).map(|(n, index)| (format!("{host}-{n}"), index));
    firsts.chain(numbered).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn port(device: &str, is_active: bool, is_of_subnet: bool) -> Port<'_> {
        Port { device, is_active, is_of_subnet }
    }

    #[track_caller]
    fn check(ports: &[Port<'_>], right: &[(&str, usize)]) {
        let names = of_ports("a", ports);
        let names: Vec<_> = names.iter().map(|(name, index)| (name.as_str(), *index)).collect();
        assert_eq!(names, right);
    }

    #[test]
    fn machine_s_name_has_no_domain() {
        for node in ["node1", "node1.example.com", "node1.", ".node1"] {
            assert_eq!(label(node), "node1");
        }
        assert_eq!(label("."), ".");
        assert!(!of_machine().trim_matches('.').contains('.'));
    }

    #[test]
    fn host_s_name_is_at_one_port_of_each_device_and_infiniband_ports_have_numbers() {
        let ports = [
            port("roce0", true, false),
            port("iw0", true, false),
            port("ib0", false, true),
            port("ib0", true, true),
        ];
        check(&ports, &[("a", 0), ("a", 1), ("a", 3), ("a-1", 2), ("a-2", 3)]);
    }

    #[test]
    fn device_without_an_active_port_has_the_name_nevertheless() {
        check(
            &[port("ib0", false, true), port("ib0", false, true)],
            &[("a", 0), ("a-1", 0), ("a-2", 1)],
        );
        check(&[], &[]);
    }
}
