//! Memory regions (`ibv_reg_mr(3)`, `ibv_rereg_mr(3)`).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use parking_lot::Mutex;
use rdmux_transport::attr::Access;
use rdmux_verbs as verbs;
use rdmux_verbs::{MrChange, MrInit, VerbsError};

use super::objects::dm::MrExt;
use super::objects::{Mr, MrCore, Object, Pd};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, guarded, pointer};

/// Access flags that any device accepts, and ignores where they have no meaning.
const OPTIONAL: u32 = 0x3ff0_0000;

/// Converts access flags to the engine's form.
///
/// # Errors
/// EINVAL for an unknown flag.
pub(crate) fn access(flags: c_uint) -> Result<Access> {
    Access::from_bits(flags & !OPTIONAL).ok_or(Errno::EINVAL)
}

/// Registers memory of this process. A region of no bytes has keys that give access to nothing, as with adapters.
///
/// # Errors
/// EINVAL for an invalid range or invalid flags, EFAULT for memory that is not mapped, unless it may be
/// mapped later (on-demand paging).
///
/// # Safety
/// As for [`verbs::Mr::register`]; the program's promise to `ibv_reg_mr`.
pub(crate) unsafe fn register(
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr> {
    let access = access(flags)?;
    let init = MrInit { iova, ..MrInit::own(addr.cast(), length, access) };
    // SAFETY: the caller guarantees it.
    let mr = unsafe { verbs::Mr::register(&pd.core.pd, init)? };
    Ok(publish(pd.as_ptr(), pd, mr, MrExt::default()))
}

/// Creates the program's object for a region in a domain, and returns its pointer.
pub(crate) fn publish(pd: *mut ibv_pd, domain: &Pd, region: verbs::Mr, ext: MrExt) -> *mut ibv_mr {
    let opened = domain.opened.clone();
    let (lkey, rkey) = (region.lkey().0, region.rkey().0);
    let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let addr = ptr::with_exposed_provenance_mut(bytes(region.init().addr));
    let length = bytes(region.init().length);
    let core = Arc::new(MrCore { mr: Mutex::new(region) });
    let handle = opened.next_handle();
    opened.mrs.lock().insert(handle, Arc::downgrade(&core));
    // SAFETY: the domain is the program's, which reads its public part.
    let context = unsafe { (*domain.as_ptr()).context };
    let public = UnsafeCell::new(ibv_mr { context, pd, addr, length, handle, lkey, rkey });
    let user = Mutex::new(Some(domain.core.users.add()));
    Box::new(Mr { public, opened, core, pd: user, ext }).into_ptr()
}

/// Deregisters a region.
///
/// # Errors
/// EBUSY while a memory window is bound to it.
///
/// # Safety
/// The pointer is NULL or a region's, and the caller is the last to use it.
pub(crate) unsafe fn destroy(ptr: *mut ibv_mr) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let mr = unsafe { Mr::peek(ptr)? };
    if !mr.opened.is_ours() {
        return Ok(());
    }
    // Imports may still hold it, but it is deregistered now.
    let is_over = mr.core.mr.lock().deregister()?;
    if !is_over {
        mr.ext.keep();
    }
    // SAFETY: the caller is the last to use it.
    let handle = unsafe { (*ptr).handle };
    mr.opened.mrs.lock().remove(&handle);
    // SAFETY: the caller guarantees it.
    drop(unsafe { Mr::take(ptr) });
    Ok(())
}

/// `ibv_reg_mr(3)`, for programs whose access flags are constants without optional ones.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller guarantees it.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller guarantees it.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// The function that `ibv_reg_mr` and `ibv_reg_mr_iova` of <infiniband/verbs.h> call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller guarantees it, also that the memory stays.
    pointer(|| unsafe { register(Pd::get(pd)?, addr, length, iova, access) })
}

/// `ibv_reg_dmabuf_mr(3)`: fails, because there is no device whose memory it could be.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    pointer(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_dereg_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller guarantees it.
    code(|| unsafe { destroy(mr) })
}

/// `ibv_rereg_mr(3)`: returns 0, or one of `ibv_rereg_mr_err_code`, and then leaves the region unchanged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let input = |errno: Errno| (IBV_REREG_MR_ERR_INPUT, errno);
    let result = guarded(|| {
        // SAFETY: the caller guarantees it, also that the memory stays.
        Ok(unsafe {
            reregister(mr, flags.cast_unsigned(), pd, addr, length, access.cast_unsigned())
        })
    });
    match result.map_err(input).flatten() {
        Ok(()) => 0,
        Err((answer, errno)) => {
            errno.set();
            answer
        }
    }
}

/// Changes a region. The error is the value that `ibv_rereg_mr` returns, and the errno.
///
/// # Safety
/// As for [`register`], and the pointers are NULL or objects of their types.
unsafe fn reregister(
    ptr: *mut ibv_mr,
    flags: c_uint,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    rights: c_uint,
) -> std::result::Result<(), (c_int, Errno)> {
    let input = |errno: Errno| (IBV_REREG_MR_ERR_INPUT, errno);
    let has = |flag: ibv_rereg_mr_flags| flags & flag != 0;
    // SAFETY: the caller guarantees it.
    let mr = unsafe { Mr::get(ptr) }.map_err(input)?;
    if flags == 0 || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
        return Err(input(Errno::EINVAL));
    }
    // Refused: flags that would not be granted, an imported region, whose domain the program cannot change, and one of device memory.
    if mr.ext.is_of_dm()
        || (rights != 0 && !has(IBV_REREG_MR_CHANGE_ACCESS))
        || mr.pd.lock().is_none()
    {
        return Err(input(Errno::EINVAL));
    }
    let mut change = MrChange::default();
    if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
        let start = addr as u64;
        if length == 0 || addr.is_null() || start.checked_add(length as u64).is_none() {
            return Err(input(Errno::EINVAL));
        }
        change.range = Some((start, length as u64, start));
    }
    if has(IBV_REREG_MR_CHANGE_ACCESS) {
        change.access = Some(access(rights).map_err(input)?);
    }
    let mut user = None;
    if has(IBV_REREG_MR_CHANGE_PD) {
        // SAFETY: the caller guarantees it.
        let pd = unsafe { Pd::get(pd) }.map_err(input)?;
        change.pd = Some(pd.core.pd.clone());
        user = Some(pd.core.users.add());
    }
    let mut region = mr.core.mr.lock();
    let failed = |error: VerbsError| (IBV_REREG_MR_ERR_CMD, error.into());
    // SAFETY: the caller guarantees it.
    unsafe { region.reregister(change) }.map_err(failed)?;
    // SAFETY: the public part of a region that the caller holds; the C API allows no other access meanwhile.
    let public = unsafe { &mut *ptr };
    (public.lkey, public.rkey) = (region.lkey().0, region.rkey().0);
    if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
        (public.addr, public.length) = (addr, length);
    }
    if user.is_some() {
        public.pd = pd;
        *mr.pd.lock() = user;
    }
    Ok(())
}
