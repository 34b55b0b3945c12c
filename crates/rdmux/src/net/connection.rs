//! Connections: messages in both directions, and access to the peer's memory.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdmux_cm::EventKind;

use super::{Options, Receiver, Sender};
use crate::cm::{EventChannel, Id};
use crate::error::Result;
use crate::{Context, Mr, Pd, Qp, RemoteMr, Sge};

/// A connection to another program: reliable messages, which arrive whole and in order, and reads, writes and atomics
/// on memory that the peer has described to this side.
///
/// Messages are sent at once. The peer has room for [`Options::depth`] of them; while its buffers are full, sending
/// waits. Dropping a connection ends it without waiting for messages in flight; [`close`](Self::close) waits.
///
/// Over an iWARP device two things differ, because a sender gets no acknowledgements from its peer. A message for
/// which the peer has no room ends the connection, so programs must not send more than [`Options::depth`] messages
/// ahead of an answer. And [`write`](Self::write) and [`close`](Self::close) wait until TCP has accepted all data,
/// not until the data have arrived. A [`read`](Self::read) afterwards waits for their arrival.
#[derive(Debug)]
pub struct Connection {
    // Before `core`: regions and queues are dropped before the destruction of the id is waited for.
    sender: Sender,
    receiver: Receiver,
    core: Arc<Core>,
}

impl Connection {
    pub(super) fn new(core: Core, mut sender: Sender, mut receiver: Receiver) -> Self {
        let core = Arc::new(core);
        sender.set_core(&core);
        receiver.set_core(&core);
        Self { sender, receiver, core }
    }

    /// Connects to a [`Listener`](super::Listener), with the [default options](Options::new).
    ///
    /// # Errors
    /// When no program listens, or ten seconds have passed.
    pub fn connect(to: SocketAddr) -> Result<Self> {
        Options::new().connect(to)
    }

    /// Sends a message. Returns when it is posted.
    ///
    /// # Errors
    /// [`Cause::TooLong`](crate::Cause::TooLong), or [`Cause::Disconnected`](crate::Cause::Disconnected) when the
    /// connection is closed.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.sender.send(message)
    }
    /// Waits for a message. None when the peer has closed the connection. A WRITE with immediate of the peer is not a message:
    /// its immediate data are discarded.
    ///
    /// # Errors
    /// When the connection failed.
    pub fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        self.receiver.recv()
    }
    /// Waits for a message, copies it into `buffer` and returns its length. None when the peer has closed the
    /// connection.
    ///
    /// # Errors
    /// [`Cause::TooLong`](crate::Cause::TooLong) when the buffer is too short. The message is kept for the next call.
    pub fn recv_into(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.receiver.recv_into(buffer)
    }
    /// Writes `local` to the peer's memory and waits until it has arrived.
    ///
    /// # Errors
    /// When the peer's memory does not allow the access. The connection cannot be used any more then.
    pub fn write(&mut self, local: Sge, to: RemoteMr) -> Result<()> {
        self.sender.write(local, to)
    }
    /// Reads from the peer's memory into `local`, as much as it holds, and waits until the data have arrived.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn read(&mut self, local: Sge, from: RemoteMr) -> Result<()> {
        self.sender.read(local, from)
    }
    /// Adds to the eight aligned bytes at the start of the peer's memory and returns their previous value.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn fetch_add(&mut self, on: RemoteMr, add: u64) -> Result<u64> {
        self.sender.fetch_add(on, add)
    }
    /// Sets the eight aligned bytes at the start of the peer's memory to `swap` if they equal `compare`, and returns
    /// their previous value.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn compare_and_swap(&mut self, on: RemoteMr, compare: u64, swap: u64) -> Result<u64> {
        self.sender.compare_and_swap(on, compare, swap)
    }
    /// Waits until all sent messages have arrived, and ends the connection.
    ///
    /// # Errors
    /// When a message did not arrive.
    pub fn close(mut self) -> Result<()> {
        self.sender.flush()?;
        self.core.close()
    }
    /// Splits the connection into two halves for use by two threads. The connection ends when both are dropped. When only the
    /// sender is dropped, its messages are still delivered. When only the receiver is dropped, the peer can send another
    /// [`Options::depth`] messages and then waits (over iWARP the connection ends).
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// Returns the protection domain. Memory for the peer's access must be registered in it.
    pub fn pd(&self) -> &Pd {
        self.sender.pd()
    }
    /// Returns the device.
    pub fn context(&self) -> &Context {
        self.pd().context()
    }
    /// Returns the peer's private data from connecting or accepting, padded with zeroes.
    pub fn private_data(&self) -> &[u8] {
        &self.core.private_data
    }
    /// Returns the local address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.core.id.local_addr()?.socket()
    }
    /// Returns the peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.core.id.peer_addr()?.socket()
    }
    /// Returns whether messages go through shared memory.
    pub fn is_same_host(&self) -> bool {
        self.core.qp.is_same_host()
    }
}

