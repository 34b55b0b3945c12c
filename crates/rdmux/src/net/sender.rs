//! The sending half of a connection.

use std::sync::Arc;

use rdmux_transport::wr::{Completion, WcStatus};

use super::Options;
use super::connection::Core;
use crate::error::{Attempt, Cause, Error, Result};
use crate::style::{Blocking, Style, block_on};
use crate::wait::Deadline;
use crate::{Access, Cq, EMPTY, Mr, Pd, Qp, RemoteMr, SendWr, Sge, ok};

/// The bit that marks the IDs of work requests of one-sided operations, whose other bits number them. An ID without it
/// is the index of the slot that is sent.
const ONE_SIDED: u64 = 1 << 63;

/// The sending half of a [`Connection`](super::Connection).
#[derive(Debug)]
pub struct Sender {
    qp: Qp,
    cq: Cq,
    pd: Pd,
    /// The messages in flight, `slot` bytes each, followed by eight bytes for the results of atomics.
    buffer: Mr,
    slot: usize,
    slots: usize,
    free: Vec<usize>,
    /// The number of work requests whose completions have not been taken. The completion queue holds no more of them than the send
    /// queue.
    under_way: usize,
    /// The number of the last one-sided operation.
    one_sided: u64,
    core: Option<Arc<Core>>,
}

