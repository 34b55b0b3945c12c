//! Management interfaces that programs have opened, and subnet managers.

use std::collections::HashMap;

use rdmux_runtime::Shares;
use rdmux_subnet::PortId;
use rdmux_subnet::umad::{Errno, FileId, Registration, Unsent, UserMad};
use rdmux_wire::MadHeader;
use rdmux_wire::mad::{Method, MgmtClass};
use rdmux_wire::sm::PortInfo;

use super::connection::{ConnectionId, Connections, Part};
use super::core::{Core, Ends, is_privileged, watch};
use super::counters::{Count, Counts};
use super::world::{Reader, World};
use crate::proto::mad::{self, Came, MAX_RECORD, Reassembly};
use crate::proto::{Failure, FileReply, FileRequest, PortRef, Reply};

/// Maximum number of bytes that wait for programs and captures to read, which users share.
const MAX_UNREAD: usize = 512 << 20;
/// Number of bytes from which records are sent before the turn ends.
const MAX_TURN: usize = 64 << 10;

/// Maximum number of bytes of incomplete records, which users share: one user may have two of the longest.
const MAX_PARTIAL: usize = 4 * MAX_RECORD;

/// A file that a program has opened.
#[derive(Debug)]
pub(super) struct OpenFile {
    control: ConnectionId,
    mads: Option<ConnectionId>,
    key: [u8; 16],
    reassembly: Reassembly,
    /// Whether the program's user may manage the subnet.
    manages: bool,
    /// The program's name.
    pub(super) comm: String,
    /// Records that were dropped because too many wait.
    pub(super) dropped: u64,
}

/// All files.
#[derive(Debug)]
pub(super) struct Files {
    all: HashMap<FileId, OpenFile>,
    /// The shares of bytes of incomplete records.
    shares: Shares,
    /// The shares of bytes that programs and captures have not read.
    pub(super) unread: Shares,
}

impl Default for Files {
    fn default() -> Self {
        let (shares, unread) = (Shares::new(MAX_PARTIAL), Shares::new(MAX_UNREAD));
        Self { all: HashMap::new(), shares, unread }
    }
}

impl Files {
    /// Returns the connection for datagrams of a file.
    pub(super) fn mads_of(&self, file: FileId) -> Option<ConnectionId> {
        self.all.get(&file)?.mads
    }

    /// Checks whether the user of a file may register an agent. Agents that receive requests of subnet management take the place of
    /// a subnet manager, or of the port's own agent.
    fn may_register(&self, file: FileId, what: &Registration) -> Result<(), Errno> {
        let manages = what.methods != 0 && MgmtClass(what.class).is_subnet_management();
        self.permit(file, manages)
    }

    /// Checks whether the user of a file may send a datagram. Of subnet management, other users may send only Gets: nothing asks
    /// them for a response.
    fn may_send(&self, file: FileId, data: &[u8]) -> Result<(), Errno> {
        // The device refuses a datagram without a header.
        let manages = MadHeader::parse(data).is_ok_and(|header| {
            header.mgmt_class.is_subnet_management() && header.method != Method::GET
        });
        self.permit(file, manages)
    }

    fn permit(&self, file: FileId, manages: bool) -> Result<(), Errno> {
        let may = !manages || self.all.get(&file).is_none_or(|open| open.manages);
        if may { Ok(()) } else { Err(Errno::Perm) }
    }

    /// Returns all files, each with its connections for requests and for datagrams.
    pub(super) fn iter(
        &self,
    ) -> impl Iterator<Item = (FileId, &OpenFile, ConnectionId, Option<ConnectionId>)> {
        self.all.iter().map(|(&id, file)| (id, file, file.control, file.mads))
    }
}

/// The programs, as receivers of the agents' records.
pub(super) struct Programs<'c> {
    connections: &'c mut Connections,
    files: &'c mut Files,
    counts: &'c mut Counts,
    due: &'c mut Vec<ConnectionId>,
    /// The buffer in which records are encoded.
    scratch: &'c mut Vec<u8>,
}

impl Reader for Programs<'_> {
    fn read(&mut self, file: FileId, record: &UserMad) {
        self.counts.add(Count::MadsReceived);
        let Some(open) = self.files.all.get_mut(&file) else { return };
        let Some(id) = open.mads else { return };
        let Some(connection) = self.connections.get_mut(id) else { return };
        if !connection.out.has_room(mad::HEADER + record.data.len()) {
            open.dropped += 1;
            return self.counts.add(Count::MadsDropped);
        }
        mad::encode(record, self.scratch);
        for message in mad::messages(self.scratch) {
            connection.out.push(message);
        }
        if !std::mem::replace(&mut connection.due, true) {
            self.due.push(id);
        }
    }
}

