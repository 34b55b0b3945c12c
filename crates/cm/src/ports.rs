//! Port spaces and their tables of ids by port.
//!
//! RDMA ports are a namespace of their own: port 7174 of [`PortSpace::Tcp`] has nothing to do with
//! a TCP socket on 7174.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

use crate::address::Addr;
use crate::error::{CmError, Command};
use crate::sink::IdHandle;

/// A port space; the values of `rdma_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u16)]
pub enum PortSpace {
    /// Connections (RC, UC, XRC).
    Tcp = 0x0106,
    /// Datagrams (UD), multicast.
    Udp = 0x0111,
    /// Datagrams in IPoIB groups.
    IpoIb = 0x0002,
    /// InfiniBand services, of any transport.
    Ib = 0x013f,
}

impl PortSpace {
    /// Returns the port space of a number.
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            0x0106 => Self::Tcp,
            0x0111 => Self::Udp,
            0x0002 => Self::IpoIb,
            0x013f => Self::Ib,
            _ => return None,
        })
    }
    /// Returns the port space's number.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

/// The reason why a port is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortError {
    /// Another id has the port on the same address.
    InUse,
    /// Another id has the port, and one of the two has the wildcard address.
    Wildcard,
    /// No ephemeral port is free.
    Exhausted,
    /// No service ID that could be assigned is free.
    NoServiceId,
}

impl PortError {
    /// Converts the error to the error of `command`, which was to bind `id` to `addr`.
    pub(crate) fn of(self, id: IdHandle, command: Command, addr: Addr) -> CmError {
        match self {
            Self::InUse => CmError::AddrInUse { id, command, addr },
            Self::Wildcard => CmError::WildcardInUse { id, command, addr },
            Self::Exhausted => CmError::PortsExhausted { id, command },
            Self::NoServiceId => CmError::NoServiceId { id, command },
        }
    }
}

/// An id's claim on a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) id: IdHandle,
    /// The local address, or a wildcard.
    pub(crate) ip: IpAddr,
    /// Whether an IPv6 wildcard excludes IPv4.
    pub(crate) af_only: bool,
    /// Whether others that set this too may share the port.
    pub(crate) reuse: bool,
    /// The peer to which the id will connect.
    pub(crate) peer: Option<SocketAddr>,
    /// Whether the id listens.
    pub(crate) listening: bool,
}

impl Claim {
    /// Returns whether the claim covers requests to `ip`.
    fn covers(&self, ip: IpAddr) -> bool {
        if self.ip.is_unspecified() {
            self.ip.is_ipv4() == ip.is_ipv4() || (self.ip.is_ipv6() && !self.af_only)
        } else {
            self.ip == ip
        }
    }
    /// Returns whether the addresses of both overlap.
    fn overlaps(&self, other: &Self) -> bool {
        self.covers(other.ip) || other.covers(self.ip)
    }
    /// Returns why two claims whose addresses overlap cannot share a port. The kernel's connection
    /// manager distinguishes the same cases (`cma_check_port`).
    fn conflict(&self, other: &Self) -> PortError {
        let any = self.ip.is_unspecified() || other.ip.is_unspecified();
        if any { PortError::Wildcard } else { PortError::InUse }
    }
    /// Returns whether both are active sides that differ in an address of the connection.
    fn distinct_from(&self, other: &Self) -> bool {
        self.peer.is_some()
            && other.peer.is_some()
            && (self.peer, self.ip) != (other.peer, other.ip)
    }
}

/// The ports of one port space.
#[derive(Debug, Default)]
pub(crate) struct PortTable {
    ports: BTreeMap<u16, Vec<Claim>>,
}

impl PortTable {
    /// Claims a port of the caller's choice.
    pub(crate) fn claim(&mut self, port: u16, claim: Claim) -> Result<(), PortError> {
        let others = self.ports.entry(port).or_default();
        let against = |o: &&Claim| !(o.reuse && claim.reuse) && o.overlaps(&claim);
        if let Some(other) = others.iter().find(against) {
            return Err(claim.conflict(other));
        }
        others.push(claim);
        Ok(())
    }

