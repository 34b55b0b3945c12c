//! A TCP stream that carries the frames of one queue pair (iWARP).
//!
//! The service opens it and negotiates everything with the peer before it is passed here. Several frames are sent in one system
//! call, with their payload in place. A long payload is received directly to its destination. In both directions the kernel
//! copies, and reports if the program's memory is not mapped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::sys;
use crate::wire::{Ends, Flushed, Frame, LinkCaps, LinkError, Payload, Piece, TxFail, Wire};

/// The maximum number of pieces that one send or one [`TcpStream::receive_to`] uses.
pub const MAX_PIECES: usize = sys::MAX_IOVECS;

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// No data was available.
    Nothing,
    /// This many bytes were received.
    Bytes(usize),
    /// The peer has ended its half of the stream.
    End,
}

/// A TCP stream; see the module.
#[derive(Debug)]
pub struct TcpStream {
    fd: OwnedFd,
    /// Whether the kernel has taken bytes since the last check.
    took: AtomicBool,
}

impl TcpStream {
    /// Takes over a connected socket, and sets it to non-blocking and TCP_NODELAY.
    ///
    /// # Errors
    ///
    /// The kernel's error for a descriptor that is not such a socket.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd, took: AtomicBool::new(false) })
    }

    /// Returns the maximum number of bytes that the stream puts into a segment (EMSS, RFC 5044 section 2.1).
    pub fn max_segment(&self) -> usize {
        /// The size that any host must accept (RFC 9293 section 3.7.1).
        const LEAST: usize = 536;
        sys::get_int(&self.fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG)
            .ok()
            .and_then(|mss| usize::try_from(mss).ok())
            .map_or(LEAST, |mss| mss.max(LEAST))
    }

    /// Receives available data into the pieces in order, and the rest of it into `rest`.
    ///
    /// # Errors
    ///
    /// `EFAULT` if memory is not mapped; nothing was received then. After any other error the stream is broken.
    ///
    /// # Safety
    ///
    /// The pieces are memory that its owner permits to be written, or that is not mapped.
    #[expect(unsafe_code, reason = "writes to memory that is named by address")]
    pub unsafe fn receive_to(&self, pieces: &[Piece], rest: &mut [u8]) -> io::Result<Received> {
        // SAFETY: the caller's promise.
        received(unsafe { sys::receive_pieces(&self.fd, pieces, rest) })
    }

    /// Returns whether the kernel has taken bytes to send since the last call.
    pub fn took_bytes(&self) -> bool {
        self.took.swap(false, Ordering::Relaxed)
    }

    /// Returns whether the kernel reports room to send. While it is short of memory, a send may fail with `EAGAIN` nevertheless.
    pub fn has_room(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(n) if n > 0)
    }

    /// Shuts down the local half of the stream, after the data that was sent.
    pub fn shutdown(&self) {
        // Fails only if the stream has already ended.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Stops receiving: data that has arrived is still returned, followed by the end of the stream, whether or not the peer has
    /// ended its half.
    pub fn stop_receiving(&self) {
        // Reports a stream that was reset as not connected; its end has then already arrived.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read);
    }

    /// Makes the stream be reset when it is closed, instead of shut down in order.
    pub fn reset_on_close(&self) {
        // If this fails, it is closed in order, which is acceptable.
        let _ = sockopt::set_socket_linger(&self.fd, Some(std::time::Duration::ZERO));
    }
}

impl Wire for TcpStream {
    type To = ();
    /// The number of bytes of the frame that have been sent.
    type Tx = usize;
    type Rx = [u8];
    type Arrived = io::Result<Received>;

    fn caps(&self) -> LinkCaps {
        LinkCaps {
            max_payload: u32::MAX,
            lossless: true,
            by_reference: false,
            piggybacks_acks: false,
        }
    }

