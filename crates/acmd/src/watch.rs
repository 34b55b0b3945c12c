//! Event sources besides clients and devices: signals, the configuration files, and the machine's addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// The actions that signals request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Whether a reload of the files was requested.
    pub(crate) reload: bool,
    /// Whether a log of the counters was requested.
    pub(crate) report: bool,
    /// Whether the end of the service was requested.
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

    /// Returns the requested actions, and resets them.
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
const IN_FOLDER: WatchFlags = IN_WAY.union(WatchFlags::CLOSE_WRITE);
/// The events to watch in the parent of a link, or of a directory that does not exist.
const IN_WAY: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE);
/// The events to watch in all directories: their removal. A directory may be watched for several reasons.
const OF_ALL: WatchFlags = WatchFlags::DELETE_SELF
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::MASK_ADD);
/// The maximum number of symbolic links that are followed on the path to a file: as many as the kernel follows.
const LINKS: usize = 40;

/// Watches files, and the directories and links on the path to them, for being written, replaced, created or removed. It watches the
/// directories of the files, because editors replace files. If a directory does not exist, its nearest existing ancestor is
/// watched. When more of the path appears, that counts as a change, after which the files are read and watched again.
///
/// inotify(7) reports nothing when something is mounted over a directory or a file. So the process's table of mounts is watched, too.
#[derive(Debug)]
pub(crate) struct Files {
    socket: OwnedFd,
    /// The table of mounts, for which poll(2) reports changes (proc(5)).
    mounts: Option<fs::File>,
    /// The files and the directories on the path to them, with the device and inode of each before it was watched.
    places: BTreeMap<PathBuf, Option<(u64, u64)>>,
    /// The names to look for in each watched directory.
    wanted: BTreeMap<i32, Wanted>,
}

/// The names to look for in a directory.
#[derive(Debug, Default)]
struct Wanted {
    /// The watched folder's path.
    folder: PathBuf,
    /// The names of the files.
    files: BTreeSet<OsString>,
    /// The names of links, and of subdirectories that did not exist.
    way: BTreeSet<OsString>,
}

impl Wanted {
    /// Returns whether an event in or of the directory may have changed a file.
    fn is_of(&self, event: &inotify::Event<'_>) -> bool {
        let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED;
        if event.events().intersects(gone) {
            return true;
        }
        let name = OsStr::from_bytes(event.file_name().map(CStr::to_bytes).unwrap_or_default());
        let is_made = event.events().contains(ReadFlags::CREATE);
        let is_whole = || !is_made || has_content(&self.folder.join(name));
        self.way.contains(name) || self.files.contains(name) && is_whole()
    }
}

/// Returns whether a created file already has its content, as a link does. For a file opened for writing, there is another event when it
/// is closed.
fn has_content(file: &Path) -> bool {
    file.symlink_metadata()
        .is_ok_and(|file| file.is_symlink() || file.is_file() && file.nlink() > 1)
}

/// Returns the device and the inode at a path; none if there is nothing.
fn place_of(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}

/// Returns a file's path with the first symbolic link on it followed; none if it has no link.
fn through_link(file: &Path) -> Option<PathBuf> {
    let mut way: Vec<&Path> = file.ancestors().collect();
    way.reverse();
    let (link, to) = way.into_iter().find_map(|path| Some((path, fs::read_link(path).ok()?)))?;
    let rest = file.strip_prefix(link).ok()?;
    let to = link.parent()?.join(to);
    Some(if rest.as_os_str().is_empty() { to } else { to.join(rest) })
}

