//! The location of a user's services in the file system.
//!
//! A user's directory belongs to one network namespace: the default directory has a part for each.
//!
//! The directory may be under `/tmp`, where another user may have created it first: it is used only if it is a
//! directory, not a symbolic link to one, belongs to this user (or root), and is not writable by other users.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::{DirectoryError, Lock, NetworkNamespace, ServiceDir, environment};

/// A user's runtime directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserDir(PathBuf);

impl UserDir {
    /// Returns the directory of this user and network namespace, and creates it if it does not exist.
    ///
    /// It is `$RDMUX_RUNTIME_DIR` itself if that is set, unless the process runs as another user than the one that started it (as a
    /// set-user-ID program does). Otherwise it is `netns-INODE` in the first of
    /// `$XDG_RUNTIME_DIR/rdmux`, `/run/rdmux` for root, and `/tmp/rdmux-UID` that belongs to this user, or can
    /// be created. For root in a user namespace of an unprivileged user the former two may belong to others.
    ///
    /// # Errors
    /// [`DirectoryError`] when it cannot be created or is not safe to use.
    pub fn of_environment() -> Result<Self, DirectoryError> {
        match environment::folder_of_user("RDMUX_RUNTIME_DIR") {
            Some(path) => Self::at(path),
            None => Self::usual(),
        }
    }

    /// Returns the default location of this user's services.
    fn usual() -> Result<Self, DirectoryError> {
        let xdg = environment::folder_of_user("XDG_RUNTIME_DIR");
        Self::first_of(&usual_bases(xdg), NetworkNamespace::current())
    }

    /// Returns the part for a network namespace in the first directory that can be used.
    fn first_of(
        bases: &[PathBuf],
        namespace: Option<NetworkNamespace>,
    ) -> Result<Self, DirectoryError> {
        let mut tried = bases.iter().map(|base| {
            make_own(base)?;
            // Where namespaces cannot be distinguished, as without /proc, there is only one.
            let Some(namespace) = namespace else { return Ok(Self(base.clone())) };
            let path = base.join(namespace.directory());
            make_own(&path)?;
            Ok(Self(path))
        });
        let mut last = Err(DirectoryError::new(Path::new("/tmp"), "no directory for this user"));
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

    /// Returns whether this is the default location of the user's services.
    pub fn is_usual(&self) -> bool {
        Self::usual().is_ok_and(|usual| usual == *self)
    }

    /// Returns a directory of the caller's choice, and creates it if it does not exist.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, DirectoryError> {
        let path = path.into();
        // Other processes get the path through the environment, and may have another working directory.
        let path = std::path::absolute(&path).map_err(|e| DirectoryError::new(&path, e))?;
        make_private(&path, true)?;
        Ok(Self(path))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the folder of a kind of services, such as `hosts`; it may not exist.
    pub fn folder(&self, kind: &str) -> PathBuf {
        self.0.join(kind)
    }

    /// Returns the directory of a service in the folder of its kind, and creates it if it does not
    /// exist. The name is a [label](crate::name::is_label), which the caller has checked.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn service(&self, kind: &str, name: &str) -> Result<ServiceDir, DirectoryError> {
        let folder = self.folder(kind);
        make_private(&folder, false)?;
        let path = folder.join(name);
        make_private(&path, false)?;
        Ok(ServiceDir::new(path))
    }

    /// Returns the names in the folder of a kind, sorted; none if there is no folder.
    ///
    /// # Errors
    /// [`DirectoryError`] when the folder cannot be read.
    pub fn names(&self, kind: &str) -> Result<Vec<String>, DirectoryError> {
        let path = self.folder(kind);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(DirectoryError::new(&path, e)),
        };
        let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
        let labels = entries.flatten().filter_map(name).filter(|n| crate::name::is_label(n));
        let mut names: Vec<_> = labels.collect();
        names.sort();
        Ok(names)
    }

    /// Waits for the lock on the folder of a kind.
    ///
    /// # Errors
    /// [`DirectoryError`] when the folder does not exist or cannot be locked.
    pub fn lock_folder(&self, kind: &str) -> Result<Lock, DirectoryError> {
        let path = self.folder(kind);
        File::open(&path).and_then(Lock::wait).map_err(|e| DirectoryError::new(&path, e))
    }

    /// Lets other users connect to the socket of a service in this directory. The service checks
    /// each client. Other users find it if their `RDMUX_RUNTIME_DIR` names this directory.
    ///
    /// # Errors
    /// [`DirectoryError`] for a path whose permissions cannot be changed.
    pub fn open_to_others(&self, service: &ServiceDir) -> Result<(), DirectoryError> {
        let socket = service.socket();
        let folder = service.path().parent().unwrap_or(service.path());
        let base = self.0.parent().filter(|_| is_part(&self.0));
        let passed = base.into_iter().chain([&*self.0, folder, service.path()]);
        for (path, mode) in passed.map(|path| (path, 0o711)).chain([(&*socket, 0o666)]) {
            let opened = fs::set_permissions(path, fs::Permissions::from_mode(mode));
            opened.map_err(|e| DirectoryError::new(path, e))?;
        }
        Ok(())
    }

    /// Returns the directories of this user's other network namespaces, if this is the part for one.
    pub fn other_namespaces(&self) -> Vec<Self> {
        let Some(base) = self.0.parent().filter(|_| is_part(&self.0)) else { return Vec::new() };
        let entries = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| *path != self.0 && is_part(path) && is_mine(path)).map(Self).collect()
    }
}

