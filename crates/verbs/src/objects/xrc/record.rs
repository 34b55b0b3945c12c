//! The records in the rings between hub and process, and in the rings of receives. The reader checks them: the other side may
//! write anything.

use rdmux_transport::env::{AccessFault, AtomicOp};
use rdmux_transport::wr::{Completion, Sge, WcFlags, WcOpcode, WcStatus};
use rdmux_wire::{Lkey, Qpn, Rkey};

/// Kinds of records in the ring between hub and process. Kind 1 is a packet.
pub(crate) mod kind {
    /// Hub to process: bytes to be placed in memory.
    pub(crate) const PLACE: u8 = 2;
    /// Hub to process: a receive is complete.
    pub(crate) const COMPLETE: u8 = 3;
    /// Hub to process: an atomic to execute.
    pub(crate) const ATOMIC: u8 = 4;
    /// Process to hub: the result of an atomic.
    pub(crate) const RESULT: u8 = 5;
    /// Process to hub: a region's remote key is no longer valid.
    pub(crate) const INVALIDATE: u8 = 6;
    /// A receive, in a ring of receives.
    pub(crate) const RECEIVE: u8 = 7;
    /// Hub to process: bytes to be placed in memory, and a receive that completes with them.
    pub(crate) const DELIVER: u8 = 8;
}

/// The maximum number of entries of a scatter list, even if the device's limit is higher.
pub(crate) const MAX_SGES: u32 = 32;
/// Bytes of a scatter entry.
const SGE: usize = 16;

/// The three numbers in a record's head, encoded in sixteen bytes.
pub(crate) type Meta = [u8; 16];

fn meta(a: u64, b: u32, c: u32) -> Meta {
    let mut meta = [0; 16];
    meta[..8].copy_from_slice(&a.to_ne_bytes());
    meta[8..12].copy_from_slice(&b.to_ne_bytes());
    meta[12..].copy_from_slice(&c.to_ne_bytes());
    meta
}

fn parse_meta(meta: Meta) -> (u64, u32, u32) {
    let [a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, c0, c1, c2, c3] = meta;
    (
        u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
        u32::from_ne_bytes([b0, b1, b2, b3]),
        u32::from_ne_bytes([c0, c1, c2, c3]),
    )
}

/// Parses numbers from the front of some bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*first))
    }
    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*first))
    }
    fn bytes4(&mut self) -> Option<[u8; 4]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

fn put_sge(to: &mut Vec<u8>, sge: &Sge) {
    to.extend_from_slice(&sge.addr.to_ne_bytes());
    to.extend_from_slice(&sge.length.to_ne_bytes());
    to.extend_from_slice(&sge.lkey.0.to_ne_bytes());
}

fn sge(bytes: &[u8]) -> Option<Sge> {
    let mut reader = Reader(bytes);
    Some(Sge { addr: reader.u64()?, length: reader.u32()?, lkey: Lkey(reader.u32()?) })
}

/// A posted receive.
pub(crate) struct Receive;

impl Receive {
    /// Encodes a receive: returns the head and writes the bytes to `to`.
    pub(crate) fn encode(wr_id: u64, sges: &[Sge], to: &mut Vec<u8>) -> Meta {
        to.clear();
        sges.iter().for_each(|sge| put_sge(to, sge));
        meta(wr_id, u32::try_from(sges.len()).unwrap_or(u32::MAX), 0)
    }

    /// Parses a receive. Returns the work request's ID and the number of entries written to `sges`; none if the record is
    /// invalid.
    pub(crate) fn parse(meta: Meta, bytes: &[u8], sges: &mut [Sge]) -> Option<(u64, usize)> {
        let (wr_id, n, _) = parse_meta(meta);
        let n = usize::try_from(n).ok()?;
        if n > sges.len() || bytes.len() != n * SGE {
            return None;
        }
        for (to, from) in sges.iter_mut().zip(bytes.chunks_exact(SGE)) {
            *to = sge(from)?;
        }
        Some((wr_id, n))
    }
}

