//! A port of a device, of any link layer: its attributes and tables.
//!
//! The host service creates the value and sends it to processes unchanged. Everything that reports on ports reads it:
//! `ibv_query_port(3)`, `ibv_query_gid(3)`, `ibv_query_pkey(3)`, the files under `/sys`, `rdmux devices`.

use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey};
use serde::{Deserialize, Serialize};

use super::kind::{DeviceKind, GidKind, LinkLayer};

/// A port of a device. A device has one or more, numbered from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The attributes that `ibv_query_port(3)` returns.
    pub attr: PortAttr,
    /// The GID table.
    pub gids: GidTable,
    /// The IP addresses of its network interfaces, by index. An entry whose address is removed stays, and is zero.
    pub addresses: Vec<GidEntry>,
    /// The P_Key table.
    pub pkeys: Vec<Pkey>,
    /// Further attributes, if the port is on a managed subnet.
    pub managed: Option<Managed>,
}

/// Attributes of a port on a managed subnet, which sends and receives management datagrams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Managed {
    /// The name of the fabric that contains the subnet.
    pub fabric: String,
    /// The name of the port's node in the fabric.
    pub node: String,
    /// The port's number on that node.
    pub port: u8,
    /// Counters, with their names in sysfs.
    pub counters: Vec<(String, u64)>,
}

/// The maximum number of ports of a device.
pub const MAX_PORTS: u8 = 2;

/// An event of a port that is reported to programs (IBTA 11.6.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PortEvent {
    /// The port has become active.
    Active,
    /// The port is no longer active.
    Error,
    /// The port's LID or LMC has changed.
    LidChange,
    /// The subnet manager's LID, or the service level to it, has changed.
    SmChange,
    /// The subnet manager has lost multicast groups, services and subscriptions: programs must join and register again.
    ClientReregister,
    /// The port's P_Key table has changed.
    PkeyChange,
    /// The port's GID table has changed.
    GidChange,
}

/// An adapter of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    /// The description of the adapter's node.
    pub description: String,
    /// GUID of the system that contains the node.
    pub system_guid: Guid,
    /// Vendor ID, 24 bits.
    pub vendor_id: u32,
    /// Device ID.
    pub device_id: u16,
    /// Hardware revision.
    pub revision: u32,
}

/// Attributes of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAttr {
    /// The kind of the port's device.
    pub kind: DeviceKind,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
    /// State.
    pub state: PortState,
    /// Physical state.
    pub phys_state: PhysState,
    /// The LID; 0 if the link layer has none, as for the next four fields.
    pub lid: Lid,
    /// The number of path bits at the low end of the LID (LID mask count).
    pub lmc: u8,
    /// The LID of the subnet manager.
    pub sm_lid: Lid,
    /// The service level to the subnet manager.
    pub sm_sl: u8,
    /// The upper half of GIDs that are made from GUIDs.
    pub subnet_prefix: u64,
    /// The largest MTU.
    pub max_mtu: Mtu,
    /// The MTU in force: no datagram is longer.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_tbl_len: u16,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// The longest message.
    pub max_msg_sz: u32,
    /// Code of the width: 2 is four lanes.
    pub active_width: u8,
    /// Code of the speed: 32 is EDR, 25 Gb/s a lane.
    pub active_speed: u8,
    /// Code of the number of virtual lanes: 1 is VL0 alone.
    pub max_vls: u8,
    /// The maximum time that a datagram takes through the subnet, 5 bits: 4.096 us * 2^code.
    pub subnet_timeout: u8,
    /// The initialization that the subnet manager performed, of that which the port requested (InitTypeReply).
    pub init_type_reply: u8,
    /// The number of packets with a P_Key that the port does not have.
    pub pkey_violations: u16,
    /// The number of packets with a Q_Key that their queue pair does not have.
    pub qkey_violations: u16,
    /// Flags of PortInfo's CapabilityMask (IBTA 14.2.5.6).
    pub capabilities: u32,
    /// Whether packets always have a GRH (`IBV_QPF_GRH_REQUIRED`).
    pub grh_required: bool,
}

/// The GID table of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidTable {
    /// The port's IP addresses, as with RoCEv2.
    Addresses,
    /// Entries that are not IP addresses.
    Own(Vec<GidEntry>),
}

/// An entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidEntry {
    /// The GID; zero in an empty entry.
    pub gid: Gid,
    /// The kind of the entry.
    pub kind: GidKind,
    /// The network interface that has the address.
    pub interface: String,
    /// The operating system's index of the interface.
    pub interface_index: u32,
    /// The largest path MTU that fits the interface.
    pub mtu: Mtu,
}

impl GidEntry {
    /// Returns an entry without an address, to which one may be assigned.
    pub fn empty() -> Self {
        Self {
            gid: Gid::ZERO,
            kind: GidKind::Address,
            interface: String::new(),
            interface_index: 0,
            mtu: Mtu::M256,
        }
    }
}

/// The state of a port; the values of `ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum PortState {
    /// The link is down.
    Down = 1,
    /// The link is up, and only subnet management passes.
    Init = 2,
    /// The subnet manager has configured the port, which still sends only subnet management
    /// packets.
    Armed = 3,
    /// All packets pass.
    Active = 4,
}

