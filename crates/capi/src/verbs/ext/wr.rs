//! Posting by building: `ibv_wr_start`, one or more requests with their data, `ibv_wr_complete` (`ibv_wr_post(3)`).
//!
//! Requests are collected here and posted together at the end, all or none. Errors of the calls that build are
//! reported there too, because these return nothing.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use rdmux_transport::wr::{SendFlags, SendOp, Sge, UdDest};
use rdmux_wire::{Lkey, Qkey, Qpn, Rkey};

use super::mw;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, hot};
use crate::verbs::objects::build::{Allowed, Batch, Data, Request};
use crate::verbs::objects::{Ah, Object, Qp};

/// Returns the state of a queue pair between `ibv_wr_start` and `ibv_wr_complete`.
///
/// # Safety
/// The pointer is one of this library's, and the calling thread is the one that called `ibv_wr_start`.
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> (&'a Allowed, &'a mut Batch) {
    // SAFETY: a queue pair of this library, created with these functions, so it has the state for them.
    let qp = unsafe { &*qp.cast::<Qp>() };
    // SAFETY: one thread at a time is between the two calls, and no call keeps the reference.
    let batch = unsafe { &mut *qp.ext.batch.get() };
    (qp.ext.allowed.as_ref().unwrap_or(&NOTHING), batch)
}

/// The most pieces of inline data of a request; the manual gives no limit.
const MAX_INLINE_PIECES: usize = 4096;

const NOTHING: Allowed = Allowed { ops: 0, max_send_wr: 0, max_send_sge: 0, max_inline_data: 0 };

/// Begins a request with the identifier and the flags that the program has stored in the queue pair.
///
/// # Safety
/// As for [`building`].
unsafe fn begin(qp: *mut ibv_qp_ex, needs: ibv_qp_create_send_ops_flags, op: Result<SendOp>) {
    // SAFETY: the caller guarantees it.
    let (allowed, batch) = unsafe { building(qp) };
    // SAFETY: both fields are the program's own, written by the thread that calls.
    let (wr_id, wr_flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    if allowed.ops & u64::from(needs) == 0 {
        return batch.fail(Errno::EOPNOTSUPP);
    }
    // More requests cannot fit the queue, so the batch need not grow beyond it.
    if batch.requests.len() >= allowed.max_send_wr as usize {
        return batch.fail(Errno::ENOMEM);
    }
    match op {
        Ok(op) => batch.requests.push(Request {
            wr_id,
            flags: SendFlags::from_bits_truncate(wr_flags),
            op,
            data: Data::Sges(0..0),
            dest: None,
            srqn: 0,
        }),
        Err(errno) => batch.fail(errno),
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: an object of this library.
    if let Ok(qp) = unsafe { Qp::get(qp.cast()) } {
        qp.ext.section.enter();
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    hot(|| {
        // SAFETY: an object of this library.
        let object = unsafe { Qp::get(qp.cast())? };
        // SAFETY: this thread called `ibv_wr_start`.
        let (_, batch) = unsafe { building(qp) };
        let result = object.own().and_then(|qp| batch.post(qp));
        batch.clear();
        object.ext.section.leave();
        result
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: an object of this library, and this thread called `ibv_wr_start`.
    if let Ok(object) = unsafe { Qp::get(qp.cast()) } {
        // SAFETY: as above.
        let (_, batch) = unsafe { building(qp) };
        batch.clear();
        object.ext.section.leave();
    }
}

/// Functions that begin a request with an operation.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*), $needs:ident => $op:expr;)*) => { $(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: the program calls this between `ibv_wr_start` and `ibv_wr_complete`.
            unsafe { begin(qp, $needs, Ok($op)) }
        }
    )* };
}

operations! {
    wr_send(), IBV_QP_EX_WITH_SEND => SendOp::Send;
    wr_send_imm(imm_data: u32), IBV_QP_EX_WITH_SEND_WITH_IMM
        => SendOp::SendImm(imm_data.to_ne_bytes());
    wr_send_inv(rkey: u32), IBV_QP_EX_WITH_SEND_WITH_INV => SendOp::SendInv(Rkey(rkey));
    wr_rdma_write(rkey: u32, remote_addr: u64), IBV_QP_EX_WITH_RDMA_WRITE
        => SendOp::Write { remote_addr, rkey: Rkey(rkey) };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32),
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        => SendOp::WriteImm { remote_addr, rkey: Rkey(rkey), imm: imm_data.to_ne_bytes() };
    wr_rdma_read(rkey: u32, remote_addr: u64), IBV_QP_EX_WITH_RDMA_READ
        => SendOp::Read { remote_addr, rkey: Rkey(rkey) };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64),
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        => SendOp::CmpSwap { remote_addr, rkey: Rkey(rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64),
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        => SendOp::FetchAdd { remote_addr, rkey: Rkey(rkey), add };
    wr_local_inv(rkey: u32), IBV_QP_EX_WITH_LOCAL_INV => SendOp::LocalInv(Rkey(rkey));
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: the window is NULL or one of this library's, the information NULL or readable.
    let bind = unsafe { mw::bind_of_type_2(mw, rkey, bind_info) };
    // SAFETY: between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { begin(qp, IBV_QP_EX_WITH_BIND_MW, bind.map(SendOp::BindMw)) }
}

