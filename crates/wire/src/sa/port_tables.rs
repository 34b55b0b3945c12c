//! Tables of ports: SLtoVLMappingTableRecord, VLArbitrationTableRecord and P_KeyTableRecord (IBTA 15.2.5.4, 15.2.5.9 and
//! 15.2.5.11).

use crate::Lid;
use crate::layout::{components, layout};
use crate::sm::{PkeyTable, SlToVlTable, VlArbitration};

layout! {
    /// The mapping from service levels to virtual lanes between two ports.
    SlToVlTableRecord("SLtoVLMappingTableRecord", 16) {
        /// The LID of the port; for a port of a switch that of the switch.
        lid: Lid = 0;
        /// The ingress port.
        input_port_num: u8 = 2;
        /// The egress port.
        output_port_num: u8 = 3;
        /// Reserved.
        reserved4: u32 = 4;
        /// The table.
        table: SlToVlTable = 8;
    }
}

components! {
    /// Components of a query for [`SlToVlTableRecord`]s.
    SlToVlTableRecordMask(SlToVlTableRecord) {
        LID = 0, "lid";
        INPUT_PORT_NUM = 1, "input_port_num";
        OUTPUT_PORT_NUM = 2, "output_port_num";
    }
}

layout! {
    /// Half an arbitration table of a port.
    VlArbitrationRecord("VLArbitrationTableRecord", 72) {
        /// The LID of the port; for a port of a switch that of the switch.
        lid: Lid = 0;
        /// The egress port.
        output_port_num: u8 = 2;
        /// 1 and 2 for low priority, 3 and 4 for high.
        block_num: u8 = 3;
        /// Reserved.
        reserved4: u32 = 4;
        /// The table.
        table: VlArbitration = 8;
    }
}

components! {
    /// Components of a query for [`VlArbitrationRecord`]s.
    VlArbitrationRecordMask(VlArbitrationRecord) {
        LID = 0, "lid";
        OUTPUT_PORT_NUM = 1, "output_port_num";
        BLOCK_NUM = 2, "block_num";
    }
}

layout! {
    /// A block of a port's partition keys. Only trusted clients get it.
    PkeyTableRecord("P_KeyTableRecord", 72) {
        /// The LID of the port; for a port of a switch that of the switch.
        lid: Lid = 0;
        /// The number of the block.
        block_num: u16 = 2;
        /// The number of the port.
        port_num: u8 = 4;
        /// Reserved.
        reserved5: [u8; 3] = 5;
        /// The table.
        table: PkeyTable = 8;
    }
}

components! {
    /// Components of a query for [`PkeyTableRecord`]s.
    PkeyTableRecordMask(PkeyTableRecord) {
        LID = 0, "lid";
        BLOCK_NUM = 1, "block_num";
        PORT_NUM = 2, "port_num";
    }
}
