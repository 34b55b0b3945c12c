//! A mount namespace in which the tree of a view lies where programs look for it.
//!
//! [`build`] turns the namespaces of a process into those of a view; [`own`] has the descriptors that
//! the service then holds, which outlive the process; with them any process of the same user can
//! [`join`].
//!
//! What is mounted, in an unprivileged user namespace too (user_namespaces(7), mount_namespaces(7)):
//!
//! - each directory of the tree over the one at its path, where there is one already;
//! - where sysfs has no such class, before that an overlay of the tree and `/sys/class`, which makes
//!   the empty directories;
//! - where `/dev` has no `infiniband`, a tmpfs over `/dev` with the system's `/dev` in `.system`: its
//!   directories are mounted again under their names, so that terminals and shared memory have their
//!   usual paths, devices are links into `.system`, and links are copied;
//! - the file of names over `/etc/hosts`, if the machine has that;
//! - over `/run` the folder of the host's ACM service, with the system's `/run` in it in the same way as `/dev`; over `/etc/rdma`, if the machine
//!   has that, the folder of its configuration; over `/var/log/ibacm.log` its log, or if the machine has no such file, over `/var/log` a folder of
//!   the host's in which it is. Where that cannot be, programs see the machine's.
//!
//! Mounts that the system makes later still arrive. What appears in `/dev`, `/run` and such a `/var/log` themselves later does not; what a program
//! makes in `/run` or such a `/var/log` itself is in the host's folder.
//!
//! A machine without `/etc/rdma` gets none. There would have to be another `/etc`, and what programs replace there, such as the files of users, would
//! be lost with the view. The programs that look for `/etc/rdma` come in packages that make it.

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
    /// The user namespace: that of all views of the user and host.
    pub user: OwnedFd,
    /// The mount namespace.
    pub mounts: OwnedFd,
}

/// Turns the namespaces of this process, which must have one thread, into those of a view. A process that
/// may mount needs no user namespace and gets none; others go into `user`, if there is one of another view, else into that
/// which `shared` finds: processes of sibling user namespaces may not copy each other's memory.
///
/// # Errors
/// What the kernel refused. The process is of no use for anything else then.
pub fn build(
    tree: &Path,
    acm: &Places,
    user: Option<&OwnedFd>,
    shared: impl FnOnce() -> Option<OwnedFd>,
) -> Result<(), HostError> {
    isolate(user, shared).map_err(|e| refused("make a namespace", e))?;
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", propagation)
        .map_err(|e| refused("keep mounts to this namespace", e))?;
    cover_classes(tree)?;
    cover_dev(tree)?;
    cover_hosts(tree)?;
    acm::cover(tree, acm);
    Ok(())
}

/// Leaves the namespaces of the others.
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
    // Everybody keeps the own id; a process without privilege must give up setgroups(2) first.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

fn cover_classes(tree: &Path) -> Result<(), HostError> {
    let classes = || DIRECTORIES.iter().filter(|d| d.starts_with("/sys/"));
    if classes().any(|class| !Path::new(class).is_dir()) {
        // Relative to the tree: nothing in its path is taken for a separator.
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
    // Beside the tree, which holds nothing but what the service writes.
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
    make().map_err(|e| refused("make another /dev", e))?;
    bind(&ours, &stage.join("infiniband"))?;
    rustix::mount::mount_move(&stage, "/dev").map_err(|e| refused("put another /dev in place", e))
}

/// A file without which programs can do: there may be none to cover, and none to cover it with.
fn cover_hosts(tree: &Path) -> Result<(), HostError> {
    let (ours, real) = (within(tree, HOSTS), Path::new(HOSTS));
    if !ours.is_file() || !real.is_file() {
        return Ok(());
    }
    bind(&ours, real)
}

/// Where a directory of the system is in the tree.
fn within(tree: &Path, directory: &str) -> std::path::PathBuf {
    tree.join(directory.trim_start_matches('/'))
}

fn bind(from: &Path, to: &Path) -> Result<(), HostError> {
    rustix::mount::mount_bind(from, to).map_err(|e| refused(&format!("mount {}", to.display()), e))
}

/// The namespaces of this process.
///
/// # Errors
/// When `/proc` is not there.
pub fn own() -> Result<Namespaces, HostError> {
    let open = |name: &str| {
        let path = format!("/proc/self/ns/{name}");
        File::open(&path).map(OwnedFd::from).map_err(|e| HostError::io(format!("open {path}"), e))
    };
    Ok(Namespaces { user: open("user")?, mounts: open("mnt")? })
}

/// Whether this process has capabilities that it would not have in a view, for that is in another user namespace.
///
/// # Errors
/// When the kernel does not tell.
pub fn costs_capabilities(namespaces: &Namespaces) -> io::Result<bool> {
    let own = rustix::thread::capabilities(None)?.effective;
    Ok(!own.is_empty() && !is_in("user", &namespaces.user)?)
}

/// Why a process could not join a view.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The process is where it was.
    #[error(transparent)]
    Stayed(HostError),
    /// The process has moved, and is of no use for anything else: its root directory may be another one, and so may its
    /// working directory.
    #[error(transparent)]
    Moved(HostError),
}

/// Moves this process, which must have one thread, into the namespaces of a view. What it is in already is left as it is. It
/// keeps its working directory: the one at its path in the view, or if there is none that it can reach, that of the system.
///
/// # Errors
/// When the kernel refuses; when the process has another root directory than the view, which it cannot
/// take along.
pub fn join(namespaces: &Namespaces) -> Result<(), JoinError> {
    let mut moved = false;
    enter(namespaces, &mut moved)
        .map_err(|e| if moved { JoinError::Moved(e) } else { JoinError::Stayed(e) })
}

/// Joins, and says whether the process has moved, also where it fails.
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
    let root = identity().map_err(fail("look at /"))?;
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
    if identity().map_err(fail("look at /"))? != root {
        let why = io::Error::other("the root directory was changed with chroot");
        return Err(HostError::io("join a view", why));
    }
    if path.is_some_and(|path| std::env::set_current_dir(path).is_ok()) {
        return Ok(());
    }
    rustix::process::fchdir(&directory).map_err(|e| refused("go back to the working directory", e))
}

/// Whether this process is in a namespace already: entering one's own user namespace is refused.
fn is_in(name: &str, fd: &OwnedFd) -> io::Result<bool> {
    let own = fs::metadata(format!("/proc/self/ns/{name}"))?;
    let other = rustix::fs::fstat(fd)?;
    Ok((own.dev(), own.ino()) == (other.st_dev, other.st_ino))
}

fn refused(what: &str, e: impl Into<io::Error>) -> HostError {
    HostError::io(what, e)
}
