//! Zero-copy transmission of packets: the kernel sends from the pages that hold them (`vmsplice(2)`, `splice(2)`).
//!
//! Without zero-copy, a receiver on loopback copies out of the pages that the sender's system call filled. They are few and
//! reused at once, so each of their cache lines is still in the receiver's cache when the sender writes to it: if the two
//! processors are far apart, waiting for these lines takes most of the sending time. Zero-copy pages are filled with non-temporal
//! stores, which do not wait, unless filling through the caches is found to be as fast (`Way`).
//!
//! A page that is sent zero-copy must not change until the receiver has read it. The kernel does not report that, but the transport
//! does: acknowledged packets have been read. Pages whose state is unknown are replaced by others ([`ZeroCopyBuf`]'s drop). A receiver
//! may acknowledge packets without reading them, and later find the pages' new contents in its socket. So pages are reused without
//! replacement only for the same socket ([`ZeroCopyDest`]), and replaced before they are used for another.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use socket2::{Domain, SockAddr, Socket, Type};

use super::control::ControlBuf;
use crate::cancel::Uncancelled;
use crate::mmap::PrivateMapping;
use crate::sys;

/// The size of a zero-copy buffer in bytes: no datagram, segmented or not, is larger.
const SIZE: usize = 65_536;
/// The number of leading bytes of a message that are copied. A socket buffer holds 17 non-contiguous runs of bytes: these, and 16
/// pages. If these bytes do not fit into the rest of a kernel page, they are two runs.
const FRONT: usize = 16;
/// The capacity of a pipe by default, in bytes.
const PIPE: usize = 16 * 4096;

/// A pool of zero-copy buffers, shared by the queue pairs of a process.
#[derive(Debug)]
pub struct ZeroCopyPool {
    memory: PrivateMapping,
    /// Free buffers, least recently returned first.
    free: Mutex<VecDeque<Free>>,
    way: Way,
}

/// The destination socket of a zero-copy buffer. No other process receives what is sent there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroCopyDest {
    /// The address that is sent to.
    pub addr: SocketAddr,
    /// The slot, which distinguishes the sockets of an address: the destination QPN above [`super::SLOT_SHIFT`].
    pub slot: u32,
}

/// A free buffer.
#[derive(Debug)]
struct Free {
    index: usize,
    /// The last socket that its pages were sent to, if that has acknowledged them.
    last: Option<ZeroCopyDest>,
}

/// The method of filling buffers. Filling through the caches is better for the reader if the two processors are near each other;
/// the writer then takes no longer. So that is tried occasionally, and kept while it is as fast. (A virtual machine's processors
/// may be moved by its host from time to time.)
#[derive(Debug)]
struct Way {
    /// The time in nanoseconds to fill 64 KiB with non-temporal stores; initially unknown.
    past: AtomicU32,
    /// The number of messages until filling through the caches is tried next; at zero it is used.
    left: AtomicU32,
}

impl Way {
    /// The number of messages between trials.
    const TRIAL: u32 = 32;
    /// The factor by which filling through the caches may take longer than non-temporal stores.
    const LONGER: u32 = 3;

    const fn new() -> Self {
        Self { past: AtomicU32::new(u32::MAX), left: AtomicU32::new(Self::TRIAL) }
    }

    /// Returns whether the next message is filled through the caches. Unsynchronized threads may be wrong by one message.
    fn is_through(&self) -> bool {
        let left = self.left.load(Relaxed);
        if left != 0 {
            self.left.store(left - 1, Relaxed);
        }
        left == 0
    }

    /// Records the time in nanoseconds that filling this many bytes took.
    fn took(&self, through: bool, nanos: u128, bytes: usize) {
        let each = nanos.saturating_mul(SIZE as u128) / bytes.max(1) as u128;
        let each = u32::try_from(each).unwrap_or(u32::MAX);
        let past = self.past.load(Relaxed);
        if through {
            let slow = each > past.saturating_mul(Self::LONGER);
            self.left.store(if slow { Self::TRIAL } else { 0 }, Relaxed);
        } else {
            // The minimum, which slowly grows: a measurement may include interruptions.
            self.past.store(each.min(past.saturating_add(past / 16)), Relaxed);
        }
    }
}

