//! The common [`Env`] of tests, the simulation and the fuzzer. It checks the calls that it gets, and records them.

mod by_reference;
mod stream;

use std::collections::VecDeque;

use rdmux_transport::Source;
use rdmux_transport::attr::{Access, AddressVector};
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Direct, Drop, Env, FetchError, LinkCaps, Named, QpEvent,
    Side, SrqEntry, TxError, TxPacket, TxPayload,
};
use rdmux_transport::wr::{Completion, MwBind, Sge, WcStatus};
use rdmux_wire::{Packet, Pkey, Psn, Qpn, Rkey};

use crate::memory::{Memory, Zeroes, changed, for_parts};
pub use by_reference::ByReference;
pub use stream::Stream;

/// Returns the capabilities of a link with this payload size, on which queue pairs cannot access each other's memory.
pub const fn link(max_payload: u32, lossless: bool) -> LinkCaps {
    LinkCaps { max_payload, lossless, by_reference: false, piggybacks_acks: false }
}

/// An atomic that the owner of its memory carries out later ([`TestEnv::later`]).
#[derive(Clone, Copy, Debug)]
pub struct PutOff {
    /// The process, identified by the number of its shared receive queue; 0 is the queue pair's own process.
    pub process: u32,
    /// The PSN of the request.
    pub psn: Psn,
    /// The key.
    pub rkey: Rkey,
    /// The address.
    pub va: u64,
    /// The operation.
    pub op: AtomicOp,
}

/// The environment of a queue pair: a link or a stream, memory, and a record of what the queue pair did.
#[derive(Debug)]
pub struct TestEnv<M = Zeroes> {
    /// The memory, and the shared receive queues.
    pub memory: M,
    /// The capabilities of the link.
    pub link: LinkCaps,
    /// How many more packets the link accepts before it is full.
    pub room: usize,
    /// The bytes that may be in flight.
    pub share: u32,
    /// Whether out-of-order packets are buffered.
    pub buffers_out_of_order: bool,
    /// The stream that iWARP uses instead of the link.
    pub stream: Stream,
    /// The link's access to the peer's memory.
    pub by_reference: ByReference,
    /// Whether atomics are carried out later.
    pub later: bool,
    /// The selected shared receive queue; 0 is the queue pair's own, or none. None: a target of XRC has selected none.
    pub selected: Option<u32>,
    /// The shared receive queue of the receive that a target of XRC has in use.
    pub taken: Option<u32>,
    /// The port's P_Key table.
    pub pkeys: Vec<Pkey>,
    /// The packets that were sent.
    pub packets: VecDeque<Vec<u8>>,
    /// The path of each of these packets, if the packets are taken together.
    pub paths: VecDeque<AddressVector>,
    /// The ACK piggybacked on each packet, on a link that does so.
    pub acks: VecDeque<Option<Psn>>,
    /// Completions.
    pub completions: VecDeque<(Side, Completion)>,
    /// Receives that completed: shared receive queue (0: none was selected), number, status.
    pub received: Vec<(u32, u64, WcStatus)>,
    /// Events.
    pub events: Vec<QpEvent>,
    /// The counted reasons.
    pub dropped: Vec<Drop>,
    /// Atomics that are still to be carried out.
    pub put_off: VecDeque<PutOff>,
    /// Keys that were invalidated.
    pub invalidated: Vec<Rkey>,
    /// Binds carried out. Those of no bytes are refused.
    pub bound: Vec<MwBind>,
    /// How many completions there were when the queue pair was closed.
    pub closed_at: Option<usize>,
    /// Returns whether a packet arrived along a path, as far as the driver knows.
    pub came_along: fn(&AddressVector) -> bool,
    /// Whether the link accepts acknowledgements without a packet.
    pub takes_acks: bool,
    /// The acknowledgements accepted without a packet.
    pub acknowledged: Vec<Psn>,
}