impl PortState {
    /// Returns the state with this code (IBTA 14.2.5.6).
    pub const fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            _ => return None,
        })
    }

    /// Returns the name in sysfs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
        }
    }
}

/// The physical state of a port (IBTA 14.2.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum PhysState {
    /// The port listens, and sends nothing.
    Sleep = 1,
    /// The port looks for a neighbour.
    Polling = 2,
    /// The port was switched off.
    Disabled = 3,
    /// The port negotiates width and speed with its neighbour.
    Training = 4,
    /// The link is up.
    LinkUp = 5,
    /// The link had errors and is being restored.
    Recovery = 6,
    /// A test runs.
    Test = 7,
}

impl PhysState {
    /// All states, in the order of their codes from 1.
    const ALL: [Self; 7] = [
        Self::Sleep,
        Self::Polling,
        Self::Disabled,
        Self::Training,
        Self::LinkUp,
        Self::Recovery,
        Self::Test,
    ];

    /// Returns the state with this code.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the name in sysfs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sleep => "Sleep",
            Self::Polling => "Polling",
            Self::Disabled => "Disabled",
            Self::Training => "PortConfigurationTraining",
            Self::LinkUp => "LinkUp",
            Self::Recovery => "LinkErrorRecovery",
            Self::Test => "Phy Test",
        }
    }
}

/// The longest message (IBTA 9.7.7.1.1).
pub const MAX_MESSAGE: u32 = 1 << 31;
/// Codes of widths, with their number of lanes.
const WIDTHS: [(u8, u32); 5] = [(1, 1), (2, 4), (4, 8), (8, 12), (16, 2)];
/// Codes of speeds, their names, and the data rate of a lane in units of 100 Mb/s.
const SPEEDS: [(u8, &str, u32); 8] = [
    (1, "SDR", 25),
    (2, "DDR", 50),
    (4, "QDR", 100),
    (8, "FDR10", 100),
    (16, "FDR", 140),
    (32, "EDR", 250),
    (64, "HDR", 500),
    (128, "NDR", 1000),
];

impl PortAttr {
    /// Returns the number of lanes of the link.
    pub fn lanes(&self) -> u32 {
        WIDTHS.iter().find(|(code, _)| *code == self.active_width).map_or(1, |&(_, lanes)| lanes)
    }

    /// Returns whether this is one of the port's LIDs, with any path bits.
    pub fn owns(&self, lid: Lid) -> bool {
        lid.is_unicast() && (lid.0 ^ self.lid.0) >> self.lmc.min(7) == 0
    }

    /// Returns the name of a lane's speed, and the data rate of all lanes in units of 100 Mb/s.
    pub fn rate(&self) -> (&'static str, u32) {
        let speed = SPEEDS.iter().find(|(code, ..)| *code == self.active_speed);
        speed.map_or(("", 0), |&(_, name, lane)| (name, lane * self.lanes()))
    }
}

impl Port {
    /// Creates the port of a device of this kind that runs over IP. It has the addresses of network interfaces, the default
    /// P_Key, and no LID.
    pub fn over_ip(kind: DeviceKind, node_guid: Guid, addresses: Vec<GidEntry>) -> Self {
        let row = kind.row();
        let gids = match row.gid_kind {
            GidKind::Address => GidTable::Addresses,
            GidKind::Node => {
                let (gid, kind) = (node_gid(node_guid), GidKind::Node);
                let own = addresses.first().map(|first| GidEntry { gid, kind, ..first.clone() });
                GidTable::Own(own.into_iter().collect())
            }
        };
        let pkeys = vec![Pkey::DEFAULT];
        let len = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let attr = PortAttr {
            kind,
            link_layer: row.link_layer,
            state: PortState::Active,
            phys_state: PhysState::LinkUp,
            lid: Lid(0),
            lmc: 0,
            sm_lid: Lid(0),
            sm_sl: 0,
            subnet_prefix: 0,
            max_mtu: Mtu::M4096,
            active_mtu: active_mtu(&addresses),
            gid_tbl_len: len(gids.entries(&addresses).len()),
            pkey_tbl_len: len(pkeys.len()),
            max_msg_sz: MAX_MESSAGE,
            active_width: 2,
            active_speed: 32,
            max_vls: 1,
            subnet_timeout: 0,
            init_type_reply: 0,
            pkey_violations: 0,
            qkey_violations: 0,
            capabilities: row.port_capabilities,
            grh_required: row.grh_required,
        };
        Self { attr, gids, addresses, pkeys, managed: None }
    }

    /// Returns the entries of the GID table.
    pub fn gids(&self) -> &[GidEntry] {
        self.gids.entries(&self.addresses)
    }
}

impl GidTable {
    fn entries<'t>(&'t self, addresses: &'t [GidEntry]) -> &'t [GidEntry] {
        match self {
            Self::Addresses => addresses,
            Self::Own(own) => own,
        }
    }
}

