//! A fabric that comes up is found at once: inotify(7) tells when its socket appears, or a directory on the way to it.
//!
//! Where that cannot be had, as when the user has no inotify instance left, the fabric is found when it is looked for again.

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

/// Events that are taken before others have their turn.
const MAX_EVENTS: usize = 64;

/// Watches the way to a fabric's socket. The descriptor is readable when something has happened there.
#[derive(Debug)]
pub(super) struct Lookout {
    inotify: OwnedFd,
    /// Directories, each with what has to appear in it.
    way: [(PathBuf, String); 3],
}

impl Lookout {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// Those of inotify_init1(2).
    fn new(user: &UserDir, fabric: &FabricName) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let way = FabricDir::path_to_socket(user, fabric);
        Ok(Self { inotify: inotify::init(flags)?, way })
    }

    /// Watches those directories that exist.
    ///
    /// # Errors
    /// Those of inotify_add_watch(2).
    fn watch(&self) -> io::Result<()> {
        let flags = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ONLYDIR;
        for (dir, _) in &self.way {
            // One that is watched already stays so.
            match inotify::add_watch(&self.inotify, dir, flags) {
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Whether a part of the way has appeared, as far as one call looks.
    fn take(&self) -> bool {
        let mut buf = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.inotify, &mut buf);
        let mut appeared = false;
        // What is left wakes us again.
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
    /// Has the service hear of a fabric that comes up. It is looked for after this, so that it is not missed.
    pub(super) fn watch_for_fabric(&mut self, at: PortAt) {
        if self.adapter[at].lookout.is_none() {
            let user = self.options.dir.user_dir();
            let lookout = Lookout::new(user, self.adapter[at].fabric()).and_then(|lookout| {
                self.poller.add(&lookout, Token::Lookout(at.number()), Interest::Read)?;
                Ok(lookout)
            });
            match lookout {
                Ok(lookout) => self.adapter[at].lookout = Some(lookout),
                Err(e) => throttled!(debug, "a fabric cannot be waited for: {e}"),
            }
        }
        if let Some(Err(e)) = self.adapter[at].lookout.as_ref().map(Lookout::watch) {
            throttled!(debug, "a fabric cannot be waited for: {e}");
        }
    }

    /// The fabric is there.
    pub(super) fn end_lookout(&mut self, at: PortAt) {
        if let Some(lookout) = self.adapter[at].lookout.take() {
            self.poller.remove(&lookout);
        }
    }

    /// Something has happened on the way to the fabric's socket.
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
    fn each_part_of_the_way_to_the_socket_is_noticed_and_nothing_else() {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let name = FabricName::default();
        let lookout = Lookout::new(&user, &name).unwrap();
        lookout.watch().unwrap();
        std::fs::create_dir(user.folder("hosts")).unwrap();
        assert!(!lookout.take());
        // One directory after the other, as far as each is watched when the next one appears.
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
    fn all_that_happens_at_once_is_noticed_by_what_was_watched() {
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
