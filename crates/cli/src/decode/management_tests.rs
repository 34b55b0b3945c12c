//! Frames of an InfiniBand subnet, and management datagrams of every class in them and in RoCE.

use rdmux_wire::class_port_info::ClassPortInfo;
use rdmux_wire::ib_packet::IbPacket;
use rdmux_wire::lrh::Lrh;
use rdmux_wire::mad::{MadHeader, Method, MgmtClass};
use rdmux_wire::pm::{PmMad, PortCounters};
use rdmux_wire::sa::{NodeRecord, NodeRecordMask, PortInfoRecord, SaMad};
use rdmux_wire::sm::{CapabilityMask, LocalChange, Notice, PortInfo, PortState, Producer, Trap};
use rdmux_wire::smp::Smp;
use rdmux_wire::{
    Bth, Deth, Gid, Grh, HeaderBuf, Lid, Mkey, Opcode, Packet, Psn, Qkey, Qpn, RmppFlags, RmppType,
    cm,
};

use super::file::Frame;
use super::frame::What;
use super::line::{JsonLine, Line};
use super::roce::IcrcCheck;
use super::tests::{dissect, frame, ipv4, summary_of, with_icrc_v4};

const INFINIBAND: u16 = 247;
const ERF: u16 = 197;

/// Returns a frame of an InfiniBand subnet with a datagram.
fn ib(mad: &[u8; 256], qpn: Qpn, grh: Option<Grh>) -> Vec<u8> {
    let management = qpn == Qpn::QP0;
    let qkey = if management { Qkey(0) } else { Qkey::QP1 };
    let deth = Deth { qkey, src_qpn: qpn };
    let bth = Bth::new(Opcode::UD_SEND_ONLY, qpn, Psn::new(1));
    let packet = Packet { deth: Some(deth), ..Packet::new(bth, mad) };
    let vl = if management { 15 } else { 0 };
    let lrh = Lrh { vl, dlid: Lid(2), slid: Lid(1), ..Lrh::DEFAULT };
    let packet = IbPacket { lrh, grh, packet };
    let mut bytes = vec![0; packet.wire_len()];
    packet.emit(&mut bytes);
    bytes
}

/// Returns the line of a frame, without number and time.
fn line_of(frame: &Frame<'_>) -> String {
    let dissection = dissect(frame);
    let zero = std::time::Duration::ZERO;
    let line = Line { number: 1, time: zero, relative: zero, dissection: &dissection }.to_string();
    line.split_at(20).1.to_owned()
}

fn json_of(frame: &Frame<'_>) -> serde_json::Value {
    let dissection = dissect(frame);
    let zero = std::time::Duration::ZERO;
    let line = Line { number: 1, time: zero, relative: zero, dissection: &dissection };
    serde_json::to_value(JsonLine::new("x", &line)).unwrap()
}

