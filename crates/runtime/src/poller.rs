//! The event sources of an event loop, with epoll(7). They are level-triggered, so that a source
//! with more events is reported again after the others have had their turn.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// Identifies a source of events: a kind, and a number of up to 56 bits.
pub trait Token: Sized {
    /// Returns the kind and the number.
    fn to_parts(self) -> (u8, u64);
    /// Returns the token with a kind and a number; none if no token has them.
    fn from_parts(kind: u8, id: u64) -> Option<Self>;
}

/// The number of sources reported at a time.
const EVENTS: usize = 64;
const KIND_SHIFT: u32 = 56;
const ID: u64 = (1 << KIND_SHIFT) - 1;

fn encode(token: impl Token) -> u64 {
    let (kind, id) = token.to_parts();
    debug_assert_eq!(id & !ID, 0, "the number of a token of kind {kind} has more than 56 bits");
    u64::from(kind) << KIND_SHIFT | id & ID
}

fn decode<T: Token>(word: u64) -> Option<T> {
    T::from_parts(word.to_be_bytes()[0], word & ID)
}

/// The events for which a source is watched. Errors and the end of both directions are always reported, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// No events besides errors and the end of both directions.
    Nothing,
    /// Input, or its end.
    Read,
    /// Input, its end, or room for output.
    ReadWrite,
    /// Room for output: for a connection in progress, or a peer that must read first.
    Write,
    /// The end of input only, even if the other direction is still open.
    End,
}

impl Interest {
    /// Returns the interest in input, output, both or neither.
    pub fn of(read: bool, write: bool) -> Self {
        match (read, write) {
            (false, false) => Self::Nothing,
            (true, false) => Self::Read,
            (true, true) => Self::ReadWrite,
            (false, true) => Self::Write,
        }
    }

    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Nothing => epoll::EventFlags::empty(),
            Self::Read => epoll::EventFlags::IN,
            Self::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Self::Write => epoll::EventFlags::OUT,
            Self::End => epoll::EventFlags::RDHUP,
        }
    }
}

/// A source with events.
#[derive(Clone, Copy, Debug)]
pub struct Ready<T> {
    /// The token of the source.
    pub token: T,
    /// Whether the source has input, or has reached its end.
    pub readable: bool,
    /// Whether the source has room for output.
    pub writable: bool,
    /// Whether nothing can be sent or received any more.
    pub gone: bool,
}

/// All event sources of an event loop.
#[derive(Debug)]
pub struct Poller<T> {
    epoll: OwnedFd,
    tokens: PhantomData<fn(T)>,
}

impl<T: Token> Poller<T> {
    /// Creates a poller without sources.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, tokens: PhantomData })
    }

    /// Watches a source.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn add(&self, fd: impl AsFd, token: T, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, data(token), interest.flags())?)
    }

    /// Changes the events for which a source is watched.
    pub fn change(&self, fd: impl AsFd, token: T, interest: Interest) {
        // This fails only for a descriptor that is not watched.
        let _ = epoll::modify(&self.epoll, fd, data(token), interest.flags());
    }

    /// Stops watching a source. Closing it does not suffice where another process has a duplicate.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for an event, or until the timeout. A signal ends the wait, too.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    pub fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<Ready<T>>) -> io::Result<()> {
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => &[],
            Err(e) => return Err(e.into()),
        };
        ready.clear();
        ready.extend(events.iter().filter_map(|event| {
            let (data, flags) = (event.data, event.flags);
            let gone = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            let readable = flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
            Some(Ready {
                token: decode(data.u64())?,
                readable: gone || readable,
                writable: flags.contains(epoll::EventFlags::OUT),
                gone,
            })
        }));
        Ok(())
    }
}

/// The descriptor is readable while a source has events.
impl<T> AsFd for Poller<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn data(token: impl Token) -> epoll::EventData {
    epoll::EventData::new_u64(encode(token))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Source(u8, u64);

    impl Token for Source {
        fn to_parts(self) -> (u8, u64) {
            (self.0, self.1)
        }
        fn from_parts(kind: u8, id: u64) -> Option<Self> {
            (kind < 255).then_some(Self(kind, id))
        }
    }

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [Source(0, 0), Source(254, ID), Source(7, 1 << 40)] {
            assert_eq!(decode(encode(token)), Some(token));
        }
        assert_eq!(decode::<Source>(u64::MAX), None);
    }

    #[test]
    fn poller_reports_events_of_interest_and_hang_up_always() {
        let poller = Poller::new().unwrap();
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair().unwrap();
        let mut ready: Vec<Ready<Source>> = Vec::new();
        let mut see = |interest| {
            poller.change(&ours, Source(1, 2), interest);
            poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
            ready.first().map(|r| (r.token, r.readable, r.writable, r.gone))
        };
        poller.add(&ours, Source(1, 2), Interest::Nothing).unwrap();
        let token = Source(1, 2);
        assert_eq!(see(Interest::Read), None);
        assert_eq!(see(Interest::of(true, true)), Some((token, false, true, false)));
        shutdown(&theirs, Shutdown::Write).unwrap();
        assert_eq!(see(Interest::of(false, false)), None);
        assert_eq!(see(Interest::End), Some((token, true, false, false)));
        drop(theirs);
        assert_eq!(see(Interest::Nothing), Some((token, true, false, true)));
        poller.remove(&ours);
        poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
        assert!(ready.is_empty());
    }
}
