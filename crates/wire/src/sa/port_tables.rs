//! Tables of ports: SLtoVLMappingTableRecord, VLArbitrationTableRecord and P_KeyTableRecord (IBTA 15.2.5.4, 15.2.5.9 and
//! 15.2.5.11).

use crate::Lid;
use crate::layout::{components, layout};
use crate::sm::{PkeyTable, SlToVlTable, VlArbitration};

layout! {
    /// Which virtual lane each service level takes from port to port.
    SlToVlTableRecord("SLtoVLMappingTableRecord", 16) {
        /// The port; of a switch's ports that of the switch.
        lid: Lid = 0;
        /// The port by which packets come in.
        input_port_num: u8 = 2;
        /// The port by which packets go out.
        output_port_num: u8 = 3;
        /// Reserved.
        reserved4: u32 = 4;
        /// The table.
        table: SlToVlTable = 8;
    }
}

components! {
    /// Components of a question for [`SlToVlTableRecord`]s.
    SlToVlTableRecordMask(SlToVlTableRecord) {
        LID = 0, "lid";
        INPUT_PORT_NUM = 1, "input_port_num";
        OUTPUT_PORT_NUM = 2, "output_port_num";
    }
}

layout! {
    /// Half an arbitration table of a port.
    VlArbitrationRecord("VLArbitrationTableRecord", 72) {
        /// The port; of a switch's ports that of the switch.
        lid: Lid = 0;
        /// The port by which packets go out.
        output_port_num: u8 = 2;
        /// 1 and 2 of low priority, 3 and 4 of high.
        block_num: u8 = 3;
        /// Reserved.
        reserved4: u32 = 4;
        /// The table.
        table: VlArbitration = 8;
    }
}

components! {
    /// Components of a question for [`VlArbitrationRecord`]s.
    VlArbitrationRecordMask(VlArbitrationRecord) {
        LID = 0, "lid";
        OUTPUT_PORT_NUM = 1, "output_port_num";
        BLOCK_NUM = 2, "block_num";
    }
}

layout! {
    /// A block of a port's partition keys. Only trusted clients get them.
    PkeyTableRecord("P_KeyTableRecord", 72) {
        /// The port; of a switch's ports that of the switch.
        lid: Lid = 0;
        /// The block.
        block_num: u16 = 2;
        /// The port.
        port_num: u8 = 4;
        /// Reserved.
        reserved5: [u8; 3] = 5;
        /// The table.
        table: PkeyTable = 8;
    }
}

components! {
    /// Components of a question for [`PkeyTableRecord`]s.
    PkeyTableRecordMask(PkeyTableRecord) {
        LID = 0, "lid";
        BLOCK_NUM = 1, "block_num";
        PORT_NUM = 2, "port_num";
    }
}
