//! Access to the memory of other processes of this host, and their access to the memory of this one.
//!
//! Each device has a [`Board`] on which it publishes its regions and queue pairs. The service passes it, with a pidfd, to those
//! processes of the same user to which there are rings. A process that has the board of a peer can execute WRITEs and READs by
//! itself ([`crate::engine::wire::direct`]).

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

/// Time to wait for a peer's copies, which take less than a millisecond. Long enough for any peer that is not stopped.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The queue pair of a process that has data to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The number of the queue pair.
    pub(crate) qpn: u32,
    /// The sequence number of its row on its process's board.
    pub(crate) sequence: u32,
}

/// A process of this host whose memory this process may access.
#[derive(Debug)]
pub(crate) struct Reach {
    /// The number by which this process knows the peer, and the number by which the peer knows this process.
    slot: u16,
    own: u16,
    board: PeerBoard,
    memory: ProcessMemory,
    /// Set when the kernel does not permit access.
    refused: AtomicBool,
    /// Set when the peer stopped in the middle of a copy: its requests are ignored from then on.
    stuck: AtomicBool,
    /// Whether the service has reported that the peer is gone. Possibly only the peer's connection is.
    left: AtomicBool,
}

impl Reach {
    fn open(slot: u16, own: u16, fds: ReachFds) -> std::io::Result<Self> {
        let board = PeerBoard::map(&fds.board)?;
        let memory = ProcessMemory::of_pidfd(fds.pidfd).map_err(std::io::Error::other)?;
        let memory = memory.with_board(&board);
        let [refused, stuck, left] = [const { AtomicBool::new(false) }; 3];
        Ok(Self { slot, own, board, memory, refused, stuck, left })
    }

    /// Returns the process's memory.
    pub(crate) fn memory(&self) -> &ProcessMemory {
        &self.memory
    }

    /// Returns whether the process's memory has not been found inaccessible.
    pub(crate) fn is_open(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Returns whether the process stopped in the middle of a copy, so that its requests are ignored.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Returns the address of a copy's bytes in its memory, if its queue pair accepts requests of this process's queue pair and
    /// would permit this one. To be called while a hazard is set.
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

    /// Returns whether the peer's queue pair, which is connected to that of this process, has been open since it had this sequence
    /// number, and may send the bytes of these ranges with the keys of their regions. To be called while a hazard is set.
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

    /// Records a failed copy. Unless only an address was bad, no further copy is tried.
    pub(crate) fn failed(&self, counters: &Counters<'_>, error: &ProcMemError) {
        let lasting = !matches!(error, ProcMemError::Fault { .. });
        if lasting && !self.refused.swap(true, Ordering::Relaxed) {
            if !matches!(error, ProcMemError::Gone { .. }) {
                counters.add(Counter::DirectRefused, 1);
            }
            tracing::debug!(slot = self.slot, %error, "cannot access the memory of a process; its \
                traffic goes through rings");
        }
    }

    /// Returns whether the peer is alive and in the middle of a copy from or to this process's memory.
    fn is_in_a_copy(&self) -> bool {
        self.board.is_copying(self.own) && !self.memory.is_gone()
    }

    /// Waits until the peer no longer uses any row that this process has withdrawn. Returns false if the peer may still use one
    /// after a timeout. After the first timeout for a peer, later calls do not wait.
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
                "process {} did not finish a copy from or to deregistered memory within \
                 {TIMEOUT:?}: if it is stopped, it may still copy when it continues. Direct copies \
                 with it are disabled",
                self.memory.pid()
            );
        }
        ended
    }
}

/// All processes whose memory this process may access.
pub(crate) struct Reaches {
    board: Option<Arc<Board>>,
    peers: RwLock<Vec<Arc<Reach>>>,
}

impl Reaches {
    pub(crate) fn new(board: Option<Arc<Board>>) -> Self {
        Self { board, peers: RwLock::default() }
    }

    /// Returns this process's board, if others may access its memory.
    pub(crate) fn board(&self) -> Option<&Arc<Board>> {
        self.board.as_ref()
    }

    /// Adds a process with mutual memory access. `slot` is the number by which this process knows it, `own` the number by which it
    /// knows this process. Returns none without access in both directions: a board or descriptor is missing or cannot be used.
    pub(crate) fn add(&self, (slot, own): (u16, u16), fds: Option<ReachFds>) -> Option<Arc<Reach>> {
        self.board()?;
        let reach = Reach::open(slot, own, fds?)
            .inspect_err(
                |error| tracing::debug!(slot, %error, "cannot set up memory access with a process"),
            )
            .ok()
            .map(Arc::new)?;
        self.peers.write().push(reach.clone());
        Some(reach)
    }

    /// Removes a process that is gone, or whose connection to the service is. A process that stopped in the middle of a copy is kept
    /// until it is gone.
    pub(crate) fn remove(&self, slot: u16) {
        self.peers.write().retain(|reach| {
            if reach.slot == slot {
                reach.left.store(true, Ordering::Relaxed);
            }
            !reach.left.load(Ordering::Relaxed) || reach.is_in_a_copy()
        });
    }

    /// Publishes that a copy with the peer begins. The caller must read the peer's board only after this.
    pub(crate) fn enter(&self, reach: &Reach) -> Option<Hazard<'_>> {
        self.board()?.enter(reach.slot)
    }

    /// Waits until no peer uses a region as it was published before it was withdrawn or changed. Returns false if a peer that
    /// stopped in the middle of a copy may still do so; the region of that copy is not known.
    pub(crate) fn wait_for_copies(&self) -> bool {
        let peers = self.peers.read();
        // All are waited for, even after one that has stopped.
        let stopped = peers.iter().filter(|reach| !reach.wait_for_copies()).count();
        stopped == 0
    }
}