#[test]
fn records_of_erf_are_decoded_behind_their_headers() {
    let packet = ib(&set_port_info(), Qpn::QP0, None);
    let plain = line_of(&frame(INFINIBAND, &packet));
    let len = u16::try_from(packet.len()).unwrap().to_be_bytes();
    let record = |kind: u8, extensions: &[[u8; 8]]| {
        let mut record = [0; 16];
        record[8] = kind;
        record[14..].copy_from_slice(&len);
        [&record[..], extensions.as_flattened(), &packet, &[0; 6]].concat()
    };
    let of = |record: &[u8]| line_of(&frame(ERF, record));
    assert_eq!(of(&record(21, &[])), plain);
    let (last, more) = ([3, 0, 0, 0, 0, 0, 0, 0], [0x83, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(of(&record(0x80 | 21, &[more, last])), plain);
    assert!(of(&record(2, &[])).contains("ERF type 2"));
    for cut in [15, 16, 20] {
        of(&record(0x80 | 21, &[more])[..cut]);
    }
}

fn set_port_info() -> [u8; 256] {
    let mut smp = Smp::directed(Method::SET, PortInfo::ATTR_ID, 0x8000_0001, &[3, 5]);
    smp.mkey = Mkey(7);
    let info = PortInfo {
        lid: Lid(9),
        port_state: PortState::ARMED,
        capability_mask: CapabilityMask::SM,
        ..PortInfo::default()
    };
    smp.set_attribute(&info.into());
    smp.to_bytes()
}

#[test]
fn a_set_of_port_info_is_shown_with_route_and_every_field() {
    let bytes = ib(&set_port_info(), Qpn::QP0, None);
    let data = frame(INFINIBAND, &bytes);
    let line = line_of(&data);
    let start = "lid 0x0001 > 0x0002 sl 0 vl 15  SMP Set tid 0x0000000000000000 hop 0/2 path 0,3,5 \
                 mkey 0x0000000000000007 modifier 0x80000001 PortInfo mkey 0x0000000000000000 ";
    assert!(line.starts_with(start), "{line}");
    let mut fields = 0;
    PortInfo::default().fields(&mut |name, _| {
        assert!(line.contains(&format!(" {name} ")), "{name} is missing: {line}");
        fields += 1;
    });
    assert_eq!(fields, 51);
    assert!(line.contains(" lid 0x0009 "), "{line}");
    assert!(
        line.contains(" capability_mask 0x2(SM) ") && line.contains(" port_state Armed "),
        "{line}"
    );
    let summary = summary_of(&data);
    assert_eq!((summary.rdma, summary.icrc_right), (1, 1));
    assert_eq!(summary.packets.get("SMP Set PortInfo"), Some(&1));

    let json = json_of(&data);
    assert_eq!((&json["slid"], &json["dlid"], &json["vl"]), (&1.into(), &2.into(), &15.into()));
    let mad = &json["packets"][0]["mad"];
    assert_eq!(mad["class"], "SubnDirected");
    assert_eq!((&mad["method"], &mad["attribute"]), (&"Set".into(), &"PortInfo".into()));
    assert_eq!(mad["fields"]["port_state"], "Armed");
    assert_eq!(mad["fields"].as_object().unwrap().len(), fields);
}

#[test]
fn a_trap_is_shown_with_its_meaning() {
    let change =
        LocalChange { lid: Lid(6), capability_mask: CapabilityMask::SM, ..LocalChange::default() };
    let mut smp = Smp::lid_routed(Method::TRAP, 0, 0);
    smp.set_attribute(&Notice::new(&Trap::Local(change), Producer::CA, Lid(6)).into());
    let line = line_of(&frame(INFINIBAND, &ib(&smp.to_bytes(), Qpn::QP0, None)));
    assert!(line.contains("SMP Trap "), "{line}");
    assert!(
        line.contains(
            " Notice is_generic true notice_type Informational producer CA trap_number 144 "
        ),
        "{line}"
    );
    assert!(
        line.contains(
            ": local change lid 0x0006 other_local_changes false capability_mask 0x2(SM) "
        ),
        "{line}"
    );
}

fn sa_question() -> [u8; 256] {
    let record = NodeRecord { lid: Lid(4), ..NodeRecord::default() }.to_bytes();
    let mut mad = SaMad::new(Method::GET, NodeRecord::ATTR_ID, &record);
    mad.sa.component_mask = NodeRecordMask::LID.bits();
    mad.to_bytes()
}

#[test]
fn a_question_to_subnet_administration_is_shown_with_mask_and_record() {
    let bytes = ib(&sa_question(), Qpn::QP1, None);
    let line = line_of(&frame(INFINIBAND, &bytes));
    let end =
        "  SubnAdm Get tid 0x0000000000000000 mask 0x1(LID) NodeRecord lid 0x0004 base_version 0";
    assert!(line.contains(end), "{line}");
    let json = json_of(&frame(INFINIBAND, &bytes));
    assert_eq!(json["packets"][0]["mad"]["fields"]["lid"], "0x0004");
}

/// A port's record and the PortInfo in it both have a LID.
#[test]
fn fields_of_one_name_are_all_in_json() {
    let port_info = PortInfo { lid: Lid(5), ..PortInfo::default() };
    let record = PortInfoRecord { lid: Lid(4), port_info, ..PortInfoRecord::default() };
    let mad = SaMad::new(Method::GET_RESP, PortInfoRecord::ATTR_ID, &record.to_bytes()).to_bytes();
    let json = json_of(&frame(INFINIBAND, &ib(&mad, Qpn::QP1, None)));
    let fields = &json["packets"][0]["mad"]["fields"];
    assert_eq!((&fields["lid"], &fields["lid_2"]), (&"0x0004".into(), &"0x0005".into()));
    let mut visited = 0;
    record.fields(&mut |_, _| visited += 1);
    assert_eq!(fields.as_object().unwrap().len(), visited);
}

#[test]
fn a_table_is_shown_record_by_record() {
    let record = NodeRecord { lid: Lid(4), ..NodeRecord::default() }.to_bytes();
    let mut mad = SaMad::new(Method::GET_TABLE_RESP, NodeRecord::ATTR_ID, &record);
    mad.sa.attribute_offset = 14;
    mad.rmpp.version = 1;
    mad.rmpp.kind = RmppType::DATA;
    mad.rmpp.flags = RmppFlags::ACTIVE.with(RmppFlags::FIRST).with(RmppFlags::LAST);
    mad.rmpp.segment = 1;
    mad.rmpp.length = 20 + 112;
    let line = line_of(&frame(INFINIBAND, &ib(&mad.to_bytes(), Qpn::QP1, None)));
    assert!(
        line.contains("RMPP DATA version 1 flags active+first+last segment 1 length 132 "),
        "{line}"
    );
    assert_eq!(line.matches("NodeRecord lid 0x0004").count(), 1, "{line}");
}

#[test]
fn counters_are_shown_by_name() {
    let mut mad = PmMad::new(Method::GET_RESP, 0);
    let counters = PortCounters { port_select: 1, port_xmit_data: 72, ..PortCounters::default() };
    mad.set_attribute(&counters.into());
    let line = line_of(&frame(INFINIBAND, &ib(&mad.to_bytes(), Qpn::QP1, None)));
    assert!(
        line.contains("  Perf GetResp tid 0x0000000000000000 PortCounters port_select 1 "),
        "{line}"
    );
    assert!(line.contains(" port_xmit_data 72 "), "{line}");
    let mut info = PmMad::new(Method::GET_RESP, 0);
    info.set_attribute(&ClassPortInfo { resp_time_value: 18, ..ClassPortInfo::default() }.into());
    let line = line_of(&frame(INFINIBAND, &ib(&info.to_bytes(), Qpn::QP1, None)));
    assert!(
        line.contains("ClassPortInfo base_version 0 ") && line.contains(" resp_time_value 18 "),
        "{line}"
    );
}

/// A datagram of the connection manager's class that is not a message is no error.
#[test]
fn datagrams_of_the_connection_managers_class_need_not_be_messages() {
    for (method, attr_id) in [
        (Method::GET, ClassPortInfo::ATTR_ID),
        (Method::GET_RESP, ClassPortInfo::ATTR_ID),
        (Method::SEND, 0x7777),
    ] {
        let mut mad = [0; 256];
        let header = MadHeader::new(MgmtClass::COMM, cm::CLASS_VERSION, method);
        MadHeader { attr_id, ..header }.emit(&mut mad);
        let bytes = ib(&mad, Qpn::QP1, None);
        let line = line_of(&frame(INFINIBAND, &bytes));
        let end = format!("{method} attr {attr_id:#06x} tid 0x0000000000000000");
        assert!(line.ends_with(&end), "{line}");
        assert!(summary_of(&frame(INFINIBAND, &bytes)).all_right(), "{line}");
    }
}

/// Decodes the same datagrams in a RoCE packet.
#[test]
fn management_datagrams_in_roce() {
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::QP1, Psn::new(0));
    let header = HeaderBuf::new(&bth).deth(&Deth { qkey: Qkey::QP1, src_qpn: Qpn::QP1 });
    let transport = [header.as_slice(), &sa_question()].concat();
    let bytes = ipv4(3, &with_icrc_v4(&transport, 3));
    let line = line_of(&frame(101, &bytes));
    assert!(line.contains("SubnAdm Get ") && line.contains("NodeRecord lid 0x0004"), "{line}");
    assert_eq!(summary_of(&frame(101, &bytes)).packets.get("SubnAdm Get NodeRecord"), Some(&1));
}

#[test]
fn vendors_datagrams_are_shown_with_rmpp_if_it_is_used() {
    let mut mad = [0; 256];
    MadHeader::new(MgmtClass(0x33), 1, Method::GET_RESP).emit(&mut mad);
    let line = line_of(&frame(INFINIBAND, &ib(&mad, Qpn::QP1, None)));
    assert!(line.ends_with("MAD 0x33 GetResp attr 0x0000 tid 0x0000000000000000"), "{line}");
    mad[24..32].copy_from_slice(&[1, 1, 1, 0, 0, 0, 0, 2]);
    let line = line_of(&frame(INFINIBAND, &ib(&mad, Qpn::QP1, None)));
    assert!(line.ends_with("RMPP DATA version 1 flags active segment 2 length 0"), "{line}");
}

fn grh() -> Grh {
    let [sgid, dgid] = [1, 2].map(|guid| Gid::new(Gid::DEFAULT_PREFIX, rdmux_wire::Guid(guid)));
    Grh { tclass: 0, flow_label: 0, pay_len: 0, next_hdr: 0, hop_limit: 1, sgid, dgid }
}

#[test]
fn a_global_packet_has_lids_and_gids() {
    let bytes = ib(&sa_question(), Qpn::QP1, Some(grh()));
    let line = line_of(&frame(INFINIBAND, &bytes));
    assert!(
        line.starts_with("lid 0x0001 > 0x0002 sl 0 vl 0  fe80::1 > fe80::2  SubnAdm "),
        "{line}"
    );
    assert_eq!(summary_of(&frame(INFINIBAND, &bytes)).icrc_right, 1);
}

/// Captures contain a VCRC or not; the packet is the same.
#[test]
fn packet_captured_without_vcrc_is_right() {
    let bytes = ib(&set_port_info(), Qpn::QP0, None);
    assert_eq!(summary_of(&frame(INFINIBAND, &bytes[..bytes.len() - 2])).icrc_right, 1);
}

#[test]
fn every_flipped_bit_of_a_local_packet_is_detected() {
    let good = ib(&sa_question(), Qpn::QP1, None);
    let covered = good.len() - 2;
    for bit in 0..covered * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 0x80 >> (bit % 8);
        let summary = summary_of(&frame(INFINIBAND, &bad));
        let masked = bit < 4 || bit / 8 == Lrh::LEN + 4;
        // A packet that is raw according to its LNH is not RDMA.
        let right = summary.icrc_right == 1;
        assert_eq!(right, masked, "bit {bit}: {summary}");
    }
}

