//! PortInfo: the properties of a port (IBTA 14.2.5.6). The modifier is the port's number; its bit
//! 31 is set if the manager supports extended speeds.

use super::link::{
    LinkDownDefault, LinkSpeed, LinkSpeedExt, LinkWidth, PhysState, PortState, VlCap,
};
use crate::layout::{flags, layout};
use crate::{Lid, Mkey};

layout! {
    /// A port.
    PortInfo("PortInfo", 64) {
        /// The key that managers must present.
        mkey: Mkey = 0;
        /// The subnet prefix, the first half of GIDs.
        gid_prefix: u64 = 8;
        /// The base LID, or 0.
        lid: Lid = 16;
        /// The LID of the subnet manager.
        sm_lid: Lid = 18;
        /// The capabilities of the port.
        capability_mask: CapabilityMask = 20;
        /// The vendor's diagnostic code; 0 means no fault.
        diag_code: u16 = 24;
        /// How long the protection lasts after a wrong M_Key, in seconds; 0 means forever.
        mkey_lease_period: u16 = 26;
        /// The port that received the request.
        local_port_num: u8 = 28;
        /// The enabled widths.
        link_width_enabled: LinkWidth = 29;
        /// The supported widths.
        link_width_supported: LinkWidth = 30;
        /// The active width.
        link_width_active: LinkWidth = 31;
        /// The supported speeds.
        link_speed_supported: LinkSpeed = 32 [0, 4];
        /// The logical state.
        port_state: PortState = 32 [4, 4];
        /// The physical state.
        port_physical_state: PhysState = 33 [0, 4];
        /// The state of the port after its link goes down.
        link_down_default_state: LinkDownDefault = 33 [4, 4];
        /// The access with a wrong M_Key: 0 and 1 allow reading, 2 and 3 nothing.
        mkey_protect_bits: u8 = 34 [0, 2];
        /// Reserved.
        reserved34: u8 = 34 [2, 3];
        /// LID mask control: the port has 2^lmc LIDs.
        lmc: u8 = 34 [5, 3];
        /// The active speed.
        link_speed_active: LinkSpeed = 35 [0, 4];
        /// The enabled speeds.
        link_speed_enabled: LinkSpeed = 35 [4, 4];
        /// The peer's largest packet size, a code of [`Mtu`](crate::Mtu).
        neighbor_mtu: u8 = 36 [0, 4];
        /// The service level to the subnet manager.
        master_smsl: u8 = 36 [4, 4];
        /// The supported virtual lanes.
        vl_cap: VlCap = 37 [0, 4];
        /// The initialization that the port requests of a manager.
        init_type: u8 = 37 [4, 4];
        /// How much high-priority lanes may send before a low-priority one does, in 4 KiB; 255 means unlimited.
        vl_high_limit: u8 = 38;
        /// The number of entries in the high-priority arbitration table.
        vl_arbitration_high_cap: u8 = 39;
        /// The number of entries in the low-priority arbitration table.
        vl_arbitration_low_cap: u8 = 40;
        /// The parts of `init_type` that a manager has carried out.
        init_type_reply: u8 = 41 [0, 4];
        /// The port's largest packet size, a code of [`Mtu`](crate::Mtu).
        mtu_cap: u8 = 41 [4, 4];
        /// The number of packets dropped at the head of a queue after which a lane stalls.
        vl_stall_count: u8 = 42 [0, 3];
        /// How long a packet may be at the head of a queue: 4.096 us * 2^code, unlimited from 20 on.
        hoq_life: u8 = 42 [3, 5];
        /// The virtual lanes in use.
        operational_vls: VlCap = 43 [0, 4];
        /// For a switch: whether the partition of received packets is checked.
        partition_enforcement_inbound: bool = 43 [4, 1];
        /// For a switch: whether the partition of sent packets is checked.
        partition_enforcement_outbound: bool = 43 [5, 1];
        /// For a switch: whether received raw packets are dropped.
        filter_raw_inbound: bool = 43 [6, 1];
        /// For a switch: whether raw packets to send are dropped.
        filter_raw_outbound: bool = 43 [7, 1];
        /// The number of wrong M_Keys so far; stays at the largest value.
        mkey_violations: u16 = 44;
        /// The number of wrong P_Keys so far; stays at the largest value.
        pkey_violations: u16 = 46;
        /// The number of wrong Q_Keys so far; stays at the largest value.
        qkey_violations: u16 = 48;
        /// The number of GUIDs that the port can have.
        guid_cap: u8 = 50;
        /// In a Set: whether programs on this port should register with the manager again.
        client_reregister: bool = 51 [0, 1];
        /// The traps about P_Keys of multicast packets that are suppressed.
        multicast_pkey_trap_suppression: u8 = 51 [1, 2];
        /// The longest delay through the subnet: 4.096 us * 2^code. Traps are repeated no faster.
        subnet_timeout: u8 = 51 [3, 5];
        /// Reserved.
        reserved52: u8 = 52 [0, 3];
        /// The response time of the port's agents: 4.096 us * 2^code.
        resp_time_value: u8 = 52 [3, 5];
        /// The number of physical errors that count as an integrity error.
        local_phy_errors: u8 = 53 [0, 4];
        /// The number of consecutive flow control update periods with an overrun that count as an
        /// overrun error.
        overrun_errors: u8 = 53 [4, 4];
        /// The largest useful number of credits, a hint.
        max_credit_hint: u16 = 54;
        /// Reserved.
        reserved56: u8 = 56;
        /// The round-trip latency of the link, 24 bits.
        link_round_trip_latency: u32 = 57 [0, 24];
        /// More capabilities of the port.
        capability_mask2: CapabilityMask2 = 60;
        /// The active extended speed.
        link_speed_ext_active: LinkSpeedExt = 62 [0, 4];
        /// The supported extended speeds.
        link_speed_ext_supported: LinkSpeedExt = 62 [4, 4];
        /// Reserved.
        reserved63: u8 = 63 [0, 3];
        /// The enabled extended speeds; in a Set 0 means no change, 30 none, 31 all supported ones.
        link_speed_ext_enabled: LinkSpeedExt = 63 [3, 5];
    }
}

