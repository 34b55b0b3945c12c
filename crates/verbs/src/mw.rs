//! Memory windows (`ibv_alloc_mw(3)`, `ibv_bind_mw(3)`; IBTA 10.6.7.2): keys to a part of a region,
//! handed out and taken back on the data path.
//!
//! A window is bound by a work request on a send queue. One of type 1 serves every queue pair of its
//! protection domain and is unbound by binding it to no bytes; one of type 2 serves the queue pair
//! that bound it (type 2B) and is unbound by invalidating its key, locally or by the peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdmux_transport::attr::Access;
use rdmux_transport::env::AccessFault;
use rdmux_transport::wr::{MwBind, SendData, SendFlags, SendOp, SendWr};
use rdmux_wire::{Qpn, Rkey};

use crate::device::Device;
use crate::error::VerbsError;
use crate::mr::Mr;
use crate::pd::{Pd, PdId};
use crate::qp::Qp;
use crate::quota;
use crate::regions::{Asker, Region};

/// The type of a window; the values of `ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MwType {
    /// Type 1.
    One = 1,
    /// Type 2B.
    Two = 2,
}

/// A memory window. Unbound and deallocated when dropped.
#[derive(Debug)]
pub struct Mw {
    device: Arc<Device>,
    pd: Pd,
    kind: MwType,
    /// The key after all binds posted by [`bind`](Self::bind) so far.
    key: AtomicU32,
}

impl Mw {
    /// Allocates a window that is bound to nothing.
    ///
    /// # Errors
    ///
    /// ENOMEM when there are as many as the device allows.
    pub fn alloc(pd: &Pd, kind: MwType) -> Result<Self, VerbsError> {
        let device = pd.device().clone();
        let limit = device.limits().max_mw;
        let window = Window::new(pd.id(), kind);
        let key = device.regions().write().insert_window(window, limit).ok_or_else(|| {
            quota::full("allocate a memory window", "memory windows", "max_mw", limit)
        })?;
        Ok(Self { device, pd: pd.clone(), kind, key: AtomicU32::new(key) })
    }

    /// Its type.
    pub fn kind(&self) -> MwType {
        self.kind
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    /// The key of a window of type 1 once all binds posted so far are done. Of one of type 2 the key
    /// that it was allocated with: [`with_key`](Self::with_key) makes those that it may be bound with.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key.load(Ordering::Acquire))
    }
    /// The key of this window with other low 8 bits.
    pub fn with_key(&self, low: u8) -> Rkey {
        Rkey(self.rkey().0 & !0xff | u32::from(low))
    }

    /// Posts a bind of a window of type 1 to a part of `mr`, or with no bytes an unbind, and returns
    /// the key that peers need when it is done (`ibv_bind_mw(3)`). It completes on the send queue,
    /// in order; a send that is posted after it finds the window bound.
    ///
    /// # Errors
    ///
    /// EINVAL for a window of type 2, which is bound by [`SendOp::BindMw`] with a key of the
    /// program's choice, and for domains that differ; else as for [`Qp::post_send`].
    pub fn bind(
        &self,
        qp: &Qp,
        wr_id: u64,
        flags: SendFlags,
        part: &MwPart<'_>,
    ) -> Result<Rkey, VerbsError> {
        let invalid = |why| Err(VerbsError::invalid("bind a memory window", why));
        if self.kind != MwType::One {
            return invalid("one of type 2 is bound by a send work request");
        }
        if *qp.pd() != self.pd || part.mr.is_some_and(|mr| *mr.pd() != self.pd) {
            return invalid("window, region and queue pair must be of one protection domain");
        }
        let before = self.rkey().0;
        let rkey = Rkey(before & !0xff | before.wrapping_add(1) & 0xff);
        let op = SendOp::BindMw(part.bind(rkey));
        qp.post_send(&SendWr { flags, ..SendWr::new(wr_id, op, SendData::Sges(&[])) })?;
        self.key.store(rkey.0, Ordering::Release);
        Ok(rkey)
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.device.regions().write().remove_window(self.rkey().0 >> 8);
    }
}

/// What a window is to be bound to (`ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug)]
pub struct MwPart<'a> {
    /// The region; none only with no bytes.
    pub mr: Option<&'a Mr>,
    /// Where the window starts, in the region's own space.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// What peers may do.
    pub access: Access,
}

impl MwPart<'_> {
    /// As a work request names it, with the window's key from then on.
    pub fn bind(&self, rkey: Rkey) -> MwBind {
        let lkey = self.mr.map(Mr::lkey).unwrap_or_default();
        MwBind { rkey, lkey, addr: self.addr, length: self.length, access: self.access }
    }
}

/// A window as the table has it.
#[derive(Debug)]
pub(crate) struct Window {
    pd: PdId,
    kind: MwType,
    bound: Option<Bound>,
}

/// To what a window is bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The region's key.
    pub(crate) region: u32,
    /// Where the window starts in the region's space, and what peers call that place.
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
    pub(crate) fn set(&mut self, bound: Option<Bound>) {
        self.bound = bound;
    }
    pub(crate) fn take(&mut self) -> Option<Bound> {
        self.bound.take()
    }
    /// Whether it is bound to this queue pair.
    pub(crate) fn is_of(&self, qpn: Qpn) -> bool {
        self.kind == MwType::Two && self.bound.is_some_and(|bound| bound.qpn == qpn)
    }

    /// The region's key, and where `len` bytes at `va` lie in its space, if the peer of `who` may.
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

    /// Whether `who` may take its key away: type 2 only, and only the queue pair that it serves.
    pub(crate) fn check_invalidate(&self, who: Asker) -> Result<(), AccessFault> {
        if self.kind == MwType::One {
            return Err(AccessFault::Rights);
        }
        self.serves(who, self.bound.as_ref().ok_or(AccessFault::Key)?)
    }

    /// Whether `who` may bind it like this, the region apart. None is an unbind.
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
            // It must be invalidated first.
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

    /// Whether a region may have it bound like this.
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
