//! A port: PortInfo, tables and counters, and the driver's view of it.

use alloc::vec;
use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_wire::sm::{
    CapabilityMask, CapabilityMask2, LinkDownDefault, LinkSpeed, LinkSpeedExt, LinkWidth,
    MlnxLinkSpeed, PhysState, PortInfo, PortState, SlToVlTable, Vl, VlArbitration,
};
use rdmux_wire::{Gid, Guid, Lid, Pkey};

use crate::config::Config;
use crate::counters::{Counter, Counters, DropReason, Shown};
use crate::packet::PortId;
use crate::topology::{LinkRate, NodeKind, Speed, Width};

/// A port. The attribute [`PortInfo`] is the port's state.
#[derive(Clone, Debug)]
pub(crate) struct PortData {
    pub(crate) id: PortId,
    pub(crate) guid: Guid,
    pub(crate) info: PortInfo,
    /// Speeds that PortInfo cannot express.
    pub(crate) mlnx: MlnxSpeeds,
    /// The port at the other end of the cable.
    pub(crate) peer: Option<usize>,
    /// Whether the cable carries a signal. An operator can switch it off.
    pub(crate) cable_up: bool,
    /// Whether programs are attached to the port, which receive what its agents do not answer.
    pub(crate) attached: bool,
    /// The time at which the lease of the M_Key ends, if it runs.
    pub(crate) lease: Option<Time>,
    /// The nonzero part of the P_Key table.
    pub(crate) pkeys: Vec<Pkey>,
    /// The GUIDs after the first; zero for an unused entry.
    pub(crate) aliases: Vec<Guid>,
    /// An adapter's SL-to-VL table, if it was set.
    pub(crate) sl_to_vl: Option<[u8; 8]>,
    /// The arbitration table blocks that were set.
    pub(crate) vl_arbitration: Vec<VlArbitration>,
    pub(crate) counters: Counters,
}

/// Mellanox-specific speeds of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlnxSpeeds {
    pub(crate) supported: MlnxLinkSpeed,
    pub(crate) enabled: MlnxLinkSpeed,
    pub(crate) active: MlnxLinkSpeed,
}

impl MlnxSpeeds {
    const NONE: Self = Self {
        supported: MlnxLinkSpeed::empty(),
        enabled: MlnxLinkSpeed::empty(),
        active: MlnxLinkSpeed::empty(),
    };
}

/// The kind of port, as far as PortInfo depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortKind {
    /// A port of an adapter or a router.
    Adapter,
    /// Port 0 of a switch.
    Management,
    /// Any other port of a switch.
    External,
}

impl PortKind {
    pub(crate) const fn of(node: NodeKind, number: u8) -> Self {
        match (node, number) {
            (NodeKind::Switch, 0) => Self::Management,
            (NodeKind::Switch, _) => Self::External,
            _ => Self::Adapter,
        }
    }
}

impl PortData {
    pub(crate) fn new(id: PortId, kind: PortKind, guid: Guid, config: &Config) -> Self {
        Self {
            id,
            guid,
            info: power_on(kind, config),
            mlnx: MlnxSpeeds::NONE,
            peer: None,
            cable_up: true,
            attached: false,
            lease: None,
            pkeys: vec![Pkey::DEFAULT],
            aliases: Vec::new(),
            sl_to_vl: None,
            vl_arbitration: Vec::new(),
            counters: Counters::new(),
        }
    }