flags! {
    /// The capabilities of a port.
    CapabilityMask(u32, 32 bits) {
        /// A subnet manager is on the port.
        SM = 1;
        /// The port keeps notices that can be queried.
        NOTICE = 2;
        /// The port sends traps.
        TRAP = 3;
        /// Optional inter-packet delays.
        OPTIONAL_IPD = 4;
        /// Automatic path migration.
        AUTOMATIC_MIGRATION = 5;
        /// A mapping table from service levels to virtual lanes.
        SL_MAPPING = 6;
        /// The M_Key survives power-off.
        NV_MKEY = 7;
        /// The P_Keys survive power-off.
        NV_PKEY = 8;
        /// An LED: [`LedInfo`](super::LedInfo).
        LED_INFO = 9;
        /// The port's subnet manager is disabled.
        SM_DISABLED = 10;
        /// System image GUID.
        SYSTEM_IMAGE_GUID = 11;
        /// Traps of switch external ports about P_Keys.
        PKEY_SWITCH_EXTERNAL_PORT_TRAP = 12;
        /// Extended speeds.
        EXTENDED_SPEEDS = 14;
        /// The second capability mask is valid.
        CAPABILITY_MASK2 = 15;
        /// Communication management.
        COMMUNICATION_MANAGEMENT = 16;
        /// SNMP tunneling.
        SNMP_TUNNELING = 17;
        /// Reinitialization.
        REINIT = 18;
        /// Device management.
        DEVICE_MANAGEMENT = 19;
        /// Vendor classes.
        VENDOR_CLASS = 20;
        /// A notice when a directed route fails.
        DR_NOTICE = 21;
        /// A notice when this mask changes.
        CAPABILITY_MASK_NOTICE = 22;
        /// Boot management.
        BOOT_MANAGEMENT = 23;
        /// Round trip latency.
        LINK_ROUND_TRIP_LATENCY = 24;
        /// Client reregistration.
        CLIENT_REREGISTRATION = 25;
        /// Notices of other local changes.
        OTHER_LOCAL_CHANGES = 26;
        /// A table of pairs of speed and width.
        LINK_SPEED_WIDTH_PAIRS = 27;
        /// Vendor's tables of MADs.
        VENDOR_SPECIFIC_MADS_TABLE = 28;
        /// Traps about P_Keys of multicast packets can be suppressed.
        MULTICAST_PKEY_TRAP_SUPPRESSION = 29;
        /// The highest multicast LID with a route: `SwitchInfo::multicast_fdb_top`.
        MULTICAST_FDB_TOP = 30;
        /// Hierarchy information.
        HIERARCHY_INFO = 31;
    }
}

flags! {
    /// More capabilities of a port.
    CapabilityMask2(u16, 16 bits) {
        /// The node description can be set.
        SET_NODE_DESCRIPTION = 0;
        /// PortInfoExtended.
        PORT_INFO_EXTENDED = 1;
        /// Virtualization.
        VIRTUALIZATION = 2;
        /// A table of the states of a switch's ports.
        SWITCH_PORT_STATE_TABLE = 3;
        /// Links of two lanes.
        LINK_WIDTH_2X = 4;
        /// HDR.
        LINK_SPEED_HDR = 5;
        /// NDR.
        LINK_SPEED_NDR = 10;
    }
}

impl PortInfo {
    /// Returns the first and the last of the port's LIDs.
    pub const fn lids(&self) -> (Lid, Lid) {
        (self.lid, Lid(self.lid.0 | ((1 << (self.lmc & 7)) - 1)))
    }
}
