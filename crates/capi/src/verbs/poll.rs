//! Polling of completion queues (`ibv_poll_cq(3)`, `ibv_req_notify_cq(3)`).

use std::ffi::c_int;

use rdmux_transport::wr::{Completion, WcFlags};

use super::objects::{Cq, Object};
use crate::abi::verbs::*;
use crate::boundary::{Errno, caught, code};

/// `ibv_poll_cq(3)`: returns how many completions were taken, or -1.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num: c_int, wc: *mut ibv_wc) -> c_int {
    let taken = caught(|| {
        // SAFETY: the caller guarantees it.
        let cq = unsafe { Cq::get(cq)? };
        if wc.is_null() && num > 0 {
            return Err(Errno::EINVAL);
        }
        let mut at = wc;
        let taken = cq.cq.poll_each(usize::try_from(num).unwrap_or(0), |completion| {
            // SAFETY: the caller has room for `num` of them.
            unsafe {
                at.write(work_completion(completion));
                at = at.add(1);
            }
        });
        Ok(c_int::try_from(taken).unwrap_or(c_int::MAX))
    });
    taken.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

/// Converts a completion to C's form.
fn work_completion(completion: &Completion) -> ibv_wc {
    let data = if completion.flags.contains(WcFlags::WITH_INV) {
        ibv_wc_data { invalidated_rkey: completion.invalidated.0 }
    } else {
        ibv_wc_data { imm_data: u32::from_ne_bytes(completion.imm) }
    };
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as u32,
        opcode: completion.opcode as u32,
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        data,
        qp_num: completion.qpn.get(),
        src_qp: completion.src_qp.get(),
        wc_flags: completion.flags.bits(),
        pkey_index: completion.pkey_index,
        slid: completion.slid,
        sl: completion.sl,
        dlid_path_bits: completion.dlid_path_bits,
    }
}

/// `ibv_req_notify_cq(3)`. Without a channel it has no effect, which is no error.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let cq = &unsafe { Cq::get(cq)? }.cq;
        if cq.channel().is_some() {
            cq.req_notify(solicited_only != 0)?;
        }
        Ok(())
    })
}
