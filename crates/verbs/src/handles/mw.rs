//! Memory windows (`ibv_alloc_mw(3)`, `ibv_bind_mw(3)`; IBTA 10.6.7.2): keys to a part of a region, granted and revoked on the
//! data path.
//!
//! A window is bound by a work request on a send queue. One of type 1 serves every queue pair of its
//! protection domain and is unbound by binding it to no bytes; one of type 2 serves the queue pair
//! that bound it (type 2B) and is unbound by invalidating its key, locally or by the peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdmux_transport::attr::Access;
use rdmux_transport::wr::{MwBind, SendData, SendFlags, SendOp, SendWr};
use rdmux_wire::Rkey;

use crate::engine::device::Device;
use crate::handles::mr::Mr;
use crate::handles::pd::Pd;
use crate::handles::qp::Qp;
use crate::objects::error::VerbsError;
pub use crate::objects::mw::MwType;
use crate::objects::mw::Window;
use crate::objects::quota;

/// A memory window. Unbound and deallocated when dropped.
#[derive(Debug)]
pub struct Mw {
    device: Arc<Device>,
    pd: Pd,
    kind: MwType,
    /// The key once every bind that [`bind`](Self::bind) has posted so far is done.
    key: AtomicU32,
}

impl Mw {
    /// Allocates a window that is bound to nothing.
    ///
    /// # Errors
    ///
    /// ENOMEM when there are as many windows as the device allows.
    pub fn alloc(pd: &Pd, kind: MwType) -> Result<Self, VerbsError> {
        let device = pd.device().clone();
        let limit = device.limits().max_mw;
        let window = Window::new(pd.id(), kind);
        let key = device.regions().write().insert_window(window, limit).ok_or_else(|| {
            quota::full("allocate a memory window", "memory windows", "max_mw", limit)
        })?;
        Ok(Self { device, pd: pd.clone(), kind, key: AtomicU32::new(key) })
    }

    /// Returns the window's type.
    pub fn kind(&self) -> MwType {
        self.kind
    }
    /// Returns the window's protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    /// Returns the key. A type 1 window has this key once all binds posted so far are done. For type 2 it is the key that the
    /// window was allocated with; [`with_key`](Self::with_key) derives the keys that it may be bound with.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key.load(Ordering::Acquire))
    }
    /// Returns the key of this window with its low 8 bits replaced.
    pub fn with_key(&self, low: u8) -> Rkey {
        Rkey(self.rkey().0 & !0xff | u32::from(low))
    }

    /// Posts a bind of a window of type 1 to a part of `mr`, or, with a length of 0, an unbind. Returns the key that peers need
    /// once the bind is done (`ibv_bind_mw(3)`). It completes on the send queue, in order; sends that are posted later find the
    /// window bound.
    ///
    /// # Errors
    ///
    /// EINVAL for a window of type 2, which is bound by [`SendOp::BindMw`] with a key of the program's choice, and for different
    /// protection domains; otherwise as for [`Qp::post_send`].
    pub fn bind(
        &self,
        qp: &Qp,
        wr_id: u64,
        flags: SendFlags,
        part: &MwPart<'_>,
    ) -> Result<Rkey, VerbsError> {
        let invalid = |why| Err(VerbsError::invalid("bind a memory window", why));
        if self.kind != MwType::One {
            return invalid("a window of type 2 is bound by a send work request");
        }
        if *qp.pd() != self.pd || part.mr.is_some_and(|mr| *mr.pd() != self.pd) {
            return invalid("window, region and queue pair must belong to one protection domain");
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

/// The range that a window is bound to (`ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug)]
pub struct MwPart<'a> {
    /// The region. May be none only if the length is 0.
    pub mr: Option<&'a Mr>,
    /// The start of the window, in the region's own addresses.
    pub addr: u64,
    /// The length in bytes.
    pub length: u64,
    /// The access rights of peers.
    pub access: Access,
}

impl MwPart<'_> {
    /// Returns the bind as a work request names it, with the window's new key.
    pub fn bind(&self, rkey: Rkey) -> MwBind {
        let lkey = self.mr.map(Mr::lkey).unwrap_or_default();
        MwBind { rkey, lkey, addr: self.addr, length: self.length, access: self.access }
    }
}