impl Sender {
    pub(super) fn new(options: &Options, qp: &Qp) -> Result<Self> {
        let (slot, slots) = (options.message_size, options.depth as usize);
        let pd = qp.pd().clone();
        let buffer = pd.alloc(result_at(slot, slots) + 8, Access::LOCAL_WRITE)?;
        let free = (0..slots).rev().collect();
        let (qp, cq) = (qp.clone(), qp.send_cq().clone());
        let (under_way, one_sided, core) = (0, ONE_SIDED, None);
        Ok(Self { qp, cq, pd, buffer, slot, slots, free, under_way, one_sided, core })
    }
    pub(super) fn buffer(&self) -> &Mr {
        &self.buffer
    }
    pub(super) fn set_core(&mut self, core: &Arc<Core>) {
        self.core = Some(core.clone());
    }
    pub(super) fn qp(&self) -> &Qp {
        &self.qp
    }
    pub(super) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Sends a message, as [`Connection::send`](super::Connection::send) does.
    ///
    /// # Errors
    /// As there.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        block_on(self.send_in::<Blocking>(message))
    }
    /// Writes to the peer's memory, as [`Connection::write`](super::Connection::write) does.
    ///
    /// # Errors
    /// As there.
    pub fn write(&mut self, local: Sge, to: RemoteMr) -> Result<()> {
        let wr_id = self.next_one_sided();
        block_on(self.one_sided::<Blocking>(wr_id, SendWr::write(wr_id, to).sges(&[local])))
    }
    /// Reads from the peer's memory, as [`Connection::read`](super::Connection::read) does.
    ///
    /// # Errors
    /// As there.
    pub fn read(&mut self, local: Sge, from: RemoteMr) -> Result<()> {
        let wr_id = self.next_one_sided();
        block_on(self.one_sided::<Blocking>(wr_id, SendWr::read(wr_id, from).sges(&[local])))
    }
    /// Adds to eight bytes of the peer's memory, as [`Connection::fetch_add`](super::Connection::fetch_add) does.
    ///
    /// # Errors
    /// As there.
    pub fn fetch_add(&mut self, on: RemoteMr, add: u64) -> Result<u64> {
        let wr_id = self.next_one_sided();
        block_on(self.atomic::<Blocking>(wr_id, SendWr::fetch_add(wr_id, on, add)))
    }
    /// Compares and swaps eight bytes of the peer's memory, as [`Connection::compare_and_swap`](super::Connection::compare_and_swap) does.
    ///
    /// # Errors
    /// As there.
    pub fn compare_and_swap(&mut self, on: RemoteMr, compare: u64, swap: u64) -> Result<u64> {
        let wr_id = self.next_one_sided();
        block_on(self.atomic::<Blocking>(wr_id, SendWr::cmp_swap(wr_id, on, compare, swap)))
    }
    /// Waits until all sent messages have arrived.
    ///
    /// # Errors
    /// When a message did not arrive.
    pub fn flush(&mut self) -> Result<()> {
        block_on(self.flush_in::<Blocking>())
    }

    async fn send_in<S: Style>(&mut self, message: &[u8]) -> Result<()> {
        if message.len() > self.slot {
            let cause = Cause::TooLong { len: message.len(), max: self.slot };
            return Err(Error::new(self.qp.to_string(), "send", cause));
        }
        if self.core.as_ref().is_none_or(|core| core.is_closed()) {
            return Err(self.disconnected());
        }
        self.take_completed()?;
        loop {
            if let Some(&slot) = self.free.last() {
                let at = slot * self.slot;
                self.buffer.write(at, message);
                let piece = self.buffer.slice(at..at + message.len());
                if self.post(&SendWr::send(slot as u64).sges(&[piece]).signaled())? {
                    self.free.pop();
                    return Ok(());
                }
            }
            self.wait::<S>().await?;
        }
    }

    /// Posts a request. Returns false if the queue is full, which happens with one-sided operations whose futures
    /// were dropped.
    fn post(&mut self, wr: &SendWr<'_>) -> Result<bool> {
        // Requests may have completed since completions were last taken. Then the send queue has room, but the completion queue
        // does not.
        if self.under_way == self.slots + super::establish::ONE_SIDED as usize {
            return Ok(false);
        }
        match self.qp.post_send(wr) {
            Err(error) if matches!(error.cause(), Cause::Full(_)) => Ok(false),
            posted => {
                posted?;
                self.under_way += 1;
                Ok(true)
            }
        }
    }

    /// Returns a new number for a one-sided operation. An earlier one whose future was dropped may still complete.
    fn next_one_sided(&mut self) -> u64 {
        self.one_sided = self.one_sided.wrapping_add(1) | ONE_SIDED;
        self.one_sided
    }

    async fn one_sided<S: Style>(&mut self, wr_id: u64, wr: SendWr<'_>) -> Result<()> {
        let wr = wr.signaled();
        self.take_completed()?;
        while !self.post(&wr)? {
            self.wait::<S>().await?;
        }
        while self.wait::<S>().await?.wr_id != wr_id {}
        Ok(())
    }

    async fn atomic<S: Style>(&mut self, wr_id: u64, wr: SendWr<'_>) -> Result<u64> {
        let at = result_at(self.slot, self.slots);
        self.one_sided::<S>(wr_id, wr.sges(&[self.buffer.slice(at..at + 8)])).await?;
        Ok(self.buffer.load(at))
    }

    async fn flush_in<S: Style>(&mut self) -> Result<()> {
        while self.free.len() < self.slots {
            self.wait::<S>().await?;
        }
        Ok(())
    }

    /// Waits for one completion.
    async fn wait<S: Style>(&mut self) -> Result<Completion> {
        let mut one = [EMPTY];
        loop {
            let completions = self.cq.waiter().look();
            if self.cq.poll_or_arm(&mut one)? == 1 {
                return self.completed(one[0]);
            }
            let core = self.core.as_ref().ok_or_else(|| self.disconnected())?;
            let events = core.channel.waiter().look();
            core.check_events()?;
            if core.is_closed() {
                let done = self.cq.poll_one().ok_or_else(|| self.disconnected())?;
                return self.completed(done);
            }
            let never = Deadline::after(None);
            S::either(completions, events, never).await.on(&self.cq, "wait")?;
        }
    }

    /// Takes all completions in the queue.
    fn take_completed(&mut self) -> Result<()> {
        while let Some(done) = self.cq.poll_one() {
            self.completed(done)?;
        }
        Ok(())
    }

    /// Frees the resources of a completed request.
    fn completed(&mut self, done: Completion) -> Result<Completion> {
        self.under_way = self.under_way.saturating_sub(1);
        if done.wr_id & ONE_SIDED == 0 {
            self.free.push(usize::try_from(done.wr_id).unwrap_or(0));
        }
        let was_flushed = done.status == WcStatus::WrFlushErr;
        match &self.core {
            Some(core) if was_flushed && core.was_ended()? => Err(self.disconnected()),
            _ => ok(done),
        }
    }

    fn disconnected(&self) -> Error {
        Error::new(self.qp.to_string(), "send", Cause::Disconnected)
    }
}

