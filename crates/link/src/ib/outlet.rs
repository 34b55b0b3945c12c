//! Destinations of datagrams: a socket, or any other transport.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use socket2::SockAddr;

use crate::udp::control::ControlBuf;
use crate::udp::{UdpPort, ZeroCopyBuf};

/// An address, also in the kernel's form.
#[derive(Clone)]
pub struct Name {
    addr: SocketAddr,
    name: SockAddr,
}

impl Name {
    /// Returns the address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl From<SocketAddr> for Name {
    fn from(addr: SocketAddr) -> Self {
        Self { addr, name: addr.into() }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.addr.fmt(f)
    }
}

/// A destination of datagrams.
pub trait Outlet {
    /// Returns the source address of the datagrams, at which this host also receives them.
    fn local_addr(&self) -> SocketAddr;

    /// Returns whether one call may carry several datagrams to an address.
    fn segments(&self, to: SocketAddr) -> bool;

    /// Records that a call with several datagrams to an address has failed, though they can be sent one at a time.
    fn refuse_segments(&self, to: SocketAddr);

    /// Sends `bytes` as datagrams of `segment` bytes each; the last one may be shorter.
    ///
    /// # Errors
    ///
    /// Those of `sendmsg(2)`. `EAGAIN` if the outlet is full, `EMSGSIZE` if a datagram is too large for the path. None was sent then.
    fn send(&self, to: &Name, segment: usize, bytes: &[u8]) -> io::Result<()>;

    /// Sends several datagrams like [`send`](Self::send), but zero-copy from the buffer `buf`. Returns none if zero-copy is not
    /// supported. After an error the kernel may nevertheless use the buffer, and some datagrams may have been sent.
    fn send_zerocopy(
        &self,
        _to: &Name,
        _segment: usize,
        _bytes: &[u8],
        _buf: &mut ZeroCopyBuf,
    ) -> Option<io::Result<()>> {
        None
    }
}

impl Outlet for UdpPort {
    fn local_addr(&self) -> SocketAddr {
        UdpPort::local_addr(self)
    }

    fn segments(&self, to: SocketAddr) -> bool {
        UdpPort::segments(self, to)
    }

    fn refuse_segments(&self, to: SocketAddr) {
        UdpPort::refuse_segments(self, to);
    }

    fn send(&self, to: &Name, segment: usize, bytes: &[u8]) -> io::Result<()> {
        let several = bytes.len() > segment;
        let control = if several { segmented(segment) } else { ControlBuf::new() };
        self.send_message(&to.name, bytes, &control)
    }

    fn send_zerocopy(
        &self,
        to: &Name,
        segment: usize,
        bytes: &[u8],
        buf: &mut ZeroCopyBuf,
    ) -> Option<io::Result<()>> {
        if !self.supports_zerocopy(to.addr) {
            return None;
        }
        let sent = UdpPort::send_zerocopy(self, &to.name, bytes, &segmented(segment), buf);
        Some(sent.inspect_err(|error| self.zerocopy_refused(to.addr, error)))
    }
}

/// Returns the control message that makes the kernel cut a message into datagrams of one size.
fn segmented(size: usize) -> ControlBuf {
    let mut control = ControlBuf::new();
    let size = u16::try_from(size).unwrap_or(u16::MAX);
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    control
}
