//! One datagram for all members of a group whose hosts are on this machine: IP multicast on the loopback interface.
//!
//! A copy for each member costs the sender a system call and the kernel a pass through its network stack. For one datagram to an IP
//! group, the kernel makes the copies at a fraction of that cost, and puts each into the socket of a process that has members. The
//! subnet determines the receivers of a packet, not the membership of the IP group. So the datagram names its destination ports:
//!
//! ```text
//! 0   version 2, a zero, the number of ports (16 bits)
//! 4   zero (32 bits)
//! 8   the number of the fabric
//! 16  the GUIDs of the ports
//! ..  the packet, LRH to ICRC
//! ```
//!
//! The IP group depends on the MGID only. The number of the fabric distinguishes fabrics of one machine. All numbers are big-endian.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rdmux_wire::{Gid, Guid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::RecvFlags;
use socket2::SockAddr;

use super::{IbDrop, IbWire};
use crate::udp::control::ControlBuf;
use crate::udp::{GroupOptions, McastSocket, OpenError, UdpPort};

/// The UDP port of all groups. Ephemeral ports, which other programs may use, are above it.
const PORT: u16 = 14_791;
/// The version at the start of such a datagram.
const VERSION: u8 = 2;
/// The length of the header before the list of ports, in bytes.
const HEADER: usize = 16;
/// The size of a GUID in bytes.
const GUID: usize = 8;
/// The maximum number of ports of a datagram: with the largest packet it is shorter than UDP's maximum.
pub const MOST: usize = 4096;

/// Returns the IP address of a group: 239.0.0.0/8 (RFC 2365) and 24 bits of a hash. Two groups may have the same.
fn address(mgid: Gid) -> Ipv4Addr {
    let [_, a, b, c] = crc32fast::hash(&mgid.0).to_be_bytes();
    Ipv4Addr::new(239, a, b, c)
}

/// Returns the destination of datagrams for a group.
pub(super) fn destination(mgid: Gid) -> SocketAddr {
    SocketAddr::new(address(mgid).into(), PORT)
}

/// Joins a group at the interface that has a loopback address of this host.
///
/// # Errors
///
/// As for [`McastSocket::join`].
pub fn hear(mgid: Gid, local: IpAddr) -> Result<McastSocket, OpenError> {
    let options = GroupOptions { port: PORT, header_info: false, ..GroupOptions::default() };
    McastSocket::join(address(mgid).into(), local, &options)
}

/// Checks whether this machine delivers multicast between processes, by whether a datagram that a wire sends to a group is received.
/// Not every container does. A process that cannot join groups sends and gets copies, as between machines.
///
/// # Errors
///
/// The operation that failed.
pub fn probe(wire: &IbWire) -> Result<(), OpenError> {
    let local = wire.port().local_addr().ip();
    let group = Gid::ZERO;
    let heard = hear(group, local)?;
    let fail = |what| move |source| OpenError::Io { what, addr: local, source };
    let name = SockAddr::from(destination(group));
    // Of no fabric and for no port. That of another host proves the same.
    let probe = header(0, 0);
    let sent = wire.port().send_message(&name, &probe, &ControlBuf::new());
    sent.map_err(fail("send to a multicast group"))?;
    received(heard.port()).map_err(fail("receive from a multicast group"))
}

/// Receives one datagram. The loopback interface mostly delivers during the send, but on a busy machine a little later.
fn received(port: &UdpPort) -> io::Result<()> {
    let soon = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    retry_on_intr(|| poll(&mut [PollFd::new(port, PollFlags::IN)], Some(&soon)))?;
    rustix::net::recv(port, &mut [0_u8; HEADER], RecvFlags::DONTWAIT)?;
    Ok(())
}

fn header(fabric: u64, ports: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = VERSION;
    header[2..4].copy_from_slice(&ports.to_be_bytes());
    header[8..].copy_from_slice(&fabric.to_be_bytes());
    header
}

