//! Whether packets between processes of this host may take shortcuts.

use std::sync::atomic::{AtomicU8, Ordering};

/// Why every packet takes the long way, where it is looked at or stopped: somebody captures, or the port has no link. One
/// look at one word tells both, so that a message which may take a shortcut pays no more for the two.
#[derive(Debug, Default)]
pub(crate) struct Detour(AtomicU8);

impl Detour {
    /// Somebody captures.
    const CAPTURED: u8 = 1;
    /// The port sends and takes nothing.
    const CUT: u8 = 2;

    /// Whether there is any reason.
    #[inline]
    pub(crate) fn is_needed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Whether somebody captures.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::CAPTURED != 0
    }

    /// Whether the port sends and takes nothing, so that packets are lost in rings, too.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::CUT != 0
    }

    /// Somebody captures from now on, or nobody any more.
    pub(crate) fn set_captured(&self, captured: bool) {
        self.set(Self::CAPTURED, captured);
    }

    /// The port has no link from now on, or has one again.
    pub(crate) fn set_cut(&self, cut: bool) {
        self.set(Self::CUT, cut);
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
        assert!(!detour.is_needed());
        detour.set_cut(true);
        detour.set_captured(true);
        assert!(detour.is_needed() && detour.is_cut() && detour.is_captured());
        detour.set_cut(false);
        assert!(detour.is_needed() && !detour.is_cut() && detour.is_captured());
        detour.set_captured(false);
        assert!(!detour.is_needed());
    }
}
