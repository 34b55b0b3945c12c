//! Asynchronous events (`ibv_get_async_event(3)`).

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use rdmux_transport::env::QpEvent;
use rdmux_verbs::AsyncEventKind;
use rdmux_verbs::device::PORT;
use rdmux_verbs::port::PortEvent;

use super::objects::{Context, Cq, End, Object, Qp, Srq};
use super::wait;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, guarded};

/// `ibv_get_async_event(3)`: waits, unless `O_NONBLOCK` is set on `async_fd`; returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller guarantees it.
    wait::taken(unsafe { begin(context, event) }, || unsafe { take(context, event) })
}

/// Returns the descriptor to wait on.
///
/// # Safety
/// The pointers are NULL, or a context's and a variable's.
unsafe fn begin(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    wait::descriptor(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        if event.is_null() { Err(Errno::EINVAL) } else { Ok(device.async_fd().as_raw_fd()) }
    })
}

/// Takes the event whose count was read, unless it was withdrawn.
///
/// # Safety
/// As for [`begin`], and neither is NULL.
unsafe fn take(context: *mut ibv_context, event: *mut ibv_async_event) -> Result<bool> {
    // SAFETY: the caller guarantees it.
    let device = &unsafe { Context::get(context)? }.opened.device;
    let Some(taken) = device.take_counted_event() else { return Ok(false) };
    // SAFETY: the caller's variable.
    unsafe { event.write(describe(&taken.acknowledge_later())) };
    Ok(true)
}

/// Marks an event of an XRC queue pair that the process is registered for. Such an event has the queue pair's number in place of
/// an object (`IBV_XRC_QP_EVENT_FLAG` of <rdmux/xrc.h>).
const XRC_QP_EVENT: ibv_event_type = 1 << 31;

/// Converts an event to C's form. Its object cannot be destroyed before it is acknowledged.
fn describe(kind: &AsyncEventKind) -> ibv_async_event {
    let port = |number: u8| ibv_async_event_element { port_num: number.into() };
    let (element, event_type) = match kind {
        AsyncEventKind::Qp(qp, event) => {
            (ibv_async_event_element { qp: Qp::of_context(qp.context()) }, qp_event(*event))
        }
        AsyncEventKind::CqError(cq) => {
            (ibv_async_event_element { cq: Cq::of_context(cq.context()) }, IBV_EVENT_CQ_ERR)
        }
        AsyncEventKind::SrqLimit(srq) => {
            let element = ibv_async_event_element { srq: Srq::of_context(srq.context()) };
            (element, IBV_EVENT_SRQ_LIMIT_REACHED)
        }
        AsyncEventKind::Target(target, event) => {
            (ibv_async_event_element { qp: Qp::of_context(target.context()) }, qp_event(*event))
        }
        AsyncEventKind::XrcQp(qpn, event) => {
            let number = c_int::try_from(qpn.get()).unwrap_or(c_int::MAX);
            (ibv_async_event_element { port_num: number }, qp_event(*event) | XRC_QP_EVENT)
        }
        AsyncEventKind::Port(number, event) => (port(*number), port_event(*event)),
        AsyncEventKind::DeviceFatal => (port(PORT), IBV_EVENT_DEVICE_FATAL),
    };
    ibv_async_event { element, event_type }
}

fn port_event(event: PortEvent) -> ibv_event_type {
    match event {
        PortEvent::Active => IBV_EVENT_PORT_ACTIVE,
        PortEvent::Error => IBV_EVENT_PORT_ERR,
        PortEvent::LidChange => IBV_EVENT_LID_CHANGE,
        PortEvent::SmChange => IBV_EVENT_SM_CHANGE,
        PortEvent::ClientReregister => IBV_EVENT_CLIENT_REREGISTER,
        PortEvent::PkeyChange => IBV_EVENT_PKEY_CHANGE,
        PortEvent::GidChange => IBV_EVENT_GID_CHANGE,
    }
}

fn qp_event(event: QpEvent) -> ibv_event_type {
    match event {
        QpEvent::CommEst => IBV_EVENT_COMM_EST,
        QpEvent::SqDrained => IBV_EVENT_SQ_DRAINED,
        QpEvent::LastWqeReached => IBV_EVENT_QP_LAST_WQE_REACHED,
        QpEvent::Fatal => IBV_EVENT_QP_FATAL,
        QpEvent::ReqErr => IBV_EVENT_QP_REQ_ERR,
        QpEvent::AccessErr => IBV_EVENT_QP_ACCESS_ERR,
        QpEvent::PathMig => IBV_EVENT_PATH_MIG,
        QpEvent::PathMigErr => IBV_EVENT_PATH_MIG_ERR,
    }
}

/// `ibv_ack_async_event(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller guarantees it.
    let _ = guarded(|| unsafe { acknowledge(event.as_ref().ok_or(Errno::EINVAL)?) });
}

/// Acknowledges an asynchronous event at the object that it is for.
///
/// # Safety
/// [`ibv_get_async_event`] returned the event, and it was not acknowledged yet.
unsafe fn acknowledge(event: &ibv_async_event) -> Result<()> {
    // SAFETY: the type says which member of the union was set, and the object still exists.
    unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => Cq::get(event.element.cq)?.cq.ack_async_event(),
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                Srq::get(event.element.srq)?.srq.ack_async_event();
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => match &Qp::get(event.element.qp)?.end {
                End::Own(qp) => qp.ack_async_event(),
                End::Target(target) => target.ack_async_event(),
            },
            _ => {}
        }
    }
    Ok(())
}
