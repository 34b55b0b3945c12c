//! LinkRecord: a link, as seen from one of its ends (IBTA 15.2.5.13).

use crate::Lid;
use crate::layout::{components, layout};

layout! {
    /// A link.
    LinkRecord("LinkRecord", 8) {
        /// The LID of this end; for a port of a switch that of the switch.
        from_lid: Lid = 0;
        /// The port number of this end.
        from_port: u8 = 2;
        /// The port number of the other end.
        to_port: u8 = 3;
        /// The LID of the other end; for a port of a switch that of the switch.
        to_lid: Lid = 4;
        /// Pads the record to a multiple of 8 bytes.
        reserved6: u16 = 6;
    }
}

components! {
    /// Components of a query for [`LinkRecord`]s.
    LinkRecordMask(LinkRecord) {
        FROM_LID = 0, "from_lid";
        FROM_PORT = 1, "from_port";
        TO_PORT = 2, "to_port";
        TO_LID = 3, "to_lid";
    }
}