/// Returns the one GID of an iWARP device, which is not an address: it begins with six bytes like those of an Ethernet address,
/// locally administered, and the rest is 0.
fn node_gid(node: Guid) -> Gid {
    let [_, _, _, tail @ ..] = node.0.to_be_bytes();
    let mut gid = Gid::ZERO;
    gid.0[0] = 0x02;
    gid.0[1..6].copy_from_slice(&tail);
    gid
}

/// Returns the MTU that fits every address that a program may choose: that of the narrowest interface. The loopback interface,
/// whose MTU is large, counts only without any other.
fn active_mtu(addresses: &[GidEntry]) -> Mtu {
    let used = || addresses.iter().filter(|g| !g.gid.is_zero());
    let outside = used().filter(|g| !g.gid.ip().is_loopback()).map(|g| g.mtu).min();
    outside.or_else(|| used().map(|g| g.mtu).max()).unwrap_or(Mtu::M1024)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::objects::kind;

    fn address(ip: &str, mtu: Mtu) -> GidEntry {
        let gid = ip.parse::<IpAddr>().unwrap().into();
        GidEntry { gid, mtu, ..GidEntry::empty() }
    }

    #[test]
    fn active_mtu_of_a_port_is_that_of_its_narrowest_interface() {
        let mtu_of = |addresses: &[GidEntry]| {
            Port::over_ip(DeviceKind::default(), Guid(1), addresses.to_vec()).attr.active_mtu
        };
        let lo = [address("127.0.0.1", Mtu::M4096), address("::1", Mtu::M4096)];
        assert_eq!(mtu_of(&lo), Mtu::M4096);
        let [v4, v6] = lo;
        let all = [v4, address("10.0.0.1", Mtu::M4096), address("fd00::1", Mtu::M1024), v6];
        assert_eq!(mtu_of(&all), Mtu::M1024);
        assert_eq!(mtu_of(&[]), Mtu::M1024);
        let some_are_empty = [GidEntry::empty(), address("10.0.0.1", Mtu::M4096)];
        assert_eq!(mtu_of(&some_are_empty), Mtu::M4096);
    }

    #[test]
    fn roce_gids_are_ip_addresses_and_the_iwarp_gid_is_from_the_node_guid() {
        let addresses = vec![address("10.0.0.1", Mtu::M1024), address("fd00::1", Mtu::M1024)];
        let gids = |kind| {
            let port = Port::over_ip(kind, Guid(0x0211_2233_4455_6676), addresses.clone());
            port.gids().iter().map(|entry| entry.gid).collect::<Vec<_>>()
        };
        assert_eq!(gids(DeviceKind::Roce), [addresses[0].gid, addresses[1].gid]);
        let node = [0x02, 0x33, 0x44, 0x55, 0x66, 0x76, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(gids(DeviceKind::Iwarp), [Gid(node)]);
    }

    #[test]
    fn port_rate_is_active_speed_times_active_width() {
        let attr = Port::over_ip(DeviceKind::default(), Guid(1), Vec::new()).attr;
        let rate = |active_width, active_speed| {
            PortAttr { active_width, active_speed, ..attr.clone() }.rate()
        };
        assert_eq!(
            (rate(1, 16), rate(16, 64), rate(8, 1)),
            (("FDR", 140), ("HDR", 1000), ("SDR", 300))
        );
        assert_eq!(rate(2, 3), ("", 0), "no such speed");
    }

    #[test]
    fn port_states_have_the_names_of_sysfs() {
        let states = [PortState::Down, PortState::Init, PortState::Armed, PortState::Active];
        assert_eq!(states.map(PortState::name), ["DOWN", "INIT", "ARMED", "ACTIVE"]);
        assert_eq!([1, 2, 3, 4].map(PortState::of_code), states.map(Some));
        assert_eq!((PortState::of_code(0), PortState::of_code(5)), (None, None));
    }

    #[test]
    fn physical_states_are_found_by_their_codes() {
        for state in PhysState::ALL {
            assert_eq!(PhysState::of_code(state as u8), Some(state));
        }
        assert_eq!((PhysState::of_code(0), PhysState::of_code(8)), (None, None));
    }

    #[test]
    fn lengths_of_a_ports_tables_are_those_in_its_attributes() {
        let addresses = vec![address("10.0.0.1", Mtu::M1024), address("10.0.0.2", Mtu::M1024)];
        for row in kind::rows().iter().filter(|row| !row.kind.is_on_fabric()) {
            let port = Port::over_ip(row.kind, Guid(0x0211_2233_4455_6676), addresses.clone());
            assert_eq!(usize::from(port.attr.gid_tbl_len), port.gids().len());
            assert_eq!(usize::from(port.attr.pkey_tbl_len), port.pkeys.len());
            assert!(port.gids().iter().all(|entry| entry.kind == row.gid_kind));
            assert_eq!(port.attr.rate(), ("EDR", 1000));
            assert_eq!((port.attr.link_layer, port.attr.lid), (row.link_layer, Lid(0)));
            assert_eq!(port.attr.capabilities, row.port_capabilities);
            assert_eq!(port.attr.grh_required, row.grh_required);
            assert_eq!(port.pkeys, [Pkey::DEFAULT]);
        }
    }
}
