//! Codes of rates, and of selectors (IBTA 15.2.5.16).

use crate::layout::codes;

codes! {
    /// The rate of a path, a code. The codes are not in the order of the rates.
    Rate(u8, 6 bits) {
        /// 2.5 Gb/s.
        GBPS_2_5 = 2, "2.5 Gb/s";
        /// 10 Gb/s.
        GBPS_10 = 3, "10 Gb/s";
        /// 30 Gb/s.
        GBPS_30 = 4, "30 Gb/s";
        /// 5 Gb/s.
        GBPS_5 = 5, "5 Gb/s";
        /// 20 Gb/s.
        GBPS_20 = 6, "20 Gb/s";
        /// 40 Gb/s.
        GBPS_40 = 7, "40 Gb/s";
        /// 60 Gb/s.
        GBPS_60 = 8, "60 Gb/s";
        /// 80 Gb/s.
        GBPS_80 = 9, "80 Gb/s";
        /// 120 Gb/s.
        GBPS_120 = 10, "120 Gb/s";
        /// 14 Gb/s.
        GBPS_14 = 11, "14 Gb/s";
        /// 56 Gb/s.
        GBPS_56 = 12, "56 Gb/s";
        /// 112 Gb/s.
        GBPS_112 = 13, "112 Gb/s";
        /// 168 Gb/s.
        GBPS_168 = 14, "168 Gb/s";
        /// 25 Gb/s.
        GBPS_25 = 15, "25 Gb/s";
        /// 100 Gb/s.
        GBPS_100 = 16, "100 Gb/s";
        /// 200 Gb/s.
        GBPS_200 = 17, "200 Gb/s";
        /// 300 Gb/s.
        GBPS_300 = 18, "300 Gb/s";
        /// 28 Gb/s.
        GBPS_28 = 19, "28 Gb/s";
        /// 50 Gb/s.
        GBPS_50 = 20, "50 Gb/s";
        /// 400 Gb/s.
        GBPS_400 = 21, "400 Gb/s";
        /// 600 Gb/s.
        GBPS_600 = 22, "600 Gb/s";
    }
}

impl Rate {
    /// Returns the rate in Mb/s, or 0 for an unknown code. These are signaling rates: FDR's 14.0625 Gb/s count as 14.
    pub const fn mbps(self) -> u32 {
        match self.0 {
            2 => 2_500,
            3 => 10_000,
            4 => 30_000,
            5 => 5_000,
            6 => 20_000,
            7 => 40_000,
            8 => 60_000,
            9 => 80_000,
            10 => 120_000,
            11 => 14_000,
            12 => 56_000,
            13 => 112_000,
            14 => 168_000,
            15 => 25_000,
            16 => 100_000,
            17 => 200_000,
            18 => 300_000,
            19 => 28_000,
            20 => 50_000,
            21 => 400_000,
            22 => 600_000,
            _ => 0,
        }
    }
}

codes! {
    /// How to compare with a value in a query.
    Selector(u8, 2 bits) {
        /// Greater than the value.
        GREATER_THAN = 0, "greater";
        /// Less than the value.
        LESS_THAN = 1, "less";
        /// Equal to the value.
        EXACTLY = 2, "exactly";
        /// The largest available; for a lifetime the smallest.
        LARGEST = 3, "largest";
    }
}
