//! Opens files that a service trusts, which other users must not be able to write.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

/// Mode bits: write permission for other users, and in a directory, that users cannot remove others' files.
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The reason why a file is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file does not exist.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// The path is a symbolic link.
    #[error("{0} is a symbolic link, which is not followed; replace it by the file itself")]
    Link(PathBuf),
    /// The path is a directory, a device, or another kind of non-regular file.
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    /// Every user may write to the file, or replace it.
    #[error("every user can write to {0}, so it cannot be trusted; run chmod o-w on it")]
    Writable(PathBuf),
    /// The file belongs to another user than root and the reader.
    #[error("{path} belongs to user {owner}, not to root or user {user}; run chown on it")]
    Owner {
        /// The file.
        path: PathBuf,
        /// The owner of the file.
        owner: u32,
        /// The user that reads it.
        user: u32,
    },
    /// The file is larger than the maximum for such a file.
    #[error("{path} has more than {max} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The maximum.
        max: u64,
    },
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Opens a file for reading, if it is a regular file and not a symbolic link, belongs to root or to this user, and neither it nor
/// its directory is writable by everybody. (In a sticky directory, such as `/tmp`, other users' files cannot be replaced.)
///
/// # Errors
/// The reason why the file is not opened.
pub fn open(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    // Opening a FIFO must not block.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::NOENT) => OpenError::Missing(path.to_owned()),
        Some(Errno::LOOP) => OpenError::Link(path.to_owned()),
        _ => io(source),
    })?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(OpenError::NotAFile(path.to_owned()));
    }
    if meta.mode() & OTHERS_WRITE != 0 {
        return Err(OpenError::Writable(path.to_owned()));
    }
    let user = geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != user {
        return Err(OpenError::Owner { path: path.to_owned(), owner: meta.uid(), user });
    }
    check_directory(path)?;
    Ok(file)
}

fn check_directory(path: &Path) -> Result<(), OpenError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = parent.unwrap_or(Path::new("."));
    let meta =
        fs::metadata(dir).map_err(|source| OpenError::Io { path: dir.to_owned(), source })?;
    if meta.mode() & OTHERS_WRITE != 0 && meta.mode() & STICKY == 0 {
        return Err(OpenError::Writable(dir.to_owned()));
    }
    Ok(())
}

/// Returns all bytes of a file that [`open`] opens.
///
/// # Errors
/// Those of [`open`]; also when the file cannot be read, or has more than `max` bytes.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, OpenError> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    let read = file.take(max.saturating_add(1)).read_to_end(&mut bytes);
    let read = read.map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    if read as u64 > max {
        return Err(OpenError::TooLarge { path: path.to_owned(), max });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rdmux_testing::temp_dir;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn file_of_this_user_is_read_up_to_its_bound() {
        let dir = temp_dir();
        let path = dir.path().join("opts");
        assert!(matches!(open(&path), Err(OpenError::Missing(_))));
        fs::write(&path, "retries 2\n").unwrap();
        assert_eq!(read(&path, 10).unwrap(), b"retries 2\n");
        assert!(matches!(read(&path, 9), Err(OpenError::TooLarge { max: 9, .. })));
    }

    #[test]
    fn symbolic_link_is_not_followed() {
        let dir = temp_dir();
        let (path, link) = (dir.path().join("opts"), dir.path().join("link"));
        fs::write(&path, "").unwrap();
        symlink(&path, &link).unwrap();
        assert!(matches!(open(&link), Err(OpenError::Link(_))));
        let dangling = dir.path().join("dangling");
        symlink(dir.path().join("nothing"), &dangling).unwrap();
        assert!(matches!(open(&dangling), Err(OpenError::Link(_))));
    }

    #[test]
    fn world_writable_file_or_folder_is_refused() {
        let dir = temp_dir();
        let path = dir.path().join("opts");
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o646);
        assert!(matches!(open(&path), Err(OpenError::Writable(p)) if p == path));
        set_mode(&path, 0o644);
        set_mode(dir.path(), 0o777);
        assert!(matches!(open(&path), Err(OpenError::Writable(p)) if p == dir.path()));
        set_mode(dir.path(), 0o1777);
        assert!(open(&path).is_ok());
    }

    #[test]
    fn directory_and_pipe_are_no_files_and_do_not_block() {
        let dir = temp_dir();
        assert!(matches!(open(dir.path()), Err(OpenError::NotAFile(_))));
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(open(&pipe), Err(OpenError::NotAFile(_))));
    }
}
