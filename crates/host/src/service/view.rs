//! What the service keeps for programs that look for the device in the file system.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rdmux_cm::Time;
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::throttled;
use rdmux_wire::Pkey;

use super::clients::ClientId;
use super::core::Core;
use super::requests::failure;
use crate::proto::{Failure, GidRow, Reply, Response};
use crate::view::tree::{self, Facts};

/// How old the counters in the tree may be.
const REFRESH: Duration = Duration::from_secs(1);

/// The tree, once somebody wanted it, and the namespaces in which it is in place.
#[derive(Debug, Default)]
pub(super) struct Views {
    root: Option<PathBuf>,
    /// When to look whether the counters changed; never while nobody is here.
    due: Option<Time>,
    shown: Shown,
    /// User and mount namespace, by user. Open descriptors keep them alive without a process.
    namespaces: BTreeMap<u32, [OwnedFd; 2]>,
}

/// What the tree told last: the GID table and the counters.
type Shown = (Vec<GidRow>, [Vec<(String, u64)>; DeviceKind::ALL.len()]);

impl Views {
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due
    }
}

impl Core {
    /// Writes the tree. The namespaces of the caller's user come along if there are any.
    pub(super) fn tell_view(&mut self, id: ClientId) -> Result<(Response, Vec<OwnedFd>), Failure> {
        if self.views.root.is_none() {
            let dir = self.options.dir.host(&self.options.host);
            self.views.root = Some(dir.map_err(|e| Failure::new(e.errno(), e.to_string()))?.view());
        }
        let now = self.current_view();
        self.write_view(now).map_err(|e| failure(&e))?;
        self.watch_view();
        let uid = self.clients.get(id).map(|c| c.uid);
        let held = uid.and_then(|uid| self.views.namespaces.get(&uid));
        let duplicate = |fd: &OwnedFd| fd.as_fd().try_clone_to_owned().map_err(|e| failure(&e));
        let fds = held.into_iter().flatten().map(duplicate).collect::<Result<_, _>>()?;
        Ok((Response::Done, fds))
    }

    /// Takes the namespaces that the caller made for its user.
    pub(super) fn hold_view(&mut self, id: ClientId, fds: Vec<OwnedFd>) -> Reply {
        let Ok(pair) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(Failure::new(libc::EINVAL, "not a user and a mount namespace"));
        };
        if let Some(client) = self.clients.get(id) {
            self.views.namespaces.insert(client.uid, pair);
        }
        Ok(Response::Done)
    }

    /// Sees to it that the tree is looked at again, if there is one: somebody came, who may count.
    pub(super) fn watch_view(&mut self) {
        let wanted = self.views.root.is_some() && !self.is_alone();
        self.views.due = wanted.then(|| self.now().after(REFRESH));
    }

    /// Brings the tree up to date, if anybody wanted it.
    pub(super) fn refresh_view(&mut self) {
        self.watch_view();
        let now = self.current_view();
        if now == self.views.shown {
            return;
        }
        if let Err(e) = self.write_view(now) {
            throttled!(warn, "the files for programs that look at /sys are out of date: {e}");
        }
    }

    fn current_view(&self) -> Shown {
        (self.gid_rows(), DeviceKind::ALL.map(|kind| self.clients.counters_of(kind)))
    }

    fn write_view(&mut self, (gids, counters): Shown) -> std::io::Result<()> {
        let Some(root) = &self.views.root else { return Ok(()) };
        let facts = Facts {
            host: self.options.host.as_str(),
            devices: &self.devices(),
            gids: &gids,
            pkeys: &[Pkey::DEFAULT],
            counters: &counters,
        };
        tree::write(root, &facts)?;
        self.views.shown = (gids, counters);
        Ok(())
    }
}
