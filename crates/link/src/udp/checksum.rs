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

/// Starts the ICRC of a packet of `len` bytes, BTH to ICRC. `id` is the IPv4 Identification.
pub(super) fn begin(src: SocketAddr, dst: SocketAddr, id: u16, len: usize) -> Icrc {
    let udp_len = u16::try_from(UDP_HEADER + len).unwrap_or(u16::MAX);
    let (src_port, dst_port) = (src.port(), dst.port());
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Icrc::ipv4(&Ipv4Pseudo { src, dst, id, src_port, dst_port, udp_len })
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Icrc::ipv6(&Ipv6Pseudo { src, dst, src_port, dst_port, udp_len })
        }
        // One of the two was mapped into the other family; such a packet does not exist.
        _ => {
            let none = Ipv4Addr::UNSPECIFIED;
            Icrc::ipv4(&Ipv4Pseudo { src: none, dst: none, id, src_port, dst_port, udp_len })
        }
    }
}

/// Checks the ICRC at the end of `bytes`, BTH to ICRC. `id` is the likely IPv4 Identification.
pub(crate) fn check(src: SocketAddr, dst: SocketAddr, id: u16, bytes: &[u8]) -> IcrcCheck {
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

#[cfg(test)]
mod tests {
    use rdmux_wire::ip::{self, Ipv4};
    use rdmux_wire::udp::Udp;

    use super::*;

    #[test]
    fn icrc_covers_the_destination_port_of_the_udp_header() {
        const PORT: u16 = 4792;
        let packet = [0x33; 32];
        let length = u16::try_from(UDP_HEADER + packet.len() + Icrc::LEN).unwrap();
        let [src, dst] = [1, 2].map(|n| Ipv4Addr::new(10, 0, 0, n));
        let header = Ipv4 {
            header_len: 20,
            tos: 0,
            total_len: 20 + length,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: ip::UDP,
            src,
            dst,
        };
        let udp = Udp { src_port: 0xc000, dst_port: PORT, length, checksum: 0 };
        let mut icrc = Icrc::of_ipv4_headers(&header.to_bytes(), udp.to_bytes());
        icrc.update(&packet);
        let bytes = [&packet[..], &icrc.finish()].concat();
        let (src, dst) = ((src, 0xc000).into(), SocketAddr::from((dst, PORT)));
        assert_eq!(check(src, dst, 0, &bytes), IcrcCheck::Right);
        let mut sent = begin(src, dst, 0, bytes.len());
        sent.update(&packet);
        assert_eq!(sent.finish(), bytes[packet.len()..]);
    }
}
