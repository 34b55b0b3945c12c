//! Multicast: a socket per joined group, kept by the service.
//!
//! A socket that is bound to a unicast address does not receive multicast, so each group has a socket that is bound to it. Its address
//! may be shared (`SO_REUSEADDR`): every socket gets its own copy.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rustix::net::sockopt;
use socket2::{SockAddr, SockRef, Socket};

use super::group::{GroupOptions, OpenError, explain, new_socket};
use super::port::UdpPort;
use crate::sys;

/// `IPV6_MULTICAST_ALL` of `linux/in6.h`.
const IPV6_MULTICAST_ALL: i32 = 29;

/// A multicast group, joined on one interface until this is dropped.
#[derive(Debug)]
pub struct McastSocket {
    group: IpAddr,
    local: IpAddr,
    port: UdpPort,
}

impl McastSocket {
    /// Joins `group` on the interface that has the address `local`, and listens on
    /// `options.port` for packets to the group that arrive there (`/proc/net/igmp` shows it).
    ///
    /// # Errors
    ///
    /// [`OpenError::NotLocal`] if no interface has `local`; [`OpenError::InUse`] if another socket holds the group's port exclusively;
    /// [`OpenError::Io`], with `EINVAL` for an address that is not a multicast group, or for a mixture of IPv4 and IPv6.
    pub fn join(group: IpAddr, local: IpAddr, options: &GroupOptions) -> Result<Self, OpenError> {
        if !group.is_multicast() || group.is_ipv4() != local.is_ipv4() {
            let source = io::ErrorKind::InvalidInput.into();
            return Err(OpenError::Io { what: "join a multicast group", addr: group, source });
        }
        let fail = |what| {
            move |e: io::Error| match e.raw_os_error() {
                Some(libc::ENODEV | libc::EADDRNOTAVAIL) => OpenError::NotLocal { addr: local },
                _ => explain(group, options.port, what, e),
            }
        };
        let socket = new_socket(group, options).map_err(fail("open a multicast socket"))?;
        let interface =
            interface_of(local, options.scope_id).map_err(fail("find the interface"))?;
        bind(&socket, group, options.port, interface).map_err(fail("bind a multicast socket"))?;
        join(&socket, group, local, interface).map_err(fail("join a multicast group"))?;
        let port = UdpPort::new(socket.into()).map_err(fail("use a multicast socket"))?;
        Ok(Self { group, local, port })
    }

    /// Leaves the group, also for duplicates of the socket. The socket then receives nothing any more.
    ///
    /// # Errors
    ///
    /// Those of `IP_DROP_MEMBERSHIP` and `IPV6_DROP_MEMBERSHIP`; an IPv6 group is left only if `scope_id` identifies its interface.
    pub fn leave(&self, scope_id: u32) -> io::Result<()> {
        let socket = SockRef::from(&self.port);
        match (self.group, self.local) {
            (IpAddr::V4(group), IpAddr::V4(local)) => socket.leave_multicast_v4(&group, &local),
            (IpAddr::V6(group), _) => socket.leave_multicast_v6(&group, scope_id),
            (IpAddr::V4(_), IpAddr::V6(_)) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Returns the group.
    pub fn group(&self) -> IpAddr {
        self.group
    }

    /// Returns the address whose interface it is joined on.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// Returns the socket to receive from.
    pub fn port(&self) -> &UdpPort {
        &self.port
    }
}

fn bind(socket: &Socket, group: IpAddr, port: u16, interface: u32) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    let addr = match group {
        IpAddr::V4(_) => SocketAddr::new(group, port),
        IpAddr::V6(group) => SocketAddrV6::new(group, port, 0, interface).into(),
    };
    socket.bind(&SockAddr::from(addr))
}

fn join(socket: &Socket, group: IpAddr, local: IpAddr, interface: u32) -> io::Result<()> {
    match (group, local) {
        (IpAddr::V4(group), IpAddr::V4(local)) => {
            sys::set_int(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
            socket.join_multicast_v4(&group, &local)
        }
        (IpAddr::V6(group), _) => {
            sys::set_int(socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0)?;
            socket.join_multicast_v6(&group, interface)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Makes multicast leave by the interface that has the address `local`, and be delivered to local members.
pub(super) fn set_outgoing(socket: &Socket, local: IpAddr, scope_id: u32) -> io::Result<()> {
    match local {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ok(()),
        IpAddr::V4(local) => {
            socket.set_multicast_if_v4(&local)?;
            sockopt::set_ip_multicast_loop(socket, true).map_err(Into::into)
        }
        IpAddr::V6(_) => {
            socket.set_multicast_if_v6(interface_of(local, scope_id)?)?;
            sockopt::set_ipv6_multicast_loop(socket, true).map_err(Into::into)
        }
    }
}

/// Returns the index of the interface that has an IPv6 address, from `/proc/thread-self/net/if_inet6` (a thread may be in its own network
/// namespace). IPv4 needs no index: the kernel finds the interface by address. A scope ID that is already known takes precedence.
fn interface_of(local: IpAddr, scope_id: u32) -> io::Result<u32> {
    let IpAddr::V6(local) = local else { return Ok(0) };
    if scope_id != 0 {
        return Ok(scope_id);
    }
    let wanted = format!("{:032x}", u128::from(local));
    let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6")?;
    table
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(addr, _)| *addr == wanted)
        .and_then(|(_, rest)| u32::from_str_radix(rest.split(' ').next()?, 16).ok())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))
}
