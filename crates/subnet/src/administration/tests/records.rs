//! Records that are read from the model, and the rules that apply to all of them.

use super::*;
use rdmux_wire::Pkey;
use rdmux_wire::class_port_info::ClassPortInfo;
use rdmux_wire::sa::*;
use rdmux_wire::sm::{CapabilityMask, NO_ROUTE, NodeType, SlToVlTable, SmInfo, Vl, VlArbitration};

const NODE: u16 = NodeRecord::ATTR_ID;
const PORT: u16 = PortInfoRecord::ATTR_ID;

fn by_lid(lid: Lid) -> NodeRecord {
    NodeRecord { lid, ..NodeRecord::default() }
}

#[test]
fn get_with_one_none_and_two_matches() {
    let mut net = Net::new("switch:3", 0);
    let switch = net.get(NODE, NodeRecordMask::LID.bits(), &by_lid(Lid(1)));
    assert_eq!((switch.status, switch.records[0].lid), (status::OK, Lid(1)));
    assert_eq!(switch.records[0].node_info.node_type, NodeType::SWITCH);
    let none = net.get(NODE, NodeRecordMask::LID.bits(), &by_lid(Lid(99)));
    assert_eq!(none.status, status::SA_NO_RECORDS);
    let all = net.get(NODE, 0, &NodeRecord::default());
    assert_eq!(all.status, status::SA_TOO_MANY_RECORDS);
    let both = Net::new("two", 0).get(NODE, 0, &NodeRecord::default());
    assert_eq!(both.status, status::SA_TOO_MANY_RECORDS);
}

#[test]
fn empty_table_has_status_0_and_no_offset() {
    let mut net = Net::new("two", 0);
    let mut data = [0; 112];
    by_lid(Lid(99)).emit(&mut data);
    let mask = NodeRecordMask::LID.bits();
    let answer = net.exchange(Method::GET_TABLE, NODE, mask, &data).expect("an answer");
    let mad = SaMad::parse(&answer.data).expect("a MAD");
    assert_eq!((mad.header.status, mad.sa.attribute_offset, mad.data.len()), (0, 0, 0));
    assert!(mad.rmpp.flags.contains(RmppFlags::ACTIVE));
}

#[test]
fn sa_error_response_echoes_data_and_component_mask() {
    let mut net = Net::new("two", 0);
    let mut data = [0; 112];
    by_lid(Lid(99)).emit(&mut data);
    let answer = net.exchange(Method::GET, NODE, 1, &data).expect("an answer");
    let mad = SaMad::parse(&answer.data).expect("a MAD");
    assert_eq!((mad.header.status, &mad.data[..112]), (status::SA_NO_RECORDS, &data[..]));
    assert_eq!(mad.sa.component_mask, 1);
}

#[test]
fn sa_response_is_addressed_to_the_requester() {
    let mut net = Net::new("two", 0);
    let answer = net.exchange(Method::GET, NODE, 0, &[]).expect("an answer");
    assert_eq!((answer.address, answer.timeout_ms), (UserAddress::gsi(net.asks), 0));
    assert_eq!(answer.data.len(), 256);
}

#[test]
fn get_table_response_has_no_timeout_and_the_configured_retries() {
    let mut net = Net::new("switch:8", 0);
    let answer = net.exchange(Method::GET_TABLE, NODE, 0, &[]).expect("an answer");
    assert!(answer.data.len() > 256, "several segments");
    assert_eq!((answer.timeout_ms, answer.retries), (0, net.administration.config.retries));
}

#[test]
fn silence_where_no_answer_is_due() {
    let mut net = Net::new("two", 0);
    let silent = [
        (Method::GET, 0x16),
        (Method::GET, 0x39),
        (Method::GET_TABLE, 0x3b),
        (Method::GET, 0x02),
        (Method::GET_TRACE_TABLE, NODE),
        (Method::SEND, NODE),
        (Method::GET_RESP, NODE),
    ];
    for (method, attr_id) in silent {
        assert_eq!(net.exchange(method, attr_id, 0, &[]), None, "{method} {attr_id:#x}");
    }
    net.put([1, 3, 2].to_vec());
    let mut old = SaMad::new(Method::GET, NODE, &[]);
    old.header.class_version = 1;
    net.put(old.to_bytes().to_vec());
    net.asks = Lid(99);
    assert_eq!(net.exchange(Method::GET, NODE, 0, &[]), None, "an unknown port");
    assert_eq!((net.out.sent.len(), net.administration.counters().answered), (0, 0));
    assert_eq!(net.administration.counters().ignored, 10);
}

