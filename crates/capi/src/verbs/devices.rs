//! The list of devices (`ibv_get_device_list(3)`): those of host `$RDMUX_HOST` that `$RDMUX_DEVICE`
//! selects, or none without a service for it.

use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};

use rdmux_host::{ConnectOptions, DeviceChoice, DeviceRow, HostError, HostName};

use super::device::Device;
use super::process;
use crate::abi::verbs::ibv_device;
use crate::boundary::{Errno, pointer};

/// Returns the devices of this process's host that it may see.
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
    Ok(rows.iter().filter(|row| choice.sees(row)).map(|row| known(&host, row)).collect())
}

/// Returns the device as it was listed before, or a new one.
fn known(host: &HostName, row: &DeviceRow) -> &'static Device {
    let mut lists = process::lists();
    let same = |d: &&&Device| d.host() == host && d.kind() == row.kind;
    let device = match lists.devices.iter().find(same) {
        Some(known) => *known,
        None => {
            let device: &'static Device = Box::leak(Box::new(Device::new(host, row.kind)));
            lists.devices.push(device);
            device
        }
    };
    device.set_guid(row.node_guid);
    device
}

/// Returns how to reach services: by the environment, and with the `rdmux` that was installed or built
/// with this library as the program to start.
pub(crate) fn connect_options() -> std::result::Result<ConnectOptions, HostError> {
    let mut options = ConnectOptions::of_environment()?;
    let find = || own_path().and_then(|library| own_program(&library));
    options.program = process::lists().program.get_or_insert_with(find).clone();
    Ok(options)
}

/// Returns the file that this code was loaded from.
fn own_path() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: looks up an address of this code and fills in the structure.
    let found = unsafe { libc::dladdr(own_path as *const c_void, info.as_mut_ptr()) };
    // SAFETY: all zero bytes are a valid value, whatever the call has written.
    let name = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || name.is_null() {
        return None;
    }
    // SAFETY: the loader's string, which stays as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(name) };
    std::fs::canonicalize(std::ffi::OsStr::from_bytes(name.to_bytes())).ok()
}

/// Returns the `rdmux` beside the library, above it (where cargo puts dependencies), or in the `bin` of the same prefix.
fn own_program(library: &Path) -> Option<PathBuf> {
    let folder = library.parent()?;
    ["rdmux", "../rdmux", "../bin/rdmux", "../../bin/rdmux"]
        .iter()
        .map(|place| folder.join(place))
        .find(|program| program.is_file())
}

/// `ibv_get_device_list(3)`: returns an array that ends with NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        crate::log::start();
        let devices = list().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list devices");
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

#[cfg(test)]
mod tests {
    use super::*;

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
