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

/// A client of this service; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClientId(pub(super) u64);

/// Why a client is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// It closed its socket.
    Closed,
    /// Its process ended, whatever descriptors its children keep open.
    Died,
    /// It did not read what it was sent.
    Slow,
    /// It broke the protocol.
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

/// How the kernel names a user whom it has no number for in this user namespace (`user_namespaces(7)`): two of them
/// need not be the same.
pub(super) const NOBODY: u32 = 65_534;

/// Another process, as the service sees it.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) rpc: Foreign,
    /// Readable when the process ended. None if the kernel does not show it to us.
    pub(super) pidfd: Option<OwnedFd>,
    /// 0 if the kernel does not show it to us.
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) comm: String,
    pub(super) since: Instant,
    /// None before it greeted.
    pub(super) kind: Option<ClientKind>,
    pub(super) device: Option<DeviceSide>,
    /// Whether it may have rings to processes of other hosts.
    pub(super) host_rings: bool,
    pub(super) slots: Vec<u16>,
    pub(super) channels: Vec<ChannelId>,
    /// Numbers for ids that it may still use.
    pub(super) reserved: std::ops::Range<u64>,
    /// The socket and the pidfd.
    _share: Share,
}

/// What a client with a device has.
#[derive(Debug)]
pub(super) struct DeviceSide {
    pub(super) notify: Outgoing,
    /// What it publishes, if it lets others of its user reach its memory.
    pub(super) board: Option<OwnedFd>,
    pub(super) counters: SharedMem,
    /// All three.
    pub(super) _share: Share,
}

impl Client {
    /// Looks at who connected. The socket must not block.
    pub(super) fn accept(rpc: OwnedFd, closer: &Closer, descriptors: &Shares) -> io::Result<Self> {
        let peer = rdmux_link::peer_credentials(&rpc)?;
        let uid = peer.uid;
        let rpc = closer.socket(uid, rpc);
        if closer.is_full(uid) {
            let why = "too many descriptors that its user passed cannot be closed";
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

    /// What it takes to reach the memory of this process: its board and a pidfd. None for processes of
    /// another user, of which one or the other does not want it, or that we cannot name.
    pub(super) fn reach_for(&self, other: &Self) -> Option<(&OwnedFd, &OwnedFd)> {
        other.device.as_ref()?.board.as_ref()?;
        other.pidfd.as_ref()?;
        let board = self.device.as_ref()?.board.as_ref()?;
        let same = self.uid == other.uid && self.uid != NOBODY;
        same.then_some((board, self.pidfd.as_ref()?))
    }

    /// Whether it is the same process, as far as the kernel tells: of two that it does not show us, whether both are of
    /// one user.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        let same_user = self.uid == other.uid && self.uid != NOBODY;
        self.pid == other.pid && (self.pid != 0 || same_user)
    }

    /// The kind of its device, if it has one.
    pub(super) fn device_kind(&self) -> Option<DeviceKind> {
        match self.kind? {
            ClientKind::Device(kind) => Some(kind),
            ClientKind::Tool | ClientKind::Host => None,
        }
    }

    /// The value of one of its counters.
    pub(super) fn counter(&self, counter: Counter) -> u64 {
        let device = self.device.as_ref();
        let word = device.and_then(|d| d.counters.words().get(counter as usize));
        word.map_or(0, |w| w.load(Ordering::Relaxed))
    }

    /// Closes our side, also towards children that share the other.
    pub(super) fn close(&self) {
        let shut = |fd| rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        let _ = shut(self.rpc.as_fd());
        if let Some(device) = &self.device {
            let _ = shut(device.notify.as_fd());
        }
    }
}

/// A descriptor of the process that connected; of ourselves none, since who asks us lives.
fn pidfd(pid: Pid) -> Option<OwnedFd> {
    if pid == rustix::process::getpid() {
        return None;
    }
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .inspect_err(|e| tracing::debug!("no pidfd of process {pid:?}: {e}"))
        .ok()
}

/// All clients, and what the dead ones counted.
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

    /// Takes a client out, and remembers what it counted.
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

    /// Whether nobody is here who has greeted, save our own.
    pub(super) fn is_idle(&self, is_own: impl Fn(ClientId) -> bool) -> bool {
        self.all.iter().all(|(id, c)| c.kind.is_none() || is_own(*id))
    }

    /// What all devices counted, those of dead processes included.
    pub(super) fn counters(&self) -> Vec<(String, u64)> {
        let mut all = self.counters_of(DeviceKind::default());
        for row in kind::rows().iter().filter(|row| row.kind != DeviceKind::default()) {
            for ((_, sum), (_, n)) in all.iter_mut().zip(self.counters_of(row.kind)) {
                *sum = sum.wrapping_add(n);
            }
        }
        all
    }

    /// What the devices of a kind counted, those of dead processes included.
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
