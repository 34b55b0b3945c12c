//! The details of a [`Notice`](super::Notice), by its trap number (IBTA 14.2.5.1).

use core::fmt;

use super::NoticeType;
use crate::layout::{Layout, Visit, flags, layout};
use crate::{Gid, Guid, Lid, Mkey};

macro_rules! traps {
    ($($(#[$about:meta])* $name:ident($details:ty) = $number:literal, $kind:ident, $text:literal;)*) => {
        /// An event defined by the specification.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Trap {
            $($(#[$about])* $name($details),)*
        }

        impl Trap {
            /// Decodes the details of the trap with this number, or returns none for an unknown number.
            pub fn parse(number: u16, details: &[u8; 54]) -> Option<Self> {
                Some(match number {
                    $($number => Self::$name(<$details>::from_bytes(details)),)*
                    _ => return None,
                })
            }

            /// Returns the details in wire format.
            pub fn details(&self) -> [u8; 54] {
                match self { $(Self::$name(details) => details.to_bytes(),)* }
            }

            /// Returns the trap number.
            pub const fn number(&self) -> u16 {
                match self { $(Self::$name(_) => $number,)* }
            }

            /// Returns the urgency.
            pub const fn notice_type(&self) -> NoticeType {
                match self { $(Self::$name(_) => NoticeType::$kind,)* }
            }

            /// Returns a description of the event.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $text,)* }
            }

            /// Calls `visit` with name and value of each field of the details.
            pub fn fields(&self, visit: Visit<'_>) {
                match self { $(Self::$name(details) => details.visit(visit),)* }
            }
        }
    };
}

traps! {
    /// A port is now in service.
    GidInService(GidEvent) = 64, SUBNET_MANAGEMENT, "GID in service";
    /// A port is now out of service.
    GidOutOfService(GidEvent) = 65, SUBNET_MANAGEMENT, "GID out of service";
    /// A multicast group has its first full member.
    GroupCreated(GidEvent) = 66, SUBNET_MANAGEMENT, "multicast group created";
    /// A multicast group has lost its last full member.
    GroupDeleted(GidEvent) = 67, SUBNET_MANAGEMENT, "multicast group deleted";
    /// The state of a switch's port has changed.
    LinkState(LinkStateChange) = 128, URGENT, "link state change";
    /// Too many physical errors on a link.
    LinkIntegrity(LinkError) = 129, URGENT, "local link integrity threshold reached";
    /// Too many packets without a buffer for them.
    BufferOverrun(LinkError) = 130, URGENT, "excessive buffer overrun threshold reached";
    /// The peer of a link does not send credit updates.
    FlowControlWatchdog(LinkError) = 131, URGENT, "flow control watchdog expired";
    /// The capabilities or the name of a port or node have changed.
    Local(LocalChange) = 144, INFORMATIONAL, "local change";
    /// The system image GUID has changed.
    SystemImageGuid(SystemImageGuidChange) = 145, INFORMATIONAL, "system image GUID change";
    /// A manager presented a wrong M_Key.
    Mkey(BadMkey) = 256, SECURITY, "bad M_Key";
    /// A packet arrived with a wrong P_Key.
    Pkey(BadKey) = 257, SECURITY, "bad P_Key";
    /// A packet arrived with a wrong Q_Key.
    Qkey(BadKey) = 258, SECURITY, "bad Q_Key";
    /// A packet arrived at a switch's external port with a wrong P_Key.
    SwitchPkey(BadSwitchPkey) = 259, SECURITY, "bad P_Key at a switch";
}

/// Prints the event, then each field's name and value.
impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        crate::layout::show_fields(f, |visit| self.fields(visit))
    }
}

layout! {
    /// Traps 64 to 67.
    GidEvent("GidEvent", 54) {
        /// Reserved.
        reserved0: [u8; 6] = 0;
        /// The GID of the port or the group.
        gid: Gid = 6;
        /// Reserved.
        reserved22: [u8; 32] = 22;
    }
}

layout! {
    /// Trap 128.
    LinkStateChange("LinkStateChange", 54) {
        /// The LID of the switch.
        lid: Lid = 0;
        /// Reserved.
        reserved2: [u8; 52] = 2;
    }
}

layout! {
    /// Traps 129 to 131.
    LinkError("LinkError", 54) {
        /// Reserved.
        reserved0: u16 = 0;
        /// The LID of the port's node.
        lid: Lid = 2;
        /// The number of the port.
        port: u8 = 4;
        /// Reserved.
        reserved5: [u8; 49] = 5;
    }
}

