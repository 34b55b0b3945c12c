//! Zero-copy transmission of packets: the kernel sends from the pages that they lie in (`vmsplice(2)`, `splice(2)`).
//!
//! On loopback the receiver copies out of the very pages that the sender's system call filled. They are few, and used again
//! at once, so each of their cache lines is still in the receiver's cache when the sender writes to it: where the two
//! processors are far from each other that wait is most of what sending takes. Lent pages are filled past the caches,
//! which waits for nobody, unless it turns out that the way through them is as fast (`Way`).
//!
//! A page that is sent zero-copy must stay as it is until the receiver has read it. The kernel does not say when that is, but the
//! transport does: what was acknowledged was read. Pages of which nobody knows are exchanged for others
//! ([`Loan`]'s drop). A receiver may lie, and find in its socket later what the pages then hold: so they are lent again as
//! they are to the same socket only ([`Borrower`]), and exchanged before they are lent to another.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use socket2::{Domain, SockAddr, Socket, Type};

use super::control::ControlBuf;
use crate::mmap::PrivateMapping;
use crate::sys;

/// Bytes of one loan: no datagram, segmented or not, is larger.
const SIZE: usize = 65_536;
/// Bytes of a message that go in front, copied. A socket buffer holds 17 runs of bytes that do not adjoin: these, and 16
/// pages. Where these do not fit into what the kernel has left of a page of its own, they are two.
const FRONT: usize = 16;
/// The pages of a pipe unless it is asked for more.
const PIPE: usize = 16 * 4096;

/// Memory to lend, shared by the queue pairs of a process.
#[derive(Debug)]
pub struct LendingPool {
    memory: PrivateMapping,
    /// What is not lent; the one that was given back first is the next to be lent.
    free: Mutex<VecDeque<Free>>,
    way: Way,
}

/// The destination socket of a zero-copy buffer. No other process receives what is sent there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrower {
    /// The address that is sent to.
    pub addr: SocketAddr,
    /// The slot, which tells the sockets of an address apart: the destination QPN above [`super::SLOT_SHIFT`].
    pub slot: u32,
}

/// Memory that is not lent.
#[derive(Debug)]
struct Free {
    index: usize,
    /// Who had its pages, and says that it has read them.
    last: Option<Borrower>,
}

/// How memory is filled. Through the caches is better for who reads it, if the two processors are near each other: then it
/// takes the writer no longer. So that is tried now and then, and kept to while it is so. (Where a virtual machine's
/// processors are, its host decides anew now and then.)
#[derive(Debug)]
struct Way {
    /// Nanoseconds that 64 KiB past the caches take; at first none have.
    past: AtomicU32,
    /// Messages until the way through the caches is next tried; at zero it is taken.
    left: AtomicU32,
}

impl Way {
    /// How many messages go by between trials.
    const TRIAL: u32 = 32;
    /// How much longer than past the caches the way through them may take.
    const LONGER: u32 = 3;

    const fn new() -> Self {
        Self { past: AtomicU32::new(u32::MAX), left: AtomicU32::new(Self::TRIAL) }
    }

    /// Whether the next message goes through the caches. Threads may be wrong about each other by one.
    fn is_through(&self) -> bool {
        let left = self.left.load(Relaxed);
        if left != 0 {
            self.left.store(left - 1, Relaxed);
        }
        left == 0
    }

    /// So many nanoseconds it took for so many bytes.
    fn took(&self, through: bool, nanos: u128, bytes: usize) {
        let each = nanos.saturating_mul(SIZE as u128) / bytes.max(1) as u128;
        let each = u32::try_from(each).unwrap_or(u32::MAX);
        let past = self.past.load(Relaxed);
        if through {
            let slow = each > past.saturating_mul(Self::LONGER);
            self.left.store(if slow { Self::TRIAL } else { 0 }, Relaxed);
        } else {
            // The least, which slowly grows: much may interrupt.
            self.past.store(each.min(past.saturating_add(past / 16)), Relaxed);
        }
    }
}

