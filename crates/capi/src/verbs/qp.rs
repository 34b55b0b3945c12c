//! Queue pairs (`ibv_create_qp(3)`, `ibv_modify_qp(3)`, `ibv_query_qp(3)`, `ibv_attach_mcast(3)`). Posting is in
//! `post`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;

use rdmux_transport::attr::{AttrMask, QpAttr, QpCaps, QpType};
use rdmux_verbs::{self as verbs, VerbsError};
use rdmux_wire::Gid;

use super::attr;
use super::ext::send_ops::offer_send_ops;
use super::objects::build::QpExt;
use super::objects::{Context, Cq, End, Object, Pd, Qp, Srq};
use super::xrc::target::create_target;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, pointer};

/// How many bytes may be sent inline for each gather entry that was requested, and the most that this rule allows.
const INLINE_PER_SGE: u32 = 16;
const LEAST_INLINE: u32 = 64;

/// Creates a queue pair in RESET, and writes its actual sizes into `init`. The extended part of the public
/// structure is empty.
///
/// # Errors
/// EINVAL for sizes beyond the device's, a missing completion queue, the shared receive queue of an XRC domain or an XRC
/// receive queue pair, which has no protection domain; EOPNOTSUPP for other transports.
///
/// # Safety
/// The pointers in `init` are NULL or objects of their types.
pub(crate) unsafe fn create(pd: &Pd, init: &mut ibv_qp_init_attr) -> Result<Box<Qp>> {
    let qp_type = attr::qp_type(init.qp_type)?;
    let receives = match qp_type {
        QpType::XrcRecv => return Err(Errno::EINVAL),
        // The field is ignored, whatever programs may have stored there.
        QpType::XrcSend => false,
        QpType::Rc | QpType::Uc | QpType::Ud => true,
    };
    // SAFETY: the caller guarantees it.
    let send_cq = unsafe { Cq::get(init.send_cq)? };
    let recv_cq = match receives {
        false => None,
        // SAFETY: the caller guarantees it.
        true => Some(unsafe { Cq::get(init.recv_cq)? }),
    };
    let srq = match receives && !init.srq.is_null() {
        false => None,
        // SAFETY: the caller guarantees it.
        true => Some(unsafe { Srq::get(init.srq)? }),
    };
    let mut caps = attr::caps(&init.cap);
    // As much as the gather list takes in an adapter's queue: programs post short messages inline without requesting
    // room (rdma_xclient does).
    let gather = caps.max_send_sge.saturating_mul(INLINE_PER_SGE).min(LEAST_INLINE);
    let most = pd.opened.device.query().limits.max_inline_data;
    caps.max_inline_data = caps.max_inline_data.max(gather.min(most));
    if srq.is_some() || recv_cq.is_none() {
        (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
    }
    let opened = pd.opened.clone();
    let mut object = Box::<Qp>::new_uninit();
    let address = object.as_ptr().expose_provenance() as u64;
    let qp = verbs::Qp::new(
        &pd.core.pd,
        verbs::QpInit {
            qp_type,
            send_cq: send_cq.cq.clone(),
            recv_cq: recv_cq.unwrap_or(send_cq).cq.clone(),
            srq: srq.map(|srq| srq.srq.clone()),
            caps,
            sq_sig_all: init.sq_sig_all != 0,
            context: address,
        },
    )?;
    init.cap = attr::cap(&caps);
    // SAFETY: all zero is a valid value: NULL, 0, no function, an unlocked mutex, a condition without waiters.
    let mut public = unsafe { MaybeUninit::<ibv_qp_ex>::zeroed().assume_init() };
    let base = &mut public.qp_base;
    // SAFETY: the domain is the program's, which reads its public part.
    base.context = unsafe { (*pd.as_ptr()).context };
    (base.qp_context, base.pd) = (init.qp_context, pd.as_ptr());
    (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (base.handle, base.qp_num) = (opened.next_handle(), qp.qpn().get());
    (base.state, base.qp_type) = (IBV_QPS_RESET, init.qp_type);
    object.write(Qp {
        public: UnsafeCell::new(public),
        opened,
        end: End::Own(qp),
        ext: QpExt::default(),
        needs: [
            Some(pd.core.users.add()),
            Some(send_cq.users.add()),
            recv_cq.map(|cq| cq.users.add()),
            srq.map(|srq| srq.users.add()),
        ],
    });
    // SAFETY: written just now.
    Ok(unsafe { object.assume_init() })
}

impl Qp {
    /// Returns the C pointer that a queue pair of the engine has as its context.
    pub(crate) fn of_context(context: u64) -> *mut ibv_qp {
        std::ptr::with_exposed_provenance_mut(usize::try_from(context).unwrap_or(0))
    }

    /// Changes attributes, and updates `state` of the public structure.
    fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<()> {
        let current = match &self.end {
            End::Own(qp) => qp.query(),
            // Another process holds the current attributes and applies the change to them.
            End::Target(_) => QpAttr::default(),
        };
        let (attr, mask) =
            attr::to_engine(&self.opened.device, current, attr, mask.cast_unsigned())?;
        match &self.end {
            End::Own(qp) => qp.modify(&attr, mask)?,
            End::Target(target) => target.modify(&attr, mask)?,
        }
        if mask.contains(AttrMask::STATE) {
            self.show_state(attr.state as u32);
        }
        Ok(())
    }

    /// Returns all attributes, and whether every send generates a completion.
    fn query(&self) -> Result<(QpAttr, bool)> {
        Ok(match &self.end {
            End::Own(qp) => (QpAttr { caps: qp.init().caps, ..qp.query() }, qp.init().sq_sig_all),
            End::Target(target) => (target.query()?, false),
        })
    }

    pub(super) fn show_state(&self, state: ibv_qp_state) {
        // SAFETY: a field of the object, to which there is no reference.
        unsafe { (&raw mut (*self.as_ptr()).state).write(state) }
    }
}

/// `ibv_create_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let qp = unsafe { create(Pd::get(pd)?, init.as_mut().ok_or(Errno::EINVAL)?)? };
        Ok(qp.into_ptr())
    })
}