#[test]
fn methods_that_another_record_has_are_refused() {
    let mut net = Net::new("two", 0);
    let unsupported = status::UNSUPPORTED_METHOD_ATTRIBUTE;
    for (method, attr_id, expected) in [
        (Method::GET, InformInfo::ATTR_ID, unsupported),
        (Method::DELETE, InformInfo::ATTR_ID, unsupported),
        (Method::GET_MULTI, NODE, unsupported),
        (Method::GET_MULTI, McMemberRecord::ATTR_ID, unsupported),
        (Method::SET, NODE, unsupported),
        (Method::DELETE, PORT, unsupported),
        (Method::GET_MULTI, ClassPortInfo::ATTR_ID, status::SA_REQUEST_INVALID),
        (Method::SET, ClassPortInfo::ATTR_ID, status::SA_REQUEST_INVALID),
        (Method::DELETE, MultiPathRecord::ATTR_ID, status::SA_REQUEST_INVALID),
        (Method::GET, MultiPathRecord::ATTR_ID, status::SA_REQUEST_INVALID),
        (Method::GET_TABLE, MultiPathRecord::ATTR_ID, status::SA_REQUEST_INVALID),
    ] {
        let answer = net.exchange(method, attr_id, 0, &[]).expect("an answer");
        let header = MadHeader::parse(&answer.data).unwrap();
        assert_eq!(header.status, expected, "{method} {attr_id:#x}");
    }
}

#[test]
fn port_info_record_options_do_not_filter_and_are_echoed() {
    let mut net = Net::new("two", 0);
    let wanted = PortInfoRecord { options: 1, ..PortInfoRecord::default() };
    let found = net.table(PORT, PortInfoRecordMask::OPTIONS.bits(), &wanted);
    assert!(found.len() == 2 && found.iter().all(|record| record.options == 1));
}

#[test]
fn silence_while_not_master() {
    let mut net = Net::new("two", 0);
    net.administration.set_master(None);
    assert_eq!(net.exchange(Method::GET, NODE, 0, &[]), None);
    assert_eq!(net.administration.counters().not_master, 1);
}

#[test]
fn wrong_sm_key_gets_no_answer_and_the_right_one_trusted_records() {
    let mut net = Net::new("two", 0);
    let table = PkeyTableRecord::default();
    let id = PkeyTableRecord::ATTR_ID;
    let untrusted = net.ask(Method::GET_TABLE, id, 0, &table);
    assert_eq!(untrusted.status, status::SA_REQUEST_INVALID);
    net.key = SmKey(2);
    assert_eq!(net.exchange(Method::GET_TABLE, id, 0, &[]), None);
    net.key = SmKey(1);
    let records = net.table(id, 0, &table);
    assert_eq!(records.len(), 4, "two ports with 64 keys each");
    assert_eq!(records[0].table.pkeys[..2], [Pkey::DEFAULT, Pkey(0)]);
}

#[test]
fn sa_class_port_info_equals_opensms() {
    let mut net = Net::new("two", 0);
    let answer = net.exchange(Method::GET, ClassPortInfo::ATTR_ID, 0, &[]).expect("an answer");
    let info: ClassPortInfo = SaMad::parse(&answer.data).unwrap().record().unwrap();
    assert_eq!((info.base_version, info.class_version), (1, 2));
    assert_eq!((info.capability_mask.bits(), info.capability_mask2), (0x2602, 0xb5e8));
    assert_eq!(info.resp_time_value, 0x10);
    let table = net.exchange(Method::GET_TABLE, ClassPortInfo::ATTR_ID, 0, &[]).expect("one");
    let header = MadHeader::parse(&table.data).unwrap();
    assert_eq!(header.status, status::SA_REQUEST_INVALID);
    let mad = SaMad::parse(&answer.data).unwrap();
    assert_eq!((mad.sa.attribute_offset, info.redirect_qp), (0, rdmux_wire::Qpn::QP1));
}

#[test]
fn node_records_match_by_their_components() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(net.table(NODE, 0, &NodeRecord::default()).len(), 4);
    let mut wanted = NodeRecord::default();
    wanted.node_info.node_type = NodeType::CA;
    let adapters = net.table(NODE, NodeRecordMask::NODE_TYPE.bits(), &wanted);
    assert_eq!(adapters.iter().map(|r| r.lid).collect::<Vec<_>>(), [Lid(2), Lid(3), Lid(4)]);
    let named = NodeRecord { node_description: "node2".into(), ..wanted };
    let named = net.table(NODE, NodeRecordMask::NODE_DESCRIPTION.bits(), &named);
    assert_eq!(named, adapters[1..2]);
    let guid = NodeRecord { node_info: adapters[2].node_info, ..wanted };
    assert_eq!(net.table(NODE, NodeRecordMask::PORT_GUID.bits(), &guid), adapters[2..]);
}

