//! Queue pairs of this process that send to one socket, and the bytes that they may have in flight together.
//!
//! Each queue pair has its own congestion window, independent of the others. Many windows together exceed one socket's buffer, and the
//! excess is lost. So the queue pairs that have packets in flight share the size of the buffer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdmux_link::UdpPort;
use rdmux_wire::Qpn;

use super::zerocopy::ZeroCopySends;
use crate::objects::control::slot_of;

/// Shared buffers by address and slot, which identify a socket of the peer.
#[derive(Debug, Default)]
pub(crate) struct SharedBuffers(Mutex<HashMap<(SocketAddr, u16), Weak<SharedBuffer>>>);

impl SharedBuffers {
    /// Returns the share of a queue pair that sends to `dest` at an address by one of this process's sockets. The size of the
    /// peer's buffer is not known; it is taken to be that of the own socket.
    pub(crate) fn share(&self, port: &UdpPort, to: SocketAddr, dest: Qpn) -> Share {
        let mut shared_buffers = self.0.lock();
        let key = (to, slot_of(dest));
        let shared_buffer = shared_buffers.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            shared_buffers.retain(|_, shared_buffer| shared_buffer.strong_count() != 0);
            let shared_buffer = Arc::new(SharedBuffer::new(port.receive_buffer()));
            shared_buffers.insert(key, Arc::downgrade(&shared_buffer));
            shared_buffer
        });
        Share { shared_buffer, active: false, zerocopy: ZeroCopySends::default() }
    }
}

/// The queue pairs that send to one socket.
#[derive(Debug)]
struct SharedBuffer {
    /// The bytes of payload that they may have in flight.
    bytes: u32,
    /// The number of these queue pairs that have packets in flight.
    active: AtomicU32,
}

impl SharedBuffer {
    /// Creates the shared buffer for a socket buffer of this many bytes. The kernel uses a part of them for more than payload.
    fn new(buffer: u32) -> Self {
        Self { bytes: buffer / 8 * 5, active: AtomicU32::new(0) }
    }
}

/// The share of one queue pair.
#[derive(Debug)]
pub(crate) struct Share {
    shared_buffer: Arc<SharedBuffer>,
    active: bool,
    /// The queue pair's zero-copy sends in flight.
    zerocopy: ZeroCopySends,
}

impl Share {
    /// Returns the share of a queue pair whose wire reports itself when it is full.
    pub(crate) fn alone() -> Self {
        let shared_buffer = Arc::new(SharedBuffer { bytes: u32::MAX, active: AtomicU32::new(0) });
        Self { shared_buffer, active: false, zerocopy: ZeroCopySends::default() }
    }

    /// Returns the queue pair's zero-copy sends in flight.
    pub(crate) fn zerocopy(&mut self) -> &mut ZeroCopySends {
        &mut self.zerocopy
    }

    /// Returns how many bytes it may have in flight now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.shared_buffer.bytes / self.shared_buffer.active.load(Ordering::Relaxed).max(1)
    }

    /// Records whether the queue pair has packets in flight.
    #[inline]
    pub(crate) fn set_active(&mut self, active: bool) {
        if std::mem::replace(&mut self.active, active) == active {
            return;
        }
        if active {
            self.shared_buffer.active.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared_buffer.active.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set_active(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_buffer_is_shared_among_active_senders() {
        let shared_buffer = Arc::new(SharedBuffer::new(8 << 20));
        let zerocopy = ZeroCopySends::default;
        let share =
            || Share { shared_buffer: shared_buffer.clone(), active: false, zerocopy: zerocopy() };
        let (mut a, mut b, c) = (share(), share(), share());
        assert_eq!(a.room(), 5 << 20);
        a.set_active(true);
        a.set_active(true);
        assert_eq!(a.room(), 5 << 20);
        b.set_active(true);
        assert_eq!((a.room(), c.room()), (5 << 19, 5 << 19));
        drop(b);
        assert_eq!(a.room(), 5 << 20);
        a.set_active(false);
        drop((a, c));
        assert_eq!(shared_buffer.active.load(Ordering::Relaxed), 0);
    }
}
