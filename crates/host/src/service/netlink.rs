//! Interfaces, addresses and neighbours from the kernel, by rtnetlink(7).
//!
//! The kernel answers within the call that sends the request, so nothing here waits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libc::{
    IFA_ADDRESS, IFA_F_DADFAILED, IFA_F_TENTATIVE, IFA_LOCAL, IFLA_IFNAME, IFLA_INFO_KIND,
    IFLA_LINKINFO, IFLA_MTU, NDA_DST, NUD_DELAY, NUD_FAILED, NUD_NOARP, NUD_PERMANENT, NUD_PROBE,
    NUD_REACHABLE, NUD_STALE, RTM_GETADDR, RTM_GETLINK, RTM_GETNEIGH, RTM_NEWADDR, RTM_NEWLINK,
    RTM_NEWNEIGH, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, RTMGRP_LINK,
};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use self::narrow::{AF_INET, AF_INET6, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};

/// Constants that are ints in C, in the width that they have in a message.
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod narrow {
    pub(super) const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
    pub(super) const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
    pub(super) const NLM_F_REQUEST: u16 = libc::NLM_F_REQUEST as u16;
    pub(super) const NLM_F_DUMP: u16 = libc::NLM_F_DUMP as u16;
    pub(super) const AF_INET: u8 = libc::AF_INET as u8;
    pub(super) const AF_INET6: u8 = libc::AF_INET6 as u8;
}

/// Duplicate address detection failed, or is not done.
const IFA_F_UNUSABLE: u32 = IFA_F_DADFAILED | IFA_F_TENTATIVE;
/// The multicast groups for changes of interfaces and addresses.
const ADDRESS_GROUPS: u32 = (RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR).cast_unsigned();

/// The header of a netlink message.
const HEADER: usize = 16;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mtu: u32,
    pub(super) flags: u32,
    /// Whether the interface is a bridge. Bridges to containers have the same address on many
    /// machines.
    pub(super) is_bridge: bool,
}

impl Interface {
    const UP: u32 = libc::IFF_UP.cast_unsigned();
    const LOOPBACK: u32 = libc::IFF_LOOPBACK.cast_unsigned();
    const NO_ARP: u32 = libc::IFF_NOARP.cast_unsigned();

    pub(super) fn is_up(&self) -> bool {
        self.flags & Self::UP != 0
    }
    pub(super) fn is_loopback(&self) -> bool {
        self.flags & Self::LOOPBACK != 0
    }
    /// Returns whether neighbours need no resolution.
    pub(super) fn has_no_neighbours(&self) -> bool {
        self.flags & (Self::NO_ARP | Self::LOOPBACK) != 0
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub(super) ip: IpAddr,
    pub(super) prefix: u8,
    pub(super) interface: u32,
}

impl InterfaceAddress {
    /// Returns whether `ip` is in the same subnet.
    pub(super) fn is_on_link(&self, ip: IpAddr) -> bool {
        let shared = |a: &[u8], b: &[u8]| {
            let bits = a.iter().zip(b).map(|(a, b)| (a ^ b).leading_zeros());
            bits.clone().zip(0u32..).find(|&(n, _)| n < 8).map_or(128, |(n, byte)| byte * 8 + n)
        };
        u32::from(self.prefix)
            <= match (self.ip, ip) {
                (IpAddr::V4(a), IpAddr::V4(b)) => shared(&a.octets(), &b.octets()),
                (IpAddr::V6(a), IpAddr::V6(b)) => shared(&a.octets(), &b.octets()),
                _ => return false,
            }
    }
}

/// The kernel's state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// The neighbour's hardware address is known, or not needed.
    Known,
    /// The neighbour does not answer.
    Failed,
    /// Being resolved, or unknown.
    Asking,
}

