//! Messages of the connection manager: round trips of any bytes, the layouts of some, and limits.

use proptest::prelude::*;

use super::*;
use crate::{Gid, ServiceId};

/// Parses every message from a MAD with random bytes. A message that parses must be the same after a round trip.
fn round_trip(attr_id: u16, body: &[u8]) {
    let message = Message::parse(attr_id, body).unwrap();
    let mut emitted = [0; BODY_LEN];
    message.emit(&mut emitted);
    assert_eq!(Message::parse(attr_id, &emitted), Ok(message));
    assert_eq!(message.attr_id(), attr_id);
    assert!(message.to_string().starts_with(message.name()), "{message}");
}

proptest! {
    #[test]
    fn every_cm_message_round_trips(attr_id in 0x10_u16..=0x1a, body in prop::collection::vec(any::<u8>(), 232)) {
        round_trip(attr_id, &body);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = CmMad::parse(&bytes);
        let _ = IpHeader::parse(&bytes);
    }

    #[test]
    fn ip_header_round_trips(src_port: u16, v6: bool, a: [u8; 16], b: [u8; 16]) {
        let addrs = if v6 {
            IpPair::V6 { src: a.into(), dst: b.into() }
        } else {
            IpPair::V4 { src: [a[0], a[1], a[2], a[3]].into(), dst: [b[0], b[1], b[2], b[3]].into() }
        };
        let header = IpHeader { src_port, addrs };
        prop_assert_eq!(IpHeader::parse(&header.to_bytes()), Ok(header));
    }
}

/// Checks that no two fields of a message overlap, and that none is lost: each bit of the body is
/// either reserved and lost, or preserved alone.
#[test]
fn every_bit_of_a_cm_message_belongs_to_at_most_one_field() {
    for attr_id in 0x10..=0x1a_u16 {
        for bit in 0..BODY_LEN * 8 {
            let mut body = [0; BODY_LEN];
            body[bit / 8] = 0x80 >> (bit % 8);
            let mut emitted = [0; BODY_LEN];
            Message::parse(attr_id, &body).unwrap().emit(&mut emitted);
            let extended_transport = attr_id == Req::ATTR_ID && bit / 8 == 51 && bit % 8 >= 5;
            if emitted != body {
                assert_eq!(emitted, [0; BODY_LEN], "attribute {attr_id:#x}, bit {bit}");
                let private_data = 232 - 84; // the shortest tail of private data
                assert!(bit / 8 < private_data || extended_transport, "bit {bit} is lost");
            }
        }
    }
}

/// Offsets by the specification's table, with a value in each field of a REQ that shares no byte.
#[test]
fn req_layout() {
    let mut body = [0; BODY_LEN];
    body[3] = 1;
    body[15] = 0x44;
    body[14] = 0x11;
    body[13] = 0x06;
    body[12] = 0x01;
    body[34] = 0x12;
    body[35] = 4;
    body[39] = 5;
    body[43] = 20 << 3 | 3 << 1;
    body[46] = 0x99;
    body[47] = 20 << 3 | 7;
    body[48..50].fill(0xff);
    body[50] = 3 << 4 | 7;
    body[51] = 15 << 4 | 1 << 3 | 1;
    body[91] = 3;
    body[93] = 64;
    body[95] = 19 << 3;
    body[139] = 1 << 3;
    body[140] = 0x77;
    let req = Req::parse(&body).unwrap();
    assert_eq!(req.service_id, ServiceId::from_port(0x0106, 4420));
    assert_eq!((req.local_comm_id, req.local_qpn.get(), req.starting_psn.get()), (1, 0x12, 0x99));
    assert_eq!((req.responder_resources, req.initiator_depth), (4, 5));
    assert_eq!((req.remote_cm_response_timeout, req.local_cm_response_timeout), (20, 20));
    assert_eq!((req.transport, req.srq, req.max_cm_retries), (Transport::XRC, true, 15));
    assert_eq!((req.path_mtu, req.rnr_retry_count, req.retry_count), (3, 7, 7));
    assert_eq!((req.primary.rate, req.primary.hop_limit), (3, 64));
    assert_eq!((req.primary.ack_timeout.code(), req.alternate.ack_timeout.code()), (19, 1));
    assert_eq!(req.private_data[0], 0x77);
    assert_eq!(req.to_bytes(), body);
}

