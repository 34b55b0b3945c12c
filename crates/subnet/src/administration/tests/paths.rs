//! PathRecords and MultiPathRecords.

use super::*;
use rdmux_wire::sa::{
    MultiPathRecord, MultiPathRecordMask, PathRecord, PathRecordMask as Mask, Rate, Selector,
};
use rdmux_wire::sm::{LinkSpeed, NO_ROUTE};
use rdmux_wire::{Gid, Pkey, Rmpp, RmppStatus, RmppType};

const ID: u16 = PathRecord::ATTR_ID;

fn gid(net: &Net, lid: Lid) -> Gid {
    let port = net.model.port(net.model.by_lid(lid).expect("a port")).expect("a port");
    Gid::new(Gid::DEFAULT_PREFIX, port.guid)
}

/// Returns a query for paths between two LIDs.
fn between(slid: Lid, dlid: Lid) -> (Mask, PathRecord) {
    (Mask::SLID | Mask::DLID, PathRecord { slid, dlid, ..PathRecord::default() })
}

/// Returns the adapters' LIDs.
fn adapters(net: &Net) -> Vec<Lid> {
    let is_adapter = |place: &PortRef| !net.model.nodes()[place.node].is_switch();
    net.ports().iter().filter(|(place, _)| is_adapter(place)).map(|&(_, lid)| lid).collect()
}

fn get(net: &mut Net, (mask, record): (Mask, PathRecord)) -> Result<PathRecord, u16> {
    let answer = net.get(ID, mask.bits(), &record);
    if answer.status == 0 { Ok(answer.records[0]) } else { Err(answer.status) }
}

fn count(net: &mut Net, (mask, record): (Mask, PathRecord)) -> usize {
    net.table(ID, mask.bits(), &record).len()
}

#[test]
fn path_record_by_gids_equals_the_one_by_lids() {
    let mut net = Net::new("fattree:36", 0);
    let lids = adapters(&net);
    let (a, b) = (lids[0], lids[20]);
    let by_lid = get(&mut net, between(a, b)).expect("a path");
    let (sgid, dgid) = (gid(&net, a), gid(&net, b));
    let question = PathRecord { sgid, dgid, ..PathRecord::default() };
    let by_gid = get(&mut net, (Mask::SGID | Mask::DGID, question)).expect("a path");
    assert_eq!(by_lid, by_gid);
    let expected = PathRecord {
        sgid,
        dgid,
        slid: a,
        dlid: b,
        reversible: true,
        pkey: Pkey::DEFAULT,
        mtu_selector: Selector::EXACTLY,
        mtu: 5,
        rate_selector: Selector::EXACTLY,
        rate: Rate::GBPS_100,
        packet_life_time_selector: Selector::EXACTLY,
        packet_life_time: 0x12,
        ..PathRecord::default()
    };
    assert_eq!(by_gid, expected);
}

#[test]
fn path_record_of_a_port_to_itself_has_packet_life_time_zero() {
    let mut net = Net::new("switch:2", 0);
    for lid in [Lid(1), Lid(2)] {
        let path = get(&mut net, between(lid, lid)).expect("a path");
        assert_eq!((path.packet_life_time, path.reversible), (0, true), "{lid}");
    }
}

#[test]
fn path_records_to_switches_are_reversible() {
    let mut net = Net::new("fattree:36", 0);
    let all: Vec<_> = net.ports().iter().map(|&(_, lid)| lid).collect();
    for &to in &all {
        let path = get(&mut net, between(Lid(1), to)).expect("a path");
        assert!(path.reversible, "{to}");
    }
}

#[test]
fn mtu_and_rate_are_the_smallest_on_the_way() {
    let mut net = Net::new("switch:3", 0);
    net.model.node_mut(0).unwrap().ports[2].info.as_mut().unwrap().mtu_cap = 3;
    let slow = net.model.node_mut(2).unwrap().ports[1].info.as_mut().unwrap();
    slow.link_speed_ext_active = Default::default();
    slow.link_speed_active = LinkSpeed::QDR;
    let path = get(&mut net, between(Lid(2), Lid(3))).expect("a path");
    assert_eq!((path.mtu, path.rate), (3, Rate::GBPS_40));
    let other = get(&mut net, between(Lid(2), Lid(4))).expect("a path");
    assert_eq!((other.mtu, other.rate), (5, Rate::GBPS_100));
}

