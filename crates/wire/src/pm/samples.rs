//! PortSamplesControl and PortSamplesResult: counters over a chosen time (IBTA 16.1.3.2 and 16.1.3.4).

use crate::layout::layout;

layout! {
    /// The configuration of sampling.
    PortSamplesControl("PortSamplesControl", 80) {
        /// The vendor's opcode.
        op_code: u8 = 0;
        /// The port.
        port_select: u8 = 1;
        /// The unit of time, a vendor's code.
        tick: u8 = 2;
        /// Reserved.
        reserved3: u8 = 3 [0, 5];
        /// The code of the counters' width.
        counter_width: u8 = 3 [5, 3];
        /// Reserved.
        reserved4: u8 = 4 [0, 2];
        /// The code of counter 0's capabilities.
        counter_mask0: u8 = 4 [2, 3];
        /// The codes of the capabilities of counters 1 to 9, three bits each.
        counter_masks_1_to_9: u32 = 4 [5, 27];
        /// Reserved.
        reserved8: bool = 8 [0, 1];
        /// The codes of the capabilities of counters 10 to 14, three bits each.
        counter_masks_10_to_14: u16 = 8 [1, 15];
        /// The number of sample mechanisms.
        sample_mechanisms: u8 = 10;
        /// Reserved.
        reserved11: u8 = 11 [0, 6];
        /// 0: done; 1: about to start; 2: running.
        sample_status: u8 = 11 [6, 2];
        /// The supported optional counters, a bit each.
        option_mask: u64 = 12;
        /// The supported vendor's counters, a bit each.
        vendor_mask: u64 = 20;
        /// Ticks until the sample starts.
        sample_start: u32 = 28;
        /// The length of the sample in ticks.
        sample_interval: u32 = 32;
        /// A tag, repeated in the result.
        tag: u16 = 36;
        /// The quantity that each counter counts, 0 to 14.
        counter_select: [u16; 15] = 38;
        /// Reserved.
        reserved68: u32 = 68;
        /// The optional counters supported in samples only, a bit each.
        samples_only_option_mask: u64 = 72;
    }
}

layout! {
    /// Samples.
    PortSamplesResult("PortSamplesResult", 64) {
        /// The tag of the control.
        tag: u16 = 0;
        /// Reserved.
        reserved2: u16 = 2 [0, 14];
        /// 0: done; 1: about to start; 2: running.
        sample_status: u8 = 3 [6, 2];
        /// The counters, 0 to 14.
        counters: [u32; 15] = 4;
    }
}
