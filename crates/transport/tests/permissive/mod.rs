//! Surroundings for queue pairs of which only what they say matters.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::VecDeque;

use rdmux_transport::attr::Access;
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use rdmux_transport::wr::{Completion, Sge, WcStatus};
use rdmux_wire::{Pkey, Psn, Rkey};

/// A world where all memory exists and is zero.
#[derive(Default)]
pub(crate) struct Permissive {
    pub(crate) mtu: u32,
    /// The packets that it sent.
    pub(crate) out: VecDeque<Vec<u8>>,
    /// The bytes that it sent, of a stream.
    pub(crate) sent: Vec<u8>,
    pub(crate) statuses: Vec<(Side, WcStatus)>,
    /// What atomics find.
    pub(crate) originals: VecDeque<u64>,
}

impl Env for Permissive {
    fn link(&self) -> LinkCaps {
        // Without a congestion window, since the kernel's driver has none.
        LinkCaps { max_payload: self.mtu, lossless: true, by_reference: false, acks_along: false }
    }
    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        let len = match packet.payload {
            TxPayload::None => 0,
            TxPayload::Bytes(data) => data.len(),
            TxPayload::Gather { len, .. } | TxPayload::Remote { len, .. } => len as usize,
        };
        let mut bytes = packet.header.to_vec();
        bytes.resize(bytes.len() + len + usize::from(packet.pad), 0);
        self.out.push_back(bytes);
        Ok(())
    }
    fn check_local(&self, _: &[Sge], _: Access) -> Result<(), AccessFault> {
        Ok(())
    }
    fn scatter(&mut self, _: &[Sge], _: u32, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn check_remote(&self, _: Rkey, _: u64, _: u64, _: Access) -> Result<(), AccessFault> {
        Ok(())
    }
    fn write_remote(&mut self, _: Rkey, _: u64, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn atomic(
        &mut self,
        _: Psn,
        _: Rkey,
        _: u64,
        _: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        Ok(AtomicAnswer::Now(self.originals.pop_front().unwrap_or(0)))
    }
    fn invalidate(&mut self, _: Rkey, _: bool) -> Result<(), AccessFault> {
        Ok(())
    }
    fn pop_srq(&mut self, _: &mut [Sge]) -> Option<SrqEntry> {
        None
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        self.statuses.push((side, completion.status));
    }
    fn event(&mut self, _: QpEvent) {}
    fn count(&mut self, _: Drop) {}
    fn pkey(&self, _: u16) -> Option<Pkey> {
        Some(Pkey::DEFAULT)
    }
}