#[test]
fn selectors_say_how_mtu_and_rate_are_meant() {
    let mut net = Net::new("switch:2", 0);
    let (greater, less, exactly) = (Selector::GREATER_THAN, Selector::LESS_THAN, Selector::EXACTLY);
    let largest = Selector::LARGEST;
    for (selector, mtu, expected) in [
        (greater, 4, Ok(5)),
        (greater, 5, Err(status::SA_NO_RECORDS)),
        (less, 5, Ok(4)),
        (less, 1, Err(status::SA_NO_RECORDS)),
        (exactly, 5, Ok(5)),
        (exactly, 2, Ok(2)),
        (largest, 1, Ok(5)),
        (exactly, 6, Err(status::SA_REQUEST_INVALID)),
        (greater, 0, Err(status::SA_REQUEST_INVALID)),
        (largest, 6, Err(status::SA_REQUEST_INVALID)),
    ] {
        let (mask, mut record) = between(Lid(2), Lid(3));
        (record.mtu_selector, record.mtu) = (selector, mtu);
        let found = get(&mut net, (mask | Mask::MTU_SELECTOR | Mask::MTU, record));
        assert_eq!(found.map(|path| path.mtu), expected, "{selector} {mtu}");
    }
    for (selector, rate, expected) in [
        (greater, Rate::GBPS_60, Ok(Rate::GBPS_100)),
        (greater, Rate::GBPS_100, Err(status::SA_NO_RECORDS)),
        (less, Rate::GBPS_40, Ok(Rate::GBPS_28)),
        (less, Rate::GBPS_30, Ok(Rate::GBPS_20)),
        // In OpenSM's order of rates 25 Gb/s is above 30.
        (less, Rate::GBPS_25, Ok(Rate::GBPS_30)),
        (less, Rate::GBPS_28, Ok(Rate::GBPS_25)),
        (less, Rate::GBPS_200, Ok(Rate::GBPS_100)),
        (less, Rate::GBPS_2_5, Err(status::SA_NO_RECORDS)),
        (exactly, Rate::GBPS_100, Ok(Rate::GBPS_100)),
        (exactly, Rate::GBPS_40, Err(status::SA_NO_RECORDS)),
        (largest, Rate::GBPS_10, Ok(Rate::GBPS_100)),
        (exactly, Rate(1), Err(status::SA_REQUEST_INVALID)),
    ] {
        let (mask, mut record) = between(Lid(2), Lid(3));
        (record.rate_selector, record.rate) = (selector, rate);
        let found = get(&mut net, (mask | Mask::RATE_SELECTOR | Mask::RATE, record));
        assert_eq!(found.map(|path| path.rate), expected, "{selector} {rate}");
        let alone = get(&mut net, (mask | Mask::RATE, record));
        assert_eq!(alone.map(|path| path.rate), Ok(Rate::GBPS_100), "without its selector");
    }
}

#[test]
fn packet_life_time_selector_filters_and_limits_path_records() {
    let mut net = Net::new("switch:2", 0);
    for (selector, life, expected) in [
        (Selector::GREATER_THAN, 0x11, Ok(0x12)),
        (Selector::GREATER_THAN, 0x12, Err(status::SA_NO_RECORDS)),
        (Selector::LESS_THAN, 0x13, Ok(0x12)),
        (Selector::LESS_THAN, 0x10, Ok(0x0f)),
        (Selector::LESS_THAN, 1, Err(status::SA_NO_RECORDS)),
        (Selector::EXACTLY, 0x10, Ok(0x10)),
        (Selector::EXACTLY, 0x13, Err(status::SA_NO_RECORDS)),
        (Selector::LARGEST, 3, Ok(0x12)),
    ] {
        let (mask, mut record) = between(Lid(2), Lid(3));
        (record.packet_life_time_selector, record.packet_life_time) = (selector, life);
        let both = Mask::PACKET_LIFE_TIME_SELECTOR | Mask::PACKET_LIFE_TIME;
        let found = get(&mut net, (mask | both, record));
        assert_eq!(found.map(|path| path.packet_life_time), expected, "{selector} {life}");
    }
}

