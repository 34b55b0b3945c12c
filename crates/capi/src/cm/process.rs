//! What a process has once: the device, its default domains, and the ids by number.
//!
//! The first function of librdmacm that needs the device opens it. A child after a fork finds its parent's and opens
//! one of its own, as does a process whose host service is gone.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;
use rdmux_cm::IdHandle;
use rdmux_host::HostClient;

use super::event::Delivered;
use super::id::Id;
use super::verbs;
use crate::abi::verbs::{ibv_context, ibv_pd, ibv_xrcd};
use crate::boundary::{Errno, Result, pointer};
use crate::verbs::objects::{Context, Object, Opened};

/// See the module. There is one at a time, and none is ever freed, for ids refer to it.
pub(super) struct Process {
    context: *mut ibv_context,
    opened: Arc<Opened>,
    /// READs and atomics that a queue pair can serve.
    pub(super) max_responder_resources: u8,
    /// READs and atomics that a queue pair can have outstanding.
    pub(super) max_initiator_depth: u8,
    /// The protection domain of ids whose program gives none.
    pd: Mutex<*mut ibv_pd>,
    /// And their domain of XRC.
    xrcd: Mutex<*mut ibv_xrcd>,
    ids: Mutex<HashMap<IdHandle, NonNull<Id>>>,
}

// SAFETY: the objects behind the pointers may be used by any thread.
unsafe impl Send for Process {}
// SAFETY: as above.
unsafe impl Sync for Process {}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

impl Process {
    /// The calling process's, opened if need be.
    ///
    /// # Errors
    /// ENODEV when no host service can be reached or started, and what `ibv_open_device` says.
    pub(super) fn current() -> Result<&'static Self> {
        let found = CURRENT.load(Ordering::Acquire);
        // SAFETY: what was put there is never freed.
        if let Some(process) = unsafe { found.as_ref() }
            && process.opened.is_ours()
            && !process.opened.client.is_gone()
        {
            return Ok(process);
        }
        let new = Box::into_raw(Box::new(Self::open()?));
        match CURRENT.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it came from a box just now, and is never freed.
            Ok(_) => Ok(unsafe { &*new }),
            Err(_) => {
                // Another thread was faster. SAFETY: as above, and nobody else has seen this one.
                let lost = unsafe { Box::from_raw(new) };
                verbs::close_device(lost.context);
                Self::current()
            }
        }
    }

    fn open() -> Result<Self> {
        let context = verbs::open_first_device()?;
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
            ids: Mutex::default(),
        })
    }

    /// The one context of this process (rdma_get_devices(3)).
    pub(super) fn context(&self) -> *mut ibv_context {
        self.context
    }

    /// Whether this process opened it, or its parent did.
    pub(super) fn is_ours(&self) -> bool {
        self.opened.is_ours()
    }

    /// The host service.
    ///
    /// # Errors
    /// ENODEV for what was inherited over a fork.
    pub(super) fn client(&self) -> Result<&Arc<HostClient>> {
        self.opened.check()?;
        // Programs shake hands over a queue pair and then connect others: both should begin at once.
        self.opened.device.acknowledge();
        Ok(&self.opened.client)
    }

    /// The default protection domain; allocated when it is first asked for.
    pub(super) fn default_pd(&self) -> Result<*mut ibv_pd> {
        let mut pd = self.pd.lock();
        if pd.is_null() {
            *pd = verbs::alloc_pd(self.context)?;
        }
        Ok(*pd)
    }

    /// The default domain of XRC, which no other process can open; made when it is first asked for.
    pub(super) fn default_xrcd(&self) -> Result<*mut ibv_xrcd> {
        let mut xrcd = self.xrcd.lock();
        if xrcd.is_null() {
            *xrcd = verbs::open_private_xrcd(self.context)?;
        }
        Ok(*xrcd)
    }

    pub(super) fn insert(&self, id: &Id) {
        self.ids.lock().insert(id.handle, NonNull::from(id));
    }

    /// From now on no event is delivered to the id.
    pub(super) fn remove(&self, handle: IdHandle) {
        self.ids.lock().remove(&handle);
    }

    /// The id that an event is about, noted as delivered: so the id stays until the event is acknowledged. None if it
    /// was destroyed meanwhile.
    pub(super) fn deliver(&self, handle: IdHandle) -> Option<Delivered> {
        let ids = self.ids.lock();
        let id = ids.get(&handle)?;
        // SAFETY: ids leave the table before they are freed, and the table is locked.
        Some(unsafe { Delivered::to(*id) })
    }
}

/// The contexts of all devices, ended by NULL: rdma_get_devices(3). To be given back by [`rdma_free_devices`].
///
/// # Safety
/// `num_devices` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let mut count = 0;
    let list = pointer(|| {
        let context = Process::current()?.context();
        // SAFETY: room for two pointers, which is what is written if there is any.
        unsafe {
            let list: *mut *mut ibv_context = libc::calloc(2, size_of::<usize>()).cast();
            if list.is_null() {
                return Err(Errno::ENOMEM);
            }
            *list = context;
            count = 1;
            Ok(list)
        }
    });
    if !num_devices.is_null() {
        // SAFETY: as promised.
        unsafe { *num_devices = count };
    }
    list
}

/// Frees a list of [`rdma_get_devices`]; the contexts stay open (rdma_free_devices(3)).
///
/// # Safety
/// `list` is one of [`rdma_get_devices`], once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: as promised, it came from calloc.
    unsafe { libc::free(list.cast()) }
}
