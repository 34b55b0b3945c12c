//! The codecs: no input makes them panic, and parsed data is encoded identically.

use std::fmt::Display;

use rdmux_wire::cm::{CmMad, IpHeader, Message};
use rdmux_wire::ether::Ether;
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo, solve_ipv4_id};
use rdmux_wire::ip::{Ipv4, Ipv6};
use rdmux_wire::mad::{MAD_LEN, MadHeader};
use rdmux_wire::tcp::Tcp;
use rdmux_wire::udp::Udp;
use rdmux_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Grh, Ieth, ImmDt, Lrh, Packet, Reth, Rmpp, XrcEth,
};

/// Parses a transport packet, from the BTH on.
pub fn wire_packet(data: &[u8]) {
    let Ok(packet) = Packet::parse(data) else { return };
    shows(&packet);
    let mut bytes = packet.header().as_slice().to_vec();
    bytes.extend_from_slice(packet.payload);
    bytes.extend(std::iter::repeat_n(0, usize::from(packet.bth.pad)));
    let again = Packet::parse(&bytes).expect("what was written can be read");
    assert_eq!(again, packet);
}

/// Parses every header, from the offset in the first byte.
pub fn wire_headers(data: &[u8]) {
    let Some((&at, data)) = data.split_first() else { return };
    let data = data.get(usize::from(at) % 64..).unwrap_or_default();
    macro_rules! each {
        ($($header:ident)*) => {$(
            if let Ok(h) = $header::parse(data) {
                shows(&h);
                let again = $header::parse(&h.to_bytes()).expect("what was written can be read");
                assert_eq!(again, h);
            } else {
                assert!(data.len() < $header::LEN || may_refuse(stringify!($header)));
            }
        )*};
    }
    each!(Bth Reth Aeth AtomicEth AtomicAckEth Deth ImmDt Ieth XrcEth Grh Lrh Rmpp);
}

/// Returns whether a header may be refused for its values, besides for its length.
fn may_refuse(header: &str) -> bool {
    matches!(header, "Grh" | "Lrh")
}

/// Parses the network headers below the transport, in a frame.
pub fn wire_network(data: &[u8]) {
    let Ok(ether) = Ether::parse(data) else { return };
    assert!(ether.header_len <= data.len());
    let ip = &data[ether.header_len..];
    if let Ok(v4) = Ipv4::parse(ip) {
        shows(&v4);
        let again = Ipv4::parse(&Ipv4 { header_len: 20, ..v4 }.to_bytes());
        assert_eq!(again.map(|h| h.dst), Ok(v4.dst));
        segment(ip.get(v4.header_len.into()..).unwrap_or_default());
    }
    if let Ok(v6) = Ipv6::parse(ip) {
        shows(&v6);
        assert_eq!(Ipv6::parse(&v6.to_bytes()), Ok(v6));
    }
    segment(ip);
}

/// Parses bytes as the headers above IP.
fn segment(bytes: &[u8]) {
    if let Ok(udp) = Udp::parse(bytes) {
        shows(&udp);
    }
    if let Ok(tcp) = Tcp::parse(bytes) {
        shows(&tcp);
        assert_eq!(Tcp::parse(&tcp.to_bytes()), Ok(Tcp { header_len: 20, ..tcp }));
    }
}

/// Parses a management datagram, and each message of the connection manager.
pub fn wire_mad(data: &[u8]) {
    let mut mad = [0; MAD_LEN];
    let n = data.len().min(MAD_LEN);
    mad[..n].copy_from_slice(&data[..n]);
    if let Ok(header) = MadHeader::parse(data) {
        shows(&header);
        assert_eq!(MadHeader::parse(&header.to_bytes()), Ok(header));
    }
    if let Ok(cm) = CmMad::parse(&mad) {
        shows(&cm);
        assert_eq!(CmMad::parse(&cm.to_bytes()), Ok(cm));
    }
    // Parse the body as every message, whatever the header says; 0x10 to 0x1a are the attributes.
    for attr in 0x0f..0x1c {
        let Ok(message) = Message::parse(attr, &mad[MadHeader::LEN..]) else { continue };
        shows(&message);
        let mut body = [0; MAD_LEN - MadHeader::LEN];
        message.emit(&mut body);
        assert_eq!(Message::parse(attr, &body), Ok(message));
    }
    if let Ok(ip) = IpHeader::parse(data) {
        shows(&ip);
        assert_eq!(IpHeader::parse(&ip.to_bytes()), Ok(ip));
    }
}

/// Checks that the ICRC does not depend on how a packet is split, and that the Identification can be recovered from it.
pub fn wire_icrc(data: &[u8]) {
    let Some((&[a, b, cut, turn], packet)) = data.split_first_chunk() else { return };
    if packet.len() < Bth::LEN {
        return;
    }
    let id = u16::from_be_bytes([a, b]);
    let Ok(udp_len) = u16::try_from(8 + packet.len() + Icrc::LEN) else { return };
    let pseudo = |id| Ipv4Pseudo {
        src: [10, a, b, 1].into(),
        dst: [10, cut, turn, 2].into(),
        id,
        src_port: 4791,
        dst_port: 4791,
        udp_len,
    };
    let sum = |id, cut: usize| {
        let mut icrc = Icrc::ipv4(&pseudo(id));
        // The first piece has the whole BTH.
        let (head, tail) = packet.split_at(cut.clamp(Bth::LEN, packet.len()));
        icrc.update(head);
        icrc.update(tail);
        icrc.finish()
    };
    let sent = sum(id, packet.len());
    assert_eq!(sum(id, usize::from(cut)), sent);
    assert_eq!(solve_ipv4_id(sum(0, packet.len()), sent, udp_len), Some(id));
    // A changed checksum belongs to another Identification, if to any.
    let mut wrong = sent;
    wrong[usize::from(turn) % Icrc::LEN] ^= turn | 1;
    assert_ne!(solve_ipv4_id(sum(0, packet.len()), wrong, udp_len), Some(id));
}

fn shows(value: &impl Display) {
    assert!(!value.to_string().is_empty());
}