/// Bytes to be placed in a process's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The shared receive queue whose protection domain applies.
    pub(crate) srqn: u32,
    /// Whether a peer named the memory, by a remote key. Otherwise the process itself did, by a local key.
    pub(crate) remote: bool,
    /// Address, key and length of the piece.
    pub(crate) at: Sge,
    /// The bytes.
    pub(crate) data: &'a [u8],
}

impl<'a> Place<'a> {
    pub(crate) fn meta(&self) -> Meta {
        let flag = u32::from(self.remote) << 24;
        meta(self.at.addr, self.at.lkey.0, self.srqn & 0x00ff_ffff | flag)
    }

    pub(crate) fn parse(meta: Meta, data: &'a [u8]) -> Option<Self> {
        let (addr, key, word) = parse_meta(meta);
        let length = u32::try_from(data.len()).ok()?;
        let at = Sge { addr, length, lkey: Lkey(key) };
        Some(Self { srqn: word & 0x00ff_ffff, remote: word >> 24 & 1 == 1, at, data })
    }
}

/// A completed receive: those fields of a completion that apply to one.
pub(crate) struct Completed;

impl Completed {
    pub(crate) fn encode(srqn: u32, completion: &Completion) -> (Meta, [u8; 24]) {
        let mut bytes = [0; 24];
        let flags = completion.flags.bits() << 1 | u32::from(completion.solicited);
        let words = [
            (completion.status as u32).to_ne_bytes(),
            (completion.opcode as u32).to_ne_bytes(),
            completion.byte_len.to_ne_bytes(),
            completion.imm,
            completion.invalidated.0.to_ne_bytes(),
            flags.to_ne_bytes(),
        ];
        bytes.as_chunks_mut().0.copy_from_slice(&words);
        (meta(completion.wr_id, srqn, completion.qpn.get()), bytes)
    }

    /// Parses a completion. Returns the queue's number with it.
    pub(crate) fn parse(meta: Meta, bytes: &[u8]) -> Option<(u32, Completion)> {
        let (wr_id, srqn, qpn) = parse_meta(meta);
        let mut reader = Reader(bytes);
        let status = status(reader.u32()?)?;
        let opcode = match reader.u32()? {
            n if n == WcOpcode::Recv as u32 => WcOpcode::Recv,
            n if n == WcOpcode::RecvRdmaWithImm as u32 => WcOpcode::RecvRdmaWithImm,
            _ => return None,
        };
        let byte_len = reader.u32()?;
        let imm = reader.bytes4()?;
        let invalidated = Rkey(reader.u32()?);
        let flags = reader.u32()?;
        let completion = Completion {
            wr_id,
            status,
            opcode,
            byte_len,
            imm,
            invalidated,
            qpn: Qpn::new(qpn & 0x00ff_ffff),
            flags: WcFlags::from_bits_truncate(flags >> 1),
            solicited: flags & 1 == 1,
            ..Completion::EMPTY
        };
        Some((srqn, completion))
    }
}

/// A completed receive with its last bytes. The head encodes their [`Place`].
pub(crate) struct Delivered;

impl Delivered {
    /// Bytes before the data.
    const LEN: usize = 40;

    pub(crate) fn encode(srqn: u32, completion: &Completion) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (meta, rest) = Completed::encode(srqn, completion);
        bytes[..16].copy_from_slice(&meta);
        bytes[16..].copy_from_slice(&rest);
        bytes
    }

    /// Parses a delivery: the queue's number and the completion, then the data.
    pub(crate) fn parse(bytes: &[u8]) -> Option<((u32, Completion), &[u8])> {
        let (meta, rest) = bytes.split_first_chunk()?;
        let (completion, data) = rest.split_at_checked(Self::LEN - meta.len())?;
        Some((Completed::parse(*meta, completion)?, data))
    }
}

/// Returns the status with this code, if a receive can have it.
fn status(code: u32) -> Option<WcStatus> {
    use WcStatus as S;
    [S::Success, S::LocLenErr, S::LocQpOpErr, S::LocProtErr, S::WrFlushErr, S::LocAccessErr]
        .into_iter()
        .chain([S::RemInvReqErr, S::RemAccessErr, S::RemOpErr, S::RemAbortErr, S::GeneralErr])
        .find(|status| *status as u32 == code)
}

