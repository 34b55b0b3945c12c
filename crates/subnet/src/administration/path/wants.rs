//! The requested properties of a path: the components of a query and their selectors (IBTA 15.2.5.16).

use rdmux_wire::mad::status;
use rdmux_wire::sa::{
    MultiPathRecord, MultiPathRecordMask, PathRecord, PathRecordMask, Rate, Selector,
};
use rdmux_wire::{Mtu, Pkey};

use super::rate;
use crate::administration::Status;

/// A requested value and its selector.
pub(in super::super) type Wanted<T> = Option<(Selector, T)>;

/// The requested properties of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wants {
    mtu: Wanted<u8>,
    rate: Wanted<Rate>,
    life: Wanted<u8>,
    pub(super) pkey: Option<Pkey>,
    pub(super) sl: Option<u8>,
    /// Whether only reversible paths match.
    pub(super) reversible: bool,
    /// Paths for raw traffic.
    pub(super) raw: bool,
    /// The most paths per pair of ports.
    pub(super) count: usize,
}

macro_rules! wants {
    ($(#[$doc:meta])* $name:ident($record:ident, $mask:ident)) => {
        $(#[$doc])*
        pub(super) fn $name(mask: u64, record: &$record) -> Result<Self, Status> {
            let mask = $mask::from_bits_retain(mask);
            let mtu = mask.contains($mask::MTU_SELECTOR | $mask::MTU);
            let rate = mask.contains($mask::RATE_SELECTOR | $mask::RATE);
            let life = $mask::PACKET_LIFE_TIME_SELECTOR | $mask::PACKET_LIFE_TIME;
            let life = mask.contains(life);
            let numb = mask.contains($mask::NUMB_PATH);
            Self {
                mtu: mtu.then_some((record.mtu_selector, record.mtu)),
                rate: rate.then_some((record.rate_selector, record.rate)),
                life: life.then_some((record.packet_life_time_selector, record.packet_life_time)),
                pkey: mask.contains($mask::PKEY).then_some(record.pkey),
                sl: mask.contains($mask::SL).then_some(record.sl),
                reversible: mask.contains($mask::REVERSIBLE) && record.reversible,
                raw: mask.contains($mask::RAW_TRAFFIC) && record.raw_traffic,
                count: if numb { record.numb_path.into() } else { usize::MAX },
            }
            .check()
        }
    };
}

impl Wants {
    wants! {
        /// Reads the components of a PathRecord.
        path(PathRecord, PathRecordMask)
    }
    wants! {
        /// Reads the components of a MultiPathRecord.
        multi_path(MultiPathRecord, MultiPathRecordMask)
    }

    /// Returns the same properties with at most this many paths per pair of ports.
    pub(super) fn at_most(self, count: usize) -> Self {
        Self { count, ..self }
    }

    fn check(self) -> Result<Self, Status> {
        let mtu = self.mtu.is_none_or(|(_, mtu)| Mtu::from_code(mtu).is_some());
        let rate = self.rate.is_none_or(|(_, rate)| rate::rank(rate).is_some());
        if mtu && rate { Ok(self) } else { Err(status::SA_REQUEST_INVALID) }
    }

    /// Returns the MTU of the answer if a route with this MTU satisfies the request. A route can be used with a smaller MTU
    /// than it has.
    pub(super) fn mtu(&self, has: u8) -> Option<u8> {
        let Some((selector, wanted)) = self.mtu else { return Some(has) };
        match selector {
            Selector::GREATER_THAN => (has > wanted).then_some(has),
            Selector::LESS_THAN if has >= wanted => (wanted > 1).then(|| wanted - 1),
            Selector::EXACTLY => (has >= wanted).then_some(wanted),
            _ => Some(has),
        }
    }

    /// Returns the rate of the answer if a route with this rate satisfies the request. A faster route can be used with a
    /// lower rate if the request is for less.
    pub(super) fn rate(&self, has: Rate) -> Option<Rate> {
        let Some((selector, wanted)) = self.rate else { return Some(has) };
        let (place, wanted_place) = (rate::rank(has), rate::rank(wanted));
        match selector {
            Selector::GREATER_THAN => (place > wanted_place).then_some(has),
            Selector::LESS_THAN if place >= wanted_place => rate::below(wanted),
            Selector::EXACTLY => (place == wanted_place).then_some(has),
            _ => Some(has),
        }
    }

    /// Returns the life time of the answer if a route with this life time satisfies the request. OpenSM treats it like an MTU.
    pub(super) fn life(&self, has: u8) -> Option<u8> {
        let Some((selector, wanted)) = self.life else { return Some(has) };
        match selector {
            Selector::GREATER_THAN => (has > wanted).then_some(has),
            Selector::LESS_THAN if has >= wanted => (wanted > 1).then(|| wanted - 1),
            Selector::EXACTLY => (has >= wanted).then_some(wanted),
            _ => Some(has),
        }
    }
}
