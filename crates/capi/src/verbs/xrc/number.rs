//! XRC receive queue pairs by number, without handles. A process *registers* for one, without a count, and the queue pair is
//! destroyed with its last registration. <rdmux/xrc.h> declares these functions.
//!
//! There are two generations of them: the proposal of 2007 (`ibv_xrc_rcv_qp_*`, negative errors), and OFED 1.3's form
//! of it (`ibv_*_xrc_rcv_qp`, positive errors).

use std::ffi::c_int;
use std::sync::Arc;

use rdmux_transport::attr::{AttrMask, QpAttr};
use rdmux_wire::Qpn;

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, pointer};
use crate::verbs::objects::{Context, Cq, Object, Pd, Xrcd};
use crate::verbs::{attr, srq};

/// Returns the queue pair with this number.
///
/// # Errors
/// EINVAL for more than 24 bits: there is none.
pub(super) fn qpn(number: u32) -> Result<Qpn> {
    if number >> 24 == 0 { Ok(Qpn::new(number)) } else { Err(Errno::EINVAL) }
}

/// Returns the domain behind a pointer.
///
/// # Errors
/// EINVAL for NULL, ENODEV for one inherited over a fork.
///
/// # Safety
/// The pointer is NULL or a domain's.
unsafe fn domain<'a>(domain: *mut ibv_xrc_domain) -> Result<&'a Xrcd> {
    // SAFETY: the caller guarantees it.
    unsafe { Xrcd::get(domain.cast()) }
}

/// Calls `f` as [`code`] does, with the error number negative.
fn negative(f: impl FnOnce() -> Result<()>) -> c_int {
    -code(f)
}

/// The required attributes of `ibv_xrc_rcv_qp_alloc`; READs and atomics also need `IBV_QP_MAX_DEST_RD_ATOMIC`.
const NEEDED: AttrMask = AttrMask::PKEY_INDEX
    .union(AttrMask::PORT)
    .union(AttrMask::ACCESS_FLAGS)
    .union(AttrMask::AV)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN)
    .union(AttrMask::MIN_RNR_TIMER);

/// Creates a receive queue pair, takes it to RTR and registers the process for it. The protection domain only selects the
/// device. Attributes of a sender are accepted and ignored.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_xrc_rcv_qp_alloc(
    pd: *mut ibv_pd,
    xrc_domain: *mut ibv_xrc_domain,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
    xrc_rcv_qpn: *mut u32,
) -> c_int {
    negative(|| {
        // SAFETY: the caller guarantees it.
        let (pd, domain, attr, number) =
            unsafe { (Pd::get(pd)?, domain(xrc_domain)?, attr.as_ref(), xrc_rcv_qpn.as_mut()) };
        let (attr, number) = (attr.ok_or(Errno::EINVAL)?, number.ok_or(Errno::EINVAL)?);
        let mask = AttrMask::from_bits(attr_mask.cast_unsigned()).ok_or(Errno::EINVAL)?;
        if !mask.contains(NEEDED) || !Arc::ptr_eq(&pd.opened, &domain.opened) {
            return Err(Errno::EINVAL);
        }
        let meant = mask & (NEEDED | AttrMask::MAX_DEST_RD_ATOMIC);
        let device = &domain.opened.device;
        let (attr, _) = attr::to_engine(device, QpAttr::default(), attr, meant.bits())?;
        *number = domain.xrcd.alloc_registered(&attr)?.get();
        Ok(())
    })
}

/// Registers the process for a receive queue pair.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_xrc_rcv_qp_register(
    xrc_domain: *mut ibv_xrc_domain,
    xrc_qp_num: u32,
) -> c_int {
    // SAFETY: the caller guarantees it.
    negative(|| Ok(unsafe { domain(xrc_domain)? }.xrcd.register(qpn(xrc_qp_num)?)?))
}

/// Unregisters the process. Without any registration left the queue pair is destroyed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_xrc_rcv_qp_unregister(
    xrc_domain: *mut ibv_xrc_domain,
    xrc_qp_num: u32,
) -> c_int {
    // SAFETY: the caller guarantees it.
    negative(|| Ok(unsafe { domain(xrc_domain)? }.xrcd.unregister(qpn(xrc_qp_num)?)?))
}