    /// Returns whether the port can pass subnet management.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.info.port_state != PortState::DOWN
    }

    /// Returns whether this LID belongs to the port.
    #[inline]
    pub(crate) fn owns(&self, lid: Lid) -> bool {
        let mask = (1 << (self.info.lmc & 7)) - 1;
        self.info.lid != Lid::NONE && lid.0 & !mask == self.info.lid.0 & !mask
    }

    /// Returns the source LID of the port's packets: its LID, or the permissive LID while it has none.
    pub(crate) fn source(&self) -> Lid {
        if self.info.lid == Lid::NONE { Lid::PERMISSIVE } else { self.info.lid }
    }

    /// Returns whether a packet with this key may enter: some key of the table admits it.
    #[inline]
    pub(crate) fn admits(&self, pkey: Pkey) -> bool {
        pkey.0 & 0x7fff != 0 && self.pkeys.iter().any(|own| pkey.admits(*own))
    }

    /// Returns the port's own key of the partition, with which it answers a packet that has this key.
    pub(crate) fn own_key(&self, pkey: Pkey) -> Pkey {
        self.pkeys.iter().copied().find(|own| pkey.admits(*own)).unwrap_or(pkey)
    }

    /// Returns whether a packet with this key may enter from the neighbour, whose table this port has. The packet has the
    /// neighbour's own key, so limited members send limited keys. The egress port and the receiver check whether the other
    /// side admits it.
    #[inline]
    pub(crate) fn has_partition(&self, pkey: Pkey) -> bool {
        let base = |key: Pkey| key.0 & 0x7fff;
        base(pkey) != 0 && self.pkeys.iter().any(|own| base(*own) == base(pkey))
    }

    /// Returns the lane of a service level, by this table or by the default one; none if the lane is not operational.
    pub(crate) fn lane(&self, table: Option<&[u8; 8]>, sl: u8) -> Option<u8> {
        let lanes = self.info.operational_vls.count().max(1);
        let sl = sl & 0xf;
        let vl = match table {
            Some(table) => {
                let both = table[usize::from(sl / 2)];
                if sl.is_multiple_of(2) { both >> 4 } else { both & 0xf }
            }
            None => sl % lanes,
        };
        (vl < lanes).then_some(vl)
    }

    /// Sets the highest rate of the port's hardware, by the cable in the topology.
    pub(crate) fn set_rate(&mut self, rate: LinkRate) {
        let widths = LinkWidth::from_bits_retain(rate.width.mask());
        let speeds = LinkSpeed::from_bits_retain(rate.speed.mask());
        let ext = LinkSpeedExt::from_bits_retain(rate.speed.ext_mask());
        let mlnx = MlnxLinkSpeed::from_bits_retain(rate.speed.mlnx_mask());
        (self.mlnx.supported, self.mlnx.enabled) = (mlnx, mlnx);
        let info = &mut self.info;
        (info.link_width_supported, info.link_width_enabled) = (widths, widths);
        (info.link_speed_supported, info.link_speed_enabled) = (speeds, speeds);
        (info.link_speed_ext_supported, info.link_speed_ext_enabled) = (ext, ext);
    }

    /// Returns the active rate, if there is a link.
    pub(crate) fn rate(&self) -> Option<LinkRate> {
        let info = &self.info;
        let width = Width::widest(info.link_width_active.bits())?;
        let ext = info.link_speed_ext_active.bits();
        let speed = if ext == 0 { info.link_speed_active.bits() } else { 0 };
        let speed = Speed::fastest(speed, ext, self.mlnx.active.bits())?;
        (self.is_up()).then_some(LinkRate { width, speed })
    }
}

/// Returns the default SL-to-VL mapping for this many lanes.
pub(crate) fn default_sl_to_vl(lanes: u8) -> [u8; 8] {
    let vl = |sl: u8| Vl(sl % lanes.max(1));
    let sls: [u8; 16] = core::array::from_fn(|sl| u8::try_from(sl).unwrap_or_default());
    SlToVlTable { vls: sls.map(vl) }.to_bytes()
}

/// Returns PortInfo after power-on.
fn power_on(kind: PortKind, config: &Config) -> PortInfo {
    let mtu = config.mtu_cap.code();
    let mut info = PortInfo {
        gid_prefix: Gid::DEFAULT_PREFIX,
        port_state: PortState::DOWN,
        port_physical_state: PhysState::POLLING,
        link_down_default_state: LinkDownDefault::POLLING,
        neighbor_mtu: mtu,
        mtu_cap: mtu,
        vl_cap: config.vl_cap,
        operational_vls: config.vl_cap,
        vl_arbitration_high_cap: 8,
        vl_arbitration_low_cap: 8,
        hoq_life: 0x10,
        subnet_timeout: 0x12,
        resp_time_value: 0x10,
        ..PortInfo::default()
    };
    let common = CapabilityMask::TRAP
        | CapabilityMask::SL_MAPPING
        | CapabilityMask::SYSTEM_IMAGE_GUID
        | CapabilityMask::EXTENDED_SPEEDS
        | CapabilityMask::CAPABILITY_MASK2
        | CapabilityMask::VENDOR_CLASS
        | CapabilityMask::CAPABILITY_MASK_NOTICE
        | CapabilityMask::CLIENT_REREGISTRATION
        | CapabilityMask::OTHER_LOCAL_CHANGES;
    match kind {
        PortKind::Adapter => {
            info.guid_cap = config.guid_cap.max(1);
            info.capability_mask = common
                | CapabilityMask::AUTOMATIC_MIGRATION
                | CapabilityMask::COMMUNICATION_MANAGEMENT;
        }
        PortKind::Management => {
            info.guid_cap = 1;
            info.capability_mask = common;
            info.port_state = PortState::ACTIVE;
            info.port_physical_state = PhysState::LINK_UP;
            info.link_width_supported = LinkWidth::X4;
            (info.link_width_enabled, info.link_width_active) = (LinkWidth::X4, LinkWidth::X4);
            info.link_speed_supported = LinkSpeed::QDR;
            (info.link_speed_enabled, info.link_speed_active) = (LinkSpeed::QDR, LinkSpeed::QDR);
        }
        PortKind::External => info.capability_mask = CapabilityMask::EXTENDED_SPEEDS,
    }
    info.capability_mask2 = CapabilityMask2::LINK_WIDTH_2X | CapabilityMask2::LINK_SPEED_HDR;
    if kind != PortKind::External {
        info.capability_mask2 |= CapabilityMask2::SET_NODE_DESCRIPTION;
    }
    info
}

/// The driver's view of a port.
#[derive(Clone, Copy, Debug)]
pub struct PortView<'a> {
    pub(crate) port: &'a PortData,
}

