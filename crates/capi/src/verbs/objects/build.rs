//! The state of a queue pair for posting by building: the requests between `ibv_wr_start` and `ibv_wr_complete`.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::Range;

use rdmux_transport::wr::{SendData, SendFlags, SendOp, SendWr, Sge, UdDest};
use rdmux_verbs as verbs;

use super::lock::Section;
use crate::abi::verbs::ibv_data_buf;
use crate::boundary::{Errno, Result};
use crate::verbs::inline;

/// State of a queue pair for posting by building.
#[derive(Default)]
pub(crate) struct QpExt {
    /// Held from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    pub(crate) section: Section,
    pub(crate) batch: UnsafeCell<Batch>,
    /// The allowed requests; none for a queue pair that was not created for posting by building.
    pub(crate) allowed: Option<Allowed>,
}

impl QpExt {
    /// Creates the state of a queue pair that accepts the requests of `allowed`.
    pub(crate) fn new(allowed: Allowed, single_threaded: bool) -> Self {
        let batch = UnsafeCell::default();
        Self { section: Section::new(single_threaded), batch, allowed: Some(allowed) }
    }

    /// Returns whether the queue pair was created for this.
    pub(crate) fn is_built(&self) -> bool {
        self.allowed.is_some()
    }
}

impl fmt::Debug for QpExt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpExt").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

/// Limits of a queue pair's requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowed {
    /// Bits of `ibv_qp_create_send_ops_flags`.
    pub(crate) ops: u64,
    pub(crate) max_send_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// Requests to be posted together. The vectors keep their capacity from batch to batch.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) requests: Vec<Request>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The first error.
    error: Option<Errno>,
}

/// A request of a batch.
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) flags: SendFlags,
    pub(crate) op: SendOp,
    pub(crate) data: Data,
    pub(crate) dest: Option<UdDest>,
    pub(crate) srqn: u32,
}

/// The part of the batch's memory that a request has.
pub(crate) enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Batch {
    /// Removes all requests and the error.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    /// Records an error, unless there is one already.
    pub(crate) fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    /// Changes the request that was begun last.
    pub(crate) fn change(&mut self, f: impl FnOnce(&mut Request)) {
        match self.requests.last_mut() {
            Some(request) => f(request),
            None => self.fail(Errno::EINVAL),
        }
    }

    /// Sets the gather list of the request that was begun last.
    pub(crate) fn set_sges(&mut self, allowed: &Allowed, sges: impl ExactSizeIterator<Item = Sge>) {
        if sges.len() > allowed.max_send_sge as usize {
            return self.fail(Errno::EINVAL);
        }
        let start = self.sges.len();
        self.sges.extend(sges);
        let data = Data::Sges(start..self.sges.len());
        self.change(|request| request.data = data);
    }

    /// Copies the data now, so that the program may reuse the buffers at once.
    pub(crate) fn set_inline(&mut self, allowed: &Allowed, bufs: &[ibv_data_buf]) {
        let total = bufs.iter().try_fold(0_usize, |sum, b| sum.checked_add(b.length));
        if total.is_none_or(|total| total > allowed.max_inline_data as usize) {
            return self.fail(Errno::EINVAL);
        }
        let start = self.inline.len();
        for buf in bufs {
            if let Err(errno) = inline::append(&mut self.inline, buf.addr.cast(), buf.length) {
                return self.fail(errno);
            }
        }
        let data = Data::Inline(start..self.inline.len());
        self.change(|request| request.data = data);
    }

    /// Posts all requests or, if one of them is refused, none.
    pub(crate) fn post(&self, qp: &verbs::Qp) -> Result<()> {
        if let Some(errno) = self.error {
            return Err(errno);
        }
        let mut posting = qp.posting();
        for request in &self.requests {
            let inline;
            let data = match &request.data {
                Data::Sges(range) => SendData::Sges(&self.sges[range.clone()]),
                Data::Inline(range) => {
                    inline = [&self.inline[range.clone()]];
                    SendData::Inline(&inline)
                }
            };
            let Request { wr_id, flags, op, dest, srqn, .. } = *request;
            let wr = SendWr { flags, dest, srqn, ..SendWr::new(wr_id, op, data) };
            if let Err(error) = posting.send(&wr) {
                posting.cancel_sends();
                return Err(error.into());
            }
        }
        Ok(())
    }
}
