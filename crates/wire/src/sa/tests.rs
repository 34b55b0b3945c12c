//! The positions of records' fields, and datagrams with several records.

use super::*;
use crate::mad::status;
use crate::sm::{NodeInfo, SmInfo, SmState};
use crate::{Gid, Guid, Lid, Pkey, Qkey, ServiceId};

/// Returns bytes that equal their own offsets.
fn counting() -> [u8; DATA_LEN] {
    core::array::from_fn(|i| u8::try_from(i).unwrap())
}

fn read<T: Layout>() -> T {
    T::read(&counting()).unwrap()
}

fn gid(at: usize) -> Gid {
    Gid(core::array::from_fn(|i| counting()[at + i]))
}

#[test]
fn sa_record_lengths_are_multiples_of_8_bytes() {
    for (id, offset) in [
        (0x11, 14),
        (0x12, 9),
        (0x13, 2),
        (0x14, 3),
        (0x15, 9),
        (0x17, 9),
        (0x18, 4),
        (0x20, 1),
        (0x30, 9),
        (0x31, 22),
        (0x33, 9),
        (0x35, 8),
        (0x36, 9),
        (0x38, 7),
        (0xf3, 8),
    ] {
        let record = Record::parse(id, &counting()).unwrap().unwrap();
        assert_eq!(record.wire_len(), offset * 8, "{record}");
    }
    let unpadded = [(0x01, 72), (0x02, 80), (0x03, 36), (0x3a, 200)];
    for (id, len) in unpadded {
        assert_eq!(Record::parse(id, &counting()).unwrap().unwrap().wire_len(), len);
    }
    for unknown in [0x10, 0x16, 0x39, 0x3b] {
        assert_eq!(Record::parse(unknown, &counting()), Ok(None));
    }
}

#[test]
fn node_and_port_records_layout() {
    let node: NodeRecord = read();
    assert_eq!((node.lid, node.node_info.num_ports), (Lid(1), 7));
    assert_eq!((node.node_info.local_port_num, node.node_description.0[0]), (40, 44));
    let port: PortInfoRecord = read();
    assert_eq!((port.lid, port.port_num, port.options), (Lid(1), 2, 3));
    assert_eq!(port.port_info.lid, Lid(0x1415));
    let guids: GuidInfoRecord = read();
    assert_eq!((guids.block_num, guids.guid_info.guids[0]), (2, Guid(0x0809_0a0b_0c0d_0e0f)));
    let pkeys: PkeyTableRecord = read();
    assert_eq!((pkeys.block_num, pkeys.port_num), (0x0203, 4));
    assert_eq!(pkeys.table.pkeys[0], Pkey(0x0809));
    let sl: SlToVlTableRecord = read();
    assert_eq!((sl.input_port_num, sl.output_port_num, sl.table.vls[1].0), (2, 3, 8));
    let arb: VlArbitrationRecord = read();
    assert_eq!((arb.output_port_num, arb.block_num, arb.table.entries[0].weight), (2, 3, 9));
}

#[test]
fn switch_link_and_sm_records_layout() {
    let switch: SwitchInfoRecord = read();
    assert_eq!((switch.lid, switch.switch_info.linear_fdb_cap), (Lid(1), 0x0405));
    let lft: LinearForwardingTableRecord = read();
    assert_eq!((lft.block_num, lft.table.ports[0]), (0x0203, 8));
    let mft = MulticastForwardingTableRecord { position: 0xf, ..Default::default() };
    assert_eq!(mft.to_bytes()[2..4], [0xf0, 0]);
    let mft = MulticastForwardingTableRecord { block_num: !0, ..Default::default() };
    assert_eq!(mft.to_bytes()[2..4], [1, 0xff]);
    assert_eq!(read::<MulticastForwardingTableRecord>().table.port_masks[0], 0x0809);
    let sm: SmInfoRecord = read();
    assert_eq!((sm.sm_info.guid, sm.sm_info.priority), (Guid(0x0405_0607_0809_0a0b), 1));
    let link: LinkRecord = read();
    assert_eq!((link.from_lid, link.from_port), (Lid(1), 2));
    assert_eq!((link.to_port, link.to_lid), (3, Lid(0x0405)));
}

