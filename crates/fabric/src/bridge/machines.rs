//! The machines whose hosts attach through bridges, as known in the fabric's process.
//!
//! A bridge names its machine with each connection, by a random number that nothing else knows. The thread that relays the connection
//! passes that to the fabric's server in a message before the client's own ones ([`Via`]). The server accepts it only from its own process,
//! so no client can claim another origin.

use std::collections::HashMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdmux_runtime::socket::{self, MessageError};
use serde::{Deserialize, Serialize};

/// Maximum number of machines.
const MOST: usize = super::server::MAX_CONNECTIONS;

/// A machine on the other side of bridges.
#[derive(Debug)]
pub(crate) struct Machine {
    number: u64,
    /// The addresses of the two machines, as they see each other.
    far: IpAddr,
    near: IpAddr,
    /// The number of the last update of its hosts' route tables that was sent.
    sequence: AtomicU64,
    /// Its connections; none once its bridge is gone.
    connections: Mutex<Option<Vec<Weak<TcpStream>>>>,
}

impl Machine {
    /// Returns the machine's address.
    pub(crate) fn far(&self) -> IpAddr {
        self.far
    }

    /// Returns the address by which it reaches this machine.
    pub(crate) fn near(&self) -> IpAddr {
        self.near
    }

    /// Returns the number of the last route table update that was sent to it. Messages sent after this was read must not be shown
    /// there before that update.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Records that an update was sent.
    pub(crate) fn has_updates(&self, sequence: u64) {
        self.sequence.store(sequence, Ordering::Release);
    }

    /// Adds a connection of its bridge. Returns whether the bridge is still there.
    pub(super) fn add(&self, tcp: &Arc<TcpStream>) -> bool {
        let mut connections = self.connections.lock();
        let Some(all) = connections.as_mut() else { return false };
        all.retain(|tcp| tcp.strong_count() > 0);
        all.push(Arc::downgrade(tcp));
        true
    }

    /// Ends all connections, because its bridge is gone.
    pub(super) fn end(&self) {
        let all = self.connections.lock().take().unwrap_or_default();
        for tcp in all.iter().filter_map(Weak::upgrade) {
            // It may have ended by itself.
            let _ = tcp.shutdown(Shutdown::Both);
        }
    }

    fn new(number: u64, far: IpAddr, near: IpAddr) -> Arc<Self> {
        let (sequence, connections) = (AtomicU64::new(0), Mutex::new(Some(Vec::new())));
        Arc::new(Self { number, far, near, sequence, connections })
    }

    /// Returns whether both are the same machine.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

/// All machines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machines(Arc<Mutex<All>>);

/// The machines by their random numbers.
#[derive(Debug, Default)]
struct All {
    known: HashMap<[u8; 16], Weak<Machine>>,
    last: u64,
}

impl Machines {
    /// Returns the machine of a connection. Returns none if there are too many.
    pub(super) fn of(&self, id: [u8; 16], far: IpAddr, near: IpAddr) -> Option<Arc<Machine>> {
        let mut all = self.0.lock();
        if let Some(known) = all.known.get(&id).and_then(Weak::upgrade) {
            return Some(known);
        }
        all.known.retain(|_, machine| machine.strong_count() > 0);
        if all.known.len() >= MOST {
            return None;
        }
        all.last += 1;
        let (far, near) = (far.to_canonical(), near.to_canonical());
        let machine = Machine::new(all.last, far, near);
        all.known.insert(id, Arc::downgrade(&machine));
        Some(machine)
    }

    /// Returns some machine.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Arc<Machine> {
        let ip = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        Machine::new(1, ip, ip)
    }

    /// Returns the machine with this number.
    fn numbered(&self, number: u64) -> Option<Arc<Machine>> {
        let all = self.0.lock();
        let mut all = all.known.values().filter_map(Weak::upgrade);
        all.find(|machine| machine.number == number)
    }
}

/// The first message of a bridge on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Preface {
    /// The machine's random number.
    pub(super) machine: [u8; 16],
    /// The number of the connection, unique for the machine.
    pub(super) connection: u64,
}

/// The origin of a connection, as reported to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Via {
    machine: u64,
    connection: u64,
}

/// The first byte of a [`Via`]. Greetings never start with it, because their version is not zero.
const VIA: u8 = 0;

impl Via {
    pub(super) const fn new(machine: &Machine, connection: u64) -> Self {
        Self { machine: machine.number, connection }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, MessageError> {
        let mut message = vec![VIA];
        socket::append(self, &mut message)?;
        Ok(message)
    }

    /// Decodes a message, if it is a [`Via`]. Returns the machine and the number of the connection.
    pub(crate) fn decode(message: &[u8], machines: &Machines) -> Option<(Arc<Machine>, u64)> {
        let via: Self = socket::decode(message.strip_prefix(&[VIA])?).ok()?;
        Some((machines.numbered(via.machine)?, via.connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_id_is_valid_while_the_machine_is_connected_and_machines_are_limited() {
        let machines = Machines::default();
        let [far, near] = ["::ffff:192.0.2.7", "192.0.2.1"].map(|ip| ip.parse().unwrap());
        let a = machines.of([1; 16], far, near).unwrap();
        assert_eq!((a.far().to_string(), a.near()), ("192.0.2.7".to_owned(), near));
        assert!(machines.of([1; 16], near, near).unwrap().is(&a));
        let b = machines.of([2; 16], far, near).unwrap();
        assert!(!b.is(&a));
        let message = Via::new(&b, 9).encode().unwrap();
        let (found, connection) = Via::decode(&message, &machines).unwrap();
        assert!(found.is(&b) && connection == 9);
        drop((b, found));
        assert!(Via::decode(&message, &machines).is_none());
        assert!(!machines.of([2; 16], far, near).unwrap().is(&a), "a new one");
        let greeting = crate::proto::Greeting::new(crate::proto::Role::Admin);
        let greeting = postcard::to_stdvec(&greeting).unwrap();
        assert!(Via::decode(&greeting, &machines).is_none());
        let all: Vec<_> = (3..)
            .map_while(|n: u32| {
                machines.of([n.to_ne_bytes(); 4].concat().try_into().unwrap(), far, near)
            })
            .collect();
        assert_eq!(all.len(), MOST - 1);
    }
}
