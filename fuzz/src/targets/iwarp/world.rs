//! The world around the queue pair: it counts, reads what is sent, and checks what it is asked for.

use std::collections::VecDeque;

use rdmux_testing::env::{check_list, payload_len};
use rdmux_testing::ledger::Ledger;
use rdmux_transport::attr::Access;
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use rdmux_transport::iwarp::{Rtr, Segment, SendFault, StreamEnv, StreamParams};
use rdmux_transport::wr::{Completion, Sge};
use rdmux_wire::iwarp::ddp::{Header, Model};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::rdmap::{AtomicRequest, Opcode, ReadRequest};
use rdmux_wire::iwarp::rtr;
use rdmux_wire::{Lkey, Pkey, Psn, Rkey};

use super::ZEROES;

/// Bytes of memory that keys open.
const MEMORY: u64 = 1 << 20;

/// The world.
pub(super) struct World {
    framing: Framing,
    /// What was sent and is no whole frame yet, and where that is in the stream.
    sent: Vec<u8>,
    position: u64,
    ended: bool,
    /// READs that were sent, with what was answered, and atomics.
    pub(super) reads: Vec<(ReadRequest, u32)>,
    pub(super) atomics: VecDeque<u32>,
    /// What the stream takes.
    pub(super) room: usize,
    pub(super) broken: bool,
    /// How many accesses go well until one does not.
    pub(super) until_fault: u32,
    pub(super) srq_left: u32,
    pub(super) ledger: Ledger,
}

impl World {
    pub(super) fn new(params: &StreamParams) -> Self {
        let mut world = Self {
            framing: Framing::default(),
            sent: Vec::new(),
            position: 0,
            ended: false,
            reads: Vec::new(),
            atomics: VecDeque::new(),
            room: usize::MAX,
            broken: false,
            until_fault: u32::MAX,
            srq_left: 0,
            ledger: Ledger::default(),
        };
        world.new_stream(params);
        world
    }

    pub(super) fn new_stream(&mut self, params: &StreamParams) {
        let framing = Framing { crc: params.crc, markers: params.tx_markers };
        let before = match (params.rtr, params.initiator) {
            (Some(Rtr::Send), true) => rtr::send(framing).len(),
            (Some(Rtr::Write), true) => rtr::write(framing).len(),
            (Some(Rtr::Read), true) => rtr::read(framing).len(),
            (Some(Rtr::Read), false) => rtr::read_response(framing, &rtr::READ_REQUEST).len(),
            _ => 0,
        };
        (self.framing, self.position) = (framing, before as u64);
        self.sent.clear();
        self.reads.clear();
        self.atomics.clear();
        (self.ended, self.broken, self.until_fault) = (false, false, u32::MAX);
    }

    pub(super) fn range(key: u32, va: u64, len: u64) -> Result<(), AccessFault> {
        // Few keys are wrong.
        if key % 64 == 63 {
            return Err(AccessFault::Key);
        }
        let inside = va.checked_add(len).is_some_and(|end| end <= MEMORY);
        if inside { Ok(()) } else { Err(AccessFault::Bounds) }
    }

    fn meet(&mut self) -> Result<(), AccessFault> {
        let gone = self.until_fault == 0;
        self.until_fault = self.until_fault.wrapping_sub(1);
        if gone { Err(AccessFault::Gone) } else { Ok(()) }
    }

    fn payload(&mut self, payload: &TxPayload<'_>) -> Result<usize, AccessFault> {
        let len = payload_len(payload);
        match *payload {
            TxPayload::None | TxPayload::Bytes(_) => {}
            TxPayload::Gather { sges, .. } => {
                self.meet()?;
                self.check_local(sges, Access::empty())?;
            }
            TxPayload::Remote { rkey, va, len, .. } => {
                self.meet()?;
                Self::range(rkey.0, va, len.into())?;
            }
        }
        Ok(len)
    }