#[test]
fn path_record() {
    let path: PathRecord = read();
    assert_eq!(path.service_id, ServiceId(0x0001_0203_0405_0607));
    assert_eq!((path.dgid, path.sgid), (gid(8), gid(24)));
    assert_eq!((path.dlid, path.slid), (Lid(0x2829), Lid(0x2a2b)));
    assert_eq!((path.raw_traffic, path.flow_label, path.hop_limit), (false, 0xc_2d2e, 0x2f));
    assert_eq!((path.tclass, path.reversible, path.numb_path), (0x30, false, 0x31));
    assert_eq!((path.pkey, path.qos_class, path.sl), (Pkey(0x3233), 0x343, 5));
    assert_eq!(
        (path.mtu, path.rate.0, path.packet_life_time, path.preference),
        (0x36, 0x37, 0x38, 0x39)
    );
    // The record of OpenSM's response: 2048 bytes, 10 Gb/s, lifetime 0x12, all exact.
    let mut bytes = [0; 64];
    bytes[49] = 0x80;
    bytes[54..57].copy_from_slice(&[0x84, 0x83, 0x92]);
    let path = PathRecord::from_bytes(&bytes);
    assert!(path.reversible);
    assert_eq!((path.mtu_selector, path.mtu), (Selector::EXACTLY, 4));
    assert_eq!((path.rate_selector, path.rate.mbps()), (Selector::EXACTLY, 10_000));
    assert_eq!((path.packet_life_time_selector, path.packet_life_time), (Selector::EXACTLY, 0x12));
}

#[test]
fn mcmember_record() {
    let member: McMemberRecord = read();
    assert_eq!((member.mgid, member.port_gid), (gid(0), gid(16)));
    assert_eq!((member.qkey, member.mlid), (Qkey(0x2021_2223), Lid(0x2425)));
    assert_eq!((member.mtu, member.tclass, member.pkey), (0x26, 0x27, Pkey(0x2829)));
    assert_eq!((member.rate.0, member.packet_life_time), (0x2a, 0x2b));
    assert_eq!((member.sl, member.flow_label, member.hop_limit), (2, 0xc_2d2e, 0x2f));
    assert_eq!((member.scope, member.join_state.bits(), member.proxy_join), (3, 0, false));
    let full = McMemberRecord {
        join_state: JoinState::FULL_MEMBER,
        proxy_join: true,
        ..Default::default()
    };
    assert_eq!(full.to_bytes()[48..50], [1, 0x80]);
    assert_eq!(McMemberRecordMask::PROXY_JOIN.bits(), 1 << 17);
}

#[test]
fn service_multipath_inform_and_notice_records_layout() {
    let service: ServiceRecord = read();
    assert_eq!((service.service_gid, service.service_pkey), (gid(8), Pkey(0x1819)));
    assert_eq!((service.service_lease, service.service_key[0]), (0x1c1d_1e1f, 32));
    assert_eq!((service.service_name.0[0], service.service_data8[0]), (48, 112));
    assert_eq!((service.service_data16[0], service.service_data32[0]), (0x8081, 0x9091_9293));
    assert_eq!(service.service_data64[1], 0xa8a9_aaab_acad_aeaf);
    let multi: MultiPathRecord = read();
    assert_eq!(
        (multi.flow_label, multi.hop_limit, multi.tclass, multi.numb_path),
        (0x0102, 3, 4, 5)
    );
    assert_eq!((multi.pkey, multi.qos_class, multi.sl), (Pkey(0x0607), 0x080, 9));
    assert_eq!(
        (multi.mtu, multi.rate.0, multi.packet_life_time, multi.service_id_msb),
        (10, 11, 12, 13)
    );
    assert_eq!((multi.sgid_count, multi.dgid_count), (15, 16));
    assert_eq!(multi.service_id_lsb, 0x11_1213_1415_1617);
    assert_eq!((multi.gids[0], multi.gids[10]), (gid(24), gid(184)));
    let inform: InformInfo = read();
    assert_eq!(
        (inform.gid, inform.lid_range_begin, inform.lid_range_end),
        (gid(0), Lid(0x1011), Lid(0x1213))
    );
    assert_eq!((inform.is_generic, inform.subscribe), (22, 23));
    assert_eq!((inform.notice_type, inform.trap_number), (0x1819, 0x1a1b));
    assert_eq!(
        (inform.qpn.get(), inform.resp_time_value, inform.producer.0),
        (0x1c_1d1e, 31, 0x21_2223)
    );
    let record: InformInfoRecord = read();
    assert_eq!(
        (record.subscriber_gid, record.enumeration, record.inform_info.gid),
        (gid(0), 0x1011, gid(24))
    );
    let notice: ReportedNotice = read();
    assert_eq!((notice.notice.trap_number, notice.issuer_gid), (0x0405, gid(64)));
}