impl Core {
    /// Returns the subnet with its agents, and the programs that read.
    pub(super) fn world_and_programs(&mut self) -> (&mut World, Programs<'_>) {
        let programs = Programs {
            connections: &mut self.connections,
            files: &mut self.files,
            counts: &mut self.counts,
            due: &mut self.due,
            scratch: &mut self.scratch,
        };
        (&mut self.world, programs)
    }

    /// Sends programs their records, several in one call, so that a program is woken once for all.
    pub(super) fn send_records(&mut self) {
        self.publish();
        self.pass_captured();
        let mut due = std::mem::take(&mut self.due);
        for id in due.drain(..) {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.due = false;
            // The poller reports when a client is gone.
            let _ = connection.out.try_flush(&connection.socket);
            watch(&self.poller, id, connection);
        }
        self.due = due;
    }

    /// Opens the management interface of a port for a program.
    pub(super) fn open_file(&mut self, id: ConnectionId, port: &PortRef) -> Result<(), Ends> {
        let opened = self.find_port(port).and_then(|port| {
            let mut key = [0; 16];
            getrandom::fill(&mut key)
                .map_err(|e| Failure::new(libc::EIO, format!("no random bytes: {e}")))?;
            Ok((port, key))
        });
        let (port, key) = match opened {
            Ok(opened) => opened,
            Err(failure) => return self.welcome::<FileReply>(id, Err(failure)),
        };
        let Some(user) = self.connections.get(id).map(|c| c.uid) else { return Ok(()) };
        let file = self.world.open(port, user);
        self.serve_port(port);
        let Some(connection) = self.connections.get(id) else { return Ok(()) };
        let (comm, dropped) = (connection.comm(), 0);
        let reassembly = Reassembly::new(self.files.shares.none(connection.uid));
        let manages = is_privileged(connection.uid);
        let open = OpenFile { control: id, mads: None, key, reassembly, manages, comm, dropped };
        self.files.all.insert(file, open);
        self.become_part(id, Part::Control(file));
        self.welcome(id, Ok(FileReply::Opened { file: file.0, key }))
    }

    /// Opens the connection for a file's datagrams.
    pub(super) fn open_mads(
        &mut self,
        id: ConnectionId,
        file: u64,
        key: &[u8; 16],
    ) -> Result<(), Ends> {
        let file = FileId(file);
        let open = self.files.all.get_mut(&file);
        let Some(open) = open.filter(|open| open.key == *key && open.mads.is_none()) else {
            let why = "the file does not exist, or has a connection already".to_owned();
            return self.welcome::<()>(id, Err(Failure::new(libc::EBADF, why)));
        };
        open.mads = Some(id);
        if let Some(connection) = self.connections.get_mut(id) {
            connection.out.limit(self.files.unread.none(connection.uid));
        }
        self.become_part(id, Part::Mads(file));
        self.welcome(id, Ok(()))
    }

    /// Handles a program's request about its file.
    pub(super) fn file_request(
        &mut self,
        id: ConnectionId,
        file: FileId,
        message: &[u8],
    ) -> Result<(), Ends> {
        let request = rdmux_runtime::socket::decode(message);
        let request = request.map_err(|_| Ends::Broke("an invalid request"))?;
        // Records that the program could read before precede the answer.
        self.send_records();
        let done = |result: Result<(), Errno>| result.map(|()| FileReply::Done);
        let result = match request {
            FileRequest::Register(what) => {
                let may = self.files.may_register(file, &what);
                may.and_then(|()| self.world.register(file, &what)).map(FileReply::Agent)
            }
            FileRequest::Unregister { agent } => done(self.world.unregister(file, agent)),
            FileRequest::Check(mad) => {
                let may = self.files.may_send(file, &mad.data);
                done(may.and_then(|()| self.world.check_write(file, &mad)))
            }
        };
        let reply: Reply<FileReply> = result.map_err(|e| Failure::new(e.raw(), e.to_string()));
        self.send(id, &reply)
    }