#[test]
fn number_of_paths() {
    let mut net = Net::new("switch:2", 1);
    let lids = adapters(&net);
    let (mask, record) = between(lids[0], lids[1]);
    let question = |numb_path| (mask | Mask::NUMB_PATH, PathRecord { numb_path, ..record });
    assert_eq!(count(&mut net, question(0)), 0);
    assert_eq!(count(&mut net, question(1)), 1);
    assert!(get(&mut net, question(0)).is_ok(), "a Get is for one, whatever it says");
    let (sgid, dgid) = (gid(&net, lids[0]), gid(&net, lids[1]));
    let record = PathRecord { sgid, dgid, numb_path: 3, ..record };
    let gids = Mask::SGID | Mask::DGID;
    assert_eq!(count(&mut net, (gids, record)), 4);
    assert_eq!(count(&mut net, (gids | Mask::NUMB_PATH, record)), 3);
}

#[test]
fn lmc_paths_begin_with_equal_path_bits_at_both_ends() {
    let mut net = Net::new("switch:2", 1);
    let lids = adapters(&net);
    let (sgid, dgid) = (gid(&net, lids[0]), gid(&net, lids[1]));
    let question = PathRecord { sgid, dgid, ..PathRecord::default() };
    let paths = net.table(ID, (Mask::SGID | Mask::DGID).bits(), &question);
    let pairs: Vec<_> =
        paths.iter().map(|p| (p.slid.0 - lids[0].0, p.dlid.0 - lids[1].0, p.preference)).collect();
    assert_eq!(pairs, [(0, 0, 0), (1, 1, 0), (0, 1, 2), (1, 0, 2)]);
    let one = get(&mut net, (Mask::SGID | Mask::DGID, question)).expect("a path");
    assert_eq!((one.slid, one.dlid), (lids[0], lids[1]));
}

#[test]
fn lid_mask_2_has_four_diagonal_pairs_and_twelve_others() {
    let mut net = Net::new("switch:2", 2);
    let lids = adapters(&net);
    let (sgid, dgid) = (gid(&net, lids[0]), gid(&net, lids[1]));
    let question = PathRecord { sgid, dgid, ..PathRecord::default() };
    let paths = net.table(ID, (Mask::SGID | Mask::DGID).bits(), &question);
    let bits = |p: &PathRecord| (p.slid.0 - lids[0].0, p.dlid.0 - lids[1].0);
    let (diagonal, others) = paths.split_at(4);
    assert!(diagonal.iter().map(bits).eq((0..4).map(|n| (n, n))));
    assert!(diagonal.iter().all(|p| p.preference == 0) && others.iter().all(|p| p.preference == 2));
    let mut pairs: Vec<_> = paths.iter().map(bits).collect();
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs.len(), 16, "each pair once");
}

#[test]
fn service_id_component_needs_both_mask_bits() {
    let mut net = Net::new("two", 0);
    let (mask, record) = between(Lid(1), Lid(2));
    for bit in [Mask::SERVICE_ID_MSB, Mask::SERVICE_ID_LSB] {
        assert_eq!(get(&mut net, (mask | bit, record)), Err(status::SA_INSUFFICIENT_COMPONENTS));
    }
    let both = mask | Mask::SERVICE_ID_MSB | Mask::SERVICE_ID_LSB;
    let record = PathRecord { service_id: rdmux_wire::ServiceId(7), ..record };
    assert_eq!(get(&mut net, (both, record)).expect("a path").service_id.0, 0);
}

#[test]
fn lid_and_gid_of_different_ports_are_refused() {
    let mut net = Net::new("switch:2", 0);
    let (mask, mut record) = between(Lid(2), Lid(3));
    record.sgid = gid(&net, Lid(2));
    assert!(get(&mut net, (mask | Mask::SGID, record)).is_ok());
    record.sgid = gid(&net, Lid(3));
    assert_eq!(get(&mut net, (mask | Mask::SGID, record)), Err(status::SA_REQUEST_INVALID));
}