/// Masks that the diagnostics and the kernel are known to send.
#[test]
fn component_mask_bits_are_those_of_the_specification() {
    let numb = PathRecordMask::DGID | PathRecordMask::SGID | PathRecordMask::NUMB_PATH;
    assert_eq!(numb.bits(), 0x100c);
    let lids = PathRecordMask::DLID | PathRecordMask::SLID | PathRecordMask::NUMB_PATH;
    assert_eq!(lids.bits(), 0x1030);
    assert_eq!(PortInfoRecordMask::CAPABILITY_MASK.bits(), 1 << 7);
    assert_eq!(PortInfoRecordMask::LINK_SPEED_EXT_ENABLED.bits(), 1 << 57);
    assert_eq!(ServiceRecordMask::SERVICE_DATA64_1.bits(), 1 << 36);
    assert_eq!(NodeRecordMask::NODE_DESCRIPTION.bits(), 1 << 14);
    assert_eq!(MultiPathRecordMask::SERVICE_ID_LSB.bits(), 1 << 21);
    // A reserved component precedes them. OpenSM takes any other bits for a query without GIDs.
    let counts = MultiPathRecordMask::SGID_COUNT | MultiPathRecordMask::DGID_COUNT;
    assert_eq!(counts.bits(), 0x18_0000);
    assert_eq!(GuidInfoRecordMask::GUID7.bits(), 1 << 11);
}

/// The ascending order of the codes.
#[test]
fn rates() {
    let order = [2, 5, 3, 11, 6, 15, 19, 4, 7, 20, 12, 8, 9, 16, 13, 10, 14, 17, 18, 21, 22];
    let rates = order.map(|code| Rate(code).mbps());
    assert!(rates.is_sorted(), "{rates:?}");
    assert_eq!((rates[0], rates[20], Rate(0).mbps(), Rate(23).mbps()), (2500, 600_000, 0, 0));
    assert_eq!(
        (Rate::GBPS_2_5.to_string(), Rate(1).to_string()),
        ("2.5 Gb/s".into(), "0x1".into())
    );
}

#[test]
fn sa_mad_headers_are_at_the_offsets_of_the_specification() {
    let mut mad = SaMad::new(Method::GET_TABLE, NodeRecord::ATTR_ID, &[0xdd]);
    mad.rmpp.segment = 0x0102_0304;
    mad.sa.sm_key = SmKey(0x1122_3344_5566_7788);
    mad.sa.attribute_offset = 14;
    mad.sa.component_mask = 0x99aa_bbcc_ddee_ff00;
    let b = mad.to_bytes();
    assert_eq!(b[..4], [1, 3, 2, 0x12]);
    assert_eq!(b[16..18], [0, 0x11]);
    assert_eq!(b[28..32], [1, 2, 3, 4]);
    assert_eq!(b[36..48], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 14, 0, 0]);
    assert_eq!(b[48..58], [0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0, 0xdd, 0]);
    let read = SaMad::parse(&b).unwrap();
    assert_eq!((read.header, read.rmpp, read.sa), (mad.header, mad.rmpp, mad.sa));
    assert_eq!(read.data.len(), DATA_LEN);
    assert!(SaMad::parse(&b[..DATA_AT - 1]).is_err());
    let mut other = b;
    other[1] = 4;
    assert!(SaMad::parse(&other).is_err());
    assert_eq!(SaMad { data: &[7; 300], ..mad }.to_bytes()[255], 7);
}

fn links() -> [u8; 24] {
    let mut data = [0; 24];
    for (i, record) in data.chunks_mut(8).enumerate() {
        let from_lid = Lid(u16::try_from(i + 1).unwrap());
        LinkRecord { from_lid, ..LinkRecord::default() }.emit(record);
    }
    data
}

