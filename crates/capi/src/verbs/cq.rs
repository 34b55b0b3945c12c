//! Completion queues (`ibv_create_cq(3)`, `ibv_resize_cq(3)`). Polling is in `poll`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use rdmux_verbs::{self as verbs, CqInit};

use super::objects::poll::CqExt;
use super::objects::{CompChannel, Context, Cq, Object, Users};
use super::vectors::comp_vectors;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, pointer};

/// Creates a queue with the parameters `init`, apart from its channel and context. The extended part of the public structure is
/// empty.
///
/// # Errors
/// EINVAL when a number is out of range.
///
/// # Safety
/// `channel` is NULL or a channel's.
pub(crate) unsafe fn create(
    context: &Context,
    init: CqInit<'_>,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> Result<Box<Cq>> {
    if !(0..comp_vectors()).contains(&comp_vector) {
        return Err(Errno::EINVAL);
    }
    let used = match channel.is_null() {
        true => None,
        // SAFETY: the caller guarantees it.
        false => Some(unsafe { CompChannel::get(channel)? }),
    };
    let opened = context.opened.clone();
    let mut object = Box::<Cq>::new_uninit();
    let address = object.as_ptr().expose_provenance() as u64;
    let entries = roomy(opened.device.query().limits.max_cqe, init.entries);
    let init = CqInit { entries, channel: used.map(|c| &c.channel), context: address, ..init };
    let cq = verbs::Cq::with(&opened.device, &init)?;
    // SAFETY: all zero is a valid value: NULL, 0, no function, an unlocked mutex, a condition without waiters.
    let mut public = unsafe { MaybeUninit::<ibv_cq_ex>::zeroed().assume_init() };
    (public.context, public.channel) = (context.as_ptr(), channel);
    (public.cq_context, public.handle) = (cq_context, opened.next_handle());
    public.cqe = c_int::try_from(cq.capacity()).unwrap_or(c_int::MAX);
    if let Some(channel) = used {
        channel.count(1);
    }
    object.write(Cq {
        public: UnsafeCell::new(public),
        opened,
        cq,
        users: Users::default(),
        channel: used.map(|c| c.users.add()),
        ext: CqExt::new(false, context.opened.wall_clock),
    });
    // SAFETY: written just now.
    Ok(unsafe { object.assume_init() })
}

/// Destroys a queue with its completions. Waits until the program has acknowledged the events that it
/// took.
///
/// # Errors
/// EBUSY while a queue pair uses it.
///
/// # Safety
/// The pointer is NULL or a queue's, and the caller is the last to use it.
pub(crate) unsafe fn destroy(ptr: *mut ibv_cq) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let cq = unsafe { Cq::peek(ptr)? };
    if !cq.opened.is_ours() {
        return Ok(());
    }
    cq.users.check_none()?;
    cq.cq.quiesce();
    // SAFETY: the caller is the last to use it, and a channel outlives its queues.
    if let Ok(channel) = unsafe { CompChannel::peek((*ptr).channel) } {
        channel.count(-1);
    }
    // SAFETY: the caller guarantees it.
    drop(unsafe { Cq::take(ptr) });
    Ok(())
}

impl Cq {
    /// Returns the C pointer that a queue of the engine has as its context.
    pub(crate) fn of_context(context: u64) -> *mut ibv_cq {
        std::ptr::with_exposed_provenance_mut(usize::try_from(context).unwrap_or(0))
    }
}

impl CompChannel {
    /// Updates `refcnt` of the public structure.
    fn count(&self, change: c_int) {
        // SAFETY: a field of the object; other threads change it in no other way.
        let refcnt =
            unsafe { std::sync::atomic::AtomicI32::from_ptr(&raw mut (*self.as_ptr()).refcnt) };
        refcnt.fetch_add(change, std::sync::atomic::Ordering::Relaxed);
    }
}

/// `ibv_create_cq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let entries = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let init = CqInit { entries, ..CqInit::default() };
        // SAFETY: the caller guarantees it.
        let cq = unsafe { create(Context::get(context)?, init, cq_context, channel, comp_vector)? };
        Ok(cq.into_ptr())
    })
}

/// Returns how many entries a queue gets for the number requested: as with adapters, a power of two, with one to
/// spare. Programs rely on that: `ibv_xsrq_pingpong` asks for one, and after a receive it posts again before it has
/// polled the completion of its last send.
fn roomy(max: u32, entries: u32) -> u32 {
    if (1..max).contains(&entries) { (entries + 1).next_power_of_two().min(max) } else { entries }
}

/// `ibv_resize_cq(3)`: EINVAL when more completions are pending than would fit.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(ptr: *mut ibv_cq, cqe: c_int) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let cq = unsafe { Cq::get(ptr)? };
        let entries = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let max = cq.opened.device.query().limits.max_cqe;
        cq.cq.resize(roomy(max, entries))?;
        // SAFETY: a field of the object, which the caller holds.
        unsafe { (*ptr).cqe = c_int::try_from(cq.cq.capacity()).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// `ibv_destroy_cq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller guarantees it.
    code(|| unsafe { destroy(cq) })
}

#[cfg(test)]
mod tests {
    use super::roomy;

    #[test]
    fn a_queue_has_one_entry_to_spare_within_the_limit() {
        let max = 4_194_303;
        let sizes = [1, 2, 3, 100, max - 1].map(|entries| roomy(max, entries));
        assert_eq!(sizes, [2, 4, 4, 128, max]);
        // Refused numbers stay refused.
        assert_eq!([0, max, max + 1].map(|entries| roomy(max, entries)), [0, max, max + 1]);
    }
}
