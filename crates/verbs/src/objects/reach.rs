//! The memory of other processes of this host, which we may reach, and ours, which they may.
//!
//! Each device has a [`Board`] on which it publishes its regions and queue pairs. The service hands it, with a
//! pidfd, to those processes of the same user to which there are rings. Who has the board of a peer can
//! carry out WRITEs and READs on its own ([`crate::engine::wire::direct`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use rdmux_link::board::Hazard;
use rdmux_link::procmem::Range;
use rdmux_link::{Board, PeerBoard, ProcMemError, ProcessMemory};
use rdmux_transport::attr::Access;
use rdmux_transport::env::Direct;
use rdmux_wire::{Pkey, Qpn};

use crate::objects::control::ReachFds;
use crate::objects::counters::{Counter, Counters};

/// For how long a peer's copies are waited for, which take less than a millisecond. Long enough for any peer
/// that is not stopped.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The queue pair of a process that has something to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) qpn: u32,
    /// Which writing of its row on its process's board it had.
    pub(crate) sequence: u32,
}

/// A process of this host whose memory we may reach.
#[derive(Debug)]
pub(crate) struct Reach {
    /// By which number we know it, and it us.
    slot: u16,
    own: u16,
    board: PeerBoard,
    memory: ProcessMemory,
    /// The kernel does not let us.
    refused: AtomicBool,
    /// It stopped in the middle of a copy: what it wants is not heard any more.
    stuck: AtomicBool,
    /// The service has said that it is gone. Only its connection may be.
    left: AtomicBool,
}

impl Reach {
    fn open(slot: u16, own: u16, fds: ReachFds) -> std::io::Result<Self> {
        let memory = ProcessMemory::of_pidfd(fds.pidfd).map_err(std::io::Error::other)?;
        let board = PeerBoard::map(&fds.board)?;
        let [refused, stuck, left] = [const { AtomicBool::new(false) }; 3];
        Ok(Self { slot, own, board, memory, refused, stuck, left })
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> &ProcessMemory {
        &self.memory
    }

    /// Whether its memory was not found to be out of reach.
    pub(crate) fn is_open(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Whether it stopped in the middle of a copy, and is not to be heard any more.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Where a copy's bytes lie in its memory, if its queue pair takes requests of ours and it would permit this
    /// one. To be called while a hazard is set.
    pub(crate) fn find(&self, own: Qpn, copy: &Direct<'_>) -> Option<u64> {
        let needed = if copy.write { Access::REMOTE_WRITE } else { Access::REMOTE_READ }.bits();
        let qp = self.board.qp(copy.dest_qpn.get())?;
        let region = self.board.region(copy.rkey.0)?;
        let lawful = qp.dest_qpn == own.get()
            && copy.pkey.admits(Pkey(qp.pkey))
            && qp.access & needed != 0
            && region.access & needed != 0
            && region.pd == qp.pd;
        lawful.then(|| region.locate(copy.va, copy.len.into()))?
    }

    /// Whether its queue pair, which is connected to ours, has been open since it had this sequence number, and may
    /// send what is in these ranges, with the keys of their regions. To be called while a hazard is set.
    pub(crate) fn sends(&self, own: Qpn, from: &Origin, ranges: &[Range], keys: &[u32]) -> bool {
        let Some(qp) = self.board.qp(from.qpn).filter(|qp| qp.dest_qpn == own.get()) else {
            return false;
        };
        let lies = |(range, key): (&Range, &u32)| {
            let region = self.board.region(*key);
            region.is_some_and(|r| r.pd == qp.pd && r.holds(range.va, range.len.into()))
        };
        self.board.is_qp_since(from.qpn, from.sequence) && ranges.iter().zip(keys).all(lies)
    }

    /// A copy did not succeed. Where the kernel refuses it is not tried again.
    pub(crate) fn failed(&self, counters: &Counters<'_>, error: &ProcMemError) {
        let lasting = !matches!(error, ProcMemError::Fault { .. });
        if lasting && !self.refused.swap(true, Ordering::Relaxed) {
            if !matches!(error, ProcMemError::Gone { .. }) {
                counters.add(Counter::DirectRefused, 1);
            }
            tracing::debug!(slot = self.slot, %error, "a process is reached by its ring only");
        }
    }

    /// Whether the peer lives and is in the middle of a copy from or to our memory.
    fn is_in_a_copy(&self) -> bool {
        self.board.is_copying(self.own) && !self.memory.is_gone()
    }

    /// Waits until nothing of ours that was published before, and is not any more, is used by the peer. False if it may still be,
    /// after a timeout. After the first timeout for a peer this does not wait for it any more.
    pub(crate) fn wait_for_copies(&self) -> bool {
        if self.is_stuck() {
            return !self.is_in_a_copy();
        }
        let ended = self.board.wait_for_copies(self.own, TIMEOUT, || self.memory.is_gone()).is_ok();
        if !ended {
            self.stuck.store(true, Ordering::Relaxed);
            self.refused.store(true, Ordering::Relaxed);
            crate::throttled!(
                warn,
                "process {} does not end a copy from or to memory that is taken back from it, {TIMEOUT:?} long: if it \
                 is stopped, the copy may still come. Nothing else is taken of it any more",
                self.memory.pid()
            );
        }
        ended
    }
}

/// All of them.
pub(crate) struct Reaches {
    board: Option<Arc<Board>>,
    peers: RwLock<Vec<Arc<Reach>>>,
}

impl Reaches {
    pub(crate) fn new(board: Option<Arc<Board>>) -> Self {
        Self { board, peers: RwLock::default() }
    }

    /// Our own board, if others may reach our memory.
    pub(crate) fn board(&self) -> Option<&Board> {
        self.board.as_deref()
    }

    /// A process that may reach us, and we it; with the numbers by which we know it and it us. None if it cannot be named here.
    pub(crate) fn add(&self, (slot, own): (u16, u16), fds: Option<ReachFds>) -> Option<Arc<Reach>> {
        self.board()?;
        let reach = Reach::open(slot, own, fds?)
            .inspect_err(|error| tracing::debug!(slot, %error, "a process is out of reach"))
            .ok()
            .map(Arc::new)?;
        self.peers.write().push(reach.clone());
        Some(reach)
    }

    /// A process is gone, or its connection to the service is: one that stopped in the middle of a copy stays until it is gone.
    pub(crate) fn remove(&self, slot: u16) {
        self.peers.write().retain(|reach| {
            if reach.slot == slot {
                reach.left.store(true, Ordering::Relaxed);
            }
            !reach.left.load(Ordering::Relaxed) || reach.is_in_a_copy()
        });
    }

    /// Tells the peer that a copy begins. Look at its board only now.
    pub(crate) fn enter(&self, reach: &Reach) -> Option<Hazard<'_>> {
        self.board()?.enter(reach.slot)
    }

    /// Waits until no peer uses a region that was published before, and is not any more, or not as it was. False if one that stopped
    /// in the middle of a copy may still do so: it is not said from or to which region that is.
    pub(crate) fn wait_for_copies(&self) -> bool {
        let peers = self.peers.read();
        // Also those behind one that has stopped.
        let stopped = peers.iter().filter(|reach| !reach.wait_for_copies()).count();
        stopped == 0
    }
}
