//! Shared receive queues.

use std::fmt;

use rdmux_transport::wr::RecvWr;
use rdmux_verbs as verbs;

use crate::error::{Attempt, Result};
use crate::{Cq, Pd, Sge, Xrcd};

/// A shared receive queue, whose receives any of its queue pairs may take. Clones are the same queue.
#[derive(Clone)]
pub struct Srq {
    srq: verbs::Srq,
    /// The completion queue of a queue that belongs to an XRC domain.
    _cq: Option<Cq>,
    pd: Pd,
}

impl Srq {
    pub(crate) fn new(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self> {
        let attr = verbs::srq::SrqAttr { max_wr, max_sge, limit: 0 };
        let srq = verbs::Srq::new(&pd.verbs, attr, 0)
            .on(format_args!("shared receive queue of {max_wr} entries"), "create")?;
        Ok(Self { srq, _cq: None, pd: pd.clone() })
    }

    /// Creates the shared receive queue of an XRC domain.
    pub(crate) fn of_domain(
        pd: &Pd,
        domain: &Xrcd,
        cq: &Cq,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Self> {
        let attr = verbs::srq::SrqAttr { max_wr, max_sge, limit: 0 };
        let srq = verbs::Srq::for_xrc(&pd.verbs, domain.verbs(), cq.verbs(), attr, 0)
            .on(format_args!("XRC shared receive queue of {max_wr} entries"), "create")?;
        Ok(Self { srq, _cq: Some(cq.clone()), pd: pd.clone() })
    }

    pub(crate) fn verbs(&self) -> &verbs::Srq {
        &self.srq
    }

    /// Returns the queue's protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the number by which senders name the queue ([`SendWr::srq`](crate::SendWr::srq)), if it belongs to an
    /// XRC domain.
    pub fn number(&self) -> Option<u32> {
        self.srq.number()
    }

    /// Posts a receive: a message for any of the queue's queue pairs is placed in `sges`.
    ///
    /// # Errors
    /// When the queue is full or the list too long.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        self.srq.post_recv(&RecvWr { wr_id, sges }).on(self, "post a receive")
    }

    /// Requests one event [`AsyncEvent::SrqLimit`](crate::AsyncEvent::SrqLimit) when fewer than `limit` receives are
    /// left; 0 requests none.
    ///
    /// # Errors
    /// When the limit exceeds the queue's size.
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        self.srq.modify(None, Some(limit)).on(self, "set the limit")
    }

    /// Changes the queue's capacity.
    ///
    /// # Errors
    /// When more receives are posted than would fit, or the device's limit is exceeded.
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        self.srq.modify(Some(max_wr), None).on(self, "resize")
    }
}

impl fmt::Display for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shared receive queue of {} entries", self.srq.attr().max_wr)
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
