//! Devices, to which programs have pointers (`ibv_get_device_name(3)`).

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rdmux_host::{HostName, view};
use rdmux_verbs::control::DeviceKind;
use rdmux_wire::Guid;

use super::names;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, guarded, pointer};

/// An `ibv_device`, as large as the `verbs_device` of drivers: vendors' drivers check its `ops` to see that
/// it is not one of theirs.
#[repr(C)]
pub(crate) struct Device {
    public: UnsafeCell<ibv_device>,
    driver: DriverPart,
    host: HostName,
    kind: DeviceKind,
    /// The node GUID in host order. A restarted service has another one.
    guid: AtomicU64,
}

/// The tail of a `verbs_device`, with the values for no driver.
#[repr(C)]
struct DriverPart {
    ops: *const c_void,
    refcount: c_int,
    entry: [*const c_void; 2],
    sysfs: *const c_void,
    core_support: u64,
}

// SAFETY: the public part is written only before it is shared, the pointers are NULL, and the rest is atomic
// or never changes.
unsafe impl Sync for Device {}

impl Device {
    /// Returns the device behind a pointer from `ibv_get_device_list`.
    ///
    /// # Safety
    /// The pointer is NULL or one of those.
    pub(crate) unsafe fn get(ptr: *mut ibv_device) -> Result<&'static Self> {
        // SAFETY: the caller guarantees it; devices are never freed.
        unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_device {
        self.public.get()
    }
    /// Returns the virtual host that it belongs to.
    pub(crate) fn host(&self) -> &HostName {
        &self.host
    }

    /// Returns the device's kind, which identifies it among the host's devices.
    pub(crate) fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Creates one of a host's devices, without a GUID.
    pub(crate) fn new(host: &HostName, kind: DeviceKind) -> Self {
        let row = kind.row();
        let mut public = ibv_device {
            _ops: _ibv_device_ops { _dummy1: None, _dummy2: None },
            node_type: c_int::from(row.node_type as u8),
            transport_type: c_int::from(row.transport as u8),
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        let (name, uverbs) = (row.device_name, view::uverbs(kind));
        names::fill(&mut public.name, name);
        names::fill(&mut public.dev_name, &uverbs);
        names::fill(&mut public.dev_path, &format!("/sys/class/infiniband_verbs/{uverbs}"));
        names::fill(&mut public.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        let driver = DriverPart {
            ops: ptr::null(),
            refcount: 1,
            entry: [ptr::null(); 2],
            sysfs: ptr::null(),
            core_support: 0,
        };
        Self { public: UnsafeCell::new(public), driver, host: host.clone(), kind, guid: 0.into() }
    }

    /// Sets the device's GUID.
    pub(crate) fn set_guid(&self, guid: Guid) {
        self.guid.store(guid.0, Ordering::Relaxed);
    }

    fn name(&self) -> &CStr {
        // SAFETY: `fill` ended it with a NUL, and it is not written any more.
        unsafe { CStr::from_ptr((*self.public.get()).name.as_ptr()) }
    }
}

/// `ibv_get_device_name(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let device = unsafe { Device::get(device)? };
        Ok(device.name().as_ptr().cast_mut())
    })
}

/// `ibv_get_device_guid(3)`: in network order.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller guarantees it.
    let guid = guarded(|| Ok(unsafe { Device::get(device)? }.guid.load(Ordering::Relaxed)));
    guid.unwrap_or(0).to_be()
}

/// `ibv_get_device_index(3)`: devices are numbered by kind, as the kernel numbers its own.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the caller guarantees it.
    guarded(|| Ok(unsafe { Device::get(device)? }.kind as c_int)).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn device_ops_are_null_at_the_offset_that_vendor_drivers_check() {
        assert_eq!(offset_of!(Device, driver) + offset_of!(DriverPart, ops), 664);
        let kind = DeviceKind::default();
        let device = Device::new(&HostName::default(), kind);
        assert!(device.driver.ops.is_null());
        assert_eq!(device.name().to_str(), Ok(kind.device_name()));
    }
}