impl<M: Memory> TestEnv<M> {
    /// Creates an environment with this memory, on a link with these capabilities, which is never full.
    pub fn new(link: LinkCaps, memory: M) -> Self {
        Self {
            memory,
            link,
            room: usize::MAX,
            share: u32::MAX,
            buffers_out_of_order: true,
            stream: Stream::default(),
            by_reference: ByReference::default(),
            later: false,
            selected: Some(0),
            taken: None,
            pkeys: vec![Pkey::DEFAULT],
            packets: VecDeque::new(),
            paths: VecDeque::new(),
            acks: VecDeque::new(),
            completions: VecDeque::new(),
            received: Vec::new(),
            events: Vec::new(),
            dropped: Vec::new(),
            put_off: VecDeque::new(),
            invalidated: Vec::new(),
            bound: Vec::new(),
            closed_at: None,
            came_along: |_| true,
            takes_acks: false,
            acknowledged: Vec::new(),
        }
    }

    /// Clears the records, except for deferred atomics, so that a long run uses no more memory.
    pub fn forget(&mut self) {
        self.packets.clear();
        self.paths.clear();
        self.acks.clear();
        self.completions.clear();
        self.received.clear();
        self.events.clear();
        self.dropped.clear();
        self.invalidated.clear();
        self.bound.clear();
        self.acknowledged.clear();
    }

    /// Takes the completions, as numbers and statuses.
    pub fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.completions.drain(..).map(|(_, c)| (c.wr_id, c.status)).collect()
    }

    /// Takes the oldest completion.
    ///
    /// # Panics
    /// If there is none.
    pub fn take_completion(&mut self) -> Completion {
        self.completions.pop_front().expect("a completion").1
    }

    /// Appends the contents of a payload.
    ///
    /// # Errors
    /// If the memory is not readable.
    ///
    /// # Panics
    /// If it exceeds its list.
    pub fn append(
        &mut self,
        payload: &TxPayload<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), AccessFault> {
        match *payload {
            TxPayload::None => Ok(()),
            TxPayload::Bytes(data) => {
                out.extend_from_slice(data);
                Ok(())
            }
            TxPayload::Gather { sges, offset, len } => {
                let process = self.process();
                for_parts(sges, offset, len as usize, |sge, addr, part| {
                    let len = u32::try_from(part.len()).expect("of one list");
                    self.memory.read(process, sge.lkey.0, addr, len, Access::empty(), out)
                })
            }
            TxPayload::Remote { rkey, va, len, srqn } => {
                let process = if srqn == 0 { self.process() } else { srqn };
                self.memory.read(process, rkey.0, va, len, Access::REMOTE_READ, out)
            }
        }
    }

    /// Carries out the oldest deferred atomic, and returns its number and the original value.
    ///
    /// # Panics
    /// If there is none.
    pub fn do_atomic(&mut self) -> (Psn, Result<u64, AccessFault>) {
        let atomic = self.put_off.pop_front().expect("an atomic");
        (atomic.psn, self.change(atomic.process, atomic.rkey, atomic.va, atomic.op))
    }

    fn change(
        &mut self,
        process: u32,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessFault> {
        let need = Access::REMOTE_ATOMIC;
        let mut there = Vec::with_capacity(8);
        self.memory.read(process, rkey.0, va, 8, need, &mut there)?;
        let old = u64::from_ne_bytes(there.try_into().expect("eight bytes were read"));
        self.memory.write(process, rkey.0, va, &changed(op, old).to_ne_bytes(), need)?;
        Ok(old)
    }

    /// Returns the process whose memory and receives are in use.
    fn process(&self) -> u32 {
        self.selected.expect("no shared receive queue was chosen")
    }

    /// Records a packet.
    fn sent(&mut self, path: &AddressVector, bytes: Vec<u8>) {
        if self.packets.is_empty() {
            // A test that takes packets need not take their paths.
            self.paths.clear();
        }
        self.packets.push_back(bytes);
        self.paths.push_back(*path);
    }

    /// Returns header, payload and padding.
    fn bytes_of(&mut self, packet: &TxPacket<'_>) -> Result<Vec<u8>, AccessFault> {
        let mut bytes = packet.header.to_vec();
        self.append(&packet.payload, &mut bytes)?;
        bytes.resize(bytes.len() + usize::from(packet.pad), 0);
        Ok(bytes)
    }
}