/// Opens a domain, as `ibv_open_xrcd(3)` does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_xrc_domain(
    context: *mut ibv_context,
    fd: c_int,
    oflag: c_int,
) -> *mut ibv_xrc_domain {
    // SAFETY: the caller guarantees it.
    pointer(|| Ok(super::open(unsafe { Context::get(context)? }, fd, oflag)?.cast()))
}

/// Closes a domain, as `ibv_close_xrcd(3)` does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_xrc_domain(xrc_domain: *mut ibv_xrc_domain) -> c_int {
    // SAFETY: the caller guarantees it.
    code(|| unsafe { super::close(xrc_domain.cast()) })
}

/// Creates a shared receive queue of a domain, as `ibv_create_srq_ex(3)` does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_xrc_srq(
    pd: *mut ibv_pd,
    xrc_domain: *mut ibv_xrc_domain,
    xrc_cq: *mut ibv_cq,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (pd, domain, cq, init) = unsafe {
            let init = init.as_mut().ok_or(Errno::EINVAL)?;
            (Pd::get(pd)?, domain(xrc_domain)?, Cq::get(xrc_cq)?, init)
        };
        srq::create(pd, Some((domain, cq)), init.srq_context, &mut init.attr)
    })
}

/// OFED 1.3's `ibv_qp_init_attr`, of <rdmux/xrc.h>: today's, and a domain.
#[repr(C)]
pub(crate) struct XrcInitAttr {
    base: ibv_qp_init_attr,
    xrc_domain: *mut ibv_xrc_domain,
}

const _: () = assert!(std::mem::offset_of!(XrcInitAttr, xrc_domain) == 64);

/// Creates a receive queue pair in RESET and registers the process for it. Only the domain of the attributes is used.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_xrc_rcv_qp(
    init: *mut XrcInitAttr,
    xrc_rcv_qpn: *mut u32,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (domain, number) = unsafe {
            let init = init.as_ref().ok_or(Errno::EINVAL)?;
            (domain(init.xrc_domain)?, xrc_rcv_qpn.as_mut().ok_or(Errno::EINVAL)?)
        };
        *number = domain.xrcd.create_registered()?.get();
        Ok(())
    })
}

/// Changes attributes and state of a receive queue pair, as `ibv_modify_qp(3)` does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_xrc_rcv_qp(
    xrc_domain: *mut ibv_xrc_domain,
    xrc_qp_num: u32,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (domain, attr) = unsafe { (domain(xrc_domain)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        let mask = attr_mask.cast_unsigned();
        let device = &domain.opened.device;
        let (attr, mask) = attr::to_engine(device, QpAttr::default(), attr, mask)?;
        Ok(domain.xrcd.modify(qpn(xrc_qp_num)?, &attr, mask)?)
    })
}

/// Returns all attributes of a receive queue pair, whatever the mask.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_xrc_rcv_qp(
    xrc_domain: *mut ibv_xrc_domain,
    xrc_qp_num: u32,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init: *mut XrcInitAttr,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let domain = unsafe { domain(xrc_domain)? };
        if attr.is_null() || init.is_null() {
            return Err(Errno::EINVAL);
        }
        let found = domain.xrcd.query(qpn(xrc_qp_num)?)?;
        let none = std::ptr::null_mut();
        let base = ibv_qp_init_attr {
            qp_context: none,
            send_cq: none.cast(),
            recv_cq: none.cast(),
            srq: none.cast(),
            cap: attr::cap(&found.caps),
            qp_type: IBV_QPT_XRC_RECV,
            sq_sig_all: 0,
        };
        // SAFETY: the caller's variables.
        unsafe {
            attr.write(attr::to_c(&found));
            init.write(XrcInitAttr { base, xrc_domain });
        }
        Ok(())
    })
}

/// Registers as [`ibv_xrc_rcv_qp_register`] does, with positive errors.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_xrc_rcv_qp(
    xrc_domain: *mut ibv_xrc_domain,
    xrc_qp_num: u32,
) -> c_int {
    // SAFETY: the caller guarantees it.
    -unsafe { ibv_xrc_rcv_qp_register(xrc_domain, xrc_qp_num) }
}

/// Unregisters as [`ibv_xrc_rcv_qp_unregister`] does, with positive errors.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unreg_xrc_rcv_qp(
    xrc_domain: *mut ibv_xrc_domain,
    xrc_qp_num: u32,
) -> c_int {
    // SAFETY: the caller guarantees it.
    -unsafe { ibv_xrc_rcv_qp_unregister(xrc_domain, xrc_qp_num) }
}
