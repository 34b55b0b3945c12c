//! Posting of work requests (`ibv_post_send(3)`, `ibv_post_recv(3)`, `ibv_post_srq_recv(3)`).
//!
//! Nothing is allocated here, and only the queue is locked: requests are converted on the stack, and
//! scatter and gather lists are used in place. Inline data are copied through the stack, too.

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};

use rdmux_transport::attr::QpType;
use rdmux_transport::wr::{RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdDest};
use rdmux_verbs::{QpInit, VerbsError};
use rdmux_wire::{Qkey, Qpn, Rkey};

use super::ext::mw::bind_operation;
use super::inline;
use super::objects::{Ah, Object, Qp, Srq};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, caught};

/// The engine's entries have the layout of C's, so lists need no copy.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// `ibv_post_send(3)`: posts a chain of requests; `bad_wr` is the first that was not accepted.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = first;
    let result = answer(|| {
        // SAFETY: the caller guarantees it.
        let object = unsafe { Qp::get(qp)? };
        let qp = object.own()?;
        let (init, mut posting) = (qp.init(), qp.posting());
        // SAFETY: a chain that ends with NULL.
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: the caller guarantees it for each request.
            unsafe { with_send_wr(wr, object, init, |wr| Ok(posting.send(&wr)?))? };
            next = wr.next;
        }
        Ok(())
    });
    if result != 0 {
        // SAFETY: the caller's variable, if there is one.
        unsafe { tell_bad(bad_wr, next) };
    }
    result
}

fn answer(post: impl FnOnce() -> Result<()>) -> c_int {
    match caught(post) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.0
        }
    }
}

/// Stores the first request that was not posted in `bad_wr`, unless that is NULL.
///
/// # Safety
/// `bad_wr` is NULL or a variable.
unsafe fn tell_bad<T>(bad_wr: *mut *mut T, wr: *mut T) {
    // SAFETY: the caller guarantees it.
    if let Some(bad_wr) = unsafe { bad_wr.as_mut() } {
        *bad_wr = wr;
    }
}

/// Calls `post` with a request in the engine's form.
///
/// # Safety
/// `wr` is valid for `ibv_post_send(3)`, and so are its pointers.
unsafe fn with_send_wr(
    wr: &ibv_send_wr,
    qp: &Qp,
    init: &QpInit,
    post: impl FnOnce(SendWr<'_>) -> Result<()>,
) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let (op, dest) = unsafe { (operation(wr)?, destination(wr, qp, init.qp_type)?) };
    let srqn = match init.qp_type {
        // SAFETY: a request to an XRC queue pair names a shared receive queue.
        QpType::XrcSend => unsafe { wr.qp_type.xrc.remote_srqn },
        _ => 0,
    };
    // SAFETY: the caller guarantees it.
    let sges = unsafe { list(wr.sg_list, wr.num_sge)? };
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    let wr_id = wr.wr_id;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return post(SendWr { flags, dest, srqn, ..SendWr::new(wr_id, op, SendData::Sges(sges)) });
    }
    if sges.len() > init.caps.max_send_sge as usize {
        return Err(Errno::EINVAL);
    }
    let (mut stack, mut heap) = ([MaybeUninit::uninit(); inline::ON_STACK], Vec::new());
    let data = inline::gather(sges, init.caps.max_inline_data, &mut stack, &mut heap)?;
    post(SendWr { flags, dest, srqn, ..SendWr::new(wr_id, op, SendData::Inline(&[data])) })
}

/// Returns a scatter or gather list in place.
///
/// # Safety
/// There are `num` entries at `first`.
unsafe fn list<'a>(first: *mut ibv_sge, num: c_int) -> Result<&'a [Sge]> {
    match usize::try_from(num) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller guarantees it, and the layouts are the same.
        Ok(num) if !first.is_null() => Ok(unsafe { std::slice::from_raw_parts(first.cast(), num) }),
        _ => Err(Errno::EINVAL),
    }
}

