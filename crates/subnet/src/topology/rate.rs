//! The rate of a link: the number of lanes, and the speed of each.

use core::fmt;
use core::str::FromStr;

macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// The values in ascending order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name as the diagnostics print it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

table! {
    /// The number of lanes of a link.
    Width {
        /// One lane.
        X1 = "1x",
        /// Two lanes.
        X2 = "2x",
        /// Four lanes.
        X4 = "4x",
        /// Eight lanes.
        X8 = "8x",
        /// Twelve lanes.
        X12 = "12x",
    }
}

table! {
    /// The speed of a lane.
    Speed {
        /// 2.5 Gb/s.
        Sdr = "SDR",
        /// 5 Gb/s.
        Ddr = "DDR",
        /// 10 Gb/s.
        Qdr = "QDR",
        /// 10 Gb/s with FDR's line code: specific to Mellanox; PortInfo shows it as QDR.
        Fdr10 = "FDR10",
        /// 14.0625 Gb/s.
        Fdr = "FDR",
        /// 25.78125 Gb/s.
        Edr = "EDR",
        /// 53.125 Gb/s.
        Hdr = "HDR",
        /// 106.25 Gb/s.
        Ndr = "NDR",
    }
}

/// The number of lanes and their speed, written `4xEDR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkRate {
    /// The lanes.
    pub width: Width,
    /// The speed of each.
    pub speed: Speed,
}

impl Width {
    /// Returns PortInfo's code, a single bit (IBTA 14.2.5.6).
    pub const fn code(self) -> u8 {
        match self {
            Self::X1 => 1,
            Self::X4 => 2,
            Self::X8 => 4,
            Self::X12 => 8,
            Self::X2 => 16,
        }
    }
    /// Returns the width with a code of one bit.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|w| w.code() == code)
    }
    /// Returns the number of lanes.
    pub const fn lanes(self) -> u32 {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
        }
    }
    /// Returns the widest of a set of codes.
    pub fn widest(mask: u8) -> Option<Self> {
        Self::ALL.iter().rev().copied().find(|w| mask & w.code() != 0)
    }
    /// Returns the codes of this width and of the widths to which hardware of this width falls back.
    pub fn mask(self) -> u8 {
        Self::ALL.iter().filter(|w| **w <= self).map(|w| w.code()).sum()
    }
}

impl Speed {
    /// Returns the code of LinkSpeedActive, or 0 for a speed that only the extended fields can express.
    pub const fn code(self) -> u8 {
        match self {
            Self::Sdr => 1,
            Self::Ddr => 2,
            Self::Qdr => 4,
            _ => 0,
        }
    }
    /// Returns the code of LinkSpeedExtActive, or 0.
    pub const fn ext_code(self) -> u8 {
        match self {
            Self::Fdr => 1,
            Self::Edr => 2,
            Self::Hdr => 4,
            Self::Ndr => 8,
            _ => 0,
        }
    }
    /// Returns the code of Mellanox's LinkSpeedActive, or 0.
    pub const fn mlnx_code(self) -> u8 {
        match self {
            Self::Fdr10 => 1,
            _ => 0,
        }
    }
    /// Returns the nominal rate of one lane in Mb/s: 25000 for EDR.
    pub const fn megabits(self) -> u32 {
        match self {
            Self::Sdr => 2_500,
            Self::Ddr => 5_000,
            Self::Qdr | Self::Fdr10 => 10_000,
            Self::Fdr => 14_000,
            Self::Edr => 25_000,
            Self::Hdr => 50_000,
            Self::Ndr => 100_000,
        }
    }
    /// Returns the fastest of a set of codes, a set of extended codes, and a set of Mellanox codes, which apply to links that
    /// support QDR.
    pub fn fastest(codes: u8, ext: u8, mlnx: u8) -> Option<Self> {
        let mlnx = if codes & Self::Qdr.code() == 0 { 0 } else { mlnx };
        let is_in = |s: &Self| codes & s.code() | ext & s.ext_code() | mlnx & s.mlnx_code() != 0;
        Self::ALL.iter().rev().copied().find(is_in)
    }
    /// Returns the codes of this speed and the slower ones.
    pub fn mask(self) -> u8 {
        Self::ALL.iter().filter(|s| **s <= self).map(|s| s.code()).sum()
    }
    /// Returns the Mellanox codes of this speed and the slower ones.
    pub fn mlnx_mask(self) -> u8 {
        Self::ALL.iter().filter(|s| **s <= self).map(|s| s.mlnx_code()).sum()
    }
    /// Returns the extended codes of this speed and the slower ones.
    pub fn ext_mask(self) -> u8 {
        Self::ALL.iter().filter(|s| **s <= self).map(|s| s.ext_code()).sum()
    }
}

impl LinkRate {
    /// Four lanes of EDR: 100 Gb/s.
    pub const DEFAULT: Self = Self { width: Width::X4, speed: Speed::Edr };

    /// Returns the nominal rate of all lanes in Mb/s: 100000 for 4xEDR.
    pub const fn megabits(self) -> u32 {
        self.width.lanes() * self.speed.megabits()
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.width, self.speed)
    }
}

/// The error for a text that is not a width and a speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a rate is a width of 1x, 2x, 4x, 8x or 12x and a speed from SDR to NDR, as in 4xEDR")]
pub struct NoRate;

impl FromStr for LinkRate {
    type Err = NoRate;

    fn from_str(text: &str) -> Result<Self, NoRate> {
        let parse = || {
            let (lanes, speed) = text.split_once('x')?;
            let width = Width::ALL.iter().find(|w| w.name().strip_suffix('x') == Some(lanes))?;
            let speed = Speed::ALL.iter().find(|s| s.name() == speed)?;
            Some(Self { width: *width, speed: *speed })
        };
        parse().ok_or(NoRate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn link_rates_round_trip_through_text() {
        for width in Width::ALL {
            assert_eq!(Width::from_code(width.code()), Some(*width));
            for speed in Speed::ALL {
                let rate = LinkRate { width: *width, speed: *speed };
                assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }
        assert_eq!("4xFDR10".parse(), Ok(LinkRate { width: Width::X4, speed: Speed::Fdr10 }));
        for wrong in ["", "x", "4x", "3xSDR", "4xqdr", "EDR", "4EDR", "4xxEDR"] {
            assert_eq!(wrong.parse::<LinkRate>(), Err(NoRate), "{wrong}");
        }
    }

    #[test]
    fn width_and_speed_masks_include_the_slower_ones() {
        assert_eq!(Width::X4.mask(), 1 | 2 | 16);
        assert_eq!((Speed::Edr.mask(), Speed::Edr.ext_mask()), (7, 3));
        assert_eq!(Width::widest(3), Some(Width::X4));
        assert_eq!(
            (Speed::Qdr.mlnx_mask(), Speed::Fdr10.mlnx_mask(), Speed::Edr.mlnx_mask()),
            (0, 1, 1)
        );
        assert_eq!((Speed::Fdr10.mask(), Speed::Fdr10.ext_mask()), (7, 0));
        assert_eq!(Speed::fastest(7, 3, 1), Some(Speed::Edr));
        assert_eq!(Speed::fastest(7, 0, 1), Some(Speed::Fdr10));
        assert_eq!(Speed::fastest(3, 0, 1), Some(Speed::Ddr), "a link without QDR has none");
        assert_eq!(Speed::fastest(0, 0, 0), None);
        assert_eq!(LinkRate::DEFAULT.megabits(), 100_000);
    }
}
