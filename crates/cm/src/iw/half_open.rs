//! Half-open connections, whose peers have not sent their request yet: their number per address and source, and the choice of
//! the one to reset when there are too many.
//!
//! A silent peer costs a descriptor until its deadline. Each listener has a limit of such connections, and so has the
//! host. When a limit is reached, the oldest connection of the source with the most connections is reset. So a source
//! that opens many connections displaces only its own.

use alloc::collections::{BTreeMap, VecDeque};
use core::cmp::Reverse;
use core::net::{IpAddr, SocketAddr};

use super::{StreamId, listener_of};

/// The source of connections: an IPv4 address, or the network part of an IPv6 address, because a peer that has one address
/// of a network can use all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Source(u64);

impl Source {
    fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self(u32::from(ip).into()),
            // Global and local networks begin with other bits than 32 zeros.
            IpAddr::V6(ip) => Self((u128::from(ip) >> 64) as u64),
        }
    }
}

/// Half-open connections of one listener, by source, oldest first.
#[derive(Debug, Default)]
struct Listener {
    sources: BTreeMap<Source, VecDeque<StreamId>>,
    len: usize,
}

impl Listener {
    /// Returns the oldest connection of the source with the most; of several such sources the oldest of all.
    fn victim(&self) -> Option<StreamId> {
        let oldest = |all: &VecDeque<StreamId>| Some((all.len(), Reverse(*all.front()?)));
        self.sources.values().filter_map(oldest).max().map(|(_, Reverse(stream))| stream)
    }
}

/// The half-open connections, by the address that the peer connected to.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    listeners: BTreeMap<SocketAddr, Listener>,
    len: usize,
}

impl HalfOpen {
    pub(super) fn insert(&mut self, (local, remote): (SocketAddr, SocketAddr), stream: StreamId) {
        let listener = self.listeners.entry(listener_of(local)).or_default();
        listener.sources.entry(Source::of(remote.ip())).or_default().push_back(stream);
        listener.len += 1;
        self.len += 1;
    }

    /// Removes a connection that is no longer half-open. Does nothing if it was not.
    pub(super) fn remove(&mut self, (local, remote): (SocketAddr, SocketAddr), stream: StreamId) {
        let at = listener_of(local);
        let Some(listener) = self.listeners.get_mut(&at) else { return };
        let source = Source::of(remote.ip());
        let Some(all) = listener.sources.get_mut(&source) else { return };
        let Some(nth) = all.iter().position(|other| *other == stream) else { return };
        all.remove(nth);
        if all.is_empty() {
            listener.sources.remove(&source);
        }
        listener.len -= 1;
        if listener.len == 0 {
            self.listeners.remove(&at);
        }
        self.len -= 1;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of half-open connections at an address.
    pub(super) fn len_at(&self, local: SocketAddr) -> usize {
        self.listeners.get(&listener_of(local)).map_or(0, |listener| listener.len)
    }

    /// Returns the connection at an address that would be reset first.
    pub(super) fn victim_at(&self, local: SocketAddr) -> Option<StreamId> {
        self.listeners.get(&listener_of(local))?.victim()
    }

    /// Returns the connection that would be reset first at the address with the most.
    pub(super) fn victim(&self) -> Option<StreamId> {
        self.listeners.values().max_by_key(|listener| listener.len)?.victim()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn ends(port: u16, source: &str) -> (SocketAddr, SocketAddr) {
        (([10, 0, 0, 1], port).into(), SocketAddr::new(source.parse().unwrap(), 9))
    }

    #[test]
    fn shed_half_open_stream_is_the_oldest_of_the_source_with_the_most() {
        let mut all = HalfOpen::default();
        let sources = ["10.0.0.2", "10.0.0.3", "10.0.0.3", "fd00::1", "fd00::2", "fd00::3"];
        for (source, number) in sources.iter().zip(1..) {
            all.insert(ends(1, source), StreamId(number));
        }
        all.insert(ends(2, "10.0.0.2"), StreamId(7));
        assert_eq!(
            (all.len(), all.len_at(ends(1, "::").0), all.len_at(ends(3, "::").0)),
            (7, 6, 0)
        );
        let mut gone = Vec::new();
        while let Some(stream) = all.victim() {
            gone.push(stream.0);
            let port = if stream.0 == 7 { 2 } else { 1 };
            let nth = usize::try_from(stream.0).unwrap() - 1;
            let source = sources.get(nth).unwrap_or(&"10.0.0.2");
            all.remove(ends(port, source), stream);
            all.remove(ends(port, source), stream);
        }
        // One address of an IPv6 network is as good as another.
        assert_eq!(gone[..4], [4, 2, 5, 1]);
        assert_eq!((gone.len(), all.len(), all.listeners.len()), (7, 0, 0));
    }

    #[test]
    fn listener_sheds_its_own_oldest_half_open_stream() {
        let mut all = HalfOpen::default();
        for number in 1..=3 {
            all.insert(ends(1, "10.0.0.2"), StreamId(number));
        }
        all.insert(ends(2, "10.0.0.3"), StreamId(4));
        assert_eq!(all.victim_at(ends(2, "::").0), Some(StreamId(4)));
        assert_eq!(all.victim_at(ends(1, "::").0), Some(StreamId(1)));
        assert_eq!(all.victim_at(ends(3, "::").0), None);
    }
}
