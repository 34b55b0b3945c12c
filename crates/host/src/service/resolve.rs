//! Resolves an address: the local address that leads to it, and whether a neighbour exists.
//!
//! RoCE has no resolution of its own: the route is the kernel's, found by connecting a UDP socket,
//! and the neighbour is found by the kernel's ARP or neighbour discovery.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use rdmux_cm::{IdHandle, Resolved, RouteQuery, Time};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::kind;

use super::core::Core;
use super::netlink::Neighbour;
use super::ports;

/// An unused port: a datagram to it makes the kernel resolve a neighbour (RFC 863).
const DISCARD: u16 = 9;
/// The first and the longest interval between checks of a neighbour that is being resolved.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(100);
/// Maximum number of outstanding lookups.
const MAX_PENDING: usize = 65536;

/// Lookups that wait for a neighbour.
#[derive(Debug, Default)]
pub(super) struct Resolver(BTreeMap<IdHandle, Pending>);

/// A neighbour that the kernel is resolving.
#[derive(Debug)]
struct Pending {
    dst: IpAddr,
    interface: u32,
    answer: Resolved,
    next: Time,
    interval: Duration,
    until: Time,
}

impl Resolver {
    /// Returns when a neighbour must be checked.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.0.values().map(|p| p.next).min()
    }
}

/// The result of the first step.
enum Step {
    Done(Resolved),
    /// The interface of the neighbour, and the answer if it resolves.
    Neighbour(u32, Resolved),
}

impl Core {
    /// Answers a query of the connection manager, now or later.
    pub(super) fn resolve(&mut self, id: IdHandle, query: &RouteQuery) {
        // An earlier query of the id gets no answer any more.
        self.cancel_resolve(id);
        match query.only.and_then(|only| kind::numbered(only.device)) {
            Some(kind) => ports::of(kind).find_peer(self, id, kind, query),
            None => self.choose_kind(id, query),
        }
    }

    /// Ends the id's lookup, if there is one.
    pub(super) fn cancel_resolve(&mut self, id: IdHandle) {
        self.resolver.0.remove(&id);
        self.forget_peer(id);
        self.kinds.forget(id);
    }

    /// Resolves a peer by the kernel's route, at once or when the neighbour is resolved.
    pub(super) fn find_peer_over_ip(&mut self, id: IdHandle, kind: DeviceKind, query: &RouteQuery) {
        match self.first_step(kind, query) {
            Ok(Step::Done(answer)) => self.resolved(id, Ok(answer)),
            Err(errno) => self.resolved(id, Err(errno)),
            Ok(Step::Neighbour(interface, answer)) => {
                let now = self.now();
                let pending = Pending {
                    dst: query.dst.ip(),
                    interface,
                    answer,
                    next: now,
                    interval: FIRST_LOOK,
                    until: now.after(query.timeout),
                };
                if self.resolver.0.len() >= MAX_PENDING {
                    return self.resolved(id, Err(libc::ENOBUFS));
                }
                self.resolver.0.insert(id, pending);
                self.poll_neighbours(now);
            }
        }
    }

    /// Passes a resolved peer, or an errno, to the connection manager.
    pub(super) fn resolved(&mut self, id: IdHandle, answer: Result<Resolved, i32>) {
        let now = self.now();
        match answer {
            Ok(answer) => self.manager.handle_resolved(now, id, answer, &mut self.outbox),
            Err(errno) => self.manager.handle_resolve_failed(now, id, errno, &mut self.outbox),
        }
    }

    fn first_step(&self, kind: DeviceKind, query: &RouteQuery) -> Result<Step, i32> {
        let dst = query.dst.ip();
        let from = |src| query.over_ip(src, kind as u32);
        if dst.is_multicast() {
            let src = self.source(query)?;
            return Ok(Step::Done(from(src)));
        }
        if self.addresses.find(dst).is_some() {
            let src = query.src_hint.unwrap_or(dst);
            return Ok(Step::Done(from(src)));
        }
        let src = self.source(query)?;
        let answer = from(src);
        let row = self.addresses.find(src).ok_or(libc::EADDRNOTAVAIL)?;
        if query.is_gid {
            return Ok(Step::Done(answer));
        }
        if row.interface.is_loopback() {
            return ports::of(kind).probe(self, src, dst).map(|()| Step::Done(answer));
        }
        let on_link = super::netlink::InterfaceAddress {
            ip: row.ip,
            prefix: row.prefix,
            interface: row.interface.index,
        }
        .is_on_link(dst);
        if !on_link || row.interface.has_no_neighbours() {
            // Behind a gateway: only connecting shows whether the peer exists.
            return Ok(Step::Done(answer));
        }
        poke(row.peer(src, 0), row.peer(dst, DISCARD));
        Ok(Step::Neighbour(row.interface.index, answer))
    }

