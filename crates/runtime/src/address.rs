//! Addresses of Unix sockets.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::SocketAddrUnix;

/// The longest path of a Unix socket in bytes, without the final NUL (unix(7)).
const SUN_PATH_MAX: usize = 107;

/// Returns the address of the Unix socket at a path, and a descriptor that must stay open while the
/// address is used: a path that is too long for an address is replaced with one through `/proc/self/fd`.
///
/// # Errors
/// Those of open(2).
pub fn unix_address(path: &Path) -> io::Result<(SocketAddrUnix, Option<OwnedFd>)> {
    if path.as_os_str().len() <= SUN_PATH_MAX {
        return Ok((SocketAddrUnix::new(path)?, None));
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok((SocketAddrUnix::new(&short)?, Some(folder)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rdmux_testing::temp_dir;
    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    #[test]
    fn socket_with_a_long_path_is_connected_to() {
        let tmp = temp_dir();
        let deep = tmp.path().join("x".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let near = tmp.path().join("s");
        let _listener = UnixListener::bind(&near).unwrap();
        let far = deep.join("s");
        std::fs::rename(near, &far).unwrap();
        let (address, keep) = unix_address(&far).unwrap();
        assert!(keep.is_some());
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        assert!(unix_address(&deep.join("y".repeat(108))).is_err(), "a name that is too long");
    }
}
