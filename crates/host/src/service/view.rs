//! The files and namespaces that the service keeps for programs that look for the device in the file system.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdmux_cm::Time;
use rdmux_runtime::closing::Foreign;
use rdmux_verbs::kind::PerKind;
use rdmux_verbs::throttled;

use super::clients::ClientId;
use super::core::Core;
use super::requests::failure;
use crate::names::DeviceChoice;
use crate::proto::{DeviceRow, Failure, Reply, Response};
use crate::view::tree::{self, Facts};

/// The greatest age of the counters in the tree.
const REFRESH: Duration = Duration::from_secs(1);

/// The requested trees, and the namespaces in which they are mounted.
#[derive(Debug, Default)]
pub(super) struct Views {
    trees: BTreeMap<DeviceChoice, Tree>,
    /// Time at which to check whether the counters changed, or none while no client is connected.
    due: Option<Time>,
    /// The namespaces by user. Open descriptors keep them alive without a process.
    namespaces: BTreeMap<u32, UserViews>,
}

/// A tree of files.
#[derive(Debug)]
struct Tree {
    root: PathBuf,
    shown: Shown,
}

/// The contents of a tree when it was last written: all devices and their counters.
type Shown = (Vec<DeviceRow>, PerKind<Vec<(String, u64)>>);

/// The namespaces of a user's views.
#[derive(Debug)]
struct UserViews {
    user: OwnedFd,
    mounts: BTreeMap<DeviceChoice, OwnedFd>,
}

impl Views {
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due
    }
}

impl Core {
    /// Writes the tree of these devices. The reply has the namespaces of the caller's user, if any.
    pub(super) fn tell_view(
        &mut self,
        id: ClientId,
        devices: DeviceChoice,
    ) -> Result<(Response, Vec<OwnedFd>), Failure> {
        let dir = self.options.dir.host(&self.options.host);
        let root = dir.map_err(|e| Failure::new(e.errno(), e.to_string()))?.view(devices);
        let now = self.current_view();
        self.write_view(devices, &root, &now).map_err(|e| failure(&e))?;
        self.views.trees.insert(devices, Tree { root, shown: now });
        self.watch_view();
        self.watch_managers();
        let uid = self.clients.get(id).map(|c| c.uid);
        let held = uid.and_then(|uid| self.views.namespaces.get(&uid));
        let user = held.map(|held| &held.user);
        let mounts = held.and_then(|held| held.mounts.get(&devices));
        let duplicate = |fd: &OwnedFd| fd.as_fd().try_clone_to_owned().map_err(|e| failure(&e));
        let fds = user.into_iter().chain(mounts).map(duplicate).collect::<Result<_, _>>()?;
        Ok((Response::Done, fds))
    }

    /// Returns the user namespace of the caller's user.
    pub(super) fn tell_user_namespace(
        &self,
        id: ClientId,
    ) -> Result<(Response, Vec<OwnedFd>), Failure> {
        let uid = self.clients.get(id).map(|c| c.uid);
        let held = uid.and_then(|uid| self.views.namespaces.get(&uid));
        let user = held.map(|held| held.user.try_clone().map_err(|e| failure(&e))).transpose()?;
        Ok((Response::Done, user.into_iter().collect()))
    }

    /// Takes the namespaces that the caller made for its user.
    pub(super) fn hold_view(
        &mut self,
        id: ClientId,
        devices: DeviceChoice,
        fds: Vec<Foreign>,
    ) -> Reply {
        let namespaces = <[Foreign; 2]>::try_from(fds).ok().and_then(|[user, mounts]| {
            Some((user.into_namespace("user")?, mounts.into_namespace("mnt")?))
        });
        let Some((user, mounts)) = namespaces else {
            return Err(Failure::new(libc::EINVAL, "not a user and a mount namespace"));
        };
        let Some(uid) = self.clients.get(id).map(|client| client.uid) else {
            return Ok(Response::Done);
        };
        match self.views.namespaces.get_mut(&uid) {
            Some(held) if is_same_file(&held.user, &user).map_err(|e| failure(&e))? => {
                held.mounts.insert(devices, mounts);
            }
            // Processes in sibling user namespaces could not access each other's memory.
            _ => {
                let held = UserViews { user, mounts: BTreeMap::from([(devices, mounts)]) };
                self.views.namespaces.insert(uid, held);
            }
        }
        Ok(Response::Done)
    }

    /// Schedules an update of the trees, if any, because a client may have counted.
    pub(super) fn watch_view(&mut self) {
        if self.views.trees.is_empty() {
            self.views.due = None;
        } else if !self.is_alone() && self.views.due.is_none() {
            // A later client does not delay it.
            self.views.due = Some(self.now().after(REFRESH));
        }
    }

    /// Updates the trees if that is due, and requests counters that change by themselves. Does so once more after the last process is gone,
    /// so that its counts are shown.
    pub(super) fn poll_view(&mut self) {
        let now = self.now();
        if self.views.due.take_if(|due| *due <= now).is_some() {
            self.ask_for_counters();
            self.refresh_view();
        }
    }

    /// Updates the requested trees.
    pub(super) fn refresh_view(&mut self) {
        self.watch_view();
        let now = self.current_view();
        let mut trees = std::mem::take(&mut self.views.trees);
        let mut is_new = false;
        for (&devices, tree) in trees.iter_mut().filter(|(_, tree)| tree.shown != now) {
            match self.write_view(devices, &tree.root, &now) {
                Ok(()) => {
                    is_new |= tree.shown.0 != now.0;
                    tree.shown = now.clone();
                }
                Err(e) => {
                    throttled!(warn, "cannot update the files for programs that read /sys: {e}");
                }
            }
        }
        self.views.trees = trees;
        if is_new {
            self.watch_managers();
        }
    }

    fn current_view(&self) -> Shown {
        (self.devices(), PerKind::new(|kind| self.clients.counters_of(kind)))
    }

    fn write_view(&self, choice: DeviceChoice, root: &Path, shown: &Shown) -> io::Result<()> {
        let (devices, counters) = shown;
        let seen = |device: &&DeviceRow| choice.sees(device);
        let etc_hosts = self.options.dir.etc_hosts();
        let dir = self.options.dir.host(&self.options.host).map_err(io::Error::other)?;
        let issm = |port| dir.issm(port);
        let acm = dir.acm();
        let facts = Facts {
            acm: &acm,
            etc_hosts: &etc_hosts,
            issm: &issm,
            host: self.options.host.as_str(),
            devices: devices.iter().filter(seen).collect(),
            counters,
        };
        tree::write(root, &facts)
    }
}

/// Returns whether two descriptors refer to the same file, as those of one namespace do.
fn is_same_file(a: &OwnedFd, b: &OwnedFd) -> io::Result<bool> {
    let identity = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    Ok(identity(a)? == identity(b)?)
}
