//! Atomic replacement of files, so that a full disk or a crash leaves the old contents.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Replaces a file: writes a new one beside it with mode 0600, syncs it to disk, and renames it. Readers see the old
/// contents or the new ones, also after a crash. The caller holds a lock that excludes other writers of this file.
///
/// # Errors
/// Those of open(2), write(2), fsync(2) and rename(2). The old file is unchanged then, unless it was
/// the directory that could not be synced: the new one is in place then, and may not be after a crash.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, true)?;
    // Until the directory is synced, a crash of the machine may bring the old file back.
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

/// Like [`replace`], for contents that are useless after a crash of the machine: nothing is synced.
///
/// # Errors
/// Those of open(2), write(2) and rename(2). The old file is unchanged then.
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, false)
}

fn replace_with(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let new = beside(path);
    let written = write_new(&new, bytes, sync).and_then(|()| fs::rename(&new, path));
    if let Err(e) = written {
        // The file may not exist, and the next writer truncates it anyway.
        let _ = fs::remove_file(&new);
        return Err(e);
    }
    Ok(())
}

/// Opens a private file for reading and writing, and creates it with mode 0600 if needed. Follows no symbolic link.
///
/// # Errors
/// Those of open(2).
pub fn open_private(path: &Path, append: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    if append {
        options.append(true);
    } else {
        options.write(true).truncate(false);
    }
    options.open(path)
}

fn write_new(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    if sync { file.sync_all() } else { Ok(()) }
}

/// Returns the path for the new file: in the same directory, since a rename does not cross file systems.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_testing::temp_dir;

    #[test]
    fn replace_overwrites_the_file_and_leaves_no_temporary_file() {
        let dir = temp_dir();
        let path = dir.path().join("file");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_open_file_keeps_the_old_text() {
        let dir = temp_dir();
        let path = dir.path().join("file");
        replace(&path, b"one").unwrap();
        let old = File::open(&path).unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(io::read_to_string(old).unwrap(), "one");
    }
}
