//! The properties and states of a link in [`PortInfo`](super::PortInfo).

use crate::layout::{codes, flags};

codes! {
    /// The logical state of a port (IBTA 7.2.7). In a Set it is a command.
    PortState(u8, 4 bits) {
        /// In a Set: no change.
        NO_CHANGE = 0, "NoChange";
        /// No packets pass.
        DOWN = 1, "Down";
        /// Only subnet management packets pass.
        INIT = 2, "Init";
        /// The port is configured, and sends data when its peer does.
        ARMED = 3, "Armed";
        /// All packets pass.
        ACTIVE = 4, "Active";
    }
}

codes! {
    /// The physical state of a port. In a Set it is a command.
    PhysState(u8, 4 bits) {
        /// In a Set: no change.
        NO_CHANGE = 0, "NoChange";
        /// The port listens, and sends nothing.
        SLEEP = 1, "Sleep";
        /// The port looks for a peer.
        POLLING = 2, "Polling";
        /// The port is off.
        DISABLED = 3, "Disabled";
        /// The port negotiates the link with its peer.
        TRAINING = 4, "Training";
        /// The link is up.
        LINK_UP = 5, "LinkUp";
        /// The link is being retrained after an error.
        RECOVERY = 6, "Recovery";
        /// The port is under test.
        TEST = 7, "Test";
    }
}

codes! {
    /// The state of a port after its link goes down.
    LinkDownDefault(u8, 4 bits) {
        /// In a Set: no change.
        NO_CHANGE = 0, "NoChange";
        /// The port sleeps.
        SLEEP = 1, "Sleep";
        /// The port polls for a peer.
        POLLING = 2, "Polling";
    }
}

codes! {
    /// The code of the number of data virtual lanes.
    VlCap(u8, 4 bits) {
        /// In a Set: no change.
        NO_CHANGE = 0, "NoChange";
        /// VL0 only.
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
    /// Returns the number of virtual lanes; 0 for an unknown code.
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
    /// Link widths. The active width has one bit set; supported and enabled widths have any. In a
    /// Set 0 means no change, and 0xff all supported ones.
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
    /// Returns the number of lanes of the widest of these.
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
    /// Speeds of a lane. The active speed has one bit set; supported and enabled speeds have any.
    /// In a Set 0 means no change, and 15 all supported ones.
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
    /// Extended speeds of a lane, which take precedence over [`LinkSpeed`] when one is active.
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