layout! {
    /// Trap 144.
    LocalChange("LocalChange", 54) {
        /// Reserved.
        reserved0: u16 = 0;
        /// The LID of the port.
        lid: Lid = 2;
        /// Reserved.
        reserved4: u8 = 4;
        /// Reserved.
        reserved5: u8 = 5 [0, 7];
        /// Whether `change_flags` has changes other than the capability mask.
        other_local_changes: bool = 5 [7, 1];
        /// The new capabilities of the port.
        capability_mask: super::CapabilityMask = 6;
        /// The changes.
        change_flags: LocalChangeFlags = 10;
        /// More of the new capabilities of the port.
        capability_mask2: super::CapabilityMask2 = 12;
        /// Reserved.
        reserved14: [u8; 40] = 14;
    }
}

flags! {
    /// The properties that a local change concerns.
    LocalChangeFlags(u16, 16 bits) {
        /// The node description.
        NODE_DESCRIPTION = 0;
        /// The enabled widths.
        LINK_WIDTH_ENABLED = 1;
        /// The enabled speeds.
        LINK_SPEED_ENABLED = 2;
        /// The priority of the port's subnet manager.
        SM_PRIORITY = 3;
        /// The hierarchy information.
        HIERARCHY_INFO = 4;
        /// The second capability mask.
        CAPABILITY_MASK2 = 5;
    }
}

layout! {
    /// Trap 145.
    SystemImageGuidChange("SystemImageGuidChange", 54) {
        /// Reserved.
        reserved0: u16 = 0;
        /// The LID of the port.
        lid: Lid = 2;
        /// Reserved.
        reserved4: u16 = 4;
        /// The new GUID.
        system_image_guid: Guid = 6;
        /// Reserved.
        reserved14: [u8; 40] = 14;
    }
}

layout! {
    /// Trap 256.
    BadMkey("BadMkey", 54) {
        /// Reserved.
        reserved0: u16 = 0;
        /// The LID of the port that received the request.
        lid: Lid = 2;
        /// The source LID of a directed route.
        dr_slid: Lid = 4;
        /// The method of the request.
        method: u8 = 6;
        /// Reserved.
        reserved7: u8 = 7;
        /// The attribute of the request.
        attribute_id: u16 = 8;
        /// The attribute modifier of the request.
        attribute_modifier: u32 = 10;
        /// The key that was presented.
        mkey: Mkey = 14;
        /// Reserved.
        reserved22: u8 = 22;
        /// Whether the request used a directed route.
        dr_notice: bool = 23 [0, 1];
        /// Whether the path is longer than `return_path`.
        dr_path_truncated: bool = 23 [1, 1];
        /// The number of hops of the path.
        dr_hop_count: u8 = 23 [2, 6];
        /// The ingress ports of the request.
        return_path: [u8; 30] = 24;
    }
}

layout! {
    /// Traps 257 and 258.
    BadKey("BadKey", 54) {
        /// Reserved.
        reserved0: u16 = 0;
        /// The LID of the sender.
        lid1: Lid = 2;
        /// The LID of the receiver.
        lid2: Lid = 4;
        /// The P_Key, or the Q_Key.
        key: u32 = 6;
        /// Service level.
        sl: u8 = 10 [0, 4];
        /// Reserved.
        reserved10: u8 = 10 [4, 4];
        /// The sending queue pair.
        qp1: crate::Qpn = 11;
        /// Reserved.
        reserved14: u8 = 14;
        /// The receiving queue pair.
        qp2: crate::Qpn = 15;
        /// The GID of the sender.
        gid1: Gid = 18;
        /// The GID of the receiver.
        gid2: Gid = 34;
        /// Reserved.
        reserved50: u32 = 50;
    }
}

layout! {
    /// Trap 259.
    BadSwitchPkey("BadSwitchPkey", 54) {
        /// A mask of the other fields that are valid.
        data_valid: u16 = 0;
        /// The LID of the sender.
        lid1: Lid = 2;
        /// The LID of the receiver.
        lid2: Lid = 4;
        /// The P_Key.
        pkey: crate::Pkey = 6;
        /// Service level.
        sl: u8 = 8 [0, 4];
        /// Reserved.
        reserved8: u8 = 8 [4, 4];
        /// The sending queue pair.
        qp1: crate::Qpn = 9;
        /// Reserved.
        reserved12: u8 = 12;
        /// The receiving queue pair.
        qp2: crate::Qpn = 13;
        /// The GID of the sender.
        gid1: Gid = 16;
        /// The GID of the receiver.
        gid2: Gid = 32;
        /// The LID of the switch.
        switch_lid: Lid = 48;
        /// The number of its port.
        port: u8 = 50;
        /// Reserved.
        reserved51: [u8; 3] = 51;
    }
}