/// Fails: no queue pair here supports this operation.
unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) {
    // SAFETY: between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { building(qp) }.1.fail(Errno::EOPNOTSUPP);
}
unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    _rkey: u32,
    _remote_addr: u64,
    _atomic_wr: *const c_void,
) {
    // SAFETY: between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { building(qp) }.1.fail(Errno::EOPNOTSUPP);
}

/// Sets the peer's shared receive queue of the request; for XRC only, otherwise ignored.
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { building(qp) }.1.change(|request| request.srqn = remote_srqn);
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: between `ibv_wr_start` and `ibv_wr_complete`.
    let (_, batch) = unsafe { building(qp) };
    // SAFETY: an object of this library.
    let opened = unsafe { &(*qp.cast::<Qp>()).opened };
    // SAFETY: NULL or an object of this library.
    match unsafe { Ah::get(ah) }.and_then(|ah| ah.of_device(opened)) {
        Ok(ah) => {
            let dest = UdDest { av: ah.av, qpn: Qpn::new(remote_qpn), qkey: Qkey(remote_qkey) };
            batch.change(|request| request.dest = Some(dest));
        }
        Err(errno) => batch.fail(errno),
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: between `ibv_wr_start` and `ibv_wr_complete`.
    let (allowed, batch) = unsafe { building(qp) };
    batch.set_sges(allowed, [Sge { addr, length, lkey: Lkey(lkey) }].into_iter());
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: between `ibv_wr_start` and `ibv_wr_complete`.
    let (allowed, batch) = unsafe { building(qp) };
    if num_sge > allowed.max_send_sge as usize {
        return batch.fail(Errno::EINVAL);
    }
    // SAFETY: as many entries as the program says.
    let list = unsafe { list_of(sg_list, num_sge) };
    let sge = |s: &ibv_sge| Sge { addr: s.addr, length: s.length, lkey: Lkey(s.lkey) };
    batch.set_sges(allowed, list.iter().map(sge));
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buf = ibv_data_buf { addr, length };
    // SAFETY: passed on, as a list of one.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buf) }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: between `ibv_wr_start` and `ibv_wr_complete`.
    let (allowed, batch) = unsafe { building(qp) };
    if num_buf > MAX_INLINE_PIECES {
        return batch.fail(Errno::EINVAL);
    }
    // SAFETY: as many entries as the program says.
    batch.set_inline(allowed, unsafe { list_of(buf_list, num_buf) });
}

/// Returns a list of the program as a slice; NULL is an empty one.
///
/// # Safety
/// `first` is NULL or the first of `count`.
pub(super) unsafe fn list_of<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { slice::from_raw_parts(first, count) }
}

/// Stores these functions in a queue pair that is created with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
pub(super) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_id = 0;
    qp.wr_flags = c_uint::default();
}
