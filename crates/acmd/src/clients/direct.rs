//! Clients whose sockets are polled directly by poll(2) instead of epoll(7).
//!
//! Where nearly all sockets are ready each time, epoll costs more than scanning all of them: each arrival puts its socket on the ready
//! list, and epoll checks the socket once more to see that nothing else has arrived. So clients that are ready at the same time as many
//! others are polled directly, until few of them are ready. Where nearly all were ready, even poll(2) costs more than reading from all of
//! them.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rdmux_acm::ClientId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::client::Client;
use super::table::Table;
use crate::poller::{Poller, Ready, Token};

/// Number of clients that are ready at the same time from which on they count as many.
const MANY: usize = 16;
/// The maximum number of directly polled clients.
const MOST: usize = 256;
/// Few are ready if less than one in this many is, and nearly all if less than one in this many is not.
const FEW: usize = 4;
/// Number of consecutive times that few clients were ready after which all return to epoll.
pub(super) const OFTEN: u32 = 16;

/// The clients that are polled directly.
#[derive(Debug, Default)]
pub(super) struct Direct {
    ids: Vec<ClientId>,
    /// Number of these clients that were ready since the last wait.
    came: usize,
    /// Number of consecutive times that few of them were ready.
    quiet: u32,
}

impl Direct {
    /// Waits until a source of the poller or one of these clients is ready.
    ///
    /// # Errors
    /// Those of poll(2) and epoll_wait(2).
    pub(super) fn wait(
        &mut self,
        all: &mut Table<Client>,
        poller: &Poller,
        timeout: Option<Duration>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let came = std::mem::take(&mut self.came);
        self.ids.retain(|id| all.get(*id).is_some());
        self.note(came, all, poller);
        if self.ids.is_empty() {
            poller.wait(timeout, ready)?;
        } else if self.ids.len().saturating_sub(came) * FEW < self.ids.len() {
            poller.wait(Some(Duration::ZERO), ready)?;
            ready.extend(self.ids.iter().map(|id| readable(*id)));
        } else {
            self.look(all, poller, timeout, ready)?;
        }
        self.add_all(all, poller, ready);
        Ok(())
    }

    /// Counts a client that was ready.
    pub(super) fn came(&mut self, client: &Client) {
        self.came += usize::from(client.is_direct());
    }

    fn look(
        &mut self,
        all: &mut Table<Client>,
        poller: &Poller,
        timeout: Option<Duration>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let clients = self.ids.iter().filter_map(|id| all.get(*id)).map(Client::poll_fd);
        let others = PollFd::from_borrowed_fd(poller.as_fd(), PollFlags::IN);
        let mut fds: Vec<PollFd<'_>> = clients.chain([others]).collect();
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let others = fds.pop().is_some_and(|fd| !fd.revents().is_empty());
        let mut came: Vec<Ready> = self.ids.iter().zip(&fds).filter_map(of_client).collect();
        ready.clear();
        if others {
            poller.wait(Some(Duration::ZERO), ready)?;
        }
        ready.append(&mut came);
        Ok(())
    }

    /// Records how many of them were ready.
    fn note(&mut self, count: usize, all: &mut Table<Client>, poller: &Poller) {
        if self.ids.is_empty() {
            return;
        }
        self.quiet = if count * FEW < self.ids.len() { self.quiet + 1 } else { 0 };
        if self.quiet < OFTEN {
            return;
        }
        self.quiet = 0;
        self.ids.retain(|id| {
            let client = all.get_mut(*id);
            client.is_some_and(|c| !c.set_direct(false, Token::Client(id.0.into()), poller))
        });
    }

    /// Starts to poll the ready clients directly, if they are many.
    fn add_all(&mut self, all: &mut Table<Client>, poller: &Poller, ready: &[Ready]) {
        let of_clients = ready.iter().filter_map(|event| match event.token {
            Token::Client(id) => Some(ClientId(u32::try_from(id).unwrap_or(u32::MAX))),
            _ => None,
        });
        if of_clients.clone().count() < MANY {
            return;
        }
        for id in of_clients {
            let client = all.get_mut(id).filter(|client| !client.is_direct());
            if self.ids.len() < MOST
                && let Some(client) = client
                && client.set_direct(true, Token::Client(id.0.into()), poller)
            {
                self.ids.push(id);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Returns readiness for a client that may have input.
fn readable(id: ClientId) -> Ready {
    Ready { token: Token::Client(id.0.into()), readable: true, writable: false, gone: false }
}

/// Returns the readiness of a client, if it is ready.
fn of_client((id, fd): (&ClientId, &PollFd<'_>)) -> Option<Ready> {
    let events = fd.revents();
    let gone = events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
    (!events.is_empty()).then(|| Ready {
        token: Token::Client(id.0.into()),
        readable: gone || events.contains(PollFlags::IN),
        writable: events.contains(PollFlags::OUT),
        gone,
    })
}