    /// Claims a free port of `range`, searching from a random start, and preferably one for which `suits` holds among the first few. When
    /// all are in use, an active side may share one, as long as the connections differ.
    pub(crate) fn claim_any(
        &mut self,
        range: &RangeInclusive<u16>,
        random: u32,
        claim: Claim,
        suits: impl Fn(u16) -> bool,
    ) -> Result<u16, PortError> {
        /// The number of free ports that are tried.
        const TRIES: usize = 64;
        let (low, high) = (*range.start(), *range.end());
        let span = u32::from(high).checked_sub(u32::from(low)).ok_or(PortError::Exhausted)? + 1;
        let nth = |n| u16::try_from(u32::from(low) + (random % span + n) % span).unwrap_or(low);
        let free = || (0..span).map(nth).filter(|p| self.ports.get(p).is_none_or(Vec::is_empty));
        let free = free().take(TRIES).find(|&port| suits(port)).or_else(|| free().next());
        let fits = |p: &u16| self.ports[p].iter().all(|o| !o.listening && claim.distinct_from(o));
        let port = free.or_else(|| (0..span).map(nth).find(fits)).ok_or(PortError::Exhausted)?;
        self.ports.entry(port).or_default().push(claim);
        Ok(port)
    }

    /// Records the id's local address, once known.
    pub(crate) fn set_ip(&mut self, port: u16, id: IdHandle, ip: IpAddr) {
        if let Some(claim) = self.claim_of(port, id) {
            claim.ip = ip;
        }
    }

    /// Sets whether others that set this too may share the id's port.
    pub(crate) fn set_reuse(&mut self, port: u16, id: IdHandle, reuse: bool) {
        if let Some(claim) = self.claim_of(port, id) {
            claim.reuse = reuse;
        }
    }

    /// Sets whether the id leaves the port's IPv4 side to others, if it has the IPv6 wildcard.
    pub(crate) fn set_af_only(&mut self, port: u16, id: IdHandle, only: bool) {
        if let Some(claim) = self.claim_of(port, id) {
            claim.af_only = only;
        }
    }

    /// Makes the id's claim exclusive because it will listen, even if the port was reusable.
    pub(crate) fn listen(&mut self, port: u16, id: IdHandle) -> Result<(), PortError> {
        let claims = self.ports.get(&port).map_or(&[][..], Vec::as_slice);
        let Some(own) = claims.iter().find(|c| c.id == id) else { return Err(PortError::InUse) };
        if let Some(other) = claims.iter().find(|o| o.id != id && o.overlaps(own)) {
            return Err(own.conflict(other));
        }
        if let Some(claim) = self.claim_of(port, id) {
            claim.reuse = false;
            claim.listening = true;
        }
        Ok(())
    }

    /// Returns the listener for requests to `ip`: one bound to that address before a wildcard.
    pub(crate) fn listener(&self, port: u16, ip: IpAddr) -> Option<IdHandle> {
        let claims = self.ports.get(&port)?.iter().filter(|c| c.listening && c.covers(ip));
        claims.min_by_key(|c| (c.ip.is_unspecified(), c.ip != ip)).map(|c| c.id)
    }

    /// Returns the listeners of a port, at any address.
    pub(crate) fn listeners(&self, port: u16) -> impl Iterator<Item = IdHandle> {
        self.ports.get(&port).into_iter().flatten().filter(|c| c.listening).map(|c| c.id)
    }

    /// Returns whether there is a listener, at any address.
    pub(crate) fn is_listened_to(&self, port: u16) -> bool {
        self.listeners(port).next().is_some()
    }

    /// Releases a port.
    pub(crate) fn release(&mut self, port: u16, id: IdHandle) {
        if let Some(claims) = self.ports.get_mut(&port) {
            claims.retain(|c| c.id != id);
            if claims.is_empty() {
                self.ports.remove(&port);
            }
        }
    }

    /// Returns how many ports are in use.
    pub(crate) fn len(&self) -> usize {
        self.ports.values().filter(|claims| !claims.is_empty()).count()
    }

