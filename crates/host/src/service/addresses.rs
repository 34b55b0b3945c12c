//! The host's addresses, indexed like its GIDs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use rdmux_cm::LocalAddress;
use rdmux_link::udp::OpenError;
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::kind::GidKind;
use rdmux_verbs::port::GidEntry;
use rdmux_verbs::throttled;
use rdmux_wire::{Guid, Mtu};

use super::netlink::{Interface, InterfaceAddress, Netlink};
use super::ports::roce::Sockets;
use crate::error::HostError;

/// The most bytes of a packet that are not payload, as Linux counts them for RoCE: the path MTU must fit into the rest
/// of the interface's MTU (`iboe_get_mtu`).
const OVERHEAD: u32 = 96;
/// A GID index has eight bits.
const MAX_GIDS: usize = 256;

/// The addresses of a host. An address that is removed leaves its row empty, so that the others keep their index. The
/// row is used again.
#[derive(Debug)]
pub(super) struct Addresses {
    /// The addresses that the caller fixed. If none, the machine's are used.
    fixed: Option<Vec<IpAddr>>,
    port: u16,
    rows: Vec<Option<Row>>,
}

/// A row of the GID table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) ip: IpAddr,
    /// The interface that has the address.
    pub(super) interface: Interface,
    /// The prefix length of the address.
    pub(super) prefix: u8,
    /// RoCE's sockets on the address.
    pub(super) roce: Sockets,
    /// The entry of the GID table.
    pub(super) entry: GidEntry,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// GID indices that received an address.
    pub(super) added: Vec<u8>,
    /// Rows whose address was removed.
    pub(super) removed: Vec<Row>,
    /// Whether an address is on another interface now, or its prefix length changed.
    pub(super) moved: bool,
    /// Whether the largest packet of an address changed.
    pub(super) resized: bool,
    /// The error of an address whose port is in use by another program. The others are served.
    pub(super) refused: Option<HostError>,
}

impl Addresses {
    pub(super) fn new(fixed: Option<Vec<IpAddr>>, port: u16) -> Self {
        Self { fixed, port, rows: Vec::new() }
    }

