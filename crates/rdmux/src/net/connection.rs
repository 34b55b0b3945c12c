//! A connection: messages in both directions, and the peer's memory.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdmux_cm::EventKind;

use super::{Options, Receiver, Sender};
use crate::cm::{EventChannel, Id};
use crate::error::Result;
use crate::{Context, Mr, Pd, Qp, RemoteMr, Sge};

/// A connection to another program: reliable messages, each whole and in order, and reads, writes
/// and atomics on memory that the peer told us of.
///
/// Messages go out as they are sent; the peer has room for as many as [`Options::depth`] says, and
/// when it is slower than that, sending waits. Dropping a connection ends it without waiting for
/// messages under way; [`close`](Self::close) waits.
///
/// Over an iWARP device two things differ, because nothing tells a sender there what its peer does: a
/// message for which the peer has no room ends the connection, so programs must not send more than
/// [`Options::depth`] messages ahead of an answer; and [`write`](Self::write) and [`close`](Self::close) wait until
/// TCP has everything, not until it is there. A [`read`](Self::read) afterwards waits for that.
#[derive(Debug)]
pub struct Connection {
    // Before `core`: regions and queues go before the id's destruction is waited for.
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
    /// When nobody listens there, or ten seconds have passed.
    pub fn connect(to: SocketAddr) -> Result<Self> {
        Options::new().connect(to)
    }

    /// Sends a message. Returns when it is under way.
    ///
    /// # Errors
    /// [`Cause::TooLong`](crate::Cause::TooLong), or [`Cause::Disconnected`](crate::Cause::Disconnected) when the
    /// connection is closed.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.sender.send(message)
    }
    /// Waits for a message. None when the peer has closed the connection. What a peer WRITEs with immediate is no message: its
    /// immediate data are dropped.
    ///
    /// # Errors
    /// When the connection broke.
    pub fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        self.receiver.recv()
    }
    /// Waits for a message and copies it into `buffer`; returns its length. None when the peer has
    /// closed the connection.
    ///
    /// # Errors
    /// [`Cause::TooLong`](crate::Cause::TooLong) when the buffer is too short; the message then waits for the next
    /// call.
    pub fn recv_into(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.receiver.recv_into(buffer)
    }
    /// Writes `local` to the peer's memory and waits until it is there.
    ///
    /// # Errors
    /// When the peer's memory is not what it was said to be; the connection is then of no more use.
    pub fn write(&mut self, local: Sge, to: RemoteMr) -> Result<()> {
        self.sender.write(local, to)
    }
    /// Reads from the peer's memory to `local`, as much as that holds, and waits until it is there.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn read(&mut self, local: Sge, from: RemoteMr) -> Result<()> {
        self.sender.read(local, from)
    }
    /// Adds to the eight aligned bytes at the start of the peer's memory and returns what they were.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn fetch_add(&mut self, on: RemoteMr, add: u64) -> Result<u64> {
        self.sender.fetch_add(on, add)
    }
    /// Sets the eight aligned bytes at the start of the peer's memory to `swap` if they are
    /// `compare`, and returns what they were.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn compare_and_swap(&mut self, on: RemoteMr, compare: u64, swap: u64) -> Result<u64> {
        self.sender.compare_and_swap(on, compare, swap)
    }
    /// Waits until everything sent has arrived, and ends the connection.
    ///
    /// # Errors
    /// When something did not arrive.
    pub fn close(mut self) -> Result<()> {
        self.sender.flush()?;
        self.core.close()
    }
    /// Two halves that may be used by two threads. The connection ends when both are dropped. Of one that is dropped alone, what
    /// it has sent goes on its way; for what the peer sends, and nobody takes, there is room for as many messages as
    /// [`Options::depth`] says, and then the peer waits (over iWARP the connection ends).
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// For memory that the peer shall reach: regions must belong to the connection's domain.
    pub fn pd(&self) -> &Pd {
        self.sender.pd()
    }
    /// The device.
    pub fn context(&self) -> &Context {
        self.pd().context()
    }
    /// What the peer said when it connected or accepted, padded with zeroes.
    pub fn private_data(&self) -> &[u8] {
        &self.core.private_data
    }
    /// Our address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.core.id.local_addr()?.socket()
    }
    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.core.id.peer_addr()?.socket()
    }
    /// Whether messages go through shared memory.
    pub fn is_same_host(&self) -> bool {
        self.core.qp.is_same_host()
    }
}

/// The async forms do the same.
#[cfg(feature = "tokio")]
impl Connection {
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn send_async(&mut self, message: &[u8]) -> Result<()> {
        self.sender.send_async(message).await
    }
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub async fn recv_async(&mut self) -> Result<Option<Vec<u8>>> {
        self.receiver.recv_async().await
    }
    /// As [`write`](Self::write).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn write_async(&mut self, local: Sge, to: RemoteMr) -> Result<()> {
        self.sender.write_async(local, to).await
    }
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn read_async(&mut self, local: Sge, from: RemoteMr) -> Result<()> {
        self.sender.read_async(local, from).await
    }
    /// As [`close`](Self::close).
    ///
    /// # Errors
    /// As for [`close`](Self::close).
    pub async fn close_async(mut self) -> Result<()> {
        self.sender.flush_async().await?;
        self.core.close()
    }
}

/// What both halves share.
pub(super) struct Core {
    /// Those of both halves, each of which the queue pair uses as long as the other one is there. Before `id`, as all regions.
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

    /// Looks for the news that the connection is over. Then the queue pair's work is flushed, which
    /// wakes the other half too.
    pub(super) fn check_events(&self) -> Result<()> {
        while let Some(event) = self.channel.try_next()? {
            if matches!(event.kind(), EventKind::Disconnected | EventKind::DeviceRemoval) {
                self.close()?;
            }
        }
        Ok(())
    }

    /// Whether a work request was flushed because the connection is over, and not because it broke. A stream's work is flushed
    /// before its end is told, and how it ended is not.
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
        // Nobody is left to tell; the service disconnects what goes without a word.
        let _ = self.close();
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?})", self.id)
    }
}