    /// It sends frames that can be read, one behind the other, and nothing behind a Terminate.
    fn read_frames(&mut self) {
        let mut used = 0;
        while let Some(frame) = self
            .framing
            .parse(self.position, &self.sent[used..])
            .expect("it sends what can be read")
        {
            assert!(!self.ended, "a frame behind a Terminate");
            let (head, len) = frame.head::<{ Header::MAX_LEN + AtomicRequest::LEN }>();
            let header = Header::parse(&head[..len]).expect("it sends what can be read");
            let rest = &head[header.len()..len];
            match (header.opcode, header.model) {
                (Opcode::ReadRequest, _) => {
                    self.reads.push((ReadRequest::parse(rest).expect("whole"), 0));
                }
                (Opcode::AtomicRequest, _) => {
                    self.atomics.push_back(AtomicRequest::parse(rest).expect("whole").id);
                }
                (Opcode::Terminate, Model::Untagged(_)) => self.ended = true,
                _ => {}
            }
            used += frame.frame_len;
            self.position += frame.frame_len as u64;
        }
        self.sent.drain(..used);
    }
}

impl StreamEnv for World {
    fn send(&mut self, segments: &[Segment<'_>], skip: usize) -> Result<usize, SendFault> {
        if self.broken {
            return Err(SendFault::Broken);
        }
        let mut bytes = Vec::new();
        for (segment, parts) in segments.iter().enumerate() {
            bytes.extend_from_slice(parts.head);
            let len = self
                .payload(&parts.payload)
                .map_err(|fault| SendFault::Memory { segment, fault })?;
            bytes.extend_from_slice(&ZEROES[..len]);
            bytes.extend_from_slice(parts.tail);
        }
        assert!(segments.len() <= 64 && skip < bytes.len(), "nothing is left to send");
        let len = self.room.min(bytes.len() - skip);
        self.room -= len;
        self.sent.extend_from_slice(&bytes[skip..skip + len]);
        self.read_frames();
        Ok(len)
    }

    fn read(&mut self, payload: &TxPayload<'_>, out: &mut [u8]) -> Result<(), AccessFault> {
        assert_eq!(self.payload(payload)?, out.len());
        Ok(())
    }
}

impl Env for World {
    fn link(&self) -> LinkCaps {
        unreachable!("a stream has no such link")
    }
    fn transmit(&mut self, _: &TxPacket<'_>) -> Result<(), TxError> {
        unreachable!("a stream has no packets")
    }
    fn check_local(&self, sges: &[Sge], _: Access) -> Result<(), AccessFault> {
        sges.iter().try_for_each(|s| Self::range(s.lkey.0, s.addr, s.length.into()))
    }
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        check_list(sges, offset, data.len());
        assert!(!data.is_empty());
        self.meet()?;
        self.check_local(sges, Access::LOCAL_WRITE)
    }
    fn check_remote(&self, rkey: Rkey, va: u64, len: u64, _: Access) -> Result<(), AccessFault> {
        assert_ne!(len, 0, "nothing is asked of no bytes");
        Self::range(rkey.0, va, len)
    }
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.meet()?;
        Self::range(rkey.0, va, data.len() as u64).expect("it was checked");
        Ok(())
    }
    fn atomic(
        &mut self,
        _: Psn,
        rkey: Rkey,
        va: u64,
        _: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        assert!(va.is_multiple_of(8), "an atomic on {va:#x}");
        self.meet()?;
        Self::range(rkey.0, va, 8).map(|()| AtomicAnswer::Now(7))
    }
    fn invalidate(&mut self, rkey: Rkey, _: bool) -> Result<(), AccessFault> {
        Self::range(rkey.0, 0, 0)
    }
    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry> {
        self.srq_left = self.srq_left.checked_sub(1)?;
        self.ledger.posted(Side::Recv);
        sges[0] = Sge { addr: 0, length: 4096, lkey: Lkey(0) };
        Some(SrqEntry { wr_id: 1, num_sge: 1 })
    }
    fn complete(&mut self, side: Side, _: Completion) {
        self.ledger.completed(side);
    }
    fn event(&mut self, _: QpEvent) {}
    fn count(&mut self, _: Drop) {}
    fn pkey(&self, _: u16) -> Option<Pkey> {
        None
    }
}
