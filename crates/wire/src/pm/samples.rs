//! PortSamplesControl and PortSamplesResult: counters over a time that is chosen (IBTA 16.1.3.2 and 16.1.3.4).

use crate::layout::layout;

layout! {
    /// How samples are taken.
    PortSamplesControl("PortSamplesControl", 80) {
        /// Vendor's opcode.
        op_code: u8 = 0;
        /// The port.
        port_select: u8 = 1;
        /// The unit of time, a vendor's code.
        tick: u8 = 2;
        /// Reserved.
        reserved3: u8 = 3 [0, 5];
        /// How wide the counters are, a code.
        counter_width: u8 = 3 [5, 3];
        /// Reserved.
        reserved4: u8 = 4 [0, 2];
        /// What counter 0 can do, a code.
        counter_mask0: u8 = 4 [2, 3];
        /// What counters 1 to 9 can do, a code of three bits each.
        counter_masks_1_to_9: u32 = 4 [5, 27];
        /// Reserved.
        reserved8: bool = 8 [0, 1];
        /// What counters 10 to 14 can do, a code of three bits each.
        counter_masks_10_to_14: u16 = 8 [1, 15];
        /// How many sample mechanisms there are.
        sample_mechanisms: u8 = 10;
        /// Reserved.
        reserved11: u8 = 11 [0, 6];
        /// 0 done, 1 about to start, 2 running.
        sample_status: u8 = 11 [6, 2];
        /// Optional counters that there are, a bit each.
        option_mask: u64 = 12;
        /// Vendor's counters that there are, a bit each.
        vendor_mask: u64 = 20;
        /// Ticks until the sample starts.
        sample_start: u32 = 28;
        /// Ticks that it takes.
        sample_interval: u32 = 32;
        /// Repeated in the result.
        tag: u16 = 36;
        /// What each counter counts, 0 to 14.
        counter_select: [u16; 15] = 38;
        /// Reserved.
        reserved68: u32 = 68;
        /// Optional counters that there are in samples only, a bit each.
        samples_only_option_mask: u64 = 72;
    }
}

layout! {
    /// Samples.
    PortSamplesResult("PortSamplesResult", 64) {
        /// That of the control.
        tag: u16 = 0;
        /// Reserved.
        reserved2: u16 = 2 [0, 14];
        /// 0 done, 1 about to start, 2 running.
        sample_status: u8 = 3 [6, 2];
        /// The counters, 0 to 14.
        counters: [u32; 15] = 4;
    }
}