    /// Handles a message of a program's record.
    pub(super) fn file_message(&mut self, file: FileId, message: &[u8]) -> Result<(), Ends> {
        let Some(open) = self.files.all.get_mut(&file) else { return Ok(()) };
        let came = open.reassembly.take(message, |came| match came {
            Came::Whole(record) => Ok((mad::decode(record)?, true)),
            Came::Refused(first) => Ok((mad::decode_first(first)?, false)),
        });
        let came = came.and_then(Option::transpose);
        let came = came.map_err(|_| Ends::Broke("a datagram with an invalid header"))?;
        let Some((record, is_whole)) = came else { return Ok(()) };
        self.count(Count::MadsSent);
        let back = Unsent::of(&record).filter(|_| record.timeout_ms > 0);
        let sent = if is_whole { self.send_mad(file, record) } else { Err(Errno::NoMem) };
        if let Err(e) = sent {
            if let Some(back) = back {
                self.world_and_programs().1.read(file, &back.record(e));
            }
            self.count(Count::MadsRefused);
        }
        let connections = &self.connections;
        let waits = |id| connections.get(id).is_some_and(|c| c.out.bytes() >= MAX_TURN);
        if self.due.iter().any(|id| waits(*id)) {
            self.send_records();
        }
        Ok(())
    }

    /// Sends a program's datagram.
    fn send_mad(&mut self, file: FileId, record: UserMad) -> Result<(), Errno> {
        self.files.may_send(file, &record.data)?;
        match MadHeader::parse(&record.data) {
            // If it was read for an earlier one of the datagrams that were received together, it has all packets sent before this one.
            Ok(header) if header.mgmt_class == MgmtClass::PERF && !self.is_fresh => {
                self.read_counts();
            }
            Ok(header)
                if header.mgmt_class.is_subnet_management()
                    && header.attr_id == PortInfo::ATTR_ID =>
            {
                // Managers read this attribute more often than any other.
                self.published.counts.read_dropped(self.world.subnet_mut());
            }
            _ => {}
        }
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        world.write(&mut programs, now, file, record)
    }

    /// Closes the file of a program that closed it or is gone.
    pub(super) fn close_file(&mut self, file: FileId) {
        let Some(open) = self.files.all.remove(&file) else { return };
        let port = self.world.umad().port(file);
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        world.close(&mut programs, now, file);
        for id in [Some(open.control), open.mads].into_iter().flatten() {
            self.remove(id);
        }
        if let Some(port) = port {
            self.serve_port(port);
        }
    }

    /// Sets the IsSM bit of a port for a manager, which may wait for it.
    pub(super) fn set_is_sm(
        &mut self,
        id: ConnectionId,
        port: &PortRef,
        wait: bool,
    ) -> Result<(), Ends> {
        let port = match self.find_port(port) {
            Ok(port) => port,
            Err(failure) => return self.welcome::<()>(id, Err(failure)),
        };
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        match world.open_is_sm(&mut programs, now, port) {
            Ok(file) => {
                self.become_part(id, Part::IsSm { port, file: Some(file) });
                self.serve_port(port);
                self.welcome(id, Ok(()))
            }
            Err(Errno::Again) if wait => {
                self.become_part(id, Part::IsSm { port, file: None });
                Ok(())
            }
            Err(e) => {
                let why = "a manager runs at this port already".to_owned();
                self.welcome::<()>(id, Err(Failure::new(e.raw(), why)))
            }
        }
    }

    /// Handles a manager's release of a port: the next waiting one that can be notified gets it.
    pub(super) fn clear_is_sm(&mut self, port: PortId, file: FileId) {
        let waits = |part: &Part| matches!(part, Part::IsSm { port: p, file: None } if *p == port);
        let waiting = self.connections.iter().filter(|(_, c)| waits(&c.part)).map(|(id, _)| id);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        self.close_is_sm(file);
        for next in waiting {
            let now = self.now();
            let (world, mut programs) = self.world_and_programs();
            let Ok(file) = world.open_is_sm(&mut programs, now, port) else { break };
            self.become_part(next, Part::IsSm { port, file: Some(file) });
            if self.welcome(next, Ok(())).is_ok() {
                return;
            }
            // `close` would recurse here for each manager that cannot be notified.
            self.remove(next);
            self.close_is_sm(file);
        }
        self.serve_port(port);
    }

    fn close_is_sm(&mut self, file: FileId) {
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        world.close(&mut programs, now, file);
    }

    /// Informs the subnet whether a program or host uses a port. If none does, the port's agents answer
    /// instead.
    pub(super) fn serve_port(&mut self, port: PortId) {
        let on_port = |part: &Part| match part {
            Part::Control(file) => self.world.umad().port(*file) == Some(port),
            Part::IsSm { port: p, file: Some(_) } => *p == port,
            Part::Attachment { port: p, .. } => *p == port,
            _ => false,
        };
        let attached =
            self.world.is_managers(port) || self.connections.iter().any(|(_, c)| on_port(&c.part));
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        world.change(&mut programs, now, |subnet, _| subnet.set_attached(port, attached));
    }
}
