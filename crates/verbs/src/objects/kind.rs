//! The kinds of devices that a host has: a table with one row for each.
//!
//! Other code looks up the differences between kinds in the row, so that it need not name the kinds. To add a kind, add a
//! variant of [`DeviceKind`] and a row of the table here, a port in `rdmux_host::service::ports`, and a wire in `rdmux_link`.

use std::ops::{Index, IndexMut};

use rdmux_transport::attr::{QpType, TransportType};
use serde::{Deserialize, Serialize};

use super::limits::Limits;

/// The kinds of devices that a host has.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum DeviceKind {
    /// RoCEv2, over UDP.
    #[default]
    Roce,
    /// iWARP, over TCP.
    Iwarp,
    /// InfiniBand, over a fabric.
    Ib,
}

/// A row of the table: the common properties of the devices of a kind.
#[derive(Debug)]
pub struct KindRow {
    /// The kind.
    pub kind: DeviceKind,
    /// The kind's name in `$RDMUX_DEVICE` and on command lines.
    pub word: &'static str,
    /// The kind's name in messages.
    pub title: &'static str,
    /// A short description, for a list of choices.
    pub summary: &'static str,
    /// The transport and the protocol that carries it, for a list of devices.
    pub protocols: &'static str,
    /// The name of a host's device of this kind, which `ibv_get_device_name(3)` returns.
    pub device_name: &'static str,
    /// The node type of the device.
    pub node_type: NodeType,
    /// The transport of the device's messages.
    pub transport: TransportType,
    /// The types of queue pairs that it serves.
    pub services: Services,
    /// The link layer of its ports.
    pub link_layer: LinkLayer,
    /// The kind of the entries of its ports' GID tables.
    pub gid_kind: GidKind,
    /// The minimum number of entries of a GID table, so that addresses may be added while programs run. Unused entries are zero.
    pub gid_table: u16,
    /// Whether packets always have a GRH, so that address handles need a GID (`IBV_QPF_GRH_REQUIRED`).
    pub grh_required: bool,
    /// The capabilities of the device's ports: flags of PortInfo's CapabilityMask (IBTA 14.2.5.6).
    pub port_capabilities: u32,
    /// The code of the time within which the device answers (Local CA ACK Delay, IBTA 9.7.6.1.3).
    pub ack_delay: u8,
    /// Whether processes of one host exchange packets by rings, and access each other's memory.
    pub rings: bool,
    /// The limits of the kind, unless the host's configuration sets others.
    pub limits: Limits,
}

/// The capability flag for a port with a connection manager (`IBV_PORT_CM_SUP`).
const CM_SUP: u32 = 1 << 16;
/// The capability flag for a port whose GIDs are IP addresses (`IBV_PORT_IP_BASED_GIDS`).
const IP_BASED_GIDS: u32 = 1 << 26;

/// The table, in the order of [`DeviceKind`].
static ROWS: [KindRow; COUNT] = [
    KindRow {
        kind: DeviceKind::Roce,
        word: "roce",
        title: "RoCE",
        summary: "RoCEv2 over UDP",
        protocols: "InfiniBand over RoCEv2",
        device_name: "rdmux_roce0",
        // Programs that connect queue pairs by themselves do so only on devices that report InfiniBand.
        node_type: NodeType::Ca,
        transport: TransportType::Ib,
        services: Services::All,
        link_layer: LinkLayer::Ethernet,
        gid_kind: GidKind::Address,
        gid_table: 16,
        grh_required: true,
        port_capabilities: CM_SUP | IP_BASED_GIDS,
        ack_delay: 15,
        rings: true,
        limits: Limits::USUAL,
    },
    KindRow {
        kind: DeviceKind::Iwarp,
        word: "iw",
        title: "iWARP",
        summary: "iWARP over TCP",
        protocols: "iWARP over TCP",
        device_name: "rdmux_iw0",
        node_type: NodeType::Rnic,
        transport: TransportType::Iwarp,
        services: Services::ReliableConnections,
        link_layer: LinkLayer::Ethernet,
        gid_kind: GidKind::Node,
        gid_table: 1,
        grh_required: false,
        port_capabilities: CM_SUP,
        ack_delay: 0,
        rings: false,
        // READs cost nothing further to serve, as the stream carries them.
        limits: Limits { max_rd_atomic: 128, ..Limits::USUAL }.without_datagrams(),
    },
    KindRow {
        kind: DeviceKind::Ib,
        word: "ib",
        title: "InfiniBand",
        summary: "InfiniBand on a fabric",
        protocols: "InfiniBand on a fabric",
        device_name: "rdmux_ib0",
        node_type: NodeType::Ca,
        transport: TransportType::Ib,
        services: Services::All,
        link_layer: LinkLayer::InfiniBand,
        gid_kind: GidKind::Node,
        gid_table: 1,
        grh_required: false,
        // The fabric determines the capabilities of a port.
        port_capabilities: 0,
        ack_delay: 15,
        rings: true,
        limits: Limits::USUAL,
    },
];

