//! The service's side of UDP port 4791: the sockets of one local address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::holder::{Holder, holder_of};
use super::{HOP_LIMIT, ROCE_PORT, SLOTS, mcast, steer};
use crate::sys;

/// Options for the sockets of a group, or for a multicast socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// The UDP port; zero makes the kernel choose one, for tests.
    pub port: u16,
    /// The requested size in bytes of each socket's receive and send buffer. Without privilege the kernel grants at most
    /// `net.core.rmem_max` and `wmem_max`.
    pub buffer: usize,
    /// Whether received datagrams report their traffic class and hop limit, for the GRH area of UD. This costs some time for
    /// each datagram. [`UdpPort::report_headers`](super::UdpPort::report_headers) changes it later.
    pub header_info: bool,
    /// The interface of a link-local IPv6 address, otherwise zero.
    pub scope_id: u32,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { port: ROCE_PORT, buffer: 4 << 20, header_info: true, scope_id: 0 }
    }
}

/// The reason why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another socket holds the port.
    #[error("UDP port {port} of {addr} is in use by {}", who(.holder.as_ref()))]
    InUse {
        /// The local address.
        addr: IpAddr,
        /// The port.
        port: u16,
        /// The holder, if it is visible.
        holder: Option<Holder>,
    },
    /// The machine has no such address.
    #[error("{addr} is not an address of this machine")]
    NotLocal {
        /// The address.
        addr: IpAddr,
    },
    /// Anything else.
    #[error("cannot {what} for {addr}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The local address, or the multicast group.
        addr: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
}