#[test]
fn lid_with_path_bits_finds_the_port_and_the_record_has_the_base_lid() {
    let mut net = Net::new("switch:2", 2);
    let (_, base) = net.ports()[1];
    let found = net.get(NODE, NodeRecordMask::LID.bits(), &by_lid(Lid(base.0 + 3)));
    assert_eq!(found.records[0].lid, base);
}

#[test]
fn port_info_records_of_switches_are_of_all_ports() {
    let mut net = Net::new("switch:3", 0);
    let all = net.table(PORT, 0, &PortInfoRecord::default());
    let places: Vec<_> = all.iter().map(|r| (r.lid.0, r.port_num)).collect();
    assert_eq!(places, [(1, 0), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (4, 1)]);
    let mask = PortInfoRecordMask::LID | PortInfoRecordMask::PORT_NUM;
    let wanted = PortInfoRecord { lid: Lid(1), port_num: 2, ..PortInfoRecord::default() };
    assert_eq!(net.get(PORT, mask.bits(), &wanted).records, all[2..3]);
}

#[test]
fn attribute_modifier_bit_31_matches_capability_mask_bits_as_a_subset() {
    let mut net = Net::new("switch:3", 0);
    let (place, lid) = net.ports()[2];
    net.model.port_mut(place).unwrap().info.as_mut().unwrap().capability_mask |= CapabilityMask::SM;
    let mut wanted = PortInfoRecord::default();
    wanted.port_info.capability_mask = CapabilityMask::SM;
    let mask = PortInfoRecordMask::CAPABILITY_MASK.bits();
    assert_eq!(net.table(PORT, mask, &wanted), [], "no port has this bit alone");
    net.modifier = 1 << 31;
    let found = net.table(PORT, mask, &wanted);
    assert_eq!(found.iter().map(|r| r.lid).collect::<Vec<_>>(), [lid]);
}

#[test]
fn ports_without_a_common_partition_are_not_shown() {
    let mut net = Net::new("switch:3", 0);
    let (place, hidden) = net.ports()[2];
    net.model.port_mut(place).unwrap().pkeys = [Pkey(0x8001)].into();
    let wanted = by_lid(hidden);
    assert_eq!(net.get(NODE, 1, &wanted).status, status::SA_NO_RECORDS);
    assert_eq!(net.table(NODE, 0, &NodeRecord::default()).len(), 3);
    assert_eq!(net.table(PORT, 0, &PortInfoRecord::default()).len(), 6);
    let links = net.table(LinkRecord::ATTR_ID, 0, &LinkRecord::default());
    assert_eq!(links.len(), 4, "two of three cables, from either end");
    net.asks = hidden;
    assert_eq!(net.table(NODE, 0, &NodeRecord::default()).len(), 1, "itself");
}

#[test]
fn a_switch_of_254_ports_has_all_its_links() {
    let mut net = Net::new("switch:254", 0);
    assert_eq!(net.table(LinkRecord::ATTR_ID, 0, &LinkRecord::default()).len(), 2 * 254);
}

#[test]
fn link_records_are_found_by_from_lid_or_to_lid() {
    let mut net = Net::new("switch:3", 0);
    let id = LinkRecord::ATTR_ID;
    let all = net.table(id, 0, &LinkRecord::default());
    assert_eq!(all.len(), 6);
    let from = LinkRecord { from_lid: Lid(3), ..LinkRecord::default() };
    let expected = LinkRecord {
        from_lid: Lid(3),
        from_port: 1,
        to_port: 2,
        to_lid: Lid(1),
        ..LinkRecord::default()
    };
    assert_eq!(net.table(id, LinkRecordMask::FROM_LID.bits(), &from), [expected]);
    let to = LinkRecord { to_lid: Lid(3), ..LinkRecord::default() };
    let back = LinkRecord {
        from_lid: Lid(1),
        from_port: 2,
        to_port: 1,
        to_lid: Lid(3),
        ..LinkRecord::default()
    };
    assert_eq!(net.table(id, LinkRecordMask::TO_LID.bits(), &to), [back]);
    let both = LinkRecordMask::FROM_LID | LinkRecordMask::TO_LID;
    assert_eq!(net.get(id, both.bits(), &back).records, [back]);
    let port = LinkRecordMask::FROM_LID | LinkRecordMask::FROM_PORT;
    assert_eq!(net.get(id, port.bits(), &back).records, [back]);
    let nowhere = LinkRecord { to_lid: Lid(99), ..back };
    assert_eq!(net.table(id, both.bits(), &nowhere), []);
}

