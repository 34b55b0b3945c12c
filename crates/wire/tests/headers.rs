//! Every header survives a round trip, and no bytes make a parser panic.

use proptest::prelude::*;
use rdmux_wire::grh::Grh;
use rdmux_wire::ip::{self, Ipv4, Ipv6};
use rdmux_wire::lrh::{Lnh, Lrh};
use rdmux_wire::mad::{MadHeader, Method, MgmtClass};
use rdmux_wire::tcp::Tcp;
use rdmux_wire::udp::Udp;
use rdmux_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Gid, HeaderBuf, Ieth, ImmDt, Lid, MAX_HEADER,
    NakCode, Opcode, Operation, Packet, Pkey, Psn, Qkey, Qpn, Reth, Rkey, Rmpp, RnrTimer, Service,
    Syndrome, WireError, XrcEth,
};

/// Tests each type: any bytes of its length that parse give a value that survives a round trip, and
/// fewer bytes are an error.
macro_rules! round_trips {
    ($($test:ident: $type:ident;)*) => {
        proptest! {
            $(#[test]
            fn $test(bytes: [u8; $type::LEN]) {
                if let Ok(value) = $type::parse(&bytes) {
                    let mut out = [0xee; $type::LEN + 1];
                    value.emit(&mut out);
                    prop_assert_eq!($type::parse(&out), Ok(value));
                    prop_assert_eq!(out[$type::LEN], 0xee);
                    prop_assert!(!value.to_string().is_empty());
                }
                for len in 0..$type::LEN {
                    let short = matches!($type::parse(&bytes[..len]), Err(WireError::Short { .. }));
                    prop_assert!(short);
                }
            })*
        }
    };
}

round_trips! {
    bth: Bth;
    reth: Reth;
    aeth: Aeth;
    atomic_eth: AtomicEth;
    atomic_ack_eth: AtomicAckEth;
    deth: Deth;
    imm_dt: ImmDt;
    ieth: Ieth;
    xrceth: XrcEth;
    grh: Grh;
    lrh: Lrh;
    udp: Udp;
    ipv6: Ipv6;
    mad_header: MadHeader;
    rmpp: Rmpp;
}

proptest! {
    #[test]
    fn tcp(bytes: [u8; Tcp::LEN]) {
        if let Ok(tcp) = Tcp::parse(&bytes) {
            let again = Tcp { header_len: 20, ..tcp };
            prop_assert_eq!(Tcp::parse(&again.to_bytes()), Ok(again));
            prop_assert!(!tcp.to_string().is_empty());
        }
        prop_assert!(Tcp::parse(&bytes[1..]).is_err());
    }

    #[test]
    fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..120), version_0: bool) {
        let _ = Ipv4::parse(&bytes);
        let _ = ip::skip_ipv6_extensions(0, &bytes);
        let _ = rdmux_wire::ether::Ether::parse(&bytes);
        let _ = rdmux_wire::vcrc::check(&bytes);
        if let (true, Some(flags)) = (version_0, bytes.get_mut(1)) {
            *flags &= 0xf0; // version 0, so that more than one packet in sixteen gets further
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let header = packet.header();
            prop_assert!(header.len() <= MAX_HEADER);
            let again = [header.as_slice(), packet.payload, &[0; 3][..packet.bth.pad.into()]].concat();
            prop_assert_eq!(Packet::parse(&again), Ok(packet));
            prop_assert!(!packet.to_string().is_empty());
        }
    }

    /// The headers are the same whether parsed one by one or with the packet.
    #[test]
    fn header_buf_appends_in_order(va: u64, rkey: u32, dma_len: u32, imm: [u8; 4], psn in 0_u32..1 << 24) {
        let bth = Bth::new(Opcode::RC_WRITE_ONLY_IMM, Qpn::new(9), Psn::new(psn));
        let reth = Reth { va, rkey: Rkey(rkey), dma_len };
        let packet = Packet { reth: Some(reth), imm: Some(ImmDt(imm)), ..Packet::new(bth, &[]) };
        let header = HeaderBuf::new(&bth).reth(&reth).imm(&ImmDt(imm));
        let from_packet = packet.header();
        prop_assert_eq!(header.as_slice(), from_packet.as_slice());
        prop_assert_eq!(Packet::parse(&header), Ok(packet));
    }
}