/// An atomic on a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atomic {
    /// The requesting target, and the PSN of the request. The result has both.
    pub(crate) qpn: Qpn,
    pub(crate) psn: u32,
    /// The shared receive queue whose protection domain applies.
    pub(crate) srqn: u32,
    pub(crate) rkey: Rkey,
    /// The address of the word.
    pub(crate) va: u64,
    pub(crate) op: AtomicOp,
}

impl Atomic {
    pub(crate) fn encode(&self) -> (Meta, [u8; 24]) {
        let (compares, first, second) = match self.op {
            AtomicOp::FetchAdd { add } => (0, add, 0),
            AtomicOp::CmpSwap { compare, swap } => (1, swap, compare),
        };
        let names = u64::from(self.psn) << 32 | u64::from(self.qpn.get());
        let words = [first.to_ne_bytes(), second.to_ne_bytes(), names.to_ne_bytes()];
        let mut bytes = [0; 24];
        bytes.as_chunks_mut().0.copy_from_slice(&words);
        (meta(self.va, self.rkey.0, self.srqn & 0x00ff_ffff | compares << 24), bytes)
    }

    pub(crate) fn parse(meta: Meta, bytes: &[u8]) -> Option<Self> {
        let (va, rkey, word) = parse_meta(meta);
        let mut reader = Reader(bytes);
        let (first, second) = (reader.u64()?, reader.u64()?);
        let op = if word >> 24 & 1 == 1 {
            AtomicOp::CmpSwap { compare: second, swap: first }
        } else {
            AtomicOp::FetchAdd { add: first }
        };
        let names = reader.u64()?;
        let qpn = Qpn::new((names & 0x00ff_ffff) as u32);
        let psn = (names >> 32 & 0x00ff_ffff) as u32;
        Some(Self { qpn, psn, srqn: word & 0x00ff_ffff, rkey: Rkey(rkey), va, op })
    }
}

/// The outcome of an [`Atomic`].
pub(crate) struct Outcome;

impl Outcome {
    pub(crate) fn encode(qpn: Qpn, psn: u32, result: Result<u64, AccessFault>) -> Meta {
        let word = psn & 0x00ff_ffff | u32::from(result.is_err()) << 24;
        meta(result.unwrap_or(0), qpn.get(), word)
    }

    /// Parses an outcome: the target, the PSN, and the original value, or only that it failed.
    pub(crate) fn parse(meta: Meta) -> (Qpn, u32, Result<u64, AccessFault>) {
        let (value, qpn, word) = parse_meta(meta);
        let result = if word >> 24 & 1 == 1 { Err(AccessFault::Gone) } else { Ok(value) };
        (Qpn::new(qpn & 0x00ff_ffff), word & 0x00ff_ffff, result)
    }
}

/// A key that is no longer valid for peers.
pub(crate) struct Invalidated;