impl LendingPool {
    /// With room for `loans` messages at a time.
    ///
    /// # Errors
    ///
    /// `Unsupported` where the kernel takes no pages or makes something else of them; whatever `mmap(2)` says.
    pub fn new(loans: usize) -> io::Result<Self> {
        static WORKS: OnceLock<bool> = OnceLock::new();
        if !*WORKS.get_or_init(|| works().unwrap_or(false)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Self::with(loans)
    }

    fn with(loans: usize) -> io::Result<Self> {
        let memory = PrivateMapping::new(loans * SIZE)?;
        let free = (0..loans).map(|index| Free { index, last: None }).collect();
        Ok(Self { memory, free: Mutex::new(free), way: Way::new() })
    }

    /// Memory for one message to a socket, if there is some: if possible with pages that nobody else has had.
    pub fn take(self: &Arc<Self>, to: Borrower) -> Option<Loan> {
        let mut free = self.free();
        let own = free.iter().position(|free| free.last.is_none_or(|last| last == to));
        let Free { index, .. } = free.remove(own.unwrap_or(0))?;
        drop(free);
        let loan = Loan { pool: self.clone(), to, index, read: false };
        // Dropped, it gets other pages, or is not lent again.
        if own.is_none() && self.memory.renew(index * SIZE, SIZE).is_err() {
            return None;
        }
        Some(loan)
    }

    fn free(&self) -> std::sync::MutexGuard<'_, VecDeque<Free>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory for one message. Dropped while the kernel may still have it, it gets other pages.
#[derive(Debug)]
pub struct Loan {
    pool: Arc<LendingPool>,
    to: Borrower,
    index: usize,
    read: bool,
}

impl Loan {
    /// The kernel has it no more: the receiver has read it, or says so.
    pub fn give_back(mut self) {
        self.read = true;
    }

    fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= SIZE, "no message is larger");
        let LendingPool { memory, way, .. } = &*self.pool;
        let (through, began) = (way.is_through(), Instant::now());
        if through {
            memory.write(self.index * SIZE, bytes);
        } else {
            memory.stream(self.index * SIZE, bytes);
        }
        way.took(through, began.elapsed().as_nanos(), bytes.len());
    }

    /// Puts its first `len` bytes into a pipe. Who reads the pipe later reads what is there then, which is packets whose
    /// ICRC tells.
    fn lend(&self, pipe: impl AsFd, len: usize) -> io::Result<usize> {
        self.pool.memory.lend(self.index * SIZE, len, pipe)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Self { index, .. } = *self;
        let last = self.read.then_some(self.to);
        // What has no other pages is not lent again.
        if self.read || self.pool.memory.renew(index * SIZE, SIZE).is_ok() {
            self.pool.free().push_back(Free { index, last });
        }
    }
}

/// What pages go through to a socket.
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

/// Sends a message by lending what follows its first bytes. Nobody else may send through the socket meanwhile.
///
/// When this fails, some of the message may have left: packets that are right, and part of one.
pub(super) fn send(
    fd: impl AsFd,
    pipe: &mut Option<Pipe>,
    name: &SockAddr,
    control: &ControlBuf,
    bytes: &[u8],
    loan: &mut Loan,
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
    loan.fill(rest);
    if loan.lend(&through.write, rest.len())? != rest.len() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    sys::send(&fd, name, front, control.as_slice(), true)?;
    match splice(&through.read, None, &fd, None, rest.len(), SpliceFlags::NONBLOCK) {
        Ok(n) if n == rest.len() => {
            *pipe = Some(through);
            Ok(())
        }
        outcome => {
            // What was begun is ended, or the kernel would take what is sent next for the rest of it.
            uncork(fd)?;
            Err(outcome.err().map_or_else(|| io::ErrorKind::Unsupported.into(), io::Error::from))
        }
    }
}

/// Lets the kernel send what was begun and not sent whole, if anything was: also by who had the socket before.
pub(super) fn uncork(fd: impl AsFd) -> io::Result<()> {
    sys::set_int(fd, libc::SOL_UDP, libc::UDP_CORK, 0)
}

/// A socket on loopback.
fn socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Has the kernel cut a message into datagrams of so many bytes.
fn cut(segment: u16) -> ControlBuf {
    let mut control = ControlBuf::new();
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    control
}