    fn claim_of(&mut self, port: u16, id: IdHandle) -> Option<&mut Claim> {
        self.ports.get_mut(&port)?.iter_mut().find(|c| c.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: u64, ip: &str) -> Claim {
        let ip: IpAddr = ip.parse().unwrap();
        let id = IdHandle(id);
        Claim { id, ip, af_only: ip.is_ipv4(), reuse: false, peer: None, listening: false }
    }

    #[test]
    fn wildcard_bind_conflicts_within_its_family_and_ipv6_wildcard_also_with_ipv4() {
        let (taken, wildcard) = (Err(PortError::InUse), Err(PortError::Wildcard));
        for (first, second, outcome) in [
            ("10.0.0.1", "10.0.0.1", taken),
            ("10.0.0.1", "10.0.0.2", Ok(())),
            ("10.0.0.1", "0.0.0.0", wildcard),
            ("0.0.0.0", "10.0.0.1", wildcard),
            ("0.0.0.0", "0.0.0.0", wildcard),
            ("::", "10.0.0.1", wildcard),
            ("10.0.0.1", "::", wildcard),
            ("::1", "0.0.0.0", Ok(())),
            ("::1", "::", wildcard),
        ] {
            let mut table = PortTable::default();
            table.claim(7, claim(1, first)).unwrap();
            assert_eq!(table.claim(7, claim(2, second)), outcome, "{first}, then {second}");
        }
        let mut table = PortTable::default();
        table.claim(7, Claim { af_only: true, ..claim(1, "::") }).unwrap();
        table.claim(7, claim(2, "0.0.0.0")).unwrap();
    }

    #[test]
    fn reuseaddr_shares_a_port_only_if_both_ids_set_it_and_neither_listens() {
        let mut table = PortTable::default();
        let reuse = |id| Claim { reuse: true, ..claim(id, "0.0.0.0") };
        table.claim(7, reuse(1)).unwrap();
        assert_eq!(table.claim(7, claim(2, "0.0.0.0")), Err(PortError::Wildcard));
        table.claim(7, reuse(2)).unwrap();
        assert_eq!(table.listen(7, IdHandle(1)), Err(PortError::Wildcard));
        table.release(7, IdHandle(2));
        table.listen(7, IdHandle(1)).unwrap();
        assert_eq!(table.claim(7, reuse(3)), Err(PortError::Wildcard));
        table.release(7, IdHandle(1));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn listener_is_found_by_its_address_or_ipv6_wildcard_once_it_listens() {
        let mut table = PortTable::default();
        // Two listeners cannot overlap, so the wildcards here are of different families.
        for (id, ip) in [(1, "10.0.0.1"), (2, "10.0.0.2")] {
            table.claim(7, claim(id, ip)).unwrap();
            table.listen(7, IdHandle(id)).unwrap();
        }
        let of = |ip: &str| table.listener(7, ip.parse().unwrap());
        assert_eq!(of("10.0.0.1"), Some(IdHandle(1)));
        assert_eq!(of("10.0.0.2"), Some(IdHandle(2)));
        assert_eq!(of("10.0.0.3"), None);
        let mut table = PortTable::default();
        table.claim(7, claim(3, "::")).unwrap();
        assert_eq!(table.listener(7, "10.0.0.1".parse().unwrap()), None, "it does not listen yet");
        table.listen(7, IdHandle(3)).unwrap();
        assert_eq!(table.listener(7, "10.0.0.1".parse().unwrap()), Some(IdHandle(3)));
    }

    #[test]
    fn ephemeral_port_is_shared_only_by_connections_to_different_peers() {
        let mut table = PortTable::default();
        let range = 50_000..=50_002;
        let mut got: Vec<u16> = (1..=3)
            .map(|id| table.claim_any(&range, 2, claim(id, "10.0.0.1"), |_| true).unwrap())
            .collect();
        got.sort_unstable();
        assert_eq!(got, [50_000, 50_001, 50_002]);
        let active =
            |id, peer: &str| Claim { peer: Some(peer.parse().unwrap()), ..claim(id, "10.0.0.1") };
        let to_one = active(4, "10.0.0.9:1");
        assert_eq!(table.claim_any(&range, 0, to_one, |_| true), Err(PortError::Exhausted));
        table.release(50_001, IdHandle(1));
        table.release(50_001, IdHandle(2));
        table.release(50_001, IdHandle(3));
        assert_eq!(table.claim_any(&range, 0, to_one, |_| true), Ok(50_001));
        assert_eq!(table.claim_any(&range, 0, active(5, "10.0.0.9:2"), |_| true), Ok(50_001));
        assert_eq!(
            table.claim_any(&range, 0, active(6, "10.0.0.9:1"), |_| true),
            Err(PortError::Exhausted)
        );
    }

    #[test]
    fn ephemeral_port_is_a_suitable_one_or_any_when_none_suits() {
        let mut table = PortTable::default();
        let range = 50_000..=50_003;
        let odd = |port: u16| port % 2 == 1;
        let mut got = |id| table.claim_any(&range, 0, claim(id, "10.0.0.1"), odd);
        assert_eq!((got(1), got(2)), (Ok(50_001), Ok(50_003)));
        assert_eq!(got(3), Ok(50_000), "rather one that does not suit than none");
    }
}