/// Bytes of a BTH with every flag, field by field.
#[test]
fn bth_layout() {
    let bytes = [0x65, 0xf0, 0x80, 0x01, 0xc0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];
    let bth = Bth::parse(&bytes).unwrap();
    let expected = Bth {
        opcode: Opcode::UD_SEND_ONLY_IMM,
        solicited: true,
        mig_req: true,
        pad: 3,
        tver: 0,
        pkey: Pkey(0x8001),
        fecn: true,
        becn: true,
        dest_qpn: Qpn::new(0x12_3456),
        ack_req: true,
        psn: Psn::new(0xab_cdef),
    };
    assert_eq!(bth, expected);
    assert_eq!(bth.to_bytes(), bytes);
}

#[test]
fn syndromes() {
    for byte in 0..=u8::MAX {
        assert_eq!(Syndrome::from_byte(byte).byte(), byte);
    }
    for (byte, syndrome) in [
        (0x1f, Syndrome::ACK),
        (0x03, Syndrome::Ack { credits: 3 }),
        (0x2c, Syndrome::Rnr(RnrTimer::new(12))),
        (0x60, Syndrome::Nak(NakCode::PsnSequence)),
        (0x61, Syndrome::Nak(NakCode::InvalidRequest)),
        (0x62, Syndrome::Nak(NakCode::RemoteAccess)),
        (0x63, Syndrome::Nak(NakCode::RemoteOperational)),
        (0x64, Syndrome::Nak(NakCode::InvalidRdRequest)),
        (0x65, Syndrome::Nak(NakCode::Reserved(5))),
        (0x40, Syndrome::Reserved(0x40)),
        (0xff, Syndrome::Reserved(0xff)),
    ] {
        assert_eq!(Syndrome::from_byte(byte), syndrome);
    }
}

/// The extension headers of the specification's table, by their lengths.
#[test]
fn extension_headers_of_every_opcode() {
    let rc = |op: u8| match op {
        0x03 | 0x05 | 0x09 => 4,        // ImmDt
        0x06 | 0x0a | 0x0c => 16,       // RETH
        0x0b => 20,                     // RETH, ImmDt
        0x0d | 0x0f | 0x10 | 0x11 => 4, // AETH
        0x12 => 12,                     // AETH, AtomicAckETH
        0x13 | 0x14 => 28,              // AtomicETH
        0x16 | 0x17 => 4,               // IETH
        _ => 0,
    };
    for code in 0..=u8::MAX {
        let opcode = Opcode(code);
        let op = code & 0x1f;
        let response = (0x0d..=0x12).contains(&op);
        let expected = match opcode.service() {
            Service::Rc => (op < 0x18 && op != 0x15).then(|| rc(op)),
            Service::Xrc => {
                (op < 0x18 && op != 0x15).then(|| rc(op) + if response { 0 } else { XrcEth::LEN })
            }
            Service::Uc => (op < 0x0c).then(|| rc(op)),
            Service::Ud => (op == 4 || op == 5).then(|| rc(op) + Deth::LEN),
            _ => None,
        };
        if let Some(len) = expected {
            assert_eq!(opcode.ext_len(), len, "{opcode}");
            let mut bytes = [0; MAX_HEADER];
            bytes[0] = code;
            let packet = Packet::parse(&bytes[..Bth::LEN + len]).unwrap();
            assert_eq!(packet.header().len(), Bth::LEN + len);
            assert_eq!(opcode.is_response(), response && opcode.service() != Service::Ud);
            let short = Packet::parse(&bytes[..Bth::LEN + len - 1]);
            assert!(matches!(short, Err(WireError::Short { .. })), "{opcode}");
        } else if opcode != Opcode::CNP {
            let mut bytes = [0; 80];
            bytes[0] = code;
            assert_eq!(Packet::parse(&bytes), Err(WireError::Opcode(opcode)));
        }
    }
}