/// A REP for XRC has the queue pair in the field of the end-to-end context, and prints it as such.
#[test]
fn rep_for_xrc_carries_the_qpn_in_the_eecn_field() {
    let mut body = [0; BODY_LEN];
    body[16] = 0x80;
    body[18] = 0x12;
    body[27] = 1 << 4;
    let rep = Rep::parse(&body).unwrap();
    assert_eq!((rep.local_qpn.get(), rep.local_eecn, rep.srq), (0, 0x80_0012, true));
    assert_eq!(rep.qpn(Transport::XRC).get(), 0x80_0012);
    assert_eq!(rep.qpn(Transport::Rc).get(), 0);
    assert!(rep.to_string().contains(" XRC qpn 0x800012 "), "{rep}");

    body[14] = 0x34;
    let rep = Rep::parse(&body).unwrap();
    assert!(rep.to_string().contains(" qpn 0x000034 eecn 0x800012 "), "{rep}");
    body[16..19].fill(0);
    let rep = Rep::parse(&body).unwrap();
    assert!(rep.to_string().contains(" qpn 0x000034 psn"), "{rep}");
}

/// The fields of reliable datagrams, which no capture of the kernel contains.
#[test]
fn req_end_to_end_context_layout() {
    let mut body = [0; BODY_LEN];
    body[36..39].copy_from_slice(&[0x12, 0x34, 0x56]);
    body[40..43].copy_from_slice(&[0xfe, 0xdc, 0xba]);
    body[50] = 1 << 3;
    let req = Req::parse(&body).unwrap();
    assert_eq!((req.local_eecn, req.remote_eecn, req.rdc_exists), (0x12_3456, 0xfe_dcba, true));
    assert_eq!((req.path_mtu, req.rnr_retry_count, req.initiator_depth), (0, 0, 0));
    assert_eq!(req.to_bytes(), body);
}

/// LAP and REQ describe paths with the last bytes in different orders.
#[test]
fn lap_layout() {
    let mut body = [0; BODY_LEN];
    body[20 + 4] = 0xfe;
    body[56..59].copy_from_slice(&[0xab, 0xcd, 0xe0]);
    (body[59], body[60], body[61], body[62], body[63]) = (1, 2, 3, 4 << 4 | 1 << 3, 5 << 3);
    let path = Lap::parse(&body).unwrap().alternate;
    assert_eq!(path.flow_label, 0xabcde);
    assert_eq!((path.tclass, path.hop_limit, path.rate, path.sl), (1, 2, 3, 4));
    assert_eq!((path.subnet_local, path.ack_timeout.code()), (true, 5));
    assert_ne!(path.local_gid, Gid::ZERO);
}

#[test]
fn mad_of_wrong_class_version_method_or_attribute_is_refused() {
    let rtu = Rtu { local_comm_id: 1, remote_comm_id: 2, private_data: [3; 224] };
    let good = CmMad::new(9, rtu.into()).to_bytes();
    assert!(CmMad::parse(&good).is_ok());
    assert!(CmMad::parse(&good[..255]).is_err());
    for (at, value) in [(0, 2), (1, 4), (2, 1), (3, 0x83), (17, 0x20)] {
        let mut bad = good;
        bad[at] = value;
        assert!(matches!(CmMad::parse(&bad), Err(WireError::Value { .. })), "byte {at}");
    }
}

#[test]
fn private_data_is_padded_and_limited() {
    assert_eq!(private_data::<4>(b"ab"), Ok(*b"ab\0\0"));
    assert!(private_data::<4>(b"abcde").is_err());
}
