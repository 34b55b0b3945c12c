//! Whether packets between processes of this host may take shortcuts.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::objects::port::MAX_PORTS;

/// Why every packet of a port takes the long way, where it is looked at or stopped: somebody captures, or the port has no link.
/// One look at one word tells both, so that a message which may take a shortcut pays no more for the two.
#[derive(Debug, Default)]
pub(crate) struct Detour(AtomicU8);

const _: () = assert!(MAX_PORTS < 8, "each port has a bit");

impl Detour {
    /// Somebody captures.
    const CAPTURED: u8 = 1;

    /// A port sends and takes nothing.
    #[inline]
    const fn cut(port: u8) -> u8 {
        Self::CAPTURED << (port & 7)
    }

    /// Whether there is any reason, for packets of a port.
    #[inline]
    pub(crate) fn is_needed(&self, port: u8) -> bool {
        let reasons = self.0.load(Ordering::Relaxed);
        // Usually there is none for any port.
        reasons != 0 && reasons & (Self::CAPTURED | Self::cut(port)) != 0
    }

    /// Whether somebody captures.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::CAPTURED != 0
    }

    /// Whether a port sends and takes nothing, so that packets are lost in rings, too.
    #[inline]
    pub(crate) fn is_cut(&self, port: u8) -> bool {
        self.0.load(Ordering::Relaxed) & Self::cut(port) != 0
    }

    /// Whether any port sends and takes nothing.
    #[inline]
    pub(crate) fn is_any_cut(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !Self::CAPTURED != 0
    }

    /// Somebody captures from now on, or nobody any more.
    pub(crate) fn set_captured(&self, captured: bool) {
        self.set(Self::CAPTURED, captured);
    }

    /// A port has no link from now on, or has one again.
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
    fn each_reason_lasts_until_it_ends() {
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
