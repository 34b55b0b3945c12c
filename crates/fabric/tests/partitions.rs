//! Partitions from a file: the ports' tables, the notices to programs, and the stored state.

mod common;

use common::asker::Asker;
use common::{managed, up};
use rdmux_fabric::server::{ManagerSetup, PartitionsFile, Server, ServerOptions, Setup};
use rdmux_fabric::{FabricDir, FabricName};
use rdmux_runtime::UserDir;
use rdmux_subnet::topology::Shape;
use rdmux_testing::temp_dir;
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, Rate, Selector,
};
use rdmux_wire::sm::{PkeyTable, PortInfo};
use rdmux_wire::{Gid, Mtu, Pkey, Qkey};

/// Status: no records found.
const NO_RECORDS: u16 = 0x0300;

/// The first two of three adapters are in a partition; no other port is.
const TEXT: &str = "# comment
Default=0x7fff, ipoib: ALL, SELF=full;
Storage=0x10, ipoib, rate=7, mtu=5, sl=3, Q_Key=0x1234: 0x0002000000100101=full,
  0x0002000000100201;
";

fn setup(text: &str) -> Setup {
    let partitions = PartitionsFile { name: "p.conf".into(), text: text.into() };
    let manager = ManagerSetup { partitions: Some(partitions), ..ManagerSetup::default() };
    Setup { manager, ..Setup::default() }
}

#[test]
fn tables_are_set_at_adapters_and_enforced_at_the_switch_also_after_a_restart() {
    let (mut fabric, _) = managed("switch:3", setup(TEXT));
    for _ in 0..2 {
        let mut program = fabric.manager("S-0002000000100000", 0);
        for (number, table) in [(1, &[0x7fff, 0x8010][..]), (2, &[0x7fff, 0x10]), (3, &[0x7fff])] {
            let mut expected = PkeyTable::default();
            expected.pkeys.iter_mut().zip(table).for_each(|(key, wanted)| *key = Pkey(*wanted));
            let number = u8::try_from(number).unwrap();
            let at = |smp: rdmux_wire::smp::Smp| PkeyTable::from_bytes(&smp.data);
            assert_eq!(at(program.get(&[number], PkeyTable::ATTR_ID, 0)), expected);
            let of_switch = program.get(&[], PkeyTable::ATTR_ID, u32::from(number) << 16);
            assert_eq!(at(of_switch), expected);
            let info = program.get(&[], PortInfo::ATTR_ID, number.into());
            let info = PortInfo::from_bytes(&info.data);
            assert!(info.partition_enforcement_inbound && info.partition_enforcement_outbound);
        }
        drop(program);
        fabric.stop();
        fabric.start();
        let status = up(&fabric);
        assert_eq!(status.partitions.as_deref(), Some("p.conf"));
    }
}

#[test]
fn paths_are_found_within_a_partition_only() {
    let (fabric, shown) = managed("switch:3", setup(TEXT));
    let askers = [0, 1, 2].map(|n| Asker::new(&fabric, &shown, n));
    let mask = PathRecordMask::SGID | PathRecordMask::DGID;
    let path = |from: &Asker, to: &Asker, mask: PathRecordMask, pkey: u16| {
        let (sgid, dgid, pkey) = (from.gid, to.gid, Pkey(pkey));
        let record = PathRecord { sgid, dgid, pkey, ..PathRecord::default() };
        let answer = from.ask(Method::GET, PathRecord::ATTR_ID, mask.bits(), &record.to_bytes());
        match answer {
            (0, _, data) => Ok(PathRecord::read(&data).unwrap()),
            (status, ..) => Err(status),
        }
    };
    let [full, limited, other] = &askers;
    let there = path(full, limited, mask, 0).unwrap();
    assert_eq!((there.pkey, there.sl), (Pkey(0x8010), 3));
    let back = path(limited, full, mask, 0).unwrap();
    assert_eq!((back.pkey, back.sl), (Pkey(0x0010), 3));
    // Both are limited members of the only partition that they share.
    assert_eq!(path(limited, other, mask, 0).unwrap_err(), NO_RECORDS);
    assert_eq!(path(full, other, mask | PathRecordMask::PKEY, 0x8010).unwrap_err(), NO_RECORDS);
}

