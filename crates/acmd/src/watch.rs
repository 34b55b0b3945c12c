//! Event sources besides clients and devices: signals, the configuration files, and the machine's addresses.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// The actions that signals request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Whether to read the files again.
    pub(crate) reload: bool,
    /// Whether to write the counters to the log.
    pub(crate) report: bool,
    /// Whether to end the service.
    pub(crate) end: bool,
}

/// Signals as readable descriptors: a pipe for each action.
#[derive(Debug)]
pub(crate) struct Signals {
    reload: UnixStream,
    report: UnixStream,
    end: UnixStream,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        let pipe = |signals: &[i32]| -> io::Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            for &signal in signals {
                signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
            }
            Ok(read)
        };
        Ok(Self {
            reload: pipe(&[SIGHUP])?,
            report: pipe(&[SIGUSR1])?,
            end: pipe(&[SIGTERM, SIGINT])?,
        })
    }

    /// Returns the descriptors that are readable after a signal.
    pub(crate) fn sources(&self) -> [BorrowedFd<'_>; 3] {
        [self.reload.as_fd(), self.report.as_fd(), self.end.as_fd()]
    }

    /// Takes the requested actions.
    pub(crate) fn take(&self) -> Asked {
        Asked { reload: came(&self.reload), report: came(&self.report), end: came(&self.end) }
    }
}

fn came(pipe: &UnixStream) -> bool {
    let mut some = false;
    let mut buffer = [0; 64];
    while matches!(io::Read::read(&mut &*pipe, &mut buffer), Ok(n) if n > 0) {
        some = true;
    }
    some
}

/// The events to watch in a directory with files.
const IN_FOLDER: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE);
/// The events to watch in a parent of a directory that does not exist.
const ABOVE: WatchFlags = WatchFlags::CREATE.union(WatchFlags::MOVED_TO);
/// The events to watch in both: their removal. A directory may be both.
const OF_BOTH: WatchFlags = WatchFlags::DELETE_SELF
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::MASK_ADD);

/// Watches files for being written, replaced, created or removed. It watches their directories, because editors replace files. If a
/// directory does not exist, its nearest existing ancestor is watched. When more of the path appears, that counts as a change, after which
/// the files are read and watched again.
#[derive(Debug)]
pub(crate) struct Files {
    socket: OwnedFd,
    /// What to look for in each watched directory.
    wanted: BTreeMap<i32, Wanted>,
}

/// What to look for in a directory.
#[derive(Debug, Default)]
struct Wanted {
    /// The names of the files.
    files: Vec<OsString>,
    /// The names of subdirectories that did not exist.
    folders: Vec<OsString>,
}

impl Wanted {
    /// Returns whether an event in or of the directory may have changed a file.
    fn is_of(&self, event: &inotify::Event<'_>) -> bool {
        let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED;
        let is_in = |names: &[OsString]| {
            let name = event.file_name().map(CStr::to_bytes);
            name.is_some_and(|name| names.iter().any(|n| n.as_encoded_bytes() == name))
        };
        // A process that creates a file also writes it.
        let is_made = event.events().contains(ReadFlags::CREATE);
        event.events().intersects(gone) || is_in(&self.folders) || !is_made && is_in(&self.files)
    }
}

impl Files {
    /// Returns a watcher without files.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        Ok(Self { socket: inotify::init(flags)?, wanted: BTreeMap::new() })
    }

    /// Adds a file. A file that cannot be watched is skipped.
    pub(crate) fn add(&mut self, file: &Path) {
        if let Err(e) = self.watch(file) {
            tracing::debug!("changes of {} go unseen: {e}", file.display());
        }
    }

    fn watch(&mut self, file: &Path) -> io::Result<()> {
        let file = std::path::absolute(file)?;
        let step = |path: &'_ Path| Some((path.parent()?.to_owned(), path.file_name()?.to_owned()));
        let way: Vec<(PathBuf, OsString)> = file.ancestors().filter_map(step).collect();
        let mut nearest = 0;
        while nearest < way.len() && !self.watch_step(nearest == 0, &way[nearest])? {
            nearest += 1;
        }
        // Directories that were created before their parent was watched.
        for at in (0..nearest).rev() {
            if !self.watch_step(at == 0, &way[at])? {
                break;
            }
        }
        Ok(())
    }

    /// Watches a directory for the file or the next directory on the path to it. Returns false if it does not exist.
    fn watch_step(
        &mut self,
        is_last: bool,
        (folder, name): &(PathBuf, OsString),
    ) -> io::Result<bool> {
        let events = if is_last { IN_FOLDER } else { ABOVE };
        let watch = match inotify::add_watch(&self.socket, folder, events | OF_BOTH) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            watch => watch?,
        };
        let wanted = self.wanted.entry(watch).or_default();
        let names = if is_last { &mut wanted.files } else { &mut wanted.folders };
        names.push(name.clone());
        Ok(true)
    }

    /// Takes the events. Returns whether one of the files may have changed.
    pub(crate) fn take(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.socket, &mut buffer);
        let mut changed = false;
        while let Ok(event) = reader.next() {
            let wanted = self.wanted.get(&event.wd());
            changed |= event.events().contains(ReadFlags::QUEUE_OVERFLOW)
                || wanted.is_some_and(|wanted| wanted.is_of(&event));
        }
        changed
    }
}

