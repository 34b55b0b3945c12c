//! Where a user's hosts live in the file system.
//!
//! A runtime directory belongs to one network namespace: the usual one has a part for each.
//!
//! ```text
//! <runtime dir>/registry            names and addresses of virtual hosts; registry.lock is locked meanwhile
//! <runtime dir>/etc-hosts           what programs in a view find as /etc/hosts
//! <runtime dir>/hosts/<name>/sock   the service's socket
//!                            lock   locked by the service while it runs
//!                            start  locked by the process that starts it
//!                            guid   the GUID of the host's node
//!                            mount  locked by the process that makes the namespace of the view
//!                            log    what the service logs
//!                            view/  what programs find under /sys/class and /dev, by the devices that they see
//!                            lib/   links to the C libraries, by the names that programs ask for
//! ```
//!
//! The directory may lie under `/tmp`, where others may have been first: it is used only if it is
//! a directory, not a link to one, belongs to this user (or root), and nobody else may write it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::SocketAddrUnix;
use rustix::process::Pid;

use super::lock_holder::holder_of;
use super::{DeviceChoice, HostName, NetworkNamespace};
use crate::error::HostError;

/// The most bytes of a Unix socket's path, without the final NUL (unix(7)).
const SUN_PATH_MAX: usize = 107;

/// A user's runtime directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// The directory of this user and network namespace. It is made if it does not exist.
    ///
    /// `$RDMUX_RUNTIME_DIR` itself if that is set. Otherwise `netns-INODE` in the first of `$XDG_RUNTIME_DIR/rdmux`,
    /// `/run/rdmux` for root, and `/tmp/rdmux-UID` that belongs to this user, or can be made; root in a user namespace of
    /// an unprivileged user may find the former two to be others'.
    ///
    /// # Errors
    /// [`HostError::Directory`] when it cannot be made or is not safe to use.
    pub fn of_environment() -> Result<Self, HostError> {
        match std::env::var_os("RDMUX_RUNTIME_DIR").filter(|v| !v.is_empty()) {
            Some(path) => Self::at(PathBuf::from(path)),
            None => Self::usual(),
        }
    }

    /// Where this user's hosts live unless told otherwise.
    fn usual() -> Result<Self, HostError> {
        let xdg = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Self::first_of(&usual_bases(xdg), NetworkNamespace::current())
    }

    /// The part of a network namespace in the first directory that can be used.
    fn first_of(bases: &[PathBuf], namespace: Option<NetworkNamespace>) -> Result<Self, HostError> {
        let mut tried = bases.iter().map(|base| {
            make_own(base)?;
            // Where nothing tells namespaces apart, as without /proc, there is one.
            let Some(namespace) = namespace else { return Ok(Self(base.clone())) };
            let path = base.join(namespace.directory());
            make_own(&path)?;
            Ok(Self(path))
        });
        let mut last = Err(HostError::directory(Path::new("/tmp"), "no directory".to_owned()));
        tried
            .find_map(|dir| match dir {
                Ok(dir) => Some(dir),
                refused => {
                    last = refused;
                    None
                }
            })
            .map_or(last, Ok)
    }

    /// Whether this is where the user's hosts live unless told otherwise.
    pub(super) fn is_usual(&self) -> bool {
        Self::usual().is_ok_and(|usual| usual == *self)
    }

    /// A directory of the caller's choice, made if it does not exist.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, HostError> {
        let path = path.into();
        // Others get it by the environment, and need not be where we are.
        let path =
            std::path::absolute(&path).map_err(|e| HostError::directory(&path, e.to_string()))?;
        make_private(&path, true)?;
        Ok(Self(path))
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file of names and addresses.
    pub(crate) fn registry_path(&self) -> PathBuf {
        self.0.join("registry")
    }

    /// The file that programs in a view find as `/etc/hosts`.
    pub(crate) fn etc_hosts(&self) -> PathBuf {
        self.0.join("etc-hosts")
    }

    /// Where the directory of a host is, if there is one.
    pub(super) fn host_path(&self, name: &HostName) -> PathBuf {
        self.0.join("hosts").join(name.as_str())
    }

    /// The directory of a host, made if it does not exist.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn host(&self, name: &HostName) -> Result<HostDir, HostError> {
        make_private(&self.0.join("hosts"), false)?;
        let path = self.host_path(name);
        make_private(&path, false)?;
        Ok(HostDir { name: name.clone(), path })
    }

    /// Those of this user's other network namespaces, if this is the part for one.
    pub(super) fn other_namespaces(&self) -> Vec<Self> {
        let is_part = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            name.as_encoded_bytes().starts_with(NetworkNamespace::DIRECTORY.as_bytes())
        };
        let Some(base) = self.0.parent().filter(|_| is_part(&self.0)) else { return Vec::new() };
        let entries = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| *path != self.0 && is_part(path) && is_mine(path)).map(Self).collect()
    }

    /// Waits for the lock that a process holds while it gives a host something that no other host may have.
    pub(super) fn lock_hosts(&self) -> Result<File, HostError> {
        let path = self.0.join("hosts");
        let lock = || -> io::Result<File> {
            let dir = File::open(&path)?;
            rustix::io::retry_on_intr(|| rustix::fs::flock(&dir, FlockOperation::LockExclusive))?;
            Ok(dir)
        };
        lock().map_err(|e| HostError::directory(&path, e.to_string()))
    }

    /// The names of all hosts that ever had a service here.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the directory cannot be read.
    pub fn hosts(&self) -> Result<Vec<HostName>, HostError> {
        let path = self.0.join("hosts");
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(HostError::directory(&path, e.to_string())),
        };
        let mut names: Vec<_> =
            entries.filter_map(|e| HostName::new(e.ok()?.file_name().to_str()?).ok()).collect();
        names.sort();
        Ok(names)
    }
}