#[test]
fn each_partition_has_its_broadcast_group_from_the_start() {
    let (fabric, shown) = managed("switch:3", setup(TEXT));
    let askers = [0, 2].map(|n| Asker::new(&fabric, &shown, n));
    let mgid = |text: &str| Gid::from(text.parse::<std::net::Ipv6Addr>().unwrap());
    let group = |asker: &Asker, mgid: Gid| {
        let record = McMemberRecord { mgid, ..McMemberRecord::default() };
        let mask = McMemberRecordMask::MGID.bits();
        let (status, _, data) =
            asker.ask(Method::GET, McMemberRecord::ATTR_ID, mask, &record.to_bytes());
        if status == 0 { Ok(McMemberRecord::read(&data).unwrap()) } else { Err(status) }
    };
    let storage = mgid("ff12:401b:8010::ffff:ffff");
    let found = group(&askers[0], storage).unwrap();
    assert_eq!((found.pkey, found.sl, found.qkey), (Pkey(0x8010), 3, Qkey(0x1234)));
    assert_eq!((found.rate, found.rate_selector), (Rate(7), Selector::EXACTLY));
    assert_eq!((found.mtu, found.mtu_selector), (Mtu::M4096.code(), Selector::EXACTLY));
    assert_eq!(group(&askers[1], storage).unwrap_err(), NO_RECORDS, "of a partition of others");
    let default = group(&askers[1], mgid("ff12:401b:ffff::ffff:ffff")).unwrap();
    assert_eq!((default.qkey, default.rate), (Qkey(0x0b1b), Rate::GBPS_10));
}

#[test]
fn invalid_partitions_file_prevents_the_fabric_from_starting() {
    let tmp = temp_dir();
    let user = UserDir::at(tmp.path().join("r")).unwrap();
    let name = FabricName::default();
    let dir = FabricDir::open(&user, &name).unwrap();
    let topology = Shape::Two.topology(rdmux_fabric::server::FIRST_GUID);
    setup("A=1: ALL;\n B=2, mtu=9: ALL;").keep(&dir, Some(&topology)).unwrap();
    let e = Server::spawn(ServerOptions::new(name, user)).unwrap_err().to_string();
    assert!(e.contains("p.conf: line 2, at `9`: "), "{e}");
}

/// Returns the keys of a port's table, without trailing empty entries.
fn keys(program: &mut common::Manager, hops: &[u8], modifier: u32) -> Vec<u16> {
    let table = PkeyTable::from_bytes(&program.get(hops, PkeyTable::ATTR_ID, modifier).data);
    let mut keys: Vec<u16> = table.pkeys.iter().map(|key| key.0).collect();
    keys.truncate(keys.iter().rposition(|key| *key != 0).map_or(0, |last| last + 1));
    keys
}

/// Waits until a port has this table.
fn until_set(program: &mut common::Manager, hops: &[u8], expected: &[u16]) {
    while keys(program, hops, 0) != expected {
        std::thread::yield_now();
    }
}

fn change(fabric: &common::Fabric, text: &str) -> Result<String, String> {
    let file = PartitionsFile { name: "other.conf".into(), text: text.into() };
    let said = rdmux_fabric::client::admin::set_partitions(&fabric.options, &fabric.name, file);
    said.map_err(|e| e.to_string())
}

