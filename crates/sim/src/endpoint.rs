//! A node with its processes, and a queue pair on it.

use std::collections::{BTreeMap, VecDeque};

use rdmux_testing::env::PutOff;
use rdmux_transport::wr::Sge;
use rdmux_transport::{Qp, Time};
use rdmux_wire::Rkey;

use crate::memory::{Memory, Mr};
use crate::net::NodeId;

/// Processes of a node. Ordinary queue pairs are the first one's; the others have a shared receive queue
/// for XRC each.
pub(crate) const PROCESSES: usize = 4;

/// The number of the first process's shared receive queue, if XRC had one there.
const FIRST_SRQN: u32 = 0xab_cd00;

/// The number of a process's shared receive queue; 0 if XRC may not name it.
pub(crate) fn srqn_of(process: usize) -> u32 {
    let index = u32::try_from(process).expect("few processes");
    if process == 0 { 0 } else { FIRST_SRQN + index }
}

/// The process whose shared receive queue has this number.
pub(crate) fn process_of(srqn: u32) -> Option<usize> {
    (1..PROCESSES).find(|&process| srqn_of(process) == srqn)
}

/// The place of a process among those of its node, by the number of its shared receive queue; 0 is the first one's.
pub(crate) fn index_of(srqn: u32) -> usize {
    process_of(srqn).unwrap_or(0)
}

/// A receive that was posted.
#[derive(Clone, Debug)]
pub(crate) struct RecvRecord {
    /// Its number.
    pub(crate) wr_id: u64,
    /// Its memory.
    pub(crate) mr: Mr,
    /// Its list.
    pub(crate) sges: Vec<Sge>,
}

/// What a send does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SEND, with or without immediate.
    Send,
    /// SEND with invalidate of a region of the peer's.
    SendInv(Mr),
    /// RDMA WRITE to a region of the peer's.
    Write(Mr),
    /// The same with immediate.
    WriteImm(Mr),
    /// RDMA READ from a region of the peer's.
    Read(Mr),
    /// An atomic on the peer's counter, which was this before.
    Atomic {
        /// The value that must come back.
        original: u64,
    },
    /// Invalidates a region of our own.
    LocalInv(Mr),
}

/// A send that was posted.
#[derive(Clone, Debug)]
pub(crate) struct SendRecord {
    /// Its number.
    pub(crate) wr_id: u64,
    /// The number that its bytes follow from.
    pub(crate) op: u64,
    /// The process of the peer's that it is for.
    pub(crate) process: usize,
    /// What it does.
    pub(crate) kind: Kind,
    /// Whether its success is told.
    pub(crate) signaled: bool,
    /// Its local memory; none if it was inline.
    pub(crate) local: Option<Mr>,
    /// Its list.
    pub(crate) sges: Vec<Sge>,
    /// Bytes of the message.
    pub(crate) len: u32,
    /// Whether it is the mistake.
    pub(crate) poisoned: bool,
}

/// A message that the peer has posted and that takes a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// The number that its bytes follow from.
    pub(crate) op: u64,
    /// The process that is to receive it.
    pub(crate) process: usize,
    /// Its length.
    pub(crate) len: u32,
    /// Its immediate data.
    pub(crate) imm: Option<[u8; 4]>,
    /// The key that it invalidates.
    pub(crate) invalidates: Option<Rkey>,
    /// Whether its bytes are in the receive, or were written elsewhere.
    pub(crate) in_receive: bool,
}

/// A queue pair, and what its application knows.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Its node.
    pub(crate) node: NodeId,
    /// The machine.
    pub(crate) qp: Qp,
    /// The other end.
    pub(crate) peer: usize,
    /// The plan's number, and which end this is.
    pub(crate) plan: (usize, usize),
    /// Operations still to be posted.
    pub(crate) to_post: u32,
    /// Operations posted so far.
    pub(crate) posted: u32,
    /// Sends outstanding, oldest first.
    pub(crate) sends: VecDeque<SendRecord>,
    /// Receives outstanding, oldest first, unless they are shared.
    pub(crate) recvs: VecDeque<RecvRecord>,
    /// What the peer has posted for us, oldest first (RC).
    pub(crate) expected: VecDeque<Expected>,
    /// What the peer may do atomics on, in each process.
    pub(crate) counters: [Mr; PROCESSES],
    /// What the peer's counters are when everything posted so far is done.
    pub(crate) peer_counters: [u64; PROCESSES],
    /// The shared receive queue of the receive that a target of XRC has taken.
    pub(crate) taken: Option<u32>,
    /// Atomics that processes have to do, oldest first.
    pub(crate) put_off: [VecDeque<PutOff>; PROCESSES],
    /// Whether a fault allows this end to see errors.
    pub(crate) doomed: bool,
    /// Whether a send has failed.
    pub(crate) failed: bool,
    /// Whether a wake-up is on the agenda, and for when a timer is.
    pub(crate) awake: bool,
    /// Whether a post is on the agenda.
    pub(crate) posting: bool,
    /// The time of the timer's event on the agenda.
    pub(crate) timer: Time,
    /// Whether the send queue is being drained, and no longer will be.
    pub(crate) draining: bool,
    /// WRITEs of UC, whose bytes are looked at in the end.
    pub(crate) unreliable_writes: Vec<(u64, Mr)>,
}

impl Endpoint {
    /// Whether its application has nothing left to do or to wait for.
    pub(crate) fn is_finished(&self) -> bool {
        let waits = self.qp.qp_type().is_reliable() && !self.doomed && !self.expected.is_empty();
        self.to_post == 0 && self.sends.is_empty() && !waits
    }
}

/// A node: processes on a machine.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// Whether its queue pairs share receives.
    pub(crate) has_srq: bool,
    /// Whether it buffers out-of-order packets.
    pub(crate) keeps: bool,
    /// Until when it is not given the processor.
    pub(crate) paused_until: Time,
    /// Its processes.
    pub(crate) processes: [Process; PROCESSES],
}

/// A process: memory and a shared receive queue.
#[derive(Debug, Default)]
pub(crate) struct Process {
    /// Its memory.
    pub(crate) memory: Memory,
    /// The shared receives that nobody has taken.
    pub(crate) srq: VecDeque<RecvRecord>,
    /// The shared receives that were taken and are not complete.
    pub(crate) srq_taken: BTreeMap<u64, RecvRecord>,
}
