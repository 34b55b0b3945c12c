//! The receives of an XRC shared receive queue: a ring in shared memory, which the process fills and the
//! hub empties.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rdmux_link::Producer;
use rdmux_link::ring::{MAX_CAPACITY, RingError};
use rdmux_transport::wr::RecvWr;

use crate::objects::cq::CqCore;
use crate::objects::error::VerbsError;
use crate::objects::xrc::record::{Receive, kind};

/// Bytes of a line of a ring, and of a record's head.
const LINE: usize = 64;
const HEAD: usize = 24;
const SGE: usize = 16;

/// The part of an XRC shared receive queue that replaces its own entries.
#[derive(Debug)]
pub(crate) struct XrcQueue {
    /// The completion queue of its receives.
    cq: Arc<CqCore>,
    ring: Mutex<Poster>,
    /// The number of receives that are posted and not complete.
    outstanding: AtomicU32,
}

/// The writer of the ring of receives.
#[derive(Debug)]
struct Poster {
    ring: Producer,
    bytes: Vec<u8>,
}

impl XrcQueue {
    /// Creates the ring, for `max_wr` receives of `max_sge` entries each. The returned descriptor is for the hub.
    pub(crate) fn new(
        cq: Arc<CqCore>,
        max_wr: u32,
        max_sge: u32,
    ) -> std::io::Result<(Self, OwnedFd)> {
        let (fd, ring) = make_ring(max_wr, max_sge)?;
        let ring = Mutex::new(Poster { ring, bytes: Vec::new() });
        Ok((Self { cq, ring, outstanding: AtomicU32::new(0) }, fd))
    }

    /// Returns the completion queue of its receives.
    pub(crate) fn cq(&self) -> &Arc<CqCore> {
        &self.cq
    }

    /// Posts a receive, whose scatter list was checked to be short enough.
    pub(crate) fn post(&self, wr: &RecvWr<'_>, max_wr: u32) -> Result<(), VerbsError> {
        const WHAT: &str = "post to an XRC shared receive queue";
        let full = || {
            VerbsError::no_memory(WHAT, format!("the queue is full: {max_wr} receives are posted"))
        };
        let mut poster = self.ring.lock();
        if self.outstanding.load(Ordering::Relaxed) >= max_wr {
            return Err(full());
        }
        let Poster { ring, bytes } = &mut *poster;
        let meta = Receive::encode(wr.wr_id, wr.sges, bytes);
        // Counted first: the receive may complete before this thread continues.
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        ring.try_push(kind::RECEIVE, meta, &[bytes]).map_err(|error| {
            self.completed();
            match error {
                RingError::Full => full(),
                error => VerbsError::invalid(WHAT, error.to_string()),
            }
        })
    }

    /// Returns how many receives are posted and not complete.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed) as usize
    }

    /// Records that a receive is complete. Returns how many are not.
    pub(crate) fn completed(&self) -> u32 {
        let took = self
            .outstanding
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        took.map_or(0, |before| before - 1)
    }
}

/// Creates a ring that holds as many receives as the queue has room for.
fn make_ring(max_wr: u32, max_sge: u32) -> std::io::Result<(OwnedFd, Producer)> {
    let stride = (HEAD + max_sge as usize * SGE).next_multiple_of(LINE);
    let capacity = (max_wr as usize + 2).saturating_mul(stride).min(MAX_CAPACITY);
    let fd = rdmux_link::ring::create(capacity)?;
    let ring = Producer::map(&fd)?;
    Ok((fd, ring))
}

#[cfg(test)]
mod tests {
    use rdmux_link::Consumer;

    use super::*;
    use crate::handles::cq::Cq;
    use crate::lab::Lab;

    #[test]
    fn concurrent_post_and_completion_keep_the_outstanding_count() {
        const RECEIVES: u64 = 200_000;
        let (device, _control) = Lab::new(false).process("127.77.207.1");
        let cq = Cq::new(&device, 1, None, 0).unwrap();
        let (queue, fd) = XrcQueue::new(cq.core.clone(), 64, 1).unwrap();
        let mut ring = Consumer::map(&fd).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Only the ring limits the number of receives.
                for wr_id in 0..RECEIVES {
                    while queue.post(&RecvWr { wr_id, sges: &[] }, u32::MAX).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
            for _ in 0..RECEIVES {
                while ring.pop().unwrap().is_none() {
                    std::hint::spin_loop();
                }
                queue.completed();
            }
        });
        assert_eq!(queue.outstanding.load(Ordering::Relaxed), 0);
    }
}