/// The fields that `ibv_create_qp_ex(3)` supports in addition to those of the classic call.
const SUPPORTED: ibv_qp_init_attr_mask =
    IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

/// `ibv_create_qp_ex(3)`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let init = unsafe {
            Context::get(context)?;
            init.as_mut().ok_or(Errno::EINVAL)?
        };
        let qp_type = attr::qp_type(init.qp_type)?;
        let has = |bit: ibv_qp_init_attr_mask| init.comp_mask & bit != 0;
        let supported = match qp_type {
            QpType::XrcSend | QpType::XrcRecv => SUPPORTED | IBV_QP_INIT_ATTR_XRCD,
            QpType::Rc | QpType::Uc | QpType::Ud => SUPPORTED,
        };
        if init.comp_mask & !supported != 0
            || (has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0)
        {
            return Err(Errno::EOPNOTSUPP);
        }
        if qp_type == QpType::XrcRecv {
            // SAFETY: the caller guarantees it.
            return unsafe { create_target(context, init) };
        }
        if !has(IBV_QP_INIT_ATTR_PD) {
            return Err(Errno::EINVAL);
        }
        let send_ops = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(init.send_ops_flags);
        let mut classic = ibv_qp_init_attr {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
        };
        // SAFETY: the caller guarantees it.
        let mut qp = unsafe { create(Pd::get(init.pd)?, &mut classic)? };
        if let Some(send_ops) = send_ops {
            offer_send_ops(&mut qp, send_ops)?;
        }
        init.cap = classic.cap;
        Ok(qp.into_ptr())
    })
}

/// `ibv_modify_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (qp, attr) = unsafe { (Qp::get(qp)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        qp.modify(attr, mask)
    })
}

/// `ibv_query_qp(3)`: returns all attributes, whatever the mask.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    ptr: *mut ibv_qp,
    to: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let qp = unsafe { Qp::get(ptr)? };
        if to.is_null() || init.is_null() {
            return Err(Errno::EINVAL);
        }
        let (attr, sq_sig_all) = qp.query()?;
        qp.show_state(attr.state as u32);
        // SAFETY: the caller's variables, and the public part of the object.
        unsafe {
            to.write(attr::to_c(&attr));
            init.write(init_attr(&*ptr, &attr.caps, sq_sig_all));
        }
        Ok(())
    })
}

fn init_attr(public: &ibv_qp, caps: &QpCaps, sq_sig_all: bool) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: public.qp_context,
        send_cq: public.send_cq,
        recv_cq: public.recv_cq,
        srq: public.srq,
        cap: attr::cap(caps),
        qp_type: public.qp_type,
        sq_sig_all: sq_sig_all.into(),
    }
}

/// `ibv_destroy_qp(3)`: outstanding requests do not complete. EBUSY while it is attached to a group. Waits
/// until the program has acknowledged the events that it took.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(ptr: *mut ibv_qp) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let qp = unsafe { Qp::peek(ptr)? };
        if !qp.opened.is_ours() {
            return Ok(());
        }
        if matches!(&qp.end, End::Own(qp) if qp.is_attached()) {
            return Err(Errno(libc::EBUSY));
        }
        // Events that the program holds name the object until they are acknowledged.
        match &qp.end {
            End::Own(qp) => qp.quiesce(),
            End::Target(target) => target.quiesce(),
        }
        // SAFETY: a destroyed queue pair is no longer used.
        drop(unsafe { Qp::take(ptr) });
        Ok(())
    })
}

/// `ibv_query_qp_data_in_order(3)`: promises nothing, because datagrams overtake each other.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// `ibv_attach_mcast(3)`. Attaching again changes nothing: the queue pair gets one copy of each datagram to the group, and one
/// `ibv_detach_mcast(3)` detaches it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (qp, gid) = unsafe { (Qp::get(qp)?, group(gid)?) };
        qp.opened.check_infiniband()?;
        match qp.own()?.attach_multicast(gid) {
            Err(VerbsError::Attached(_)) => Ok(()),
            attached => Ok(attached?),
        }
    })
}

/// `ibv_detach_mcast(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (qp, gid) = unsafe { (Qp::get(qp)?, group(gid)?) };
        qp.opened.check_infiniband()?;
        Ok(qp.own()?.detach_multicast(gid)?)
    })
}

/// Reads a group's GID.
///
/// # Safety
/// The pointer is NULL or a GID's.
unsafe fn group(gid: *const ibv_gid) -> Result<Gid> {
    // SAFETY: the caller guarantees it; every bit pattern is a GID.
    unsafe { gid.as_ref().map(|gid| Gid(gid.raw)) }.ok_or(Errno::EINVAL)
}