    fn ends(&self, (): &()) -> Option<Ends> {
        let src = rustix::net::getsockname(&self.fd).ok()?.try_into().ok()?;
        let dst = rustix::net::getpeername(&self.fd).ok()??.try_into().ok()?;
        Some(Ends { src, dst, tos: 0, ttl: 64 })
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    /// Writes the frame except the bytes that have been sent, as far as the stream has room. A header and a payload take two
    /// calls. Few bytes are best passed as a header alone, which is the kernel's shortest path.
    ///
    /// # Errors
    ///
    /// [`LinkError::Busy`] if the stream is full; [`LinkError::Io`] with `EFAULT` if memory is not mapped and nothing was sent.
    /// After any other error the stream is broken.
    fn send(&self, sent: &mut usize, (): &(), frame: &Frame<'_>) -> Result<(), LinkError> {
        if let Some(rest @ [_, ..]) = frame.header.get(*sent..) {
            *sent += self.taken(sys::send_bytes(&self.fd, rest))?;
            return Ok(());
        }
        let skip = sent.saturating_sub(frame.header.len());
        let bytes;
        let pieces = match frame.payload {
            Payload::None => return Ok(()),
            Payload::Bytes(all) => {
                bytes = [Piece::new(all.as_ptr(), all.len())];
                &bytes
            }
            Payload::Pieces(pieces) => pieces,
        };
        *sent += self.taken(sys::send_pieces(&self.fd, pieces, skip))?;
        Ok(())
    }

    /// Does nothing: data that the stream accepted is sent.
    fn flush(&self, _sent: &mut usize) -> Result<Flushed, TxFail> {
        Ok(Flushed::default())
    }

    /// Receives available data, up to the length of `into`.
    fn receive(&self, into: &mut [u8]) -> io::Result<Received> {
        received(sys::receive_bytes(&self.fd, into))
    }
}

impl TcpStream {
    /// Converts the kernel's result of a write.
    fn taken(&self, answer: io::Result<usize>) -> Result<usize, LinkError> {
        let taken = answer.map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => LinkError::Busy,
            _ => LinkError::Io(e),
        })?;
        self.took.store(true, Ordering::Relaxed);
        Ok(taken)
    }
}

