//! The user MAD device without I/O: does for programs that manage a subnet what Linux's `ib_mad` and `ib_umad` do, for all
//! ports of one process.
//!
//! ```text
//!   program     writes UserMad                          reads UserMad
//!      |             |                                       ^
//!    file  --------  |  -------------------------------------|-----------  open, close
//!      |             v                                       |
//!    agents     write: TID, address, retries      arrived: which agent, which request   register
//!      |             |                                       |
//!      |          rmpp::Sender                        rmpp::Reassembly
//!      |             v                                       |
//!    port        UmadSink::transmit                      Umad::arrived
//! ```
//!
//! A program opens a *file* for a port and registers up to 32 *agents* on it. An agent may own methods of a class: requests
//! of these go to it and to no other agent of the port. A request that it sends gets the agent's number in the upper half of
//! its transaction ID, so that the response, which repeats the ID, finds the agent. A request is retransmitted when no
//! response arrives in time. When no retries remain, the program reads the request's header with [`UserMad::TIMED_OUT`].
//! Agents with RMPP write and read whole messages, see [`crate::rmpp`].
//!
//! Peers are distinguished by LID, or by GID if packets have a global route header. So the device also serves RoCE, whose
//! ports have no LIDs. The limits for each peer count by LID where there are LIDs, because a port has many GIDs.
//!
//! Differences from Linux: while a response of several MADs arrives, each segment restarts the request's timer and retries. A
//! request whose transfer the peer aborts ends at once with [`UserMad::ABORTED`], instead of never.

mod address;
mod arrive;
mod counters;
mod errno;
mod owners;
mod record;
mod registration;
mod seams;
mod sends;
mod timeout;
mod transfer;
mod write;

#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};

use rdmux_transport::timers::{Deadline, Timers};
use rdmux_wire::Qpn;

use self::address::{Envelope, Peer};
use self::owners::Owners;
use self::sends::Sends;
use crate::rmpp::{self, Reassembly};
use crate::{PortId, Time};

pub use counters::Counters;
pub use errno::Errno;
pub use record::{Unsent, UserAddress, UserGrh, UserMad};
pub use registration::Registration;
pub use seams::{Ports, UmadSink};

/// The most agents of a file.
pub const MAX_AGENTS: usize = 32;

/// The number of unread records that Linux keeps per file. A driver should keep fewer.
pub const MAX_QUEUED: usize = 200_000;

/// A file that a program has opened; IDs are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FileId(pub u64);

/// The number of an agent among those of all files, as used in the upper half of TIDs. From 1 to 2^24 - 1.
type AgentNumber = u32;

/// Limits on the outstanding MADs of a file, and on the work per call.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Outstanding requests and outgoing messages. Further ones are refused with ENOMEM.
    pub outstanding: usize,
    /// Bytes of these. Further ones are refused with ENOMEM.
    pub bytes: usize,
    /// Outgoing responses to one peer. Further ones are refused with ENOMEM, so that a peer that acknowledges nothing leaves
    /// room for others.
    pub responses_to_peer: usize,
    /// Bytes of these. Further ones are refused with ENOMEM.
    pub bytes_to_peer: usize,
    /// Limits on the incoming messages of one file.
    pub incoming: rmpp::Limits,
    /// How many timers one call of [`Umad::handle_timeout`] handles. After that [`Umad::next_timeout`] is due at once.
    pub timers_per_call: usize,
    /// How many of these timers may belong to one file before the next file's turn.
    pub timers_per_turn: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            outstanding: 16_384,
            bytes: 256 << 20,
            responses_to_peer: 2048,
            bytes_to_peer: 64 << 20,
            incoming: rmpp::Limits::default(),
            timers_per_call: 512,
            timers_per_turn: 32,
        }
    }
}

/// The files and agents of all ports.
#[derive(Debug)]
pub struct Umad {
    config: Config,
    files: BTreeMap<FileId, File>,
    agents: BTreeMap<AgentNumber, Agent>,
    owners: Owners,
    /// The open IsSM file of each port.
    issm: BTreeMap<PortId, FileId>,
    /// The time at which each file needs service.
    timers: Timers<FileId>,
    /// The file whose timers were handled last.
    turn: FileId,
    next_file: u64,
    next_agent: AgentNumber,
    /// Files whose number of bytes has changed since the driver asked.
    changed: BTreeSet<FileId>,
    counters: Counters,
}

