//! What changes beside clients and devices: signals, the files of the configuration, and the machine's addresses.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::inotify;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Files are to be read anew.
    pub(crate) reload: bool,
    /// The counters are to be written to the log.
    pub(crate) report: bool,
    /// The service is to end.
    pub(crate) end: bool,
}

/// Signals as something to read: a pipe for each meaning.
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

    /// What is readable after a signal.
    pub(crate) fn sources(&self) -> [BorrowedFd<'_>; 3] {
        [self.reload.as_fd(), self.report.as_fd(), self.end.as_fd()]
    }

    /// Takes what came.
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

/// Tells when one of some files is written, replaced, made or removed. The folders are watched, for editors replace files.
#[derive(Debug)]
pub(crate) struct Files {
    socket: OwnedFd,
    names: BTreeMap<i32, Vec<OsString>>,
}

impl Files {
    /// Watches these files. What cannot be watched is left out.
    pub(crate) fn watch<'p>(files: impl IntoIterator<Item = &'p Path>) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let socket = inotify::init(flags)?;
        let mut names: BTreeMap<i32, Vec<OsString>> = BTreeMap::new();
        for file in files {
            let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { continue };
            let events = inotify::WatchFlags::CLOSE_WRITE
                | inotify::WatchFlags::MOVED_TO
                | inotify::WatchFlags::MOVED_FROM
                | inotify::WatchFlags::DELETE;
            match inotify::add_watch(&socket, folder, events) {
                Ok(watch) => names.entry(watch).or_default().push(name.to_owned()),
                Err(e) => tracing::debug!("changes of {} go unseen: {e}", file.display()),
            }
        }
        Ok(Self { socket, names })
    }

    /// Takes what happened; whether one of the files may have changed.
    pub(crate) fn take(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.socket, &mut buffer);
        let mut changed = false;
        while let Ok(event) = reader.next() {
            let overflow = event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            let named = event.file_name().is_some_and(|name| {
                let names = self.names.get(&event.wd());
                names.is_some_and(|names| {
                    names.iter().any(|n| n.as_encoded_bytes() == name.to_bytes())
                })
            });
            changed |= overflow || named;
        }
        changed
    }
}

impl AsFd for Files {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The groups of rtnetlink(7) that tell of interfaces and of IPv4 and IPv6 addresses: their numbers as bits.
const ADDRESS_GROUPS: u32 = 1 | 1 << 4 | 1 << 8;

/// Tells when addresses or interfaces of the machine changed. What is said is a hint to look again.
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

    /// Takes what was said.
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
        let files = Files::watch([file.as_path()]).unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        assert!(!files.take());
        fs::write(&file, "").unwrap();
        assert!(files.take());
        fs::rename(dir.path().join("other"), &file).unwrap();
        assert!(files.take());
        fs::remove_file(&file).unwrap();
        assert!(files.take() && !files.take());
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
