//! The event sources of the event loop, with epoll(7), level-triggered: a connection with more messages is reported
//! again after the others had their turn.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rdmux_link::spin_wait;
use rustix::event::{Timespec, epoll};

use super::connection::ConnectionId;

/// A source of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The listening socket.
    Listener,
    /// A request to end the fabric.
    Stop,
    /// A connection.
    Connection(ConnectionId),
}

impl Token {
    fn encode(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Stop => 1,
            Self::Connection(ConnectionId(id)) => id,
        }
    }

    fn decode(word: u64) -> Self {
        match word {
            0 => Self::Listener,
            1 => Self::Stop,
            id => Self::Connection(ConnectionId(id)),
        }
    }
}

/// A source that is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) token: Token,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Whether the peer has shut down both directions, or the socket is broken. Then it is also readable, but never again writable if the
    /// peer keeps it open without reading.
    pub(super) ended: bool,
}

/// The poller of all sources.
#[derive(Debug)]
pub(super) struct Poller(OwnedFd);

/// Events that one call returns.
const AT_ONCE: usize = 64;

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds a source, to be polled for reading and its end.
    pub(super) fn add(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.encode());
        Ok(epoll::add(&self.0, fd, data, epoll::EventFlags::IN)?)
    }

    /// Changes a source to be polled for reading, writing, or both. Its end is reported in any case.
    pub(super) fn change(&self, fd: impl AsFd, token: Token, read: bool, write: bool) {
        let data = epoll::EventData::new_u64(token.encode());
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, read);
        flags.set(epoll::EventFlags::OUT, write);
        // Fails only for a descriptor that was not added.
        let _ = epoll::modify(&self.0, fd, data, flags);
    }

    /// Removes a source, before its descriptor is closed.
    pub(super) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Waits for a source to be ready, or for the timeout.
    pub(super) fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let mut looked = Ok(());
        // Busy-polls first, because requests arrive in bursts.
        spin_wait::look(|| {
            looked = self.poll(Some(&Timespec::default()), ready);
            looked.is_err() || !ready.is_empty()
        });
        looked?;
        if ready.is_empty() {
            let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
            self.poll(timeout.as_ref(), ready)?;
        }
        Ok(())
    }

    fn poll(&self, timeout: Option<&Timespec>, ready: &mut Vec<Ready>) -> io::Result<()> {
        let mut space = [const { MaybeUninit::uninit() }; AT_ONCE];
        match epoll::wait(&self.0, &mut space[..], timeout) {
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
            Ok((events, _)) => {
                ready.extend(events.iter().map(Ready::new));
                Ok(())
            }
        }
    }
}

impl Ready {
    fn new(event: &epoll::Event) -> Self {
        let (data, flags) = (event.data, event.flags);
        let end = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        Self {
            token: Token::decode(data.u64()),
            readable: flags.intersects(epoll::EventFlags::IN | end),
            writable: flags.contains(epoll::EventFlags::OUT),
            ended: flags.intersects(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::socket;

    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);
    const ID: Token = Token::Connection(ConnectionId(16));

    /// Returns the ready sources: whether each is readable, and whether it is writable.
    fn ready(poller: &Poller) -> Vec<(Token, bool, bool)> {
        let mut ready = Vec::new();
        poller.wait(NOW, &mut ready).unwrap();
        ready.iter().map(|r| (r.token, r.readable, r.writable)).collect()
    }

    #[test]
    fn poller_reports_requested_events_and_hang_up_always() {
        let poller = Poller::new().unwrap();
        let (ours, theirs) = socket::pair().unwrap();
        poller.add(&ours, ID).unwrap();
        assert_eq!(ready(&poller), []);
        socket::send_bytes(theirs.as_fd(), b"x", &[]).unwrap();
        // Reported until it is read.
        assert_eq!([(); 2].map(|()| ready(&poller)), [[(ID, true, false)]; 2]);
        poller.change(&ours, ID, false, true);
        assert_eq!(ready(&poller), [(ID, false, true)]);
        poller.change(&ours, ID, true, true);
        assert_eq!(ready(&poller), [(ID, true, true)]);
        poller.change(&ours, ID, false, false);
        assert_eq!(ready(&poller), []);
        drop(theirs);
        assert_eq!(ready(&poller), [(ID, true, false)]);
        let mut ended = Vec::new();
        poller.wait(NOW, &mut ended).unwrap();
        assert!(ended.iter().all(|r| r.ended) && !ended.is_empty());
        // Another process may have a duplicate, so closing is not enough.
        let _duplicate = ours.try_clone().unwrap();
        poller.remove(&ours);
        drop(ours);
        assert_eq!(ready(&poller), []);
    }

    #[test]
    fn poller_wait_times_out_and_distinguishes_tokens() {
        let poller = Poller::new().unwrap();
        let all: Vec<_> = [Token::Listener, Token::Stop, ID]
            .into_iter()
            .map(|token| {
                let (ours, theirs) = socket::pair().unwrap();
                poller.add(&ours, token).unwrap();
                socket::send_bytes(theirs.as_fd(), b"x", &[]).unwrap();
                (ours, theirs, token)
            })
            .collect();
        let mut found: Vec<_> =
            ready(&poller).into_iter().map(|(token, ..)| token.encode()).collect();
        found.sort_unstable();
        assert_eq!(found, all.iter().map(|(.., token)| token.encode()).collect::<Vec<_>>());
        for (ours, ..) in &all {
            poller.remove(ours);
        }
        let mut left = Vec::new();
        poller.wait(Some(Duration::from_millis(1)), &mut left).unwrap();
        assert!(left.is_empty());
    }
}