/// A netlink socket for queries.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    buf: Vec<u8>,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        // The kernel answers at once; the timeout is for one that does not.
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1)))?;
        Ok(Self { socket, buf: vec![0; 64 * 1024] })
    }

    /// Returns all interfaces.
    pub(super) fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let mut all = Vec::new();
        self.ask(RTM_GETLINK, NLM_F_DUMP, &[0; 16], |kind, body| {
            if kind == RTM_NEWLINK
                && let Some(interface) = parse_interface(body)
            {
                all.push(interface);
            }
        })?;
        Ok(all)
    }

    /// Returns all usable addresses, in the kernel's order.
    pub(super) fn addresses(&mut self) -> io::Result<Vec<InterfaceAddress>> {
        let mut all = Vec::new();
        self.ask(RTM_GETADDR, NLM_F_DUMP, &[0; 8], |kind, body| {
            if kind == RTM_NEWADDR
                && let Some(address) = parse_address(body)
            {
                all.push(address);
            }
        })?;
        Ok(all)
    }

    /// Returns the state of a neighbour.
    pub(super) fn neighbour(&mut self, interface: u32, ip: IpAddr) -> io::Result<Neighbour> {
        let (family, octets) = family_and_octets(ip);
        let mut body = vec![0; 12];
        body[0] = family;
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        push_attribute(&mut body, NDA_DST, &octets);
        let mut state = Neighbour::Asking;
        let asked = self.ask(RTM_GETNEIGH, 0, &body, |kind, body| {
            if kind == RTM_NEWNEIGH {
                state = parse_neighbour(body);
            }
        });
        match asked {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(Neighbour::Asking),
            other => other.map(|()| state),
        }
    }

    fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        mut each: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        let len = u32::try_from(HEADER + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend(len.to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        request.extend([0; 8]);
        request.extend(body);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        loop {
            let (got, _) = rustix::net::recv(&self.socket, &mut self.buf[..], RecvFlags::empty())?;
            let mut last = flags & NLM_F_DUMP == 0;
            for (kind, body) in messages(&self.buf[..got]) {
                match kind {
                    NLMSG_DONE => last = true,
                    NLMSG_ERROR => match i32_at(body, 0).unwrap_or(0) {
                        0 => last = true,
                        errno => return Err(io::Error::from_raw_os_error(-errno)),
                    },
                    _ => each(kind, body),
                }
            }
            if last {
                return Ok(());
            }
        }
    }
}

/// A netlink socket that becomes readable when addresses or interfaces change.
#[derive(Debug)]
pub(super) struct AddressMonitor(OwnedFd);

impl AddressMonitor {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, ADDRESS_GROUPS))?;
        Ok(Self(socket))
    }

    /// Discards the messages: they only mean that a rescan is needed.
    pub(super) fn drain(&self) {
        let mut buf = [0; 4096];
        while rustix::net::recv(&self.0, &mut buf[..], RecvFlags::TRUNC).is_ok() {}
    }
}

impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the messages of a datagram: type and body. Ends at the first that is malformed.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let kind = u16_at(bytes, 4)?;
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Returns the attributes after a body of fixed size: type and data.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)?;
        let data = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, data))
    })
}

fn push_attribute(body: &mut Vec<u8>, kind: u16, data: &[u8]) {
    let len = u16::try_from(4 + data.len()).unwrap_or(4);
    body.extend(len.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(data);
}

fn parse_interface(body: &[u8]) -> Option<Interface> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let mut interface = Interface { index, name: String::new(), mtu: 0, flags, is_bridge: false };
    for (kind, data) in attributes(body.get(16..)?) {
        match kind {
            IFLA_IFNAME => {
                interface.name = String::from_utf8_lossy(data).trim_end_matches('\0').to_owned();
            }
            IFLA_MTU => interface.mtu = u32_at(data, 0)?,
            IFLA_LINKINFO => {
                let mut info = attributes(data);
                interface.is_bridge = info.any(|(k, d)| k == IFLA_INFO_KIND && d == b"bridge\0");
            }
            _ => {}
        }
    }
    Some(interface)
}

