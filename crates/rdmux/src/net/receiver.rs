//! The receiving half of a connection.

use std::sync::Arc;

use rdmux_transport::wr::{Completion, WcOpcode, WcStatus};

use super::Options;
use super::connection::Core;
use crate::error::{Attempt, Cause, Error, Result};
use crate::style::{Blocking, Style, block_on};
use crate::wait::Deadline;
use crate::{Access, Cq, EMPTY, Mr, Qp, ok};

/// The receiving half of a [`Connection`](super::Connection).
#[derive(Debug)]
pub struct Receiver {
    qp: Qp,
    cq: Cq,
    /// The buffers for messages, `slot` bytes each.
    buffer: Mr,
    slot: usize,
    /// The slot and length of a message that was longer than the caller's buffer.
    waiting: Option<(usize, usize)>,
    core: Option<Arc<Core>>,
}

impl Receiver {
    /// Allocates the buffers and posts them all.
    pub(super) fn new(options: &Options, qp: &Qp) -> Result<Self> {
        let (slot, slots) = (options.message_size, options.depth as usize);
        let buffer = qp.pd().alloc(slot * slots, Access::LOCAL_WRITE)?;
        let (qp, cq) = (qp.clone(), qp.recv_cq().clone());
        let this = Self { qp, cq, buffer, slot, waiting: None, core: None };
        (0..slots).try_for_each(|slot| this.post(slot))?;
        Ok(this)
    }
    pub(super) fn buffer(&self) -> &Mr {
        &self.buffer
    }
    pub(super) fn set_core(&mut self, core: &Arc<Core>) {
        self.core = Some(core.clone());
    }

    fn post(&self, slot: usize) -> Result<()> {
        let at = slot * self.slot;
        self.qp.post_recv(slot as u64, &[self.buffer.slice(at..at + self.slot)])
    }

    /// Waits for a message, as [`Connection::recv`](super::Connection::recv) does.
    ///
    /// # Errors
    /// As there.
    pub fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        block_on(self.recv_in::<Blocking>())
    }
    /// Waits for a message and copies it into `buffer`, as [`Connection::recv_into`](super::Connection::recv_into) does.
    ///
    /// # Errors
    /// As there.
    pub fn recv_into(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        block_on(self.recv_into_in::<Blocking>(buffer))
    }
    /// Async form of [`recv`](Self::recv).
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "tokio")]
    pub async fn recv_async(&mut self) -> Result<Option<Vec<u8>>> {
        self.recv_in::<crate::style::Tokio>().await
    }
    /// Async form of [`recv_into`](Self::recv_into).
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "tokio")]
    pub async fn recv_into_async(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.recv_into_in::<crate::style::Tokio>(buffer).await
    }

    async fn recv_in<S: Style>(&mut self) -> Result<Option<Vec<u8>>> {
        let Some((slot, len)) = self.next::<S>().await? else { return Ok(None) };
        let at = slot * self.slot;
        let message = self.buffer.to_vec(at..at + len);
        self.done_with(slot)?;
        Ok(Some(message))
    }

    async fn recv_into_in<S: Style>(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        let Some((slot, len)) = self.next::<S>().await? else { return Ok(None) };
        let max = buffer.len();
        let Some(into) = buffer.get_mut(..len) else {
            let cause = Cause::TooLong { len, max };
            return Err(Error::new(self.qp.to_string(), "receive", cause));
        };
        self.buffer.read(slot * self.slot, into);
        self.done_with(slot)?;
        Ok(Some(len))
    }

    fn done_with(&mut self, slot: usize) -> Result<()> {
        self.waiting = None;
        self.post(slot)
    }

    /// Handles a flushed receive: the end of the connection, or an error.
    fn flushed(&self, done: Completion) -> Result<()> {
        match &self.core {
            Some(core) if !core.was_ended()? => ok(done).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns slot and length of a message. The length of a WRITE with immediate is not the number of bytes in the slot.
    fn message(&self, done: Completion) -> Result<(usize, usize)> {
        let done = ok(done)?;
        let (slot, len) = (usize::try_from(done.wr_id).unwrap_or(0), done.byte_len as usize);
        if len > self.slot && done.opcode != WcOpcode::RecvRdmaWithImm {
            let why =
                format!("a message of {len} bytes completed a receive of {} bytes", self.slot);
            return Err(Error::new(self.qp.to_string(), "receive", Cause::Invalid(why)));
        }
        Ok((slot, len))
    }

    /// Returns the slot and length of the next message. It remains the next one until [`done_with`](Self::done_with).
    async fn next<S: Style>(&mut self) -> Result<Option<(usize, usize)>> {
        let mut one = [EMPTY];
        while self.waiting.is_none() {
            // Checked before the queue is polled, so that the queue has all messages that arrived before the end.
            let core = self.core.as_ref().filter(|core| !core.is_closed());
            let completions = self.cq.waiter().look();
            if self.cq.poll_or_arm(&mut one)? == 1 {
                if one[0].status == WcStatus::WrFlushErr {
                    return self.flushed(one[0]).map(|()| None);
                }
                let (slot, len) = self.message(one[0])?;
                if one[0].opcode == WcOpcode::RecvRdmaWithImm {
                    // It has consumed the receive but not used its slot.
                    self.post(slot)?;
                    S::give_way().await;
                    continue;
                }
                self.waiting = Some((slot, len));
                break;
            }
            let Some(core) = core else { return Ok(None) };
            let events = core.channel.waiter().look();
            core.check_events()?;
            if !core.is_closed() {
                let never = Deadline::after(None);
                S::either(completions, events, never).await.on(&self.cq, "wait")?;
            }
        }
        Ok(self.waiting)
    }
}
