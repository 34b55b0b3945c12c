//! The ICRC of a packet inside a UDP datagram.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rdmux_wire::icrc::{Icrc, Ipv4Pseudo, Ipv6Pseudo, solve_ipv4_id};

/// The length of a UDP header in bytes.
const UDP_HEADER: usize = 8;

/// The result of comparing an ICRC with its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcrcCheck {
    /// Right. Over IPv4, with the expected Identification.
    Right,
    /// Right with an unexpected Identification: one in 65,536 wrong packets passes.
    Solved,
    /// Wrong: the packet must be dropped.
    Wrong,
    /// The packet has none: the wire protects its packets by other means.
    Absent,
}

/// Starts the ICRC of a packet of `len` bytes, BTH to ICRC. `id` is the IPv4 Identification. The destination port is always taken
/// as 4791.
pub(super) fn begin(src: SocketAddr, dst: IpAddr, id: u16, len: usize) -> Icrc {
    let udp_len = u16::try_from(UDP_HEADER + len).unwrap_or(u16::MAX);
    let src_port = src.port();
    match (src.ip(), dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Icrc::ipv4(&Ipv4Pseudo { src, dst, id, src_port, udp_len })
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Icrc::ipv6(&Ipv6Pseudo { src, dst, src_port, udp_len })
        }
        // One of the two was mapped into the other family; such a packet does not exist.
        _ => {
            let none = Ipv4Addr::UNSPECIFIED;
            Icrc::ipv4(&Ipv4Pseudo { src: none, dst: none, id, src_port, udp_len })
        }
    }
}

/// Checks the ICRC at the end of `bytes`, BTH to ICRC. `id` is the likely IPv4 Identification.
pub(crate) fn check(src: SocketAddr, dst: IpAddr, id: u16, bytes: &[u8]) -> IcrcCheck {
    let Some((covered, received)) = bytes.split_last_chunk::<{ Icrc::LEN }>() else {
        return IcrcCheck::Wrong;
    };
    let mut icrc = begin(src, dst, id, bytes.len());
    icrc.update(covered);
    let computed = icrc.finish();
    if computed == *received {
        return IcrcCheck::Right;
    }
    // The CRC is linear: the difference determines in which bits the Identification differs from the likely one.
    let udp_len = u16::try_from(UDP_HEADER + bytes.len()).unwrap_or(u16::MAX);
    match solve_ipv4_id(computed, *received, udp_len) {
        Some(_) if dst.is_ipv4() && src.is_ipv4() => IcrcCheck::Solved,
        _ => IcrcCheck::Wrong,
    }
}
