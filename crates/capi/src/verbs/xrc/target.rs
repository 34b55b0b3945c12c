//! XRC receive queue pairs by handle: `ibv_create_qp_ex(3)` with `IBV_QPT_XRC_RECV`, and `ibv_open_qp(3)`. A handle is an
//! `ibv_qp` without protection domain and queues. The other functions for it are in `qp` and `event`.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use rdmux_transport::attr::QpState;
use rdmux_verbs::{self as verbs, Target};

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, pointer};
use crate::verbs::objects::build::QpExt;
use crate::verbs::objects::{Context, End, Object, Qp, Xrcd};

/// Creates a handle. `end` gets the domain, and the context for the target.
///
/// # Errors
/// EINVAL without a domain of this context's device, and the errors of `end`.
///
/// # Safety
/// `xrcd` is NULL or a domain's.
unsafe fn handle(
    context: &Context,
    xrcd: *mut ibv_xrcd,
    qp_context: *mut c_void,
    end: impl FnOnce(&verbs::Xrcd, u64) -> Result<(Target, QpState)>,
) -> Result<*mut ibv_qp> {
    // SAFETY: the caller guarantees it.
    let xrcd = unsafe { Xrcd::get(xrcd)? };
    if !Arc::ptr_eq(&xrcd.opened, &context.opened) {
        return Err(Errno::EINVAL);
    }
    let opened = context.opened.clone();
    let mut object = Box::<Qp>::new_uninit();
    let address = object.as_ptr().expose_provenance() as u64;
    let (target, state) = end(&xrcd.xrcd, address)?;
    // SAFETY: all zero is a valid value: NULL, 0, no function, an unlocked mutex, a condition without waiters.
    let mut public = unsafe { MaybeUninit::<ibv_qp_ex>::zeroed().assume_init() };
    let base = &mut public.qp_base;
    (base.context, base.qp_context) = (context.as_ptr(), qp_context);
    (base.handle, base.qp_num) = (opened.next_handle(), target.qpn().get());
    (base.state, base.qp_type) = (state as u32, IBV_QPT_XRC_RECV);
    object.write(Qp {
        public: UnsafeCell::new(public),
        opened,
        end: End::Target(target),
        ext: QpExt::default(),
        // The domain counts its own users.
        needs: [const { None }; 4],
    });
    // SAFETY: written just now.
    Ok(unsafe { object.assume_init() }.into_ptr())
}

/// `ibv_create_qp_ex(3)` for `IBV_QPT_XRC_RECV`: only the domain is used.
///
/// # Errors
/// EINVAL without a domain, ENOMEM when there are as many as allowed.
///
/// # Safety
/// The pointers in `init` are NULL or objects of their types.
pub(crate) unsafe fn create_target(
    context: *mut ibv_context,
    init: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp> {
    if init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        return Err(Errno::EINVAL);
    }
    // A target has no queue to post to.
    if init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 && init.send_ops_flags != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the caller guarantees it.
    let qp = unsafe {
        handle(Context::get(context)?, init.xrcd, init.qp_context, |xrcd, address| {
            Ok((Target::create(xrcd, address)?, QpState::Reset))
        })?
    };
    init.cap = ibv_qp_cap {
        max_send_wr: 0,
        max_recv_wr: 0,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline_data: 0,
    };
    Ok(qp)
}

/// `ibv_open_qp(3)`: returns a further handle. `state` is the queue pair's current state.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: ibv_qp_open_attr_mask =
        IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (context, attr) =
            unsafe { (Context::get(context)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        if attr.comp_mask & NEEDED != NEEDED
            || attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED
            || attr.qp_type != IBV_QPT_XRC_RECV
        {
            return Err(Errno::EINVAL);
        }
        let qpn = super::number::qpn(attr.qp_num)?;
        let qp_context = match attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT {
            0 => std::ptr::null_mut(),
            _ => attr.qp_context,
        };
        let open = |xrcd: &verbs::Xrcd, address| {
            // In this order, because an event may name the handle as soon as it exists.
            let state = xrcd.query(qpn)?.state;
            Ok((Target::open(xrcd, qpn, address)?, state))
        };
        // SAFETY: the caller guarantees it.
        unsafe { handle(context, attr.xrcd, qp_context, open) }
    })
}

const _: () = assert!(QpState::Reset as u32 == IBV_QPS_RESET);