/// Whether what is sent zero-copy arrives, cut into segments: kernels before 6.5 have another way, and not every sandbox has any.
fn works() -> io::Result<bool> {
    /// More than one page, and segments that no page boundary falls between.
    const SEGMENT: u16 = 1000;
    const LEN: usize = 8_500;
    let (from, to) = (socket()?, socket()?);
    sys::set_int(&to, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    let sent: Vec<u8> = (0..=250).cycle().take(LEN).collect();
    let name = to.local_addr()?;
    let addr = name.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    let borrower = Borrower { addr, slot: 0 };
    let mut loan =
        Arc::new(LendingPool::with(1)?).take(borrower).ok_or(io::ErrorKind::OutOfMemory)?;
    if send(&from, &mut None, &name, &cut(SEGMENT), &sent, &mut loan).is_err() {
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

    fn borrower(slot: u32) -> Borrower {
        Borrower { addr: (Ipv4Addr::LOCALHOST, 4791).into(), slot }
    }

    #[test]
    fn what_is_given_back_is_lent_again() {
        let pool = Arc::new(LendingPool::with(2).unwrap());
        let take = || pool.take(borrower(1));
        let (first, second) = (take().unwrap(), take().unwrap());
        assert!(take().is_none());
        let index = second.index;
        second.give_back();
        first.give_back();
        assert_eq!(take().unwrap().index, index, "the first that came back");
        assert_eq!(Arc::strong_count(&pool), 1);
    }

    #[test]
    fn each_gets_what_it_had_before_while_there_is_some() {
        let pool = Arc::new(LendingPool::with(3).unwrap());
        let [a, b] = [1, 2].map(borrower);
        let had = [a, b].map(|to| {
            let loan = pool.take(to).unwrap();
            let index = loan.index;
            loan.give_back();
            index
        });
        assert_ne!(had[0], had[1], "nobody has had the second");
        let third = pool.take(b).unwrap();
        assert!(!had.contains(&third.index), "nobody has had it, and it was free before");
        assert_eq!([b, a].map(|to| pool.take(to).unwrap().index), [had[1], had[0]]);
        third.give_back();
    }

    /// It has acknowledged what it has not read: that is its own loss.
    #[test]
    fn who_says_it_has_read_what_it_has_not_sees_nothing_of_others() {
        let (from, liar) = (socket().unwrap(), socket().unwrap());
        let name = liar.local_addr().unwrap();
        let pool = Arc::new(LendingPool::with(1).unwrap());
        let to_liar = Borrower { addr: name.as_socket().unwrap(), slot: 0 };
        let mut loan = pool.take(to_liar).unwrap();
        sys::set_int(&liar, libc::SOL_UDP, libc::UDP_GRO, 1).unwrap();
        send(&from, &mut None, &name, &cut(1000), &[7; 30_000], &mut loan).unwrap();
        loan.give_back();
        pool.take(borrower(1)).unwrap().fill(&[9; SIZE]);
        let mut came = vec![0; SIZE];
        poll(&mut [PollFd::new(&liar, PollFlags::IN)], None).unwrap();
        let n = rustix::net::recv(&liar, &mut came[..], RecvFlags::DONTWAIT).unwrap().0;
        assert_eq!(n, 30_000);
        assert!(came[..n].iter().all(|b| *b == 7), "the pages that it was lent are its own");
    }

    #[test]
    fn through_the_caches_while_that_is_as_fast() {
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
    fn pages_of_which_nobody_knows_are_exchanged() {
        let pool = Arc::new(LendingPool::with(1).unwrap());
        let mut loan = pool.take(borrower(1)).unwrap();
        loan.fill(&[7; SIZE]);
        let pipe = Pipe::new().unwrap();
        assert_eq!(loan.lend(&pipe.write, PIPE).unwrap(), PIPE);
        drop(loan);
        pool.take(borrower(1)).unwrap().fill(&[9; SIZE]);
        let mut there = vec![0; PIPE];
        let mut len = 0;
        while len < PIPE {
            len += rustix::io::read(&pipe.read, &mut there[len..]).unwrap();
        }
        assert!(there.iter().all(|b| *b == 7), "the old pages are the borrower's");
    }
}
