//! Address resolution: ARP for IPv4, neighbour discovery for IPv6, in datagrams to the broadcast group (RFC 4391 9).
//!
//! ```text
//!   resolve --> Asking -- request to all, again after 200, 400, 800 ms -- 3 s --> resolved: not found
//!                 |
//!                 |  answer                        a request to this host names its sender
//!                 v                                           |
//!               Known  <--------------------------------------+
//!                 |  resolve in the second half of its life: request to all, meanwhile answered from the entry
//!                 v
//!               forgotten after 60 s
//! ```
//!
//! Only answers to this host's requests count, and requests for its addresses: the claims of strangers about each other are ignored.
//! IPv6 solicitations go to the broadcast group, too, which every host receives, although IP over InfiniBand has a group
//! for each address (RFC 4391 5 allows it where there is none).

use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_transport::timers::{Deadline, Timers};
use rdmux_wire::ipoib::arp::{Arp, Operation};
use rdmux_wire::ipoib::nd::{ALL_NODES, Kind, Neighbour, solicited_node};
use rdmux_wire::ipoib::{LinkAddress, Resolution};
use rdmux_wire::{Gid, Qpn, WireError};

/// How long an entry is valid without confirmation.
pub const LIFE: Duration = Duration::from_secs(60);
/// Pauses after requests. The last one is how long the last request waits.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
];
/// The most known addresses that are not being resolved. Beyond it the oldest is evicted.
pub const MAX_KNOWN: usize = 4096;
/// The most addresses that are being resolved. Beyond it resolution fails.
pub const MAX_ASKED: usize = 65536;

/// The operations that the driver does for the machine.
pub trait Link {
    /// Sends a datagram from the interface's queue pair.
    fn send(&mut self, to: To<'_>, datagram: &Resolution);

    /// Reports the result for an address that was being resolved: its link address, or none.
    fn resolved(&mut self, ip: IpAddr, found: Option<LinkAddress>);

    /// Returns this host's link address, if `ip` is one of its own that the sender may know of.
    fn own(&self, ip: IpAddr, asking: &Source) -> Option<LinkAddress>;
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To<'a> {
    /// To the broadcast group.
    All,
    /// Back to a sender.
    Sender(&'a Source),
}

/// The source of a datagram: the path back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The address vector.
    pub av: AddressVector,
    /// The queue pair.
    pub qpn: Qpn,
    /// Whether the sender is on this machine, as far as the driver can tell.
    pub is_near: bool,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests sent.
    pub asked: u64,
    /// Requests of others that were answered.
    pub answered: u64,
    /// Addresses that were not found.
    pub failed: u64,
    /// Datagrams that are not of this protocol, or have an invalid field.
    pub malformed: u64,
    /// Answers to no request of this host.
    pub unsolicited: u64,
    /// Addresses that moved to another port.
    pub moved: u64,
}

/// The cache of other hosts' addresses.
#[derive(Debug, Default)]
pub struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    /// How many of these are being resolved.
    asked: usize,
    timers: Timers<IpAddr>,
    counters: Counters,
}

#[derive(Debug)]
struct Entry {
    found: Option<Found>,
    /// While it is being resolved: the source address of the requests, and how many were sent.
    asking: Option<(IpAddr, LinkAddress, usize)>,
    /// The deadline of the next request, or of the entry.
    deadline: Deadline,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    link: LinkAddress,
    until: Time,
}

impl Neighbours {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the link address of `ip`, if it is known. Otherwise [`Link::resolved`] follows, unless the address is forgotten before
    /// ([`forget`](Self::forget)). Requests have the source address `from`, whose link address is `own`.
    pub fn resolve(
        &mut self,
        now: Time,
        ip: IpAddr,
        (from, own): (IpAddr, LinkAddress),
        link: &mut impl Link,
    ) -> Option<LinkAddress> {
        let before = self.entries.get(&ip);
        let found = before.and_then(|entry| entry.found).filter(|found| now < found.until);
        let is_fresh = found.is_some_and(|found| now.after(LIFE / 2) < found.until);
        let is_asked_for = before.is_some_and(|entry| entry.asking.is_some());
        if is_fresh || is_asked_for {
            return found.map(|found| found.link);
        }
        if self.asked >= MAX_ASKED {
            if found.is_none() {
                self.counters.failed += 1;
                link.resolved(ip, None);
            }
            return found.map(|found| found.link);
        }
        let entry = self.entries.entry(ip).or_insert(Entry {
            found: None,
            asking: None,
            deadline: Deadline::default(),
        });
        entry.asking = Some((from, own, 0));
        self.asked += 1;
        self.ask(now, ip, link);
        found.map(|found| found.link)
    }

