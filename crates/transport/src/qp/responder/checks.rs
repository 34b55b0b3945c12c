//! Validation of a packet: its place in the message, its length, the access rights of the queue pair (IBTA 9.7.4.1).

use rdmux_wire::{Packet, Reth};

use crate::attr::Access;
use crate::env::{AccessFault, Env};
use crate::fault::ResponderFault;
use crate::optable::{Kind, RxRow};
use crate::qp::Qp;
use crate::qp::responder::{Message, Refusal};
use crate::sq::MAX_MESSAGE;

pub(super) const INVALID: Refusal = Refusal::Fault(ResponderFault::InvalidRequest);

impl Qp {
    /// Selects the shared receive queue that an XRC packet names. All packets of a message name the
    /// same one, and so must every packet while a receive from it is in use.
    pub(super) fn select_srq<E: Env>(
        &mut self,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let srqn = packet.xrceth.ok_or(INVALID)?.srqn;
        let begun = self.resp.message != Message::None || self.rq.is_active();
        if begun && srqn != self.resp.srqn {
            return Err(INVALID);
        }
        env.select_srq(srqn).map_err(|fault| match fault {
            AccessFault::Busy => Refusal::NotReady,
            _ => Refusal::Fault(ResponderFault::NoSuchSrq),
        })?;
        self.resp.srqn = srqn;
        Ok(())
    }

    /// Returns whether the opcode may follow the one before (IBTA 9.7.4.1.2).
    #[inline]
    pub(crate) fn in_sequence(&self, row: RxRow) -> bool {
        match self.resp.message {
            Message::None => row.starts,
            Message::Send => !row.starts && row.kind == Kind::Send,
            Message::Write => !row.starts && row.kind == Kind::Write,
        }
    }

    /// Checks whether this queue pair allows the access. This is a right of the queue pair, not of
    /// the memory, so the request is invalid (IBTA 9.7.4.1.4; the kernel's rxe agrees).
    pub(super) fn permits(&self, access: Access) -> Result<(), Refusal> {
        if self.attr.access.contains(access) { Ok(()) } else { Err(INVALID) }
    }

    /// Checks the memory that a RETH names. A request of zero bytes is not checked.
    pub(super) fn check_reth<E: Env>(
        &self,
        reth: &Reth,
        access: Access,
        env: &E,
    ) -> Result<(), Refusal> {
        self.permits(access)?;
        if reth.dma_len > MAX_MESSAGE {
            return Err(INVALID);
        }
        if reth.dma_len == 0 {
            return Ok(());
        }
        env.check_remote(reth.rkey, reth.va, u64::from(reth.dma_len), access)
            .map_err(Refusal::remote)
    }
}