    /// Returns the address that the kernel sends from.
    pub(super) fn source(&self, query: &RouteQuery) -> Result<IpAddr, i32> {
        let dst = query.dst;
        let wanted = query.src_hint.or_else(|| {
            // A virtual host has one address, regardless of the kernel's choice.
            let mut rows = self.addresses.rows().filter(|_| self.addresses.is_virtual());
            rows.next().map(|(_, row)| row.ip)
        });
        let any = wanted.unwrap_or(match dst {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
        if any.is_ipv4() != dst.is_ipv4() {
            return Err(libc::EAFNOSUPPORT);
        }
        let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EHOSTUNREACH);
        let bind = self.addresses.find(any).map_or(SocketAddr::new(any, 0), |row| row.peer(any, 0));
        let socket = UdpSocket::bind(bind).map_err(errno)?;
        // With its scope: a link-local address needs its interface.
        let mut to = dst;
        if to.port() == 0 {
            to.set_port(DISCARD);
        }
        // A loopback source cannot leave the machine: the kernel returns EINVAL.
        socket.connect(to).map_err(|e| match errno(e) {
            libc::EINVAL => libc::ENETUNREACH,
            other => other,
        })?;
        socket.local_addr().map(|a| a.ip()).map_err(errno)
    }

    /// Checks which neighbours are resolved.
    pub(super) fn poll_neighbours(&mut self, now: Time) {
        let due: Vec<IdHandle> =
            self.resolver.0.iter().filter(|(_, p)| p.next <= now).map(|(&id, _)| id).collect();
        for id in due {
            let Some(pending) = self.resolver.0.get_mut(&id) else { continue };
            let state = self.netlink.neighbour(pending.interface, pending.dst);
            let answer = match state {
                Ok(Neighbour::Known) => Ok(pending.answer),
                Ok(Neighbour::Failed) => Err(libc::EHOSTUNREACH),
                Err(e) => Err(e.raw_os_error().unwrap_or(libc::EHOSTUNREACH)),
                Ok(Neighbour::Asking) if now >= pending.until => {
                    // The connection manager has given up already, and needs no answer.
                    self.resolver.0.remove(&id);
                    continue;
                }
                Ok(Neighbour::Asking) => {
                    pending.next = now.after(pending.interval);
                    pending.interval = (pending.interval * 2).min(LAST_LOOK);
                    continue;
                }
            };
            self.resolver.0.remove(&id);
            self.resolved(id, answer);
        }
    }
}

/// Makes the kernel resolve a neighbour. The kernel may be doing so already, or have the entry, so
/// errors do not matter.
fn poke(src: SocketAddr, dst: SocketAddr) {
    let _ = UdpSocket::bind(src).and_then(|socket| socket.send_to(&[], dst));
}

#[cfg(test)]
mod tests {
    use rdmux_cm::{ChannelId, PortSpace};
    use rdmux_transport::attr::QpType;
    use rdmux_wire::Gid;

    use super::super::cm::Outbox;
    use super::super::testing;
    use super::*;

    const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 7174);

    /// Creates an id whose peer is being looked for, for as long as its program waits.
    fn looking(core: &mut Core) -> IdHandle {
        let (now, timeout) = (core.now(), Duration::from_secs(1 << 20));
        let id = core.manager.create_id(ChannelId(1), PortSpace::Tcp, QpType::Rc, 0).unwrap();
        let (manager, outbox) = (&mut core.manager, &mut core.outbox);
        manager.resolve_addr(now, id, None, PEER.into(), timeout, false, outbox).unwrap();
        // In place of the query that was made, which would ask the kernel.
        core.outbox = Outbox::default();
        let src = Ipv4Addr::LOCALHOST.into();
        let answer = Resolved { src, device: 0, port_num: 1, dgid: Gid::ZERO, mtu: None };
        let (dst, interval, until) = (PEER.ip(), FIRST_LOOK, now.after(timeout));
        let pending = Pending { dst, interface: 1, answer, next: now, interval, until };
        core.resolver.0.insert(id, pending);
        id
    }

    #[test]
    fn lookup_ends_with_its_id_and_with_its_process() {
        let (mut core, _dir) = testing::core();
        let (id, now) = (looking(&mut core), core.now());
        core.manager.destroy(now, id, &mut core.outbox).unwrap();
        core.drain_outbox();
        assert!(core.resolver.0.is_empty());
        looking(&mut core);
        core.manager.channel_gone(now, ChannelId(1), &mut core.outbox);
        core.drain_outbox();
        assert!(core.resolver.0.is_empty());
    }
}