/// The result of a check that is made once. No lock is held during the check: another thread may fork meanwhile, and a child would
/// wait for the lock forever. Several threads may check at once.
#[derive(Debug)]
struct Verdict(AtomicU8);

impl Verdict {
    const NO: u8 = 1;
    const YES: u8 = 2;

    const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    fn get_or(&self, check: impl FnOnce() -> bool) -> bool {
        match self.0.load(Relaxed) {
            Self::NO => false,
            Self::YES => true,
            _ => {
                let result = check();
                self.0.store(if result { Self::YES } else { Self::NO }, Relaxed);
                result
            }
        }
    }
}

impl ZeroCopyPool {
    /// Creates a pool for `buffers` messages at a time.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the kernel does not accept pages or corrupts them; those of `mmap(2)`.
    pub fn new(buffers: usize) -> io::Result<Self> {
        static WORKS: Verdict = Verdict::new();
        if !WORKS.get_or(|| works().unwrap_or(false)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Self::with(buffers)
    }

    fn with(buffers: usize) -> io::Result<Self> {
        let memory = PrivateMapping::new(buffers * SIZE)?;
        let free = (0..buffers).map(|index| Free { index, last: None }).collect();
        Ok(Self { memory, free: Mutex::new(free), way: Way::new() })
    }

    /// Takes a buffer for one message to a socket, if one is free: preferably one with pages that no other socket has had.
    pub fn take(self: &Arc<Self>, to: ZeroCopyDest) -> Option<ZeroCopyBuf> {
        let mut free = self.free();
        let own = free.iter().position(|free| free.last.is_none_or(|last| last == to));
        let Free { index, .. } = free.remove(own.unwrap_or(0))?;
        drop(free);
        let buf = ZeroCopyBuf { pool: self.clone(), to, index, read: false };
        // If it is dropped here, it gets other pages, or is not reused.
        if own.is_none() && self.memory.renew(index * SIZE, SIZE).is_err() {
            return None;
        }
        Some(buf)
    }

    fn free(&self) -> std::sync::MutexGuard<'_, VecDeque<Free>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer for one message. If it is dropped while the kernel may still use its pages, it gets other pages.
#[derive(Debug)]
pub struct ZeroCopyBuf {
    pool: Arc<ZeroCopyPool>,
    to: ZeroCopyDest,
    index: usize,
    read: bool,
}

impl ZeroCopyBuf {
    /// Returns the buffer to the pool: the receiver has read or acknowledged its contents, so the kernel no longer uses it.
    pub fn recycle(mut self) {
        self.read = true;
    }

    fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= SIZE, "no message is larger");
        let ZeroCopyPool { memory, way, .. } = &*self.pool;
        let (through, began) = (way.is_through(), Instant::now());
        if through {
            memory.write(self.index * SIZE, bytes);
        } else {
            memory.stream(self.index * SIZE, bytes);
        }
        way.took(through, began.elapsed().as_nanos(), bytes.len());
    }

    /// Puts its first `len` bytes into a pipe. A later reader of the pipe sees the contents at that time, which are packets
    /// protected by their ICRC.
    fn vmsplice(&self, pipe: impl AsFd, len: usize) -> io::Result<usize> {
        self.pool.memory.vmsplice(self.index * SIZE, len, pipe)
    }
}

impl Drop for ZeroCopyBuf {
    fn drop(&mut self) {
        let Self { index, .. } = *self;
        let last = self.read.then_some(self.to);
        // A buffer that cannot get other pages is not reused.
        if self.read || self.pool.memory.renew(index * SIZE, SIZE).is_ok() {
            self.pool.free().push_back(Free { index, last });
        }
    }
}

/// A pipe through which pages are passed to a socket.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { read, write })
    }
}

