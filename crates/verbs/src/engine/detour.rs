//! Decides whether packets between processes of this host may take shortcuts that bypass captures and port states.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::objects::port::MAX_PORTS;

/// The reasons why every packet of a port must take the full path, on which it is captured or dropped: a capture runs, or the
/// port has no link. One load of one word checks both, so that a message on a shortcut pays no more for two reasons.
#[derive(Debug, Default)]
pub(crate) struct Detour(AtomicU8);

const _: () = assert!(MAX_PORTS < 8, "each port has a bit");

impl Detour {
    /// A capture runs.
    const CAPTURED: u8 = 1;

    /// The bit for a port without a link, which neither sends nor receives.
    #[inline]
    const fn cut(port: u8) -> u8 {
        Self::CAPTURED << (port & 7)
    }

    /// Returns whether any reason applies to packets of a port.
    #[inline]
    pub(crate) fn is_needed(&self, port: u8) -> bool {
        let reasons = self.0.load(Ordering::Relaxed);
        // Usually no port has a reason.
        reasons != 0 && reasons & (Self::CAPTURED | Self::cut(port)) != 0
    }

    /// Returns whether a capture runs.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::CAPTURED != 0
    }

    /// Returns whether a port has no link, so that packets are dropped in rings, too.
    #[inline]
    pub(crate) fn is_cut(&self, port: u8) -> bool {
        self.0.load(Ordering::Relaxed) & Self::cut(port) != 0
    }

    /// Returns whether any port has no link.
    #[inline]
    pub(crate) fn is_any_cut(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !Self::CAPTURED != 0
    }

    /// Records whether a capture runs.
    pub(crate) fn set_captured(&self, captured: bool) {
        self.set(Self::CAPTURED, captured);
    }

    /// Records whether a port has no link.
    pub(crate) fn set_cut(&self, port: u8, cut: bool) {
        self.set(Self::cut(port), cut);
    }

    fn set(&self, bit: u8, on: bool) {
        if on {
            self.0.fetch_or(bit, Ordering::Release);
        } else {
            self.0.fetch_and(!bit, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detour_is_needed_while_a_port_is_cut_or_captured() {
        let detour = Detour::default();
        let is_needed = || [1, 2].map(|port| detour.is_needed(port));
        let is_cut = || [1, 2].map(|port| detour.is_cut(port));
        assert_eq!(is_needed(), [false; 2]);
        detour.set_cut(2, true);
        assert_eq!((is_needed(), is_cut()), ([false, true], [false, true]));
        detour.set_captured(true);
        assert_eq!((is_needed(), is_cut()), ([true; 2], [false, true]));
        detour.set_cut(2, false);
        assert_eq!((is_needed(), is_cut()), ([true; 2], [false; 2]));
        assert!(detour.is_captured());
        detour.set_captured(false);
        assert_eq!(is_needed(), [false; 2]);
    }
}
