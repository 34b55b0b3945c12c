//! One socket of a group, in the process that uses it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockAddr;

use super::control::ControlBuf;
use super::refusals::Refusals;
use super::rx::RxBatch;
use super::tx::{PushError, TxBatch};
use super::zerocopy::{self, Pipe, ZeroCopyBuf, ZeroCopyDest};
use crate::sys;
use crate::wire::{Ends, Flushed, Frame, Gathering, LinkCaps, LinkError, TxFail, Wire};

/// A UDP socket to send and receive RoCEv2 packets with: not connected, nonblocking, set up by [`super::UdpGroup`].
#[derive(Debug)]
pub struct UdpPort {
    fd: OwnedFd,
    local: SocketAddr,
    /// Destinations to which no call may carry several packets.
    unsegmented: Refusals,
    /// Destinations for which the kernel refuses zero-copy sends.
    copied: Refusals,
    /// The number of messages that the next receive requests.
    ask: AtomicUsize,
    /// Whether the last receive returned as many messages as it requested.
    full: AtomicBool,
    /// Locked for writing by a thread that sends a message in parts, and for reading by all other senders; holds the pipe for
    /// these parts.
    pipe: RwLock<Option<Pipe>>,
}

impl UdpPort {
    /// Takes over a socket, usually one that the service passed.
    ///
    /// # Errors
    ///
    /// `ENOTSOCK`, or `InvalidInput` for a socket that is not bound to an IP address.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let name = rustix::net::getsockname(&fd)?;
        let local = SocketAddr::try_from(name).map_err(|_| io::ErrorKind::InvalidInput)?;
        // An earlier owner of the socket may have ended in the middle of a message.
        zerocopy::uncork(&fd)?;
        let (unsegmented, copied) = (Refusals::default(), Refusals::default());
        if !local.ip().is_loopback() {
            copied.add_all();
        }
        let (ask, full, pipe) = (AtomicUsize::new(1), AtomicBool::new(false), RwLock::default());
        Ok(Self { fd, local, unsegmented, copied, ask, full, pipe })
    }

    /// Returns the number of messages that the next receive requests.
    pub(super) fn ask(&self) -> usize {
        self.ask.load(Ordering::Relaxed)
    }

    /// Records that a receive of `asked` messages has returned `messages`.
    pub(super) fn brought(&self, asked: usize, messages: usize) {
        let is_full = messages != 0 && messages == asked;
        let ask = match messages {
            0 => 1,
            _ if is_full => (2 * asked).min(crate::sys::MAX_MESSAGES),
            _ => asked,
        };
        self.ask.store(ask, Ordering::Relaxed);
        self.full.store(is_full, Ordering::Relaxed);
    }

    /// Returns whether the last receive returned as many messages as it requested, so that there may be more.
    pub fn may_have_more(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Returns the local address and port: the source of sent packets.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns whether the socket would accept a packet now. If not, poll the descriptor for writing.
    pub fn writable(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(n) if n > 0)
    }

    /// Enables or disables reporting of received datagrams' traffic class and hop limit, which datagram queue pairs expose in
    /// their GRH area. It costs some time.
    ///
    /// # Errors
    ///
    /// Those of `setsockopt(2)`.
    pub fn report_headers(&self, on: bool) -> io::Result<()> {
        super::group::report_headers(&self.fd, self.local.ip(), on)
    }

    /// Returns the size of the receive buffer in bytes, including the kernel's overhead; zero if the kernel does not report it.
    pub fn receive_buffer(&self) -> u32 {
        let bytes = sys::get_int(&self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF);
        bytes.ok().and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or_default()
    }

    /// Returns whether one system call may carry several packets to a destination. If the kernel has refused that, it is tried again
    /// after several thousand calls.
    #[inline]
    pub fn segments(&self, to: SocketAddr) -> bool {
        !self.unsegmented.has(to)
    }

    /// Returns whether long messages to a destination may be sent zero-copy: if the receiver is on the same machine, and copies from
    /// the sender's pages. If the kernel has refused that, it is tried again after several thousand calls.
    pub fn supports_zerocopy(&self, to: SocketAddr) -> bool {
        !self.copied.has(to) && self.segments(to)
    }

    /// Records a failed zero-copy send. Zero-copy is disabled for the destination if the kernel has refused it, and for all if the
    /// kernel cannot send that way.
    pub(crate) fn zerocopy_refused(&self, to: SocketAddr, error: &io::Error) {
        match error.raw_os_error() {
            // No room now, or one page too many (`zerocopy`): the next one may succeed.
            Some(libc::EAGAIN | libc::EMSGSIZE) => {}
            Some(_) => self.copied.add(to),
            None => self.copied.add_all(),
        }
    }

    /// Sends one message, without blocking.
    pub(crate) fn send_message(
        &self,
        name: &SockAddr,
        bytes: &[u8],
        control: &ControlBuf,
    ) -> io::Result<()> {
        let _nobody_is_in_a_message = self.pipe.read().unwrap_or_else(PoisonError::into_inner);
        sys::send(&self.fd, name, bytes, control.as_slice(), false).map(drop)
    }

    /// Sends like [`send_message`](Self::send_message), but zero-copy from the buffer `buf`.
    pub(crate) fn send_zerocopy(
        &self,
        name: &SockAddr,
        bytes: &[u8],
        control: &ControlBuf,
        buf: &mut ZeroCopyBuf,
    ) -> io::Result<()> {
        let mut pipe = self.pipe.write().unwrap_or_else(PoisonError::into_inner);
        zerocopy::send(&self.fd, &mut pipe, name, control, bytes, buf)
    }

    /// Records that the kernel has refused to segment a message to a destination, for example because IPsec protects the path. If
    /// the kernel does not have the option at all, it refuses that to all.
    pub(crate) fn refuse_segments(&self, to: SocketAddr) {
        match sys::get_int(&self.fd, libc::SOL_UDP, libc::UDP_SEGMENT) {
            Ok(_) => self.unsegmented.add(to),
            Err(_) => self.unsegmented.add_all(),
        }
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The destination of a packet, with its network header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Address and port; with the interface for a link-local IPv6 address.
    pub addr: SocketAddr,
    /// The traffic class (IPv4 TOS): DSCP and ECN bits.
    pub tos: u8,
    /// The hop limit (IPv4 TTL); zero leaves it to the kernel.
    pub ttl: u8,
}