#[test]
fn truncated_infiniband_frames_are_not_failures() {
    for grh in [None, Some(grh())] {
        let whole = ib(&sa_question(), Qpn::QP1, grh);
        let icrc_end = whole.len() - 2;
        for len in 0..icrc_end {
            let cut = Frame { original_len: whole.len(), ..frame(INFINIBAND, &whole[..len]) };
            let summary = summary_of(&cut);
            assert!(summary.all_right() && summary.icrc_right == 0, "{len}: {summary}");
            assert_eq!(summary.cut_short, u64::from(len >= Lrh::LEN), "{len}");
            // If no snap length explains it, the length is wrong.
            let lies = summary_of(&frame(INFINIBAND, &whole[..len]));
            assert_eq!(lies.undecodable, u64::from(len >= Lrh::LEN), "{len}");
        }
    }
}

#[test]
fn raw_packets_are_named() {
    let mut bytes = ib(&sa_question(), Qpn::QP1, None);
    bytes[1] &= 0xfc;
    assert_eq!(line_of(&frame(INFINIBAND, &bytes)), "lid 0x0001 > 0x0002 sl 0 vl 0  raw packet");
    bytes[1] |= 1;
    assert_eq!(
        line_of(&frame(INFINIBAND, &bytes)),
        "lid 0x0001 > 0x0002 sl 0 vl 0  raw IPv6 packet"
    );
}