    /// Handles a datagram to the interface's queue pair, or to the broadcast group.
    ///
    /// # Errors
    /// The fault of the datagram, which is counted.
    pub fn handle(
        &mut self,
        now: Time,
        source: &Source,
        bytes: &[u8],
        link: &mut impl Link,
    ) -> Result<(), WireError> {
        match Resolution::parse(bytes) {
            Ok(Resolution::Arp(arp)) => self.handle_arp(now, source, &arp, link),
            Ok(Resolution::Neighbour(neighbour)) => {
                self.handle_neighbour(now, source, &neighbour, link);
            }
            Err(error) => {
                self.counters.malformed += 1;
                return Err(error);
            }
        }
        Ok(())
    }

    fn handle_arp(&mut self, now: Time, source: &Source, arp: &Arp, link: &mut impl Link) {
        let (sender, target) = (IpAddr::V4(arp.sender_ip), IpAddr::V4(arp.target_ip));
        let Some(own) = link.own(target, source) else { return };
        if arp.operation == Operation::Reply {
            return self.answered(now, sender, arp.sender, link);
        }
        let answer = Arp {
            operation: Operation::Reply,
            sender: own,
            sender_ip: arp.target_ip,
            target: arp.sender,
            target_ip: arp.sender_ip,
        };
        self.counters.answered += 1;
        link.send(To::Sender(source), &Resolution::Arp(answer));
        self.learn(now, source, sender, arp.sender, link);
    }

    fn handle_neighbour(
        &mut self,
        now: Time,
        source: &Source,
        message: &Neighbour,
        link: &mut impl Link,
    ) {
        let target = IpAddr::V6(message.target);
        match (message.kind, message.link) {
            (Kind::Advertisement { .. }, Some(found)) => self.answered(now, target, found, link),
            (Kind::Solicitation, asking)
                if asking.is_some()
                    || !message.src.is_unspecified() && !message.dst.is_multicast() =>
            {
                let Some(own) = link.own(target, source) else { return };
                let answer = Neighbour {
                    src: message.target,
                    dst: message.src,
                    kind: Kind::Advertisement { solicited: true },
                    target: message.target,
                    link: Some(own),
                };
                self.counters.answered += 1;
                link.send(To::Sender(source), &Resolution::Neighbour(answer));
                // One to a single host may lack the sender's link address, which that host then has already.
                if let Some(asking) = asking {
                    self.learn(now, source, message.src.into(), asking, link);
                }
            }
            (Kind::Solicitation, None) if message.src.is_unspecified() => {
                // All machines receive the answer, so it must not reveal an address that only this machine's hosts may know of.
                let all = Source { is_near: false, ..*source };
                let Some(own) = link.own(target, &all) else { return };
                let answer = Neighbour {
                    src: message.target,
                    dst: ALL_NODES,
                    kind: Kind::Advertisement { solicited: false },
                    target: message.target,
                    link: Some(own),
                };
                self.counters.answered += 1;
                link.send(To::All, &Resolution::Neighbour(answer));
            }
            _ => self.counters.malformed += 1,
        }
    }

    /// Handles an answer, if this host has asked for the address.
    fn answered(&mut self, now: Time, ip: IpAddr, found: LinkAddress, link: &mut impl Link) {
        match self.entries.get(&ip) {
            Some(entry) if entry.asking.is_some() => self.know(now, ip, found, link),
            _ => self.counters.unsolicited += 1,
        }
    }

    /// Learns the link address of a host that asks for one of this host's addresses: it will soon be needed.
    fn learn(
        &mut self,
        now: Time,
        source: &Source,
        ip: IpAddr,
        found: LinkAddress,
        link: &mut impl Link,
    ) {
        let is_host = !ip.is_unspecified() && !ip.is_multicast() && ip != Ipv4Addr::BROADCAST;
        if !is_host || found.qpn != source.qpn || link.own(ip, source).is_some() {
            self.counters.malformed += u64::from(found.qpn != source.qpn);
            return;
        }
        self.know(now, ip, found, link);
    }

