//! Two queue pairs in one thread, with the cheapest possible memory and wire. They have an `Env` of their
//! own, because the one of the tests (`rdmux_testing::env`) checks and records, which would be measured, too.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    unreachable_pub,
    reason = "for benchmarks"
)]

use std::hint::black_box;

use rdmux_testing::qp::steps;
use rdmux_transport::attr::{Access, AddressVector, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use rdmux_transport::wr::{Completion, Sge};
use rdmux_transport::{Qp, QpInit, RxPacket, Source, Time};
use rdmux_wire::{AckTimeout, Gid, Mtu, Packet, Pkey, Psn, Qpn, Rkey, RnrTimer};

/// One buffer, a wire of packet slots, and counters in place of completion queues.
pub struct Bench {
    pub memory: Vec<u8>,
    wire: Vec<[u8; 4200]>,
    lengths: Vec<usize>,
    used: usize,
    pub completions: u64,
}

impl Bench {
    fn new() -> Self {
        Self {
            memory: vec![7; 1 << 16],
            wire: vec![[0; 4200]; 64],
            lengths: vec![0; 64],
            used: 0,
            completions: 0,
        }
    }
}

impl Env for Bench {
    fn link(&self) -> LinkCaps {
        LinkCaps { max_payload: 4096, lossless: true, by_reference: false, piggybacks_acks: false }
    }
    #[inline]
    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        let Some(slot) = self.wire.get_mut(self.used) else { return Err(TxError::Busy) };
        let h = packet.header.len();
        slot[..h].copy_from_slice(packet.header);
        let data = match packet.payload {
            TxPayload::None => &[][..],
            TxPayload::Bytes(data) => data,
            TxPayload::Gather { sges, offset, len } => {
                let at = sges[0].addr as usize + offset as usize;
                &self.memory[at..at + len as usize]
            }
            TxPayload::Remote { va, len, .. } => &self.memory[va as usize..][..len as usize],
        };
        slot[h..h + data.len()].copy_from_slice(data);
        self.lengths[self.used] = h + data.len() + usize::from(packet.pad);
        self.used += 1;
        Ok(())
    }
    fn check_local(&self, _: &[Sge], _: Access) -> Result<(), AccessFault> {
        Ok(())
    }
    #[inline]
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        let at = sges[0].addr as usize + offset as usize;
        self.memory[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn check_remote(&self, _: Rkey, _: u64, _: u64, _: Access) -> Result<(), AccessFault> {
        Ok(())
    }
    #[inline]
    fn write_remote(&mut self, _: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.memory[va as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn atomic(
        &mut self,
        _: Psn,
        _: Rkey,
        _: u64,
        _: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        Ok(AtomicAnswer::Now(0))
    }
    fn invalidate(&mut self, _: Rkey, _: bool) -> Result<(), AccessFault> {
        Ok(())
    }
    fn pop_srq(&mut self, _: &mut [Sge]) -> Option<SrqEntry> {
        None
    }
    #[inline]
    fn complete(&mut self, _: Side, completion: Completion) {
        black_box(&completion);
        self.completions += 1;
    }
    fn event(&mut self, _: QpEvent) {}
    fn count(&mut self, reason: Drop) {
        panic!("{reason:?}");
    }
    #[inline]
    fn pkey(&self, _: u16) -> Option<Pkey> {
        Some(Pkey::DEFAULT)
    }
}

fn gid(n: u8) -> Gid {
    std::net::Ipv4Addr::new(10, 0, 0, n).into()
}

/// Returns one side of a connection, and its environment.
pub fn connect(from: u8, to: u8) -> (Qp, Bench) {
    let caps = QpCaps {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 64,
    };
    let qpn = Qpn::new(from.into());
    let init = QpInit { qpn, qp_type: QpType::Rc, caps, sq_sig_all: true, has_srq: false };
    let (mut qp, mut env) = (Qp::new(&init), Bench::new());
    let mut attr = qp.attr();
    attr.dest_qpn = Qpn::new(to.into());
    (attr.sq_psn, attr.rq_psn) = (Psn::new(5), Psn::new(5));
    attr.path_mtu = Mtu::M4096;
    attr.av = AddressVector { is_global: true, dgid: gid(to), ..Default::default() };
    attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    attr.timeout = AckTimeout::new(14);
    attr.min_rnr_timer = RnrTimer::new(1);
    for (state, mask) in steps(QpType::Rc, QpState::Rts) {
        qp.modify(Time::ZERO, &QpAttr { state, ..attr }, mask, &mut env).unwrap();
    }
    (qp, env)
}

/// Delivers the packets that the other side, number `n`, has sent to a queue pair.
pub fn deliver(from: &mut Bench, n: u8, qp: &mut Qp, env: &mut Bench) {
    let grh = [0; 40];
    for i in 0..from.used {
        let packet = Packet::parse(&from.wire[i][..from.lengths[i]]).unwrap();
        let source = Source {
            sgid: gid(n),
            dgid: gid(0),
            grh: &grh,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
            has_grh: true,
        };
        qp.handle_packet(Time(1), &RxPacket { packet: &packet, source: &source }, env);
    }
    from.used = 0;
}
