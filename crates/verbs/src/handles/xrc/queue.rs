//! The receives of an XRC shared receive queue: a ring in shared memory, which the process fills and the
//! hub empties.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rdmux_link::Producer;
use rdmux_link::ring::{MAX_CAPACITY, RingError};
use rdmux_transport::wr::RecvWr;

use super::domain::{Use, Xrcd};
use crate::handles::cq::{Cq, CqCore};
use crate::handles::pd::Pd;
use crate::handles::srq::SrqAttr;
use crate::objects::error::VerbsError;
use crate::objects::xrc::ask::unexpected;
use crate::objects::xrc::record::{Receive, kind};
use crate::objects::xrc::request::{XrcReply, XrcRequest};

/// Bytes of a line of a ring, and of a record's head.
const LINE: usize = 64;
const HEAD: usize = 24;
const SGE: usize = 16;

/// What an XRC shared receive queue has in place of a queue of its own.
#[derive(Debug)]
pub(crate) struct XrcQueue {
    srqn: u32,
    domain: Use,
    cq: Cq,
    ring: Mutex<Poster>,
    /// Receives posted and not complete.
    outstanding: AtomicU32,
}

#[derive(Debug)]
struct Poster {
    ring: Producer,
    bytes: Vec<u8>,
}

impl XrcQueue {
    /// Makes the ring and tells the hub.
    pub(crate) fn new(pd: &Pd, domain: &Xrcd, cq: &Cq, attr: &SrqAttr) -> Result<Self, VerbsError> {
        const WHAT: &str = "create an XRC shared receive queue";
        let device = pd.device();
        if !Arc::ptr_eq(device, domain.device()) || !Arc::ptr_eq(device, cq.device()) {
            return Err(VerbsError::invalid(WHAT, "domain or completion queue of another device"));
        }
        device.join_hub()?;
        let (fd, ring) = make_ring(attr).map_err(VerbsError::os(WHAT))?;
        let request =
            XrcRequest::CreateSrq { domain: domain.id(), pd: pd.id().0, max_sge: attr.max_sge };
        let reply = device.ask_hub(&request, Some(std::os::fd::AsFd::as_fd(&fd)), WHAT)?;
        let XrcReply::Srq(srqn) = reply else { return Err(unexpected(&reply)) };
        cq.0.add_user();
        Ok(Self {
            srqn,
            domain: domain.in_use(),
            cq: cq.clone(),
            ring: Mutex::new(Poster { ring, bytes: Vec::new() }),
            outstanding: AtomicU32::new(0),
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.srqn
    }
    pub(crate) fn domain(&self) -> &Xrcd {
        self.domain.xrcd()
    }
    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }
    pub(crate) fn cq_core(&self) -> &Arc<CqCore> {
        &self.cq.0
    }

    /// Posts a receive, whose list was checked to be short enough.
    pub(crate) fn post(&self, wr: &RecvWr<'_>, attr: &SrqAttr) -> Result<(), VerbsError> {
        const WHAT: &str = "post to an XRC shared receive queue";
        let full = || VerbsError::no_memory(WHAT, format!("all {} are posted", attr.max_wr));
        let mut poster = self.ring.lock();
        if self.outstanding.load(Ordering::Relaxed) >= attr.max_wr {
            return Err(full());
        }
        let Poster { ring, bytes } = &mut *poster;
        let meta = Receive::encode(wr.wr_id, wr.sges, bytes);
        match ring.try_push(kind::RECEIVE, meta, &[bytes]) {
            Ok(()) => {
                self.outstanding.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(RingError::Full) => Err(full()),
            Err(error) => Err(VerbsError::invalid(WHAT, error.to_string())),
        }
    }

    /// One is complete. Returns how many are not.
    pub(crate) fn completed(&self) -> u32 {
        let took = self
            .outstanding
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        took.map_or(0, |before| before - 1)
    }
}

impl Drop for XrcQueue {
    fn drop(&mut self) {
        let device = self.domain().device().clone();
        let request = XrcRequest::DestroySrq { srqn: self.srqn };
        // Where the service is gone, so is the queue.
        let _ = device.ask_hub(&request, None, "destroy an XRC shared receive queue");
        self.cq.0.remove_user();
    }
}

/// A ring that holds as many receives as the queue is to have.
fn make_ring(attr: &SrqAttr) -> std::io::Result<(OwnedFd, Producer)> {
    let stride = (HEAD + attr.max_sge as usize * SGE).next_multiple_of(LINE);
    let capacity = (attr.max_wr as usize + 2).saturating_mul(stride).min(MAX_CAPACITY);
    let fd = rdmux_link::ring::create(capacity)?;
    let ring = Producer::map(&fd)?;
    Ok((fd, ring))
}