#[test]
fn path_to_unknown_lid_or_gid_is_no_records() {
    let mut net = Net::new("switch:2", 0);
    let question = between(Lid(2), Lid(77));
    assert_eq!(get(&mut net, question), Err(status::SA_NO_RECORDS));
    assert_eq!(count(&mut net, question), 0);
    let (sgid, dgid) = (gid(&net, Lid(2)), Gid::new(Gid::DEFAULT_PREFIX, Guid(0xbad)));
    let elsewhere = Gid::new(0xfec0_0000_0000_0000, gid(&net, Lid(3)).guid());
    for dgid in [dgid, elsewhere] {
        let question = PathRecord { sgid, dgid, ..PathRecord::default() };
        assert_eq!(get(&mut net, (Mask::SGID | Mask::DGID, question)), Err(status::SA_NO_RECORDS));
    }
}

#[test]
fn get_table_with_one_end_returns_paths_to_all_ports() {
    let mut net = Net::new("switch:3", 0);
    let question = PathRecord { sgid: gid(&net, Lid(2)), ..PathRecord::default() };
    let paths = net.table(ID, Mask::SGID.bits(), &question);
    assert_eq!(paths.iter().map(|p| p.dlid.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let question = PathRecord { dlid: Lid(2), ..PathRecord::default() };
    assert_eq!(count(&mut net, (Mask::DLID, question)), 4);
    assert_eq!(count(&mut net, (Mask::empty(), question)), 16);
    let first = get(&mut net, (Mask::DLID, question)).expect("a path");
    assert_eq!((first.slid, first.dlid), (Lid(1), Lid(2)), "a Get has the first");
    let all = net.table(ID, 0, &question);
    assert!(all.iter().take(5).map(|p| (p.slid.0, p.dlid.0)).eq([
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (1, 2)
    ]));
}

#[test]
fn no_route_is_no_path_and_no_way_back_is_not_reversible() {
    let mut net = Net::new("switch:3", 0);
    let forwarding = |net: &mut Net, lid: usize, port| {
        net.model.node_mut(0).unwrap().switch.as_mut().unwrap().forwarding[lid] = port;
    };
    forwarding(&mut net, 2, NO_ROUTE);
    assert_eq!(get(&mut net, between(Lid(3), Lid(2))), Err(status::SA_NO_RECORDS));
    let (mask, mut record) = between(Lid(2), Lid(3));
    assert!(!get(&mut net, (mask, record)).expect("a path").reversible);
    assert!(get(&mut net, (mask | Mask::REVERSIBLE, record)).is_ok(), "0 does not matter");
    record.reversible = true;
    assert_eq!(get(&mut net, (mask | Mask::REVERSIBLE, record)), Err(status::SA_NO_RECORDS));
    // A route to the wrong adapter.
    forwarding(&mut net, 3, 3);
    assert_eq!(get(&mut net, between(Lid(2), Lid(3))), Err(status::SA_NO_RECORDS));
}

#[test]
fn path_through_a_forwarding_loop_is_no_records() {
    let mut net = Net::new("fattree:36", 0);
    let lids = adapters(&net);
    let to = lids[lids.len() - 1];
    let nodes = net.model.nodes().len();
    for node in 0..nodes {
        let Some(node) = net.model.node_mut(node) else { continue };
        let peers: Vec<_> = node.ports.iter().map(|port| port.peer).collect();
        let Some(switch) = node.switch.as_mut() else { continue };
        // Every switch forwards to another switch.
        let up = peers.iter().rposition(Option::is_some).expect("a cable");
        switch.forwarding[usize::from(to.0)] = u8::try_from(up).unwrap();
    }
    let question = between(lids[0], to);
    assert_eq!(get(&mut net, question), Err(status::SA_NO_RECORDS));
}

/// Sets the P_Key tables of the two adapters and of the requester.
fn with_keys(a: &[u16], b: &[u16]) -> Net {
    let mut net = Net::new("switch:3", 0);
    for (node, keys) in [(1, &[0xffff, 0x8001, 0x8002][..]), (2, a), (3, b)] {
        net.model.node_mut(node).unwrap().ports[1].pkeys = keys.iter().map(|&k| Pkey(k)).collect();
    }
    net
}

#[test]
fn path_has_the_lowest_common_partition_with_the_source_s_membership() {
    let cases: [(&[u16], &[u16], Option<u16>); 6] = [
        (&[0xffff, 0x8001], &[0xffff, 0x8001], Some(0x8001)),
        (&[0xffff, 0x0001], &[0xffff, 0x8001], Some(0x0001)),
        (&[0xffff, 0x0001], &[0xffff, 0x0001], Some(0xffff)),
        (&[0x7fff], &[0x7fff], None),
        (&[0x7fff, 0x8002], &[0xffff], Some(0x7fff)),
        (&[0x8001], &[0x8002], None),
    ];
    for (a, b, expected) in cases {
        let found = get(&mut with_keys(a, b), between(Lid(3), Lid(4)));
        assert_eq!(found.ok().map(|path| path.pkey.0), expected, "{a:x?} {b:x?}");
    }
}

#[test]
fn asked_partition_is_answered_as_asked_if_both_have_it() {
    let cases: [(&[u16], &[u16], u16, bool); 6] = [
        (&[0xffff], &[0xffff], 0x7fff, true),
        (&[0xffff], &[0x7fff], 0xffff, true),
        (&[0x7fff, 0x8001], &[0x7fff, 0x8001], 0xffff, false),
        (&[0xffff, 0x8001], &[0xffff], 0x8001, false),
        (&[0xffff, 0x0002], &[0xffff, 0x8002], 0x8002, true),
        (&[0xffff], &[0xffff], 0x8000, false),
    ];
    for (a, b, pkey, there) in cases {
        let (mask, record) = between(Lid(3), Lid(4));
        let record = PathRecord { pkey: Pkey(pkey), ..record };
        let found = get(&mut with_keys(a, b), (mask | Mask::PKEY, record));
        let expected = there.then_some(Pkey(pkey));
        assert_eq!(found.ok().map(|path| path.pkey), expected, "{a:x?} {b:x?} {pkey:#x}");
    }
}

#[test]
fn raw_paths_have_no_partition() {
    let (mask, mut record) = between(Lid(3), Lid(4));
    record.raw_traffic = true;
    let found = get(&mut with_keys(&[0xffff], &[0xffff]), (mask | Mask::RAW_TRAFFIC, record));
    assert_eq!(found.expect("a path").pkey, Pkey(0));
}

#[test]
fn raw_paths_have_the_service_level_of_the_common_partition_and_ignore_the_asked_one() {
    let mut net = with_keys(&[0x8001, 0x8002], &[0x8001, 0x8002]);
    let partitions = Partitions::parse("p", "A=1,sl=3: ALL=full; B=2,sl=4: ALL=full;").unwrap();
    net.administration.set_partitions(partitions);
    let (mask, record) = between(Lid(3), Lid(4));
    for pkey in [0x8002, 0x8005] {
        let record = PathRecord { raw_traffic: true, pkey: Pkey(pkey), ..record };
        let path = get(&mut net, (mask | Mask::RAW_TRAFFIC | Mask::PKEY, record)).expect("a path");
        assert_eq!((path.pkey, path.sl), (Pkey(0), 3));
    }
}

#[test]
fn path_record_needs_a_requester_sharing_a_partition_with_the_ends() {
    let mut net = with_keys(&[0xffff, 0x8003], &[0x8003]);
    assert_eq!(get(&mut net, between(Lid(3), Lid(4))), Err(status::SA_NO_RECORDS));
    net.asks = Lid(3);
    assert_eq!(get(&mut net, between(Lid(3), Lid(4))).expect("a path").pkey, Pkey(0x8003));
}

#[test]
fn limited_member_gets_path_records_from_and_to_itself() {
    let mut net = with_keys(&[0x7fff], &[0xffff]);
    net.asks = Lid(3);
    for (from, to) in [(Lid(3), Lid(4)), (Lid(4), Lid(3))] {
        let path = get(&mut net, between(from, to)).expect("a path");
        assert_eq!(path.pkey.0 & 0x7fff, 0x7fff);
    }
}

#[test]
fn service_level_is_the_partition_s_unless_asked() {
    let mut net = with_keys(&[0x8001], &[0x8001]);
    let partitions = Partitions::parse("p", "A=1,ipoib,sl=3: ALL=full;").unwrap();
    net.administration.set_partitions(partitions);
    let (mask, record) = between(Lid(3), Lid(4));
    assert_eq!(get(&mut net, (mask, record)).expect("a path").sl, 3);
    let asked = PathRecord { sl: 5, ..record };
    assert_eq!(get(&mut net, (mask | Mask::SL, asked)).expect("a path").sl, 5);
}

#[test]
fn alias_guid_is_an_end_as_asked() {
    let mut net = Net::new("switch:2", 0);
    let place = net.model.by_lid(Lid(3)).unwrap();
    net.model.set_alias(place, 3, Guid(0xa11a5));
    let alias = Gid::new(Gid::DEFAULT_PREFIX, Guid(0xa11a5));
    let question = PathRecord { sgid: alias, dlid: Lid(2), ..PathRecord::default() };
    let path = get(&mut net, (Mask::SGID | Mask::DLID, question)).expect("a path");
    assert_eq!((path.sgid, path.slid), (alias, Lid(3)));
}

/// Sends a query for several paths.
fn ask_multi(
    net: &mut Net,
    mask: MultiPathRecordMask,
    record: &MultiPathRecord,
    active: bool,
) -> Answer<PathRecord> {
    let data = record.to_bytes();
    let mut mad = SaMad::new(Method::GET_MULTI, MultiPathRecord::ATTR_ID, &data);
    mad.sa.component_mask = mask.bits();
    if active {
        mad.rmpp = Rmpp {
            version: 1,
            kind: RmppType::DATA,
            flags: RmppFlags::ACTIVE,
            status: RmppStatus::NORMAL,
            ..mad.rmpp
        };
    }
    net.put([&mad.head()[..], &data].concat());
    let answer = net.out.sent.pop().expect("an answer");
    let mad = SaMad::parse(&answer.data).expect("a MAD");
    assert_eq!(mad.header.method, Method::GET_MULTI_RESP);
    let records = if mad.header.status == 0 { mad.records().collect() } else { Vec::new() };
    Answer { status: mad.header.status, records }
}

fn multi(net: &Net, from: &[Lid], to: &[Lid]) -> MultiPathRecord {
    let mut record = MultiPathRecord {
        sgid_count: u8::try_from(from.len()).unwrap(),
        dgid_count: u8::try_from(to.len()).unwrap(),
        ..MultiPathRecord::default()
    };
    for (at, &lid) in from.iter().chain(to).enumerate() {
        record.gids[at] = gid(net, lid);
    }
    record
}

const COUNTS: MultiPathRecordMask =
    MultiPathRecordMask::SGID_COUNT.union(MultiPathRecordMask::DGID_COUNT);

#[test]
fn multipath_query_returns_paths_of_all_pairs_up_to_numb_path() {
    let mut net = Net::new("switch:4", 0);
    let lids = adapters(&net);
    let record = multi(&net, &lids[..2], &lids[2..]);
    let answer = ask_multi(&mut net, COUNTS, &record, true);
    let pairs: Vec<_> = answer.records.iter().map(|p| (p.slid, p.dlid)).collect();
    let [a, b, c, d] = [lids[0], lids[1], lids[2], lids[3]];
    assert_eq!((answer.status, pairs), (0, [(a, c), (a, d), (b, c), (b, d)].to_vec()));
    let mask = COUNTS | MultiPathRecordMask::NUMB_PATH;
    for (numb_path, paths) in [(0, 0), (1, 1), (3, 3), (9, 4)] {
        let record = MultiPathRecord { numb_path, ..record };
        let answer = ask_multi(&mut net, mask, &record, true);
        assert_eq!(answer.records.len(), paths, "{numb_path} of all");
    }
}

#[test]
fn multipath_query_for_two_paths_prefers_disjoint_ends() {
    let mut net = Net::new("switch:4", 0);
    let lids = adapters(&net);
    let mut record = multi(&net, &lids[..2], &lids[2..]);
    record.numb_path = 2;
    let mask = COUNTS | MultiPathRecordMask::NUMB_PATH;
    let pairs = |answer: Answer<PathRecord>| {
        answer.records.iter().map(|p| (p.slid, p.dlid)).collect::<Vec<_>>()
    };
    let [a, b, c, d] = [lids[0], lids[1], lids[2], lids[3]];
    assert_eq!(pairs(ask_multi(&mut net, mask, &record, true)), [(a, c), (b, d)]);
    // Without the first of these paths the others are used.
    net.model.port_mut(net.model.by_lid(a).unwrap()).unwrap().pkeys = [Pkey(0x8001)].into();
    net.model.port_mut(net.model.by_lid(d).unwrap()).unwrap().pkeys =
        [Pkey(0x8001), Pkey(0xffff)].into();
    net.asks = d;
    assert_eq!(pairs(ask_multi(&mut net, mask, &record, true)), [(a, d), (b, c)]);
}

#[test]
fn invalid_multipath_queries_are_refused_with_status() {
    let mut net = Net::new("switch:4", 0);
    let lids = adapters(&net);
    let record = multi(&net, &lids[..1], &lids[1..2]);
    let status_of = |net: &mut Net, mask, record: &MultiPathRecord, active| {
        ask_multi(net, mask, record, active).status
    };
    assert_eq!(status_of(&mut net, COUNTS, &record, true), 0);
    assert_eq!(status_of(&mut net, COUNTS, &record, false), status::SA_REQUEST_INVALID);
    for mask in [MultiPathRecordMask::SGID_COUNT, MultiPathRecordMask::DGID_COUNT] {
        let found = status_of(&mut net, mask, &record, true);
        assert_eq!(found, status::SA_INSUFFICIENT_COMPONENTS);
    }
    for (sgid_count, dgid_count) in [(0, 1), (1, 0), (6, 6), (255, 255)] {
        let record = MultiPathRecord { sgid_count, dgid_count, ..record };
        let found = status_of(&mut net, COUNTS, &record, true);
        assert_eq!(found, status::SA_REQUEST_INVALID, "{sgid_count} {dgid_count}");
    }
    let unknown = MultiPathRecord { dgid_count: 2, ..record };
    assert_eq!(status_of(&mut net, COUNTS, &unknown, true), status::SA_INVALID_GID);
}

/// Returns whether one of 60 queries is answered busy. `changes`: the model changes before each.
fn gets_busy(changes: bool, mut ask: impl FnMut(&mut Net) -> u16) -> bool {
    let mut net = Net::new("switch:20", 0);
    net.administration.config.table_bytes = 8192;
    let place = net.model.by_lid(Lid(5)).unwrap();
    (0..60).any(|_| {
        if changes {
            assert!(net.model.port_mut(place).is_some());
        }
        ask(&mut net) == status::BUSY
    })
}

#[test]
fn queries_for_all_paths_of_a_port_pay_for_the_summary_of_a_changed_model() {
    // No port is in this partition, so the answers are empty.
    let all = |net: &mut Net| {
        let none = PathRecord { slid: Lid(2), pkey: Pkey(0x8123), ..PathRecord::default() };
        net.ask(Method::GET_TABLE, ID, (Mask::SLID | Mask::PKEY).bits(), &none).status
    };
    assert!(gets_busy(true, all));
    assert!(!gets_busy(false, all));
}

#[test]
fn queries_for_the_paths_of_one_pair_need_no_summary_of_a_changed_model() {
    let one = |net: &mut Net| {
        let (mask, record) = between(Lid(2), Lid(3));
        net.ask(Method::GET_TABLE, ID, mask.bits(), &record).status
    };
    let several = |net: &mut Net| {
        let record = multi(net, &[Lid(2)], &[Lid(3)]);
        ask_multi(net, COUNTS, &record, true).status
    };
    assert!(!gets_busy(true, one) && !gets_busy(true, several));
}
