//! Rates of ports and their order.

use rdmux_wire::sa::Rate;
use rdmux_wire::sm::PortInfo;

use crate::topology::Speed;

/// The codes in ascending order, as OpenSM orders them: 25 Gb/s comes after 30.
const ASCENDING: [u8; 21] =
    [2, 5, 3, 11, 6, 4, 15, 19, 7, 8, 20, 12, 9, 10, 16, 13, 14, 17, 18, 21, 22];

/// Returns the rank of a rate; none for an unknown code.
pub(in super::super) fn rank(rate: Rate) -> Option<usize> {
    ASCENDING.iter().position(|&code| code == rate.0)
}

/// Returns the rate with a rank, or the highest rate if the rank is too large.
pub(super) fn at(rank: u8) -> Rate {
    ASCENDING.get(usize::from(rank)).map_or(HIGHEST, |&code| Rate(code))
}

/// Returns the next higher rate.
pub(in super::super) fn above(rate: Rate) -> Option<Rate> {
    ASCENDING.get(rank(rate)? + 1).map(|&code| Rate(code))
}

/// Returns the next lower rate.
pub(in super::super) fn below(rate: Rate) -> Option<Rate> {
    let place = rank(rate)?.checked_sub(1)?;
    Some(Rate(ASCENDING[place]))
}

/// Returns the lower of two rates.
pub(crate) fn lower(a: Rate, b: Rate) -> Rate {
    if rank(a) <= rank(b) { a } else { b }
}

/// The highest rate.
pub(crate) const HIGHEST: Rate = Rate::GBPS_600;

/// Returns the rate of a port's link; none if it has no link, such as port 0 of a switch.
pub(crate) fn of(info: &PortInfo) -> Option<Rate> {
    let lanes = u32::from(info.link_width_active.lanes());
    let (codes, ext) = (info.link_speed_active.bits(), info.link_speed_ext_active.bits());
    let mbps = lanes * Speed::fastest(codes, ext, 0)?.megabits();
    let fits = ASCENDING.iter().map(|&code| Rate(code)).filter(|rate| rate.mbps() <= mbps);
    fits.max_by_key(|rate| rate.mbps())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_wire::sm::{LinkSpeed, LinkSpeedExt, LinkWidth};

    #[test]
    fn every_known_rate_code_has_a_rank() {
        assert!((0..64).map(Rate).all(|rate| rank(rate).is_some() == (rate.mbps() > 0)));
        assert_eq!(below(Rate::GBPS_40), Some(Rate::GBPS_28));
        assert_eq!((below(Rate::GBPS_2_5), above(HIGHEST)), (None, None));
        assert_eq!(lower(Rate::GBPS_25, Rate::GBPS_30), Rate::GBPS_30);
        assert!((0..21).all(|place| rank(at(place)) == Some(place.into())));
        assert_eq!(at(u8::MAX), HIGHEST);
    }

    #[test]
    fn path_rate_is_link_width_times_link_speed() {
        let port = |width, speed, ext| PortInfo {
            link_width_active: LinkWidth::from_bits_retain(width),
            link_speed_active: LinkSpeed::from_bits_retain(speed),
            link_speed_ext_active: LinkSpeedExt::from_bits_retain(ext),
            ..PortInfo::default()
        };
        let cases = [
            (1, 1, 0, Some(Rate::GBPS_2_5)),
            (2, 4, 0, Some(Rate::GBPS_40)),
            (2, 4, 1, Some(Rate::GBPS_56)),
            (2, 0, 2, Some(Rate::GBPS_100)),
            (16, 0, 4, Some(Rate::GBPS_100)),
            (8, 0, 8, Some(Rate::GBPS_600)),
            (0, 4, 0, None),
            (2, 0, 0, None),
        ];
        for (width, speed, ext, expected) in cases {
            assert_eq!(of(&port(width, speed, ext)), expected, "{width} {speed} {ext}");
        }
    }
}
