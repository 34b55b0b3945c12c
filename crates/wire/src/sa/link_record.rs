//! LinkRecord: a link, seen from one of its ends (IBTA 15.2.5.13).

use crate::Lid;
use crate::layout::{components, layout};

layout! {
    /// A link.
    LinkRecord("LinkRecord", 8) {
        /// This end; of a switch's port the switch.
        from_lid: Lid = 0;
        /// This end's port.
        from_port: u8 = 2;
        /// The other end's port.
        to_port: u8 = 3;
        /// The other end; of a switch's port the switch.
        to_lid: Lid = 4;
        /// Fills up to a multiple of 8 bytes.
        reserved6: u16 = 6;
    }
}

components! {
    /// Components of a question for [`LinkRecord`]s.
    LinkRecordMask(LinkRecord) {
        FROM_LID = 0, "from_lid";
        FROM_PORT = 1, "from_port";
        TO_PORT = 2, "to_port";
        TO_LID = 3, "to_lid";
    }
}
