//! Who is connected, and for what.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
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

/// The most connections.
const MAX_CONNECTIONS: usize = 16_384;

/// All connections. The owner of the fabric and root may have all that there can be. Of the others one user may have half, and all of
/// them together three quarters.
#[derive(Debug)]
pub(super) struct Connections {
    all: HashMap<ConnectionId, Connection>,
    next: u64,
    owner: u32,
    /// How many there can be: each has a descriptor.
    most: usize,
    /// How many each user has, save the owner and root.
    of_users: BTreeMap<u32, usize>,
}

impl Connections {
    pub(super) fn new() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        Self {
            all: HashMap::new(),
            next: FIRST,
            owner: rustix::process::geteuid().as_raw(),
            most: limit.unwrap_or(MAX_CONNECTIONS).min(MAX_CONNECTIONS),
            of_users: BTreeMap::new(),
        }
    }

    /// The number that the next one gets.
    pub(super) fn next_id(&self) -> ConnectionId {
        ConnectionId(self.next)
    }

    pub(super) fn add(&mut self, connection: Connection) -> ConnectionId {
        let id = self.next_id();
        self.next += 1;
        if self.is_bounded(connection.uid) {
            *self.of_users.entry(connection.uid).or_default() += 1;
        }
        self.all.insert(id, connection);
        id
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.all.remove(&id)?;
        if let Entry::Occupied(mut of_user) = self.of_users.entry(connection.uid) {
            *of_user.get_mut() -= 1;
            if *of_user.get() == 0 {
                of_user.remove();
            }
        }
        Some(connection)
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

    fn is_bounded(&self, uid: u32) -> bool {
        uid != self.owner && uid != 0
    }

    /// Whether a user may have one more.
    pub(super) fn has_room_for(&self, uid: u32) -> bool {
        let of_user = self.of_users.get(&uid).copied().unwrap_or(0);
        let of_others = self.of_users.values().sum::<usize>();
        let is_within = of_user < self.most / 2 && of_others < self.most - self.most / 4;
        self.all.len() < self.most && (is_within || !self.is_bounded(uid))
    }

    /// Whether nobody is here who has greeted.
    pub(super) fn is_idle(&self) -> bool {
        self.all.values().all(|c| matches!(c.part, Part::New))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn connections_of_other_users_leave_room_for_the_next_and_for_the_owner() {
        let closer = Closer::default();
        let (socket, _peer) = rdmux_runtime::socket::pair().unwrap();
        let mut connections = Connections { owner: 1000, most: 16, ..Connections::new() };
        let connect = |connections: &mut Connections, uid: u32| {
            let socket = socket.as_fd().try_clone_to_owned().unwrap();
            let connection = Connection { uid, ..Connection::new(socket, &closer).unwrap() };
            connections.has_room_for(uid).then(|| connections.add(connection))
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