/// Sends a message zero-copy, except its first bytes. No other thread may send through the socket meanwhile.
///
/// On failure, some of the message may have been sent: valid packets, and part of one.
pub(super) fn send(
    fd: impl AsFd,
    pipe: &mut Option<Pipe>,
    name: &SockAddr,
    control: &ControlBuf,
    bytes: &[u8],
    buf: &mut ZeroCopyBuf,
) -> io::Result<()> {
    let (front, rest) = bytes.split_at(bytes.len().min(FRONT));
    if rest.is_empty() || rest.len() > PIPE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // A pipe is kept only when it is empty again.
    let through = match pipe.take() {
        Some(pipe) => pipe,
        None => Pipe::new()?,
    };
    let sent = send_through(&through, fd, name, control, front, rest, buf);
    if sent.is_ok() {
        *pipe = Some(through);
    } else {
        // Closing is a cancellation point, which no program expects in ibv_post_send and ibv_poll_cq.
        let _uncancelled = Uncancelled::new();
        drop(through);
    }
    sent
}

/// Sends a message through an empty pipe, which is empty again unless this fails.
fn send_through(
    pipe: &Pipe,
    fd: impl AsFd,
    name: &SockAddr,
    control: &ControlBuf,
    front: &[u8],
    rest: &[u8],
    buf: &mut ZeroCopyBuf,
) -> io::Result<()> {
    buf.fill(rest);
    if buf.vmsplice(&pipe.write, rest.len())? != rest.len() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    sys::send(&fd, name, front, control.as_slice(), true)?;
    match splice(&pipe.read, None, &fd, None, rest.len(), SpliceFlags::NONBLOCK) {
        Ok(n) if n == rest.len() => Ok(()),
        outcome => {
            // The message that was begun must be ended: otherwise the kernel would take the next one as the rest of it.
            uncork(fd)?;
            Err(outcome.err().map_or_else(|| io::ErrorKind::Unsupported.into(), io::Error::from))
        }
    }
}

/// Makes the kernel send a message that was begun and not completed, if any, even by a previous owner of the socket.
pub(super) fn uncork(fd: impl AsFd) -> io::Result<()> {
    sys::set_int(fd, libc::SOL_UDP, libc::UDP_CORK, 0)
}

/// Creates a socket on loopback.
fn socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Returns the control message that makes the kernel cut a message into datagrams of this size.
fn cut(segment: u16) -> ControlBuf {
    let mut control = ControlBuf::new();
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    control
}