impl<'a> PortView<'a> {
    /// Returns the port's node and number.
    pub fn id(self) -> PortId {
        self.port.id
    }
    /// Returns the PortGUID.
    pub fn guid(self) -> Guid {
        self.port.guid
    }
    /// Returns the present PortInfo. It includes the M_Key, so it is for the port's owner only.
    pub fn info(self) -> &'a PortInfo {
        &self.port.info
    }
    /// Returns the base LID, or 0.
    pub fn lid(self) -> Lid {
        self.port.info.lid
    }
    /// Returns the LMC: the number of low LID bits that are path bits.
    pub fn lmc(self) -> u8 {
        self.port.info.lmc
    }
    /// Returns the manager's LID, or 0.
    pub fn sm_lid(self) -> Lid {
        self.port.info.sm_lid
    }
    /// Returns the service level to the manager.
    pub fn sm_sl(self) -> u8 {
        self.port.info.master_smsl
    }
    /// Returns the logical state.
    pub fn state(self) -> PortState {
        self.port.info.port_state
    }
    /// Returns the physical state.
    pub fn phys_state(self) -> PhysState {
        self.port.info.port_physical_state
    }
    /// Returns width and speed, if there is a link.
    pub fn rate(self) -> Option<LinkRate> {
        self.port.rate()
    }
    /// Returns the capability mask.
    pub fn capability_mask(self) -> CapabilityMask {
        self.port.info.capability_mask
    }
    /// Returns the P_Key at an index; none beyond the table.
    pub fn pkey(self, index: u16) -> Option<Pkey> {
        self.port.pkeys.get(usize::from(index)).copied().filter(|key| *key != Pkey(0))
    }
    /// Returns the used part of the P_Key table; unused entries are zero.
    pub fn pkeys(self) -> &'a [Pkey] {
        &self.port.pkeys
    }
    /// Returns the GID at an index: the subnet prefix and a GUID. None if the port has no such GUID.
    pub fn gid(self, index: u8) -> Option<Gid> {
        let guid = match index.checked_sub(1) {
            None => self.port.guid,
            Some(alias) => *self.port.aliases.get(usize::from(alias))?,
        };
        (guid != Guid(0)).then(|| Gid::new(self.port.info.gid_prefix, guid))
    }
    /// Returns whether programs are attached to the port.
    pub fn is_attached(self) -> bool {
        self.port.attached
    }
    /// Returns a counter as PortCountersExtended shows it, without the limits of PortCounters.
    pub fn counter(self, counter: Counter) -> u64 {
        self.port.counters.get(counter, Shown::Extended)
    }
    /// Returns how many datagrams this port has dropped for a reason.
    pub fn drops(self, reason: DropReason) -> u64 {
        self.port.counters.drops(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::NodeId;
    use rdmux_wire::sm::VlCap;

    fn port() -> PortData {
        PortData::new(PortId::new(NodeId(0), 1), PortKind::Adapter, Guid(7), &Config::default())
    }

    #[test]
    fn port_owns_the_lids_of_its_lmc_range() {
        let mut port = port();
        assert!(!port.owns(Lid(0)));
        (port.info.lid, port.info.lmc) = (Lid(8), 2);
        assert!([8, 9, 11].iter().all(|lid| port.owns(Lid(*lid))));
        assert!(![7, 12, 0, 0xffff].iter().any(|lid| port.owns(Lid(*lid))));
    }

    #[test]
    fn limited_members_do_not_admit_each_other() {
        let mut port = port();
        port.pkeys = vec![Pkey(0x7fff), Pkey(0), Pkey(0x8001)];
        for (key, admitted) in [
            (0xffff, true),
            (0x7fff, false),
            (0x0001, true),
            (0x8002, false),
            (0, false),
            (0x8000, false),
        ] {
            assert_eq!(port.admits(Pkey(key)), admitted, "{key:#x}");
        }
    }

    #[test]
    fn sl_maps_to_vl_modulo_operational_vls_without_an_sl_to_vl_table() {
        let mut port = port();
        assert_eq!(port.lane(None, 9), Some(1));
        port.info.operational_vls = VlCap::VL0_1;
        assert_eq!(port.lane(None, 9), Some(1));
        let table = [0x01, 0x2f, 0, 0, 0, 0, 0, 0];
        assert_eq!(port.lane(Some(&table), 1), Some(1));
        assert_eq!(port.lane(Some(&table), 2), None, "lane 2 is not operational");
        assert_eq!(port.lane(Some(&table), 3), None, "lane 15 drops");
        assert_eq!(default_sl_to_vl(2), [0x01; 8]);
    }

    #[test]
    fn gids_are_prefix_and_guid() {
        let mut port = port();
        port.aliases = vec![Guid(0), Guid(9)];
        let view = PortView { port: &port };
        assert_eq!(view.gid(0), Some(Gid::new(Gid::DEFAULT_PREFIX, Guid(7))));
        assert_eq!(view.gid(1), None);
        assert_eq!(view.gid(2), Some(Gid::new(Gid::DEFAULT_PREFIX, Guid(9))));
        assert_eq!(view.gid(3), None);
    }
}
