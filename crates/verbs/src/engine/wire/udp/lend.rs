//! Zero-copy sends of a queue pair: its buffers are recycled when the peer has acknowledged them.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use rdmux_link::udp::{Borrower, LendingPool, Loan};
use rdmux_wire::{Bth, Psn};

/// The maximum number of zero-copy messages of a process at a time; less than that is in flight to a socket.
const LOANS: usize = 64;
/// The number of bytes from which on zero-copy, which takes two more system calls, costs less than the copy.
const LEAST: usize = 24 << 10;

/// The pool of buffers for zero-copy sends: none if the kernel does not support them.
#[derive(Debug, Default)]
pub(crate) struct Lender(OnceLock<Option<Arc<LendingPool>>>);

impl Lender {
    fn take(&self, to: Borrower) -> Option<Loan> {
        let pool = self.0.get_or_init(|| match LendingPool::new(LOANS) {
            Ok(pool) => Some(Arc::new(pool)),
            Err(error) => {
                tracing::debug!(%error, "all that is sent is copied");
                None
            }
        });
        pool.as_ref()?.take(to)
    }
}

/// The zero-copy sends of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    /// Zero-copy sends in flight with the PSN of each one's last packet, oldest first.
    out: VecDeque<(Psn, Loan)>,
    /// The PSN of the newest request that was sent.
    newest: Option<Psn>,
    /// Whether all gathered packets are requests that are sent for the first time. The receiver may still read a retransmitted
    /// packet after it was acknowledged.
    fresh: bool,
}

impl Loans {
    /// Records a packet that is gathered, possibly as the first.
    #[inline]
    pub(crate) fn note(&mut self, header: &[u8], first: bool) {
        let fresh = self.is_new(header);
        self.fresh = fresh && (first || self.fresh);
    }

    #[inline]
    fn is_new(&mut self, header: &[u8]) -> bool {
        /// The range of response opcodes, in all transports.
        const ANSWERS: std::ops::RangeInclusive<u8> = 0x0d..=0x12;
        /// The transports whose packets are acknowledged: RC, and XRC, which is like RC.
        const ACKNOWLEDGED: [u8; 2] = [0, 5];
        let Some(bth) = header.first_chunk::<{ Bth::LEN }>() else { return false };
        let psn = Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]]));
        if ANSWERS.contains(&(bth[0] & 0x1f)) || !ACKNOWLEDGED.contains(&(bth[0] >> 5)) {
            return false;
        }
        let new = self.newest.is_none_or(|newest| psn.diff(newest) > 0);
        if new {
            self.newest = Some(psn);
        }
        new
    }

    /// Allocates a zero-copy buffer for the packets gathered for a socket, if their number of bytes is worth it.
    pub(crate) fn borrow(&self, lender: &Lender, to: Borrower, bytes: usize) -> Option<Loan> {
        let worth = self.fresh && bytes >= LEAST;
        worth.then(|| lender.take(to)).flatten()
    }

    /// Records a zero-copy send that the kernel has accepted.
    pub(crate) fn lent(&mut self, loan: Loan) {
        if let Some(newest) = self.newest {
            self.out.push_back((newest, loan));
        }
    }

    /// Recycles the buffers of acknowledged packets. A peer that acknowledges packets it has not read only harms itself. Without
    /// acknowledgements nothing is known, and the kernel keeps the pages.
    #[inline]
    pub(crate) fn recycle(&mut self, unacknowledged: impl FnOnce() -> Option<Psn>) {
        if self.out.is_empty() {
            return;
        }
        let Some(una) = unacknowledged() else { return self.out.clear() };
        while let Some((_, loan)) = self.out.pop_front_if(|(last, _)| una.diff(*last) > 0) {
            loan.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: u8, psn: u32) -> [u8; Bth::LEN] {
        let mut header = [0; Bth::LEN];
        header[0] = opcode;
        header[8..].copy_from_slice(&(0x8000_0000 | psn).to_be_bytes());
        header
    }

    /// Returns whether packets that are gathered together may be sent zero-copy.
    fn fresh(loans: &mut Loans, packets: &[(u8, u32)]) -> bool {
        for (i, (opcode, psn)) in packets.iter().enumerate() {
            loans.note(&header(*opcode, *psn), i == 0);
        }
        loans.fresh
    }

    #[test]
    fn only_requests_that_leave_for_the_first_time() {
        const WRITE: u8 = 0x0a;
        const ACK: u8 = 0x11;
        const UC: u8 = 1 << 5;
        const XRC: u8 = 5 << 5;
        let mut loans = Loans::default();
        assert!(fresh(&mut loans, &[(WRITE, 0xff_fffe), (WRITE, 0xff_ffff), (WRITE, 0)]));
        assert!(!fresh(&mut loans, &[(WRITE, 0), (WRITE, 1)]), "the first was sent before");
        assert!(!fresh(&mut loans, &[(WRITE, 1), (WRITE, 2)]));
        assert!(fresh(&mut loans, &[(WRITE, 3), (WRITE, 4)]));
        assert!(!fresh(&mut loans, &[(WRITE, 5), (ACK, 900)]), "nobody acknowledges an answer");
        assert!(fresh(&mut loans, &[(WRITE, 6)]), "an answer's PSN is the peer's");
        assert!(fresh(&mut loans, &[(XRC | WRITE, 7)]));
        assert!(!fresh(&mut loans, &[(UC | WRITE, 8)]), "nobody acknowledges it");
    }

    #[test]
    fn taken_back_when_the_last_is_acknowledged() {
        let lender = Lender::default();
        let to = Borrower { addr: ([127, 0, 0, 1], 4791).into(), slot: 1 };
        let mut loans = Loans::default();
        for psn in [0xff_ffff, 3] {
            loans.newest = Some(Psn::new(psn));
            loans.lent(lender.take(to).unwrap());
        }
        let mut left = |una| {
            loans.recycle(|| una);
            loans.out.len()
        };
        assert_eq!(left(Some(Psn::new(0xff_ffff))), 2);
        assert_eq!(left(Some(Psn::new(0))), 1);
        assert_eq!(left(Some(Psn::new(3))), 1);
        assert_eq!(left(None), 0, "the queue pair has failed");
        let all: Vec<_> = std::iter::from_fn(|| lender.take(to)).collect();
        assert_eq!(all.len(), LOANS);
    }
}
