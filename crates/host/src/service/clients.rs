//! The process table.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rdmux_cm::ChannelId;
use rdmux_link::SharedMem;
use rdmux_runtime::closing::{Closer, Foreign};
use rdmux_runtime::{Share, Shares};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::counters::{Counter, PAGE_COUNTERS};
use rdmux_verbs::kind::{self, PerKind};
use rustix::process::{Pid, PidfdFlags};
use std::sync::atomic::Ordering;

use super::counters::Count;
use super::outgoing::Outgoing;
use crate::proto::ClientKind;

/// The id of a client of this service, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClientId(pub(super) u64);

/// The reason why a client is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The client closed its socket.
    Closed,
    /// The client's process ended, even if its children keep descriptors open.
    Died,
    /// The client did not read its messages.
    Slow,
    /// The client broke the protocol.
    Broke(String),
}

impl Gone {
    pub(super) fn count(&self) -> Count {
        match self {
            Self::Closed => Count::ClientsClosed,
            Self::Died => Count::ClientsDied,
            Self::Slow => Count::ClientsSlow,
            Self::Broke(_) => Count::ClientsBroke,
        }
    }
}

/// The uid that the kernel shows for users that have none in this user namespace (`user_namespaces(7)`). Two of them
/// need not be the same user.
pub(super) const NOBODY: u32 = 65_534;

/// A client process, as the service sees it.
#[derive(Debug)]
pub(super) struct Client {
    /// The socket for requests and replies.
    pub(super) rpc: Foreign,
    /// Readable when the process has ended. None if the kernel does not show the process to the service.
    pub(super) pidfd: Option<OwnedFd>,
    /// The process ID, or 0 if the kernel does not show the process to the service.
    pub(super) pid: i32,
    pub(super) uid: u32,
    /// The name of the process.
    pub(super) comm: String,
    /// The time of the connection.
    pub(super) since: Instant,
    /// The kind of the client. None until it has greeted.
    pub(super) kind: Option<ClientKind>,
    /// The state of the client's device, if it has opened one.
    pub(super) device: Option<DeviceSide>,
    /// Whether the client may have rings to processes of other hosts.
    pub(super) host_rings: bool,
    /// The slots of the client's queue pairs.
    pub(super) slots: Vec<u16>,
    /// The client's event channels.
    pub(super) channels: Vec<ChannelId>,
    /// Reserved id numbers that it may still use.
    pub(super) reserved: std::ops::Range<u64>,
    /// The share for the socket and the pidfd.
    _share: Share,
}

/// The state of a client with a device.
#[derive(Debug)]
pub(super) struct DeviceSide {
    /// The socket for notifications.
    pub(super) notify: Outgoing,
    /// The client's board, if it lets other processes of its user access its memory.
    pub(super) board: Option<OwnedFd>,
    /// The page with the process's counters.
    pub(super) counters: SharedMem,
    /// The share for these three descriptors.
    pub(super) _share: Share,
}

impl Client {
    /// Makes the client for a connection, from its credentials. The socket must not block.
    pub(super) fn accept(rpc: OwnedFd, closer: &Closer, descriptors: &Shares) -> io::Result<Self> {
        let peer = rdmux_link::peer_credentials(&rpc)?;
        let uid = peer.uid;
        let rpc = closer.socket(uid, rpc);
        if closer.is_full(uid) {
            let why = "too many descriptors that its user passed are still being closed";
            return Err(io::Error::other(why));
        }
        let share = descriptors.take(uid, 2).map_err(io::Error::other)?;
        let pid = peer.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Ok(Self {
            rpc,
            pidfd: peer.pid.and_then(pidfd),
            pid,
            uid,
            comm: comm.trim().to_owned(),
            since: Instant::now(),
            kind: None,
            device: None,
            host_rings: true,
            slots: Vec::new(),
            channels: Vec::new(),
            reserved: 0..0,
            _share: share,
        })
    }

    /// Returns what is needed to access this process's memory: its board and a pidfd. None if the processes are of
    /// different users, if either does not allow it, or if the kernel does not name one to the service.
    pub(super) fn reach_for(&self, other: &Self) -> Option<(&OwnedFd, &OwnedFd)> {
        other.device.as_ref()?.board.as_ref()?;
        other.pidfd.as_ref()?;
        let board = self.device.as_ref()?.board.as_ref()?;
        let same = self.uid == other.uid && self.uid != NOBODY;
        same.then_some((board, self.pidfd.as_ref()?))
    }

