//! GUIDInfoRecord: a block of a port's GUIDs (IBTA 15.2.5.18). A Set asks for alias GUIDs, a Delete gives them up.

use crate::Lid;
use crate::layout::{flags, layout};
use crate::sm::GuidInfo;

layout! {
    /// Eight GUIDs of a port.
    GuidInfoRecord("GUIDInfoRecord", 72) {
        /// The port.
        lid: Lid = 0;
        /// The block.
        block_num: u8 = 2;
        /// Reserved.
        reserved3: u8 = 3;
        /// Reserved.
        reserved4: u32 = 4;
        /// The GUIDs.
        guid_info: GuidInfo = 8;
    }
}

flags! {
    /// Components of a question for [`GuidInfoRecord`]s.
    GuidInfoRecordMask(u64, 64 bits) {
        /// `lid`.
        LID = 0;
        /// `block_num`.
        BLOCK_NUM = 1;
        /// `guid_info.guids[0]`.
        GUID0 = 4;
        /// `guid_info.guids[1]`.
        GUID1 = 5;
        /// `guid_info.guids[2]`.
        GUID2 = 6;
        /// `guid_info.guids[3]`.
        GUID3 = 7;
        /// `guid_info.guids[4]`.
        GUID4 = 8;
        /// `guid_info.guids[5]`.
        GUID5 = 9;
        /// `guid_info.guids[6]`.
        GUID6 = 10;
        /// `guid_info.guids[7]`.
        GUID7 = 11;
    }
}