/// Returns the possible locations of a user's directory with a part for each network namespace, best first.
fn usual_bases(xdg: Option<PathBuf>) -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let xdg = xdg.filter(|dir| is_mine(dir)).map(|dir| dir.join("rdmux"));
    let run = uid.is_root().then(|| "/run/rdmux".into());
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let tmp = format!("/tmp/rdmux-{}", outer_uid(&map, uid.as_raw()));
    xdg.into_iter().chain(run).chain([tmp.into()]).collect()
}

/// Returns whether a path is named like the part for a network namespace in one of the [`usual_bases`]. Any
/// other directory that `RDMUX_RUNTIME_DIR` names is in a directory that does not belong to rdmux.
fn is_part(path: &Path) -> bool {
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let is_base = |base: String| base == "rdmux" || base.starts_with("rdmux-");
    let inode =
        name(path).and_then(|n| n.strip_prefix(NetworkNamespace::DIRECTORY)?.parse::<u64>().ok());
    inode.is_some() && path.parent().and_then(name).is_some_and(is_base)
}

/// Returns whether a directory belongs to this user (and not to a user from which this one was switched to).
fn is_mine(dir: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

/// Returns the number that a user has outside of this user namespace, by its map (user_namespaces(7)):
/// several users may be root, each in a namespace of their own, and share one /tmp.
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

/// Like [`make_private`], but rejects a directory of root's, in which others cannot create anything.
fn make_own(path: &Path) -> Result<(), DirectoryError> {
    make_private(path, true)?;
    if is_mine(path) {
        return Ok(());
    }
    Err(DirectoryError::new(path, "it belongs to root"))
}

/// Creates a directory that only this user may enter, or checks an existing one.
fn make_private(path: &Path, parents: bool) -> Result<(), DirectoryError> {
    let made = DirBuilder::new().mode(0o700).recursive(parents).create(path);
    if let Err(e) = made
        && e.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(DirectoryError::new(path, format!("cannot create it: {e}")));
    }
    let meta = fs::symlink_metadata(path)
        .map_err(|e| DirectoryError::new(path, format!("cannot inspect it: {e}")))?;
    let uid = rustix::process::geteuid().as_raw();
    let why = if !meta.is_dir() {
        "it is not a directory".to_owned()
    } else if meta.uid() != uid && meta.uid() != 0 {
        format!("it belongs to user {}, not to you ({uid})", meta.uid())
    } else if meta.mode() & 0o022 != 0 {
        format!("others can write to it (mode {:o})", meta.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(DirectoryError::new(path, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_testing::temp_dir;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn new_user_dir_has_mode_0700() {
        let tmp = temp_dir();
        let dir = UserDir::at(tmp.path().join("a/b")).unwrap();
        let service = dir.service("hosts", "a").unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(service.socket(), dir.path().join("hosts/a/sock"));
        assert_eq!(dir.names("hosts").unwrap(), ["a"]);
        assert_eq!(dir.names("fabrics").unwrap(), [""; 0]);
    }

    #[test]
    fn a_link_a_file_and_a_writable_directory_are_refused() {
        let tmp = temp_dir();
        let real = tmp.path().join("real");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, tmp.path().join("link")).unwrap();
        fs::write(tmp.path().join("file"), "").unwrap();
        for bad in ["link", "file"] {
            let e = UserDir::at(tmp.path().join(bad)).unwrap_err().to_string();
            assert!(e.contains("not a directory"), "{e}");
        }
        fs::set_permissions(&real, fs::Permissions::from_mode(0o777)).unwrap();
        let e = UserDir::at(&real).unwrap_err().to_string();
        assert!(e.contains("others can write"), "{e}");
    }

    #[test]
    fn user_dir_is_a_netns_subdirectory_of_the_first_usable_base() {
        let tmp = temp_dir();
        let (file, base) = (tmp.path().join("file"), tmp.path().join("base"));
        fs::write(&file, "").unwrap();
        let namespace = NetworkNamespace::current().unwrap();
        let dir = UserDir::first_of(&[file.clone(), base.clone()], Some(namespace)).unwrap();
        let inode = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        assert_eq!(dir.path(), base.join(format!("netns-{inode}")));
        let unknown = UserDir::first_of(&[file.clone(), base.clone()], None).unwrap();
        assert_eq!(unknown.path(), base);
        let e = UserDir::first_of(&[file], Some(namespace)).unwrap_err().to_string();
        assert!(e.contains("not a directory"), "{e}");
    }

    #[test]
    fn open_to_others_changes_the_mode_of_rdmuxs_own_base_only() {
        let tmp = temp_dir();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        for (name, opened) in
            [("rdmux/netns-7", 0o711), ("rdmux/netns-blue", 0o700), ("x/netns-7", 0o700)]
        {
            let dir = UserDir::at(tmp.path().join(name)).unwrap();
            let base = dir.path().parent().unwrap().to_owned();
            fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
            let service = dir.service("hosts", "a").unwrap();
            fs::write(service.socket(), "").unwrap();
            dir.open_to_others(&service).unwrap();
            assert_eq!((mode(&base), mode(dir.path())), (opened, 0o711), "{name}");
        }
    }

    #[test]
    fn uid_map_translates_user_namespace_root_to_its_outer_uid() {
        assert_eq!(outer_uid("         0          0 4294967295\n", 0), 0);
        assert_eq!(outer_uid("         0       1000          1\n", 0), 1000);
        assert_eq!(outer_uid("0 1000 1\n1 100000 65536\n", 10), 100_009);
        assert_eq!(outer_uid("0 1000 1\n", 7), 7, "who has no number outside");
        assert_eq!(outer_uid("", 5), 5, "without /proc");
    }
}
