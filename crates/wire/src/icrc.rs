//! Invariant CRC over everything that no router changes, from the network header to the last pad
//! byte (IBTA 7.8.1; for RoCEv2 annex A17.3.3).
//!
//! It is the CRC-32 of the packet with every field that may change in transit set to ones, and is sent least
//! significant byte first. RoCE has no LRH before the network header, so eight bytes of ones replace it.
//!
//! ```
//! # use rdmux_wire::icrc::{Icrc, Ipv4Pseudo};
//! # let (header, payload, pad) = ([0_u8; 12], [0_u8; 5], [0_u8; 3]);
//! # let [src, dst] = [[192, 168, 2, 1].into(), [192, 168, 2, 2].into()];
//! let udp_len = 8 + header.len() + payload.len() + pad.len() + Icrc::LEN;
//! let (src_port, dst_port) = (0xc000, 4791);
//! let pseudo = Ipv4Pseudo { src, dst, id: 0, src_port, dst_port, udp_len: udp_len as u16 };
//! let mut icrc = Icrc::ipv4(&pseudo);
//! icrc.update(&header); // BTH and extension headers
//! icrc.update(&payload);
//! icrc.update(&pad);
//! let on_the_wire: [u8; 4] = icrc.finish();
//! ```

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::bth::CONGESTION_BYTE;
use crate::bytes::{put, put16};
use crate::crc::Crc32;
use crate::{Grh, Lrh};

mod solve;

pub use solve::{solve_id, solve_ipv4_id};

/// The fields of a RoCEv2 packet's IPv4 and UDP headers that the ICRC covers. All others are masked,
/// or the same in all packets: no options, DF set and not a fragment, UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Pseudo {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// The Identification. A receiver that does not see it sets 0, and calls [`solve_ipv4_id`].
    pub id: u16,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port as sent: 4791, or another on which the receiver listens.
    pub dst_port: u16,
    /// UDP length: 8, headers, payload, pad and the 4 bytes of ICRC.
    pub udp_len: u16,
}

/// The fields of a RoCEv2 packet's IPv6 and UDP headers that the ICRC covers, without extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Pseudo {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port as sent: 4791, or another on which the receiver listens.
    pub dst_port: u16,
    /// UDP length: 8, headers, payload, pad and the 4 bytes of ICRC.
    pub udp_len: u16,
}

/// An incremental ICRC. The first bytes passed to [`Icrc::update`] are those of the BTH.
#[derive(Clone, Debug)]
pub struct Icrc {
    crc: Crc32,
    /// Bytes added since the first one of the BTH, no longer counted after the masked byte.
    seen: usize,
}

impl Icrc {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Creates the ICRC of a RoCEv2 packet in IPv4.
    #[inline]
    pub fn ipv4(pseudo: &Ipv4Pseudo) -> Self {
        const UDP: usize = 28;
        let mut b = [0xff; UDP + 8]; // 8 for the LRH, 20 of IPv4, 8 of UDP; ones where masked
        let total = pseudo.udp_len.wrapping_add(20);
        put(&mut b, 8, [0x45]);
        put16(&mut b, 10, total);
        put16(&mut b, 12, pseudo.id);
        put16(&mut b, 14, 0x4000); // don't fragment
        put(&mut b, 17, [crate::ip::UDP]);
        put(&mut b, 20, pseudo.src.octets());
        put(&mut b, 24, pseudo.dst.octets());
        put_udp(&mut b, UDP, [pseudo.src_port, pseudo.dst_port], pseudo.udp_len);
        Self::after(&b)
    }

    /// Creates the ICRC of a RoCEv2 packet in IPv6.
    #[inline]
    pub fn ipv6(pseudo: &Ipv6Pseudo) -> Self {
        const UDP: usize = 48;
        let mut b = [0xff; UDP + 8]; // 8 for the LRH, 40 of IPv6, 8 of UDP; ones where masked
        put(&mut b, 8, [0x6f]);
        put16(&mut b, 12, pseudo.udp_len);
        put(&mut b, 14, [crate::ip::UDP]);
        put(&mut b, 16, pseudo.src.octets());
        put(&mut b, 32, pseudo.dst.octets());
        put_udp(&mut b, UDP, [pseudo.src_port, pseudo.dst_port], pseudo.udp_len);
        Self::after(&b)
    }