/// Converts the kernel's result of a read.
fn received(answer: io::Result<usize>) -> io::Result<Received> {
    match answer {
        Ok(0) => Ok(Received::End),
        Ok(n) => Ok(Received::Bytes(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
        Err(e) => Err(e),
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let a = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        (TcpStream::new(a.into()).unwrap(), TcpStream::new(b.into()).unwrap())
    }

    /// Sends pieces except the first `skip` bytes. Returns how many more bytes were sent.
    fn send(stream: &TcpStream, pieces: &[Piece], skip: usize) -> Result<usize, LinkError> {
        let mut sent = skip;
        let frame = Frame { header: &[], payload: Payload::Pieces(pieces), pad: 0, ack: None };
        stream.send(&mut sent, &(), &frame).map(|()| sent - skip)
    }

    fn piece(bytes: &[u8]) -> Piece {
        Piece::new(bytes.as_ptr(), bytes.len())
    }

    /// Waits for bytes that the other end has sent. On one host they are already in flight.
    fn receive(stream: &TcpStream, into: &mut [u8]) -> Received {
        loop {
            match stream.receive(into).unwrap() {
                Received::Nothing => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    #[test]
    fn tcp_send_skips_bytes_already_sent() {
        let (a, b) = pair();
        let pieces = [piece(b"abc"), piece(b""), piece(b"defg"), piece(b"hi")];
        assert_eq!(send(&a, &pieces, 4).unwrap(), 5);
        let mut got = [0; 16];
        assert_eq!(receive(&b, &mut got), Received::Bytes(5));
        assert_eq!(&got[..5], b"efghi");
        assert_eq!(b.receive(&mut got).unwrap(), Received::Nothing);
        // The header is the first part of the frame.
        for (skip, left) in [(0, &b"one run"[..]), (2, b"e run"), (4, b"run"), (7, b"")] {
            let mut sent = skip;
            let frame =
                Frame { header: b"one ", payload: Payload::Bytes(b"run"), pad: 0, ack: None };
            while sent < frame.len() {
                a.send(&mut sent, &(), &frame).unwrap();
            }
            assert_eq!(sent, 7);
            let mut rest = left.len();
            while rest != 0 {
                let Received::Bytes(n) = receive(&b, &mut got) else { panic!() };
                assert_eq!(got[..n], left[left.len() - rest..][..n]);
                rest -= n;
            }
        }
        let ends = a.ends(&()).unwrap();
        let back = b.ends(&()).unwrap();
        assert_eq!((ends.src, ends.dst), (back.dst, back.src));
    }

    #[test]
    fn tcp_receive_fills_pieces_before_the_rest_buffer() {
        let (a, b) = pair();
        send(&a, &[piece(b"0123456789")], 0).unwrap();
        let (mut first, mut second, mut rest) = ([0_u8; 3], [0_u8; 4], [0_u8; 8]);
        let mut look = [0; 1];
        while rustix::net::recv(b.as_fd(), &mut look[..], rustix::net::RecvFlags::PEEK).is_err() {
            std::thread::yield_now();
        }
        let pieces = [
            Piece::new(first.as_mut_ptr(), first.len()),
            Piece::new(second.as_mut_ptr(), second.len()),
        ];
        // SAFETY: the two arrays are locals, and are not read meanwhile.
        #[expect(unsafe_code, reason = "memory named by address")]
        let got = unsafe { b.receive_to(&pieces, &mut rest) }.unwrap();
        assert_eq!(got, Received::Bytes(10));
        assert_eq!((&first, &second, &rest[..3]), (b"012", b"3456", &b"789"[..]));
    }

    #[test]
    fn tcp_send_of_unmapped_memory_is_efault_and_sends_nothing() {
        let (a, b) = pair();
        let missing = Piece::new(std::ptr::without_provenance(8), 100);
        let Err(LinkError::Io(error)) = send(&a, &[missing], 0) else { panic!() };
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        send(&a, &[piece(b"still there")], 0).unwrap();
        let mut got = [0; 16];
        assert_eq!(receive(&b, &mut got), Received::Bytes(11));
    }

    #[test]
    fn tcp_fin_and_reset_are_distinguished() {
        let (a, b) = pair();
        a.shutdown();
        assert_eq!(receive(&b, &mut [0; 1]), Received::End);
        let (a, b) = pair();
        a.reset_on_close();
        drop(a);
        let error = loop {
            match b.receive(&mut [0; 1]) {
                Ok(Received::Nothing) => std::thread::yield_now(),
                Ok(other) => panic!("{other:?}"),
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn received_bytes_are_readable_after_stop_receiving() {
        let (a, b) = pair();
        send(&a, &[piece(b"last")], 0).unwrap();
        let mut got = [0; 2];
        assert_eq!(receive(&b, &mut got), Received::Bytes(2));
        b.stop_receiving();
        assert_eq!(b.receive(&mut got).unwrap(), Received::Bytes(2));
        assert_eq!((&got, b.receive(&mut [0; 2]).unwrap()), (b"st", Received::End));
        send(&b, &[piece(b"there")], 0).unwrap();
        assert_eq!(receive(&a, &mut [0; 8]), Received::Bytes(5));
    }

    #[test]
    fn full_tcp_send_buffer_takes_a_part_then_is_busy() {
        let (a, _b) = pair();
        let big = vec![7_u8; 64 << 20];
        assert!(a.has_room() && !a.took_bytes());
        let taken = send(&a, &[piece(&big)], 0).unwrap();
        assert!(0 < taken && taken < big.len());
        assert!(a.took_bytes() && !a.took_bytes());
        let mut more = taken;
        while let Ok(n) = send(&a, &[piece(&big)], more) {
            more += n;
        }
        a.took_bytes();
        assert!(matches!(send(&a, &[piece(&big)], more), Err(LinkError::Busy)));
        assert!(!a.took_bytes() && !a.has_room());
        assert!(a.max_segment() > 1000);
    }
}