/// Checks whether data that is sent zero-copy, cut into segments, arrives. Kernels before 6.5 implement it differently, and not
/// every sandbox supports it.
fn works() -> io::Result<bool> {
    /// More than one page, and segments that do not end at a page boundary.
    const SEGMENT: u16 = 1000;
    const LEN: usize = 8_500;
    let (from, to) = (socket()?, socket()?);
    sys::set_int(&to, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    let sent: Vec<u8> = (0..=250).cycle().take(LEN).collect();
    let name = to.local_addr()?;
    let addr = name.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    let dest = ZeroCopyDest { addr, slot: 0 };
    let mut buf = Arc::new(ZeroCopyPool::with(1)?).take(dest).ok_or(io::ErrorKind::OutOfMemory)?;
    if send(&from, &mut None, &name, &cut(SEGMENT), &sent, &mut buf).is_err() {
        return Ok(false);
    }
    let mut came = Vec::new();
    let mut buffer = vec![0; SIZE];
    while came.len() < LEN {
        let soon = Timespec { tv_sec: 1, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&to, PollFlags::IN)], Some(&soon))? == 0 {
            return Ok(false);
        }
        let n = rustix::net::recv(&to, &mut buffer[..], RecvFlags::DONTWAIT)?.0;
        came.extend_from_slice(&buffer[..n]);
    }
    Ok(came == sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dest(slot: u32) -> ZeroCopyDest {
        ZeroCopyDest { addr: (Ipv4Addr::LOCALHOST, 4791).into(), slot }
    }

    /// A child of fork(2) has the memory of a process in which a thread was checking, but not that thread.
    #[test]
    fn check_does_not_wait_for_one_that_has_begun() {
        let verdict = Verdict::new();
        assert!(verdict.get_or(|| {
            assert!(!verdict.get_or(|| false));
            true
        }));
        assert!(verdict.get_or(|| panic!("it is known")));
    }

    #[test]
    fn recycled_zerocopy_buffer_is_reused_first_in_first_out() {
        let pool = Arc::new(ZeroCopyPool::with(2).unwrap());
        let take = || pool.take(dest(1));
        let (first, second) = (take().unwrap(), take().unwrap());
        assert!(take().is_none());
        let index = second.index;
        second.recycle();
        first.recycle();
        assert_eq!(take().unwrap().index, index, "the first that came back");
        assert_eq!(Arc::strong_count(&pool), 1);
    }

    #[test]
    fn zerocopy_buffers_return_to_their_former_destination() {
        let pool = Arc::new(ZeroCopyPool::with(3).unwrap());
        let [a, b] = [1, 2].map(dest);
        let had = [a, b].map(|to| {
            let buf = pool.take(to).unwrap();
            let index = buf.index;
            buf.recycle();
            index
        });
        assert_ne!(had[0], had[1], "nobody has had the second");
        let third = pool.take(b).unwrap();
        assert!(!had.contains(&third.index), "nobody has had it, and it was free before");
        assert_eq!([b, a].map(|to| pool.take(to).unwrap().index), [had[1], had[0]]);
        third.recycle();
    }

    /// The receiver has acknowledged data that it has not read, which only harms itself.
    #[test]
    fn receiver_with_false_ack_does_not_see_data_of_others() {
        let (from, liar) = (socket().unwrap(), socket().unwrap());
        let name = liar.local_addr().unwrap();
        let pool = Arc::new(ZeroCopyPool::with(1).unwrap());
        let to_liar = ZeroCopyDest { addr: name.as_socket().unwrap(), slot: 0 };
        let mut buf = pool.take(to_liar).unwrap();
        sys::set_int(&liar, libc::SOL_UDP, libc::UDP_GRO, 1).unwrap();
        send(&from, &mut None, &name, &cut(1000), &[7; 30_000], &mut buf).unwrap();
        buf.recycle();
        pool.take(dest(1)).unwrap().fill(&[9; SIZE]);
        let mut came = vec![0; SIZE];
        poll(&mut [PollFd::new(&liar, PollFlags::IN)], None).unwrap();
        let n = rustix::net::recv(&liar, &mut came[..], RecvFlags::DONTWAIT).unwrap().0;
        assert_eq!(n, 30_000);
        assert!(came[..n].iter().all(|b| *b == 7), "the pages that were sent to it are its own");
    }

    #[test]
    fn failed_zerocopy_send_is_no_cancellation_point() {
        let (no_socket, name) = (Pipe::new().unwrap(), socket().unwrap().local_addr().unwrap());
        let pool = Arc::new(ZeroCopyPool::with(1).unwrap());
        let mut buf = pool.take(dest(1)).unwrap();
        let mut pipe = None;
        let mut sends =
            || send(&no_socket.read, &mut pipe, &name, &cut(1000), &[7; 30_000], &mut buf);
        let error = crate::cancel::while_pending(&mut sends).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
        assert!(pipe.is_none());
    }

    #[test]
    fn zerocopy_fill_uses_cached_stores_only_while_as_fast() {
        let way = Way::new();
        let go = |through: u128| -> Vec<bool> {
            let message = || {
                let is_through = way.is_through();
                way.took(is_through, if is_through { through } else { 1000 }, SIZE / 2);
                is_through
            };
            (0..66).map(|_| message()).collect()
        };
        let through = |ways: Vec<bool>| ways.iter().filter(|through| **through).count();
        assert_eq!(through(go(3001)), 2, "it is slow: every 33rd");
        assert_eq!(through(go(2999)), 34, "from the next trial on");
        assert_eq!(through(go(2999)), 66);
        assert_eq!(through(go(3001)), 2, "once, and at the next trial");
    }

    #[test]
    fn dropped_zerocopy_buffer_gets_new_pages() {
        let pool = Arc::new(ZeroCopyPool::with(1).unwrap());
        let mut buf = pool.take(dest(1)).unwrap();
        buf.fill(&[7; SIZE]);
        let pipe = Pipe::new().unwrap();
        assert_eq!(buf.vmsplice(&pipe.write, PIPE).unwrap(), PIPE);
        drop(buf);
        pool.take(dest(1)).unwrap().fill(&[9; SIZE]);
        let mut there = vec![0; PIPE];
        let mut len = 0;
        while len < PIPE {
            len += rustix::io::read(&pipe.read, &mut there[len..]).unwrap();
        }
        assert!(there.iter().all(|b| *b == 7), "the old pages are the receiver's");
    }
}