/// Writes a datagram for some ports, at most [`MOST`], to `to`, replacing its contents.
pub fn put(
    fabric: u64,
    ports: impl ExactSizeIterator<Item = Guid>,
    packet: &[u8],
    to: &mut Vec<u8>,
) {
    to.clear();
    to.extend_from_slice(&header(fabric, u16::try_from(ports.len()).unwrap_or(u16::MAX)));
    ports.for_each(|port| to.extend_from_slice(&port.0.to_be_bytes()));
    to.extend_from_slice(packet);
}

/// Returns the packet of a datagram, if it is for this port of this fabric.
///
/// # Errors
///
/// [`IbDrop::RxVersion`], or [`IbDrop::RxMalformed`] if the datagram contains fewer ports than its count.
pub fn parse(datagram: &[u8], fabric: u64, port: Guid) -> Result<Option<&[u8]>, IbDrop> {
    let (header, rest) = datagram.split_first_chunk::<HEADER>().ok_or(IbDrop::RxMalformed)?;
    let [version, zero, n1, n2, z1, z2, z3, z4, number @ ..] = *header;
    if version != VERSION {
        return Err(IbDrop::RxVersion);
    }
    if [zero, z1, z2, z3, z4] != [0; 5] {
        return Err(IbDrop::RxMalformed);
    }
    let count = usize::from(u16::from_be_bytes([n1, n2]));
    let (ports, packet) = rest.split_at_checked(count * GUID).ok_or(IbDrop::RxMalformed)?;
    let port = port.0.to_be_bytes();
    let is_ours =
        u64::from_be_bytes(number) == fabric && ports.as_chunks::<GUID>().0.contains(&port);
    Ok(is_ours.then_some(packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_datagram_is_accepted_only_by_listed_ports_of_its_fabric() {
        let mut datagram = vec![7; 3];
        let ports = [Guid(0x1_0002), Guid(u64::MAX), Guid(0)];
        put(0x1234_5678_9abc_def0, ports.into_iter(), b"packet", &mut datagram);
        assert_eq!(datagram[..8], [2, 0, 0, 3, 0, 0, 0, 0]);
        assert_eq!(datagram.len(), 16 + 3 * 8 + 6);
        let read = |fabric, port| parse(&datagram, fabric, Guid(port)).unwrap();
        for port in ports {
            assert_eq!(read(0x1234_5678_9abc_def0, port.0), Some(&b"packet"[..]));
            assert_eq!(read(0x1234_5678_9abc_def1, port.0), None);
        }
        // It is not for a port whose GUID spans two of them, either.
        for port in [3, 0x0001_0002_ffff_ffff, 1 << 63] {
            assert_eq!(read(0x1234_5678_9abc_def0, port), None);
        }
    }

    #[test]
    fn invalid_multicast_datagrams_are_malformed() {
        let mut datagram = Vec::new();
        put(9, [Guid(1), Guid(2)].into_iter(), &[], &mut datagram);
        assert_eq!(parse(&datagram, 9, Guid(2)), Ok(Some(&[][..])));
        for len in 0..datagram.len() {
            assert_eq!(parse(&datagram[..len], 9, Guid(1)), Err(IbDrop::RxMalformed), "{len}");
        }
        for (at, to, why) in [
            (0, 1, IbDrop::RxVersion),
            (1, 1, IbDrop::RxMalformed),
            (2, 1, IbDrop::RxMalformed),
            (3, 3, IbDrop::RxMalformed),
            (4, 1, IbDrop::RxMalformed),
            (7, 1, IbDrop::RxMalformed),
        ] {
            let mut datagram = datagram.clone();
            datagram[at] = to;
            assert_eq!(parse(&datagram, 9, Guid(1)), Err(why), "{at}");
        }
    }

    #[test]
    fn multicast_groups_map_to_239_addresses_and_longest_datagram_fits() {
        let mgid = |n: u8| Gid([0xff, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]);
        assert_eq!(address(mgid(1)).octets()[0], 239);
        assert_ne!(address(mgid(1)), address(mgid(2)));
        let longest = HEADER + MOST * GUID + usize::from(super::super::Encap::MAX_TOTAL);
        assert!(longest <= 65_507, "{longest}");
    }
}
