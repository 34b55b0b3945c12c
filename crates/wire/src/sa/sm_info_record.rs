//! SMInfoRecord: a subnet manager (IBTA 15.2.5.10).

use crate::Lid;
use crate::layout::{components, layout};
use crate::sm::SmInfo;

layout! {
    /// A subnet manager.
    SmInfoRecord("SMInfoRecord", 32) {
        /// The LID of its port.
        lid: Lid = 0;
        /// Reserved.
        reserved2: u16 = 2;
        /// The attribute.
        sm_info: SmInfo = 4;
        /// Pads the record to a multiple of 8 bytes.
        reserved25: [u8; 7] = 25;
    }
}

components! {
    /// Components of a query for [`SmInfoRecord`]s.
    SmInfoRecordMask(SmInfoRecord) {
        LID = 0, "lid";
        GUID = 2, "sm_info.guid";
        SM_KEY = 3, "sm_info.sm_key";
        ACT_COUNT = 4, "sm_info.act_count";
        PRIORITY = 5, "sm_info.priority";
        STATE = 6, "sm_info.state";
    }
}
