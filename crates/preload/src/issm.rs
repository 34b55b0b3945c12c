//! `issmN`, which only one program at a time may have open.
//!
//! The kernel's device has a semaphore: while one program has it open, another open waits, or gets EAGAIN with O_NONBLOCK.
//! In a view it is a FIFO, which any number of programs can open. So opens through this library also lock the file
//! (flock(2)). The lock belongs to the open file: children inherit it, and its last close releases it, however that happens.

use std::ffi::{CStr, c_char, c_int};

/// The prefix of the devices' paths.
const PREFIX: &[u8] = b"/dev/infiniband/issm";

/// Returns whether a path is that of such a device.
///
/// # Safety
/// `path` is NULL or a string that ends with a NUL.
pub(crate) unsafe fn is_issm(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let number = unsafe { CStr::from_ptr(path) }.to_bytes().strip_prefix(PREFIX);
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Opens such a device with `open`, which takes the flags and returns the result of open(2). A FIFO is opened
/// by one program at a time. Any other file, such as a device of the kernel, is opened without a lock.
///
/// # Safety
/// `path` is a string that ends with a NUL: the file that `open` opens.
pub(crate) unsafe fn open(
    path: *const c_char,
    flags: c_int,
    open: impl FnOnce(c_int) -> c_int,
) -> c_int {
    // SAFETY: all zero is a valid value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a string, as the caller promises, and a structure to fill.
    let found = unsafe { libc::stat(path, &raw mut stat) } == 0;
    if !found || stat.st_mode & libc::S_IFMT != libc::S_IFIFO || flags & libc::O_PATH != 0 {
        return open(flags);
    }
    // Without the flag the open would wait for a writer.
    let fd = open(flags | libc::O_NONBLOCK);
    if fd < 0 {
        return fd;
    }
    let waits = flags & libc::O_NONBLOCK == 0;
    let how = if waits { libc::LOCK_EX } else { libc::LOCK_EX | libc::LOCK_NB };
    // SAFETY: the descriptor has just been opened; errno is this thread's own.
    unsafe {
        if libc::flock(fd, how) != 0 {
            let why = *libc::__errno_location();
            libc::close(fd);
            *libc::__errno_location() = why;
            return -1;
        }
        if waits {
            let set = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, set & !libc::O_NONBLOCK);
        }
    }
    fd
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn only_numbered_issm_devices_have_exclusive_open() {
        // SAFETY: a string.
        let is = |path: &CStr| unsafe { is_issm(path.as_ptr()) };
        assert!(is(c"/dev/infiniband/issm0") && is(c"/dev/infiniband/issm12"));
        for other in [c"", c"/dev/infiniband/issm", c"/dev/infiniband/issm0/x", c"issm0"] {
            assert!(!is(other), "{other:?}");
        }
        // SAFETY: NULL is allowed.
        assert!(!unsafe { is_issm(std::ptr::null()) });
    }

    fn open_at(path: &CStr, flags: c_int) -> (c_int, Option<i32>) {
        // SAFETY: a string.
        let fd = unsafe { open(path.as_ptr(), flags, |flags| libc::open(path.as_ptr(), flags)) };
        (fd, std::io::Error::last_os_error().raw_os_error().filter(|_| fd < 0))
    }

    fn close(fd: c_int) {
        // SAFETY: a descriptor of this test.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }

    /// Returns whether a thread of this process waits for the lock of a file (proc_locks(5)).
    fn is_waiting() -> bool {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let own = format!(" {} ", std::process::id());
        locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&own))
    }

    #[test]
    fn a_second_open_is_eagain_or_waits_for_the_first_to_close() {
        let dir = rdmux_testing::temp_dir();
        let path = CString::new(dir.path().join("issm0").as_os_str().as_bytes()).unwrap();
        // SAFETY: a string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        for access in [libc::O_RDONLY, libc::O_RDWR] {
            let (first, why) = open_at(&path, access | libc::O_NONBLOCK);
            assert!(first >= 0, "{why:?}");
            for second in [libc::O_RDONLY, libc::O_RDWR] {
                let refused = open_at(&path, second | libc::O_NONBLOCK);
                assert_eq!(refused, (-1, Some(libc::EAGAIN)));
            }
            let waits = std::thread::spawn({
                let path = path.clone();
                move || open_at(&path, access)
            });
            while !is_waiting() {
                assert!(!waits.is_finished(), "it does not wait");
                std::thread::yield_now();
            }
            // A duplicate holds the lock as well.
            // SAFETY: a descriptor of this test.
            let copy = unsafe { libc::dup(first) };
            close(first);
            assert_eq!(open_at(&path, libc::O_RDONLY | libc::O_NONBLOCK).0, -1);
            close(copy);
            let (second, why) = waits.join().unwrap();
            assert!(second >= 0, "{why:?}");
            // SAFETY: a descriptor of this test.
            let flags = unsafe { libc::fcntl(second, libc::F_GETFL) };
            assert_eq!(flags & (libc::O_NONBLOCK | libc::O_ACCMODE), access);
            assert_eq!(open_at(&path, access | libc::O_NONBLOCK), (-1, Some(libc::EAGAIN)));
            close(second);
        }
    }

    #[test]
    fn issm_path_that_is_not_a_fifo_is_opened_normally() {
        for flags in [libc::O_RDONLY, libc::O_RDONLY | libc::O_NONBLOCK] {
            let (first, second) = (open_at(c"/dev/null", flags).0, open_at(c"/dev/null", flags).0);
            assert!(first >= 0 && second >= 0);
            close(first);
            close(second);
        }
        assert_eq!(open_at(c"/nowhere/issm0", libc::O_RDONLY), (-1, Some(libc::ENOENT)));
    }
}
