//! One end: a queue pair, what its program knows, and what the queue pair sees of the world.

use std::collections::VecDeque;

use rdmux_transport::Time;
use rdmux_transport::attr::Access;
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use rdmux_transport::iwarp::{Qp, Segment, SendFault, StreamEnv};
use rdmux_transport::wr::{Completion, Sge};
use rdmux_wire::{Pkey, Psn, Rkey};

use super::pipe::Pipe;
use crate::endpoint::{Expected, RecvRecord, SendRecord};
use crate::memory::{Memory, Mr};

/// See the module.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) memory: Memory,
    /// What it sends.
    pub(super) pipe: Pipe,
    /// What arrived and was not taken.
    pub(super) inbox: Vec<u8>,
    /// Shared receives that were not taken, and receives that were posted or taken, oldest first.
    pub(super) shared: VecDeque<RecvRecord>,
    pub(super) recvs: VecDeque<RecvRecord>,
    /// Sends outstanding, oldest first.
    pub(super) sends: VecDeque<SendRecord>,
    /// What the peer has posted for us, oldest first.
    pub(super) expected: VecDeque<Expected>,
    /// WRITEs that are complete here, and that the peer may not have yet.
    pub(super) written: Vec<(u64, Mr)>,
    /// What the peer may do atomics on, and what the peer's is when all that was posted is done.
    pub(super) counter: Mr,
    pub(super) peer_counter: u64,
    pub(super) to_post: u32,
    pub(super) posted: u32,
    /// Whether something allows this end to see errors, and whether a send has failed.
    pub(super) doomed: bool,
    pub(super) failed: bool,
    /// Whether its program has disconnected, and what it had posted must be carried out all the same.
    pub(super) left: bool,
    /// Whether it was told that the stream ended, and has closed it.
    pub(super) told: bool,
    pub(super) closed: bool,
    /// Whether it leaves the stream unread, for a message waits for a receive.
    pub(super) waits: bool,
    pub(super) awake: bool,
    pub(super) posting: bool,
    pub(super) timer: Time,
}

/// What a queue pair did while it had the floor.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) completions: Vec<(Side, Completion)>,
    pub(super) events: u64,
}

/// The world as a queue pair sees it.
#[derive(Debug)]
pub(super) struct EndEnv<'a> {
    pub(super) memory: &'a mut Memory,
    pub(super) pipe: &'a mut Pipe,
    pub(super) shared: &'a mut VecDeque<RecvRecord>,
    pub(super) recvs: &'a mut VecDeque<RecvRecord>,
    pub(super) effects: &'a mut Effects,
}

impl EndEnv<'_> {
    fn payload(&self, payload: &TxPayload<'_>) -> Result<Vec<u8>, AccessFault> {
        match *payload {
            TxPayload::None => Ok(Vec::new()),
            TxPayload::Bytes(data) => Ok(data.to_vec()),
            TxPayload::Gather { sges, offset, len } => self.memory.gather(sges, offset, len),
            TxPayload::Remote { rkey, va, len, .. } => {
                self.memory.read(rkey.0, va, len.into(), Access::REMOTE_READ).map(<[u8]>::to_vec)
            }
        }
    }
}

impl StreamEnv for EndEnv<'_> {
    fn send(&mut self, segments: &[Segment<'_>], skip: usize) -> Result<usize, SendFault> {
        let mut bytes = Vec::new();
        for (segment, parts) in segments.iter().enumerate() {
            bytes.extend_from_slice(parts.head);
            let payload = self.payload(&parts.payload);
            bytes.extend(payload.map_err(|fault| SendFault::Memory { segment, fault })?);
            bytes.extend_from_slice(parts.tail);
        }
        self.pipe.send(&bytes[skip..])
    }

    fn read(&mut self, payload: &TxPayload<'_>, out: &mut [u8]) -> Result<(), AccessFault> {
        out.copy_from_slice(&self.payload(payload)?);
        Ok(())
    }
}

impl Env for EndEnv<'_> {
    fn link(&self) -> LinkCaps {
        unreachable!("a stream has no such link")
    }
    fn transmit(&mut self, _: &TxPacket<'_>) -> Result<(), TxError> {
        unreachable!("a stream has no packets")
    }
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault> {
        sges.iter().filter(|s| s.length != 0).try_for_each(|s| {
            self.memory.check(s.lkey.0, s.addr, s.length.into(), access).map(|_| ())
        })
    }
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        self.memory.scatter(sges, offset, data)
    }
    fn check_remote(&self, rkey: Rkey, va: u64, len: u64, a: Access) -> Result<(), AccessFault> {
        self.memory.check(rkey.0, va, len, a).map(|_| ())
    }
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.memory.write(rkey.0, va, data, Access::REMOTE_WRITE)
    }
    fn atomic(
        &mut self,
        _: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        self.memory.atomic(rkey, va, op).map(AtomicAnswer::Now)
    }
    fn invalidate(&mut self, rkey: Rkey, _: bool) -> Result<(), AccessFault> {
        let mr = Mr { key: rkey.0, addr: 0, len: 0 };
        if self.memory.deregister(&mr).is_empty() { Err(AccessFault::Key) } else { Ok(()) }
    }
    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry> {
        let record = self.shared.pop_front()?;
        let (wr_id, num_sge) = (record.wr_id, record.sges.len());
        sges[..num_sge].copy_from_slice(&record.sges);
        self.recvs.push_back(record);
        Some(SrqEntry { wr_id, num_sge })
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        self.effects.completions.push((side, completion));
    }
    fn event(&mut self, _: QpEvent) {
        self.effects.events += 1;
    }
    fn count(&mut self, _: Drop) {}
    fn pkey(&self, _: u16) -> Option<Pkey> {
        None
    }
}
