//! SwitchInfoRecord, LinearForwardingTableRecord and MulticastForwardingTableRecord (IBTA 15.2.5.5, 15.2.5.6 and
//! 15.2.5.8).

use crate::Lid;
use crate::layout::{components, layout};
use crate::sm::{LinearForwardingTable, MulticastForwardingTable, SwitchInfo};

layout! {
    /// A switch.
    SwitchInfoRecord("SwitchInfoRecord", 24) {
        /// The LID of the switch.
        lid: Lid = 0;
        /// Reserved.
        reserved2: u16 = 2;
        /// The attribute.
        switch_info: SwitchInfo = 4;
    }
}

components! {
    /// Components of a query for [`SwitchInfoRecord`]s.
    SwitchInfoRecordMask(SwitchInfoRecord) {
        LID = 0, "lid";
    }
}

layout! {
    /// A block of a switch's unicast routes.
    LinearForwardingTableRecord("LinearForwardingTableRecord", 72) {
        /// The LID of the switch.
        lid: Lid = 0;
        /// The number of the block.
        block_num: u16 = 2;
        /// Reserved.
        reserved4: u32 = 4;
        /// The routes.
        table: LinearForwardingTable = 8;
    }
}

components! {
    /// Components of a query for [`LinearForwardingTableRecord`]s.
    LinearForwardingTableRecordMask(LinearForwardingTableRecord) {
        LID = 0, "lid";
        BLOCK_NUM = 1, "block_num";
    }
}

layout! {
    /// A block of a switch's multicast routes.
    MulticastForwardingTableRecord("MulticastForwardingTableRecord", 72) {
        /// The LID of the switch.
        lid: Lid = 0;
        /// The position: k means ports 16k to 16k+15.
        position: u8 = 2 [0, 4];
        /// Reserved.
        reserved2: u8 = 2 [4, 3];
        /// The number of the block, 9 bits.
        block_num: u16 = 2 [7, 9];
        /// Reserved.
        reserved4: u32 = 4;
        /// The routes.
        table: MulticastForwardingTable = 8;
    }
}

components! {
    /// Components of a query for [`MulticastForwardingTableRecord`]s.
    MulticastForwardingTableRecordMask(MulticastForwardingTableRecord) {
        LID = 0, "lid";
        POSITION = 1, "position";
        BLOCK_NUM = 3, "block_num";
    }
}
