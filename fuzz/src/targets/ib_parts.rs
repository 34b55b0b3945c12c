//! InfiniBand packets over UDP: untrusted datagrams.

use std::net::SocketAddr;

use anyhow::Result;
use rdmux_link::ib::encap::Encap;
use rdmux_link::ib::multicast;
use rdmux_link::ib::reassembly::{Joined, Reassembly};
use rdmux_wire::Guid;
use rdmux_wire::ib_packet::Parts;

use super::wire_ib;

/// Reassembles datagrams of several senders, in any order. The number of incomplete packets is bounded, and a complete packet
/// has the length in its parts. Sender and length precede each datagram.
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

/// Parses a datagram for all members of a group, for a port of a fabric; both precede the datagram. The packet for the port
/// is the end of the datagram, and encoding it with the same ports gives the same datagram.
pub fn ib_group(data: &[u8]) {
    let Some((head, datagram)) = data.split_first_chunk::<16>() else { return };
    let [fabric, port] = [0, 8].map(|at| u64::from_be_bytes(std::array::from_fn(|i| head[at + i])));
    let Ok(Some(packet)) = multicast::parse(datagram, fabric, Guid(port)) else { return };
    let ports = &datagram[16..datagram.len() - packet.len()];
    let ports = ports.as_chunks().0.iter().map(|guid| Guid(u64::from_be_bytes(*guid)));
    assert!(ports.clone().any(|guid| guid.0 == port));
    let mut written = Vec::new();
    multicast::put(fabric, ports, packet, &mut written);
    assert_eq!(written, datagram);
    let _ = Parts::split(packet).map(|parts| parts.right_icrc());
}

/// Returns packets, each for some ports.
///
/// # Errors
/// When the captures cannot be read.
pub fn group_datagrams() -> Result<Vec<Vec<u8>>> {
    let seed = |(n, packet): (usize, Vec<u8>)| {
        let ports = (1..=1 + n % 5).map(|n| Guid(n as u64)).collect::<Vec<_>>();
        let mut datagram = Vec::new();
        multicast::put(7, ports.into_iter(), &packet, &mut datagram);
        [&7_u64.to_be_bytes()[..], &1_u64.to_be_bytes(), &datagram].concat()
    };
    Ok(wire_ib::packets()?.into_iter().enumerate().map(seed).collect())
}

/// Returns packets, each in some parts.
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
