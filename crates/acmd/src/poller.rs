//! What the event loop waits for: epoll(7), level-triggered, so that a source that has more to say is asked again after the others had
//! their turn.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// A source of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A listening socket, by its number.
    Listener(u64),
    /// A client.
    Client(u64),
    /// Signals.
    Signal,
    /// The files of the configuration.
    Files,
    /// The machine's interfaces and addresses.
    Addresses,
    /// Asynchronous events of a device.
    Device(u64),
    /// Completions of a port's queue pairs.
    Port(u64),
    /// Management datagrams of a port.
    Mads(u64),
    /// Names that were looked up.
    Names,
}

const KIND_SHIFT: u32 = 56;
const ID: u64 = (1 << KIND_SHIFT) - 1;

impl Token {
    fn encode(self) -> u64 {
        let (kind, id) = match self {
            Self::Listener(id) => (0, id),
            Self::Client(id) => (1, id),
            Self::Signal => (2, 0),
            Self::Files => (3, 0),
            Self::Addresses => (4, 0),
            Self::Device(id) => (5, id),
            Self::Port(id) => (6, id),
            Self::Mads(id) => (7, id),
            Self::Names => (8, 0),
        };
        kind << KIND_SHIFT | id & ID
    }

    fn decode(word: u64) -> Option<Self> {
        let id = word & ID;
        Some(match word >> KIND_SHIFT {
            0 => Self::Listener(id),
            1 => Self::Client(id),
            2 => Self::Signal,
            3 => Self::Files,
            4 => Self::Addresses,
            5 => Self::Device(id),
            6 => Self::Port(id),
            7 => Self::Mads(id),
            8 => Self::Names,
            _ => return None,
        })
    }
}

/// What a source is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Something to read.
    pub(crate) read: bool,
    /// Room to write.
    pub(crate) write: bool,
}

impl Interest {
    /// Something to read, or the end.
    pub(crate) const READ: Self = Self { read: true, write: false };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags
    }
}

/// A source that has something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) token: Token,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The other end is gone altogether.
    pub(crate) gone: bool,
}

/// All sources.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.encode());
        Ok(epoll::add(&self.0, fd, data, interest.flags())?)
    }

    pub(crate) fn change(&self, fd: impl AsFd, token: Token, interest: Interest) {
        let data = epoll::EventData::new_u64(token.encode());
        // Fails only for a descriptor that is not there.
        let _ = epoll::modify(&self.0, fd, data, interest.flags());
    }

    /// Closing is not enough where another process has a duplicate.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Waits for something, or until the timeout.
    pub(crate) fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut events = Vec::with_capacity(64);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.0, buffer, timeout.as_ref()) {
            Err(e) if e != rustix::io::Errno::INTR => return Err(e.into()),
            _ => {}
        }
        ready.clear();
        ready.extend(events.iter().filter_map(|event| {
            let (data, flags) = (event.data, event.flags);
            let gone = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            Some(Ready {
                token: Token::decode(data.u64())?,
                readable: gone || flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
                gone,
            })
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Listener(1),
            Token::Client(ID),
            Token::Signal,
            Token::Files,
            Token::Addresses,
            Token::Device(2),
            Token::Port(3),
            Token::Mads(4),
            Token::Names,
        ] {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
        assert_eq!(Token::decode(u64::MAX), None);
    }
}
