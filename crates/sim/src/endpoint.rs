//! A node with its processes, and a queue pair.

use std::collections::{BTreeMap, VecDeque};

use rdmux_testing::env::PutOff;
use rdmux_transport::wr::Sge;
use rdmux_transport::{Qp, Time};
use rdmux_wire::Rkey;

use crate::memory::{Memory, Mr};
use crate::net::NodeId;

/// The number of processes per node. Ordinary queue pairs belong to the first one; the others have a shared receive queue for
/// XRC each.
pub(crate) const PROCESSES: usize = 4;

/// The number of the first process's shared receive queue, if it had one for XRC.
const FIRST_SRQN: u32 = 0xab_cd00;

/// Returns the number of a process's shared receive queue; 0 if XRC may not name it.
pub(crate) fn srqn_of(process: usize) -> u32 {
    let index = u32::try_from(process).expect("few processes");
    if process == 0 { 0 } else { FIRST_SRQN + index }
}

/// Returns the process whose shared receive queue has this number.
pub(crate) fn process_of(srqn: u32) -> Option<usize> {
    (1..PROCESSES).find(|&process| srqn_of(process) == srqn)
}

/// Returns the index of a process on its node, by the number of its shared receive queue; 0 is the first process.
pub(crate) fn index_of(srqn: u32) -> usize {
    process_of(srqn).unwrap_or(0)
}

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct RecvRecord {
    /// The work request ID.
    pub(crate) wr_id: u64,
    /// The memory of the list.
    pub(crate) mr: Mr,
    /// The scatter list.
    pub(crate) sges: Vec<Sge>,
}

/// The kind of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SEND, with or without immediate.
    Send,
    /// SEND with invalidate of a region of the peer's.
    SendInv(Mr),
    /// RDMA WRITE to a region of the peer's.
    Write(Mr),
    /// RDMA WRITE with immediate to a region of the peer's.
    WriteImm(Mr),
    /// RDMA READ from a region of the peer's.
    Read(Mr),
    /// An atomic on the peer's counter.
    Atomic {
        /// The former value of the counter, which the atomic must return.
        original: u64,
    },
    /// Invalidates a local region.
    LocalInv(Mr),
}

/// A posted send.
#[derive(Clone, Debug)]
pub(crate) struct SendRecord {
    /// The work request ID.
    pub(crate) wr_id: u64,
    /// The operation number that determines its bytes.
    pub(crate) op: u64,
    /// The peer's process that it is for.
    pub(crate) process: usize,
    /// The kind of operation.
    pub(crate) kind: Kind,
    /// Whether the send is signaled.
    pub(crate) signaled: bool,
    /// The local memory; none if it was inline.
    pub(crate) local: Option<Mr>,
    /// The gather list.
    pub(crate) sges: Vec<Sge>,
    /// Bytes of the message.
    pub(crate) len: u32,
    /// Whether the send is the plan's mistake.
    pub(crate) poisoned: bool,
}

/// A message that the peer has posted and that consumes a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// The operation number that determines its bytes.
    pub(crate) op: u64,
    /// The process that receives it.
    pub(crate) process: usize,
    /// Its length.
    pub(crate) len: u32,
    /// Its immediate data.
    pub(crate) imm: Option<[u8; 4]>,
    /// The key that it invalidates.
    pub(crate) invalidates: Option<Rkey>,
    /// Whether the message's bytes are in the receive, rather than written elsewhere.
    pub(crate) in_receive: bool,
}

/// A queue pair with the state of its application.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Its node.
    pub(crate) node: NodeId,
    /// The queue pair.
    pub(crate) qp: Qp,
    /// The other end.
    pub(crate) peer: usize,
    /// The number of the plan, and which end this is.
    pub(crate) plan: (usize, usize),
    /// Operations still to be posted.
    pub(crate) to_post: u32,
    /// Operations posted so far.
    pub(crate) posted: u32,
    /// Sends outstanding, oldest first.
    pub(crate) sends: VecDeque<SendRecord>,
    /// Receives outstanding, oldest first, unless they are shared.
    pub(crate) recvs: VecDeque<RecvRecord>,
    /// Messages that the peer has posted for this end, oldest first (RC).
    pub(crate) expected: VecDeque<Expected>,
    /// The memory for the peer's atomics, in each process.
    pub(crate) counters: [Mr; PROCESSES],
    /// The expected values of the peer's counters when everything posted so far is done.
    pub(crate) peer_counters: [u64; PROCESSES],
    /// The shared receive queue of the receive that an XRC target has taken.
    pub(crate) taken: Option<u32>,
    /// Deferred atomics of each process, oldest first.
    pub(crate) put_off: [VecDeque<PutOff>; PROCESSES],
    /// Whether a fault allows this end to see errors.
    pub(crate) doomed: bool,
    /// Whether a send has failed.
    pub(crate) failed: bool,
    /// Whether a wake-up is scheduled.
    pub(crate) awake: bool,
    /// Whether a post is scheduled.
    pub(crate) posting: bool,
    /// The time of the scheduled timer event.
    pub(crate) timer: Time,
    /// Whether the send queue is being drained.
    pub(crate) draining: bool,
    /// WRITEs of UC, whose bytes are checked at the end.
    pub(crate) unreliable_writes: Vec<(u64, Mr)>,
}

impl Endpoint {
    /// Returns whether the application has nothing left to do or to wait for.
    pub(crate) fn is_finished(&self) -> bool {
        let waits = self.qp.qp_type().is_reliable() && !self.doomed && !self.expected.is_empty();
        self.to_post == 0 && self.sends.is_empty() && !waits
    }
}

/// A node: processes on a machine.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// Whether the node's queue pairs share receives.
    pub(crate) has_srq: bool,
    /// Whether the node's queue pairs buffer out-of-order packets.
    pub(crate) keeps: bool,
    /// The time until which the node is not scheduled on a processor.
    pub(crate) paused_until: Time,
    /// Its processes.
    pub(crate) processes: [Process; PROCESSES],
}

/// A process: memory and a shared receive queue.
#[derive(Debug, Default)]
pub(crate) struct Process {
    /// Its memory.
    pub(crate) memory: Memory,
    /// The shared receives that are not taken.
    pub(crate) srq: VecDeque<RecvRecord>,
    /// The shared receives that are taken and not complete.
    pub(crate) srq_taken: BTreeMap<u64, RecvRecord>,
}