#[test]
fn wrong_icrc_of_a_local_packet_is_detected() {
    let mut bytes = ib(&sa_question(), Qpn::QP1, None);
    bytes[3] ^= 1; // the DLID, which the ICRC of a local packet covers
    let data = frame(INFINIBAND, &bytes);
    let dissection = dissect(&data);
    let What::Roce(roce) = &dissection.what else { panic!("{dissection:?}") };
    assert!(matches!(roce.icrc, IcrcCheck::Wrong { .. }));
}

#[test]
fn wrong_vcrc_with_right_icrc_is_reported() {
    let good = ib(&sa_question(), Qpn::QP1, None);
    assert_eq!(json_of(&frame(INFINIBAND, &good))["vcrc"], "right");
    let covered = good.len() - 2;
    assert!(json_of(&frame(INFINIBAND, &good[..covered])).get("vcrc").is_none());
    for bit in (0..4).chain(covered * 8..good.len() * 8) {
        let mut bad = good.clone();
        bad[bit / 8] ^= 0x80 >> (bit % 8);
        let data = frame(INFINIBAND, &bad);
        // The ICRC does not cover the virtual lane.
        let summary = summary_of(&data);
        assert_eq!((summary.icrc_right, summary.vcrc_wrong), (1, 1), "bit {bit}");
        assert!(!summary.all_right() && summary.to_string().contains("1 with a WRONG VCRC"));
        assert!(line_of(&data).contains(" VCRC WRONG: "), "bit {bit}");
        assert_eq!(json_of(&data)["vcrc"], "wrong");
    }
}