/// Converts the operation of a request to the engine's form.
///
/// # Safety
/// The members of the union for the opcode were set.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp> {
    // SAFETY: the caller guarantees it; and every bit pattern is a value of each.
    unsafe {
        let imm = || wr.data.imm_data.to_ne_bytes();
        let rdma = || (wr.wr.rdma.remote_addr, Rkey(wr.wr.rdma.rkey));
        let atomic = &wr.wr.atomic;
        Ok(match wr.opcode {
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm()),
            IBV_WR_SEND_WITH_INV => SendOp::SendInv(Rkey(wr.data.invalidate_rkey)),
            IBV_WR_RDMA_WRITE => {
                let (remote_addr, rkey) = rdma();
                SendOp::Write { remote_addr, rkey }
            }
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                let (remote_addr, rkey) = rdma();
                SendOp::WriteImm { remote_addr, rkey, imm: imm() }
            }
            IBV_WR_RDMA_READ => {
                let (remote_addr, rkey) = rdma();
                SendOp::Read { remote_addr, rkey }
            }
            IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CmpSwap {
                remote_addr: atomic.remote_addr,
                rkey: Rkey(atomic.rkey),
                compare: atomic.compare_add,
                swap: atomic.swap,
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
                remote_addr: atomic.remote_addr,
                rkey: Rkey(atomic.rkey),
                add: atomic.compare_add,
            },
            IBV_WR_LOCAL_INV => SendOp::LocalInv(Rkey(wr.data.invalidate_rkey)),
            IBV_WR_BIND_MW => bind_operation(&wr.extra.bind_mw)?,
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }
}

/// Returns the destination of a datagram; none for other queue pairs, whose requests have no address handle.
///
/// # Safety
/// As for [`operation`].
unsafe fn destination(wr: &ibv_send_wr, qp: &Qp, qp_type: QpType) -> Result<Option<UdDest>> {
    if qp_type != QpType::Ud {
        return Ok(None);
    }
    // SAFETY: a request to a datagram queue pair names an address handle, or NULL.
    unsafe {
        let ud = &wr.wr.ud;
        let ah = Ah::get(ud.ah)?.of_device(&qp.opened)?;
        Ok(Some(UdDest { av: ah.av, qpn: Qpn::new(ud.remote_qpn), qkey: Qkey(ud.remote_qkey) }))
    }
}

/// `ibv_post_recv(3)`: posts a chain of requests; `bad_wr` is the first that was not accepted.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut next = first;
    let result = answer(|| {
        // SAFETY: the caller guarantees it.
        let mut posting = unsafe { Qp::get(qp)? }.own()?.posting();
        // SAFETY: a chain that ends with NULL.
        unsafe { receives(&mut next, |wr| posting.recv(wr)) }
    });
    if result != 0 {
        // SAFETY: the caller's variable, if there is one.
        unsafe { tell_bad(bad_wr, next) };
    }
    result
}

/// `ibv_post_srq_recv(3)`: posts to a shared queue as `ibv_post_recv` does.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut next = first;
    let result = answer(|| {
        // SAFETY: the caller guarantees it.
        let srq = &unsafe { Srq::get(srq)? }.srq;
        // SAFETY: a chain that ends with NULL.
        unsafe { receives(&mut next, |wr| srq.post_recv(wr)) }
    });
    if result != 0 {
        // SAFETY: the caller's variable, if there is one.
        unsafe { tell_bad(bad_wr, next) };
    }
    result
}

/// Posts a chain; `next` is left at the first request that was not accepted.
///
/// # Safety
/// The chain ends with NULL, and its lists have the given lengths.
unsafe fn receives(
    next: &mut *mut ibv_recv_wr,
    mut post: impl FnMut(&RecvWr<'_>) -> std::result::Result<(), VerbsError>,
) -> Result<()> {
    // SAFETY: the caller guarantees it.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the caller guarantees it.
        let sges = unsafe { list(wr.sg_list, wr.num_sge)? };
        post(&RecvWr { wr_id: wr.wr_id, sges })?;
        *next = wr.next;
    }
    Ok(())
}
