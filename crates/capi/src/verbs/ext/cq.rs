//! Extended completion queues: creating them (`ibv_create_cq_ex(3)`), and polling one completion at a time.
//!
//! `ibv_start_poll` and `ibv_next_poll` take out a completion and store it beside the queue, where the reading functions find it.
//! `ibv_poll_cq` returns the completions after those.

use std::ffi::{c_int, c_uint};

use rdmux_transport::wr::{Completion, WcFlags};
use rdmux_verbs::CqInit;

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, hot, pointer};
use crate::verbs::cq;
use crate::verbs::objects::poll::CqExt;
use crate::verbs::objects::{Context, Cq, Object, Pd};

/// The fields that completions may be asked to have.
const SUPPORTED: u32 = IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (context, attr) = unsafe { (Context::get(context)?, attr.as_ref()) };
        let attr = attr.ok_or(Errno::EINVAL)?;
        if attr.wc_flags & !u64::from(SUPPORTED) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as above.
        let (flags, single_threaded) = unsafe { promises(attr)? };
        let times =
            IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
        let init = CqInit {
            entries: attr.cqe,
            timestamps: attr.wc_flags & u64::from(times) != 0,
            ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            ..CqInit::default()
        };
        let vector = c_int::try_from(attr.comp_vector).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the channel is NULL or one of this library.
        let mut object =
            unsafe { cq::create(context, init, attr.cq_context, attr.channel, vector)? };
        object.ext = CqExt::new(single_threaded, context.opened.wall_clock);
        fill(object.public.get_mut());
        Ok(object.into_ptr().cast())
    })
}

/// Returns the flags, and whether only one thread polls at a time.
///
/// # Safety
/// The parent domain is NULL or a domain of this library.
unsafe fn promises(attr: &ibv_cq_init_attr_ex) -> Result<(u32, bool)> {
    const KNOWN: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
        return Err(Errno::EINVAL);
    }
    let flags = if has(IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let mut single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
    if has(IBV_CQ_INIT_ATTR_MASK_PD) {
        // SAFETY: the caller guarantees it.
        single_threaded |= unsafe { Pd::get(attr.parent_domain)? }.ext.single_threaded();
    }
    Ok((flags, single_threaded))
}

/// Refuses moderation: events cannot be delayed until there are several completions, as the device's `cq_mod_caps` say.
pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (_, attr) = unsafe { (Cq::get(cq)?, attr.as_ref()) };
        match attr.ok_or(Errno::EINVAL)?.attr_mask {
            0 => Ok(()),
            IBV_CQ_ATTR_MODERATE => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    })
}

/// Takes out the next completion, for the program to read.
fn advance(cq: &Cq) -> Result<()> {
    let taken = cq.cq.poll_each(1, |completion| {
        // SAFETY: one thread at a time polls, and no call keeps a reference to either.
        unsafe {
            *cq.ext.current.get() = *completion;
            let public = cq.public.get();
            (*public).wr_id = completion.wr_id;
            (*public).status = completion.status as ibv_wc_status;
        }
    });
    if taken == 0 { Err(Errno(libc::ENOENT)) } else { Ok(()) }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    hot(|| {
        // SAFETY: the caller guarantees it.
        let (cq, attr) = unsafe { (Cq::get(cq.cast())?, attr.as_ref()) };
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Errno::EINVAL);
        }
        cq.ext.section.enter();
        advance(cq).inspect_err(|_| cq.ext.section.leave())
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller guarantees it.
    hot(|| advance(unsafe { Cq::get(cq.cast())? }))
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller guarantees it.
    if let Ok(cq) = unsafe { Cq::get(cq.cast()) } {
        cq.ext.section.leave();
    }
}

/// Returns the completion that was taken out last.
///
/// # Safety
/// The pointer is a queue of this library, and the calling thread polls.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Completion {
    // SAFETY: a queue of this library; while a thread polls, no other thread writes it.
    unsafe { &*(*cq.cast::<Cq>()).ext.current.get() }
}

/// Functions that read fields of the current completion.
macro_rules! readers {
    ($($name:ident($wc:ident) -> $type:ty { $value:expr })*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program calls this between `ibv_start_poll` and `ibv_end_poll`.
            let $wc = unsafe { current(cq) };
            $value
        }
    )* };
}

readers! {
    read_opcode(wc) -> ibv_wc_opcode { wc.opcode as ibv_wc_opcode }
    read_vendor_err(wc) -> u32 { wc.vendor_err }
    read_byte_len(wc) -> u32 { wc.byte_len }
    read_imm_data(wc) -> u32 { imm_or_key(wc) }
    read_qp_num(wc) -> u32 { wc.qpn.get() }
    read_src_qp(wc) -> u32 { wc.src_qp.get() }
    read_wc_flags(wc) -> c_uint { wc.flags.bits() }
    read_slid(wc) -> u32 { wc.slid.into() }
    read_sl(wc) -> u8 { wc.sl }
    read_dlid_path_bits(wc) -> u8 { wc.dlid_path_bits }
    read_completion_ts(wc) -> u64 { wc.timestamp }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: an object of this library, and the program calls this between `ibv_start_poll` and `ibv_end_poll`.
    let (clock, time) = unsafe { ((*cq.cast::<Cq>()).ext.wall_clock, current(cq).timestamp) };
    clock.at(time)
}

/// `ibv_wc_read_imm_data` and `ibv_wc_read_invalidated_rkey` are the same function.
fn imm_or_key(wc: &Completion) -> u32 {
    if wc.flags.contains(WcFlags::WITH_INV) { wc.invalidated.0 } else { u32::from_ne_bytes(wc.imm) }
}

/// Fills in all readers, requested or not; unsupported ones are NULL.
fn fill(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}
