//! A subnet manager holds `issmN` open: that sets the port's IsSM bit, and its last close clears it, however it comes about.
//!
//! What a manager opens is a FIFO of the view, one in each tree. inotify(7) tells of opens. The service then opens the FIFO
//! to write, which succeeds only if somebody has it open to read, and holds it: when the last reader is gone, poll(2)
//! says so. Nothing is ever written.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rdmux_fabric::FabricDir;
use rdmux_fabric::client::{IsSm, Progress, SettingIsSm};
use rdmux_verbs::throttled;
use rustix::fs::inotify;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::adapters::PortAt;
use crate::names::DeviceChoice;
use crate::service::core::Core;
use crate::service::poller::{Interest, Token};
use crate::view::tree;

/// Opens of FIFOs that are taken before others have their turn.
const MAX_EVENTS: usize = 64;

/// The managers that hold the port's `issmN` open, and what the fabric knows of them.
#[derive(Debug, Default)]
pub(super) struct Manager {
    /// FIFOs that somebody has open, by the trees that they are in.
    open: BTreeMap<DeviceChoice, OwnedFd>,
    bit: Bit,
}

#[derive(Debug, Default)]
enum Bit {
    #[default]
    Clear,
    /// Until the fabric says that it is, which it does when nobody else has set it.
    Asked(SettingIsSm),
    Set(IsSm),
}

impl Manager {
    /// Whether a manager has the port.
    fn is_there(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether the fabric has set the port's bit.
    pub(super) fn has_bit(&self) -> bool {
        matches!(self.bit, Bit::Set(_))
    }
}

impl Core {
    /// Looks who has the port's FIFOs open, and hears of those who open them from now on. FIFOs are made with the trees of
    /// the view, and stay when the service ends.
    pub(in crate::service) fn watch_managers(&mut self) {
        let files = DeviceChoice::every()
            .flat_map(|choice| self.adapter.every().map(move |at| (choice, at)));
        for (choice, at) in files.collect::<Vec<_>>() {
            if let Some(path) = self.issm_path(choice, at).filter(|path| path.exists())
                && let Err(e) = self.watch_issm(&path)
            {
                throttled!(warn, "{} cannot be watched: {e}", path.display());
            }
        }
        self.look_for_managers();
    }

    fn watch_issm(&mut self, path: &Path) -> io::Result<()> {
        let watch = match &self.adapter.issm {
            Some(watch) => watch,
            None => {
                let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
                let watch = inotify::init(flags)?;
                self.poller.add(&watch, Token::Issm, Interest::Read)?;
                self.adapter.issm.insert(watch)
            }
        };
        // A file that is watched already stays so.
        inotify::add_watch(watch, path, inotify::WatchFlags::OPEN)?;
        Ok(())
    }

    /// The FIFO of a port in the tree of these devices.
    fn issm_path(&self, choice: DeviceChoice, at: PortAt) -> Option<PathBuf> {
        let dir = self.options.dir.host(&self.options.host).ok()?;
        Some(dir.view(choice).join(tree::issm(at.number())))
    }

