//! GUIDInfoRecord: a block of a port's GUIDs (IBTA 15.2.5.18). A Set requests alias GUIDs, a Delete releases them.

use crate::Lid;
use crate::layout::{components, layout};
use crate::sm::GuidInfo;

layout! {
    /// Eight GUIDs of a port.
    GuidInfoRecord("GUIDInfoRecord", 72) {
        /// The LID of the port.
        lid: Lid = 0;
        /// The number of the block.
        block_num: u8 = 2;
        /// Reserved.
        reserved3: u8 = 3;
        /// Reserved.
        reserved4: u32 = 4;
        /// The GUIDs.
        guid_info: GuidInfo = 8;
    }
}

components! {
    /// Components of a query for [`GuidInfoRecord`]s.
    GuidInfoRecordMask(GuidInfoRecord) {
        LID = 0, "lid";
        BLOCK_NUM = 1, "block_num";
        GUID0 = 4, "guid_info.guids[0]";
        GUID1 = 5, "guid_info.guids[1]";
        GUID2 = 6, "guid_info.guids[2]";
        GUID3 = 7, "guid_info.guids[3]";
        GUID4 = 8, "guid_info.guids[4]";
        GUID5 = 9, "guid_info.guids[5]";
        GUID6 = 10, "guid_info.guids[6]";
        GUID7 = 11, "guid_info.guids[7]";
    }
}
