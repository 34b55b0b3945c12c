//! What a queue pair sees of the world.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rdmux_transport::attr::Access;
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use rdmux_transport::wr::{Completion, Sge};
use rdmux_wire::{Pkey, Psn, Rkey};

use crate::endpoint::{Node, process_of};
use crate::memory::{Memory, Mr};

/// An atomic that a process is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutOff {
    /// The request's number.
    pub(crate) psn: Psn,
    /// The key.
    pub(crate) rkey: Rkey,
    /// Where.
    pub(crate) va: u64,
    /// What.
    pub(crate) op: AtomicOp,
}

/// What a queue pair did while it had the floor.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Packets.
    pub(crate) packets: Vec<Vec<u8>>,
    /// Completions, and the processes that they are for.
    pub(crate) completions: Vec<(Side, Completion, Option<usize>)>,
    /// Atomics that processes are to do.
    pub(crate) put_off: Vec<(usize, PutOff)>,
    /// Events.
    pub(crate) events: Vec<QpEvent>,
    /// Packets dropped or refused.
    pub(crate) dropped: u64,
    /// Packets that were kept behind a gap, and gaps that were filled.
    pub(crate) kept: u64,
    pub(crate) filled: u64,
    /// How often the owner of memory was busy.
    pub(crate) busy: u64,
}

/// How other processes behave towards a target of XRC.
#[derive(Debug)]
pub(crate) struct Owners<'a> {
    /// How likely they are busy when they are asked.
    pub(crate) busy: f64,
    /// Whether they do atomics later.
    pub(crate) later: bool,
    /// For chance.
    pub(crate) rng: &'a mut ChaCha8Rng,
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
    /// The process whose memory and receives are meant. A target of XRC has none until it has chosen
    /// one, each time anew.
    pub(crate) process: Option<usize>,
    /// Of a target of XRC.
    pub(crate) owners: Option<Owners<'a>>,
}

impl SimEnv<'_> {
    fn process(&self) -> Result<usize, AccessFault> {
        self.process.ok_or(AccessFault::Domain)
    }

    fn memory(&self) -> Result<&Memory, AccessFault> {
        Ok(&self.node.processes[self.process()?].memory)
    }

    /// The memory that a peer wants changed, unless its owner is busy.
    fn changed(&mut self) -> Result<&mut Memory, AccessFault> {
        if let Some(owners) = &mut self.owners
            && owners.rng.random_bool(owners.busy)
        {
            self.effects.busy += 1;
            return Err(AccessFault::Busy);
        }
        let process = self.process()?;
        Ok(&mut self.node.processes[process].memory)
    }

    fn payload(&self, payload: &TxPayload<'_>) -> Result<Vec<u8>, AccessFault> {
        match *payload {
            TxPayload::None => Ok(Vec::new()),
            TxPayload::Bytes(data) => Ok(data.to_vec()),
            TxPayload::Gather { sges, offset, len } => self.memory()?.gather(sges, offset, len),
            TxPayload::Remote { rkey, va, len, srqn } => {
                let named = self.owners.as_ref().and_then(|_| process_of(srqn));
                let process = named.map_or_else(|| self.process(), Ok)?;
                let memory = &self.node.processes[process].memory;
                memory.read(rkey.0, va, len.into(), Access::REMOTE_READ).map(<[u8]>::to_vec)
            }
        }
    }
}

impl Env for SimEnv<'_> {
    fn link(&self) -> LinkCaps {
        self.link
    }

    fn buffers_out_of_order(&self) -> bool {
        self.node.keeps
    }

    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        if self.room == 0 {
            return Err(TxError::Busy);
        }
        let mut bytes = packet.header.to_vec();
        bytes.extend(self.payload(&packet.payload).map_err(TxError::Memory)?);
        bytes.resize(bytes.len() + usize::from(packet.pad), 0);
        self.effects.packets.push(bytes);
        self.room -= 1;
        Ok(())
    }

    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault> {
        sges.iter().filter(|s| s.length != 0).try_for_each(|s| {
            self.memory()?.check(s.lkey.0, s.addr, s.length.into(), access).map(|_| ())
        })
    }

    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        self.changed()?.scatter(sges, offset, data)
    }

    fn check_remote(&self, rkey: Rkey, va: u64, len: u64, a: Access) -> Result<(), AccessFault> {
        self.memory()?.check(rkey.0, va, len, a).map(|_| ())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.changed()?.write(rkey.0, va, data, Access::REMOTE_WRITE)
    }

    fn atomic(
        &mut self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        let later = self.owners.as_ref().is_some_and(|owners| owners.later);
        let memory = self.changed()?;
        if !later {
            return memory.atomic(rkey, va, op).map(AtomicAnswer::Now);
        }
        self.effects.put_off.push((self.process()?, PutOff { psn, rkey, va, op }));
        Ok(AtomicAnswer::Later)
    }

    fn invalidate(&mut self, rkey: Rkey, _remote: bool) -> Result<(), AccessFault> {
        let mr = Mr { key: rkey.0, addr: 0, len: 0 };
        if self.changed()?.deregister(&mr).is_empty() {
            return Err(AccessFault::Key);
        }
        Ok(())
    }

    fn select_srq(&mut self, srqn: u32) -> Result<(), AccessFault> {
        self.process = process_of(srqn).filter(|_| self.owners.is_some());
        self.process().map(|_| ())
    }

    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry> {
        let process = &mut self.node.processes[self.process?];
        let record = process.srq.pop_front()?;
        let (wr_id, num_sge) = (record.wr_id, record.sges.len());
        sges[..num_sge].copy_from_slice(&record.sges);
        process.srq_taken.insert(wr_id, record);
        Some(SrqEntry { wr_id, num_sge })
    }

    fn complete(&mut self, side: Side, completion: Completion) {
        self.effects.completions.push((side, completion, self.process));
    }

    fn event(&mut self, event: QpEvent) {
        self.effects.events.push(event);
    }

    fn count(&mut self, reason: Drop) {
        match reason {
            Drop::Early => self.effects.kept += 1,
            Drop::Filled => self.effects.filled += 1,
            _ => self.effects.dropped += 1,
        }
    }

    fn pkey(&self, index: u16) -> Option<Pkey> {
        (index == 0).then_some(Pkey::DEFAULT)
    }
}