/// Parses an address. IFA_LOCAL is the interface's own; if it is absent (IPv6), IFA_ADDRESS is. A
/// point-to-point link has both, and IFA_ADDRESS is the peer's.
fn parse_address(body: &[u8]) -> Option<InterfaceAddress> {
    let (prefix, flags, interface) = (*body.get(1)?, *body.get(2)?, u32_at(body, 4)?);
    if u32::from(flags) & IFA_F_UNUSABLE != 0 {
        return None;
    }
    let find = |wanted| attributes(body.get(8..)?).find(|&(k, _)| k == wanted).map(|(_, d)| d);
    let ip = parse_ip(find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?)?;
    Some(InterfaceAddress { ip, prefix, interface })
}

fn parse_neighbour(body: &[u8]) -> Neighbour {
    const KNOWN: u16 =
        NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_NOARP | NUD_PERMANENT;
    match u16_at(body, 8) {
        Some(state) if state & KNOWN != 0 => Neighbour::Known,
        Some(state) if state & NUD_FAILED != 0 => Neighbour::Failed,
        _ => Neighbour::Asking,
    }
}

fn parse_ip(data: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(data) {
        Some(Ipv4Addr::from(octets).into())
    } else {
        Some(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into())
    }
}

fn family_and_octets(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AF_INET6, ip.octets().to_vec()),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    u32_at(bytes, at).map(u32::cast_signed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netlink_lists_loopback_interface_with_address_and_mtu() {
        let mut netlink = Netlink::open().unwrap();
        let interfaces = netlink.interfaces().unwrap();
        let lo = interfaces.iter().find(|i| i.is_loopback()).unwrap();
        assert!(lo.mtu >= 1500 && !lo.name.is_empty());
        let addresses = netlink.addresses().unwrap();
        let one = addresses.iter().find(|a| a.ip == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!((one.interface, one.prefix), (lo.index, 8));
        assert!(one.is_on_link("127.77.1.2".parse().unwrap()));
        assert!(!one.is_on_link("128.0.0.1".parse().unwrap()));
        assert!(!one.is_on_link("::1".parse().unwrap()));
        let unknown = "127.1.2.3".parse().unwrap();
        assert_eq!(netlink.neighbour(lo.index, unknown).unwrap(), Neighbour::Asking);
    }

    #[test]
    fn bridge_is_recognized_by_ifla_info_kind() {
        let mut kind = Vec::new();
        push_attribute(&mut kind, IFLA_INFO_KIND, b"bridge\0");
        for (info, is_bridge) in [(&kind[..], true), (&[][..], false)] {
            let mut body = vec![0; 16];
            push_attribute(&mut body, IFLA_LINKINFO, info);
            assert_eq!(parse_interface(&body).map(|i| i.is_bridge), Some(is_bridge));
        }
    }

    #[test]
    fn on_link_check_uses_the_prefix_length() {
        let of =
            |ip: &str, prefix| InterfaceAddress { ip: ip.parse().unwrap(), prefix, interface: 1 };
        let a = of("10.0.3.1", 23);
        assert!(a.is_on_link("10.0.2.255".parse().unwrap()));
        assert!(!a.is_on_link("10.0.4.0".parse().unwrap()));
        assert!(of("10.0.0.1", 32).is_on_link("10.0.0.1".parse().unwrap()));
        assert!(!of("10.0.0.1", 32).is_on_link("10.0.0.0".parse().unwrap()));
        assert!(of("10.0.0.1", 0).is_on_link("1.2.3.4".parse().unwrap()));
        assert!(of("fe80::1", 64).is_on_link("fe80::ffff".parse().unwrap()));
        assert!(!of("fe80::1", 64).is_on_link("fe80:0:0:1::1".parse().unwrap()));
    }

    #[test]
    fn malformed_messages_end_the_list() {
        for len in [0u32, 3, 15, 17, u32::MAX] {
            let bytes = [&len.to_ne_bytes()[..], &[0; 12]].concat();
            assert_eq!(messages(&bytes).count(), 0, "{len}");
        }
        for bytes in [&[][..], &[1], &[0, 0, 1, 0], &[255, 255, 1, 0]] {
            assert_eq!(attributes(bytes).count(), 0);
        }
        assert!(parse_address(&[2, 8, 0, 0, 1, 0, 0, 0]).is_none());
        assert!(parse_interface(&[0; 15]).is_none());
    }
}