    /// Creates the ICRC of a captured RoCEv2 packet from its IPv4 header, options included, and its UDP header.
    pub fn of_ipv4_headers(ip: &[u8], udp: [u8; 8]) -> Self {
        let mut icrc = Self::after(&[0xff; Lrh::LEN]);
        let fixed = ip.len().min(20);
        let mut b = [0; 20];
        b[..fixed].copy_from_slice(&ip[..fixed]);
        for masked in [1, 8, 10, 11] {
            b[masked] = 0xff; // TOS, TTL, checksum
        }
        icrc.crc.update(&b[..fixed]);
        icrc.crc.update(&ip[fixed..]);
        icrc.udp(udp);
        icrc
    }

    /// Creates the ICRC of a packet of an InfiniBand subnet. With a GRH the whole LRH is masked,
    /// because a router makes a new one.
    pub fn infiniband(lrh: &Lrh, grh: Option<&Grh>) -> Self {
        match grh {
            None => Self::of_route_headers(&lrh.to_bytes()),
            Some(grh) => {
                let mut b = [0; Lrh::LEN + Grh::LEN];
                lrh.emit(&mut b);
                grh.emit(&mut b[Lrh::LEN..]);
                Self::of_route_headers(&b)
            }
        }
    }

    /// Creates the ICRC of a captured packet of an InfiniBand subnet from its LRH, reserved bits
    /// included, and its GRH if it has one.
    pub fn of_route_headers(route: &[u8]) -> Self {
        let mut b = [0xff; Lrh::LEN + Grh::LEN]; // ones where masked
        let len = route.len().min(b.len());
        if len <= Lrh::LEN {
            b[..len].copy_from_slice(&route[..len]);
            b[0] |= 0xf0; // VL
            return Self::after(&b[..len]);
        }
        b[Lrh::LEN..len].copy_from_slice(&route[Lrh::LEN..len]);
        b[8] |= 0x0f; // traffic class
        b[9..12].fill(0xff); // traffic class, flow label
        b[15] = 0xff; // hop limit
        Self::after(&b[..len])
    }

    /// Adds the next bytes: first BTH and extension headers, then payload, then pad, in any number
    /// of pieces. The BTH's congestion byte is masked here.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if self.seen > CONGESTION_BYTE {
            self.crc.update(bytes);
        } else {
            self.update_bth(bytes);
        }
    }

    /// Returns the ICRC in wire format.
    #[inline]
    pub fn finish(self) -> [u8; Self::LEN] {
        self.crc.finish().to_le_bytes()
    }

    /// Creates the ICRC after `prefix`, the masked headers before the BTH.
    fn after(prefix: &[u8]) -> Self {
        let mut crc = Crc32::new();
        crc.update(prefix);
        Self { crc, seen: 0 }
    }

    fn udp(&mut self, mut header: [u8; 8]) {
        header[6..].fill(0xff);
        self.crc.update(&header);
    }

    /// Adds the BTH. A copy of the headers is cheaper than a CRC in three pieces.
    fn update_bth(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(crate::MAX_HEADER));
        let mut copy = [0; crate::MAX_HEADER];
        let copy = &mut copy[..head.len()];
        copy.copy_from_slice(head);
        if let Some(byte) = copy.get_mut(CONGESTION_BYTE - self.seen) {
            *byte = 0xff;
        }
        self.crc.update(copy);
        self.crc.update(rest);
        self.seen += bytes.len();
    }
}

fn put_udp(b: &mut [u8], at: usize, [src_port, dst_port]: [u16; 2], udp_len: u16) {
    put16(b, at, src_port);
    put16(b, at + 2, dst_port);
    put16(b, at + 4, udp_len);
}

#[cfg(test)]
mod tests;