impl<M: Memory> Env for TestEnv<M> {
    fn link(&self) -> LinkCaps {
        self.link
    }

    fn room(&self) -> u32 {
        self.share
    }

    fn buffers_out_of_order(&self) -> bool {
        self.buffers_out_of_order
    }

    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        let Some(room) = self.room.checked_sub(1) else { return Err(TxError::Busy) };
        let bytes = self.bytes_of(packet).map_err(TxError::Memory)?;
        let payload = bytes.len() - packet.header.len() - usize::from(packet.pad);
        assert!(payload <= self.link.max_payload as usize, "a payload of {payload} bytes");
        assert!(bytes.len().is_multiple_of(4), "not padded: {} bytes", bytes.len());
        if let Err(error) = Packet::parse(&bytes) {
            panic!("it sends what cannot be read: {error}");
        }
        self.room = room;
        self.sent(packet.av, bytes);
        if self.link.piggybacks_acks {
            self.acks.push_back(packet.ack);
        } else {
            assert_eq!(packet.ack, None, "on a link that does not piggyback");
        }
        Ok(())
    }

    fn came_along(&self, av: &AddressVector, _: &Source<'_>) -> bool {
        (self.came_along)(av)
    }

    fn acknowledge(&mut self, _: Qpn, psn: Psn) -> bool {
        if self.takes_acks {
            self.acknowledged.push(psn);
        }
        self.takes_acks
    }

    fn transmit_named(&mut self, packet: &TxPacket<'_>) -> Result<bool, TxError> {
        if self.room == 0 {
            return Err(TxError::Busy);
        }
        if self.by_reference.names {
            assert!(packet.pad == 0 && matches!(packet.payload, TxPayload::Gather { .. }));
            let bytes = self.bytes_of(packet).map_err(TxError::Memory)?;
            self.by_reference.named.push(bytes.clone());
            self.sent(packet.av, bytes);
        }
        Ok(self.by_reference.names)
    }

    fn fetch(&mut self, sges: &[Sge], offset: u32, from: &Named<'_>) -> Result<(), FetchError> {
        if !self.by_reference.fetches {
            return Err(FetchError::OutOfReach);
        }
        self.scatter(sges, offset, from.at).map_err(FetchError::Memory)
    }

    fn fetch_remote(&mut self, rkey: Rkey, va: u64, from: &Named<'_>) -> Result<(), FetchError> {
        if !self.by_reference.fetches {
            return Err(FetchError::OutOfReach);
        }
        self.write_remote(rkey, va, from.at).map_err(FetchError::Memory)
    }

    fn direct(&mut self, copy: &Direct<'_>) -> bool {
        let Some(mut peer) = self.by_reference.peer.take() else { return false };
        let there = usize::try_from(copy.va).expect("an index");
        let there = there..there + copy.len as usize;
        let mut bytes = Vec::new();
        let is_lawful = copy.rkey.0 == self.by_reference.rkey
            && copy.len <= self.by_reference.left
            && there.end <= peer.len()
            && self.append(&copy.near, &mut bytes).is_ok();
        if is_lawful {
            self.by_reference.left -= copy.len;
            self.by_reference.copies.push(copy.len);
            if copy.write {
                peer[there].copy_from_slice(&bytes);
            } else if let TxPayload::Gather { sges, offset, .. } = copy.near {
                self.scatter(sges, offset, &peer[there]).expect("it was read");
            }
        }
        self.by_reference.peer = Some(peer);
        is_lawful
    }

    fn closed(&mut self) {
        self.closed_at = Some(self.completions.len());
    }

    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault> {
        sges.iter().filter(|s| s.length != 0).try_for_each(|s| {
            self.memory.check(self.process(), s.lkey.0, s.addr, s.length.into(), access)
        })
    }

    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        let is_stream = self.link.max_payload == 0;
        assert!(!is_stream || !data.is_empty(), "a stream brought no bytes");
        let process = self.process();
        assert!(process == 0 || self.taken == self.selected, "another queue's receive");
        self.memory.meet_owner()?;
        for_parts(sges, offset, data.len(), |sge, addr, part| {
            self.memory.write(process, sge.lkey.0, addr, &data[part], Access::LOCAL_WRITE)
        })
    }

    fn check_remote(&self, rkey: Rkey, va: u64, len: u64, a: Access) -> Result<(), AccessFault> {
        assert_ne!(len, 0, "nothing is asked of no bytes");
        self.memory.check(self.process(), rkey.0, va, len, a)
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        let process = self.process();
        self.memory.meet_owner()?;
        self.memory.write(process, rkey.0, va, data, Access::REMOTE_WRITE)
    }

    fn atomic(
        &mut self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        assert!(va.is_multiple_of(8), "an atomic on {va:#x}");
        let process = self.process();
        self.memory.meet_owner()?;
        if self.later {
            self.put_off.push_back(PutOff { process, psn, rkey, va, op });
            return Ok(AtomicAnswer::Later);
        }
        self.change(process, rkey, va, op).map(AtomicAnswer::Now)
    }

    fn invalidate(&mut self, rkey: Rkey, remote: bool) -> Result<(), AccessFault> {
        if remote {
            self.memory.meet_owner()?;
        }
        self.memory.invalidate(self.process(), rkey.0)?;
        self.invalidated.push(rkey);
        Ok(())
    }

    fn bind(&mut self, bind: &MwBind) -> Result<(), AccessFault> {
        if bind.length == 0 {
            return Err(AccessFault::Bounds);
        }
        self.bound.push(*bind);
        Ok(())
    }

    fn select_srq(&mut self, srqn: u32) -> Result<(), AccessFault> {
        if !self.memory.has_queue(srqn) {
            return Err(AccessFault::Domain);
        }
        self.selected = Some(srqn);
        Ok(())
    }

    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry> {
        let process = self.process();
        let (wr_id, list) = self.memory.receive(process)?;
        sges[..list.len()].copy_from_slice(&list);
        if process != 0 {
            assert_eq!(self.taken, None, "two receives at a time");
            self.taken = self.selected;
        }
        Some(SrqEntry { wr_id, num_sge: list.len() })
    }

    fn complete(&mut self, side: Side, completion: Completion) {
        if side == Side::Recv {
            let process = self.process();
            let taken = self.taken.take();
            assert!(taken.is_none_or(|srqn| srqn == process), "in another queue's process");
            self.received.push((process, completion.wr_id, completion.status));
        }
        self.completions.push_back((side, completion));
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn count(&mut self, reason: Drop) {
        self.dropped.push(reason);
    }

    fn pkey(&self, index: u16) -> Option<Pkey> {
        self.pkeys.get(usize::from(index)).copied()
    }
}

