//! A mount namespace in which the tree of a view is mounted where programs look for it.
//!
//! [`build`] turns the namespaces of a process into those of a view. [`own`] returns their descriptors, which the
//! service then holds and which outlive the process. With them any process of the same user can [`join`].
//!
//! The mounts, which an unprivileged user namespace allows, too (user_namespaces(7), mount_namespaces(7)):
//!
//! - each directory of the tree over the one at its path, if that exists;
//! - if sysfs has no such class, before that an overlay of the tree and `/sys/class`, which makes the empty directories;
//! - if `/dev` has no `infiniband`, a tmpfs over `/dev` with the machine's `/dev` in `.system`: its directories are mounted again under
//!   their names, so that terminals and shared memory have their usual paths, devices are links into `.system`, and links are copied;
//! - the file of names over `/etc/hosts`, if the machine has that;
//! - over `/run` the folder of the host's ACM service, with the machine's `/run` in it in the same way as `/dev`; over `/etc/rdma`, if the
//!   machine has that, the folder of its configuration; over `/var/log/ibacm.log` its log or, if the machine has no such file, over
//!   `/var/log` a folder of the host that has it. If that fails, programs see the machine's.
//!
//! Mounts that are made later on the machine still propagate. Later entries of `/dev`, `/run` and such a `/var/log` themselves do not
//! appear. Files that a program creates in `/run` or such a `/var/log` itself are in the host's folder.
//!
//! A machine without `/etc/rdma` gets none. That would need another `/etc`, and files that programs replace in it, such as those of users,
//! would be lost with the view. Programs that look for `/etc/rdma` are in packages that create it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rdmux_acm_client::Places;
use rdmux_link::namespace::{Leave, leave};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{DIRECTORIES, HOSTS, acm};
use crate::error::HostError;

/// The namespaces of a view.
#[derive(Debug)]
pub struct Namespaces {
    /// The user namespace, shared by all views of the user.
    pub user: OwnedFd,
    /// The mount namespace.
    pub mounts: OwnedFd,
}

/// Turns the namespaces of this process, which must have one thread, into those of a view. A process that may mount needs
/// no user namespace and gets none. Others enter `user`, that of another view, if given, else the one that `shared`
/// finds: processes of sibling user namespaces may not copy each other's memory.
///
/// # Errors
/// The kernel's error. The process must not be used for anything else then.
pub fn build(
    tree: &Path,
    acm: &Places,
    user: Option<&OwnedFd>,
    shared: impl FnOnce() -> Option<OwnedFd>,
) -> Result<(), HostError> {
    isolate(user, shared).map_err(|e| refused("create a namespace", e))?;
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", propagation)
        .map_err(|e| refused("keep mounts within the namespace", e))?;
    cover_classes(tree)?;
    cover_dev(tree)?;
    cover_hosts(tree)?;
    acm::cover(tree, acm);
    Ok(())
}

