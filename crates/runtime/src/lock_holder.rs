//! Finding the process that holds a lock of flock(2) or lockf(3).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Pid;

/// Returns the process that took the lock on a file, if the kernel shows it: `/proc/locks`
/// (proc_locks(5)) lists it by the file's inode, and one of its descriptors must be the file.
pub fn holder_of(path: &Path) -> Option<Pid> {
    let file = fs::metadata(path).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks
        .lines()
        .filter_map(parse_line)
        .filter(|&(inode, _)| inode == file.ino())
        .map(|(_, pid)| pid)
        .find(|&pid| has_open(pid, &file))
}

/// Parses the inode and the process of a line `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`;
/// a lock of lockf(3) is `POSIX`. The line of a waiter has an arrow after the number, and a lock of a
/// process that is not visible has no positive number.
fn parse_line(line: &str) -> Option<(u64, Pid)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    if !matches!(words.next()?, "FLOCK" | "POSIX") {
        return None;
    }
    let pid = words.nth(2)?.parse().ok().filter(|&pid: &i32| pid > 0)?;
    let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
    Some((inode, Pid::from_raw(pid)?))
}

/// Returns whether a process has this file open.
fn has_open(pid: Pid, file: &fs::Metadata) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())) else {
        return false;
    };
    let same = |found: fs::Metadata| (found.dev(), found.ino()) == (file.dev(), file.ino());
    descriptors.flatten().any(|fd| fs::metadata(fd.path()).is_ok_and(same))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_testing::temp_dir;
    use rustix::fs::FlockOperation;

    #[test]
    fn lock_holder_is_the_flock_or_lockf_owner_and_not_a_mere_opener() {
        let dir = temp_dir();
        let path = dir.path().join("lock");
        let file = fs::File::create(&path).unwrap();
        assert_eq!(holder_of(&path), None);
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        assert_eq!(holder_of(&path), Some(rustix::process::getpid()));
        drop(file);
        assert_eq!(holder_of(&path), None);
        // A lock of lockf(3), which ibacm uses.
        let file = fs::File::create(&path).unwrap();
        rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
        assert_eq!(holder_of(&path), Some(rustix::process::getpid()));
        drop(file);
        assert_eq!(holder_of(&path), None);
    }

    #[test]
    fn proc_locks_lines_of_leases_and_waiters_are_ignored() {
        let held = "1: FLOCK  ADVISORY  WRITE 1234 fd:01:56 0 EOF";
        assert_eq!(parse_line(held), Some((56, Pid::from_raw(1234).unwrap())));
        assert_eq!(parse_line(&held.replace("FLOCK", "POSIX")), parse_line(held));
        for other in [
            "1: LEASE  ACTIVE    WRITE 1234 fd:01:56 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 1234 fd:01:56 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 fd:01:56 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 1234",
            "",
        ] {
            assert_eq!(parse_line(other), None, "{other}");
        }
    }
}
