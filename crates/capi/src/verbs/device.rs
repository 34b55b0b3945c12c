//! The list of devices (`ibv_get_device_list(3)`): of the host that `$RDMUX_HOST` names those that `$RDMUX_DEVICE`
//! chooses, or none if there is no service for it.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rdmux_host::view;
use rdmux_host::{ConnectOptions, DeviceChoice, DeviceRow, HostError, HostName};
use rdmux_verbs::control::DeviceKind;

use super::{names, process};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, guarded, pointer};

/// An `ibv_device`, as large as the `verbs_device` of drivers: those of vendors look at its `ops` to see that
/// it is none of theirs.
#[repr(C)]
pub(crate) struct Device {
    public: UnsafeCell<ibv_device>,
    driver: DriverPart,
    host: HostName,
    kind: DeviceKind,
    /// In host order. A service that was started anew has another one.
    guid: AtomicU64,
}

/// The tail of a `verbs_device`, which says that no driver is behind it.
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
    /// The device behind a pointer that `ibv_get_device_list` gave.
    ///
    /// # Safety
    /// The pointer is NULL or one of those.
    pub(crate) unsafe fn get(ptr: *mut ibv_device) -> Result<&'static Self> {
        // SAFETY: as promised; devices are never freed.
        unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_device {
        self.public.get()
    }
    /// The virtual host that it belongs to.
    pub(crate) fn host(&self) -> &HostName {
        &self.host
    }

    /// Which of the host's devices it is.
    pub(crate) fn kind(&self) -> DeviceKind {
        self.kind
    }

    fn new(host: &HostName, kind: DeviceKind) -> Self {
        let (node_type, transport_type) = match kind {
            // Programs that connect queue pairs by themselves do so only on what says that it is InfiniBand.
            DeviceKind::Roce => (IBV_NODE_CA, IBV_TRANSPORT_IB),
            DeviceKind::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
        };
        let mut public = ibv_device {
            _ops: _ibv_device_ops { _dummy1: None, _dummy2: None },
            node_type,
            transport_type,
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        let (name, uverbs) = (kind.device_name(), view::uverbs(kind));
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

    fn name(&self) -> &CStr {
        // SAFETY: `fill` ended it with a NUL, and nobody writes it any more.
        unsafe { CStr::from_ptr((*self.public.get()).name.as_ptr()) }
    }
}

/// The devices of this process's host that it is to see.
///
/// # Errors
/// When there is no service, and none can be started; EINVAL when the environment names no host or no devices.
pub(crate) fn list() -> std::result::Result<Vec<&'static Device>, HostError> {
    let refused = |what: &str, why: String| HostError::Refused {
        what: what.into(),
        why,
        errno: libc::EINVAL,
    };
    let host = HostName::of_environment()
        .map_err(|error| refused("find the host that $RDMUX_HOST names", error.to_string()))?;
    let choice = DeviceChoice::of_environment()
        .map_err(|error| refused("list the devices that $RDMUX_DEVICE names", error.to_string()))?;
    let rows = connect_options()?.devices(&host)?;
    let row = |kind: &DeviceKind| rows.iter().find(|row| row.kind == *kind);
    Ok(choice.kinds().iter().filter_map(row).map(|row| known(&host, row)).collect())
}

/// The device as it was listed before, or a new one.
fn known(host: &HostName, row: &DeviceRow) -> &'static Device {
    let mut lists = process::lists();
    let same = |d: &&&Device| d.host == *host && d.kind == row.kind;
    let device = match lists.devices.iter().find(same) {
        Some(known) => *known,
        None => {
            let device: &'static Device = Box::leak(Box::new(Device::new(host, row.kind)));
            lists.devices.push(device);
            device
        }
    };
    device.guid.store(row.node_guid.0, Ordering::Relaxed);
    device
}

