//! Work requests to post to a queue pair, built step by step.

use rdmux_transport::wr::{self as raw, SendData, SendFlags, SendOp};
use rdmux_wire::{Qkey, Qpn, Rkey};

use crate::Sge;
use crate::ah::Ah;
use crate::memory::RemoteMr;

/// A send work request: one operation with its data and modifiers.
///
/// ```
/// # use rdmux::{SendWr, RemoteMr, Rkey};
/// let remote = RemoteMr { addr: 0x7f00_0000_0000, rkey: Rkey(0x1234), len: 64 };
/// let add = SendWr::fetch_add(1, remote.at(8), 5).signaled();
/// let hello = SendWr::send(2).inline(&[b"hello"]).solicited().signaled();
/// # let _ = (add, hello);
/// ```
///
/// A request that is not [`signaled`](Self::signaled) produces a completion only if it fails or the queue pair was
/// built with [`signal_all`](crate::QpBuilder::signal_all).
#[derive(Clone, Copy, Debug)]
#[must_use = "a work request does nothing until it is posted"]
pub struct SendWr<'a>(raw::SendWr<'a>);

impl<'a> SendWr<'a> {
    fn new(wr_id: u64, op: SendOp) -> Self {
        Self(raw::SendWr::new(wr_id, op, SendData::Sges(&[])))
    }
    /// Returns a SEND: a message into a receive that the peer has posted.
    pub fn send(wr_id: u64) -> Self {
        Self::new(wr_id, SendOp::Send)
    }
    /// Returns a SEND that invalidates the peer's key when it arrives. RC only.
    pub fn send_invalidate(wr_id: u64, rkey: Rkey) -> Self {
        Self::new(wr_id, SendOp::SendInv(rkey))
    }
    /// Returns an RDMA WRITE into the peer's memory, without its involvement. RC and UC.
    pub fn write(wr_id: u64, to: RemoteMr) -> Self {
        Self::new(wr_id, SendOp::Write { remote_addr: to.addr, rkey: to.rkey })
    }
    /// Returns an RDMA READ from the peer's memory, without its involvement. RC only. The scatter list determines its length.
    pub fn read(wr_id: u64, from: RemoteMr) -> Self {
        Self::new(wr_id, SendOp::Read { remote_addr: from.addr, rkey: from.rkey })
    }
    /// Returns a FETCH AND ADD on the eight aligned bytes at the start of `on`, in the peer's byte order. Their previous value
    /// is stored in the scatter list of eight bytes. RC only.
    pub fn fetch_add(wr_id: u64, on: RemoteMr, add: u64) -> Self {
        Self::new(wr_id, SendOp::FetchAdd { remote_addr: on.addr, rkey: on.rkey, add })
    }
    /// Returns a COMPARE AND SWAP on the eight aligned bytes at the start of `on`, which become `swap` if they equal `compare`.
    /// Their previous value is stored in the scatter list of eight bytes. RC only.
    pub fn cmp_swap(wr_id: u64, on: RemoteMr, compare: u64, swap: u64) -> Self {
        let op = SendOp::CmpSwap { remote_addr: on.addr, rkey: on.rkey, compare, swap };
        Self::new(wr_id, op)
    }
    /// Returns a request that invalidates a local key. It sends nothing.
    pub fn local_invalidate(wr_id: u64, rkey: Rkey) -> Self {
        Self::new(wr_id, SendOp::LocalInv(rkey))
    }

    /// Sets the registered memory of the data (for READ and atomics, of the result). Data are read when packets are
    /// built: do not change them before the completion.
    pub fn sges(mut self, list: &'a [Sge]) -> Self {
        self.0.data = SendData::Sges(list);
        self
    }
    /// Copies the data while posting, at most the queue pair's `max_inline` bytes in all, from memory that needs no
    /// registration.
    pub fn inline(mut self, pieces: &'a [&'a [u8]]) -> Self {
        self.0.data = SendData::Inline(pieces);
        self
    }
    /// Adds immediate data to a SEND or a WRITE: four bytes that the peer's completion returns exactly as given. A
    /// WRITE with immediate consumes a receive of the peer. Other operations ignore it.
    pub fn imm(mut self, imm: [u8; 4]) -> Self {
        self.0.op = match self.0.op {
            SendOp::Send => SendOp::SendImm(imm),
            SendOp::Write { remote_addr, rkey } => SendOp::WriteImm { remote_addr, rkey, imm },
            other => other,
        };
        self
    }
    /// Requests a completion.
    pub fn signaled(mut self) -> Self {
        self.0.flags |= SendFlags::SIGNALED;
        self
    }
    /// Waits until earlier READs and atomics of this queue pair are complete.
    pub fn fence(mut self) -> Self {
        self.0.flags |= SendFlags::FENCE;
        self
    }
    /// Wakes a receiver that waits for solicited completions only.
    pub fn solicited(mut self) -> Self {
        self.0.flags |= SendFlags::SOLICITED;
        self
    }
    /// Sets the destination of a datagram. Required for UD, and UD only.
    pub fn to(mut self, ah: &Ah, qpn: Qpn, qkey: Qkey) -> Self {
        self.0.dest = Some(raw::UdDest { av: *ah.vector(), qpn, qkey });
        self
    }
    /// Names the peer's shared receive queue by its [`number`](crate::Srq::number). XRC only, and required by every
    /// operation there: it selects the process whose memory is accessed.
    pub fn srq(mut self, number: u32) -> Self {
        self.0.srqn = number;
        self
    }
    /// Returns the request in the form that the engine takes.
    pub(crate) fn raw(&self) -> &raw::SendWr<'a> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteMr = RemoteMr { addr: 0x1000, rkey: Rkey(7), len: 64 };

    #[test]
    fn immediate_data_turns_the_operation_into_its_immediate_form() {
        assert_eq!(SendWr::send(1).imm(*b"abcd").raw().op, SendOp::SendImm(*b"abcd"));
        assert_eq!(
            SendWr::write(1, REMOTE.at(16)).imm(*b"abcd").raw().op,
            SendOp::WriteImm { remote_addr: 0x1010, rkey: Rkey(7), imm: *b"abcd" }
        );
        assert!(matches!(SendWr::read(1, REMOTE).imm(*b"abcd").raw().op, SendOp::Read { .. }));
    }

    #[test]
    fn send_wr_flags_accumulate() {
        let wr = SendWr::send(1).signaled().fence().solicited();
        assert_eq!(wr.raw().flags, SendFlags::all());
    }
}