#[cfg(test)]
mod tests {
    use rdmux_wire::Lkey;

    use super::*;

    #[test]
    #[should_panic(expected = "beyond the list")]
    fn a_place_beyond_the_list_is_found() {
        let list = [Sge { addr: 0, length: 8, lkey: Lkey(1) }];
        let mut env = TestEnv::new(link(4096, true), Zeroes::default());
        let _ = env.scatter(&list, 1, &[0; 8]);
    }

    #[test]
    #[should_panic(expected = "another queue's receive")]
    fn a_receive_of_another_queue_is_found() {
        let memory = Zeroes { queues: 2, receives: 1, ..Zeroes::default() };
        let mut env = TestEnv::new(link(4096, true), memory);
        env.select_srq(1).expect("there is one");
        let mut list = [Sge::default()];
        env.pop_srq(&mut list).expect("there is one");
        env.select_srq(2).expect("there is one");
        let _ = env.scatter(&list, 0, &[0; 8]);
    }

    #[test]
    #[should_panic(expected = "not padded")]
    fn a_packet_without_padding_is_found() {
        let mut env = TestEnv::new(link(4096, true), Zeroes::default());
        let _ = env.transmit(&TxPacket {
            av: &rdmux_transport::attr::AddressVector::default(),
            header: &[0; 12],
            payload: TxPayload::Bytes(&[0; 3]),
            pad: 0,
            more: false,
            ack: None,
        });
    }
}
