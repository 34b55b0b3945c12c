//! Memory windows (`ibv_alloc_mw(3)`, `ibv_bind_mw(3)`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use rdmux_transport::attr::Access;
use rdmux_transport::wr::{MwBind, SendData, SendFlags, SendOp, SendWr};
use rdmux_verbs as verbs;
use rdmux_wire::{Lkey, Rkey};

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, pointer};
use crate::verbs::mr::access;
use crate::verbs::objects::{Object, Opened, Pd, Qp, Use};

/// `ibv_mw`.
#[repr(C)]
pub(crate) struct Mw {
    public: UnsafeCell<ibv_mw>,
    opened: Arc<Opened>,
    /// Deallocates the window when it is dropped.
    mw: verbs::Mw,
    _pd: Use,
}

// SAFETY: `repr(C)`, and the first field is the public structure.
unsafe impl Object for Mw {
    type Public = ibv_mw;
    fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    pointer(|| {
        let kind = match mw_type {
            IBV_MW_TYPE_1 => verbs::MwType::One,
            IBV_MW_TYPE_2 => verbs::MwType::Two,
            _ => return Err(Errno::EINVAL),
        };
        // SAFETY: the caller guarantees it.
        let domain = unsafe { Pd::get(pd)? };
        let mw = verbs::Mw::alloc(&domain.core.pd, kind)?;
        let public = ibv_mw {
            // SAFETY: a field that is never written.
            context: unsafe { (*pd).context },
            pd,
            rkey: mw.rkey().0,
            handle: domain.opened.next_handle(),
            type_: mw_type,
        };
        let (opened, users) = (domain.opened.clone(), domain.core.users.add());
        let public = UnsafeCell::new(public);
        Ok(Box::new(Mw { public, opened, mw, _pd: users }).into_ptr())
    })
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        if unsafe { Mw::peek(mw)? }.opened.is_ours() {
            // SAFETY: it is no longer used.
            drop(unsafe { Mw::take(mw) });
        }
        Ok(())
    })
}

/// Posts a bind of a window of type 1, and gives the window its next key. <infiniband/verbs.h> has already checked
/// the type, and that window and region have the same domain. EINVAL for access that no such window has. As with
/// mlx5, rights of the own program are ignored.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (qp, window, bind) = unsafe { (Qp::get(qp)?, Mw::get(mw)?, mw_bind.as_ref()) };
        let bind = bind.ok_or(Errno::EINVAL)?;
        // Only type 2 can have zero-based addresses. This fails here, and not as a completion that ends the connection.
        if access(bind.bind_info.mw_access_flags)?.contains(Access::ZERO_BASED) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a field of the object.
        let key = unsafe { &raw mut (*window.public.get()).rkey };
        // SAFETY: the program does not write it.
        let rkey = next_key(unsafe { key.read() });
        // SAFETY: the region is NULL or one of the program's.
        let op = SendOp::BindMw(unsafe { bind_of(rkey, &bind.bind_info) });
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        let data = SendData::Sges(&[]);
        qp.own()?.post_send(&SendWr { flags, ..SendWr::new(bind.wr_id, op, data) })?;
        // SAFETY: as above.
        unsafe { key.write(rkey) };
        Ok(())
    })
}

/// Returns the bind operation of a send work request.
///
/// # Errors
/// As for [`bind_of_type_2`].
///
/// # Safety
/// As for [`bind_of_type_2`].
pub(crate) unsafe fn bind_operation(wr: &ibv_send_wr_bind_mw) -> Result<SendOp> {
    // SAFETY: the caller guarantees it.
    unsafe { bind_of_type_2(wr.mw, wr.rkey, &raw const wr.bind_info) }.map(SendOp::BindMw)
}

/// Returns the bind of a window of type 2. The program chooses only the low 8 bits of the key (IBTA 10.6.7.2.2). The
/// index is the window's, whatever the program passes, as with mlx5.
///
/// # Errors
/// EINVAL for a window of type 1, or no region.
///
/// # Safety
/// The window is NULL or one of this library's, the information NULL or readable, and its region NULL or one of this library's.
pub(super) unsafe fn bind_of_type_2(
    mw: *const ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) -> Result<MwBind> {
    // SAFETY: the caller guarantees it.
    let (mw, info) = unsafe { (&Mw::peek(mw.cast_mut())?.mw, info.as_ref()) };
    let info = info.ok_or(Errno::EINVAL)?;
    if mw.kind() != verbs::MwType::Two || info.mr.is_null() {
        return Err(Errno::EINVAL);
    }
    let rkey = with_low_bits(mw.rkey().0, rkey);
    // SAFETY: as above.
    Ok(unsafe { bind_of(rkey, info) })
}

/// Returns the bind of a window with this new key.
///
/// # Safety
/// The region is NULL or one of this library's.
unsafe fn bind_of(rkey: u32, info: &ibv_mw_bind_info) -> MwBind {
    // SAFETY: the caller guarantees it.
    let lkey = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    MwBind {
        rkey: Rkey(rkey),
        lkey: Lkey(lkey),
        addr: info.addr,
        length: info.length,
        access: Access::from_bits_retain(info.mw_access_flags),
    }
}

/// Returns the key of a window with its low 8 bits incremented, as `ibv_inc_rkey(3)` does.
fn next_key(rkey: u32) -> u32 {
    with_low_bits(rkey, rkey.wrapping_add(1))
}

/// Returns a key with the low 8 bits of another.
fn with_low_bits(rkey: u32, of: u32) -> u32 {
    rkey & !0xff | of & 0xff
}

#[cfg(test)]
mod tests {
    use super::next_key;

    #[test]
    fn memory_window_rekey_increments_only_the_low_8_bits() {
        assert_eq!(next_key(0x1234_5601), 0x1234_5602);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
    }
}
