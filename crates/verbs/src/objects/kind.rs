//! The kinds of devices that a host has: a table with one row for each.
//!
//! What kinds differ in is asked of the row, so that code need not know which kinds there are. A further kind is a variant of
//! [`DeviceKind`] and a row of the table here, a port in `rdmux_host::service::ports`, and a wire in `rdmux_link`.

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

/// A row of the table: what the devices of a kind have in common.
#[derive(Debug)]
pub struct KindRow {
    /// The kind.
    pub kind: DeviceKind,
    /// The word for it in `$RDMUX_DEVICE` and on command lines.
    pub word: &'static str,
    /// The name for it in messages.
    pub title: &'static str,
    /// What it is, for a list of choices.
    pub summary: &'static str,
    /// Its transport and what carries that, for a list of devices.
    pub protocols: &'static str,
    /// The name of a host's device of this kind, as `ibv_get_device_name(3)` gives it.
    pub device_name: &'static str,
    /// The type of its node.
    pub node_type: NodeType,
    /// What carries its messages.
    pub transport: TransportType,
    /// The types of queue pairs that it serves.
    pub services: Services,
    /// The link layer of its ports.
    pub link_layer: LinkLayer,
    /// What the entries of its ports' GID tables are.
    pub gid_kind: GidKind,
    /// How many entries a GID table has at least, so that addresses may come while programs run: those without are zero.
    pub gid_table: u16,
    /// Whether packets always have a GRH, so that address handles need a GID (`IBV_QPF_GRH_REQUIRED`).
    pub grh_required: bool,
    /// What its ports can do: flags of PortInfo's CapabilityMask (IBTA 14.2.5.6).
    pub port_capabilities: u32,
    /// The code of the time within which the device answers (Local CA ACK Delay, IBTA 9.7.6.1.3).
    pub ack_delay: u8,
    /// Whether processes of one host exchange packets by rings, and reach each other's memory.
    pub rings: bool,
    /// Its limits, unless the host's configuration says otherwise.
    pub limits: Limits,
}

/// The port has a connection manager (`IBV_PORT_CM_SUP`).
const CM_SUP: u32 = 1 << 16;
/// The port's GIDs are IP addresses (`IBV_PORT_IP_BASED_GIDS`).
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
        // Programs that connect queue pairs by themselves do so only on what says that it is InfiniBand.
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
        // What a stream carries it has no further cost in serving.
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
        // The fabric says what a port can do.
        port_capabilities: 0,
        ack_delay: 15,
        rings: true,
        limits: Limits::USUAL,
    },
];

/// How many kinds there are.
const COUNT: usize = DeviceKind::ALL.len();

/// The table of kinds, the default one first.
pub fn rows() -> &'static [KindRow] {
    &ROWS
}

/// All kinds, in the order of the table.
pub fn all() -> &'static [DeviceKind] {
    &DeviceKind::ALL
}

/// The kind with this number, as routes have it.
pub fn numbered(number: u32) -> Option<DeviceKind> {
    all().get(number as usize).copied()
}

/// The first kind whose devices have this transport.
pub fn with_transport(transport: TransportType) -> DeviceKind {
    first(|row| row.transport == transport)
}

fn first(wanted: impl Fn(&KindRow) -> bool) -> DeviceKind {
    rows().iter().find(|row| wanted(row)).map_or_else(DeviceKind::default, |row| row.kind)
}

impl DeviceKind {
    /// All of them. The index of each is its number in routes.
    pub const ALL: [Self; 3] = [Self::Roce, Self::Iwarp, Self::Ib];

