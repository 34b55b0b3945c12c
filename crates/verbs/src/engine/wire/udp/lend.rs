//! What a queue pair has lent the kernel to send from, until the peer has read it.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use rdmux_link::udp::{Borrower, LendingPool, Loan};
use rdmux_wire::{Bth, Psn};

/// Messages that a process may have lent at a time; less than that is in flight to a socket.
const LOANS: usize = 64;
/// Bytes from which on lending, which takes two system calls more, costs less than the copy.
const LEAST: usize = 24 << 10;

/// What a process lends of: none where the kernel takes nothing.
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

/// A queue pair's loans.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    /// With the PSN of the last packet of each, the oldest first.
    out: VecDeque<(Psn, Loan)>,
    /// The PSN of the newest request that was sent.
    newest: Option<Psn>,
    /// Whether all that is gathered is requests, none of which was sent before: what is sent again its receiver may read
    /// after it was acknowledged.
    fresh: bool,
}

impl Loans {
    /// Takes note of a packet that is gathered, perhaps as the first.
    #[inline]
    pub(crate) fn note(&mut self, header: &[u8], first: bool) {
        let fresh = self.is_new(header);
        self.fresh = fresh && (first || self.fresh);
    }

    #[inline]
    fn is_new(&mut self, header: &[u8]) -> bool {
        /// The first opcode that answers, of whatever transport, and the last.
        const ANSWERS: std::ops::RangeInclusive<u8> = 0x0d..=0x12;
        /// The transports whose packets are acknowledged: RC, and XRC, which is as RC.
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

    /// A loan to a socket for what is gathered for it, which is so many bytes, if that is worth one.
    pub(crate) fn borrow(&self, lender: &Lender, to: Borrower, bytes: usize) -> Option<Loan> {
        let worth = self.fresh && bytes >= LEAST;
        worth.then(|| lender.take(to)).flatten()
    }

    /// The kernel has a loan, with what was gathered.
    pub(crate) fn lent(&mut self, loan: Loan) {
        if let Some(newest) = self.newest {
            self.out.push_back((newest, loan));
        }
    }

    /// Takes back what the peer has read, or says that it has: if it has not, that is its own loss. Without acknowledgements
    /// nobody knows, and the kernel keeps what it has.
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

    /// Whether packets that are gathered together may be lent.
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
