//! Memory windows as entries of the table of regions.

use rdmux_transport::attr::Access;
use rdmux_transport::env::AccessFault;
use rdmux_transport::wr::MwBind;
use rdmux_wire::Qpn;

use crate::objects::pd::PdId;
use crate::objects::region::{Asker, Region};

/// The type of a window; the values of `ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MwType {
    /// Type 1.
    One = 1,
    /// Type 2B.
    Two = 2,
}

/// A window as an entry of the table.
#[derive(Debug)]
pub(crate) struct Window {
    pd: PdId,
    kind: MwType,
    bound: Option<Bound>,
}

/// The range that a window is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The region's key.
    pub(crate) region: u32,
    /// The start of the window in the region's addresses, and the address that peers use for it.
    start: u64,
    base: u64,
    length: u64,
    access: Access,
    /// The queue pair that bound it.
    qpn: Qpn,
}

impl Window {
    pub(crate) fn new(pd: PdId, kind: MwType) -> Self {
        Self { pd, kind, bound: None }
    }
    pub(crate) fn kind(&self) -> MwType {
        self.kind
    }
    /// Binds the window, or unbinds it.
    pub(crate) fn set(&mut self, bound: Option<Bound>) {
        self.bound = bound;
    }
    /// Unbinds the window, and returns its previous range.
    pub(crate) fn take(&mut self) -> Option<Bound> {
        self.bound.take()
    }
    /// Returns whether this is a type 2 window that is bound to the given queue pair.
    pub(crate) fn is_of(&self, qpn: Qpn) -> bool {
        self.kind == MwType::Two && self.bound.is_some_and(|bound| bound.qpn == qpn)
    }

    /// Returns whether the window is bound to the region with this key.
    pub(crate) fn is_into(&self, region: u32) -> bool {
        self.bound.is_some_and(|bound| bound.region == region)
    }

    /// Returns the region's key and the address of `va` in the region, if the peer of `who` may access `len` bytes there.
    pub(crate) fn locate(
        &self,
        who: Asker,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(u32, u64), AccessFault> {
        let bound = self.bound.as_ref().ok_or(AccessFault::Key)?;
        self.serves(who, bound)?;
        let offset = va.checked_sub(bound.base).ok_or(AccessFault::Bounds)?;
        let end = offset.checked_add(len).ok_or(AccessFault::Bounds)?;
        if end > bound.length {
            return Err(AccessFault::Bounds);
        }
        if !bound.access.contains(access) {
            return Err(AccessFault::Rights);
        }
        Ok((bound.region, bound.start + offset))
    }

    fn serves(&self, who: Asker, bound: &Bound) -> Result<(), AccessFault> {
        let of_qp = self.kind == MwType::One || bound.qpn == who.qpn;
        if self.pd == who.pd && of_qp { Ok(()) } else { Err(AccessFault::Domain) }
    }

    /// Checks whether `who` may invalidate the window's key: type 2 only, and only the queue pair that it serves.
    pub(crate) fn check_invalidate(&self, who: Asker) -> Result<(), AccessFault> {
        if self.kind == MwType::One {
            return Err(AccessFault::Rights);
        }
        self.serves(who, self.bound.as_ref().ok_or(AccessFault::Key)?)
    }

    /// Checks whether `who` may bind the window in this way, apart from the region. Returns none for an unbind.
    pub(crate) fn check_bind(
        &self,
        who: Asker,
        bind: &MwBind,
    ) -> Result<Option<Bound>, AccessFault> {
        if self.pd != who.pd {
            return Err(AccessFault::Domain);
        }
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        match self.kind {
            MwType::One if bind.length == 0 => return Ok(None),
            MwType::One if zero_based => return Err(AccessFault::Rights),
            MwType::Two if bind.length == 0 => return Err(AccessFault::Bounds),
            // A bound type 2 window must be invalidated first.
            MwType::Two if self.bound.is_some() => return Err(AccessFault::Rights),
            _ => {}
        }
        Ok(Some(Bound {
            region: bind.lkey.0,
            start: bind.addr,
            base: if zero_based { 0 } else { bind.addr },
            length: bind.length,
            access: bind.access,
            qpn: who.qpn,
        }))
    }

    /// Checks whether the region permits this bind.
    pub(crate) fn check_region(&self, region: &Region, bind: &MwBind) -> Result<(), AccessFault> {
        if region.pd != self.pd {
            return Err(AccessFault::Domain);
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mut needed = Access::MW_BIND;
        needed.set(Access::LOCAL_WRITE, bind.access.intersects(writes));
        if region.access().contains(Access::ZERO_BASED) {
            return Err(AccessFault::Rights);
        }
        region.locate(bind.addr, bind.length, needed).map(drop)
    }
}
