//! What the details of a [`Notice`](super::Notice) mean, by its trap number (IBTA 14.2.5.1).

use core::fmt;

use super::NoticeType;
use crate::layout::{Layout, Visit, flags, layout};
use crate::{Gid, Guid, Lid, Mkey};

macro_rules! traps {
    ($($(#[$about:meta])* $name:ident($details:ty) = $number:literal, $kind:ident, $text:literal;)*) => {
        /// An event of the specification.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Trap {
            $($(#[$about])* $name($details),)*
        }

        impl Trap {
            /// Reads the details of the trap with this number, or says that there is none.
            pub fn parse(number: u16, details: &[u8; 54]) -> Option<Self> {
                Some(match number {
                    $($number => Self::$name(<$details>::from_bytes(details)),)*
                    _ => return None,
                })
            }

            /// The details as they go on the wire.
            pub fn details(&self) -> [u8; 54] {
                match self { $(Self::$name(details) => details.to_bytes(),)* }
            }

            /// The trap number.
            pub const fn number(&self) -> u16 {
                match self { $(Self::$name(_) => $number,)* }
            }

            /// How urgent it is.
            pub const fn notice_type(&self) -> NoticeType {
                match self { $(Self::$name(_) => NoticeType::$kind,)* }
            }

            /// What happened, in words.
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
    /// A port has come into service.
    GidInService(GidEvent) = 64, SUBNET_MANAGEMENT, "GID in service";
    /// A port has gone out of service.
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
    /// The peer of a link does not tell its credits.
    FlowControlWatchdog(LinkError) = 131, URGENT, "flow control watchdog expired";
    /// What a port or node can do, or its name, has changed.
    Local(LocalChange) = 144, INFORMATIONAL, "local change";
    /// The system image GUID has changed.
    SystemImageGuid(SystemImageGuidChange) = 145, INFORMATIONAL, "system image GUID change";
    /// Somebody showed a wrong M_Key.
    Mkey(BadMkey) = 256, SECURITY, "bad M_Key";
    /// A packet came with a wrong P_Key.
    Pkey(BadKey) = 257, SECURITY, "bad P_Key";
    /// A packet came with a wrong Q_Key.
    Qkey(BadKey) = 258, SECURITY, "bad Q_Key";
    /// A packet came to a switch's external port with a wrong P_Key.
    SwitchPkey(BadSwitchPkey) = 259, SECURITY, "bad P_Key at a switch";
}

/// What happened, then each field's name and value.
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
        /// The port or the group.
        gid: Gid = 6;
        /// Reserved.
        reserved22: [u8; 32] = 22;
    }
}

layout! {
    /// Trap 128.
    LinkStateChange("LinkStateChange", 54) {
        /// The switch.
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
        /// The port's node.
        lid: Lid = 2;
        /// The port.
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
        /// The port.
        lid: Lid = 2;
        /// Reserved.
        reserved4: u8 = 4;
        /// Reserved.
        reserved5: u8 = 5 [0, 7];
        /// It is about what `change_flags` says, beside the capability mask.
        other_local_changes: bool = 5 [7, 1];
        /// What the port can do now.
        capability_mask: super::CapabilityMask = 6;
        /// What has changed.
        change_flags: LocalChangeFlags = 10;
        /// More of what the port can do now.
        capability_mask2: super::CapabilityMask2 = 12;
        /// Reserved.
        reserved14: [u8; 40] = 14;
    }
}

flags! {
    /// What has changed.
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
        /// The port.
        lid: Lid = 2;
        /// Reserved.
        reserved4: u16 = 4;
        /// As it is now.
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
        /// The port that was asked.
        lid: Lid = 2;
        /// From where, of a directed route.
        dr_slid: Lid = 4;
        /// The method.
        method: u8 = 6;
        /// Reserved.
        reserved7: u8 = 7;
        /// What was asked.
        attribute_id: u16 = 8;
        /// The modifier.
        attribute_modifier: u32 = 10;
        /// The key that was shown.
        mkey: Mkey = 14;
        /// Reserved.
        reserved22: u8 = 22;
        /// The question came by a directed route.
        dr_notice: bool = 23 [0, 1];
        /// The path is longer than `return_path`.
        dr_path_truncated: bool = 23 [1, 1];
        /// Hops of the path.
        dr_hop_count: u8 = 23 [2, 6];
        /// The ports by which the question came in.
        return_path: [u8; 30] = 24;
    }
}

layout! {
    /// Traps 257 and 258.
    BadKey("BadKey", 54) {
        /// Reserved.
        reserved0: u16 = 0;
        /// The sender.
        lid1: Lid = 2;
        /// The receiver.
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
        /// The sender.
        gid1: Gid = 18;
        /// The receiver.
        gid2: Gid = 34;
        /// Reserved.
        reserved50: u32 = 50;
    }
}

layout! {
    /// Trap 259.
    BadSwitchPkey("BadSwitchPkey", 54) {
        /// Which of the others mean something.
        data_valid: u16 = 0;
        /// The sender.
        lid1: Lid = 2;
        /// The receiver.
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
        /// The sender.
        gid1: Gid = 16;
        /// The receiver.
        gid2: Gid = 32;
        /// The switch.
        switch_lid: Lid = 48;
        /// Its port.
        port: u8 = 50;
        /// Reserved.
        reserved51: [u8; 3] = 51;
    }
}