/// An open file.
#[derive(Debug)]
struct File {
    port: PortId,
    /// Whether the port is gone.
    gone: bool,
    agents: [Option<AgentNumber>; MAX_AGENTS],
    sends: Sends,
    incoming: Reassembly<(AgentNumber, Peer), Envelope>,
    deadline: Deadline,
    /// The bytes of its unfinished sends and incoming messages at the last change.
    bytes: usize,
}

/// A registered agent.
#[derive(Clone, Copy, Debug)]
struct Agent {
    file: FileId,
    /// Its number within the file.
    slot: u32,
    port: PortId,
    what: Registration,
}

impl Agent {
    fn qpn(&self) -> Qpn {
        if self.what.qpn == 0 { Qpn::QP0 } else { Qpn::QP1 }
    }
}

impl Umad {
    /// Creates a device without files.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            files: BTreeMap::new(),
            agents: BTreeMap::new(),
            owners: Owners::default(),
            issm: BTreeMap::new(),
            timers: Timers::new(),
            turn: FileId(0),
            next_file: 1,
            next_agent: 1,
            changed: BTreeSet::new(),
            counters: Counters::default(),
        }
    }

    /// Opens a file for a port.
    pub fn open(&mut self, port: PortId) -> FileId {
        let id = self.new_file();
        let file = File {
            port,
            gone: false,
            agents: [None; MAX_AGENTS],
            sends: Sends::default(),
            incoming: Reassembly::new(self.config.incoming),
            deadline: Deadline::default(),
            bytes: 0,
        };
        self.files.insert(id, file);
        id
    }

    /// Opens the file that sets IsSM in a port's capability mask while it is open.
    ///
    /// # Errors
    /// [`Errno::Again`] if it is open. An open without O_NONBLOCK waits until it is closed.
    pub fn open_issm(&mut self, port: PortId, sink: &mut impl UmadSink) -> Result<FileId, Errno> {
        if self.issm.contains_key(&port) {
            return Err(Errno::Again);
        }
        let id = self.new_file();
        self.issm.insert(port, id);
        sink.set_is_sm(port, true);
        Ok(id)
    }

    /// Closes a file of either kind with its agents, requests, transfers and IsSM. Does nothing if there is no such file.
    pub fn close(&mut self, file: FileId, sink: &mut impl UmadSink) {
        if let Some((&port, _)) = self.issm.iter().find(|&(_, &id)| id == file) {
            self.issm.remove(&port);
            sink.set_is_sm(port, false);
        }
        self.remove_agents(file);
        self.changed.remove(&file);
        if let Some(mut closed) = self.files.remove(&file) {
            self.timers.clear(&mut closed.deadline, file);
        }
    }

    /// Removes a port: its files can only be closed. Returns them, so that the driver can wake processes that wait for them.
    pub fn remove_port(
        &mut self,
        port: PortId,
        sink: &mut impl UmadSink,
    ) -> alloc::vec::Vec<FileId> {
        let files = self.files.iter().filter(|(_, f)| f.port == port && !f.gone);
        let files: alloc::vec::Vec<_> = files.map(|(&id, _)| id).collect();
        for &id in &files {
            self.remove_agents(id);
            if let Some(file) = self.files.get_mut(&id) {
                file.gone = true;
            }
        }
        if self.issm.remove(&port).is_some() {
            sink.set_is_sm(port, false);
        }
        files
    }

    /// Registers an agent. Returns its number in the file, 0 to 31.
    ///
    /// # Errors
    /// [`Errno::Inval`]: an invalid class, version, OUI, queue pair, flag or RMPP version, or a method that another agent of
    /// the port owns. [`Errno::NoMem`]: the file has [`MAX_AGENTS`]. [`Errno::Pipe`]: the port is gone. [`Errno::BadF`]: no
    /// such file.
    pub fn register(&mut self, file: FileId, what: &Registration) -> Result<u32, Errno> {
        let number = self.free_number();
        let open = self.files.get_mut(&file).ok_or(Errno::BadF)?;
        if open.gone {
            return Err(Errno::Pipe);
        }
        if what.flags & !Registration::FLAGS != 0 || what.qpn > 1 {
            return Err(Errno::Inval);
        }
        let slot = open.agents.iter().position(Option::is_none).ok_or(Errno::NoMem)?;
        what.check()?;
        if !self.owners.claim(open.port, what, number) {
            return Err(Errno::Inval);
        }
        open.agents[slot] = Some(number);
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        self.agents.insert(number, Agent { file, slot, port: open.port, what: *what });
        Ok(slot)
    }

    /// Unregisters an agent. Its requests end without a response.
    ///
    /// # Errors
    /// [`Errno::Inval`]: no such agent. [`Errno::BadF`]: no such file.
    pub fn unregister(&mut self, file: FileId, agent: u32) -> Result<(), Errno> {
        let open = self.files.get_mut(&file).ok_or(Errno::BadF)?;
        let slot = usize::try_from(agent).ok().and_then(|slot| open.agents.get_mut(slot));
        let number = slot.and_then(Option::take).ok_or(Errno::Inval)?;
        open.sends.remove_agent(number);
        open.incoming.retain(|id| id.peer.0 != number);
        if let Some(agent) = self.agents.remove(&number) {
            self.owners.release(agent.port, &agent.what, number);
        }
        self.settle(file);
        Ok(())
    }

    /// Returns the port of a file.
    pub fn port(&self, file: FileId) -> Option<PortId> {
        self.files.get(&file).map(|f| f.port)
    }

    /// Returns the number of a file's outstanding requests and outgoing messages.
    pub fn outstanding(&self, file: FileId) -> usize {
        self.files.get(&file).map_or(0, |f| f.sends.len())
    }

    /// Returns a file whose bytes of unfinished sends and incoming messages have changed since the last call that returned it, and their
    /// present number; none if there is no other. A driver that limits several files together asks after each call.
    pub fn take_changed(&mut self) -> Option<(FileId, usize)> {
        let file = self.changed.pop_first()?;
        Some((file, self.files.get(&file)?.bytes))
    }

    /// Drops what has come of the incoming messages of a file, for lack of memory. Their senders get no acknowledgement, and give up or
    /// begin again.
    pub fn drop_incoming(&mut self, file: FileId) {
        if let Some(open) = self.files.get_mut(&file) {
            open.incoming.retain(|_| false);
            self.settle(file);
        }
    }

    /// Returns the counters.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns whether no file, agent, timer or IsSM is left.
    pub fn is_idle(&self) -> bool {
        self.files.is_empty()
            && self.agents.is_empty()
            && self.owners.is_empty()
            && self.issm.is_empty()
            && self.timers.is_empty()
    }

    fn new_file(&mut self) -> FileId {
        let id = FileId(self.next_file);
        self.next_file += 1;
        id
    }

    fn remove_agents(&mut self, file: FileId) {
        let Some(open) = self.files.get(&file) else { return };
        let agents = open.agents;
        for (slot, _) in (0..).zip(agents).filter(|(_, number)| number.is_some()) {
            let _ = self.unregister(file, slot);
        }
    }

    /// Returns an unused agent number, preferring numbers that were not used recently.
    fn free_number(&mut self) -> AgentNumber {
        const LAST: AgentNumber = (1 << 24) - 1;
        loop {
            let number = self.next_agent;
            self.next_agent = if number == LAST { 1 } else { number + 1 };
            if !self.agents.contains_key(&number) {
                return number;
            }
        }
    }

    /// Schedules service of a file at its earliest timer, after a change of its sends or incoming messages.
    fn settle(&mut self, file: FileId) {
        let Some(open) = self.files.get_mut(&file) else { return };
        let bytes = open.sends.bytes() + open.incoming.bytes();
        if bytes != open.bytes {
            open.bytes = bytes;
            self.changed.insert(file);
        }
        let next = [open.sends.next_timeout(), open.incoming.next_timeout()];
        match next.into_iter().flatten().min() {
            Some(at) if open.deadline.at() == Some(at) => {}
            Some(at) => self.timers.set(&mut open.deadline, file, at),
            None => self.timers.clear(&mut open.deadline, file),
        }
    }

    /// Returns when [`Umad::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }
}
