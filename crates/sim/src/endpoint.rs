//! A node, a queue pair on it, and what the queue pair sees of the world.

use std::collections::{BTreeMap, VecDeque};

use rdmux_transport::attr::Access;
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use rdmux_transport::wr::{Completion, Sge};
use rdmux_transport::{Qp, Time};
use rdmux_wire::{Pkey, Psn, Rkey};

use crate::memory::{Memory, Mr};
use crate::net::NodeId;

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
    /// What the peer may do atomics on.
    pub(crate) counter: Mr,
    /// What the peer's counter is when everything posted so far is done.
    pub(crate) peer_counter: u64,
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

/// A node: memory and a shared receive queue.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// Its memory.
    pub(crate) memory: Memory,
    /// Whether its queue pairs share receives.
    pub(crate) has_srq: bool,
    /// The shared receives that nobody has taken.
    pub(crate) srq: VecDeque<RecvRecord>,
    /// The shared receives that were taken and are not complete.
    pub(crate) srq_taken: BTreeMap<u64, RecvRecord>,
}

/// What a queue pair did while it had the floor.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Packets.
    pub(crate) packets: Vec<Vec<u8>>,
    /// Completions.
    pub(crate) completions: Vec<(Side, Completion)>,
    /// Events.
    pub(crate) events: Vec<QpEvent>,
    /// Packets dropped or refused.
    pub(crate) dropped: u64,
}

/// The world as a queue pair sees it.
#[derive(Debug)]
pub(crate) struct SimEnv<'a> {
    /// Its node.
    pub(crate) node: &'a mut Node,
    /// What it does.
    pub(crate) effects: &'a mut Effects,
    /// Its link.
    pub(crate) link: LinkCaps,
    /// How many packets the link takes until it is full.
    pub(crate) room: u32,
}

impl Env for SimEnv<'_> {
    fn link(&self) -> LinkCaps {
        self.link
    }

    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        if self.room == 0 {
            return Err(TxError::Busy);
        }
        let memory = &self.node.memory;
        let mut bytes = packet.header.to_vec();
        match packet.payload {
            TxPayload::None => {}
            TxPayload::Bytes(data) => bytes.extend_from_slice(data),
            TxPayload::Gather { sges, offset, len } => {
                bytes.extend(memory.gather(sges, offset, len).map_err(TxError::Memory)?);
            }
            TxPayload::Remote { rkey, va, len, .. } => bytes.extend_from_slice(
                memory
                    .read(rkey.0, va, len.into(), Access::REMOTE_READ)
                    .map_err(TxError::Memory)?,
            ),
        }
        bytes.resize(bytes.len() + usize::from(packet.pad), 0);
        self.effects.packets.push(bytes);
        self.room -= 1;
        Ok(())
    }

    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault> {
        sges.iter().filter(|s| s.length != 0).try_for_each(|s| {
            self.node.memory.check(s.lkey.0, s.addr, s.length.into(), access).map(|_| ())
        })
    }

    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        self.node.memory.scatter(sges, offset, data)
    }

    fn check_remote(&self, rkey: Rkey, va: u64, len: u64, a: Access) -> Result<(), AccessFault> {
        self.node.memory.check(rkey.0, va, len, a).map(|_| ())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.node.memory.write(rkey.0, va, data, Access::REMOTE_WRITE)
    }

    fn atomic(
        &mut self,
        _psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        let memory = &mut self.node.memory;
        let bytes = memory.read(rkey.0, va, 8, Access::REMOTE_ATOMIC)?;
        let old = u64::from_ne_bytes(bytes.try_into().map_err(|_| AccessFault::Bounds)?);
        let new = match op {
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::CmpSwap { compare, swap } if old == compare => swap,
            AtomicOp::CmpSwap { .. } => old,
        };
        memory.write(rkey.0, va, &new.to_ne_bytes(), Access::REMOTE_ATOMIC)?;
        Ok(AtomicAnswer::Now(old))
    }

    fn invalidate(&mut self, rkey: Rkey, _remote: bool) -> Result<(), AccessFault> {
        let mr = Mr { key: rkey.0, addr: 0, len: 0 };
        if self.node.memory.deregister(&mr).is_empty() {
            return Err(AccessFault::Key);
        }
        Ok(())
    }

    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry> {
        let record = self.node.srq.pop_front()?;
        let (wr_id, num_sge) = (record.wr_id, record.sges.len());
        sges[..num_sge].copy_from_slice(&record.sges);
        self.node.srq_taken.insert(wr_id, record);
        Some(SrqEntry { wr_id, num_sge })
    }

    fn complete(&mut self, side: Side, completion: Completion) {
        self.effects.completions.push((side, completion));
    }

    fn event(&mut self, event: QpEvent) {
        self.effects.events.push(event);
    }

    fn count(&mut self, _reason: Drop) {
        self.effects.dropped += 1;
    }

    fn pkey(&self, index: u16) -> Option<Pkey> {
        (index == 0).then_some(Pkey::DEFAULT)
    }
}
