//! An open port, independent of its MAD file: agents, sends and receives by the rules of the kernel's device
//! (`Documentation/infiniband/user_mad.rst` of Linux).

use std::os::fd::{AsFd, BorrowedFd};

use parking_lot::Mutex;
use rdmux_subnet::umad::Registration;

use super::buffer::HEADER;
use super::file::{MadFile, Received};
use super::outstanding::{Outstanding, Request, is_response};
use crate::abi::umad::{UMAD_CA_MAX_AGENTS, umad_rmpp_packet};
use crate::boundary::{Errno, Result};
use crate::verbs::objects::generation::Generation;

/// The size of a MAD of one segment.
pub(super) const MAD: usize = size_of::<umad_rmpp_packet>();
/// The least number of bytes that can be sent: both headers (IBTA 13.4.2, 13.6.2.1).
const LEAST: usize = std::mem::offset_of!(umad_rmpp_packet, data);
/// The offset of a MAD's RMPP flags, and the bit that is set if the RMPP header is valid.
const RMPP_FLAGS: usize = 26;
const RMPP_ACTIVE: u8 = 1;

/// An open port.
#[derive(Debug)]
pub(crate) struct OpenPort {
    file: Box<dyn MadFile>,
    /// Device and inode of its descriptor, which show whether the program has closed it by itself.
    identity: Option<(u64, u64)>,
    generation: Generation,
    /// For each agent, by number: whether its long MADs are segmented.
    agents: Mutex<[Option<bool>; UMAD_CA_MAX_AGENTS as usize]>,
    outstanding: Mutex<Outstanding>,
}

impl AsFd for OpenPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl OpenPort {
    pub(super) fn new(file: Box<dyn MadFile>) -> Self {
        let (identity, generation) = (identity(file.as_fd()), Generation::current());
        let (agents, outstanding) = (Mutex::default(), Mutex::default());
        Self { file, identity, generation, agents, outstanding }
    }

    /// Returns whether this process opened the port. A port inherited over a fork is shared with the parent, which continues to use it when
    /// this process closes it. (A program that goes to the background, daemon(3), continues to use it itself.)
    pub(super) fn is_ours(&self) -> bool {
        self.generation.is_current()
    }

    /// Unregisters the port's agents, so that their methods are free when this returns, as they are when the kernel's device is closed.
    pub(super) fn end_agents(&self) {
        let agents = std::mem::take(&mut *self.agents.lock());
        for (number, _) in (0..).zip(agents).filter(|(_, agent)| agent.is_some()) {
            // A fabric that is gone has no agents.
            let _ = self.file.unregister(number);
        }
    }

    /// Returns whether the program has closed the descriptor by itself, so that its number may be in use by another file.
    pub(super) fn is_stolen(&self) -> bool {
        identity(self.as_fd()) != self.identity
    }

    /// Registers an agent. Returns its number.
    ///
    /// # Errors
    /// Those of the device: EINVAL for a class, version and method that another agent has, or for an invalid combination,
    /// ENOMEM for the 33rd.
    pub(super) fn register(&self, registration: &Registration) -> Result<u32> {
        let agent = self.file.register(registration)?;
        let mut agents = self.agents.lock();
        let place = agents.get_mut(agent as usize).ok_or(Errno::EIO)?;
        *place = Some(registration.rmpp_version != 0 && registration.flags == 0);
        Ok(agent)
    }

    /// Unregisters an agent.
    ///
    /// # Errors
    /// EINVAL without such an agent.
    pub(super) fn unregister(&self, agent: u32) -> Result<()> {
        self.rmpp_of(agent).map_err(|_| Errno::EINVAL)?;
        self.file.unregister(agent)?;
        if let Some(place) = self.agents.lock().get_mut(agent as usize) {
            *place = None;
        }
        Ok(())
    }