#[test]
fn partitions_of_a_running_fabric_change_tables_groups_and_paths_and_are_kept() {
    let (mut fabric, shown) = managed("switch:3", setup(TEXT));
    let askers = [0, 1, 2].map(|n| Asker::new(&fabric, &shown, n));
    let mgid = |text: &str| Gid::from(text.parse::<std::net::Ipv6Addr>().unwrap());
    let member = |mgid: Gid, method: Method| {
        let record = McMemberRecord {
            mgid,
            port_gid: askers[0].gid,
            join_state: rdmux_wire::sa::JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        };
        let mut mask = McMemberRecordMask::MGID;
        if method != Method::GET {
            mask |= McMemberRecordMask::PORT_GID | McMemberRecordMask::JOIN_STATE;
        }
        let id = McMemberRecord::ATTR_ID;
        let (status, _, data) = askers[0].ask(method, id, mask.bits(), &record.to_bytes());
        if status == 0 { Ok(McMemberRecord::read(&data).unwrap().mlid.0) } else { Err(status) }
    };
    let (default, storage, lab) = (
        mgid("ff12:401b:ffff::ffff:ffff"),
        mgid("ff12:401b:8010::ffff:ffff"),
        mgid("ff12:401b:8020::ffff:ffff"),
    );
    assert_eq!(member(default, Method::SET), Ok(0xc000));
    let mut program = fabric.manager("S-0002000000100000", 0);
    let before = up(&fabric).sweeps;
    let said = change(
        &fabric,
        "Default=0x7fff, ipoib: ALL, SELF=full; Low=5: ALL=full;
         Lab=0x20, ipoib: 0x0002000000100101=full; Storage=0x10: 0x0002000000100101;",
    );
    assert!(said.unwrap().starts_with("4 partitions of other.conf: "));
    // The first adapter keeps a partition, now as a limited member, and has two more after it.
    until_set(&mut program, &[1], &[0x7fff, 0x0010, 0x8005, 0x8020]);
    until_set(&mut program, &[2], &[0x7fff, 0, 0x8005]);
    until_set(&mut program, &[3], &[0x7fff, 0x8005]);
    // The switch has the same ones, and the manager knows them once the sweep has ended.
    while up(&fabric).sweeps == before {
        std::thread::yield_now();
    }
    assert_eq!(keys(&mut program, &[], 2 << 16), [0x7fff, 0x8005]);
    let mask = PathRecordMask::SGID | PathRecordMask::DGID;
    let path = PathRecord { sgid: askers[1].gid, dgid: askers[2].gid, ..PathRecord::default() };
    let (status, _, data) =
        askers[1].ask(Method::GET, PathRecord::ATTR_ID, mask.bits(), &path.to_bytes());
    assert_eq!((status, PathRecord::read(&data).unwrap().pkey), (0, Pkey(0x8005)));
    // A group with members stays. A group that no partition has any more is deleted, and its LID is reused for a
    // new one.
    assert_eq!(member(default, Method::DELETE), Ok(0), "it is a member still");
    assert_eq!(member(storage, Method::GET), Err(NO_RECORDS));
    assert_eq!(member(lab, Method::GET), Ok(0xc001));
    drop(program);
    drop(askers);
    fabric.stop();
    fabric.start();
    assert_eq!(up(&fabric).partitions.as_deref(), Some("other.conf"));
    let mut program = fabric.manager("S-0002000000100000", 0);
    assert_eq!(
        keys(&mut program, &[1], 0),
        [0x7fff, 0x8005, 0x0010, 0x8020],
        "of a port without a table"
    );
}

#[test]
fn invalid_partitions_change_is_refused_and_keeps_the_old_ones() {
    let (fabric, _) = managed("switch:3", setup(TEXT));
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let before = Setup::load(&dir).unwrap();
    let said = change(&fabric, "A=1: ALL;\n B=2, mtu=9: ALL;").unwrap_err();
    assert!(said.contains("other.conf: line 2, at `9`: "), "{said}");
    assert_eq!(Setup::load(&dir).unwrap(), before);
    let status = rdmux_fabric::client::admin::status(&fabric.options, &fabric.name).unwrap();
    assert_eq!(status.manager.unwrap().partitions.as_deref(), Some("p.conf"));
    let mut program = fabric.manager("S-0002000000100000", 0);
    assert_eq!(keys(&mut program, &[1], 0), [0x7fff, 0x8010]);
}

#[test]
fn a_fabric_without_a_manager_has_no_partitions_to_change() {
    let fabric = common::Fabric::up("switch:3");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let before = Setup::load(&dir).unwrap();
    let said = change(&fabric, "A=1: ALL;").unwrap_err();
    assert!(said.contains("no subnet manager of its own"), "{said}");
    assert_eq!(Setup::load(&dir).unwrap(), before);
}
