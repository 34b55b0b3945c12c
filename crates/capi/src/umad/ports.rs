//! Opening and closing ports (`umad_open_port(3)`). A port id is the descriptor of the port's MAD file.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use super::ca::name;
use super::choose;
use super::open::OpenPort;
use super::source;
use super::sysfs::Sysfs;
use crate::boundary::{Errno, Result, negative};
use crate::verbs::process;

/// `umad_open_port(3)`: returns the port's id, or EOPNOTSUPP without any MAD device, ENODEV without such an adapter, EINVAL without
/// such a port or for one that has no MAD device, EIO for one that cannot be opened. Then errno gives the reason.
///
/// # Safety
/// `ca_name` is a name or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_open_port(ca_name: *const c_char, portnum: c_int) -> c_int {
    let mut why = None;
    let opened = negative(|| {
        crate::log::start();
        let sysfs = Sysfs::default();
        if !sysfs.has_mad_devices() {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the caller guarantees it.
        let (ca, port) = choose::port(&sysfs, unsafe { name(ca_name)? }, portnum)?;
        sysfs.mad_device(&ca, port).ok_or(Errno::EINVAL)?;
        let file = source::open(&ca, port).map_err(|errno| {
            why = Some(errno);
            Errno::EIO
        })?;
        Ok(insert(OpenPort::new(file)))
    });
    why.into_iter().for_each(Errno::set);
    opened
}

/// `umad_close_port(3)`: unregisters its agents. A thread that is receiving fails, unless a child has the descriptor, too. The parent's
/// port stays open when a child closes the inherited one.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_close_port(portid: c_int) -> c_int {
    negative(|| {
        let port = process::lists().mad_ports.remove(&portid);
        // Outside the lock.
        let port = port.ok_or(Errno::EINVAL)?;
        if port.is_ours() {
            port.end_agents();
        }
        if port.is_stolen() {
            // The descriptor is no longer this port's to close.
            std::mem::forget(port);
        }
        Ok(0)
    })
}

/// `umad_get_fd(3)`: returns a descriptor that is readable when something can be received.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_get_fd(portid: c_int) -> c_int {
    negative(|| find(portid).map(|_| portid))
}

/// `umad_get_issm_path(3)`: writes the path of the file that a subnet manager holds open, truncated to fit.
///
/// # Safety
/// `ca_name` is a name or NULL, and there is room for `max` characters.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_issm_path(
    ca_name: *const c_char,
    portnum: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    negative(|| {
        let sysfs = Sysfs::default();
        // SAFETY: the caller guarantees it.
        let (ca, port) = choose::port(&sysfs, unsafe { name(ca_name)? }, portnum)?;
        let number = sysfs.mad_device(&ca, port).ok_or(Errno::EINVAL)?;
        let room = usize::try_from(max).ok().filter(|room| *room > 0 && !path.is_null());
        let room = room.ok_or(Errno::EINVAL)?;
        let text = format!("/dev/infiniband/issm{number}");
        let text = &text.as_bytes()[..text.len().min(room - 1)];
        // SAFETY: the caller guarantees room for these and a NUL.
        unsafe {
            path.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            path.add(text.len()).write(0);
        }
        Ok(0)
    })
}

/// Returns the port that is open by this id.
///
/// # Errors
/// EINVAL if none is.
pub(super) fn find(portid: c_int) -> Result<Arc<OpenPort>> {
    process::lists().mad_ports.get(&portid).cloned().ok_or(Errno::EINVAL)
}

/// Adds a port. Returns its id.
pub(super) fn insert(port: OpenPort) -> c_int {
    let id = port.as_fd().as_raw_fd();
    if let Some(stale) = process::lists().mad_ports.insert(id, Arc::new(port)) {
        // The program closed that port's descriptor by itself, and this port has the number now: it must not be closed again.
        std::mem::forget(stale);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::super::agent::umad_register;
    use super::super::fake::open;
    use super::*;
    use std::ptr;

    #[test]
    fn agents_have_ended_when_a_port_is_closed() {
        let (port, fake) = open();
        // SAFETY: no mask.
        let agents =
            [3, 4].map(|class| unsafe { umad_register(port, class, 1, 0, ptr::null_mut()) });
        assert_eq!(agents, [0, 1]);
        assert_eq!(umad_close_port(port), 0);
        assert_eq!(fake.unregistered(), [0, 1]);
        assert_eq!(umad_close_port(port), -libc::EINVAL);
    }

    #[test]
    fn descriptor_that_the_program_closed_is_not_closed_again() {
        let (port, _fake) = open();
        // SAFETY: the port's descriptor, which nothing uses while another file gets its number.
        unsafe {
            let other = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            assert_eq!(libc::dup3(other, port, libc::O_CLOEXEC), port);
            assert_eq!(umad_close_port(port), 0);
            assert_eq!((libc::close(port), libc::close(other)), (0, 0));
        }
        assert_eq!(umad_close_port(port), -libc::EINVAL);
    }
}
