//! Singletons of a process: the devices, and the ids by number.
//!
//! The first function of librdmacm that needs a device opens all that the process may see. A child after a fork finds its
//! parent's and opens its own, as does a process whose host service has ended.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;
use rdmux_cm::IdHandle;
use rdmux_host::HostClient;
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::port::MAX_PORTS;
use rdmux_wire::Gid;

use super::device::Device;
use super::verbs;
use crate::abi::cma::rdma_cm_id;
use crate::abi::verbs::ibv_context;
use crate::boundary::{Errno, Result, pointer};

/// See the module. One is current at a time, and none is ever freed, because ids refer to it.
pub(super) struct Process {
    /// The devices in the order in which they are listed; never empty. Ids and their channels use the first one's
    /// connection to the service, whichever device they get.
    devices: Vec<Device>,
    /// The ids that the program holds, by number.
    ids: Mutex<HashMap<IdHandle, NonNull<rdma_cm_id>>>,
}

// SAFETY: ids may be used by any thread.
unsafe impl Send for Process {}
// SAFETY: as above.
unsafe impl Sync for Process {}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

impl Process {
    /// Returns the calling process's instance, opened if necessary.
    ///
    /// # Errors
    /// ENODEV when no host service can be reached or started, and the errors of `ibv_open_device`.
    pub(super) fn current() -> Result<&'static Self> {
        let found = CURRENT.load(Ordering::Acquire);
        // SAFETY: an instance that was stored is never freed.
        if let Some(process) = unsafe { found.as_ref() }
            && process.is_ours()
            && !process.is_gone()
        {
            return Ok(process);
        }
        let new = Box::into_raw(Box::new(Self::open()?));
        match CURRENT.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it came from a box just now, and is never freed.
            Ok(_) => Ok(unsafe { &*new }),
            Err(_) => {
                // Another thread was faster. SAFETY: as above, and no other thread has seen this one.
                let lost = unsafe { Box::from_raw(new) };
                lost.devices.into_iter().for_each(Device::close);
                Self::current()
            }
        }
    }

    fn open() -> Result<Self> {
        let mut devices = Vec::new();
        let opened = verbs::for_each_device(|device| {
            devices.push(Device::open(device)?);
            Ok(())
        });
        match opened {
            Ok(()) if devices.is_empty() => Err(Errno(libc::ENODEV)),
            Ok(()) => Ok(Self { devices, ids: Mutex::default() }),
            Err(errno) => {
                devices.into_iter().for_each(Device::close);
                Err(errno)
            }
        }
    }

    fn first(&self) -> &Device {
        &self.devices[0]
    }

    /// Returns the device with this number in the service; none if this process does not see it.
    pub(super) fn device(&self, number: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.kind() as u32 == number)
    }

    /// Returns the device of a context; none for NULL.
    pub(super) fn device_of(&self, context: *mut ibv_context) -> Option<&Device> {
        self.devices.iter().find(|device| device.context() == context)
    }

    /// Returns the kinds of devices that this process sees.
    pub(super) fn kinds(&self) -> Vec<DeviceKind> {
        self.devices.iter().map(Device::kind).collect()
    }

    /// Returns the only kind of device that this process sees; none if there are several.
    pub(super) fn only_kind(&self) -> Option<DeviceKind> {
        match &self.devices[..] {
            [one] => Some(one.kind()),
            _ => None,
        }
    }

    /// Returns the first GID of each port of a subnet.
    pub(super) fn subnet_gids(&self) -> Vec<Gid> {
        let on_fabric = self.devices.iter().filter(|device| device.kind().is_on_fabric());
        let gids = on_fabric.flat_map(|device| {
            (1..=MAX_PORTS).filter_map(|port| device.opened.device.gid(port, 0))
        });
        gids.map(|entry| entry.gid).filter(|gid| !gid.is_zero()).collect()
    }

    /// Returns whether this process opened it, and not its parent.
    pub(super) fn is_ours(&self) -> bool {
        self.first().opened.is_ours()
    }

    /// Returns the connection to the host service.
    ///
    /// # Errors
    /// ENODEV if it was inherited over a fork.
    pub(super) fn client(&self) -> Result<&Arc<HostClient>> {
        self.first().opened.check()?;
        // Acknowledges first: programs exchange parameters over one queue pair and then connect others. Both sides should start at once.
        for device in self.devices.iter().filter(|device| !device.has_streams()) {
            device.opened.device.acknowledge();
        }
        Ok(&self.first().opened.client)
    }

    /// Adds an id, which events find from now on.
    pub(super) fn insert(&self, handle: IdHandle, id: NonNull<rdma_cm_id>) {
        self.ids.lock().insert(handle, id);
    }

    /// Removes an id: no event is delivered to it from now on.
    pub(super) fn remove(&self, handle: IdHandle) {
        self.ids.lock().remove(&handle);
    }

    /// Returns whether the program has the id.
    pub(super) fn knows(&self, handle: IdHandle) -> bool {
        self.ids.lock().contains_key(&handle)
    }

    /// Returns the ids that `is_wanted` selects, in order. They live as long as it runs, as in [`find`](Self::find).
    pub(super) fn select(&self, is_wanted: impl Fn(NonNull<rdma_cm_id>) -> bool) -> Vec<IdHandle> {
        let ids = self.ids.lock();
        let mut all: Vec<_> =
            ids.iter().filter(|(_, id)| is_wanted(**id)).map(|(at, _)| *at).collect();
        all.sort_unstable();
        all
    }

    /// Returns whether the host service has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.first().opened.client.is_gone()
    }

    /// Passes an id to `f`; none if it was destroyed meanwhile. It lives as long as `f` runs: ids are removed from the table before
    /// they are freed, and the table is locked.
    pub(super) fn find<R>(
        &self,
        handle: IdHandle,
        f: impl FnOnce(NonNull<rdma_cm_id>) -> R,
    ) -> Option<R> {
        let ids = self.ids.lock();
        ids.get(&handle).map(|id| f(*id))
    }
}

/// Returns the contexts of all devices, ended by NULL (rdma_get_devices(3)). [`rdma_free_devices`] frees the list.
///
/// # Safety
/// `num_devices` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let mut count = 0;
    let list = pointer(|| {
        let devices = &Process::current()?.devices;
        // SAFETY: room for all contexts and the NULL at the end, all zero, which is what is written.
        unsafe {
            let list: *mut *mut ibv_context =
                libc::calloc(devices.len() + 1, size_of::<usize>()).cast();
            if list.is_null() {
                return Err(Errno::ENOMEM);
            }
            for (i, device) in devices.iter().enumerate() {
                list.add(i).write(device.context());
            }
            count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX);
            Ok(list)
        }
    });
    if !num_devices.is_null() {
        // SAFETY: the caller guarantees it.
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
    // SAFETY: the caller guarantees that it came from calloc.
    unsafe { libc::free(list.cast()) }
}
