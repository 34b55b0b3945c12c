//! Adapters and ports as structures that programs read (`umad_get_ca(3)`, `umad_get_port(3)`).
//!
//! The tables behind pointers are in the C library's memory: only the release functions depend on that.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::choose;
use super::sysfs::{Ca, PortFacts, Sysfs};
use crate::abi::umad::*;
use crate::boundary::{Errno, Result, negative};
use crate::verbs::names::fill;

/// `umad_init(3)`: does nothing.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_init() -> c_int {
    0
}

/// `umad_done(3)`: does nothing.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_done() -> c_int {
    0
}

/// `umad_get_cas_names(3)`: returns how many of at most `max` names were written.
///
/// # Safety
/// `cas` has room for that many names.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_cas_names(
    cas: *mut [c_char; UMAD_CA_NAME_LEN as usize],
    max: c_int,
) -> c_int {
    negative(|| {
        let max = usize::try_from(max).unwrap_or(0);
        if cas.is_null() && max != 0 {
            return Err(Errno::EINVAL);
        }
        let names = Sysfs::default().cas();
        let count = names.len().min(max);
        for (i, name) in names[..count].iter().enumerate() {
            // SAFETY: the caller's array is at least this long.
            fill(unsafe { &mut *cas.add(i) }, name);
        }
        c_int::try_from(count).map_err(|_| Errno::EINVAL)
    })
}

/// `umad_get_ca_portguids(3)`: returns how many entries were written. The index is the port's number; entry 0 is no port.
///
/// # Safety
/// `ca_name` is a name or NULL, and there is room for `max` GUIDs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_ca_portguids(
    ca_name: *const c_char,
    portguids: *mut u64,
    max: c_int,
) -> c_int {
    negative(|| {
        let sysfs = Sysfs::default();
        // SAFETY: the caller guarantees it.
        let ca = sysfs.ca(&choose::ca(&sysfs, unsafe { name(ca_name)? })?)?;
        let count = ca.ports.last().map_or(1, |port| usize::from(port.number) + 1);
        if usize::try_from(max).unwrap_or(0) < count {
            return Err(Errno::ENOMEM);
        }
        if portguids.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's array is at least this long.
        let guids = unsafe {
            portguids.write_bytes(0, count);
            std::slice::from_raw_parts_mut(portguids, count)
        };
        for port in &ca.ports {
            guids[usize::from(port.number)] = halves(port).1;
        }
        c_int::try_from(count).map_err(|_| Errno::EINVAL)
    })
}

/// `umad_get_ca(3)`.
///
/// # Safety
/// The name and the structure may be NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_ca(ca_name: *const c_char, ca: *mut umad_ca) -> c_int {
    negative(|| {
        if ca.is_null() {
            return Err(Errno::EINVAL);
        }
        let sysfs = Sysfs::default();
        // SAFETY: the caller guarantees it.
        let found = sysfs.ca(&choose::ca(&sysfs, unsafe { name(ca_name)? })?)?;
        let made = c_ca(&found)?;
        // SAFETY: the caller guarantees room for one.
        unsafe { ca.write(made) };
        Ok(0)
    })
}

/// `umad_release_ca(3)`.
///
/// # Safety
/// `ca` was filled by `umad_get_ca`, or is NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_release_ca(ca: *mut umad_ca) -> c_int {
    negative(|| {
        // SAFETY: the caller guarantees it.
        let ca = unsafe { ca.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as filled; a pointer that was released before is NULL.
        unsafe { release_ports(ca) };
        Ok(0)
    })
}

/// `umad_get_port(3)`.
///
/// # Safety
/// The name and the structure may be NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_port(
    ca_name: *const c_char,
    portnum: c_int,
    port: *mut umad_port,
) -> c_int {
    negative(|| {
        if port.is_null() {
            return Err(Errno::EINVAL);
        }
        let sysfs = Sysfs::default();
        // SAFETY: the caller guarantees it.
        let (ca, number) = choose::port(&sysfs, unsafe { name(ca_name)? }, portnum)?;
        let made = c_port(&ca, &sysfs.port(&ca, number)?)?;
        // SAFETY: the caller guarantees room for one.
        unsafe { port.write(made) };
        Ok(0)
    })
}

/// `umad_release_port(3)`.
///
/// # Safety
/// `port` was filled by `umad_get_port`, or is NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_release_port(port: *mut umad_port) -> c_int {
    negative(|| {
        // SAFETY: the caller guarantees it.
        let port = unsafe { port.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as filled; a pointer that was released before is NULL.
        unsafe { release_pkeys(port) };
        Ok(0)
    })
}

/// Returns the name that the program passes, if any. A name that is not UTF-8 belongs to no adapter.
///
/// # Safety
/// `ca_name` is a string or NULL.
pub(super) unsafe fn name<'a>(ca_name: *const c_char) -> Result<Option<&'a str>> {
    if ca_name.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees it.
    let name = unsafe { CStr::from_ptr(ca_name) }.to_str();
    name.map(Some).map_err(|_| Errno(libc::ENODEV))
}

