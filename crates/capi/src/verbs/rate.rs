//! Static rates (`ibv_rate_to_mbps(3)`, `ibv_rate_to_mult(3)`; IBTA table 224).

use std::ffi::c_int;

use crate::abi::verbs::*;

/// Code, megabits per second, and the multiple of 2.5 Gb/s where there is one.
const RATES: &[(ibv_rate, c_int, Option<c_int>)] = &[
    (IBV_RATE_2_5_GBPS, 2500, Some(1)),
    (IBV_RATE_5_GBPS, 5000, Some(2)),
    (IBV_RATE_10_GBPS, 10000, Some(4)),
    (IBV_RATE_20_GBPS, 20000, Some(8)),
    (IBV_RATE_30_GBPS, 30000, Some(12)),
    (IBV_RATE_40_GBPS, 40000, Some(16)),
    (IBV_RATE_60_GBPS, 60000, Some(24)),
    (IBV_RATE_80_GBPS, 80000, Some(32)),
    (IBV_RATE_120_GBPS, 120_000, Some(48)),
    (IBV_RATE_28_GBPS, 28125, Some(11)),
    (IBV_RATE_50_GBPS, 53125, Some(20)),
    (IBV_RATE_400_GBPS, 425_000, Some(160)),
    (IBV_RATE_600_GBPS, 637_500, Some(240)),
    (IBV_RATE_800_GBPS, 850_000, Some(320)),
    (IBV_RATE_1200_GBPS, 1_275_000, Some(480)),
    (IBV_RATE_14_GBPS, 14062, None),
    (IBV_RATE_56_GBPS, 56250, None),
    (IBV_RATE_112_GBPS, 112_500, None),
    (IBV_RATE_168_GBPS, 168_750, None),
    (IBV_RATE_25_GBPS, 25781, None),
    (IBV_RATE_100_GBPS, 103_125, None),
    (IBV_RATE_200_GBPS, 206_250, None),
    (IBV_RATE_300_GBPS, 309_375, None),
];

/// `ibv_rate_to_mult(3)`: -1 for a rate that is no multiple.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).and_then(|(.., mult)| *mult).unwrap_or(-1)
}

/// `mult_to_ibv_rate(3)`: the maximum for a multiple without a code.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|(.., m)| *m == Some(mult)).map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

/// `ibv_rate_to_mbps(3)`: -1 for an invalid rate.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, mbps, _)| *mbps)
}

/// `mbps_to_ibv_rate(3)`: the maximum for a speed without a code.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|(_, m, _)| *m == mbps).map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_rates_are_each_others_inverse() {
        for (rate, mbps, mult) in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(*rate)), *rate);
            assert_eq!(ibv_rate_to_mbps(*rate), *mbps);
            if mult.is_some() {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(*rate)), *rate);
            }
        }
        assert_eq!(ibv_rate_to_mbps(99), -1);
        assert_eq!(mbps_to_ibv_rate(1), IBV_RATE_MAX);
    }
}
