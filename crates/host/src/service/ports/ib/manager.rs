//! Tracks subnet managers, which hold `issmN` open: that sets the port's IsSM bit, and the last close clears it, even if the
//! process was killed.
//!
//! The file that a manager opens is a FIFO of the view, one in each tree. inotify(7) reports opens. The service then opens the FIFO
//! for writing, which succeeds only if a process has it open for reading, and keeps it open: poll(2) reports when the last
//! reader is gone. Nothing is ever written.

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

/// Opens of FIFOs that are read before other sources get their turn.
const MAX_EVENTS: usize = 64;

/// The managers that hold the port's `issmN` open, and the state of its bit at the fabric.
#[derive(Debug, Default)]
pub(super) struct Manager {
    /// The FIFOs that are open for reading, by their trees.
    open: BTreeMap<DeviceChoice, OwnedFd>,
    bit: Bit,
}

#[derive(Debug, Default)]
enum Bit {
    #[default]
    Clear,
    /// Requested, until the fabric confirms it, which it does when nothing else has set it.
    Asked(SettingIsSm),
    Set(IsSm),
}

impl Manager {
    /// Returns whether a manager holds the port.
    fn is_there(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns whether the fabric has set the port's bit.
    pub(super) fn has_bit(&self) -> bool {
        matches!(self.bit, Bit::Set(_))
    }
}

impl Core {
    /// Checks which of the port's FIFOs are open, and watches for opens from now on. FIFOs are made with the trees of the
    /// view, and stay when the service ends.
    pub(in crate::service) fn watch_managers(&mut self) {
        let files = DeviceChoice::every()
            .flat_map(|choice| self.adapter.every().map(move |at| (choice, at)));
        for (choice, at) in files.collect::<Vec<_>>() {
            if let Some(path) = self.issm_path(choice, at).filter(|path| path.exists())
                && let Err(e) = self.watch_issm(&path)
            {
                throttled!(warn, "cannot watch {}: {e}", path.display());
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
        // A file that is watched already stays watched.
        inotify::add_watch(watch, path, inotify::WatchFlags::OPEN)?;
        Ok(())
    }

    /// Returns the FIFO of a port in the tree of these devices.
    fn issm_path(&self, choice: DeviceChoice, at: PortAt) -> Option<PathBuf> {
        let dir = self.options.dir.host(&self.options.host).ok()?;
        Some(dir.view(choice).join(tree::issm(at.number())))
    }

    /// Handles opens of FIFOs, which may be the service's own.
    pub(in crate::service) fn issm_opened(&mut self) {
        let Some(watch) = &self.adapter.issm else { return };
        let mut buf = [std::mem::MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(watch, &mut buf);
        // Further events wake the service again, so that a process that keeps opening a FIFO gets only its share of the time.
        for _ in 0..MAX_EVENTS {
            if events.next().is_err() {
                break;
            }
        }
        self.look_for_managers();
    }

    /// Handles the end of a FIFO's last reader. Another may have just opened it.
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
                        Err(e) => throttled!(warn, "cannot watch {}: {e}", path.display()),
                    }
                }
                Err(e) => throttled!(warn, "cannot open {}: {e}", path.display()),
            }
        }
        self.set_is_sm(at);
    }

    /// Reports to the fabric whether a manager holds the port.
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
            // It is requested again when the port is attached again.
            Ok(None) => {}
            Err(e) => throttled!(warn, "{e}"),
        }
    }

    fn await_is_sm(&mut self, at: PortAt, setting: SettingIsSm) {
        match self.poller.add(&setting, Token::IsSm(at.number()), Interest::Read) {
            Ok(()) => self.adapter[at].manager.bit = Bit::Asked(setting),
            Err(e) => throttled!(warn, "cannot watch the connection to a fabric: {e}"),
        }
    }

    /// Handles the fabric's confirmation of the bit, or its end.
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
            // The fabric sends nothing more there, so this is the end.
            Bit::Set(is_sm) => self.poller.remove(&is_sm),
        }
    }

    fn is_sm_set(&mut self, at: PortAt, is_sm: IsSm) {
        if let Err(e) = self.poller.add(&is_sm, Token::IsSm(at.number()), Interest::Read) {
            return throttled!(warn, "cannot watch the connection to a fabric: {e}");
        }
        tracing::info!("a subnet manager holds the port: IsSM is set");
        self.adapter[at].manager.bit = Bit::Set(is_sm);
    }

    /// Clears the bit, because no manager runs, or the port is no longer attached.
    pub(super) fn clear_is_sm(&mut self, at: PortAt) {
        match std::mem::take(&mut self.adapter[at].manager.bit) {
            Bit::Clear => {}
            Bit::Asked(setting) => self.poller.remove(&setting),
            Bit::Set(is_sm) => self.poller.remove(&is_sm),
        }
    }
}

/// Opens a FIFO for writing, if it exists and a process has it open for reading.
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
    fn issm_fifo_is_opened_only_with_a_reader_and_other_files_never() {
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
