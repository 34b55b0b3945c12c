//! The clients of a bridge: limited in number, with a share for each user. They end with the bridge.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use parking_lot::Mutex;
use rdmux_runtime::{Share, Shares};
use rustix::net::{Shutdown, shutdown};

/// The clients of a bridge.
#[derive(Debug)]
pub(super) struct Clients {
    all: Mutex<All>,
    most: usize,
    shares: Shares,
}

/// The clients, and when they were last in use.
#[derive(Debug)]
struct All {
    /// The clients, by numbers that are not reused.
    clients: HashMap<Place, Client>,
    next: u64,
    /// Whether a client ever greeted.
    served: bool,
    /// Time when the last client that had greeted left.
    left: Instant,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    has_greeted: bool,
    _share: Share,
}

/// The number of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place(u64);

impl Clients {
    /// Makes the table, for at most this many clients.
    pub(super) fn new(most: usize) -> Self {
        Self::of(most, Shares::new(most))
    }

    fn of(most: usize, shares: Shares) -> Self {
        let all = All { clients: HashMap::new(), next: 0, served: false, left: Instant::now() };
        Self { all: Mutex::new(all), most, shares }
    }

    /// Adds a client of this user. None if there are too many, or there is no descriptor left.
    pub(super) fn take(&self, uid: u32, socket: &OwnedFd) -> Option<Place> {
        let mut all = self.all.lock();
        if all.clients.len() >= self.most {
            return None;
        }
        let share = self.shares.take(uid, 1).ok()?;
        let socket = socket.try_clone().ok()?;
        let place = Place(all.next);
        all.next += 1;
        all.clients.insert(place, Client { socket, has_greeted: false, _share: share });
        Some(place)
    }

    /// Records that a client has greeted, and may use the bridge.
    pub(super) fn greeted(&self, place: Place) {
        let mut all = self.all.lock();
        all.served = true;
        if let Some(client) = all.clients.get_mut(&place) {
            client.has_greeted = true;
        }
    }

    /// Removes a client. Returns its socket, because closing it may block on descriptors in unreceived
    /// messages.
    #[must_use]
    pub(super) fn leave(&self, place: Place) -> Option<OwnedFd> {
        let mut all = self.all.lock();
        let client = all.clients.remove(&place)?;
        if client.has_greeted {
            all.left = Instant::now();
        }
        Some(client.socket)
    }

    /// Returns since when there has been no client that has greeted.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let all = self.all.lock();
        let is_idle = all.clients.values().all(|client| !client.has_greeted);
        is_idle.then_some(all.left)
    }

    /// Returns whether a client ever greeted.
    pub(super) fn has_served(&self) -> bool {
        self.all.lock().served
    }

    /// Shuts down all connections, which the clients see.
    pub(super) fn end(&self) {
        for client in self.all.lock().clients.values() {
            // It may have ended by itself.
            let _ = shutdown(&client.socket, Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rdmux_runtime::socket;

    use super::*;

    #[test]
    fn bridge_clients_are_limited_and_disconnected_when_the_bridge_ends() {
        let clients = Clients::new(2);
        let (ours, theirs) = socket::pair().unwrap();
        let places = [clients.take(0, &ours).unwrap(), clients.take(0, &ours).unwrap()];
        assert_eq!(clients.take(0, &ours), None);
        assert!(clients.leave(places[0]).is_some());
        let again = clients.take(0, &ours).unwrap();
        assert!(!places.contains(&again));
        clients.end();
        let mut buf = [0; 1];
        let closed = socket::recv_bytes(theirs.as_fd(), &mut buf, &mut Vec::new());
        assert!(matches!(closed, Err(socket::MessageError::Closed)), "{closed:?}");
        for place in [places[1], again] {
            assert!(clients.leave(place).is_some());
        }
        assert!(clients.all.lock().clients.is_empty());
    }

    #[test]
    fn bridge_clients_of_a_user_are_limited_to_its_share_and_the_owner_gets_the_rest() {
        let clients = Clients::of(16, Shares::of(1000, 16));
        let (socket, _peer) = socket::pair().unwrap();
        let connect = |uid| clients.take(uid, &socket);
        let first: Vec<_> = (0..20).map_while(|_| connect(1)).collect();
        assert_eq!(first.len(), 8);
        let second: Vec<_> = (0..20).map_while(|_| connect(2)).collect();
        assert_eq!(second.len(), 4);
        assert_eq!(connect(3), None);
        connect(0).unwrap();
        connect(1000).unwrap();
        for place in first {
            clients.leave(place).unwrap();
        }
        assert!(connect(1).is_some() && connect(3).is_some());
        while connect(1000).is_some() {}
        assert_eq!(clients.all.lock().clients.len(), 16);
    }

    #[test]
    fn bridge_client_without_greeting_does_not_prevent_idle_exit() {
        let clients = Clients::new(2);
        let (socket, _peer) = socket::pair().unwrap();
        let began = clients.idle_since().unwrap();
        let silent = clients.take(0, &socket).unwrap();
        assert_eq!((clients.idle_since(), clients.has_served()), (Some(began), false));
        let client = clients.take(0, &socket).unwrap();
        clients.greeted(client);
        assert_eq!((clients.idle_since(), clients.has_served()), (None, true));
        clients.leave(client).unwrap();
        let since = clients.idle_since().unwrap();
        assert!(since >= began && clients.has_served());
        clients.leave(silent).unwrap();
        assert_eq!(clients.idle_since(), Some(since));
    }
}