#[test]
fn forwarding_tables_are_in_blocks() {
    let mut net = Net::new("fattree:36", 1);
    let id = LinearForwardingTableRecord::ATTR_ID;
    let (place, lid) = net.ports()[0];
    let wanted = LinearForwardingTableRecord { lid, block_num: 1, ..Default::default() };
    let mask = LinearForwardingTableRecordMask::LID | LinearForwardingTableRecordMask::BLOCK_NUM;
    let found = net.get(id, mask.bits(), &wanted);
    let switch = net.model.nodes()[place.node].switch.as_ref().unwrap();
    let routes = &switch.forwarding[64..];
    assert_eq!(found.records[0].table.ports[..routes.len()], *routes);
    assert!(found.records[0].table.ports[routes.len()..].iter().all(|&port| port == NO_ROUTE));
    let all = net.table(id, LinearForwardingTableRecordMask::LID.bits(), &wanted);
    assert_eq!(all.iter().map(|r| r.block_num).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn multicast_tables_have_a_position_for_16_ports() {
    let mut net = Net::new("switch:20", 0);
    let id = MulticastForwardingTableRecord::ATTR_ID;
    assert_eq!(net.table(id, 0, &MulticastForwardingTableRecord::default()), [], "no groups");
    let switch = net.model.node_mut(0).unwrap().switch.as_mut().unwrap();
    for (mlid, port) in [(0xc000, 2), (0xc021, 17), (0xc021, 3)] {
        switch.multicast.entry(Lid(mlid)).or_default().insert(port);
    }
    let all = net.table(id, 0, &MulticastForwardingTableRecord::default());
    let places: Vec<_> = all.iter().map(|r| (r.block_num, r.position)).collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(all[0].table.port_masks[0], 1 << 2);
    assert_eq!([2, 3].map(|n| all[n].table.port_masks[1]), [1 << 3, 1 << 1]);
    let wanted = MulticastForwardingTableRecord { position: 1, block_num: 1, ..Default::default() };
    let mask = MulticastForwardingTableRecordMask::POSITION
        | MulticastForwardingTableRecordMask::BLOCK_NUM;
    assert_eq!(net.table(id, mask.bits(), &wanted), all[3..]);
}

#[test]
fn switch_info_records_are_of_switches() {
    let mut net = Net::new("fattree:36", 0);
    let id = SwitchInfoRecord::ATTR_ID;
    assert_eq!(net.table(id, 0, &SwitchInfoRecord::default()).len(), 3);
    let mask = SwitchInfoRecordMask::LID.bits();
    let adapter = SwitchInfoRecord { lid: net.asks, ..SwitchInfoRecord::default() };
    assert_eq!(net.get(id, mask, &adapter).status, status::SA_NO_RECORDS);
}

#[test]
fn tables_of_service_levels_and_lanes_are_by_port() {
    let mut net = Net::new("switch:2", 0);
    let entries = |vl| SlToVlTable { vls: [Vl(vl); 16] };
    let switch = net.model.node_mut(0).unwrap();
    switch.ports[2].sl_to_vl = [0, 1, 2].map(|n| Some(entries(n))).into();
    switch.ports[2].vl_arbitration = [VlArbitration::default(); 4].into();
    let id = SlToVlTableRecord::ATTR_ID;
    let wanted = SlToVlTableRecord {
        lid: Lid(1),
        input_port_num: 1,
        output_port_num: 2,
        ..SlToVlTableRecord::default()
    };
    let found = net.get(id, SlToVlTableRecordMask::all().bits(), &wanted);
    assert_eq!(found.records[0].table, entries(1));
    assert_eq!(net.table(id, 0, &wanted).len(), 3);
    let wanted = VlArbitrationRecord { block_num: 4, ..VlArbitrationRecord::default() };
    let mask = VlArbitrationRecordMask::BLOCK_NUM.bits();
    let found = net.get(VlArbitrationRecord::ATTR_ID, mask, &wanted);
    assert_eq!(found.records[0].output_port_num, 2);
}

#[test]
fn sl_to_vl_and_vl_arbitration_records_of_a_ca_ignore_the_port_number() {
    let mut net = Net::new("switch:2", 0);
    let (place, lid) = net.ports()[1];
    let entries = SlToVlTable { vls: [Vl(3); 16] };
    let port = net.model.port_mut(place).unwrap();
    port.sl_to_vl = [Some(entries)].into();
    port.vl_arbitration = [VlArbitration::default(); 4].into();
    for number in [0, 1, 7, 255] {
        let wanted = SlToVlTableRecord {
            lid,
            input_port_num: number,
            output_port_num: number,
            ..SlToVlTableRecord::default()
        };
        let mask = SlToVlTableRecordMask::all().bits();
        let found = net.get(SlToVlTableRecord::ATTR_ID, mask, &wanted);
        let expected = SlToVlTableRecord { lid, table: entries, ..SlToVlTableRecord::default() };
        assert_eq!(found.records, [expected], "port {number}");
        let wanted = VlArbitrationRecord {
            lid,
            output_port_num: number,
            block_num: 2,
            ..VlArbitrationRecord::default()
        };
        let mask = VlArbitrationRecordMask::all().bits();
        let found = net.get(VlArbitrationRecord::ATTR_ID, mask, &wanted).records;
        assert_eq!((found[0].output_port_num, found[0].block_num), (place.port, 2));
        let wanted = VlArbitrationRecord { block_num: 5, ..wanted };
        let none = net.get(VlArbitrationRecord::ATTR_ID, mask, &wanted);
        assert_eq!(none.status, status::SA_NO_RECORDS);
    }
}

#[test]
fn guid_info_records_have_the_port_s_guid_and_aliases() {
    let mut net = Net::new("switch:2", 0);
    let (place, lid) = net.ports()[1];
    net.model.set_alias(place, 9, Guid(0x77));
    let id = GuidInfoRecord::ATTR_ID;
    let mask = GuidInfoRecordMask::LID.bits();
    let records = net.table(id, mask, &GuidInfoRecord { lid, ..GuidInfoRecord::default() });
    assert_eq!(records.len(), 4, "32 GUIDs");
    assert_eq!(records[0].guid_info.guids[0], net.model.port(place).unwrap().guid);
    assert_eq!(records[1].guid_info.guids[1], Guid(0x77));
    let mut wanted = GuidInfoRecord::default();
    wanted.guid_info.guids[1] = Guid(0x77);
    assert_eq!(net.table(id, GuidInfoRecordMask::GUID1.bits(), &wanted), records[1..2]);
}

#[test]
fn sm_info_records_hide_the_sm_key_from_untrusted_requesters() {
    let mut net = Net::new("switch:2", 0);
    let (place, lid) = net.ports()[1];
    let manager = SmInfo { guid: Guid(5), sm_key: SmKey(9), priority: 3, ..SmInfo::default() };
    net.model.port_mut(place).unwrap().manager = Some(manager);
    let id = SmInfoRecord::ATTR_ID;
    let record = net.get(id, 0, &SmInfoRecord::default()).records[0];
    assert_eq!((record.lid, record.sm_info.priority), (lid, 3));
    assert_eq!(record.sm_info.sm_key, SmKey(0));
    net.key = SmKey(1);
    assert_eq!(net.get(id, 0, &SmInfoRecord::default()).records[0].sm_info, manager);
}

#[test]
fn get_table_beyond_table_bytes_is_no_resources() {
    let mut net = Net::new("switch:20", 0);
    net.administration.config.table_bytes = 20 * NodeRecord::LEN;
    let answer = net.ask(Method::GET_TABLE, NODE, 0, &NodeRecord::default());
    assert_eq!(answer.status, status::SA_NO_RESOURCES);
    net.administration.config.table_bytes += NodeRecord::LEN;
    assert_eq!(net.table(NODE, 0, &NodeRecord::default()).len(), 21);
}

#[test]
fn get_table_of_ten_thousand_nodes_is_one_response() {
    let mut net = Net::new("switch:2", 0);
    for guid in 0..10_000 {
        let mut node = net.model.nodes()[1].clone();
        node.info.node_guid = Guid(0x10_0000 + guid);
        node.ports[1].info.as_mut().unwrap().lid = Lid(0x100 + u16::try_from(guid).unwrap());
        net.model.add(node);
    }
    let all = net.table(NODE, 0, &NodeRecord::default());
    assert_eq!(all.len(), 10_003);
    assert_eq!(net.out.sent.len(), 0);
}