/// How to reach services: as the environment says, and the program to start is the `rdmux` that was installed or built
/// with this library.
pub(crate) fn connect_options() -> std::result::Result<ConnectOptions, HostError> {
    let mut options = ConnectOptions::of_environment()?;
    let find = || own_path().and_then(|library| own_program(&library));
    options.program = process::lists().program.get_or_insert_with(find).clone();
    Ok(options)
}

/// The file that this code was loaded from.
fn own_path() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: looks an address of ours up and fills the structure in.
    let found = unsafe { libc::dladdr(own_path as *const c_void, info.as_mut_ptr()) };
    // SAFETY: all zero bytes are a valid value, whatever the call made of it.
    let name = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || name.is_null() {
        return None;
    }
    // SAFETY: the loader's string, which stays as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(name) };
    std::fs::canonicalize(std::ffi::OsStr::from_bytes(name.to_bytes())).ok()
}

/// The `rdmux` beside the library, above it (where cargo puts dependencies), or in the `bin` of the same prefix.
fn own_program(library: &Path) -> Option<PathBuf> {
    let folder = library.parent()?;
    ["rdmux", "../rdmux", "../bin/rdmux", "../../bin/rdmux"]
        .iter()
        .map(|place| folder.join(place))
        .find(|program| program.is_file())
}

/// `ibv_get_device_list(3)`: an array that ends with NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        crate::log::start();
        let devices = list().unwrap_or_else(|error| {
            tracing::warn!(%error, "no device to list");
            Vec::new()
        });
        // SAFETY: room for all pointers and the NULL at the end, all zero.
        let array: *mut *mut ibv_device =
            unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast();
        if array.is_null() {
            return Err(Errno::ENOMEM);
        }
        for (i, device) in devices.iter().enumerate() {
            // SAFETY: within what was just allocated.
            unsafe { array.add(i).write(device.as_ptr()) };
        }
        // SAFETY: the caller's variable, or NULL.
        if let Some(num) = unsafe { num.as_mut() } {
            *num = c_int::try_from(devices.len()).unwrap_or(c_int::MAX);
        }
        Ok(array)
    })
}

/// `ibv_free_device_list(3)`. The devices stay.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: `ibv_get_device_list` allocated it.
    unsafe { libc::free(list.cast()) }
}

/// `ibv_get_device_name(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { Device::get(device)? };
        Ok(device.name().as_ptr().cast_mut())
    })
}

/// `ibv_get_device_guid(3)`: in network order.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller's promise.
    let guid = guarded(|| Ok(unsafe { Device::get(device)? }.guid.load(Ordering::Relaxed)));
    guid.unwrap_or(0).to_be()
}

/// `ibv_get_device_index(3)`: the kernel numbers its devices, and so do we, by kind.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| Ok(unsafe { Device::get(device)? }.kind as c_int)).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn drivers_of_vendors_see_that_it_is_none_of_theirs() {
        assert_eq!(offset_of!(Device, driver) + offset_of!(DriverPart, ops), 664);
        let device = Device::new(&HostName::default(), DeviceKind::Iwarp);
        assert!(device.driver.ops.is_null());
        assert_eq!(device.name(), c"rdmux_iw0");
    }

    #[test]
    fn the_program_is_found_where_it_is_built_and_installed() {
        let folder = rdmux_testing::temp_dir();
        let root = folder.path();
        let (bin, deps) = (root.join("bin"), root.join("lib/rdmux"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&deps).unwrap();
        assert_eq!(own_program(&deps.join("librdmux_capi.so")), None);
        std::fs::write(bin.join("rdmux"), "").unwrap();
        assert!(own_program(&deps.join("librdmux_capi.so")).unwrap().ends_with("bin/rdmux"));
        std::fs::write(root.join("lib/rdmux/rdmux"), "").unwrap();
        let beside = own_program(&deps.join("librdmux_capi.so")).unwrap();
        assert_eq!(beside, deps.join("rdmux"));
    }
}
