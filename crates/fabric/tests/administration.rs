//! The fabric's own subnet administration, queried as by programs.

mod common;

use common::asker::Asker;
use common::managed;
use rdmux_fabric::client::admin;
use rdmux_fabric::proto::{NodeRef, PortRef};
use rdmux_fabric::server::{ManagerSetup, Setup};
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    GuidInfoRecord, GuidInfoRecordMask, JoinState, McMemberRecord, McMemberRecordMask, NodeRecord,
    PathRecord, PathRecordMask, SlToVlTableRecord, SlToVlTableRecordMask, SmInfoRecord,
    VlArbitrationRecord,
};
use rdmux_wire::sm::{SmState, Vl};
use rdmux_wire::{Gid, Guid, Lid, Pkey, Qkey};

/// Status: no records found.
const NO_RECORDS: u16 = 0x0300;

#[test]
fn get_table_of_node_records_returns_all_ports_over_rmpp() {
    let (fabric, shown) = managed("fattree:40", Setup::default());
    let asker = Asker::new(&fabric, &shown, 0);
    let (status, offset, data) = asker.ask(Method::GET_TABLE, NodeRecord::ATTR_ID, 0, &[]);
    assert_eq!((status, offset), (0, 14));
    assert_eq!(
        data.len() / 112,
        shown.nodes.iter().map(|n| if n.is_switch { 1 } else { n.ports.len() }).sum()
    );
}

#[test]
fn path_record_is_found_by_gids_and_unknown_gid_is_no_records() {
    let (fabric, shown) = managed("fattree:40", Setup::default());
    let (asker, other) = (Asker::new(&fabric, &shown, 0), Asker::new(&fabric, &shown, 9));
    let mask = PathRecordMask::SGID | PathRecordMask::DGID;
    let ends = |dgid| PathRecord { sgid: asker.gid, dgid, ..PathRecord::default() }.to_bytes();
    let path: PathRecord =
        asker.get(Method::GET, PathRecord::ATTR_ID, mask.bits(), &ends(other.gid));
    assert_eq!((path.slid, path.dlid, path.pkey), (asker.lid, other.lid, Pkey::DEFAULT));
    let nobody = Gid::new(Gid::DEFAULT_PREFIX, Guid(0xdead));
    let (status, _, _) = asker.ask(Method::GET, PathRecord::ATTR_ID, mask.bits(), &ends(nobody));
    assert_eq!(status, NO_RECORDS);
}

#[test]
fn members_of_a_group_are_in_the_switches_tables_until_they_leave() {
    let (fabric, shown) = managed("fattree:40", Setup::default());
    let mask =
        McMemberRecordMask::MGID | McMemberRecordMask::PORT_GID | McMemberRecordMask::JOIN_STATE;
    let create = mask
        | McMemberRecordMask::QKEY
        | McMemberRecordMask::TCLASS
        | McMemberRecordMask::PKEY
        | McMemberRecordMask::FLOW_LABEL
        | McMemberRecordMask::SL;
    let mgid: Gid = "ff15:c0de::1234".parse::<std::net::Ipv6Addr>().unwrap().into();
    let record = |asker: &Asker| {
        McMemberRecord {
            mgid,
            port_gid: asker.gid,
            qkey: Qkey(0x11),
            pkey: Pkey::DEFAULT,
            join_state: JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        }
        .to_bytes()
    };
    let askers = [Asker::new(&fabric, &shown, 0), Asker::new(&fabric, &shown, 39)];
    let mlids = askers.each_ref().map(|asker| {
        let joined: McMemberRecord =
            asker.get(Method::SET, McMemberRecord::ATTR_ID, create.bits(), &record(asker));
        joined.mlid
    });
    assert_eq!(mlids[0], mlids[1]);
    let has = |wanted: bool| loop {
        let tables = admin::tables(&fabric.options, &fabric.name).unwrap();
        let mut groups = tables.switches.iter().flat_map(|switch| &switch.multicast);
        if groups.any(|(mlid, _)| *mlid == mlids[0]) == wanted {
            break;
        }
        std::thread::yield_now();
    };
    has(true);
    for asker in &askers {
        let _: McMemberRecord =
            asker.get(Method::DELETE, McMemberRecord::ATTR_ID, mask.bits(), &record(asker));
    }
    has(false);
}