/// Leaves the namespaces of other processes.
fn isolate(user: Option<&OwnedFd>, shared: impl FnOnce() -> Option<OwnedFd>) -> io::Result<()> {
    if let Some(user) = user
        && !is_in("user", user)?
    {
        move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
        return leave(Leave::Mounts);
    }
    match leave(Leave::Mounts) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
        other => return other,
    }
    if let Some(user) = shared()
        && move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User)).is_ok()
    {
        return leave(Leave::Mounts);
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    leave(Leave::UserAndMounts)?;
    // The user keeps its id; a process without privilege must give up setgroups(2) first.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

fn cover_classes(tree: &Path) -> Result<(), HostError> {
    let classes = || DIRECTORIES.iter().filter(|d| d.starts_with("/sys/"));
    if classes().any(|class| !Path::new(class).is_dir()) {
        // Relative to the tree, so that nothing in its path is taken for a separator.
        std::env::set_current_dir(tree).map_err(|e| refused("enter the tree", e))?;
        let lower = c"lowerdir=sys/class:/sys/class";
        rustix::mount::mount("rdmux", "/sys/class", "overlay", MountFlags::empty(), lower)
            .map_err(|e| refused("mount an overlay on /sys/class", e))?;
    }
    classes().try_for_each(|class| bind(&within(tree, class), Path::new(class)))
}

fn cover_dev(tree: &Path) -> Result<(), HostError> {
    let real = Path::new("/dev/infiniband");
    let ours = within(tree, "/dev/infiniband");
    if real.is_dir() {
        return bind(&ours, real);
    }
    // Beside the tree, which holds only what the service writes.
    let stage = tree.with_file_name("stage");
    let make = || -> io::Result<()> {
        fs::create_dir_all(&stage)?;
        let options = c"mode=0755,size=1m";
        rustix::mount::mount("rdmux", &stage, "tmpfs", MountFlags::NOSUID, options)?;
        let system = stage.join(".system");
        fs::create_dir(&system)?;
        rustix::mount::mount_bind_recursive("/dev", &system)?;
        for entry in fs::read_dir("/dev")? {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let here = stage.join(&name);
            if kind.is_dir() {
                fs::create_dir(&here)?;
                rustix::mount::mount_bind_recursive(entry.path(), &here)?;
            } else if kind.is_symlink() {
                symlink(fs::read_link(entry.path())?, &here)?;
            } else {
                symlink(Path::new(".system").join(&name), &here)?;
            }
        }
        fs::create_dir(stage.join("infiniband"))
    };
    make().map_err(|e| refused("set up a private /dev", e))?;
    bind(&ours, &stage.join("infiniband"))?;
    rustix::mount::mount_move(&stage, "/dev").map_err(|e| refused("mount the private /dev", e))
}

/// Mounts the file of names over `/etc/hosts`. Either file may be missing, as programs do not require it.
fn cover_hosts(tree: &Path) -> Result<(), HostError> {
    let (ours, real) = (within(tree, HOSTS), Path::new(HOSTS));
    if !ours.is_file() || !real.is_file() {
        return Ok(());
    }
    bind(&ours, real)
}

/// Returns the path in the tree of a directory of the machine.
fn within(tree: &Path, directory: &str) -> std::path::PathBuf {
    tree.join(directory.trim_start_matches('/'))
}

fn bind(from: &Path, to: &Path) -> Result<(), HostError> {
    rustix::mount::mount_bind(from, to).map_err(|e| refused(&format!("mount {}", to.display()), e))
}

/// Returns the namespaces of this process.
///
/// # Errors
/// When `/proc` is not available.
pub fn own() -> Result<Namespaces, HostError> {
    let open = |name: &str| {
        let path = format!("/proc/self/ns/{name}");
        File::open(&path).map(OwnedFd::from).map_err(|e| HostError::io(format!("open {path}"), e))
    };
    Ok(Namespaces { user: open("user")?, mounts: open("mnt")? })
}

/// Returns whether this process has capabilities that it would lose in a view, because that is in another user
/// namespace.
///
/// # Errors
/// When the kernel does not report the process's capabilities.
pub fn costs_capabilities(namespaces: &Namespaces) -> io::Result<bool> {
    let own = rustix::thread::capabilities(None)?.effective;
    Ok(!own.is_empty() && !is_in("user", &namespaces.user)?)
}

/// The reason why a process could not join a view.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The process has not moved.
    #[error(transparent)]
    Stayed(HostError),
    /// The process has moved, and must not be used for anything else: its root and working directories may have
    /// changed.
    #[error(transparent)]
    Moved(HostError),
}

/// Moves this process, which must have one thread, into the namespaces of a view. Those that it is in already are skipped.
/// It keeps its working directory: the one at its path in the view or, if it cannot reach that, the machine's.
///
/// # Errors
/// When the kernel refuses; when the process has another root directory than the view, which it would lose.
pub fn join(namespaces: &Namespaces) -> Result<(), JoinError> {
    let mut moved = false;
    enter(namespaces, &mut moved)
        .map_err(|e| if moved { JoinError::Moved(e) } else { JoinError::Stayed(e) })
}

/// Joins the namespaces. Sets `moved` once the process has moved, even if it then fails.
fn enter(namespaces: &Namespaces, moved: &mut bool) -> Result<(), HostError> {
    let fail = |what: &str| {
        let what = what.to_owned();
        move |e: io::Error| HostError::io(what, e)
    };
    // None if the directory was removed, or is not below the root.
    let path = std::env::current_dir().ok();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(".", flags, Mode::empty())
        .map_err(|e| refused("open the working directory", e))?;
    let identity = || fs::metadata("/").map(|m| (m.dev(), m.ino()));
    let root = identity().map_err(fail("inspect /"))?;
    let Namespaces { user, mounts } = namespaces;
    for (name, kind, fd) in
        [("user", LinkNameSpaceType::User, user), ("mnt", LinkNameSpaceType::Mount, mounts)]
    {
        let what = format!("join the view's {name} namespace");
        if is_in(name, fd).map_err(fail(&what))? {
            continue;
        }
        move_into_link_name_space(fd.as_fd(), Some(kind)).map_err(|e| fail(&what)(e.into()))?;
        *moved = true;
    }
    if !*moved {
        return Ok(());
    }
    if identity().map_err(fail("inspect /"))? != root {
        let why = io::Error::other("the root directory was changed with chroot");
        return Err(HostError::io("join a view", why));
    }
    if path.is_some_and(|path| std::env::set_current_dir(path).is_ok()) {
        return Ok(());
    }
    rustix::process::fchdir(&directory).map_err(|e| refused("return to the working directory", e))
}

/// Returns whether this process is in a namespace already: entering one's own user namespace is refused.
fn is_in(name: &str, fd: &OwnedFd) -> io::Result<bool> {
    let own = fs::metadata(format!("/proc/self/ns/{name}"))?;
    let other = rustix::fs::fstat(fd)?;
    Ok((own.dev(), own.ino()) == (other.st_dev, other.st_ino))
}

fn refused(what: &str, e: impl Into<io::Error>) -> HostError {
    HostError::io(what, e)
}
