//! Connections from other machines that have not shown that they know the secret.
//!
//! Anything that reaches the port can open these. So they have places of their own, and never take one of a bridge: when all are taken, the
//! next connection replaces an earlier one of the address that has the most.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of these connections: all programs of a machine may connect at once, when a fabric comes up.
const MOST: usize = super::server::MAX_CONNECTIONS;

/// The connections, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Unproved(Arc<Mutex<VecDeque<Connection>>>);

/// A connection, after what identifies its other side.
type Connection = (IpAddr, Arc<TcpStream>);

/// A connection until it has shown the secret. Dropping it frees its place.
#[derive(Debug)]
pub(super) struct Pending {
    all: Unproved,
    tcp: Arc<TcpStream>,
}

impl Unproved {
    /// Adds a connection from this address. Returns whether an earlier one was ended for it.
    pub(super) fn add(&self, from: IpAddr, tcp: TcpStream) -> (Pending, bool) {
        let (from, tcp) = (network(from), Arc::new(tcp));
        let mut all = self.0.lock();
        let is_full = all.len() >= MOST;
        if is_full {
            let mut counts = BTreeMap::new();
            for (from, _) in all.iter() {
                *counts.entry(*from).or_insert(0) += 1;
            }
            let largest = counts.into_iter().max_by_key(|(_, count)| *count);
            let first = all.iter().position(|(from, _)| largest.is_some_and(|(l, _)| l == *from));
            if let Some((_, tcp)) = first.and_then(|first| all.remove(first)) {
                // It may have ended by itself.
                let _ = tcp.shutdown(Shutdown::Both);
            }
        }
        all.push_back((from, Arc::clone(&tcp)));
        drop(all);
        (Pending { all: self.clone(), tcp }, is_full)
    }
}

impl Pending {
    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Returns the connection, which has shown the secret, and frees its place. None if it is still used elsewhere.
    pub(super) fn proved(self) -> Option<TcpStream> {
        let tcp = Arc::clone(&self.tcp);
        drop(self);
        Arc::into_inner(tcp)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.all.0.lock().retain(|(_, tcp)| !Arc::ptr_eq(tcp, &self.tcp));
    }
}

/// Returns what identifies the other side: an IPv4 address, or an IPv6 network of 64 bits, all addresses of which one machine may have.
fn network(of: IpAddr) -> IpAddr {
    match of.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn new_connection_replaces_one_of_the_address_that_has_most() {
        rdmux_runtime::start::raise_descriptor_limit();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || {
            let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (theirs, listener.accept().unwrap().0)
        };
        let all = Unproved::default();
        let add = |from: &str| {
            let (theirs, ours) = connect();
            let (pending, replaced) = all.add(from.parse().unwrap(), ours);
            (theirs, pending, replaced)
        };
        let other = add("192.0.2.9");
        // One network, in different addresses.
        let most: Vec<_> = (1..MOST).map(|n| add(&format!("2001:db8::{n:x}"))).collect();
        assert!(!other.2 && most.iter().all(|(.., replaced)| !replaced));
        let again = add("192.0.2.9");
        assert!(again.2);
        let mut all_most = most.into_iter();
        let (mut theirs, ended, _) = all_most.next().unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the first of them");
        drop(ended);
        assert_eq!(all.0.lock().len(), MOST);
        let tcp = other.1.proved().unwrap();
        assert_eq!(tcp.peer_addr().unwrap(), other.0.local_addr().unwrap());
        assert_eq!(all.0.lock().len(), MOST - 1);
        drop((all_most, again));
        assert!(all.0.lock().is_empty());
    }

    #[test]
    fn networks_of_addresses() {
        let same = |a: &str, b: &str| network(a.parse().unwrap()) == network(b.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::ffff:1") && !same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1") && !same("192.0.2.1", "192.0.2.2"));
    }
}