    /// Sends a MAD from an agent. With a timeout it is a request, whose answer, or a notice that there was none, is read
    /// later.
    ///
    /// # Errors
    /// EINVAL for a MAD that is too short, or too long for the agent, for a request whose ID is outstanding, and for an invalid agent
    /// number; EIO for an agent that is not registered.
    pub(super) fn send(
        &self,
        agent: u32,
        header: &[u8; HEADER],
        mad: &[u8],
        timed: bool,
    ) -> Result<()> {
        let rmpp = self.rmpp_of(agent)?;
        let long_allowed = || rmpp && mad[RMPP_FLAGS] & RMPP_ACTIVE != 0;
        if mad.len() < LEAST || mad.len() > MAD && !long_allowed() {
            return Err(Errno::EINVAL);
        }
        let request = Request::of(agent, mad).filter(|_| timed && !is_response(mad));
        if let Some(request) = request {
            let known = self.outstanding.lock().contains(&request);
            if known {
                self.file.check(header, mad)?;
            }
            // Before the send, because another thread may read the answer before this one continues.
            self.outstanding.lock().sent(request);
        }
        // For RMPP the length of a message determines its number of segments; other MADs are always sent whole.
        let sent = if mad.len() < MAD && !long_allowed() {
            let mut whole = [0; MAD];
            whole[..mad.len()].copy_from_slice(mad);
            self.file.send(header, &whole)
        } else {
            self.file.send(header, mad)
        };
        if let (Some(request), Err(_)) = (request, sent) {
            self.outstanding.lock().ended(&request);
        }
        sent
    }

    /// Reads the next record into a buffer with room for at least a header. Returns the record's size, header included.
    ///
    /// # Errors
    /// [`ReadError`].
    pub(super) fn read(&self, buffer: &mut [u8]) -> std::result::Result<usize, ReadError> {
        match self.file.read(buffer)? {
            Received::Whole(length) => {
                let record = &buffer[..length.min(buffer.len())];
                self.answered(record);
                Ok(record.len())
            }
            Received::TooLong(length) if length > HEADER + MAD && buffer.len() >= HEADER + MAD => {
                Err(ReadError::TooLong(length))
            }
            Received::TooLong(_) => Err(Errno::EINVAL.into()),
            Received::Nothing => Err(Errno(libc::EAGAIN).into()),
        }
    }

    /// Records that a request is complete: the record is its answer, or the request itself if there was none.
    fn answered(&self, record: &[u8]) {
        let Some((header, mad)) = record.split_at_checked(HEADER) else { return };
        let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        let (agent, status) = (word(0), word(4));
        if (status != 0 || is_response(mad))
            && let Some(request) = Request::of(agent, mad)
        {
            self.outstanding.lock().ended(&request);
        }
    }

    /// Returns whether an agent's long MADs are segmented.
    fn rmpp_of(&self, agent: u32) -> Result<bool> {
        let agents = self.agents.lock();
        agents.get(agent as usize).ok_or(Errno::EINVAL)?.ok_or(Errno::EIO)
    }
}

/// Returns device and inode of a descriptor; none of one that is not open.
fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// The reason why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// The next record has that many bytes, header included, and does not fit. It stays in the queue.
    TooLong(usize),
    /// EAGAIN when there is nothing to read; EINVAL when there is no room for a MAD of one segment.
    Failed(Errno),
}

impl From<Errno> for ReadError {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::super::agent::umad_register;
    use super::super::fake::open;
    use super::super::ports::{find, umad_close_port};
    use std::ptr;

    #[test]
    fn a_child_closes_a_port_at_which_a_thread_was_when_it_was_forked() {
        let (id, fake) = open();
        // SAFETY: no mask.
        assert_eq!(unsafe { umad_register(id, 3, 1, 0, ptr::null_mut()) }, 0);
        let port = find(id).unwrap();
        let held = (port.agents.lock(), port.outstanding.lock());
        // SAFETY: the child only closes the port, and ends without cleaning up.
        match unsafe { libc::fork() } {
            // SAFETY: ends the child; by a signal if it hangs.
            0 => unsafe {
                libc::alarm(20);
                libc::_exit(umad_close_port(id));
            },
            child => {
                let mut status = 0;
                // SAFETY: waits for this process's own child.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        drop(held);
        assert_eq!(umad_close_port(id), 0);
        assert_eq!(fake.unregistered(), [0]);
    }
}