    /// What devices of this kind have in common.
    pub fn row(self) -> &'static KindRow {
        &ROWS[self as usize]
    }

    /// The name of a host's device of this kind, as `ibv_get_device_name` gives it.
    pub fn device_name(self) -> &'static str {
        self.row().device_name
    }

    /// What carries its messages.
    pub fn transport_type(self) -> TransportType {
        self.row().transport
    }

    /// Whether its ports are on a fabric, without which a host has no such device unless it is asked for.
    pub fn is_on_fabric(self) -> bool {
        self.row().link_layer == LinkLayer::InfiniBand
    }

    /// Whether its QP1, and so the connection manager's datagrams, is the host service's: that of a port on a fabric is the
    /// fabric's.
    pub fn has_qp1_of_host(self) -> bool {
        self.row().services.include(QpType::Ud) && !self.is_on_fabric()
    }

    /// Whether each connection is a stream, which the connection manager opens and a queue pair is given.
    pub fn has_streams(self) -> bool {
        self.transport_type() == TransportType::Iwarp
    }
}

impl Limits {
    /// Those of a kind of device, unless the host's configuration says otherwise.
    pub fn of(kind: DeviceKind) -> Self {
        kind.row().limits
    }

    /// Of these, what a device of this kind can keep: some have no datagrams, and every table has an end.
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
    /// RC only: no datagrams, no unreliable and no extended connections.
    ReliableConnections,
}

impl Services {
    /// Whether a type is among them.
    pub fn include(self, qp_type: QpType) -> bool {
        match self {
            Self::All => true,
            Self::ReliableConnections => qp_type == QpType::Rc,
        }
    }

    /// What a device that serves these has, for messages.
    pub const fn title(self) -> &'static str {
        match self {
            Self::All => "queue pairs of every type",
            Self::ReliableConnections => "reliable connections only",
        }
    }
}

/// What a node is; the values of `ibv_node_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeType {
    /// A channel adapter.
    Ca = 1,
    /// An adapter for iWARP.
    Rnic = 4,
}

impl NodeType {
    /// The name that the kernel has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ca => "CA",
            Self::Rnic => "RNIC",
        }
    }
}

/// What an entry of a GID table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// An IP address of the host, as RoCEv2 has them.
    Address,
    /// Made from the GUID of the node or port, and no address.
    Node,
}

impl GidKind {
    /// What sysfs says of it (`gid_attrs/types`). The kernel has one word for all that is not of RoCEv2.
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
    /// Ethernet, or whatever carries IP.
    Ethernet = 2,
}

impl LinkLayer {
    /// The name that the kernel has for it.
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
    /// What `value` returns for each kind.
    pub fn new(value: impl FnMut(DeviceKind) -> T) -> Self {
        Self(DeviceKind::ALL.map(value))
    }
}

impl<T> PerKind<T> {
    /// The values, in the order of the kinds.
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
    fn rows_are_in_the_order_of_kinds_and_differ_in_their_names() {
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
    fn a_number_in_a_route_is_that_of_one_kind() {
        let numbers = 0..u32::try_from(COUNT).unwrap();
        let found: Vec<_> = numbers.filter_map(numbered).collect();
        assert_eq!(found, all());
        assert_eq!(numbered(u32::try_from(COUNT).unwrap()), None);
    }

    #[test]
    fn a_value_for_each_kind_is_kept_apart() {
        let mut words = PerKind::new(|kind| kind.row().word);
        assert_eq!((words[DeviceKind::Roce], words[DeviceKind::Iwarp]), ("roce", "iw"));
        words[DeviceKind::Iwarp] = "another";
        assert_eq!((words[DeviceKind::Roce], words[DeviceKind::Iwarp]), ("roce", "another"));
    }

    #[test]
    fn names_are_those_of_the_kernel() {
        assert_eq!((NodeType::Ca.name(), NodeType::Rnic.name()), ("CA", "RNIC"));
        assert_eq!(
            (LinkLayer::InfiniBand.name(), LinkLayer::Ethernet.name()),
            ("InfiniBand", "Ethernet")
        );
        assert_eq!((GidKind::Address.sysfs(), GidKind::Node.sysfs()), ("RoCE v2", "IB/RoCE v1"));
    }

    #[test]
    fn kinds_are_found_by_what_they_serve() {
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