impl Files {
    /// Returns a watcher without files.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let unseen = |e: &io::Error| tracing::debug!("changes of mounts go unseen: {e}");
        Ok(Self {
            socket: inotify::init(flags)?,
            mounts: fs::File::open("/proc/self/mountinfo").inspect_err(unseen).ok(),
            places: BTreeMap::new(),
            wanted: BTreeMap::new(),
        })
    }

    /// Returns the descriptor that has an error condition after a change of mounts, until it is polled; none if there is no proc(5).
    pub(crate) fn mounts(&self) -> Option<BorrowedFd<'_>> {
        self.mounts.as_ref().map(AsFd::as_fd)
    }

    /// Returns whether something else is in the place of one of the files or directories, as after a change of mounts.
    pub(crate) fn are_elsewhere(&self) -> bool {
        self.places.iter().any(|(path, before)| place_of(path) != *before)
    }

    fn note_place(&mut self, path: &Path) {
        if !self.places.contains_key(path) {
            self.places.insert(path.to_owned(), place_of(path));
        }
    }

    /// Adds a file. A file that cannot be watched is skipped.
    pub(crate) fn add(&mut self, file: &Path) {
        if let Err(e) = self.watch(file) {
            tracing::debug!("changes of {} may go unseen: {e}", file.display());
        }
    }

    fn watch(&mut self, file: &Path) -> io::Result<()> {
        let mut file = std::path::absolute(file)?;
        let mut seen = self.watch_way(&file);
        for _ in 0..LINKS {
            let Some(next) = through_link(&file) else { break };
            file = next;
            seen = seen.and(self.watch_way(&file));
        }
        seen
    }

    /// Watches the directories on the path to a file, from the root down, so that none can be replaced unseen before the next one is
    /// watched.
    fn watch_way(&mut self, file: &Path) -> io::Result<()> {
        let step = |path: &'_ Path| Some((path.parent()?.to_owned(), path.file_name()?.to_owned()));
        self.note_place(file);
        let mut way: Vec<(PathBuf, OsString)> = file.ancestors().filter_map(step).collect();
        way.reverse();
        let mut seen = Ok(());
        for (at, (folder, name)) in way.iter().enumerate() {
            let above = at.checked_sub(1).map(|at| &way[at]);
            let file = (at + 1 == way.len()).then_some(name);
            match self.watch_step(above, folder, file) {
                Ok(true) => {}
                Ok(false) => break,
                // This user may not read this directory, but perhaps the next one.
                Err(e) => seen = Err(e),
            }
        }
        seen
    }

    /// Watches a directory for the file, or for its own removal if it is only on the path to it. If it is a link or does not exist, its
    /// parent is watched for it. Returns false if it does not exist.
    fn watch_step(
        &mut self,
        above: Option<&(PathBuf, OsString)>,
        folder: &Path,
        file: Option<&OsString>,
    ) -> io::Result<bool> {
        let events = if file.is_some() { IN_FOLDER } else { WatchFlags::empty() };
        let mut wanted = self.watch_folder(folder, events | WatchFlags::DONT_FOLLOW)?;
        let mut seen = Ok(());
        if wanted.is_none() {
            if let Some((above, name)) = above {
                let above = self.watch_folder(above, IN_WAY);
                seen = above.map(|above| {
                    if let Some(above) = above {
                        above.way.insert(name.clone());
                    }
                });
            }
            wanted = self.watch_folder(folder, events)?;
        }
        let is_there = wanted.is_some();
        if let Some(wanted) = wanted {
            wanted.files.extend(file.cloned());
        }
        seen.map(|()| is_there)
    }

    /// Watches a directory for such events. None if the directory does not exist.
    fn watch_folder(
        &mut self,
        folder: &Path,
        events: WatchFlags,
    ) -> io::Result<Option<&mut Wanted>> {
        self.note_place(folder);
        let watch = match inotify::add_watch(&self.socket, folder, events | OF_ALL) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            watch => watch?,
        };
        let new = || Wanted { folder: folder.to_owned(), ..Wanted::default() };
        Ok(Some(self.wanted.entry(watch).or_insert_with(new)))
    }

    /// Reads the events. Returns whether one of the files may have changed.
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
    /// Opens a socket that receives the kernel's changes of addresses.
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
    use std::os::unix::fs::symlink;

    use rdmux_testing::temp_dir;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::poller::{Interest, Poller, Token};

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
    fn folder_far_above_a_file_that_is_replaced_is_seen() {
        let dir = temp_dir();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        for folder in [&one, &two] {
            fs::create_dir_all(folder.join("rdma/of")).unwrap();
        }
        let file = one.join("rdma/of/ibacm_opts.cfg");
        let files = watch(&file);
        fs::rename(&one, dir.path().join("away")).unwrap();
        assert!(files.take());
        let files = watch(&file);
        fs::rename(&two, &one).unwrap();
        assert!(files.take() && !files.take());
        let files = watch(&file);
        fs::create_dir(one.join("other")).unwrap();
        fs::rename(dir.path().join("away"), &two).unwrap();
        assert!(!files.take());
        fs::rename(one.join("rdma"), one.join("gone")).unwrap();
        assert!(files.take());
    }

    #[test]
    fn watcher_reports_new_hard_links_symlinks_and_their_targets() {
        let dir = temp_dir();
        let file = dir.path().join("ibacm_opts.cfg");
        let source = dir.path().join("source");
        fs::write(&source, "").unwrap();
        let files = watch(&file);
        fs::hard_link(&source, &file).unwrap();
        assert!(files.take() && !files.take());
        fs::remove_file(&file).unwrap();
        let files = watch(&file);
        symlink("source", &file).unwrap();
        assert!(files.take() && !files.take());
        let files = watch(&file);
        fs::write(&source, "").unwrap();
        assert!(files.take() && !files.take());
        // A link to a file that does not exist yet.
        fs::remove_file(&source).unwrap();
        let files = watch(&file);
        fs::write(&source, "").unwrap();
        assert!(files.take());
    }

    #[test]
    fn file_that_is_being_written_is_seen_when_it_is_closed() {
        let dir = temp_dir();
        let file = dir.path().join("ibacm_opts.cfg");
        let files = watch(&file);
        let mut open = fs::File::create(&file).unwrap();
        io::Write::write_all(&mut open, b"timeout 1").unwrap();
        assert!(!files.take());
        drop(open);
        assert!(files.take());
    }

    #[test]
    fn link_on_the_way_to_a_file_that_is_replaced_is_seen() {
        let dir = temp_dir();
        let [one, two, link, new] = ["one", "two", "link", "new"].map(|n| dir.path().join(n));
        for folder in [&one, &two] {
            fs::create_dir_all(folder.join("now/rdma")).unwrap();
        }
        symlink("one/now", &link).unwrap();
        symlink(two.join("now"), &new).unwrap();
        let file = link.join("rdma/ibacm_opts.cfg");
        let files = watch(&file);
        fs::write(two.join("now/rdma/ibacm_opts.cfg"), "").unwrap();
        assert!(!files.take());
        fs::rename(&new, &link).unwrap();
        assert!(files.take());
        let files = watch(&file);
        fs::write(two.join("now/rdma/ibacm_opts.cfg"), "").unwrap();
        assert!(files.take());
        // The link's target is renamed.
        fs::rename(&two, &new).unwrap();
        assert!(files.take());
        // The link's target does not exist.
        let files = watch(&file);
        fs::rename(&new, &two).unwrap();
        assert!(files.take());
        fs::remove_file(&link).unwrap();
        symlink("link", &link).unwrap();
        let files = watch(&file);
        fs::rename(&one, &new).unwrap();
        assert!(!files.take());
        fs::remove_file(&link).unwrap();
        assert!(files.take());
    }

    /// Tells the test's own process, in a mount namespace of its own, from the one that starts it.
    const MOUNTS: &str = "RDMUX_TEST_MOUNTS";

    #[test]
    fn mount_over_a_folder_on_the_path_to_a_file_is_seen() {
        if std::env::var_os(MOUNTS).is_some() {
            return see_mounts();
        }
        let unshare = |program: &OsStr| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--user", "--map-root-user", "--mount", "--"]).arg(program);
            command
        };
        if !unshare("true".as_ref()).output().is_ok_and(|out| out.status.success()) {
            println!("SKIPPED: no mount namespace");
            return;
        }
        let mut own = unshare(std::env::current_exe().unwrap().as_os_str());
        let name = "watch::tests::mount_over_a_folder_on_the_path_to_a_file_is_seen";
        let out = own.args(["--exact", name]).env(MOUNTS, "1").output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.contains("1 passed"), "{said}");
    }

    fn see_mounts() {
        let dir = temp_dir();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        for folder in [&one, &two] {
            fs::create_dir_all(folder.join("rdma")).unwrap();
        }
        let file = one.join("rdma/ibacm_opts.cfg");
        let poller = Poller::new().unwrap();
        let polled = || {
            let files = watch(&file);
            poller.add(files.mounts().unwrap(), Token::Mounts, Interest::Nothing).unwrap();
            files
        };
        let mut ready = Vec::new();
        let mut has_changed = || {
            poller.wait(Some(std::time::Duration::ZERO), &mut ready).unwrap();
            ready.iter().any(|event| event.token == Token::Mounts)
        };
        let files = polled();
        assert!(!has_changed() && !files.are_elsewhere());
        rustix::mount::mount_bind(&two, &one).unwrap();
        assert!(has_changed() && files.are_elsewhere() && !has_changed());
        assert!(!files.take(), "inotify does not report it");
        // Another mount is a change, but not of the file's place.
        let files = polled();
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        rustix::mount::mount_bind(&two, &other).unwrap();
        assert!(has_changed() && !files.are_elsewhere());
        rustix::mount::unmount(&one, rustix::mount::UnmountFlags::DETACH).unwrap();
        assert!(has_changed() && files.are_elsewhere());
        // A mount over the file itself, before the poller watches.
        fs::write(&file, "").unwrap();
        let source = dir.path().join("source");
        fs::write(&source, "").unwrap();
        let files = watch(&file);
        rustix::mount::mount_bind(&source, &file).unwrap();
        assert!(files.are_elsewhere());
        for place in [&file, &other] {
            rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }

    #[test]
    fn sighup_is_taken_once_as_a_reload() {
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