#[test]
fn sa_records_are_iterated_at_the_attribute_offset() {
    let data = links();
    let mut mad = SaMad::new(Method::GET_TABLE_RESP, LinkRecord::ATTR_ID, &data);
    let lids =
        |mad: &SaMad<'_>| mad.records::<LinkRecord>().map(|r| r.from_lid.0).collect::<Vec<_>>();
    assert_eq!(lids(&mad), []);
    mad.sa.attribute_offset = 1;
    assert_eq!(lids(&mad), [1, 2, 3]);
    assert_eq!(
        lids(&SaMad { data: &data[..23], ..mad }),
        [1, 2],
        "a record is there whole or not at all"
    );
    mad.sa.attribute_offset = 2;
    assert_eq!(lids(&mad), [1], "records may have more between them than they need");
    assert_eq!(mad.records::<NodeRecord>().count(), 0, "the distance is less than the record");
    mad.sa.attribute_offset = u16::MAX;
    assert_eq!(lids(&mad), []);
}

#[test]
fn sa_mad_is_displayed_with_component_mask_and_records() {
    let question = NodeRecord { lid: Lid(7), ..NodeRecord::default() }.to_bytes();
    let mut mad = SaMad::new(Method::GET, NodeRecord::ATTR_ID, &question);
    mad.sa.component_mask = NodeRecordMask::LID.bits() | 1 << 60;
    let shown = mad.to_string();
    assert!(shown.starts_with("SubnAdm Get tid 0x0000000000000000 mask 0x1000000000000001(LID) NodeRecord lid 0x0007 base_version 0"), "{shown}");
    assert!(shown.contains(" node_description \"\""), "{shown}");

    let data = links();
    let mut mad = SaMad::new(Method::GET_TABLE_RESP, LinkRecord::ATTR_ID, &data);
    mad.header.status = status::BUSY;
    assert!(mad.to_string().ends_with("status 0x0001 LinkRecord, no records"), "{mad}");
    mad.sa.attribute_offset = 1;
    assert_eq!(mad.to_string().matches("LinkRecord from_lid").count(), 3, "{mad}");
    mad.rmpp = Rmpp {
        version: 1,
        kind: RmppType::DATA,
        flags: RmppFlags::ACTIVE.with(RmppFlags::FIRST).with(RmppFlags::LAST),
        segment: 1,
        length: 20 + 16,
        ..mad.rmpp
    };
    assert_eq!(mad.to_string().matches("LinkRecord from_lid").count(), 2, "{mad}");
    mad.rmpp.segment = 2;
    assert!(mad.to_string().ends_with("LinkRecord, a segment of 24 bytes"), "{mad}");
    mad.rmpp.kind = RmppType::ACK;
    assert!(mad.to_string().ends_with(" LinkRecord"), "{mad}");
    mad.header.attr_id = 0x3b;
    assert!(mad.to_string().ends_with(" attr 0x003b"), "{mad}");

    let path = PathRecord { pkey: Pkey(0x8001), ..PathRecord::default() }.to_bytes();
    let mut paths = SaMad::new(Method::GET_MULTI_RESP, MultiPathRecord::ATTR_ID, &path);
    paths.sa.attribute_offset = 8;
    assert!(paths.to_string().contains("PathRecord service_id"), "{paths}");
    let cut = SaMad::new(Method::GET, 0x35, &path[..9]);
    assert!(
        cut.to_string().ends_with("PathRecord, cut off: PathRecord needs 64 bytes, got 9"),
        "{cut}"
    );
}

#[test]
fn sa_records_embed_the_sm_attributes_unchanged() {
    let sm_info = SmInfo { priority: 3, state: SmState::STANDBY, ..SmInfo::default() };
    let record = SmInfoRecord { sm_info, ..SmInfoRecord::default() };
    assert_eq!(record.to_bytes()[4..25], sm_info.to_bytes());
    let node_info = NodeInfo { vendor_id: 0x2c9, ..NodeInfo::default() };
    let record = NodeRecord { node_info, ..NodeRecord::default() };
    assert_eq!(record.to_bytes()[4..44], node_info.to_bytes());
}