    /// A FIFO was opened, perhaps by us.
    pub(in crate::service) fn issm_opened(&mut self) {
        let Some(watch) = &self.adapter.issm else { return };
        let mut buf = [std::mem::MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(watch, &mut buf);
        // What is left wakes us again, so that one who opens it all the time has only its share of ours.
        for _ in 0..MAX_EVENTS {
            if events.next().is_err() {
                break;
            }
        }
        self.look_for_managers();
    }

    /// A FIFO has no reader any more; another may just have come.
    pub(in crate::service) fn issm_closed(&mut self, tree: DeviceChoice, at: PortAt) {
        if let Some(fifo) = self.adapter[at].manager.open.remove(&tree) {
            self.poller.remove(&fifo);
        }
        self.look_for_managers();
    }

    fn look_for_managers(&mut self) {
        for at in self.adapter.every() {
            self.look_for_managers_of(at);
        }
    }

    fn look_for_managers_of(&mut self, at: PortAt) {
        for tree in DeviceChoice::every() {
            let Some(path) = self.issm_path(tree, at) else { continue };
            if self.adapter[at].manager.open.contains_key(&tree) {
                continue;
            }
            match open_for_reader(&path) {
                Ok(None) => {}
                Ok(Some(fifo)) => {
                    match self.poller.add(&fifo, Token::IssmFile(tree, at.number()), Interest::End)
                    {
                        Ok(()) => drop(self.adapter[at].manager.open.insert(tree, fifo)),
                        Err(e) => throttled!(warn, "{} cannot be watched: {e}", path.display()),
                    }
                }
                Err(e) => throttled!(warn, "{} cannot be opened: {e}", path.display()),
            }
        }
        self.set_is_sm(at);
    }

    /// Has the fabric know whether a manager has the port.
    pub(super) fn set_is_sm(&mut self, at: PortAt) {
        let wanted = self.adapter[at].manager.is_there();
        match &self.adapter[at].manager.bit {
            Bit::Clear if wanted => self.ask_for_is_sm(at),
            Bit::Asked(_) | Bit::Set(_) if !wanted => self.clear_is_sm(at),
            _ => {}
        }
    }

    fn ask_for_is_sm(&mut self, at: PortAt) {
        let Some(port) = self.adapter[at].held_port() else { return };
        let dir = FabricDir::existing(self.options.dir.user_dir(), self.adapter[at].fabric());
        let begun = dir.map_err(Into::into).and_then(|dir| match dir {
            Some(dir) => IsSm::begin(&dir, &port),
            None => Ok(None),
        });
        match begun {
            Ok(Some(setting)) => self.await_is_sm(at, setting),
            // It is asked again when the adapter is ours again.
            Ok(None) => {}
            Err(e) => throttled!(warn, "{e}"),
        }
    }

    fn await_is_sm(&mut self, at: PortAt, setting: SettingIsSm) {
        match self.poller.add(&setting, Token::IsSm(at.number()), Interest::Read) {
            Ok(()) => self.adapter[at].manager.bit = Bit::Asked(setting),
            Err(e) => throttled!(warn, "a fabric cannot be watched: {e}"),
        }
    }

    /// The fabric has set the bit, or is gone.
    pub(in crate::service) fn is_sm_event(&mut self, at: PortAt) {
        match std::mem::take(&mut self.adapter[at].manager.bit) {
            Bit::Clear => {}
            Bit::Asked(setting) => {
                self.poller.remove(&setting);
                match setting.poll() {
                    Ok(Progress::Pending(setting)) => self.await_is_sm(at, setting),
                    Ok(Progress::Done(is_sm)) => self.is_sm_set(at, is_sm),
                    Err(e) => throttled!(warn, "{e}"),
                }
            }
            // Nothing more is said there: it is the end.
            Bit::Set(is_sm) => self.poller.remove(&is_sm),
        }
    }

    fn is_sm_set(&mut self, at: PortAt, is_sm: IsSm) {
        if let Err(e) = self.poller.add(&is_sm, Token::IsSm(at.number()), Interest::Read) {
            return throttled!(warn, "a fabric cannot be watched: {e}");
        }
        tracing::info!("a subnet manager has the port");
        self.adapter[at].manager.bit = Bit::Set(is_sm);
    }

    /// Clears the bit, because no manager is there, or the adapter is not ours any more.
    pub(super) fn clear_is_sm(&mut self, at: PortAt) {
        match std::mem::take(&mut self.adapter[at].manager.bit) {
            Bit::Clear => {}
            Bit::Asked(setting) => self.poller.remove(&setting),
            Bit::Set(is_sm) => self.poller.remove(&is_sm),
        }
    }
}

/// A FIFO, if there is one there that somebody has open to read.
fn open_for_reader(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NXIO | Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    Ok((kind == FileType::Fifo).then_some(file))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    use rdmux_testing::temp_dir;
    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn fifo_is_opened_only_for_a_reader_and_nothing_else_is() {
        let dir = temp_dir();
        let path = dir.path().join("issm0");
        assert!(open_for_reader(&path).unwrap().is_none());
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(open_for_reader(&path).unwrap().is_none());
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let reader = OpenOptions::new().read(true).custom_flags(nonblocking).open(&path).unwrap();
        assert!(open_for_reader(&path).unwrap().is_some());
        drop(reader);
        assert!(open_for_reader(&path).unwrap().is_none());

        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(open_for_reader(&file).unwrap().is_none());
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert!(open_for_reader(&dir.path().join("link")).is_err());
    }
}
