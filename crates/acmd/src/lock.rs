//! The lock file, which names the process that serves.
//!
//! The lock is taken with lockf(3), as ibacm does, so that the two exclude each other.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use crate::AcmdError;

/// The lock, held as long as this lives. The file stays.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it gives the lock up")] File);

/// The maximum length of a process id that is read.
const MAX_PID: u64 = 16;

impl Lock {
    /// Takes the lock and writes the process id. Creates the file with mode 0640, and does not follow a symbolic
    /// link.
    ///
    /// # Errors
    /// [`AcmdError::Running`] when another process has the lock; [`AcmdError::Io`].
    pub(crate) fn take(path: &Path) -> Result<Self, AcmdError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.mode(0o640).custom_flags(NOFOLLOW);
        let file = options.open(path).map_err(AcmdError::of_file("open the lock", path))?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let pid = holder(&file).map_or_else(String::new, |pid| format!(" (process {pid})"));
                return Err(AcmdError::Running { path: path.to_owned(), pid });
            }
            Err(e) => return Err(AcmdError::of_file("lock", path)(e.into())),
        }
        write_pid(&file).map_err(AcmdError::of_file("write", path))?;
        Ok(Self(file))
    }
}

/// `O_NOFOLLOW` as a flag of open(2).
const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

fn write_pid(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

fn holder(file: &File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_PID).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rdmux_testing::temp_dir;

    use super::*;

    #[test]
    fn lock_has_the_number_of_the_process_and_mode_0640() {
        let dir = temp_dir();
        let path = dir.path().join("ibacm.pid");
        fs::write(&path, "123456789\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let _lock = Lock::take(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0);
    }

    #[test]
    fn lock_that_is_a_link_is_refused() {
        let dir = temp_dir();
        let (path, victim) = (dir.path().join("ibacm.pid"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        assert!(matches!(Lock::take(&path), Err(AcmdError::Io { .. })));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }
}
