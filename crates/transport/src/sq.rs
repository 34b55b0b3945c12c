//! The send queue: a ring of fixed-size entries, with gather lists and inline bytes in flat arenas. Each
//! part is allocated once, with the size that the capabilities give, and posting only copies. The arenas
//! are allocated with the first request that needs them, since many queue pairs are connected and idle.

use alloc::boxed::Box;
use alloc::vec;

use rdmux_wire::{Lkey, Psn, Rkey};

use crate::attr::{Access, QpCaps, QpType};
use crate::env::TxPayload;
use crate::error::PostError;
use crate::optable::TxKind;
use crate::wr::{MwBind, SendData, SendFlags, SendOp, SendWr, Sge, UdDest};

/// The longest message, in bytes (IBTA 9.4.1).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// The flag of an entry whose data is in the inline arena. The other flags are [`SendFlags`].
const INLINE: u8 = 0x80;

/// A work request while it is queued or outstanding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    /// The address in the peer's memory; for a bind, in the region.
    pub(crate) remote_addr: u64,
    /// The operand that an atomic adds or swaps in; for a bind, the length.
    pub(crate) swap_add: u64,
    /// The operand that a compare-and-swap compares; for a bind, the region's key, and the rights below it.
    pub(crate) compare: u64,
    /// The peer's key; for a local invalidate or a bind, the local key.
    pub(crate) rkey: Rkey,
    /// The immediate data, or in network order the key to invalidate.
    pub(crate) extra: [u8; 4],
    /// The peer's shared receive queue; XRC only.
    pub(crate) srqn: u32,
    /// The bytes of the message.
    pub(crate) len: u32,
    /// The first PSN of the message, once it was started.
    pub(crate) first: Psn,
    /// The number of PSNs of the message, once it was started.
    pub(crate) npsn: u32,
    num_sge: u16,
    pub(crate) kind: TxKind,
    flags: u8,
}

impl SendWqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        remote_addr: 0,
        swap_add: 0,
        compare: 0,
        rkey: Rkey(0),
        extra: [0; 4],
        srqn: 0,
        len: 0,
        first: Psn::new(0),
        npsn: 0,
        num_sge: 0,
        kind: TxKind::Send,
        flags: 0,
    };

    /// Returns whether the work request has a flag.
    #[inline]
    pub(crate) fn has(&self, flag: SendFlags) -> bool {
        u32::from(self.flags) & flag.bits() != 0
    }

    /// Returns the parameters of a bind.
    pub(crate) fn bind(&self) -> MwBind {
        MwBind {
            rkey: self.rkey,
            lkey: Lkey((self.compare >> 32) as u32),
            addr: self.remote_addr,
            length: self.swap_add,
            access: Access::from_bits_retain((self.compare & 0xffff_ffff) as u32),
        }
    }

    /// Returns the PSN after the last of the message.
    #[inline]
    pub(crate) fn end(&self) -> Psn {
        self.first.add(self.npsn)
    }
}

/// The send queue. Indices run freely and are masked on use.
#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: Box<[SendWqe]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    /// The destinations of datagrams; empty for connected types.
    dests: Box<[UdDest]>,
    mask: u32,
    /// The maximum number of entries: 0 before the arenas are allocated, then `max_wr`.
    limit: u32,
    max_wr: u32,
    max_sge: u32,
    max_inline: u32,
    /// The oldest incomplete entry.
    pub(crate) head: u32,
    /// The next free entry.
    pub(crate) tail: u32,
}

impl SendQueue {
    pub(crate) fn new(caps: &QpCaps, qp_type: QpType) -> Self {
        let n = Self::slots(caps, qp_type);
        Self {
            wqes: vec![SendWqe::EMPTY; n].into_boxed_slice(),
            sges: Box::default(),
            inline: Box::default(),
            dests: Box::default(),
            mask: u32::try_from(n.wrapping_sub(1)).unwrap_or(u32::MAX),
            limit: 0,
            max_wr: caps.max_send_wr,
            max_sge: caps.max_send_sge,
            max_inline: caps.max_inline_data,
            head: 0,
            tail: 0,
        }
    }

    /// Returns the number of ring entries, 0 where nothing can be posted.
    fn slots(caps: &QpCaps, qp_type: QpType) -> usize {
        match qp_type {
            QpType::XrcRecv => 0,
            _ => (caps.max_send_wr.max(1) as usize).next_power_of_two(),
        }
    }

