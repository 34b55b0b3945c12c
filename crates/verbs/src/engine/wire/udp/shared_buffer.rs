//! Queue pairs of this process that send to one socket, and what they may have in flight together.
//!
//! Each has a window of its own, which knows nothing of the others. What many windows allow does not fit into one socket's
//! buffer, and what does not fit is lost. So those that have something in flight share what the buffer holds.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdmux_link::UdpPort;
use rdmux_wire::Qpn;

use super::lend::Loans;
use crate::objects::control::slot_of;

/// By address and slot, which are a socket of the peer's.
#[derive(Debug, Default)]
pub(crate) struct SharedBuffers(Mutex<HashMap<(SocketAddr, u16), Weak<SharedBuffer>>>);

impl SharedBuffers {
    /// A share for a queue pair that sends to `dest` at an address by one of our sockets. What the peer's holds nobody says; ours
    /// holds as much.
    pub(crate) fn share(&self, port: &UdpPort, to: SocketAddr, dest: Qpn) -> Share {
        let mut shared_buffers = self.0.lock();
        let key = (to, slot_of(dest));
        let shared_buffer = shared_buffers.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            shared_buffers.retain(|_, shared_buffer| shared_buffer.strong_count() != 0);
            let shared_buffer = Arc::new(SharedBuffer::new(port.receive_buffer()));
            shared_buffers.insert(key, Arc::downgrade(&shared_buffer));
            shared_buffer
        });
        Share { shared_buffer, active: false, loans: Loans::default() }
    }
}

/// Those of one socket.
#[derive(Debug)]
struct SharedBuffer {
    /// Bytes of payload that they may have in flight.
    bytes: u32,
    /// How many have some.
    active: AtomicU32,
}

impl SharedBuffer {
    /// For a socket with a buffer of so many bytes, from which the kernel takes what it needs besides the payload.
    fn new(buffer: u32) -> Self {
        Self { bytes: buffer / 8 * 5, active: AtomicU32::new(0) }
    }
}

/// A queue pair's.
#[derive(Debug)]
pub(crate) struct Share {
    shared_buffer: Arc<SharedBuffer>,
    active: bool,
    /// What of it the kernel sends from.
    loans: Loans,
}

impl Share {
    /// That of a queue pair whose wire says itself when it is full.
    pub(crate) fn alone() -> Self {
        let shared_buffer = Arc::new(SharedBuffer { bytes: u32::MAX, active: AtomicU32::new(0) });
        Self { shared_buffer, active: false, loans: Loans::default() }
    }

    /// What the queue pair has lent of what it has in flight.
    pub(crate) fn loans(&mut self) -> &mut Loans {
        &mut self.loans
    }

    /// Bytes that it may have in flight now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.shared_buffer.bytes / self.shared_buffer.active.load(Ordering::Relaxed).max(1)
    }

    /// Whether the queue pair has something in flight.
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
    fn those_with_something_in_flight_share() {
        let shared_buffer = Arc::new(SharedBuffer::new(8 << 20));
        let loans = Loans::default;
        let share =
            || Share { shared_buffer: shared_buffer.clone(), active: false, loans: loans() };
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
