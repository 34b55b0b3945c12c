//! What a link is and does, as [`PortInfo`](super::PortInfo) says it.

use crate::layout::{codes, flags};

codes! {
    /// The logical state of a port (IBTA 7.2.7). In a Set it is a command.
    PortState(u8, 4 bits) {
        /// Of a Set: as it is.
        NO_CHANGE = 0, "NoChange";
        /// No packets.
        DOWN = 1, "Down";
        /// Subnet management only.
        INIT = 2, "Init";
        /// Configured; sends data when its peer does.
        ARMED = 3, "Armed";
        /// All packets.
        ACTIVE = 4, "Active";
    }
}

codes! {
    /// The physical state of a port. In a Set it is a command.
    PhysState(u8, 4 bits) {
        /// Of a Set: as it is.
        NO_CHANGE = 0, "NoChange";
        /// Listens, and sends nothing.
        SLEEP = 1, "Sleep";
        /// Looks for a peer.
        POLLING = 2, "Polling";
        /// Off.
        DISABLED = 3, "Disabled";
        /// Agrees with its peer about the link.
        TRAINING = 4, "Training";
        /// There is a link.
        LINK_UP = 5, "LinkUp";
        /// There was an error, and the link is made again.
        RECOVERY = 6, "Recovery";
        /// Under test.
        TEST = 7, "Test";
    }
}

codes! {
    /// What a port does when its link goes down.
    LinkDownDefault(u8, 4 bits) {
        /// Of a Set: as it is.
        NO_CHANGE = 0, "NoChange";
        /// It sleeps.
        SLEEP = 1, "Sleep";
        /// It polls.
        POLLING = 2, "Polling";
    }
}

codes! {
    /// How many virtual lanes for data there are, a code.
    VlCap(u8, 4 bits) {
        /// Of a Set: as it is.
        NO_CHANGE = 0, "NoChange";
        /// One.
        VL0 = 1, "VL0";
        /// Two.
        VL0_1 = 2, "VL0-1";
        /// Four.
        VL0_3 = 3, "VL0-3";
        /// Eight.
        VL0_7 = 4, "VL0-7";
        /// Fifteen.
        VL0_14 = 5, "VL0-14";
    }
}

impl VlCap {
    /// How many virtual lanes that is; 0 for an unknown code.
    pub const fn count(self) -> u8 {
        match self.0 {
            1 => 1,
            2 => 2,
            3 => 4,
            4 => 8,
            5 => 15,
            _ => 0,
        }
    }
}

flags! {
    /// Widths of a link. One bit is set of the active width; of the supported and enabled ones any. In a Set 0 is no
    /// change, and 0xff all that are supported.
    LinkWidth(u8, 8 bits) {
        /// One lane.
        X1 = 0;
        /// Four lanes.
        X4 = 1;
        /// Eight lanes.
        X8 = 2;
        /// Twelve lanes.
        X12 = 3;
        /// Two lanes.
        X2 = 4;
    }
}

impl LinkWidth {
    /// The lanes of the widest of these.
    pub const fn lanes(self) -> u8 {
        if self.contains(Self::X12) {
            12
        } else if self.contains(Self::X8) {
            8
        } else if self.contains(Self::X4) {
            4
        } else if self.contains(Self::X2) {
            2
        } else if self.contains(Self::X1) {
            1
        } else {
            0
        }
    }
}

flags! {
    /// Speeds of a lane. One bit is set of the active speed; of the supported and enabled ones any. In a Set 0 is no
    /// change, and 15 all that are supported.
    LinkSpeed(u8, 4 bits) {
        /// 2.5 Gb/s.
        SDR = 0;
        /// 5 Gb/s.
        DDR = 1;
        /// 10 Gb/s.
        QDR = 2;
    }
}

flags! {
    /// Extended speeds of a lane, which go before [`LinkSpeed`] when one is active.
    LinkSpeedExt(u8, 4 bits) {
        /// 14.0625 Gb/s.
        FDR = 0;
        /// 25.78125 Gb/s.
        EDR = 1;
        /// 53.125 Gb/s.
        HDR = 2;
        /// 106.25 Gb/s.
        NDR = 3;
    }
}
