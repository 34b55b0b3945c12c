//! Functions of <infiniband/driver.h> and <infiniband/verbs.h> for reading sysfs: `ibv_get_sysfs_path`, `ibv_read_sysfs_file`.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::process;
use crate::boundary::{Errno, guarded};

/// Returns the mount point of sysfs: `$SYSFS_PATH`, or /sys.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    let find = || {
        let set = rdmux_runtime::environment::path("SYSFS_PATH");
        let path = set.as_deref().map_or(&b"/sys"[..], OsStrExt::as_bytes);
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        // An environment variable has no NUL in it.
        CString::new(&path[..end]).unwrap_or_default()
    };
    // The pointer stays valid: the string is not changed again.
    process::lists().sysfs.get_or_insert_with(find).as_ptr()
}

/// Reads the first bytes of `dir/file` and ends them with a NUL in place of a final newline. Returns their
/// number, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    let read = guarded(|| {
        if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's strings, and `size` bytes of its buffer.
        let (dir, file, buf) = unsafe {
            buf.write_bytes(0, size);
            let buf = std::slice::from_raw_parts_mut(buf.cast::<u8>(), size);
            (CStr::from_ptr(dir), CStr::from_ptr(file), buf)
        };
        let name = |s: &CStr| OsStr::from_bytes(s.to_bytes()).to_owned();
        read_line(&Path::new(&name(dir)).join(name(file)), buf)
    });
    read.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

fn read_line(path: &Path, buf: &mut [u8]) -> Result<c_int, Errno> {
    let errno = |e: std::io::Error| Errno(e.raw_os_error().unwrap_or(libc::EIO));
    let mut length = File::open(path).and_then(|mut file| file.read(buf)).map_err(errno)?;
    if length > 0 && buf[length - 1] == b'\n' {
        length -= 1;
        buf[length] = 0;
    }
    // A truncated value would be taken for another one.
    if length == buf.len() {
        return Err(Errno(libc::EOVERFLOW));
    }
    c_int::try_from(length).map_err(|_| Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_without_its_newline() {
        let folder = rdmux_testing::temp_dir();
        let path = folder.path().join("line");
        std::fs::write(&path, "4X\n").unwrap();
        let dir = CString::new(path.parent().unwrap().as_os_str().as_bytes()).unwrap();
        let file = CString::new(path.file_name().unwrap().as_bytes()).unwrap();
        let read = |size: usize| {
            let mut buf = vec![1_u8; size];
            // SAFETY: strings and a buffer of that many bytes.
            let n = unsafe {
                ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), buf.as_mut_ptr().cast(), size)
            };
            (n, buf)
        };
        assert_eq!(read(8), (2, b"4X\0\0\0\0\0\0".to_vec()));
        assert_eq!(read(3), (2, b"4X\0".to_vec()));
        assert_eq!(read(2).0, -1, "no room for the line and its end");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(8).0, -1);
    }
}