    /// Returns how many bytes the queue will allocate, or `usize::MAX` if that overflows.
    pub(crate) fn size_for(caps: &QpCaps, qp_type: QpType) -> usize {
        let dest = if qp_type == QpType::Ud { size_of::<UdDest>() } else { 0 };
        let entry = (caps.max_send_sge as usize)
            .saturating_mul(size_of::<Sge>())
            .saturating_add(caps.max_inline_data as usize)
            .saturating_add(size_of::<SendWqe>() + dest);
        Self::slots(caps, qp_type).saturating_mul(entry)
    }

    /// Discards every entry.
    pub(crate) fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    /// Returns the number of allocated bytes.
    pub(crate) fn footprint(&self) -> usize {
        size_of_val(&*self.wqes)
            + size_of_val(&*self.sges)
            + size_of_val(&*self.inline)
            + size_of_val(&*self.dests)
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &SendWqe {
        &self.wqes[(index & self.mask) as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut SendWqe {
        &mut self.wqes[(index & self.mask) as usize]
    }

    /// Returns the gather list of an entry; empty if its data is inline.
    #[inline]
    pub(crate) fn sges(&self, index: u32) -> &[Sge] {
        let slot = (index & self.mask) as usize;
        let start = slot * self.max_sge as usize;
        let end = start + usize::from(self.wqes[slot].num_sge);
        self.sges.get(start..end).unwrap_or_default()
    }

    /// Returns a part of an entry's data.
    #[inline]
    pub(crate) fn payload(&self, index: u32, offset: u32, len: u32) -> TxPayload<'_> {
        if len == 0 {
            return TxPayload::None;
        }
        let slot = (index & self.mask) as usize;
        if self.wqes[slot].flags & INLINE != 0 {
            let start = slot * self.max_inline as usize + offset as usize;
            return TxPayload::Bytes(&self.inline[start..start + len as usize]);
        }
        TxPayload::Gather { sges: self.sges(index), offset, len }
    }

    /// Returns the destination of a datagram.
    #[inline]
    pub(crate) fn dest(&self, index: u32) -> &UdDest {
        &self.dests[(index & self.mask) as usize]
    }

    /// Queues a work request.
    pub(crate) fn post(&mut self, qp_type: QpType, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.len() >= self.limit {
            self.make_room(qp_type)?;
        }
        let mut wqe = SendWqe::EMPTY;
        (wqe.wr_id, wqe.srqn) = (wr.wr_id, wr.srqn);
        wqe.flags = (wr.flags.bits() & 0x7f) as u8;
        wqe.set_op(&wr.op);
        if !wqe.kind.row().serves(qp_type) {
            return Err(PostError::Operation(qp_type));
        }
        let slot = (self.tail & self.mask) as usize;
        match wr.data {
            SendData::Sges(sges) => self.put_sges(slot, sges, &mut wqe)?,
            SendData::Inline(parts) => self.put_inline(slot, parts, &mut wqe, qp_type)?,
        }
        if matches!(wqe.kind, TxKind::FetchAdd | TxKind::CmpSwap) && wqe.len < 8 {
            return Err(PostError::TooShort);
        }
        if qp_type == QpType::Ud {
            self.dests[slot] = wr.dest.ok_or(PostError::NoDestination)?;
        }
        self.wqes[slot] = wqe;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Allocates the arenas of a queue that never held anything. Any other queue is full.
    #[cold]
    fn make_room(&mut self, qp_type: QpType) -> Result<(), PostError> {
        if self.limit == self.max_wr {
            return Err(PostError::Full(self.max_wr));
        }
        let n = self.wqes.len();
        let dests = if qp_type == QpType::Ud { n } else { 0 };
        self.sges = vec![Sge::default(); n * self.max_sge as usize].into_boxed_slice();
        self.dests = vec![UdDest::default(); dests].into_boxed_slice();
        self.limit = self.max_wr;
        Ok(())
    }

    fn put_sges(&mut self, slot: usize, sges: &[Sge], wqe: &mut SendWqe) -> Result<(), PostError> {
        if sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySges { given: sges.len(), max: self.max_sge });
        }
        let start = slot * self.max_sge as usize;
        let mut total = 0_u64;
        for (to, from) in self.sges[start..].iter_mut().zip(sges) {
            *to = *from;
            total += u64::from(from.length);
        }
        if total > u64::from(MAX_MESSAGE) {
            return Err(PostError::TooLong(total));
        }
        // Both fit: see the two checks above. Capabilities of more than 2^16 entries are useless.
        wqe.num_sge = u16::try_from(sges.len()).unwrap_or(u16::MAX);
        wqe.len = u32::try_from(total).unwrap_or(MAX_MESSAGE);
        Ok(())
    }

    fn put_inline(
        &mut self,
        slot: usize,
        parts: &[&[u8]],
        wqe: &mut SendWqe,
        qp_type: QpType,
    ) -> Result<(), PostError> {
        if wqe.kind.row().wants_response() {
            return Err(PostError::Operation(qp_type));
        }
        let max = self.max_inline as usize;
        if self.inline.is_empty() {
            self.inline = vec![0; self.wqes.len() * max].into_boxed_slice();
        }
        let arena = &mut self.inline[slot * max..(slot + 1) * max];
        let mut used = 0;
        for part in parts {
            let Some(to) = arena.get_mut(used..used + part.len()) else {
                let given = parts.iter().map(|p| p.len()).sum();
                return Err(PostError::InlineTooLong { given, max: self.max_inline });
            };
            to.copy_from_slice(part);
            used += part.len();
        }
        wqe.flags |= INLINE;
        wqe.len = u32::try_from(used).unwrap_or(self.max_inline);
        Ok(())
    }
}

impl SendWqe {
    fn set_op(&mut self, op: &SendOp) {
        self.kind = match *op {
            SendOp::Send => TxKind::Send,
            SendOp::SendImm(imm) => {
                self.extra = imm;
                TxKind::SendImm
            }
            SendOp::SendInv(rkey) => {
                self.extra = rkey.0.to_be_bytes();
                TxKind::SendInv
            }
            SendOp::Write { remote_addr, rkey } => {
                (self.remote_addr, self.rkey) = (remote_addr, rkey);
                TxKind::Write
            }
            SendOp::WriteImm { remote_addr, rkey, imm } => {
                (self.remote_addr, self.rkey, self.extra) = (remote_addr, rkey, imm);
                TxKind::WriteImm
            }
            SendOp::Read { remote_addr, rkey } => {
                (self.remote_addr, self.rkey) = (remote_addr, rkey);
                TxKind::Read
            }
            SendOp::FetchAdd { remote_addr, rkey, add } => {
                (self.remote_addr, self.rkey, self.swap_add) = (remote_addr, rkey, add);
                TxKind::FetchAdd
            }
            SendOp::CmpSwap { remote_addr, rkey, compare, swap } => {
                (self.remote_addr, self.rkey) = (remote_addr, rkey);
                (self.compare, self.swap_add) = (compare, swap);
                TxKind::CmpSwap
            }
            SendOp::LocalInv(rkey) => {
                self.rkey = rkey;
                TxKind::LocalInv
            }
            SendOp::BindMw(MwBind { rkey, lkey, addr, length, access }) => {
                (self.rkey, self.remote_addr, self.swap_add) = (rkey, addr, length);
                self.compare = u64::from(lkey.0) << 32 | u64::from(access.bits());
                TxKind::BindMw
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_send_queue_has_no_sge_memory_and_full_one_has_the_announced_size() {
        let caps =
            QpCaps { max_send_wr: 3, max_send_sge: 2, max_inline_data: 8, ..QpCaps::default() };
        let mut queue = SendQueue::new(&caps, QpType::Rc);
        assert_eq!(queue.footprint(), 4 * size_of::<SendWqe>());
        assert!(queue.sges(1).is_empty());
        let bytes = SendWr::new(1, SendOp::Send, SendData::Inline(&[b"12345678"]));
        let sge = Sge { addr: 7, length: 9, lkey: Lkey(1) };
        let sges = [sge; 2];
        let gathered = SendWr::new(2, SendOp::Send, SendData::Sges(&sges));
        for wr in [&gathered, &bytes, &gathered] {
            queue.post(QpType::Rc, wr).unwrap();
        }
        assert_eq!(queue.post(QpType::Rc, &bytes), Err(PostError::Full(3)));
        assert_eq!(queue.sges(2), sges);
        assert!(matches!(queue.payload(1, 2, 3), TxPayload::Bytes(b"345")));
        assert_eq!(queue.footprint(), SendQueue::size_for(&caps, QpType::Rc));
        let mut none = SendQueue::new(&QpCaps { max_send_wr: 0, ..caps }, QpType::Rc);
        assert_eq!(none.post(QpType::Rc, &bytes), Err(PostError::Full(0)));
    }
}