/// The number of kinds.
const COUNT: usize = DeviceKind::ALL.len();

/// Returns the table of kinds, the default one first.
pub fn rows() -> &'static [KindRow] {
    &ROWS
}

/// Returns all kinds, in the order of the table.
pub fn all() -> &'static [DeviceKind] {
    &DeviceKind::ALL
}

/// Returns the kind with this number, as used in routes.
pub fn numbered(number: u32) -> Option<DeviceKind> {
    all().get(number as usize).copied()
}

/// Returns the first kind whose devices have this transport.
pub fn with_transport(transport: TransportType) -> DeviceKind {
    first(|row| row.transport == transport)
}

fn first(wanted: impl Fn(&KindRow) -> bool) -> DeviceKind {
    rows().iter().find(|row| wanted(row)).map_or_else(DeviceKind::default, |row| row.kind)
}

impl DeviceKind {
    /// All kinds. The index of each is its number in routes.
    pub const ALL: [Self; 3] = [Self::Roce, Self::Iwarp, Self::Ib];

    /// Returns the properties that devices of this kind have in common.
    pub fn row(self) -> &'static KindRow {
        &ROWS[self as usize]
    }

    /// Returns the name of a host's device of this kind, which `ibv_get_device_name` returns.
    pub fn device_name(self) -> &'static str {
        self.row().device_name
    }

    /// Returns the transport of its messages.
    pub fn transport_type(self) -> TransportType {
        self.row().transport
    }

    /// Returns whether the device's ports are on a fabric. Without a fabric, a host has no such device unless one is requested.
    pub fn is_on_fabric(self) -> bool {
        self.row().link_layer == LinkLayer::InfiniBand
    }

    /// Returns whether the device's QP1, and so the connection manager's datagrams, belongs to the host service. The QP1 of a
    /// port on a fabric belongs to the fabric.
    pub fn has_qp1_of_host(self) -> bool {
        self.row().services.include(QpType::Ud) && !self.is_on_fabric()
    }

    /// Returns whether each connection is a stream, which the connection manager opens and then gives to a queue pair.
    pub fn has_streams(self) -> bool {
        self.transport_type() == TransportType::Iwarp
    }
}

impl Limits {
    /// Returns the limits of a kind of device, which the host's configuration may override.
    pub fn of(kind: DeviceKind) -> Self {
        kind.row().limits
    }

    /// Caps these limits at those that a device of this kind supports: some kinds have no datagrams, and every table has a
    /// maximum size.
    #[must_use]
    pub fn possible_for(self, kind: DeviceKind) -> Self {
        let limits = self.possible();
        if kind.row().services.include(QpType::Ud) { limits } else { limits.without_datagrams() }
    }
}

/// The types of queue pairs that a device serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    /// Every type.
    All,
    /// RC only: no datagrams, no UC and no XRC.
    ReliableConnections,
}

impl Services {
    /// Returns whether a type is among them.
    pub fn include(self, qp_type: QpType) -> bool {
        match self {
            Self::All => true,
            Self::ReliableConnections => qp_type == QpType::Rc,
        }
    }

    /// Returns a description of the queue pairs of such a device, for messages.
    pub const fn title(self) -> &'static str {
        match self {
            Self::All => "queue pairs of every type",
            Self::ReliableConnections => "reliable connections only",
        }
    }
}

/// The type of a node; the values of `ibv_node_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeType {
    /// A channel adapter.
    Ca = 1,
    /// An adapter for iWARP.
    Rnic = 4,
}

impl NodeType {
    /// Returns the kernel's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ca => "CA",
            Self::Rnic => "RNIC",
        }
    }
}

