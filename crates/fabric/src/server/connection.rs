//! Who is connected, and for what.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rdmux_runtime::closing::{Closer, Foreign};
use rdmux_subnet::umad::FileId;
use rdmux_subnet::{PortEvent, PortId};
use rdmux_wire::Guid;

use super::host_table::Place;
use super::outgoing::Outgoing;

/// A connection; never used again. Smaller numbers are of the poller's other sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(pub(super) u64);

/// The first.
const FIRST: u64 = 16;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Foreign,
    /// 0 if the kernel does not show it to us.
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) out: Outgoing,
    pub(super) part: Part,
    /// Where it comes from, if that is another machine.
    pub(super) place: Option<Place>,
    /// What the poller watches it for: to read, to write.
    pub(super) watched: (bool, bool),
    /// Whether it is among those to which something is sent at the end of the turn.
    pub(super) due: bool,
}

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Part {
    /// It has not greeted.
    New,
    /// A host has this port. Its own GUID, and what happened to the port since the last update.
    Attachment { host: String, guid: Guid, port: PortId, pending: Vec<PortEvent> },
    /// Questions about an open file.
    Control(FileId),
    /// Datagrams of an open file.
    Mads(FileId),
    /// A manager runs at this port, or waits for the one who does.
    IsSm { port: PortId, file: Option<FileId> },
    /// A bridge is told of the route tables of its hosts.
    Tables,
    /// A command.
    Admin,
    /// Somebody captures the datagrams of this port.
    Capture(PortId),
}

impl Connection {
    /// Looks at who connected.
    pub(super) fn new(socket: OwnedFd, closer: &Closer) -> io::Result<Self> {
        let peer = rdmux_link::peer_credentials(&socket)?;
        Ok(Self {
            socket: closer.socket(peer.uid, socket),
            pid: peer.pid.map_or(0, |pid| pid.as_raw_nonzero().get()),
            uid: peer.uid,
            out: Outgoing::default(),
            part: Part::New,
            place: None,
            watched: (true, false),
            due: false,
        })
    }

    /// Whether it is of this process, whose bridge says where it comes from.
    pub(super) fn is_own(&self) -> bool {
        u32::try_from(self.pid).is_ok_and(|pid| pid == std::process::id())
    }

    /// Whether it may send: one that does not read its answers may not ask for more.
    pub(super) fn may_ask(&self) -> bool {
        matches!(self.part, Part::Mads(_)) || self.out.is_empty()
    }

    /// The name of its program, as far as the system tells.
    pub(super) fn comm(&self) -> String {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        comm.trim().to_owned()
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    all: HashMap<ConnectionId, Connection>,
    next: u64,
}

impl Connections {
    pub(super) fn new() -> Self {
        Self { all: HashMap::new(), next: FIRST }
    }

    /// The number that the next one gets.
    pub(super) fn next_id(&self) -> ConnectionId {
        ConnectionId(self.next)
    }

    pub(super) fn add(&mut self, connection: Connection) -> ConnectionId {
        let id = self.next_id();
        self.next += 1;
        self.all.insert(id, connection);
        id
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.all.remove(&id)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.all.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.all.iter().map(|(&id, c)| (id, c))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether nobody is here who has greeted.
    pub(super) fn is_idle(&self) -> bool {
        self.all.values().all(|c| matches!(c.part, Part::New))
    }
}