    /// Updates the table to the machine's addresses.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub(super) fn scan(&mut self, netlink: &mut Netlink) -> Result<Changes, HostError> {
        let fail = |e| HostError::io("list the machine's addresses", e);
        let interfaces = netlink.interfaces().map_err(fail)?;
        let present = netlink.addresses().map_err(fail)?;
        let wanted = match &self.fixed {
            Some(fixed) => fixed.iter().filter_map(|&ip| locate(ip, &present)).collect(),
            None => {
                let loopback = |a: &InterfaceAddress| {
                    interfaces.iter().any(|i| i.index == a.interface && i.is_loopback())
                };
                preferred(&present, loopback)
            }
        };
        let mut changes = Changes::default();
        for row in &mut self.rows {
            let gone = |r: &mut Row| !wanted.iter().any(|w| r.may_stay(w));
            changes.removed.extend(row.take_if(gone));
        }
        for address in wanted {
            let interface = interfaces.iter().find(|i| i.index == address.interface);
            let Some(interface) = interface.filter(|i| i.is_up()) else { continue };
            let known = self.rows.iter_mut().flatten().find(|row| row.ip == address.ip);
            if let Some(row) = known {
                row.follow(address, interface, &mut changes);
                continue;
            }
            match self.open(address, interface) {
                Ok(index) => changes.added.extend(index),
                Err(e) => changes.refused = changes.refused.or(Some(e)),
            }
        }
        Ok(changes)
    }

    /// Opens the port on an address and gives it a row. `None` when no row is free, or the address cannot be used.
    fn open(
        &mut self,
        address: InterfaceAddress,
        interface: &Interface,
    ) -> Result<Option<u8>, HostError> {
        let ip = address.ip;
        let roce = match Sockets::open(ip, self.port, scope_id(&address)) {
            Ok(opened) => opened,
            Err(OpenError::InUse { addr, port, holder }) => {
                let holder = holder.map(|h| h.to_string());
                return Err(HostError::PortInUse { address: addr, port, holder });
            }
            Err(e) => {
                throttled!(warn, "address {ip} is not served: {e}");
                return Ok(None);
            }
        };
        let entry = GidEntry {
            gid: ip.into(),
            kind: GidKind::Address,
            interface: interface.name.clone(),
            interface_index: interface.index,
            mtu: path_mtu(interface.mtu),
        };
        let row = Row { ip, interface: interface.clone(), prefix: address.prefix, roce, entry };
        let free = self.rows.iter().position(Option::is_none).unwrap_or(self.rows.len());
        let Some(index) = u8::try_from(free).ok().filter(|_| free < MAX_GIDS) else {
            throttled!(warn, "address {ip} is not served: the GID table is full");
            return Ok(None);
        };
        if free == self.rows.len() {
            self.rows.push(Some(row));
        } else {
            self.rows[free] = Some(row);
        }
        Ok(Some(index))
    }

    /// Returns the row of a GID index.
    pub(super) fn row(&self, index: u8) -> Option<&Row> {
        self.rows.get(usize::from(index))?.as_ref()
    }

    /// Returns the row of a GID index, to change it.
    pub(super) fn row_mut(&mut self, index: u8) -> Option<&mut Row> {
        self.rows.get_mut(usize::from(index))?.as_mut()
    }

    /// Returns the row of an address.
    pub(super) fn find(&self, ip: IpAddr) -> Option<&Row> {
        self.rows().map(|(_, row)| row).find(|row| row.ip == ip)
    }

    /// Returns all rows that hold an address, with their index.
    pub(super) fn rows(&self) -> impl Iterator<Item = (u8, &Row)> {
        (0u8..=u8::MAX).zip(&self.rows).filter_map(|(i, row)| Some((i, row.as_ref()?)))
    }

    /// Returns the addresses as GIDs. An empty row is an all-zero GID.
    pub(super) fn gids(&self) -> Vec<GidEntry> {
        let entry = |row: &Row| row.entry.clone();
        self.rows.iter().map(|r| r.as_ref().map_or_else(GidEntry::empty, entry)).collect()
    }

    /// Returns the addresses in the connection manager's form, as those of a device.
    pub(super) fn for_cm(&self, kind: DeviceKind, node_guid: Guid) -> Vec<LocalAddress> {
        let device = (kind as u32, kind.transport_type());
        let address = |(sgid_index, row): (u8, &Row)| LocalAddress {
            sgid_index,
            ..LocalAddress::over_ip(row.ip, device, node_guid, row.entry.mtu)
        };
        self.rows().map(address).collect()
    }

    /// Drops the datagrams queued in a slot's sockets, before another process gets the slot.
    pub(super) fn recycle(&self, slot: u16) {
        for (_, row) in self.rows() {
            row.roce.recycle(slot);
        }
    }

    /// Returns whether this is a virtual host: it has only loopback addresses of its own, which the kernel would not
    /// choose as a source.
    pub(super) fn is_virtual(&self) -> bool {
        self.rows().all(|(_, row)| {
            matches!(row.ip, IpAddr::V4(ip) if ip.is_loopback() && ip != Ipv4Addr::LOCALHOST)
        })
    }
}

impl Row {
    /// Returns whether the row, with its sockets, can keep the address in its present state. Sockets of a link-local address are
    /// bound to its interface.
    fn may_stay(&self, now: &InterfaceAddress) -> bool {
        self.ip == now.ip && (scope_id(now) == 0 || self.interface.index == now.interface)
    }

    /// Updates the row to the present state of its address.
    fn follow(&mut self, now: InterfaceAddress, interface: &Interface, changes: &mut Changes) {
        let is_moved = (self.interface.index, &self.interface.name, self.prefix)
            != (interface.index, &interface.name, now.prefix);
        let mtu = path_mtu(interface.mtu);
        changes.moved |= is_moved;
        changes.resized |= self.entry.mtu != mtu;
        self.interface = interface.clone();
        self.prefix = now.prefix;
        self.entry.interface.clone_from(&interface.name);
        (self.entry.interface_index, self.entry.mtu) = (interface.index, mtu);
    }

