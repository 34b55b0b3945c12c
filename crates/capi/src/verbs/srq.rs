//! Shared receive queues (`ibv_create_srq(3)`, `ibv_modify_srq(3)`). Posting is in `post`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use rdmux_verbs as verbs;

use super::objects::{Context, Cq, Object, Pd, Srq, Users, Xrcd};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, pointer};

/// Creates a queue, of an XRC domain if one is given, and writes its actual sizes into `attr`.
pub(super) fn create(
    pd: &Pd,
    xrc: Option<(&Xrcd, &Cq)>,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq> {
    let opened = pd.opened.clone();
    let mut object = Box::<Srq>::new_uninit();
    let address = object.as_ptr().expose_provenance() as u64;
    // The limit is set when it is armed, by `ibv_modify_srq`.
    let sizes = verbs::SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0 };
    let pds = &pd.core.pd;
    let srq = match xrc {
        None => verbs::Srq::new(pds, sizes, address)?,
        Some((xrcd, cq)) => verbs::Srq::for_xrc(pds, &xrcd.xrcd, &cq.cq, sizes, address)?,
    };
    // SAFETY: all zero is a valid value: NULL, 0, an unlocked mutex, a condition without waiters.
    let mut public = unsafe { MaybeUninit::<ibv_srq>::zeroed().assume_init() };
    // SAFETY: the domain is the program's, which reads its public part.
    public.context = unsafe { (*pd.as_ptr()).context };
    (public.srq_context, public.pd) = (srq_context, pd.as_ptr());
    public.handle = opened.next_handle();
    let needs = [Some(pd.core.users.add()), xrc.map(|(_, cq)| cq.users.add())];
    let users = Users::default();
    object.write(Srq { public: UnsafeCell::new(public), opened, srq, users, needs });
    // SAFETY: written just now.
    Ok(unsafe { object.assume_init() }.into_ptr())
}

impl Srq {
    /// Returns the C pointer that a queue of the engine has as its context.
    pub(crate) fn of_context(context: u64) -> *mut ibv_srq {
        std::ptr::with_exposed_provenance_mut(usize::try_from(context).unwrap_or(0))
    }
}

/// `ibv_create_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (pd, init) = unsafe { (Pd::get(pd)?, init.as_mut().ok_or(Errno::EINVAL)?) };
        create(pd, None, init.srq_context, &mut init.attr)
    })
}

/// `ibv_create_srq_ex(3)`: basic queues, and those of XRC domains.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let init = unsafe {
            Context::get(context)?;
            init.as_mut()
        }
        .ok_or(Errno::EINVAL)?;
        let has = |bit: ibv_srq_init_attr_mask| init.comp_mask & bit != 0;
        if init.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED || !has(IBV_SRQ_INIT_ATTR_PD) {
            return Err(Errno::EINVAL);
        }
        let xrc = match init.srq_type {
            _ if !has(IBV_SRQ_INIT_ATTR_TYPE) => None,
            IBV_SRQT_BASIC => None,
            IBV_SRQT_XRC if !has(IBV_SRQ_INIT_ATTR_XRCD) || !has(IBV_SRQ_INIT_ATTR_CQ) => {
                return Err(Errno::EINVAL);
            }
            // SAFETY: the caller guarantees it.
            IBV_SRQT_XRC => Some(unsafe { (Xrcd::get(init.xrcd)?, Cq::get(init.cq)?) }),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        // SAFETY: the caller guarantees it.
        let pd = unsafe { Pd::get(init.pd)? };
        create(pd, xrc, init.srq_context, &mut init.attr)
    })
}

/// `ibv_get_srq_num(3)`: EINVAL for a queue without a number, because it belongs to no XRC domain.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (srq, srq_num) = unsafe { (Srq::get(srq)?, srq_num.as_mut().ok_or(Errno::EINVAL)?) };
        *srq_num = srq.srq.number().ok_or(Errno::EINVAL)?;
        Ok(())
    })
}

/// `ibv_modify_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (srq, attr) = unsafe { (Srq::get(srq)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        let mask = mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::EINVAL);
        }
        let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        Ok(srq.srq.modify(max_wr, limit)?)
    })
}

/// `ibv_query_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (srq, attr) = unsafe { (Srq::get(srq)?, attr.as_mut().ok_or(Errno::EINVAL)?) };
        let verbs::SrqAttr { max_wr, max_sge, limit } = srq.srq.attr();
        *attr = ibv_srq_attr { max_wr, max_sge, srq_limit: limit };
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`: EBUSY while a queue pair uses it. Waits until the program has acknowledged the events that
/// it took.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(ptr: *mut ibv_srq) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let srq = unsafe { Srq::peek(ptr)? };
        if !srq.opened.is_ours() {
            return Ok(());
        }
        srq.users.check_none()?;
        srq.srq.quiesce();
        // SAFETY: a destroyed queue is no longer used.
        drop(unsafe { Srq::take(ptr) });
        Ok(())
    })
}