/// The kind of an entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// An IP address of the host, as RoCEv2 has them.
    Address,
    /// A GID made from the GUID of the node or port, which is not an address.
    Node,
}

impl GidKind {
    /// Returns the text that sysfs has for it (`gid_attrs/types`). The kernel has one text for all kinds other than RoCEv2.
    pub const fn sysfs(self) -> &'static str {
        match self {
            Self::Address => "RoCE v2",
            Self::Node => "IB/RoCE v1",
        }
    }
}

/// The link layer of a port; the values of `IBV_LINK_LAYER_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum LinkLayer {
    /// InfiniBand's own: the port has a LID.
    InfiniBand = 1,
    /// Ethernet, or any other that carries IP.
    Ethernet = 2,
}

impl LinkLayer {
    /// Returns the kernel's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// A value for each kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerKind<T>([T; COUNT]);

impl<T> PerKind<T> {
    /// Calls `value` for each kind and keeps the results.
    pub fn new(value: impl FnMut(DeviceKind) -> T) -> Self {
        Self(DeviceKind::ALL.map(value))
    }
}

impl<T> PerKind<T> {
    /// Returns the values, in the order of the kinds.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceKind, &T)> {
        DeviceKind::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<DeviceKind> for PerKind<T> {
    type Output = T;
    fn index(&self, kind: DeviceKind) -> &T {
        &self.0[kind as usize]
    }
}

impl<T> IndexMut<DeviceKind> for PerKind<T> {
    fn index_mut(&mut self, kind: DeviceKind) -> &mut T {
        &mut self.0[kind as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_kind_rows_are_in_enum_order_with_unique_names() {
        for (i, row) in rows().iter().enumerate() {
            assert_eq!((row.kind as usize, DeviceKind::ALL[i]), (i, row.kind));
            assert_eq!(row.kind.device_name(), row.device_name);
            for other in &rows()[..i] {
                assert_ne!(row.word, other.word);
                assert_ne!(row.title, other.title);
                assert_ne!(row.device_name, other.device_name);
            }
        }
    }

    #[test]
    fn device_kind_numbers_map_to_one_kind_each() {
        let numbers = 0..u32::try_from(COUNT).unwrap();
        let found: Vec<_> = numbers.filter_map(numbered).collect();
        assert_eq!(found, all());
        assert_eq!(numbered(u32::try_from(COUNT).unwrap()), None);
    }

    #[test]
    fn per_kind_values_are_independent() {
        let mut words = PerKind::new(|kind| kind.row().word);
        assert_eq!((words[DeviceKind::Roce], words[DeviceKind::Iwarp]), ("roce", "iw"));
        words[DeviceKind::Iwarp] = "another";
        assert_eq!((words[DeviceKind::Roce], words[DeviceKind::Iwarp]), ("roce", "another"));
    }

    #[test]
    fn node_type_link_layer_and_gid_type_names_are_those_of_the_kernel() {
        assert_eq!((NodeType::Ca.name(), NodeType::Rnic.name()), ("CA", "RNIC"));
        assert_eq!(
            (LinkLayer::InfiniBand.name(), LinkLayer::Ethernet.name()),
            ("InfiniBand", "Ethernet")
        );
        assert_eq!((GidKind::Address.sysfs(), GidKind::Node.sysfs()), ("RoCE v2", "IB/RoCE v1"));
    }

    #[test]
    fn device_kind_is_found_by_transport_and_lists_its_qp_types() {
        for row in rows() {
            assert_eq!(with_transport(row.transport).transport_type(), row.transport);
        }
        assert_eq!(with_transport(TransportType::Iwarp), DeviceKind::Iwarp);
        assert!(DeviceKind::Iwarp.has_streams() && !DeviceKind::Roce.has_streams());
        assert!(DeviceKind::Iwarp.row().services.include(QpType::Rc));
        assert!(!DeviceKind::Iwarp.row().services.include(QpType::Ud));
        assert!(DeviceKind::Ib.row().services.include(QpType::XrcRecv));
        let limits = Limits { max_mr: u32::MAX, ..Limits::of(DeviceKind::Roce) };
        assert_eq!(limits.possible_for(DeviceKind::Roce).max_mr, (1 << 24) - 1);
        assert_eq!(limits.possible_for(DeviceKind::Iwarp).max_ah, 0);
    }
}