    fn know(&mut self, now: Time, ip: IpAddr, found: LinkAddress, link: &mut impl Link) {
        let until = now.after(LIFE);
        let entry = self.entries.entry(ip).or_insert(Entry {
            found: None,
            asking: None,
            deadline: Deadline::default(),
        });
        if entry.found.is_some_and(|before| before.link != found) {
            self.counters.moved += 1;
        }
        entry.found = Some(Found { link: found, until });
        let was_asked_for = entry.asking.take().is_some();
        self.asked -= usize::from(was_asked_for);
        self.timers.set(&mut entry.deadline, ip, until);
        if was_asked_for {
            link.resolved(ip, Some(found));
        }
        self.make_room();
    }

    /// Sends the next request, or gives up.
    fn ask(&mut self, now: Time, ip: IpAddr, link: &mut impl Link) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        let Some((from, own, asked)) = &mut entry.asking else { return };
        let Some(pause) = PAUSES.get(*asked) else { return self.give_up(now, ip, link) };
        *asked += 1;
        let question = question(ip, *from, *own);
        self.timers.set(&mut entry.deadline, ip, now.after(*pause));
        self.counters.asked += 1;
        if let Some(question) = question {
            link.send(To::All, &question);
        }
    }

    /// Reports that an address was not found, or no longer exists.
    fn give_up(&mut self, now: Time, ip: IpAddr, link: &mut impl Link) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        self.asked -= usize::from(entry.asking.take().is_some());
        self.counters.failed += 1;
        match entry.found.filter(|found| now < found.until) {
            Some(found) => self.timers.set(&mut entry.deadline, ip, found.until),
            None => self.forget(ip),
        }
        link.resolved(ip, None);
        self.make_room();
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Repeats requests, and removes expired entries.
    pub fn handle_timeout(&mut self, now: Time, link: &mut impl Link) {
        while let Some(ip) = self.timers.pop_due(now) {
            let Some(entry) = self.entries.get_mut(&ip) else { continue };
            entry.deadline = Deadline::default();
            if entry.asking.is_some() {
                self.ask(now, ip, link);
            } else {
                self.entries.remove(&ip);
            }
        }
    }

    /// Forgets an address, also if it is being resolved.
    pub fn forget(&mut self, ip: IpAddr) {
        if let Some(mut entry) = self.entries.remove(&ip) {
            self.timers.clear(&mut entry.deadline, ip);
            self.asked -= usize::from(entry.asking.is_some());
        }
    }

    /// Forgets every address. Clients that await one must call [`resolve`](Self::resolve) again.
    pub fn forget_all(&mut self) {
        *self = Self { counters: self.counters, ..Self::default() };
    }

    /// Returns the known addresses, for a list.
    pub fn known(&self) -> impl Iterator<Item = (IpAddr, LinkAddress)> + '_ {
        self.entries.iter().filter_map(|(ip, entry)| Some((*ip, entry.found?.link)))
    }

    /// Returns how many addresses are known or being resolved.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Evicts the entry that would expire next, if too many are known. Entries being resolved stay, because each has a waiter.
    fn make_room(&mut self) {
        while self.entries.len() - self.asked > MAX_KNOWN {
            let known = self.entries.iter().filter(|(_, entry)| entry.asking.is_none());
            match known.min_by_key(|(_, entry)| entry.deadline.at()).map(|(ip, _)| *ip) {
                Some(ip) => self.forget(ip),
                None => return,
            }
        }
    }
}

/// Returns the request for an address; none between an IPv4 and an IPv6 address.
fn question(ip: IpAddr, from: IpAddr, own: LinkAddress) -> Option<Resolution> {
    match (ip, from) {
        (IpAddr::V4(target_ip), IpAddr::V4(sender_ip)) => Some(Resolution::Arp(Arp {
            operation: Operation::Request,
            sender: own,
            sender_ip,
            target: LinkAddress::datagrams(Qpn::new(0), Gid::ZERO),
            target_ip,
        })),
        (IpAddr::V6(target), IpAddr::V6(src)) => Some(Resolution::Neighbour(Neighbour {
            src,
            dst: solicited_node(target),
            kind: Kind::Solicitation,
            target,
            link: Some(own),
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
