//! A device that the connection manager has opened: one context per process, and its default domains.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use parking_lot::Mutex;
use rdmux_verbs::control::DeviceKind;

use super::verbs;
use crate::abi::verbs::{ibv_context, ibv_device, ibv_pd, ibv_xrcd};
use crate::boundary::Result;
use crate::verbs::objects::{Context, Object, Opened};

/// See the module. Never freed, because ids refer to it.
pub(super) struct Device {
    context: *mut ibv_context,
    pub(super) opened: Arc<Opened>,
    /// READs and atomics that a queue pair can serve.
    pub(super) max_responder_resources: u8,
    /// READs and atomics that a queue pair can have outstanding.
    pub(super) max_initiator_depth: u8,
    /// The protection domain of ids whose program gives none.
    pd: Mutex<*mut ibv_pd>,
    /// The XRC domain of such ids.
    xrcd: Mutex<*mut ibv_xrcd>,
}

// SAFETY: the objects behind the pointers may be used by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(super) fn open(device: *mut ibv_device) -> Result<Self> {
        let context = verbs::open_device(device)?;
        Self::of_context(context).inspect_err(|_| verbs::close_device(context))
    }

    fn of_context(context: *mut ibv_context) -> Result<Self> {
        let limits = verbs::query_device(context)?;
        // SAFETY: the context was just opened.
        let opened = Arc::clone(unsafe { Context::get(context)? }.opened());
        let depth = |n: c_int| u8::try_from(n).unwrap_or(u8::MAX);
        Ok(Self {
            context,
            opened,
            max_responder_resources: depth(limits.max_qp_rd_atom),
            max_initiator_depth: depth(limits.max_qp_init_rd_atom),
            pd: Mutex::new(ptr::null_mut()),
            xrcd: Mutex::new(ptr::null_mut()),
        })
    }

    /// Closes a device that no other thread has seen.
    pub(super) fn close(self) {
        verbs::close_device(self.context);
    }

    /// Returns this process's only context for it (rdma_get_devices(3)).
    pub(super) fn context(&self) -> *mut ibv_context {
        self.context
    }

    /// Returns the device's kind.
    pub(super) fn kind(&self) -> DeviceKind {
        self.opened.device.query().kind
    }

    /// Returns whether the device's connections are streams, which begin and end together with their TCP connection.
    pub(super) fn has_streams(&self) -> bool {
        self.kind().has_streams()
    }

    /// Returns the default protection domain, allocated on first use.
    pub(super) fn default_pd(&self) -> Result<*mut ibv_pd> {
        let mut pd = self.pd.lock();
        if pd.is_null() {
            *pd = verbs::alloc_pd(self.context)?;
        }
        Ok(*pd)
    }

    /// Returns the default XRC domain, which no other process can open, created on first use.
    pub(super) fn default_xrcd(&self) -> Result<*mut ibv_xrcd> {
        let mut xrcd = self.xrcd.lock();
        if xrcd.is_null() {
            *xrcd = verbs::open_private_xrcd(self.context)?;
        }
        Ok(*xrcd)
    }
}
