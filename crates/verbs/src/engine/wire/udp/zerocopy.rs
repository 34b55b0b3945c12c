//! Zero-copy sends of a queue pair: its buffers are recycled when the peer has acknowledged them.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use rdmux_link::udp::{ZeroCopyBuf, ZeroCopyDest, ZeroCopyPool};
use rdmux_wire::{Bth, Psn};

/// The maximum number of zero-copy messages of a process at a time; less than that is in flight to a socket.
const MAX_SENDS: usize = 64;
/// The number of bytes from which on zero-copy is cheaper than the copy, although it takes two more system calls.
const LEAST: usize = 24 << 10;

/// The pool of buffers for zero-copy sends: none if the kernel does not support them.
#[derive(Debug, Default)]
pub(crate) struct SharedPool(OnceLock<Option<Arc<ZeroCopyPool>>>);

impl SharedPool {
    fn take(&self, to: ZeroCopyDest) -> Option<ZeroCopyBuf> {
        let pool = self.0.get_or_init(|| match ZeroCopyPool::new(MAX_SENDS) {
            Ok(pool) => Some(Arc::new(pool)),
            Err(error) => {
                tracing::debug!(%error, "zero-copy sends are not available; payloads are copied");
                None
            }
        });
        pool.as_ref()?.take(to)
    }
}

/// The zero-copy sends of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct ZeroCopySends {
    /// Zero-copy sends in flight with the PSN of each one's last packet, oldest first.
    out: VecDeque<(Psn, ZeroCopyBuf)>,
    /// The PSN of the newest request that was sent.
    newest: Option<Psn>,
    /// Whether all gathered packets are requests that are sent for the first time. The receiver may still read a retransmitted
    /// packet after it was acknowledged.
    fresh: bool,
}

impl ZeroCopySends {
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

    /// Allocates a zero-copy buffer for the packets gathered for a socket, if they have enough bytes.
    pub(crate) fn take(
        &self,
        zerocopy_pool: &SharedPool,
        to: ZeroCopyDest,
        bytes: usize,
    ) -> Option<ZeroCopyBuf> {
        let worth = self.fresh && bytes >= LEAST;
        worth.then(|| zerocopy_pool.take(to)).flatten()
    }

    /// Records a zero-copy send that the kernel has accepted.
    pub(crate) fn sent(&mut self, buf: ZeroCopyBuf) {
        if let Some(newest) = self.newest {
            self.out.push_back((newest, buf));
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
        while let Some((_, buf)) = self.out.pop_front_if(|(last, _)| una.diff(*last) > 0) {
            buf.recycle();
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
    fn fresh(zerocopy: &mut ZeroCopySends, packets: &[(u8, u32)]) -> bool {
        for (i, (opcode, psn)) in packets.iter().enumerate() {
            zerocopy.note(&header(*opcode, *psn), i == 0);
        }
        zerocopy.fresh
    }

    #[test]
    fn zerocopy_is_used_only_for_first_transmission_of_acknowledged_requests() {
        const WRITE: u8 = 0x0a;
        const ACK: u8 = 0x11;
        const UC: u8 = 1 << 5;
        const XRC: u8 = 5 << 5;
        let mut zerocopy = ZeroCopySends::default();
        assert!(fresh(&mut zerocopy, &[(WRITE, 0xff_fffe), (WRITE, 0xff_ffff), (WRITE, 0)]));
        assert!(!fresh(&mut zerocopy, &[(WRITE, 0), (WRITE, 1)]), "the first was sent before");
        assert!(!fresh(&mut zerocopy, &[(WRITE, 1), (WRITE, 2)]));
        assert!(fresh(&mut zerocopy, &[(WRITE, 3), (WRITE, 4)]));
        assert!(!fresh(&mut zerocopy, &[(WRITE, 5), (ACK, 900)]), "nobody acknowledges an answer");
        assert!(fresh(&mut zerocopy, &[(WRITE, 6)]), "an answer's PSN is the peer's");
        assert!(fresh(&mut zerocopy, &[(XRC | WRITE, 7)]));
        assert!(!fresh(&mut zerocopy, &[(UC | WRITE, 8)]), "nobody acknowledges it");
    }

    #[test]
    fn zerocopy_buffers_are_recycled_when_their_last_psn_is_acknowledged() {
        let zerocopy_pool = SharedPool::default();
        let to = ZeroCopyDest { addr: ([127, 0, 0, 1], 4791).into(), slot: 1 };
        let mut zerocopy = ZeroCopySends::default();
        for psn in [0xff_ffff, 3] {
            zerocopy.newest = Some(Psn::new(psn));
            zerocopy.sent(zerocopy_pool.take(to).unwrap());
        }
        let mut left = |una| {
            zerocopy.recycle(|| una);
            zerocopy.out.len()
        };
        assert_eq!(left(Some(Psn::new(0xff_ffff))), 2);
        assert_eq!(left(Some(Psn::new(0))), 1);
        assert_eq!(left(Some(Psn::new(3))), 1);
        assert_eq!(left(None), 0, "the queue pair has failed");
        let all: Vec<_> = std::iter::from_fn(|| zerocopy_pool.take(to)).collect();
        assert_eq!(all.len(), MAX_SENDS);
    }
}
