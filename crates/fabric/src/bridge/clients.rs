//! Who uses a bridge: so many, and all of them end with it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};

/// The clients of a bridge.
#[derive(Debug)]
pub(super) struct Clients {
    all: Mutex<All>,
    most: usize,
}

#[derive(Debug, Default)]
struct All {
    /// Their sockets, by a number that is not used again.
    sockets: HashMap<Place, OwnedFd>,
    next: u64,
}

/// One of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place(u64);

impl Clients {
    /// At most so many.
    pub(super) fn new(most: usize) -> Self {
        Self { all: Mutex::default(), most }
    }

    /// A client has come; none if it is one too many, or there is no descriptor left.
    pub(super) fn take(&self, socket: &OwnedFd) -> Option<Place> {
        let mut all = self.all.lock();
        if all.sockets.len() >= self.most {
            return None;
        }
        let socket = socket.try_clone().ok()?;
        let place = Place(all.next);
        all.next += 1;
        all.sockets.insert(place, socket);
        Some(place)
    }

    /// A client has gone. Its socket: closing it may wait for what the client has sent and nobody received.
    #[must_use]
    pub(super) fn leave(&self, place: Place) -> Option<OwnedFd> {
        self.all.lock().sockets.remove(&place)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.lock().sockets.is_empty()
    }

    /// Ends all connections: each client sees the end of its own.
    pub(super) fn end(&self) {
        for socket in self.all.lock().sockets.values() {
            // It may have ended by itself.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rdmux_runtime::socket;

    use super::*;

    #[test]
    fn clients_are_bounded_and_end_with_the_bridge() {
        let clients = Clients::new(2);
        let (ours, theirs) = socket::pair().unwrap();
        let places = [clients.take(&ours).unwrap(), clients.take(&ours).unwrap()];
        assert!(!clients.is_empty());
        assert_eq!(clients.take(&ours), None);
        assert!(clients.leave(places[0]).is_some());
        let again = clients.take(&ours).unwrap();
        assert!(!places.contains(&again));
        clients.end();
        let mut buf = [0; 1];
        let closed = socket::recv_bytes(theirs.as_fd(), &mut buf, &mut Vec::new());
        assert!(matches!(closed, Err(socket::MessageError::Closed)), "{closed:?}");
        for place in [places[1], again] {
            assert!(clients.leave(place).is_some());
        }
        assert!(clients.is_empty());
    }
}