/// Async forms of the above.
#[cfg(feature = "tokio")]
impl Connection {
    /// Async form of [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn send_async(&mut self, message: &[u8]) -> Result<()> {
        self.sender.send_async(message).await
    }
    /// Async form of [`recv`](Self::recv).
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub async fn recv_async(&mut self) -> Result<Option<Vec<u8>>> {
        self.receiver.recv_async().await
    }
    /// Async form of [`recv_into`](Self::recv_into).
    ///
    /// # Errors
    /// As for [`recv_into`](Self::recv_into).
    pub async fn recv_into_async(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.receiver.recv_into_async(buffer).await
    }
    /// Async form of [`write`](Self::write).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn write_async(&mut self, local: Sge, to: RemoteMr) -> Result<()> {
        self.sender.write_async(local, to).await
    }
    /// Async form of [`read`](Self::read).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn read_async(&mut self, local: Sge, from: RemoteMr) -> Result<()> {
        self.sender.read_async(local, from).await
    }
    /// Async form of [`fetch_add`](Self::fetch_add).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn fetch_add_async(&mut self, on: RemoteMr, add: u64) -> Result<u64> {
        self.sender.fetch_add_async(on, add).await
    }
    /// Async form of [`compare_and_swap`](Self::compare_and_swap).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn compare_and_swap_async(
        &mut self,
        on: RemoteMr,
        compare: u64,
        swap: u64,
    ) -> Result<u64> {
        self.sender.compare_and_swap_async(on, compare, swap).await
    }
    /// Async form of [`close`](Self::close).
    ///
    /// # Errors
    /// As for [`close`](Self::close).
    pub async fn close_async(mut self) -> Result<()> {
        self.sender.flush_async().await?;
        self.core.close()
    }
}

/// The state that both halves share.
pub(super) struct Core {
    /// The buffers of both halves. The queue pair uses each of them while the other half exists. Declared before `id`,
    /// like all regions.
    _buffers: [Mr; 2],
    id: Id,
    pub(super) channel: EventChannel,
    private_data: Vec<u8>,
    qp: Qp,
    closed: AtomicBool,
}

impl Core {
    pub(super) fn new(
        id: Id,
        channel: EventChannel,
        private_data: Vec<u8>,
        (sender, receiver): (&Sender, &Receiver),
    ) -> Self {
        let _buffers = [sender.buffer().clone(), receiver.buffer().clone()];
        let (qp, closed) = (sender.qp().clone(), AtomicBool::new(false));
        Self { _buffers, id, channel, private_data, qp, closed }
    }

    /// Checks for events that end the connection. When it ends, its queue pair's work is flushed, which wakes the
    /// other half too.
    pub(super) fn check_events(&self) -> Result<()> {
        while let Some(event) = self.channel.try_next()? {
            if matches!(event.kind(), EventKind::Disconnected | EventKind::DeviceRemoval) {
                self.close()?;
            }
        }
        Ok(())
    }

    /// Returns whether a work request was flushed because the connection was closed, not because it failed. A stream's work is
    /// flushed before its end is reported, and the reason of its end is not.
    pub(super) fn was_ended(&self) -> Result<bool> {
        self.check_events()?;
        Ok(self.is_closed() || self.qp.pd().context().kind().has_streams())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the connection, once.
    fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.id.disconnect()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // No caller is left for an error. The service disconnects ids that are dropped.
        let _ = self.close();
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?})", self.id)
    }
}
