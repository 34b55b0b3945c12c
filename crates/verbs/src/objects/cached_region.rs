//! A cached lookup in the table of regions, for repeated use.

use rdmux_transport::wr::Sge;
use rdmux_wire::Lkey;

use crate::objects::pd::PdId;

/// The range of the process's own memory that was used last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedRegion {
    pd: PdId,
    lkey: Lkey,
    /// The start of the range.
    addr: u64,
    /// The length in bytes; zero if the entry is empty.
    length: u64,
}

impl Default for CachedRegion {
    fn default() -> Self {
        Self::new(PdId::default(), Lkey(0), 0, 0)
    }
}

impl CachedRegion {
    /// An entry for `length` bytes of the process's own memory at `addr`. The key `lkey` covers them in the protection domain,
    /// under their own addresses.
    pub(crate) fn new(pd: PdId, lkey: Lkey, addr: u64, length: u64) -> Self {
        Self { pd, lkey, addr, length }
    }

    /// Returns whether an entry of a gather or scatter list is within the range.
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
    fn cached_region_matches_only_its_pd_lkey_and_bounds() {
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