#[test]
fn opcodes_have_first_middle_last_or_only_position() {
    use Opcode as O;
    let place = |o: Opcode| (o.is_first(), o.is_middle(), o.is_last(), o.is_only());
    assert_eq!(place(O::RC_SEND_FIRST), (true, false, false, false));
    assert_eq!(place(O::UC_WRITE_MIDDLE), (false, true, false, false));
    assert_eq!(place(O::RC_SEND_LAST_INV), (false, false, true, false));
    assert_eq!(place(O::UD_SEND_ONLY_IMM), (false, false, false, true));
    assert_eq!(place(O::RC_ACKNOWLEDGE), (false, false, false, true));
    assert_eq!(place(O::CNP), (false, false, false, false));
    assert_eq!(O::of(Service::Xrc, Operation::FetchAdd), O::XRC_FETCH_ADD);
    assert_eq!(O::XRC_FETCH_ADD.operation(), Some(Operation::FetchAdd));
}

#[test]
fn packets_with_wrong_version_or_pad_are_refused() {
    let mut bytes = [0; 20];
    bytes[0] = Opcode::RC_SEND_ONLY.0;
    bytes[1] = 3;
    assert_eq!(Packet::parse(&bytes), Err(WireError::Version(3)));
    bytes[1] = 0x30;
    assert_eq!(Packet::parse(&bytes).unwrap().payload.len(), 5);
    assert_eq!(Packet::parse(&bytes[..14]), Err(WireError::Pad { pad: 3, have: 2 }));
    bytes[0] = Opcode::CNP.0;
    bytes[1] = 0;
    assert_eq!(Packet::parse(&bytes).unwrap().payload.len(), 8);
}

#[test]
fn packets_aeth_deth_and_mad_headers_are_displayed() {
    let bth = Bth {
        ack_req: true,
        pad: 2,
        ..Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x12), Psn::new(0xa3f1))
    };
    let packet = Packet::new(bth, &[0; 10]);
    assert_eq!(
        packet.to_string(),
        "RC SEND_ONLY qpn 0x000012 psn 0x00a3f1 ack_req pad 2 payload 10"
    );
    let aeth = |syndrome| Aeth { syndrome, msn: 7 }.to_string();
    assert_eq!(aeth(Syndrome::ACK), "ACK msn 7");
    assert_eq!(aeth(Syndrome::Rnr(RnrTimer::new(12))), "RNR NAK 0.64 ms msn 7");
    assert_eq!(aeth(Syndrome::Nak(NakCode::RemoteAccess)), "NAK remote access error msn 7");
    assert_eq!(Opcode::CNP.to_string(), "CNP");
    assert_eq!(Opcode(0x4c).to_string(), "RD RDMA_READ_REQUEST");
    assert_eq!(Opcode(0xc1).to_string(), "vendor opcode 0xc1");
    let deth = Deth { qkey: Qkey::QP1, src_qpn: Qpn::QP1 };
    assert_eq!(deth.to_string(), "qkey 0x80010000 src_qpn 0x000001");
    let header = MadHeader {
        base_version: 1,
        mgmt_class: MgmtClass::SUBN_ADM,
        class_version: 2,
        method: Method(0x81),
        status: 0,
        class_specific: 0,
        tid: 5,
        attr_id: 0x35,
        attr_mod: 0,
    };
    assert_eq!(header.to_string(), "MAD SubnAdm GetResp attr 0x0035 tid 0x0000000000000005");
}

#[test]
fn lrh_and_grh_layout() {
    let lrh = Lrh {
        vl: 0xf,
        lver: 0,
        sl: 3,
        lnh: Lnh::Global,
        dlid: Lid(0xc001),
        pkt_len: 0x7ff,
        slid: Lid(2),
    };
    assert_eq!(lrh.to_bytes(), [0xf0, 0x33, 0xc0, 0x01, 0x07, 0xff, 0x00, 0x02]);
    let grh = Grh {
        tclass: 0x12,
        flow_label: 0x3_4567,
        pay_len: 0x0102,
        next_hdr: Grh::NEXT_BTH,
        hop_limit: 64,
        sgid: Gid([1; 16]),
        dgid: Gid([2; 16]),
    };
    assert_eq!(grh.to_bytes()[..8], [0x61, 0x23, 0x45, 0x67, 0x01, 0x02, 0x1b, 64]);
}
