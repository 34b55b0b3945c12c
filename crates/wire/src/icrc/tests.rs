//! The ICRC: sample packets, masked fields, and the search for the Identification.

use proptest::prelude::*;

use super::*;
use crate::udp::ROCE_PORT;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digits = std::str::from_utf8(&digits).unwrap();
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
        .collect()
}

/// An RC RDMA_WRITE_ONLY in IPv4, with Identification 1 and without DF.
const SAMPLE: &str = "4500004c000100004011f54cc0a80201c0a80202 01f412b70038ffa6
    0a00ffff0000000200000000 00000000000012300000000000000010
    000102030405060708090a0b0c0d0e0f ca47470e";

#[test]
fn sample_roce_packet_has_the_right_icrc() {
    let packet = hex(SAMPLE);
    let (ip, rest) = packet.split_at(20);
    let (udp, rest) = rest.split_first_chunk::<8>().unwrap();
    let (covered, icrc) = rest.split_last_chunk::<4>().unwrap();
    let mut whole = Icrc::of_ipv4_headers(ip, *udp);
    whole.update(covered);
    assert_eq!(whole.finish(), *icrc);
    for split in 0..covered.len() {
        let mut pieces = Icrc::of_ipv4_headers(ip, *udp);
        pieces.update(&covered[..split]);
        pieces.update(&covered[split..]);
        assert_eq!(pieces.finish(), *icrc, "split at {split}");
    }
}

const PSEUDO: Ipv4Pseudo = Ipv4Pseudo {
    src: Ipv4Addr::new(10, 0, 0, 1),
    dst: Ipv4Addr::new(10, 0, 0, 2),
    id: 0,
    src_port: 0xc123,
    dst_port: ROCE_PORT,
    udp_len: 0,
};

/// Returns the ICRC of a packet of `transport` bytes from the BTH on, and its UDP length.
fn ipv4(id: u16, transport: &[u8]) -> ([u8; 4], u16) {
    ipv4_to(ROCE_PORT, id, transport)
}

/// Like [`ipv4`], of a packet to another port.
fn ipv4_to(dst_port: u16, id: u16, transport: &[u8]) -> ([u8; 4], u16) {
    let udp_len = u16::try_from(8 + transport.len() + Icrc::LEN).unwrap();
    let mut icrc = Icrc::ipv4(&Ipv4Pseudo { id, dst_port, udp_len, ..PSEUDO });
    icrc.update(transport);
    (icrc.finish(), udp_len)
}

/// The pseudo header gives the same ICRC as the real headers, with any values in the masked fields.
#[test]
fn icrc_of_pseudo_header_equals_that_of_masked_ipv4_and_udp_headers() {
    check_pseudo_header(ROCE_PORT);
}

/// The ICRC covers the destination port as it is in the header.
#[test]
fn icrc_covers_the_actual_udp_destination_port() {
    check_pseudo_header(ROCE_PORT + 1);
}

fn check_pseudo_header(dst_port: u16) {
    let transport = [0x33; 32];
    let (expected, udp_len) = ipv4_to(dst_port, 0xbeef, &transport);
    let header = crate::ip::Ipv4 {
        header_len: 20,
        tos: 0x5a,
        total_len: udp_len + 20,
        id: 0xbeef,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 7,
        protocol: crate::ip::UDP,
        src: PSEUDO.src,
        dst: PSEUDO.dst,
    };
    let udp = crate::udp::Udp { src_port: 0xc123, dst_port, length: udp_len, checksum: 3 };
    let mut icrc = Icrc::of_ipv4_headers(&header.to_bytes(), udp.to_bytes());
    icrc.update(&transport);
    assert_eq!(icrc.finish(), expected);
}

#[test]
fn icrc_masks_only_the_congestion_byte_of_the_bth() {
    let transport = [0_u8; 16];
    let (expected, _) = ipv4(1, &transport);
    for at in 0..transport.len() {
        let mut other = transport;
        other[at] = 0xc0;
        assert_eq!(ipv4(1, &other).0 == expected, at == CONGESTION_BYTE, "byte {at}");
    }
}

/// Every Identification is recovered, for packets of an ACK's size and of full size.
#[test]
fn every_ipv4_identification_is_recovered_from_the_icrc() {
    for len in [16, 1040, 4120] {
        let transport: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let (computed, udp_len) = ipv4(0, &transport);
        for id in 0..=u16::MAX {
            let (received, _) = ipv4(id, &transport);
            assert_eq!(solve_ipv4_id(computed, received, udp_len), Some(id), "{len} bytes");
        }
    }
}

/// A packet with one flipped bit passes for no Identification, wherever the bit is.
#[test]
fn flipped_bit_matches_no_ipv4_identification() {
    let transport = [0x77_u8; 272];
    let (computed, udp_len) = ipv4(0, &transport);
    for bit in 0..transport.len() * 8 {
        if bit / 8 == CONGESTION_BYTE {
            continue;
        }
        let mut bad = transport;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(solve_ipv4_id(computed, ipv4(0x1234, &bad).0, udp_len), None, "bit {bit}");
    }
}

#[test]
fn invalid_lengths_have_no_ipv4_identification() {
    assert_eq!(solve_ipv4_id([0; 4], [1; 4], 3), None);
    assert_eq!(solve_id([0; 4], [1; 4], 65_534), None);
    assert_eq!(solve_id([0; 4], [1; 4], usize::MAX), None);
}

/// The two prefixes: without GRH only the virtual lane is masked, with one all of the LRH.
#[test]
fn infiniband_icrc_masks_vl_without_grh_and_the_lrh_with_grh() {
    let lrh = Lrh {
        vl: 3,
        lver: 0,
        sl: 2,
        lnh: crate::lrh::Lnh::Global,
        dlid: crate::Lid(4),
        pkt_len: 21,
        slid: crate::Lid(9),
    };
    let grh = Grh {
        tclass: 1,
        flow_label: 2,
        pay_len: 36,
        next_hdr: Grh::NEXT_BTH,
        hop_limit: 3,
        sgid: crate::Gid([1; 16]),
        dgid: crate::Gid([2; 16]),
    };
    let icrc = |lrh: &Lrh, grh: Option<&Grh>| {
        let mut icrc = Icrc::infiniband(lrh, grh);
        icrc.update(&[0x64; 32]);
        icrc.finish()
    };
    let [other_vl, other_lid] = [Lrh { vl: 4, ..lrh }, Lrh { dlid: crate::Lid(5), ..lrh }];
    assert_eq!(icrc(&lrh, None), icrc(&other_vl, None));
    assert_ne!(icrc(&lrh, None), icrc(&other_lid, None));
    assert_eq!(icrc(&lrh, Some(&grh)), icrc(&other_lid, Some(&grh)));
    let rerouted = Grh { tclass: 0xff, flow_label: 0xf_ffff, hop_limit: 64, ..grh };
    assert_eq!(icrc(&lrh, Some(&grh)), icrc(&lrh, Some(&rerouted)));
    let elsewhere = Grh { dgid: crate::Gid([3; 16]), ..grh };
    assert_ne!(icrc(&lrh, Some(&grh)), icrc(&lrh, Some(&elsewhere)));
}

proptest! {
    #[test]
    fn ipv4_identification_is_recovered_at_every_packet_length(len in 12_usize..4200, id: u16, seed: u8) {
        let transport: Vec<u8> = (0..len).map(|i| i.to_le_bytes()[0].wrapping_mul(seed)).collect();
        let (computed, udp_len) = ipv4(0, &transport);
        prop_assert_eq!(solve_ipv4_id(computed, ipv4(id, &transport).0, udp_len), Some(id));
    }
}