impl Invalidated {
    pub(crate) fn encode(rkey: Rkey, serial: u64) -> Meta {
        meta(serial, rkey.0, 0)
    }
    /// Parses an invalidation: the key, and the serial number of the registration.
    pub(crate) fn parse(meta: Meta) -> (Rkey, u64) {
        let (serial, rkey, _) = parse_meta(meta);
        (Rkey(rkey), serial)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn receive_record_round_trips() {
        let list = [
            Sge { addr: 0x1234_5678_9abc_def0, length: 77, lkey: Lkey(0x1_0203) },
            Sge { addr: 1, length: u32::MAX, lkey: Lkey(u32::MAX) },
        ];
        let mut bytes = Vec::new();
        let meta = Receive::encode(u64::MAX - 1, &list, &mut bytes);
        let mut got = [Sge::default(); MAX_SGES as usize];
        let (wr_id, n) = Receive::parse(meta, &bytes, &mut got).unwrap();
        assert_eq!((wr_id, &got[..n]), (u64::MAX - 1, &list[..]));
        assert!(Receive::parse(meta, &bytes, &mut got[..1]).is_none(), "too many entries");
        assert!(Receive::parse(meta, &bytes[1..], &mut got).is_none(), "cut short");
    }

    #[test]
    fn completion_record_round_trips_and_refuses_send_opcodes() {
        let completion = Completion {
            wr_id: 99,
            opcode: WcOpcode::RecvRdmaWithImm,
            byte_len: 4096,
            imm: [1, 2, 3, 4],
            invalidated: Rkey(5),
            qpn: Qpn::new(0x80_0007),
            flags: WcFlags::WITH_IMM,
            solicited: true,
            ..Completion::EMPTY
        };
        let (meta, mut bytes) = Completed::encode(0xff_0001, &completion);
        assert_eq!(Completed::parse(meta, &bytes), Some((0xff_0001, completion)));
        let mut delivered = Delivered::encode(0xff_0001, &completion).to_vec();
        delivered.extend(b"data");
        let (got, data) = Delivered::parse(&delivered).unwrap();
        assert_eq!((got, data), ((0xff_0001, completion), &b"data"[..]));
        assert!(Delivered::parse(&delivered[..39]).is_none());
        bytes[4] = WcOpcode::Send as u8;
        assert!(Completed::parse(meta, &bytes).is_none(), "a receive is no send");
        bytes[0] = 99;
        assert!(Completed::parse(meta, &bytes).is_none());
        assert!(Completed::parse(meta, &[]).is_none());
    }

    #[test]
    fn atomic_request_and_outcome_records_round_trip() {
        for op in [AtomicOp::FetchAdd { add: 7 }, AtomicOp::CmpSwap { compare: 1, swap: 2 }] {
            let (qpn, rkey) = (Qpn::new(0x80_0001), Rkey(0x300));
            let atomic = Atomic { qpn, psn: 0xff_ffff, srqn: 0x80_0002, rkey, va: 64, op };
            let (meta, bytes) = atomic.encode();
            assert_eq!(Atomic::parse(meta, &bytes), Some(atomic));
            assert_eq!(Atomic::parse(meta, &bytes[1..]), None);
        }
        let qpn = Qpn::new(0x80_0001);
        assert_eq!(Outcome::parse(Outcome::encode(qpn, 5, Ok(6))), (qpn, 5, Ok(6)));
        let gone = Err(AccessFault::Gone);
        assert_eq!(Outcome::parse(Outcome::encode(qpn, 5, Err(AccessFault::Key))), (qpn, 5, gone));
    }

    #[test]
    fn place_record_round_trips() {
        let at = Sge { addr: 1 << 40, length: 3, lkey: Lkey(9) };
        for remote in [false, true] {
            let place = Place { srqn: 0x80_0003, remote, at, data: b"abc" };
            let got = Place::parse(place.meta(), b"abc").unwrap();
            assert_eq!(
                (got.srqn, got.remote, got.at, got.data),
                (0x80_0003, remote, at, &b"abc"[..])
            );
        }
    }

    proptest! {
        /// The process at the other end of a ring may be hostile: its records are parsed or refused, within bounds.
        #[test]
        fn random_records_are_parsed_within_bounds_or_refused(meta: Meta, bytes in vec(any::<u8>(), 0..600)) {
            let mut sges = [Sge::default(); MAX_SGES as usize];
            if let Some((_, n)) = Receive::parse(meta, &bytes, &mut sges) {
                prop_assert!(n <= sges.len());
            }
            if let Some(place) = Place::parse(meta, &bytes) {
                prop_assert!(place.srqn <= 0xff_ffff && place.at.length as usize == bytes.len());
            }
            if let Some((_, data)) = Delivered::parse(&bytes) {
                prop_assert!(data.len() + 40 == bytes.len());
            }
            if let Some((_, completion)) = Completed::parse(meta, &bytes) {
                prop_assert!(completion.qpn.get() <= 0xff_ffff);
            }
            if let Some(atomic) = Atomic::parse(meta, &bytes) {
                prop_assert!(atomic.psn <= 0xff_ffff && atomic.srqn <= 0xff_ffff);
            }
            let (qpn, psn, _) = Outcome::parse(meta);
            prop_assert!(qpn.get() <= 0xff_ffff && psn <= 0xff_ffff);
            let (rkey, serial) = Invalidated::parse(meta);
            prop_assert_eq!(Invalidated::parse(Invalidated::encode(rkey, serial)), (rkey, serial));
        }
    }
}
