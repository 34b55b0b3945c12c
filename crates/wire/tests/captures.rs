//! Every RoCE packet of the kernel's captures: parsed, written again, and its ICRC checked.

use std::fs::File;
use std::path::PathBuf;

use pcap_file::pcap::PcapReader;
use rdmux_wire::cm::CmMad;
use rdmux_wire::ether::Ether;
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo, solve_ipv4_id};
use rdmux_wire::ip::{self, Ipv4};
use rdmux_wire::udp::{self, Udp};
use rdmux_wire::{Opcode, Packet, Qpn};

/// A RoCEv2 packet in IPv4.
struct Roce {
    ip: Ipv4,
    udp: Udp,
    /// The bytes from the BTH through the pad.
    transport: Vec<u8>,
    icrc: [u8; 4],
}

impl Roce {
    fn parse(frame: &[u8]) -> Option<Self> {
        let ether = Ether::parse(frame).unwrap();
        if ether.ethertype != rdmux_wire::ether::IPV4 {
            return None;
        }
        let bytes = &frame[ether.header_len..];
        let ip = Ipv4::parse(bytes).unwrap();
        let payload = &bytes[usize::from(ip.header_len)..usize::from(ip.total_len)];
        if ip.protocol != ip::UDP {
            return None;
        }
        let udp = Udp::parse(payload).unwrap();
        assert_eq!(udp.dst_port, udp::ROCE_PORT);
        let (transport, icrc) = payload[Udp::LEN..].split_last_chunk::<4>().unwrap();
        Some(Self { ip, udp, transport: transport.to_vec(), icrc: *icrc })
    }

    fn icrc_with_id(&self, id: u16) -> [u8; 4] {
        let pseudo = Ipv4Pseudo {
            src: self.ip.src,
            dst: self.ip.dst,
            id,
            src_port: self.udp.src_port,
            dst_port: self.udp.dst_port,
            udp_len: self.udp.length,
        };
        let mut icrc = Icrc::ipv4(&pseudo);
        icrc.update(&self.transport);
        icrc.finish()
    }
}

/// Calls `check` for every RoCE packet of every capture, and returns how many there were.
fn each_packet(mut check: impl FnMut(&str, &Roce)) -> usize {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures");
    let mut count = 0;
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("rxe_") {
            continue;
        }
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        while let Some(packet) = reader.next_packet() {
            if let Some(roce) = Roce::parse(&packet.unwrap().data) {
                check(&name, &roce);
                count += 1;
            }
        }
    }
    count
}

/// All packets have DF and an Identification, which a receiver recovers.
#[test]
fn captured_packets_have_the_right_icrc_and_recoverable_identification() {
    let mut ids = std::collections::BTreeSet::new();
    let count = each_packet(|file, roce| {
        assert_eq!(roce.icrc_with_id(roce.ip.id), roce.icrc, "{file}: ICRC");
        let solved = solve_ipv4_id(roce.icrc_with_id(0), roce.icrc, roce.udp.length);
        assert_eq!(solved, Some(roce.ip.id), "{file}: Identification");
        assert!(roce.ip.dont_fragment);
        ids.insert(roce.ip.id);
    });
    assert_eq!(count, 3411);
    assert!(ids.len() > 1000, "{} distinct Identifications", ids.len());
}

#[test]
fn captured_packets_parse_with_separate_headers_and_payload() {
    each_packet(|name, roce| {
        let whole = Packet::parse(&roce.transport).unwrap();
        let (headers, tail) = roce.transport.split_at(whole.header().len());
        assert_eq!(Packet::parse_parts(headers, tail), Ok(whole), "{name}");
        assert!(Packet::parse_parts(&headers[..headers.len() - 1], tail).is_err(), "{name}");
        let pad = usize::from(whole.bth.pad);
        assert_eq!(Packet::parse_parts(headers, &tail[..pad]).unwrap().payload, b"", "{name}");
        assert!(pad == 0 || Packet::parse_parts(headers, &tail[..pad - 1]).is_err(), "{name}");
        if let Some((first, rest)) = tail.split_first() {
            let long = [headers, &[*first]].concat();
            assert!(Packet::parse_parts(&long, rest).is_err(), "{name}");
        }
    });
}

#[test]
fn captured_transport_headers_round_trip() {
    each_packet(|file, roce| {
        let packet = Packet::parse(&roce.transport).unwrap();
        let header = packet.header();
        let mut again = header.as_slice().to_vec();
        again.extend_from_slice(packet.payload);
        again.resize(again.len() + usize::from(packet.bth.pad), 0);
        assert_eq!(again, roce.transport, "{file}: {packet}");
        assert_eq!(header.len(), 12 + packet.bth.opcode.ext_len());
    });
}

#[test]
fn captured_cm_messages_round_trip() {
    let mut names = std::collections::BTreeMap::new();
    each_packet(|file, roce| {
        let packet = Packet::parse(&roce.transport).unwrap();
        if packet.bth.opcode != Opcode::UD_SEND_ONLY || packet.bth.dest_qpn != Qpn::QP1 {
            return;
        }
        let mad = CmMad::parse(packet.payload).unwrap();
        assert_eq!(mad.to_bytes(), packet.payload, "{file}: {mad}");
        *names.entry(mad.message.name()).or_insert(0) += 1;
    });
    let names: Vec<_> = names.into_iter().collect();
    let expected = [("DREP", 7), ("DREQ", 7), ("REJ", 1), ("REP", 7), ("REQ", 8), ("RTU", 7)];
    assert_eq!(names[..6], expected);
    assert_eq!(names[6..], [("SIDR_REP", 2), ("SIDR_REQ", 2)]);
}
