//! The world around the queue pair: it counts, and checks what it is asked for.

use rdmux_testing::env::{check_list, link, payload_len};
use rdmux_testing::ledger::Ledger;
use rdmux_transport::attr::Access;
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use rdmux_transport::wr::{Completion, Sge};
use rdmux_wire::{Lkey, Packet, Pkey, Psn, Rkey};

use super::ZEROES;

/// Bytes of memory that keys open.
const MEMORY: u64 = 1 << 20;
/// Shared receive queues have numbers up to this.
const MOST_SRQN: u32 = 12;

/// The world.
pub(super) struct World {
    link: LinkCaps,
    /// The last PSN sent, so that the script can answer it.
    pub(super) last_psn: Psn,
    pub(super) busy: u32,
    pub(super) srq_left: u32,
    /// Of a target of XRC.
    is_target: bool,
    /// The shared receive queue that was chosen in this call, and that of the receive that is taken.
    pub(super) selected: Option<u32>,
    taken: Option<u32>,
    /// How many accesses for the peer go well until one meets a busy process.
    pub(super) until_busy: u32,
    /// Whether atomics are done later, and those that are to be done.
    later: bool,
    pub(super) put_off: Vec<Psn>,
    pub(super) ledger: Ledger,
}

impl World {
    pub(super) fn new(lossless: bool, is_target: bool, later: bool) -> Self {
        let max_payload = if lossless { 8192 } else { 1024 };
        Self {
            link: link(max_payload, lossless),
            last_psn: Psn::new(0),
            busy: 0,
            srq_left: 0,
            is_target,
            selected: None,
            taken: None,
            until_busy: u32::MAX,
            later,
            put_off: Vec::new(),
            ledger: Ledger::default(),
        }
    }

    /// The process that the memory belongs to is asked.
    fn meet_owner(&mut self) -> Result<(), AccessFault> {
        self.check_selected();
        if !self.is_target {
            return Ok(());
        }
        let busy = self.until_busy == 0;
        self.until_busy = self.until_busy.wrapping_sub(1);
        if busy { Err(AccessFault::Busy) } else { Ok(()) }
    }

    fn check_selected(&self) {
        assert!(!self.is_target || self.selected.is_some(), "no shared receive queue was chosen");
    }

    fn range(key: u32, va: u64, len: u64) -> Result<(), AccessFault> {
        // Few keys are wrong.
        if key % 64 == 63 {
            return Err(AccessFault::Key);
        }
        let inside = va.checked_add(len).is_some_and(|end| end <= MEMORY);
        if inside { Ok(()) } else { Err(AccessFault::Bounds) }
    }
}

impl Env for World {
    fn link(&self) -> LinkCaps {
        self.link
    }
    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        if self.busy > 0 {
            self.busy -= 1;
            return Err(TxError::Busy);
        }
        let len = payload_len(&packet.payload);
        if let TxPayload::Remote { rkey, va, len, .. } = packet.payload {
            Self::range(rkey.0, va, len.into()).map_err(TxError::Memory)?;
        }
        assert!(len <= self.link.max_payload as usize, "a packet of {len} bytes");
        assert_eq!((len + usize::from(packet.pad)) % 4, 0, "not padded");
        let mut bytes = packet.header.to_vec();
        bytes.extend_from_slice(&ZEROES[..len + usize::from(packet.pad)]);
        let sent = Packet::parse(&bytes).expect("it sends what can be read");
        self.last_psn = sent.bth.psn;
        Ok(())
    }
    fn check_local(&self, sges: &[Sge], _: Access) -> Result<(), AccessFault> {
        sges.iter().try_for_each(|s| Self::range(s.lkey.0, s.addr, s.length.into()))
    }
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        check_list(sges, offset, data.len());
        assert!(!self.is_target || self.taken == self.selected, "another queue's receive");
        self.meet_owner()?;
        self.check_local(sges, Access::LOCAL_WRITE)
    }
    fn check_remote(&self, rkey: Rkey, va: u64, len: u64, _: Access) -> Result<(), AccessFault> {
        self.check_selected();
        Self::range(rkey.0, va, len)
    }
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.meet_owner()?;
        Self::range(rkey.0, va, data.len() as u64)
    }
    fn atomic(
        &mut self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        _: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        assert!(va.is_multiple_of(8), "an atomic on {va:#x}");
        self.meet_owner()?;
        if self.later {
            self.put_off.push(psn);
            return Ok(AtomicAnswer::Later);
        }
        Self::range(rkey.0, va, 8).map(|()| AtomicAnswer::Now(7))
    }
    fn invalidate(&mut self, rkey: Rkey, remote: bool) -> Result<(), AccessFault> {
        if remote {
            self.meet_owner()?;
        }
        Self::range(rkey.0, 0, 0)
    }
    fn select_srq(&mut self, srqn: u32) -> Result<(), AccessFault> {
        if !self.is_target || srqn > MOST_SRQN {
            return Err(AccessFault::Domain);
        }
        self.selected = Some(srqn);
        Ok(())
    }
    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry> {
        self.check_selected();
        self.srq_left = self.srq_left.checked_sub(1)?;
        self.ledger.posted(Side::Recv);
        assert!(self.taken.is_none(), "two receives at a time");
        self.taken = self.selected;
        sges[0] = Sge { addr: 0, length: 4096, lkey: Lkey(0) };
        Some(SrqEntry { wr_id: 1, num_sge: 1 })
    }
    fn complete(&mut self, side: Side, _: Completion) {
        if side == Side::Recv {
            let taken = self.taken.take();
            assert!(!self.is_target || taken == self.selected, "in another queue's process");
        }
        self.ledger.completed(side);
    }
    fn event(&mut self, _: QpEvent) {}
    fn count(&mut self, _: Drop) {}
    fn pkey(&self, index: u16) -> Option<Pkey> {
        (index == 0).then_some(Pkey::DEFAULT)
    }
}
