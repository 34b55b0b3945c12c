//! Detects at once that a fabric comes up: inotify(7) reports when its socket, or a directory on its path, appears.
//!
//! If that is not available, for example because the user has no inotify instance left, the fabric is found at the next
//! periodic attempt.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rdmux_fabric::{FabricDir, FabricName};
use rdmux_runtime::UserDir;
use rdmux_verbs::throttled;
use rustix::fs::inotify;
use rustix::io::Errno;

use super::adapters::PortAt;
use crate::service::core::Core;
use crate::service::poller::{Interest, Token};

/// Events that are read before other sources get their turn.
const MAX_EVENTS: usize = 64;

/// A watch of the path to a fabric's socket. Its descriptor is readable after a change.
#[derive(Debug)]
pub(super) struct Lookout {
    inotify: OwnedFd,
    /// Directories, each with the entry that must appear in it.
    way: [(PathBuf, String); 3],
}

impl Lookout {
    /// Makes an instance without watches.
    ///
    /// # Errors
    /// Those of inotify_init1(2).
    fn new(user: &UserDir, fabric: &FabricName) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let way = FabricDir::path_to_socket(user, fabric);
        Ok(Self { inotify: inotify::init(flags)?, way })
    }

    /// Watches the directories that exist.
    ///
    /// # Errors
    /// Those of inotify_add_watch(2).
    fn watch(&self) -> io::Result<()> {
        let flags = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ONLYDIR;
        for (dir, _) in &self.way {
            // A directory that is watched already stays watched.
            match inotify::add_watch(&self.inotify, dir, flags) {
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Returns whether a part of the path has appeared, among the events that one call reads.
    fn take(&self) -> bool {
        let mut buf = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.inotify, &mut buf);
        let mut appeared = false;
        // Further events wake the service again.
        for _ in 0..MAX_EVENTS {
            let Ok(event) = events.next() else { break };
            let name = event.file_name().map(|name| name.to_bytes());
            appeared |= self.way.iter().any(|(_, entry)| name == Some(entry.as_bytes()));
        }
        appeared
    }
}

impl AsFd for Lookout {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Core {
    /// Starts to watch for a fabric to come up. The caller must look for the fabric after this, so that it is not
    /// missed.
    pub(super) fn watch_for_fabric(&mut self, at: PortAt) {
        if self.adapter[at].lookout.is_none() {
            let user = self.options.dir.user_dir();
            let lookout = Lookout::new(user, self.adapter[at].fabric()).and_then(|lookout| {
                self.poller.add(&lookout, Token::Lookout(at.number()), Interest::Read)?;
                Ok(lookout)
            });
            match lookout {
                Ok(lookout) => self.adapter[at].lookout = Some(lookout),
                Err(e) => throttled!(debug, "cannot watch for a fabric to come up: {e}"),
            }
        }
        if let Some(Err(e)) = self.adapter[at].lookout.as_ref().map(Lookout::watch) {
            throttled!(debug, "cannot watch for a fabric to come up: {e}");
        }
    }

    /// Ends the watch after the fabric was found.
    pub(super) fn end_lookout(&mut self, at: PortAt) {
        if let Some(lookout) = self.adapter[at].lookout.take() {
            self.poller.remove(&lookout);
        }
    }

    /// Handles a change on the path to the fabric's socket.
    pub(in crate::service) fn lookout_event(&mut self, at: PortAt) {
        if self.adapter[at].lookout.as_ref().is_some_and(Lookout::take) {
            self.look_for_new_fabric(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::Listener;
    use rdmux_testing::temp_dir;

    use super::*;

    #[test]
    fn lookout_reports_only_creations_on_the_path_to_the_fabric_socket() {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let name = FabricName::default();
        let lookout = Lookout::new(&user, &name).unwrap();
        lookout.watch().unwrap();
        std::fs::create_dir(user.folder("hosts")).unwrap();
        assert!(!lookout.take());
        // One directory after the other, each after its parent is watched.
        let folder = user.folder("fabrics");
        for dir in [folder.clone(), folder.join(name.as_str())] {
            std::fs::create_dir(&dir).unwrap();
            assert!(lookout.take(), "{}", dir.display());
            lookout.watch().unwrap();
            std::fs::write(dir.join("other"), "").unwrap();
            assert!(!lookout.take(), "{}", dir.display());
        }
        let dir = FabricDir::open(&user, &name).unwrap();
        let listen = || Listener::open(&dir, dir.lock_service().unwrap().unwrap()).unwrap();
        drop(listen());
        assert!(lookout.take() && !lookout.take());
        let _again = listen();
        assert!(lookout.take(), "it is watched as long as the lookout lives");
    }

    #[test]
    fn lookout_reports_fabric_directories_and_socket_created_together() {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let lookout = Lookout::new(&user, &FabricName::default()).unwrap();
        lookout.watch().unwrap();
        let dir = FabricDir::open(&user, &FabricName::default()).unwrap();
        let lock = dir.lock_service().unwrap().unwrap();
        let _listener = Listener::open(&dir, lock).unwrap();
        assert!(lookout.take());
    }
}