/// The directory of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDir {
    name: HostName,
    path: PathBuf,
}

impl HostDir {
    /// Whose it is.
    pub fn name(&self) -> &HostName {
        &self.name
    }
    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Where the tree lies that stands for `/sys/class/infiniband` and the like, for programs that see these devices.
    pub fn view(&self, devices: DeviceChoice) -> PathBuf {
        self.path.join("view").join(devices.word())
    }
    /// The file that keeps the GUID of the host's node.
    pub(crate) fn guid(&self) -> PathBuf {
        self.path.join("guid")
    }
    /// The path of the service's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join("sock")
    }
    /// The path of the service's log.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The socket's address, and a descriptor that must stay open while it is used: a path that is
    /// too long for a socket address goes by way of `/proc/self/fd`.
    pub(crate) fn socket_address(&self) -> io::Result<(SocketAddrUnix, Option<OwnedFd>)> {
        let path = self.socket();
        if path.as_os_str().len() <= SUN_PATH_MAX {
            return Ok((SocketAddrUnix::new(&path)?, None));
        }
        let dir = rustix::fs::open(
            &self.path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let short = format!("/proc/self/fd/{}/sock", std::os::fd::AsRawFd::as_raw_fd(&dir));
        Ok((SocketAddrUnix::new(short)?, Some(dir)))
    }

    /// Takes the lock that a running service holds. It goes with the file returned, however the
    /// process ends. `None` when a service runs.
    pub(crate) fn lock_service(&self) -> Result<Option<File>, HostError> {
        self.lock("lock", FlockOperation::NonBlockingLockExclusive)
    }

    /// Waits for the lock that a running service holds, until it ends.
    pub(crate) fn wait_service_lock(&self) -> Result<File, HostError> {
        let unlocked = || HostError::directory(&self.path, "its lock cannot be waited for".into());
        self.lock("lock", FlockOperation::LockExclusive)?.ok_or_else(unlocked)
    }

    /// The process that holds the service's lock, as far as the system shows it.
    pub(crate) fn service_lock_holder(&self) -> Option<Pid> {
        holder_of(&self.path.join("lock"))
    }

    /// Waits for the lock that a process holds which starts a service.
    pub(crate) fn lock_start(&self) -> Result<Option<File>, HostError> {
        self.lock("start", FlockOperation::LockExclusive)
    }

    /// Waits for the lock that a process holds which makes the namespace of a view.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the lock cannot be used.
    pub fn lock_view(&self) -> Result<Option<File>, HostError> {
        self.lock("mount", FlockOperation::LockExclusive)
    }

    fn lock(&self, file: &str, operation: FlockOperation) -> Result<Option<File>, HostError> {
        let path = self.path.join(file);
        let fail = |e: io::Error| HostError::directory(&path, e.to_string());
        let file = open_private(&path, false).map_err(fail)?;
        match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation)) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(fail(e.into())),
        }
    }
}

/// Opens a file of ours for reading and writing, making it with mode 0600; follows no link.
pub(crate) fn open_private(path: &Path, append: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    if append {
        options.append(true);
    } else {
        options.write(true).truncate(false);
    }
    options.open(path)
}

/// Opens the log of a host's service, to write at its end.
pub(crate) fn open_log(dir: &HostDir) -> Result<File, HostError> {
    let path = dir.log();
    open_private(&path, true).map_err(|e| HostError::directory(&path, e.to_string()))
}

/// Where a user's directory may be that has a part for each network namespace, the best first.
fn usual_bases(xdg: Option<PathBuf>) -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let xdg = xdg.filter(|dir| is_mine(dir)).map(|dir| dir.join("rdmux"));
    let run = uid.is_root().then(|| "/run/rdmux".into());
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let tmp = format!("/tmp/rdmux-{}", outer_uid(&map, uid.as_raw()));
    xdg.into_iter().chain(run).chain([tmp.into()]).collect()
}