/// Returns the offset of the results of atomics: aligned, after all slots.
fn result_at(slot: usize, slots: usize) -> usize {
    (slot * slots).next_multiple_of(8)
}

/// Async forms of the above.
#[cfg(feature = "tokio")]
impl Sender {
    /// Async form of [`send`](Self::send).
    ///
    /// # Errors
    /// As there.
    pub async fn send_async(&mut self, message: &[u8]) -> Result<()> {
        self.send_in::<crate::style::Tokio>(message).await
    }
    /// Async form of [`write`](Self::write).
    ///
    /// # Errors
    /// As there.
    pub async fn write_async(&mut self, local: Sge, to: RemoteMr) -> Result<()> {
        let wr_id = self.next_one_sided();
        let wr = SendWr::write(wr_id, to);
        self.one_sided::<crate::style::Tokio>(wr_id, wr.sges(&[local])).await
    }
    /// Async form of [`read`](Self::read).
    ///
    /// # Errors
    /// As there.
    pub async fn read_async(&mut self, local: Sge, from: RemoteMr) -> Result<()> {
        let wr_id = self.next_one_sided();
        let wr = SendWr::read(wr_id, from);
        self.one_sided::<crate::style::Tokio>(wr_id, wr.sges(&[local])).await
    }
    /// Async form of [`fetch_add`](Self::fetch_add).
    ///
    /// # Errors
    /// As there.
    pub async fn fetch_add_async(&mut self, on: RemoteMr, add: u64) -> Result<u64> {
        let wr_id = self.next_one_sided();
        let wr = SendWr::fetch_add(wr_id, on, add);
        self.atomic::<crate::style::Tokio>(wr_id, wr).await
    }
    /// Async form of [`compare_and_swap`](Self::compare_and_swap).
    ///
    /// # Errors
    /// As there.
    pub async fn compare_and_swap_async(
        &mut self,
        on: RemoteMr,
        compare: u64,
        swap: u64,
    ) -> Result<u64> {
        let wr_id = self.next_one_sided();
        let wr = SendWr::cmp_swap(wr_id, on, compare, swap);
        self.atomic::<crate::style::Tokio>(wr_id, wr).await
    }
    /// Async form of [`flush`](Self::flush).
    ///
    /// # Errors
    /// As there.
    pub async fn flush_async(&mut self) -> Result<()> {
        self.flush_in::<crate::style::Tokio>().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;

    #[test]
    fn completions_flushed_at_disconnect_return_their_send_buffers() {
        let host = Context::builder().embedded().open().unwrap();
        let options = |depth| Options::new().context(&host).depth(depth);
        let mut listener = options(1).bind((host.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        let (mut peer, ours) = std::thread::scope(|scope| {
            let peer = scope.spawn(|| listener.accept().unwrap());
            let ours = options(2).connect(to).unwrap();
            (peer.join().unwrap(), ours)
        });
        let (mut sender, _receiver) = ours.split();
        sender.send(b"fills its buffer").unwrap();
        sender.send(b"finds none").unwrap();
        // The first message has arrived and is kept.
        peer.recv_into(&mut []).unwrap_err();
        drop(peer);
        let error = sender.flush().unwrap_err();
        assert!(error.is_disconnected(), "{error}");
        assert_eq!(sender.free.len(), 2, "the second message was flushed");
    }
}