    /// Returns whether the client may be the same process, as far as the kernel shows. Two processes that it does not
    /// show may be the same if they belong to one user.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        let same_user = self.uid == other.uid && self.uid != NOBODY;
        self.pid == other.pid && (self.pid != 0 || same_user)
    }

    /// Returns the kind of its device, if it has one.
    pub(super) fn device_kind(&self) -> Option<DeviceKind> {
        match self.kind? {
            ClientKind::Device(kind) => Some(kind),
            ClientKind::Tool | ClientKind::Host => None,
        }
    }

    /// Returns the value of one of its counters.
    pub(super) fn counter(&self, counter: Counter) -> u64 {
        let device = self.device.as_ref();
        let word = device.and_then(|d| d.counters.words().get(counter as usize));
        word.map_or(0, |w| w.load(Ordering::Relaxed))
    }

    /// Shuts down the service's sockets, also towards children that share the client's ends.
    pub(super) fn close(&self) {
        let shut = |fd| rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        let _ = shut(self.rpc.as_fd());
        if let Some(device) = &self.device {
            let _ = shut(device.notify.as_fd());
        }
    }
}

/// Returns a pidfd of the process that connected. None for this process itself, which is alive, and if the kernel does not
/// show the process.
fn pidfd(pid: Pid) -> Option<OwnedFd> {
    if pid == rustix::process::getpid() {
        return None;
    }
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .inspect_err(|e| tracing::debug!("cannot open a pidfd of process {pid:?}: {e}"))
        .ok()
}

/// All clients, and the counters of dead ones.
#[derive(Debug)]
pub(super) struct Clients {
    all: BTreeMap<ClientId, Client>,
    next: u64,
    past: PerKind<Vec<u64>>,
}

impl Clients {
    pub(super) fn new() -> Self {
        Self { all: BTreeMap::new(), next: 1, past: PerKind::new(|_| vec![0; PAGE_COUNTERS]) }
    }

    pub(super) fn add(&mut self, client: Client) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        self.all.insert(id, client);
        id
    }

    /// Removes a client, and keeps its counters.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.all.remove(&id)?;
        let past = &mut self.past[client.device_kind().unwrap_or_default()];
        for &counter in Counter::ALL {
            if !counter.is_gauge()
                && let Some(past) = past.get_mut(counter as usize)
            {
                *past = past.wrapping_add(client.counter(counter));
            }
        }
        Some(client)
    }

    pub(super) fn get(&self, id: ClientId) -> Option<&Client> {
        self.all.get(&id)
    }
    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.all.get_mut(&id)
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.all.iter().map(|(&id, client)| (id, client))
    }
    pub(super) fn ids(&self) -> Vec<ClientId> {
        self.all.keys().copied().collect()
    }

    /// Returns whether no client has greeted, apart from the service's own.
    pub(super) fn is_idle(&self, is_own: impl Fn(ClientId) -> bool) -> bool {
        self.all.iter().all(|(id, c)| c.kind.is_none() || is_own(*id))
    }

    /// Returns the counters of all devices, including those of dead processes.
    pub(super) fn counters(&self) -> Vec<(String, u64)> {
        let mut all = self.counters_of(DeviceKind::default());
        for row in kind::rows().iter().filter(|row| row.kind != DeviceKind::default()) {
            for ((_, sum), (_, n)) in all.iter_mut().zip(self.counters_of(row.kind)) {
                *sum = sum.wrapping_add(n);
            }
        }
        all
    }

    /// Returns the counters of a kind's devices, including those of dead processes.
    pub(super) fn counters_of(&self, kind: DeviceKind) -> Vec<(String, u64)> {
        let past = &self.past[kind];
        let here = || self.all.values().filter(|c| c.device_kind() == Some(kind));
        let sum = |&counter: &Counter| {
            let past = past.get(counter as usize).copied().unwrap_or(0);
            let sum = here().fold(past, |s, c| s.wrapping_add(c.counter(counter)));
            (counter.name().to_owned(), sum)
        };
        Counter::ALL.iter().map(sum).collect()
    }
}