/// Whether this is a directory of this user's (and not of a user from whom this one was switched to).
fn is_mine(dir: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

/// The number that a user has outside of this user namespace, by its map (user_namespaces(7)): several users may be root,
/// each in a namespace of their own, and have one /tmp.
fn outer_uid(map: &str, uid: u32) -> u32 {
    let line = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let count = numbers.next()?.ok()?;
        let at = uid.checked_sub(inside).filter(|at| *at < count)?;
        outside.checked_add(at)
    };
    map.lines().find_map(line).unwrap_or(uid)
}

/// As [`make_private`], but a directory of root's does not do: others cannot make anything in it.
fn make_own(path: &Path) -> Result<(), HostError> {
    make_private(path, true)?;
    if is_mine(path) {
        return Ok(());
    }
    Err(HostError::directory(path, "it belongs to root".to_owned()))
}

/// Makes a directory that only this user may enter, or checks the one that is there.
fn make_private(path: &Path, parents: bool) -> Result<(), HostError> {
    let made = DirBuilder::new().mode(0o700).recursive(parents).create(path);
    if let Err(e) = made
        && e.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(HostError::directory(path, format!("cannot make it: {e}")));
    }
    let meta = fs::symlink_metadata(path)
        .map_err(|e| HostError::directory(path, format!("cannot look at it: {e}")))?;
    let uid = rustix::process::geteuid().as_raw();
    let why = if !meta.is_dir() {
        "it is not a directory".to_owned()
    } else if meta.uid() != uid && meta.uid() != 0 {
        format!("it belongs to user {}, not to you ({uid})", meta.uid())
    } else if meta.mode() & 0o022 != 0 {
        format!("others may write it (mode {:o})", meta.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(HostError::directory(path, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_testing::temp_dir;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_fresh_directory_is_private() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("a/b")).unwrap();
        let host = dir.host(&HostName::default()).unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(host.socket(), dir.path().join("hosts/default/sock"));
        assert_eq!(dir.hosts().unwrap(), [HostName::default()]);
    }

    #[test]
    fn a_link_a_file_and_a_writable_directory_are_refused() {
        let tmp = temp_dir();
        let real = tmp.path().join("real");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, tmp.path().join("link")).unwrap();
        fs::write(tmp.path().join("file"), "").unwrap();
        for bad in ["link", "file"] {
            let e = RuntimeDir::at(tmp.path().join(bad)).unwrap_err().to_string();
            assert!(e.contains("not a directory"), "{e}");
        }
        fs::set_permissions(&real, fs::Permissions::from_mode(0o777)).unwrap();
        let e = RuntimeDir::at(&real).unwrap_err().to_string();
        assert!(e.contains("others may write"), "{e}");
    }

    #[test]
    fn each_network_namespace_has_a_part_of_the_first_directory_that_is_ours() {
        let tmp = temp_dir();
        let (file, base) = (tmp.path().join("file"), tmp.path().join("base"));
        fs::write(&file, "").unwrap();
        let namespace = NetworkNamespace::current().unwrap();
        let dir = RuntimeDir::first_of(&[file.clone(), base.clone()], Some(namespace)).unwrap();
        let inode = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        assert_eq!(dir.path(), base.join(format!("netns-{inode}")));
        let unknown = RuntimeDir::first_of(&[file.clone(), base.clone()], None).unwrap();
        assert_eq!(unknown.path(), base);
        let e = RuntimeDir::first_of(&[file], Some(namespace)).unwrap_err().to_string();
        assert!(e.contains("not a directory"), "{e}");
    }

    #[test]
    fn root_of_a_user_namespace_is_told_from_root() {
        assert_eq!(outer_uid("         0          0 4294967295\n", 0), 0);
        assert_eq!(outer_uid("         0       1000          1\n", 0), 1000);
        assert_eq!(outer_uid("0 1000 1\n1 100000 65536\n", 10), 100_009);
        assert_eq!(outer_uid("0 1000 1\n", 7), 7, "who has no number outside");
        assert_eq!(outer_uid("", 5), 5, "without /proc");
    }

    #[test]
    fn one_service_at_a_time() {
        let tmp = temp_dir();
        let host =
            RuntimeDir::at(tmp.path().join("r")).unwrap().host(&HostName::default()).unwrap();
        let held = host.lock_service().unwrap();
        assert!(held.is_some());
        assert!(host.lock_service().unwrap().is_none());
        drop(held);
        assert!(host.lock_service().unwrap().is_some());
    }

    #[test]
    fn a_long_path_still_makes_a_socket_address() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("x".repeat(120))).unwrap();
        let (_, fd) = dir.host(&HostName::default()).unwrap().socket_address().unwrap();
        assert!(fd.is_some());
    }
}