impl AsFd for Files {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The groups of rtnetlink(7) for interfaces and for IPv4 and IPv6 addresses, as a bit mask of their numbers.
const ADDRESS_GROUPS: u32 = 1 | 1 << 4 | 1 << 8;

/// Watches the machine's interfaces and addresses. An event is a hint to refresh.
#[derive(Debug)]
pub(crate) struct Addresses(OwnedFd);

impl Addresses {
    pub(crate) fn watch() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, ADDRESS_GROUPS))?;
        Ok(Self(socket))
    }

    /// Discards the events.
    pub(crate) fn take(&self) {
        let mut buffer = [0; 4096];
        while rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::TRUNC).is_ok() {}
    }
}

impl AsFd for Addresses {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rdmux_testing::temp_dir;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn files_that_are_written_replaced_or_removed_are_seen_and_others_are_not() {
        let dir = temp_dir();
        let file = dir.path().join("ibacm_opts.cfg");
        let files = watch(&file);
        fs::write(dir.path().join("other"), "").unwrap();
        assert!(!files.take());
        fs::write(&file, "").unwrap();
        assert!(files.take());
        fs::rename(dir.path().join("other"), &file).unwrap();
        assert!(files.take());
        fs::remove_file(&file).unwrap();
        assert!(files.take() && !files.take());
    }

    fn watch(file: &Path) -> Files {
        let mut files = Files::new().unwrap();
        files.add(file);
        files
    }

    #[test]
    fn file_whose_folder_is_made_later_is_seen() {
        let dir = temp_dir();
        let folder = dir.path().join("rdma/of/host");
        let file = folder.join("ibacm_opts.cfg");
        let files = watch(&file);
        fs::create_dir(dir.path().join("other")).unwrap();
        fs::write(dir.path().join("ibacm_opts.cfg"), "").unwrap();
        assert!(!files.take());
        fs::create_dir(dir.path().join("rdma")).unwrap();
        assert!(files.take());
        // The directory is moved here from elsewhere, in place of a file.
        let files = watch(&file);
        fs::write(dir.path().join("rdma/of"), "").unwrap();
        fs::create_dir(dir.path().join("other/host")).unwrap();
        assert!(files.take() && !files.take());
        let files = watch(&file);
        fs::remove_file(dir.path().join("rdma/of")).unwrap();
        fs::rename(dir.path().join("other"), dir.path().join("rdma/of")).unwrap();
        assert!(files.take() && !files.take());
        let files = watch(&file);
        fs::write(&file, "").unwrap();
        assert!(files.take() && !files.take());
        // The file is removed and created again.
        fs::remove_file(&file).unwrap();
        let files = watch(&file);
        fs::remove_dir(&folder).unwrap();
        assert!(files.take() && !files.take());
        let files = watch(&file);
        fs::create_dir(&folder).unwrap();
        assert!(files.take());
        let files = watch(&file);
        fs::rename(&folder, dir.path().join("away")).unwrap();
        assert!(files.take());
    }

    #[test]
    fn folder_with_a_file_and_above_another_one_is_watched_for_both() {
        let dir = temp_dir();
        let [one, two] = ["a.cfg", "b/a.cfg"].map(|file| dir.path().join(file));
        for order in [[&one, &two], [&two, &one]] {
            let mut files = Files::new().unwrap();
            order.iter().for_each(|file| files.add(file));
            fs::write(&one, "").unwrap();
            assert!(files.take());
            fs::create_dir(dir.path().join("b")).unwrap();
            assert!(files.take());
            fs::remove_dir(dir.path().join("b")).unwrap();
        }
    }

    #[test]
    fn signals_are_told_apart() {
        let signals = Signals::new().unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        let sources = signals.sources();
        poll(&mut [PollFd::new(&sources[0], PollFlags::IN)], None).unwrap();
        assert_eq!(signals.take(), Asked { reload: true, ..Asked::default() });
        assert_eq!(signals.take(), Asked::default());
    }

    #[test]
    fn kernel_lets_anybody_watch_addresses() {
        Addresses::watch().unwrap().take();
    }
}
