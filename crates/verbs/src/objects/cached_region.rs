//! A range of memory that was found in the table of regions, for who uses it again.

use rdmux_transport::wr::Sge;
use rdmux_wire::Lkey;

use crate::objects::pd::PdId;

/// Memory of the process's own that was used last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedRegion {
    pd: PdId,
    lkey: Lkey,
    /// Where it begins.
    addr: u64,
    /// Bytes; zero of none.
    length: u64,
}

impl Default for CachedRegion {
    fn default() -> Self {
        Self::new(PdId::default(), Lkey(0), 0, 0)
    }
}

impl CachedRegion {
    /// `length` bytes of the process's own memory at `addr`, which the protection domain calls `lkey` and by their own
    /// addresses.
    pub(crate) fn new(pd: PdId, lkey: Lkey, addr: u64, length: u64) -> Self {
        Self { pd, lkey, addr, length }
    }

    /// Whether an entry of a list lies in it.
    #[inline]
    pub(crate) fn holds(&self, pd: PdId, sge: &Sge, len: u32) -> bool {
        let offset = sge.addr.wrapping_sub(self.addr);
        let fits = offset <= self.length && u64::from(len) <= self.length - offset;
        fits && sge.lkey == self.lkey && pd == self.pd && self.length != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_region_holds_what_lies_in_it() {
        let (pd, lkey) = (PdId(7), Lkey(0x105));
        let cached = CachedRegion::new(pd, lkey, 1000, 24);
        let holds = |pd, lkey, addr, len| cached.holds(pd, &Sge { addr, length: len, lkey }, len);
        assert!(holds(pd, lkey, 1000, 24) && holds(pd, lkey, 1023, 1) && holds(pd, lkey, 1024, 0));
        assert!(
            !holds(pd, lkey, 1001, 24) && !holds(pd, lkey, 999, 1) && !holds(pd, lkey, 1025, 0)
        );
        assert!(!holds(PdId(8), lkey, 1000, 1) && !holds(pd, Lkey(0x106), 1000, 1));
        assert!(!CachedRegion::default().holds(
            PdId(0),
            &Sge { addr: 0, length: 0, lkey: Lkey(0) },
            0
        ));
    }
}