    /// Returns whether other machines may have the same address: loopback and link-local addresses, and those of bridges
    /// to this machine's containers.
    pub(super) fn is_of_machine(&self) -> bool {
        let is_of_link = match self.ip {
            IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
        };
        is_of_link || self.interface.is_bridge
    }

    /// Returns a peer's address in the form that a socket of this row needs.
    pub(super) fn peer(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, self.interface.index).into()
            }
            ip => SocketAddr::new(ip, port),
        }
    }
}

/// Returns the largest path MTU over an interface.
fn path_mtu(interface_mtu: u32) -> Mtu {
    Mtu::at_most(interface_mtu.saturating_sub(OVERHEAD)).unwrap_or(Mtu::M256)
}

fn scope_id(address: &InterfaceAddress) -> u32 {
    match address.ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => address.interface,
        _ => 0,
    }
}

/// Finds the interface of a fixed address: one that has it, or that has the whole loopback network.
fn locate(ip: IpAddr, present: &[InterfaceAddress]) -> Option<InterfaceAddress> {
    let exact = present.iter().find(|a| a.ip == ip);
    let covering =
        || present.iter().find(|a| ip.is_loopback() && a.ip.is_loopback() && a.is_on_link(ip));
    exact.or_else(covering).map(|a| InterfaceAddress { ip, ..*a })
}

/// Returns the addresses of the default host, most useful first, for programs that take GID index 0: IPv4 addresses
/// that other machines can reach, then 127.0.0.1, global IPv6, ::1, and link-local IPv6. Other loopback addresses are
/// for virtual hosts.
fn preferred(
    present: &[InterfaceAddress],
    is_loopback: impl Fn(&InterfaceAddress) -> bool,
) -> Vec<InterfaceAddress> {
    let class = |a: &InterfaceAddress| match a.ip {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => Some(1),
        IpAddr::V4(ip) if ip.is_loopback() => None,
        IpAddr::V4(_) if is_loopback(a) => Some(2),
        IpAddr::V4(_) => Some(0),
        IpAddr::V6(ip) if ip.is_loopback() => Some(4),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(5),
        IpAddr::V6(_) => Some(3),
    };
    let mut sorted: Vec<_> = present.iter().filter_map(|a| Some((class(a)?, *a))).collect();
    sorted.sort_by_key(|&(class, _)| class);
    let mut addresses: Vec<InterfaceAddress> = Vec::new();
    for (_, a) in sorted {
        // A link-local address may be on two interfaces; a GID table has it once.
        if !addresses.iter().any(|b| b.ip == a.ip) {
            addresses.push(a);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str, interface: u32) -> InterfaceAddress {
        InterfaceAddress { ip: ip.parse().unwrap(), prefix: 8, interface }
    }

    #[test]
    fn the_most_useful_address_comes_first() {
        let present = [
            at("127.0.0.1", 1),
            at("127.0.1.1", 1),
            at("::1", 1),
            at("fe80::1", 2),
            at("2001:db8::1", 2),
            at("192.0.2.1", 2),
            at("192.0.2.99", 1),
            at("fe80::1", 3),
        ];
        let order: Vec<String> =
            preferred(&present, |a| a.interface == 1).iter().map(|a| a.ip.to_string()).collect();
        assert_eq!(
            order,
            ["192.0.2.1", "127.0.0.1", "192.0.2.99", "2001:db8::1", "::1", "fe80::1"]
        );
    }

    #[test]
    fn path_mtus_are_those_of_linux() {
        for (interface, path) in
            [(1500, 1024), (9000, 4096), (65536, 4096), (4192, 4096), (4191, 2048), (100, 256)]
        {
            assert_eq!(path_mtu(interface).bytes(), path, "{interface}");
        }
    }

    #[test]
    fn a_virtual_address_is_on_the_loopback_interface() {
        let present = [at("10.0.0.1", 2), at("127.0.0.1", 1)];
        let found = locate("127.77.0.9".parse().unwrap(), &present).unwrap();
        assert_eq!((found.interface, found.ip.to_string()), (1, "127.77.0.9".to_owned()));
        assert!(locate("10.0.0.2".parse().unwrap(), &present).is_none());
    }
}
