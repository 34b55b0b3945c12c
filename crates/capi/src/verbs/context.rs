//! Contexts: open devices (`ibv_open_device(3)`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rdmux_verbs as verbs;

use super::device::Device;
use super::objects::{Context, Object, Opened};
use super::vectors::comp_vectors;
use super::{devices, ext, poll, post, process, qp, query, srq, xrc};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, pointer};

/// Opens a device: a connection to its host's service, and an engine.
///
/// # Errors
/// ENODEV and others when there is no service and none can be started.
pub(crate) fn open(device: &'static Device) -> Result<*mut ibv_context> {
    crate::log::start();
    let (name, host) = (device.kind().row().device_name, device.host());
    let tell = |error: &dyn std::fmt::Display| {
        tracing::warn!("cannot open {name} of host {host}: {error}");
    };
    let client = devices::connect_options()
        .and_then(|options| options.connect_or_start(host, device.kind()))
        .inspect_err(|e| tell(e))?;
    let cmd_fd = rustix::fs::memfd_create("rdmux-uverbs", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|e| Errno(e.raw_os_error()))?;
    let engine = verbs::Device::open(client.clone()).inspect_err(|e| tell(e))?;
    let opened = Arc::new(Opened::new(engine, client, cmd_fd));
    process::lists().add(&opened);
    process::drain_at_exit();
    Ok(publish(device.as_ptr(), opened, None))
}

/// Creates a context of a device that was just opened or is shared with another context. In the latter case `own_fds` are
/// its command and event descriptors.
pub(crate) fn publish(
    device: *mut ibv_device,
    opened: Arc<Opened>,
    own_fds: Option<[OwnedFd; 2]>,
) -> *mut ibv_context {
    let mut table = empty_table();
    table.context.device = device;
    (table.context.cmd_fd, table.context.async_fd) = match &own_fds {
        Some([cmd, events]) => (cmd.as_raw_fd(), events.as_raw_fd()),
        None => (opened.cmd_fd.as_raw_fd(), opened.device.async_fd().as_raw_fd()),
    };
    table.context.num_comp_vectors = comp_vectors();
    fill(&mut table);
    ext::fill(&mut table);
    Box::new(Context { verbs: UnsafeCell::new(table), opened, own_fds }).into_ptr()
}

/// Returns a table without functions: <infiniband/verbs.h> reports missing ones as unsupported.
fn empty_table() -> verbs_context {
    let zeroed = MaybeUninit::<verbs_context>::zeroed();
    // SAFETY: NULL is the empty value of every pointer and function in it, 0 of every number, and an
    // all-zero mutex is an unlocked one.
    let mut table = unsafe { zeroed.assume_init() };
    table.sz = size_of::<verbs_context>();
    // By this value programs detect that the context has a larger structure in front.
    table.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    table
}

fn fill(table: &mut verbs_context) {
    table.query_port = Some(query::query_port);
    table.create_qp_ex = Some(qp::create_qp_ex);
    table.create_srq_ex = Some(srq::create_srq_ex);
    table.get_srq_num = Some(srq::get_srq_num);
    table.open_xrcd = Some(xrc::open_xrcd);
    table.close_xrcd = Some(xrc::close_xrcd);
    table.open_qp = Some(xrc::target::open_qp);
    let ops = &mut table.context.ops;
    ops.poll_cq = Some(poll::poll_cq);
    ops.req_notify_cq = Some(poll::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(post::post_srq_recv);
}

/// `ibv_open_device(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the caller guarantees it.
    pointer(|| open(unsafe { Device::get(device)? }))
}

/// `ibv_close_device(3)`. Objects that still exist keep the parts of it that they need.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        if unsafe { Context::peek(context)? }.opened.is_ours() {
            // SAFETY: a closed context is no longer used.
            drop(unsafe { Context::take(context) });
        }
        Ok(())
    })
}

const _: () = assert!(size_of::<verbs_context>() == 648);
