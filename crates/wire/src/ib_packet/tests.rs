//! Whole InfiniBand packets: their checksums, the fields that are filled in, and invalid packets.

use super::*;
use crate::mad::{MAD_LEN, Method};
use crate::smp::Smp;
use crate::{Deth, Gid, Lid, Opcode, Psn, Qkey, Qpn};

/// An RC RDMA_WRITE_ONLY of 14 bytes without GRH, from the LRH through the pad, and its ICRC.
const SAMPLE: [u8; 52] = [
    0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3,
    0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05,
    0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69,
    0x0e, 0xd4, 0x00, 0x00,
];
const SAMPLE_ICRC: [u8; 4] = [0x96, 0x25, 0xb7, 0x5a];

fn sample() -> Vec<u8> {
    let covered = [&SAMPLE[..], &SAMPLE_ICRC].concat();
    let vcrc = vcrc::vcrc(&[&covered]);
    [covered, vcrc.to_vec()].concat()
}

#[test]
fn sample_infiniband_packet_has_the_right_icrc() {
    let bytes = sample();
    let parts = Parts::split(&bytes).unwrap();
    assert_eq!(parts.right_icrc(), SAMPLE_ICRC);
    let packet = IbPacket::parse(&bytes).unwrap();
    assert_eq!((packet.lrh.vl, packet.lrh.sl), (7, 1));
    assert_eq!((packet.lrh.dlid, packet.lrh.slid), (Lid(0x375c), Lid(0x17d2)));
    assert_eq!(packet.packet.bth.opcode, Opcode::RC_WRITE_ONLY);
    assert_eq!(packet.packet.payload.len(), 14);
    let mut out = [0xee; 60];
    assert_eq!(packet.emit(&mut out), 58);
    assert_eq!(out[..58], bytes);
    assert_eq!(out[58..], [0xee; 2]);
}

/// A local packet's ICRC covers everything but VL and the congestion byte.
#[test]
fn icrc_of_a_local_packet_covers_all_but_vl_and_congestion_byte() {
    for bit in 0..SAMPLE.len() * 8 {
        let mut bytes = [&SAMPLE[..], &SAMPLE_ICRC].concat();
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        let vl = bit < 4;
        let congestion = bit / 8 == Lrh::LEN + 4;
        // A changed length or LNH changes the packet's extent.
        if let Ok(parts) = Parts::split(&bytes) {
            assert_eq!(parts.right_icrc() == SAMPLE_ICRC, vl || congestion, "bit {bit}");
        }
    }
}

fn global() -> IbPacket<'static> {
    let grh = Grh {
        tclass: 1,
        flow_label: 2,
        pay_len: 0,
        next_hdr: 0,
        hop_limit: 3,
        sgid: Gid([1; 16]),
        dgid: Gid([2; 16]),
    };
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::MULTICAST, Psn::new(7));
    let deth = Deth { qkey: Qkey(0xb1b), src_qpn: Qpn::new(0x48) };
    let packet = Packet { deth: Some(deth), ..Packet::new(bth, b"to all of you") };
    IbPacket {
        lrh: Lrh { dlid: Lid(0xc000), slid: Lid(4), ..Lrh::DEFAULT },
        grh: Some(grh),
        packet,
    }
}

/// A router may change the whole LRH, and traffic class, flow label and hop limit.
#[test]
fn icrc_of_a_global_packet_excludes_lrh_tclass_flow_label_and_hop_limit() {
    let mut bytes = [0; 128];
    let len = global().emit(&mut bytes) - vcrc::LEN;
    let right = Parts::split(&bytes).unwrap().right_icrc();
    assert_eq!(right, bytes[len - 4..len]);
    for bit in 0..(len - 4) * 8 {
        let mut changed = bytes;
        changed[bit / 8] ^= 0x80 >> (bit % 8);
        let may = match bit / 8 {
            0..8 => true,
            8 => bit % 8 >= 4,
            9..12 | 15 => true,
            byte => byte == Lrh::LEN + Grh::LEN + 4,
        };
        if let Ok(parts) = Parts::split(&changed)
            && parts.grh.is_some()
        {
            assert_eq!(parts.right_icrc() == right, may, "byte {} bit {}", bit / 8, bit % 8);
        }
    }
}