#[test]
fn alias_guids_are_set_at_their_port() {
    let (fabric, shown) = managed("switch:2", Setup::default());
    let asker = Asker::new(&fabric, &shown, 1);
    let mut record = GuidInfoRecord { lid: asker.lid, ..GuidInfoRecord::default() };
    let wanted = [0x75, 0x76, 0x77].map(Guid);
    record.guid_info.guids[1..4].copy_from_slice(&wanted);
    let mask = GuidInfoRecordMask::LID
        | GuidInfoRecordMask::BLOCK_NUM
        | GuidInfoRecordMask::GUID1
        | GuidInfoRecordMask::GUID2
        | GuidInfoRecordMask::GUID3;
    let set: GuidInfoRecord =
        asker.get(Method::SET, GuidInfoRecord::ATTR_ID, mask.bits(), &record.to_bytes());
    assert_eq!(set.guid_info.guids[1..4], wanted);
    let mut program = common::Manager::open(
        &fabric.options,
        &fabric.name,
        &PortRef {
            node: NodeRef::Guid(shown.nodes.iter().filter(|n| !n.is_switch).nth(1).unwrap().guid),
            port: 1,
        },
    );
    // The port replies with what was set before this query arrived.
    loop {
        let info = program.get(&[], rdmux_wire::sm::GuidInfo::ATTR_ID, 0);
        let info = rdmux_wire::sm::GuidInfo::parse(&info.data[..]).unwrap();
        assert_eq!(info.guids[0], asker.guid);
        if info.guids[1] == wanted[0] {
            assert_eq!(info.guids[1..4], wanted);
            break;
        }
        std::thread::yield_now();
    }
}

#[test]
fn sm_info_record_of_the_master_sm_is_returned() {
    let manager = ManagerSetup { priority: 5, ..ManagerSetup::default() };
    let (fabric, shown) = managed("switch:2", Setup { manager, ..Setup::default() });
    let asker = Asker::new(&fabric, &shown, 0);
    let own: SmInfoRecord = asker.get(Method::GET, SmInfoRecord::ATTR_ID, 0, &[]);
    assert_eq!((own.lid, own.sm_info.guid), (asker.sm_lid, shown.nodes[0].guid));
    assert_eq!((own.sm_info.state, own.sm_info.priority), (SmState::MASTER, 5));
    assert_ne!(own.sm_info.act_count, 0);
}

#[test]
fn tables_of_service_levels_are_records_where_they_are_set() {
    for (sl_to_vl, expected) in [(None, None), (Some([0; 16]), Some([Vl(0); 16]))] {
        let manager = ManagerSetup { sl_to_vl, ..ManagerSetup::default() };
        let (fabric, shown) = managed("switch:2", Setup { manager, ..Setup::default() });
        let asker = Asker::new(&fabric, &shown, 0);
        let mask = SlToVlTableRecordMask::LID.bits();
        let question = SlToVlTableRecord { lid: asker.lid, ..SlToVlTableRecord::default() };
        let (status, _, data) =
            asker.ask(Method::GET, SlToVlTableRecord::ATTR_ID, mask, &question.to_bytes());
        let found = (status == 0).then(|| SlToVlTableRecord::read(&data).unwrap().table.vls);
        assert_eq!(found, expected);
        let (_, _, data) = asker.ask(Method::GET_TABLE, VlArbitrationRecord::ATTR_ID, 0, &[]);
        assert_eq!(data.is_empty(), sl_to_vl.is_none());
    }
}

#[test]
fn send_only_member_is_not_in_the_multicast_forwarding_table() {
    let (fabric, shown) = managed("switch:3", Setup::default());
    let mgid: Gid = "ff12:401b:ffff::ffff:ffff".parse::<std::net::Ipv6Addr>().unwrap().into();
    let mask =
        McMemberRecordMask::MGID | McMemberRecordMask::PORT_GID | McMemberRecordMask::JOIN_STATE;
    let states = [JoinState::FULL_MEMBER, JoinState::SEND_ONLY_NON_MEMBER, JoinState::FULL_MEMBER];
    let mut mlid = Lid::NONE;
    for (n, join_state) in states.into_iter().enumerate() {
        let asker = Asker::new(&fabric, &shown, n);
        let record = McMemberRecord { mgid, port_gid: asker.gid, join_state, ..Default::default() };
        let joined: McMemberRecord =
            asker.get(Method::SET, McMemberRecord::ATTR_ID, mask.bits(), &record.to_bytes());
        mlid = joined.mlid;
    }
    // The switch gets the ports of both full members eventually, and never the other one.
    loop {
        let tables = admin::tables(&fabric.options, &fabric.name).unwrap();
        let group = tables.switches[0].multicast.iter().find(|(known, _)| *known == mlid);
        let ports = group.map(|(_, ports)| ports.clone()).unwrap_or_default();
        assert!(!ports.contains(&2), "{ports:?}");
        if ports == [1, 3] {
            break;
        }
        std::thread::yield_now();
    }
}