fn c_ca(ca: &Ca) -> Result<umad_ca> {
    let mut c = umad_ca {
        ca_name: [0; UMAD_CA_NAME_LEN as usize],
        node_type: ca.node_type,
        numports: ca.ports.last().map_or(0, |port| port.number.into()),
        fw_ver: [0; 20],
        ca_type: [0; 40],
        hw_ver: [0; 20],
        node_guid: u64::from_ne_bytes(ca.node_guid),
        system_guid: u64::from_ne_bytes(ca.system_guid),
        ports: [ptr::null_mut(); UMAD_CA_MAX_PORTS as usize],
    };
    fill(&mut c.ca_name, &ca.name);
    fill(&mut c.fw_ver, &ca.firmware);
    fill(&mut c.ca_type, &ca.model);
    fill(&mut c.hw_ver, &ca.revision);
    for port in &ca.ports {
        let made = c_port(&ca.name, port).and_then(|port| allocated(&[port]));
        match made {
            // `Sysfs` has no port with a higher number than the structure has room for.
            Ok(made) => c.ports[usize::from(port.number)] = made,
            Err(errno) => {
                // SAFETY: the others were created here.
                unsafe { release_ports(&mut c) };
                return Err(errno);
            }
        }
    }
    Ok(c)
}

fn c_port(ca: &str, port: &PortFacts) -> Result<umad_port> {
    let (gid_prefix, port_guid) = halves(port);
    let mut c = umad_port {
        ca_name: [0; UMAD_CA_NAME_LEN as usize],
        portnum: port.number.into(),
        base_lid: port.lid,
        lmc: port.lmc,
        sm_lid: port.sm_lid,
        sm_sl: port.sm_sl,
        state: port.state,
        phys_state: port.phys_state,
        rate: port.rate,
        capmask: port.cap_mask.to_be(),
        gid_prefix,
        port_guid,
        pkeys_size: c_uint::try_from(port.pkeys.len()).map_err(|_| Errno::EIO)?,
        pkeys: allocated(&port.pkeys)?,
        link_layer: [0; UMAD_CA_NAME_LEN as usize],
    };
    fill(&mut c.ca_name, ca);
    fill(&mut c.link_layer, &port.link_layer);
    Ok(c)
}

/// Returns subnet prefix and GUID of a port, in network order.
fn halves(port: &PortFacts) -> (u64, u64) {
    let gid = u128::from_be_bytes(port.gid);
    let half =
        |value: u128| u64::try_from(value & u128::from(u64::MAX)).unwrap_or_default().to_be();
    (half(gid >> 64), half(gid))
}

/// Copies values to memory of the C library.
fn allocated<T: Copy>(values: &[T]) -> Result<*mut T> {
    // SAFETY: a plain allocation; the C library checks the product.
    let memory = unsafe { libc::calloc(values.len(), size_of::<T>()) }.cast::<T>();
    if memory.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: new memory, large enough and aligned for any type.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), memory, values.len()) };
    Ok(memory)
}

/// Frees the ports of an adapter, and removes them from it.
///
/// # Safety
/// Each port is NULL or was created here.
unsafe fn release_ports(ca: &mut umad_ca) {
    for port in &mut ca.ports {
        let port = std::mem::replace(port, ptr::null_mut());
        // SAFETY: the caller guarantees it.
        if let Some(port) = unsafe { port.as_mut() } {
            // SAFETY: as above.
            unsafe { release_pkeys(port) };
        }
        // SAFETY: as above; NULL is nothing to free.
        unsafe { libc::free(port.cast::<c_void>()) };
    }
}

/// Frees the P_Key table of a port, and removes it from the port.
///
/// # Safety
/// The table is NULL or was created here.
unsafe fn release_pkeys(port: &mut umad_port) {
    let pkeys = std::mem::replace(&mut port.pkeys, ptr::null_mut());
    port.pkeys_size = 0;
    // SAFETY: the caller guarantees it.
    unsafe { libc::free(pkeys.cast::<c_void>()) };
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tree::Tree;
    use super::*;

    #[test]
    fn umad_ca_is_filled_from_sysfs_and_may_be_released_twice() {
        let tree = Tree::new();
        tree.ca("mlx4_0");
        tree.port("mlx4_0", 1, &[]);
        tree.port("mlx4_0", 9, &[]);
        let mut ca = c_ca(&tree.sysfs().ca("mlx4_0").unwrap()).unwrap();
        assert_eq!((ca.numports, ca.node_type), (9, 1));
        assert_eq!(ca.node_guid, 0x0002_c903_0012_3456_u64.to_be());
        let present: Vec<bool> = ca.ports.iter().map(|port| !port.is_null()).collect();
        assert_eq!(present.iter().filter(|there| **there).count(), 2);
        // SAFETY: it was made above.
        let port = unsafe { &*ca.ports[9] };
        assert_eq!((port.portnum, port.base_lid, port.capmask), (9, 0x12, 0x0251_4868_u32.to_be()));
        assert_eq!(port.gid_prefix, 0xfe80_0000_0000_0000_u64.to_be());
        assert_eq!(port.port_guid, 0x0002_c903_0012_3457_u64.to_be());
        assert_eq!(port.pkeys_size, 3);
        // SAFETY: a table of that many entries.
        assert_eq!(unsafe { std::slice::from_raw_parts(port.pkeys, 3) }, [0xffff, 0, 0x8001]);
        for _ in 0..2 {
            // SAFETY: it was made above.
            assert_eq!(unsafe { umad_release_ca(&raw mut ca) }, 0);
            assert!(ca.ports.iter().all(|port| port.is_null()));
        }
    }
}