#[test]
fn emit_fills_in_packet_lengths_and_next_header() {
    let packet = global();
    let mut bytes = [0; 128];
    let len = packet.emit(&mut bytes);
    assert_eq!((len, packet.wire_len()), (8 + 40 + 12 + 8 + 16 + 4 + 2, len));
    let received = IbPacket::parse(&bytes[..len]).unwrap();
    assert_eq!(usize::from(received.lrh.pkt_len) * 4, len - 2);
    let grh = received.grh.unwrap();
    assert_eq!((usize::from(grh.pay_len), grh.next_hdr), (12 + 8 + 16 + 4, Grh::NEXT_BTH));
    assert_eq!((received.packet.bth.pad, received.packet.payload), (3, &b"to all of you"[..]));
    let shown = received.to_string();
    assert!(shown.starts_with("lid 0x0004 > 0xc000 sl 0 vl 0 101:101:"), "{shown}");
}

/// 72 words, like every management datagram without GRH.
#[test]
fn mad_packet_is_288_bytes_plus_vcrc() {
    let mad = Smp::lid_routed(Method::GET, 0x11, 0).to_bytes();
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::QP0, Psn::new(0));
    let deth = Deth { qkey: Qkey(0), src_qpn: Qpn::QP0 };
    let packet = Packet { deth: Some(deth), ..Packet::new(bth, &mad) };
    let lrh = Lrh { vl: 15, dlid: Lid(1), slid: Lid(2), ..Lrh::DEFAULT };
    let mut bytes = [0; 300];
    assert_eq!(IbPacket { lrh, grh: None, packet }.emit(&mut bytes), 290);
    let received = IbPacket::parse(&bytes).unwrap();
    assert_eq!((received.lrh.pkt_len, received.packet.payload.len()), (72, MAD_LEN));
    assert!(Smp::parse(received.packet.payload).is_ok());
}

#[test]
fn wrong_vcrc_and_icrc_are_refused() {
    let mut bytes = sample();
    bytes[56] ^= 1;
    assert!(matches!(IbPacket::parse(&bytes), Err(WireError::Vcrc { .. })));
    let mut bytes = sample();
    bytes[40] ^= 1;
    let vcrc = vcrc::vcrc(&[&bytes[..56]]);
    bytes[56..].copy_from_slice(&vcrc);
    let error = IbPacket::parse(&bytes).unwrap_err();
    assert!(matches!(error, WireError::Icrc { found: 0x9625_b75a, .. }), "{error}");
}

#[test]
fn truncated_raw_or_malformed_infiniband_packets_are_refused() {
    let good = sample();
    let refused = |change: fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        IbPacket::parse(&bytes).unwrap_err()
    };
    assert!(matches!(refused(|b| b.truncate(57)), WireError::Short { what: "VCRC", .. }));
    assert!(matches!(refused(|b| b.truncate(55)), WireError::Truncated { says: 56, have: 55, .. }));
    assert!(matches!(refused(|b| b[5] = 5), WireError::Short { need: 24, have: 20, .. }));
    assert!(matches!(refused(|b| b[5] = 0), WireError::Short { need: 24, have: 0, .. }));
    assert!(matches!(refused(|b| b[1] = 0x10), WireError::Value { what: "LNH", value: 0 }));
    assert!(matches!(refused(|b| b[1] = 0x11), WireError::Value { what: "LNH", value: 1 }));
    assert!(matches!(refused(|b| b[0] = 0x71), WireError::Value { what: "link version", .. }));
    assert!(matches!(refused(|b| b[1] = 0x13), WireError::Value { what: "IPVer of a GRH", .. }));
    let mut bytes = [0; 128];
    global().emit(&mut bytes);
    bytes[14] = 0x11;
    assert!(matches!(Parts::split(&bytes), Err(WireError::Value { value: 0x11, .. })));
    bytes[14] = Grh::NEXT_BTH;
    bytes[13] ^= 4;
    assert!(matches!(Parts::split(&bytes), Err(WireError::Truncated { .. })));
    assert!(Parts::split(&[]).is_err());
}
