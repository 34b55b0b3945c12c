//! InfiniBand packets over UDP: datagrams of strangers.

use std::net::SocketAddr;

use anyhow::Result;
use rdmux_link::ib::encap::Encap;
use rdmux_link::ib::reassembly::{Joined, Reassembly};
use rdmux_wire::ib_packet::Parts;

use super::wire_ib;

/// Datagrams of several senders, in any order: no more packets are under way than may be, and what becomes whole is as long
/// as its parts said. Before each datagram are its sender and its length.
pub fn ib_parts(mut data: &[u8]) {
    let mut reassembly = Reassembly::default();
    while let Some(([sender, a, b], rest)) = data.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*a, *b])).min(rest.len());
        let (datagram, rest) = rest.split_at(length);
        data = rest;
        let Ok((encap, body)) = Encap::parse(datagram) else { continue };
        assert_eq!(encap.to_bytes(), datagram[..Encap::LEN]);
        assert_eq!(encap.place().len(), body.len());
        let from = SocketAddr::from(([10, 0, 0, *sender], 4791));
        if let Joined::Whole(packet) = reassembly.join(from, &encap, body) {
            assert_eq!(packet.len(), usize::from(encap.total));
            let _ = Parts::split(packet).map(|parts| parts.right_icrc());
        }
        assert!(reassembly.under_way() <= Reassembly::MOST);
    }
}

/// Packets, each in some parts.
///
/// # Errors
/// When the captures cannot be read.
pub fn datagrams() -> Result<Vec<Vec<u8>>> {
    let seed = |(n, packet): (usize, Vec<u8>)| {
        let packet = &packet[..packet.len() / 4 * 4];
        let total = u16::try_from(packet.len()).ok()?;
        let parts = 1 + (n % 7).to_le_bytes()[0];
        let encap = |part| Encap { part, parts, steer: 7, number: 7, total };
        let datagrams = (0..parts).flat_map(|part| {
            let datagram = [&encap(part).to_bytes(), &packet[encap(part).place()]].concat();
            let length = u16::try_from(datagram.len()).unwrap_or(0);
            [&[1][..], &length.to_le_bytes(), &datagram].concat()
        });
        Some(datagrams.collect())
    };
    Ok(wire_ib::packets()?.into_iter().enumerate().filter_map(seed).collect())
}