impl OpenError {
    /// Returns the error's `errno`.
    pub fn errno(&self) -> i32 {
        match self {
            Self::InUse { .. } => libc::EADDRINUSE,
            Self::NotLocal { .. } => libc::EADDRNOTAVAIL,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

fn who(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "a process that is not visible".to_owned(), Holder::to_string)
}

/// The SO_REUSEPORT group of one local address. Slot n's socket is the n-th, and a packet is steered to the slot in its destination
/// QPN (see [`super::SLOT_SHIFT`]).
///
/// The group keeps a duplicate of every socket, because the kernel renumbers when one is closed. Datagrams for a slot whose process is
/// gone remain in its socket until it is [`recycle`](Self::recycle)d.
#[derive(Debug)]
pub struct UdpGroup {
    local: SocketAddr,
    options: GroupOptions,
    sockets: Vec<OwnedFd>,
    /// The slot that gets packets for objects that belong to no process.
    nobodys: u16,
}

impl UdpGroup {
    /// Opens the port on `addr`, with the socket of slot 0, which is the service's.
    ///
    /// # Errors
    ///
    /// [`OpenError::InUse`] also if another service of the same user has the port: the first socket is bound without sharing.
    pub fn open(addr: IpAddr, options: &GroupOptions) -> Result<Self, OpenError> {
        let mut local = SocketAddr::new(addr, options.port);
        if let SocketAddr::V6(v6) = &mut local {
            v6.set_scope_id(options.scope_id);
        }
        let mut group = Self { local, options: *options, sockets: Vec::new(), nobodys: 0 };
        let socket = group.bind_one().map_err(|e| group.explain(e))?;
        let bound = socket.local_addr().map_err(|e| group.explain(e))?;
        group.local = bound.as_socket().unwrap_or(local);
        group.sockets.push(socket.into());
        Ok(group)
    }

    /// Returns the address that the sockets are bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the number of sockets.
    pub fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Returns a duplicate of `slot`'s socket, to be passed to a process. Sockets up to that slot are created as needed, and packets
    /// to QPNs of those slots are steered to them from now on. A process that has the socket of a slot other than 0 cannot attach a
    /// program to it or to the group.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a slot beyond those of QPNs; `EMFILE`; those of `bind(2)`.
    pub fn socket(&mut self, slot: u16) -> io::Result<OwnedFd> {
        if slot >= SLOTS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        while self.sockets.len() <= usize::from(slot) {
            let socket = self.bind_one()?;
            self.sockets.push(socket.into());
        }
        // Even without a new socket: a process that has a socket can detach the program. A single socket is not a group yet.
        if self.sockets.len() > 1 {
            self.steer()?;
        }
        self.sockets[usize::from(slot)].try_clone()
    }

    /// Steers packets to QPNs that belong to no process to the socket of `slot`, which must exist.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a slot without a socket; those of `setsockopt(2)`.
    pub fn steer_targets(&mut self, slot: u16) -> io::Result<()> {
        if usize::from(slot) >= self.sockets.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.nobodys != slot {
            self.nobodys = slot;
            self.steer()?;
        }
        Ok(())
    }

    fn steer(&mut self) -> io::Result<()> {
        let count = u16::try_from(self.sockets.len()).unwrap_or(SLOTS);
        // Through the one socket that is not locked.
        sys::attach_reuseport_cbpf(&self.sockets[0], &mut steer::program(count, self.nobodys))
    }

    /// Returns the socket at which a packet to this QPN arrives, in the present group.
    pub fn slot_of(&self, qpn: u32) -> u16 {
        steer::slot_of(qpn, self.sockets.len(), self.nobodys)
    }

    /// Drops the datagrams in a slot's socket, before the slot is assigned to another process. Returns how many it dropped (GRO
    /// counts several as one).
    pub fn recycle(&self, slot: u16) -> usize {
        /// A bound above the number that a receive buffer can hold, so that a flood does not keep this loop running.
        const MOST: usize = 1 << 16;
        let Some(socket) = self.sockets.get(usize::from(slot)) else { return 0 };
        let mut dropped = 0;
        while dropped < MOST {
            match rustix::net::recv(socket, &mut [0u8; 1], RecvFlags::DONTWAIT) {
                Ok(_) => dropped += 1,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        dropped
    }

    /// Returns the group's own duplicate of a slot's socket.
    pub fn get(&self, slot: u16) -> Option<BorrowedFd<'_>> {
        self.sockets.get(usize::from(slot)).map(AsFd::as_fd)
    }

    /// Creates and binds the next socket of the group. The first is bound exclusively and only then set to sharing: otherwise two
    /// services of one user could share a group without noticing.
    fn bind_one(&self) -> io::Result<Socket> {
        let socket = new_socket(self.local.ip(), &self.options)?;
        let first = self.sockets.is_empty();
        if !first {
            socket.set_reuse_port(true)?;
        }
        mcast::set_outgoing(&socket, self.local.ip(), self.options.scope_id)?;
        socket.bind(&SockAddr::from(self.local))?;
        if first {
            socket.set_reuse_port(true)?;
        } else {
            sys::set_int(&socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)?;
        }
        Ok(socket)
    }

    fn explain(&self, source: io::Error) -> OpenError {
        explain(self.local.ip(), self.local.port(), "open a UDP socket", source)
    }
}

/// Converts an error of `bind(2)` and the like, with details that can be found out.
pub(super) fn explain(addr: IpAddr, port: u16, what: &'static str, source: io::Error) -> OpenError {
    match source.kind() {
        io::ErrorKind::AddrInUse => OpenError::InUse { addr, port, holder: holder_of(addr, port) },
        io::ErrorKind::AddrNotAvailable => OpenError::NotLocal { addr },
        _ => OpenError::Io { what, addr, source },
    }
}

/// Creates a socket with the common options, not yet bound.
pub(super) fn new_socket(addr: IpAddr, options: &GroupOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(SocketAddr::new(addr, 0)), Type::DGRAM, None)?;
    debug_assert_eq!(socket.protocol().ok().flatten(), Some(Protocol::UDP));
    socket.set_nonblocking(true)?;
    set_buffer(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.buffer)?;
    set_buffer(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, options.buffer)?;
    sys::set_int(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    report_headers(&socket, addr, options.header_info)?;
    if addr.is_ipv4() {
        sys::set_int(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        sys::set_int(&socket, libc::IPPROTO_IP, libc::IP_TTL, HOP_LIMIT.into())?;
    } else {
        let v6 = libc::IPPROTO_IPV6;
        socket.set_only_v6(true)?;
        sys::set_int(&socket, v6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        sys::set_int(&socket, v6, libc::IPV6_UNICAST_HOPS, HOP_LIMIT.into())?;
        // Other stacks send RoCEv2 without a UDP checksum, since there is the ICRC. Over IPv6 a socket drops such packets by default.
        sys::set_int(&socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    }
    Ok(socket)
}

/// Enables or disables reporting of received datagrams' traffic class and hop limit.
pub(super) fn report_headers(socket: impl AsFd, addr: IpAddr, on: bool) -> io::Result<()> {
    let (level, names) = if addr.is_ipv4() {
        (libc::IPPROTO_IP, [libc::IP_RECVTOS, libc::IP_RECVTTL])
    } else {
        (libc::IPPROTO_IPV6, [libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT])
    };
    names.iter().try_for_each(|name| sys::set_int(&socket, level, *name, on.into()))
}

/// Requests a buffer size with privilege, or otherwise as much as is permitted.
fn set_buffer(socket: &Socket, force: i32, ask: i32, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    sys::set_int(socket, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| sys::set_int(socket, libc::SOL_SOCKET, ask, bytes))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::UdpSocket;

    use socket2::{SockFilter, SockRef};

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 77, 202, 61));
    const ANY_PORT: GroupOptions =
        GroupOptions { port: 0, buffer: 1 << 16, header_info: false, scope_id: 0 };

    /// Sends a datagram to a QPN of slot 1 from each of some ports. Returns how many arrive there.
    fn steered_to_1(group: &UdpGroup) -> usize {
        let senders: Vec<_> = (0..16).map(|_| UdpSocket::bind((ADDRESS, 0)).unwrap()).collect();
        let bytes = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0];
        for sender in &senders {
            sender.send_to(&bytes, group.local_addr()).unwrap();
        }
        let (mut here, mut elsewhere) = (0, 0);
        while here + elsewhere < senders.len() {
            here += group.recycle(1);
            elsewhere += group.recycle(0) + group.recycle(2);
        }
        here
    }

    #[test]
    fn attaching_a_bpf_program_or_filter_to_a_group_socket_is_eperm() {
        let mut group = UdpGroup::open(ADDRESS, &ANY_PORT).unwrap();
        let held = group.socket(1).unwrap();
        let e = sys::attach_reuseport_cbpf(&held, &mut steer::program(1, 0)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied);
        // A filter that drops everything would persist for the next owner of the slot.
        let nothing = [SockFilter::new(6, 0, 0, 0)];
        let e = SockRef::from(&held).attach_filter(&nothing).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied);
        assert_eq!(steered_to_1(&group), 16);
    }

    #[test]
    fn detached_reuseport_program_is_attached_again_with_the_next_socket() {
        const SO_DETACH_REUSEPORT_BPF: i32 = 68;
        let mut group = UdpGroup::open(ADDRESS, &ANY_PORT).unwrap();
        let held = group.socket(2).unwrap();
        sys::set_int(&held, libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 1).unwrap();
        let _next = group.socket(1).unwrap();
        assert_eq!(steered_to_1(&group), 16);
    }
}