impl Destination {
    /// The destination `ip` and `port`, with traffic class 0 and the kernel's hop limit.
    pub fn new(ip: IpAddr, port: u16) -> Self {
        Self { addr: SocketAddr::new(ip, port), tos: 0, ttl: 0 }
    }
}

/// The largest path MTU.
const MAX_MTU: u32 = 4096;

impl Wire for UdpPort {
    type To = Destination;
    type Tx = TxBatch;
    type Rx = RxBatch;
    type Arrived = io::Result<usize>;

    fn caps(&self) -> LinkCaps {
        LinkCaps {
            max_payload: MAX_MTU,
            lossless: false,
            by_reference: false,
            piggybacks_acks: false,
        }
    }

    fn ends(&self, to: &Destination) -> Option<Ends> {
        Some(Ends { src: self.local, dst: to.addr, tos: to.tos, ttl: to.ttl })
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn send(&self, tx: &mut TxBatch, to: &Destination, frame: &Frame<'_>) -> Result<(), LinkError> {
        tx.push(self, to, frame).map_err(|error| match error {
            PushError::Full => LinkError::Full,
            PushError::Unmapped(fault) => fault.into(),
            PushError::TooLarge { len } => LinkError::TooLarge { len, max: TxBatch::MAX_PACKET },
        })
    }

    fn flush(&self, tx: &mut TxBatch) -> Result<Flushed, TxFail> {
        tx.flush(self)
    }

    /// Returns the number of messages. Each contains one packet or several.
    fn receive(&self, rx: &mut RxBatch) -> io::Result<usize> {
        rx.recv(self)
    }
}

impl Gathering for UdpPort {
    fn packets(&self, tx: &TxBatch) -> usize {
        tx.len()
    }

    fn bytes(&self, tx: &TxBatch) -> usize {
        tx.bytes()
    }

    fn supports_zerocopy(&self, tx: &TxBatch) -> bool {
        tx.zerocopy_dest().is_some_and(|to| self.supports_zerocopy(to.addr))
    }

    fn zerocopy_dest(&self, tx: &TxBatch) -> Option<ZeroCopyDest> {
        tx.zerocopy_dest()
    }

    fn flush_zerocopy(
        &self,
        tx: &mut TxBatch,
        buf: &mut ZeroCopyBuf,
    ) -> (bool, Result<Flushed, TxFail>) {
        tx.flush_zerocopy(self, buf)
    }

    fn forget(&self, tx: &mut TxBatch) {
        tx.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::{GroupOptions, RxBatch, UdpGroup};

    #[test]
    fn message_waits_while_a_corked_message_is_incomplete() {
        let options = GroupOptions { port: 0, ..GroupOptions::default() };
        let open = |last| UdpGroup::open([127, 77, 202, last].into(), &options).unwrap();
        let (mut to, mut from) = (open(15), open(16));
        let rx = UdpPort::new(to.socket(0).unwrap()).unwrap();
        let tx = UdpPort::new(from.socket(0).unwrap()).unwrap();
        let name = SockAddr::from(rx.local_addr());
        std::thread::scope(|s| {
            let turn = tx.pipe.write().unwrap();
            sys::send(&tx.fd, &name, &[1; 40], &[], true).unwrap();
            let other = s.spawn(|| tx.send_message(&name, &[2; 40], &ControlBuf::new()));
            // Time enough for a thread that does not wait.
            for _ in 0..5000 {
                std::thread::yield_now();
                assert!(!other.is_finished(), "it is not his turn");
            }
            zerocopy::uncork(&tx.fd).unwrap();
            drop(turn);
            other.join().unwrap().unwrap();
        });
        let mut batch = RxBatch::new(4);
        let mut came = Vec::new();
        while came.len() < 2 {
            batch.recv(&rx).unwrap();
            came.extend(batch.arrivals().map(|d| d.bytes.to_vec()));
        }
        assert_eq!(came, [[1; 40], [2; 40]]);
    }
}
