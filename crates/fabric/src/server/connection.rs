//! The clients' connections and their purposes.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rdmux_runtime::closing::{Closer, Foreign};
use rdmux_runtime::{Share, Shares};
use rdmux_subnet::umad::FileId;
use rdmux_subnet::{PortEvent, PortId};
use rdmux_wire::Guid;

use super::host_table::Place;
use super::outgoing::Outgoing;

/// The number of a connection, never reused. Smaller numbers are the poller's other sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(pub(super) u64);

/// The first number.
const FIRST: u64 = 16;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Foreign,
    /// The process ID, or 0 if the kernel does not show the process to the fabric.
    pub(super) pid: i32,
    pub(super) uid: u32,
    /// Queued messages for the client.
    pub(super) out: Outgoing,
    /// The purpose of the connection.
    pub(super) part: Part,
    /// The connection's origin, if that is another machine.
    pub(super) place: Option<Place>,
    /// Whether the poller watches the connection for reading, and for writing.
    pub(super) watched: (bool, bool),
    /// Whether records must be sent to the connection at the end of the turn.
    pub(super) due: bool,
}

/// The purpose of a connection.
#[derive(Debug)]
pub(super) enum Part {
    /// The client has not greeted.
    New,
    /// A host has attached this port. `guid` is the host's own, `pending` the events of the port
    /// since the last update.
    Attachment { host: String, guid: Guid, port: PortId, pending: Vec<PortEvent> },
    /// Requests about an open file.
    Control(FileId),
    /// Datagrams of an open file.
    Mads(FileId),
    /// A subnet manager runs at this port, or waits for the present one to leave.
    IsSm { port: PortId, file: Option<FileId> },
    /// A bridge receives changes of its hosts' route tables.
    Tables,
    /// A command.
    Admin,
    /// Captures the datagrams of this port.
    Capture(PortId),
}

impl Connection {
    /// Makes a connection, with the client's credentials.
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

    /// Returns whether the connection is from this process, whose bridge knows its origin.
    pub(super) fn is_own(&self) -> bool {
        u32::try_from(self.pid).is_ok_and(|pid| pid == std::process::id())
    }

    /// Returns whether requests are read: a client that does not read its answers may send no more.
    pub(super) fn may_ask(&self) -> bool {
        matches!(self.part, Part::Mads(_)) || self.out.is_empty()
    }

    /// Returns the name of the client's program, if the kernel reports it.
    pub(super) fn comm(&self) -> String {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        comm.trim().to_owned()
    }
}

/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 16_384;

/// All connections. Each user has a share.
#[derive(Debug)]
pub(super) struct Connections {
    all: HashMap<ConnectionId, (Connection, Share)>,
    next: u64,
    /// The present limit of connections: each has a descriptor.
    most: usize,
    shares: Shares,
}

impl Connections {
    pub(super) fn new() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        let most = limit.unwrap_or(MAX_CONNECTIONS).min(MAX_CONNECTIONS);
        Self::of(most, Shares::new(most))
    }

    fn of(most: usize, shares: Shares) -> Self {
        Self { all: HashMap::new(), next: FIRST, most, shares }
    }

    /// Returns the number of the next connection.
    pub(super) fn next_id(&self) -> ConnectionId {
        ConnectionId(self.next)
    }

    /// Reserves a user's share for one more connection.
    pub(super) fn room_for(&self, uid: u32) -> io::Result<Share> {
        if self.all.len() >= self.most {
            return Err(io::Error::other(format!("there are {} connections already", self.most)));
        }
        self.shares.take(uid, 1).map_err(io::Error::other)
    }

    pub(super) fn add(&mut self, connection: Connection, share: Share) -> ConnectionId {
        let id = self.next_id();
        self.next += 1;
        self.all.insert(id, (connection, share));
        id
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.all.remove(&id).map(|(connection, _)| connection)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.all.get(&id).map(|(connection, _)| connection)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.all.get_mut(&id).map(|(connection, _)| connection)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.all.iter().map(|(&id, (connection, _))| (id, connection))
    }

    /// Returns whether no client has greeted.
    pub(super) fn is_idle(&self) -> bool {
        self.all.values().all(|(connection, _)| matches!(connection.part, Part::New))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn connections_of_a_user_are_limited_to_its_share_and_the_owner_gets_the_rest() {
        let closer = Closer::default();
        let (socket, _peer) = rdmux_runtime::socket::pair().unwrap();
        let mut connections = Connections::of(16, Shares::of(1000, 16));
        let connect = |connections: &mut Connections, uid: u32| {
            let socket = socket.as_fd().try_clone_to_owned().unwrap();
            let connection = Connection { uid, ..Connection::new(socket, &closer).unwrap() };
            let share = connections.room_for(uid).ok()?;
            Some(connections.add(connection, share))
        };
        let first: Vec<_> = (0..20).map_while(|_| connect(&mut connections, 1)).collect();
        assert_eq!(first.len(), 8);
        let second: Vec<_> = (0..20).map_while(|_| connect(&mut connections, 2)).collect();
        assert_eq!(second.len(), 4);
        assert_eq!(connect(&mut connections, 3), None);
        connect(&mut connections, 0).unwrap();
        connect(&mut connections, 1000).unwrap();
        for id in first {
            connections.remove(id).unwrap();
        }
        assert!(connect(&mut connections, 1).is_some() && connect(&mut connections, 3).is_some());
        while connect(&mut connections, 1000).is_some() {}
        assert_eq!(connections.all.len(), 16);
    }
}
