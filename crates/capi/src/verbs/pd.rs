//! Protection domains (`ibv_alloc_pd(3)`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdmux_verbs as verbs;

use super::objects::domain::PdExt;
use super::objects::{Context, Object, Opened, Pd, PdCore, Users};
use crate::abi::verbs::*;
use crate::boundary::{Result, code, pointer};

/// Creates a domain.
///
/// # Errors
/// ENOMEM when the device's limit is reached.
pub(crate) fn create(context: &Context) -> Result<*mut ibv_pd> {
    let opened = &context.opened;
    let pd = verbs::Pd::alloc(&opened.device)?;
    let core = Arc::new(PdCore { pd, users: Users::default() });
    let handle = opened.next_handle();
    opened.pds.lock().insert(handle, Arc::downgrade(&core));
    Ok(publish(context.as_ptr(), opened, core, handle, PdExt::default()))
}

/// Creates the program's object: for a new domain, an imported one, or a parent domain.
pub(crate) fn publish(
    context: *mut ibv_context,
    opened: &Arc<Opened>,
    core: Arc<PdCore>,
    handle: u32,
    ext: PdExt,
) -> *mut ibv_pd {
    let public = UnsafeCell::new(ibv_pd { context, handle });
    Box::new(Pd { public, opened: opened.clone(), core, ext }).into_ptr()
}

/// Destroys a domain.
///
/// # Errors
/// EBUSY while something is in it.
///
/// # Safety
/// The pointer is NULL or a domain's, and the caller is the last to use it.
pub(crate) unsafe fn destroy(domain: *mut ibv_pd) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let pd = unsafe { Pd::peek(domain)? };
    if !pd.opened.is_ours() {
        return Ok(());
    }
    pd.core.users.check_none()?;
    // SAFETY: the caller is the last to use it.
    let handle = unsafe { (*domain).handle };
    {
        // A parent domain has the handle of the domain that it was created from, which stays.
        let mut pds = pd.opened.pds.lock();
        if pds.get(&handle).is_some_and(|core| ptr::eq(core.as_ptr(), &*pd.core)) {
            pds.remove(&handle);
        }
    }
    // SAFETY: the caller guarantees it.
    drop(unsafe { Pd::take(domain) });
    Ok(())
}

/// `ibv_alloc_pd(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller guarantees it.
    pointer(|| create(unsafe { Context::get(context)? }))
}

/// `ibv_dealloc_pd(3)`: EBUSY while something is in it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller guarantees it.
    code(|| unsafe { destroy(pd) })
}
