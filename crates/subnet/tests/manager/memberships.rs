//! Members that a sweep removes from their groups, in administration and in the switches' tables.

use std::time::Duration;

use rdmux_subnet::PortId;
use rdmux_subnet::partitions::{PartitionTables, Partitions};
use rdmux_subnet::service::Service;
use rdmux_subnet::umad::{UserAddress, UserMad};
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sa::{
    InformInfo, JoinState, McMemberRecord, McMemberRecordMask as Mask, ReportedNotice, SaMad,
};
use rdmux_wire::sm::{Producer, Trap};
use rdmux_wire::{Gid, Guid, Lid, Pkey};

use crate::net::{Net, Way, config, port};

const QUIET: Duration = Duration::from_secs(60);

/// The adapters of `switch:4`.
const A: PortId = port(1, 1);
const B: PortId = port(2, 1);
const C: PortId = port(3, 1);

/// Returns the GID of a group that programs create.
fn group(number: u8) -> Gid {
    Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number])
}

/// A subnet with a manager and administration.
struct Administered {
    net: Net,
    service: Service,
}

impl Administered {
    fn up(partitions: Partitions) -> Self {
        let mut this = Self {
            net: Net::up("switch:4", config()),
            service: Service::new(Default::default(), partitions, 1),
        };
        this.pass();
        this
    }

    /// Advances time. Passes the manager's events to administration, and administration's groups to the manager.
    fn pass(&mut self) {
        self.net.pass(QUIET);
        for (index, event) in std::mem::take(&mut self.net.out.events) {
            self.service.handle_event(self.net.now, &mut self.net.managers[index].1, &event);
        }
        let service = &mut self.service;
        self.net.with(0, |manager, now, _| service.handle_timeout(now, manager));
        self.net.pass(QUIET);
    }

    fn guid(&self, at: PortId) -> Guid {
        self.net.subnet.port(at).expect("a port").guid()
    }

    fn lid(&self, at: PortId) -> Lid {
        self.net.subnet.port(at).expect("a port").lid()
    }

    /// Returns administration's answer to a port's request, without Reports.
    fn ask(
        &mut self,
        from: PortId,
        method: Method,
        attr_id: u16,
        mask: u64,
        data: &[u8],
    ) -> Vec<u8> {
        let mut question = SaMad::new(method, attr_id, data);
        question.sa.component_mask = mask;
        let mad = UserMad {
            agent: 0,
            status: 0,
            timeout_ms: 0,
            retries: 0,
            address: UserAddress::gsi(self.lid(from)),
            data: question.to_bytes().to_vec(),
        };
        self.service.handle_mad(self.net.now, self.net.manager(), &mad);
        let mut sent = std::iter::from_fn(|| self.service.next_mad());
        let header = |mad: &UserMad| MadHeader::parse(&mad.data).expect("a MAD");
        let answer = sent.find(|mad| header(mad).method == method.response()).expect("an answer");
        assert_eq!(header(&answer).status, 0);
        answer.data
    }

    /// Joins a port with a GUID, which creates the group if needed.
    fn join(&mut self, from: PortId, mgid: Gid, guid: Guid, pkey: Pkey) -> Lid {
        let record = McMemberRecord {
            mgid,
            port_gid: Gid::new(Gid::DEFAULT_PREFIX, guid),
            pkey,
            join_state: JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        };
        let member = Mask::MGID | Mask::PORT_GID | Mask::JOIN_STATE | Mask::PKEY;
        let mask = member | Mask::QKEY | Mask::TCLASS | Mask::FLOW_LABEL | Mask::SL;
        let id = McMemberRecord::ATTR_ID;
        let answer = self.ask(from, Method::SET, id, mask.bits(), &record.to_bytes());
        let joined: McMemberRecord =
            SaMad::parse(&answer).expect("a MAD").record().expect("a record");
        joined.mlid
    }

    /// Subscribes a port to the deletion of groups.
    fn subscribe(&mut self, from: PortId) {
        let what = InformInfo {
            lid_range_begin: Lid(0xffff),
            is_generic: 1,
            subscribe: 1,
            notice_type: 0xffff,
            trap_number: 67,
            producer: Producer(0xff_ffff),
            ..InformInfo::default()
        };
        self.ask(from, Method::SET, InformInfo::ATTR_ID, 0, &what.to_bytes());
    }

    /// Returns the reported group deletions and their receivers.
    fn reported(&mut self) -> Vec<(Lid, Gid)> {
        let sent = std::iter::from_fn(|| self.service.next_mad());
        let report = |mad: UserMad| {
            let report: ReportedNotice =
                SaMad::parse(&mad.data).expect("a MAD").record().expect("one");
            match report.notice.trap() {
                Some(Trap::GroupDeleted(event)) => (mad.address.lid, event.gid),
                other => panic!("{other:?}"),
            }
        };
        sent.map(report).collect()
    }

    /// Returns the switch's egress ports for a group.
    fn routes(&self, mlid: Lid) -> Vec<u8> {
        self.net.subnet.routes(port(0, 0).node, mlid)
    }

    fn set_cable(&mut self, at: PortId, up: bool) {
        self.net.change(|s, now, inbox| s.set_cable(now, at, up, inbox)).expect("a cable");
        self.pass();
    }
}

#[test]
fn member_by_alias_guid_leaves_when_another_port_regains_the_guid() {
    let mut all = Administered::up(Partitions::default());
    let [guid_of_a, guid_of_c] = [A, C].map(|at| all.guid(at));
    all.subscribe(C);
    all.set_cable(A, false);
    let lid = all.lid(B);
    let place = all.net.manager().model().by_lid(lid).expect("known");
    let request = all.net.manager().set_alias(place, 1, guid_of_a).expect("a request");
    assert_eq!(all.net.ask(port(0, 0), request).expect("an answer").status(), 0);
    let alone = all.join(B, group(1), guid_of_a, Pkey::DEFAULT);
    let both = all.join(B, group(2), guid_of_a, Pkey::DEFAULT);
    assert_eq!(all.join(C, group(2), guid_of_c, Pkey::DEFAULT), both);
    all.pass();
    assert_eq!([all.routes(alone), all.routes(both)], [vec![2], vec![2, 3]]);
    assert_eq!(all.reported(), []);
    all.set_cable(A, true);
    assert_eq!([all.routes(alone), all.routes(both)], [vec![], vec![3]]);
    assert_eq!(all.reported(), [(all.lid(C), group(1))]);
}

/// Changes the partitions.
fn set_partitions(all: &mut Administered, text: &str) {
    let partitions = Partitions::parse("p", text).expect("partitions");
    let manager = all.guid(port(0, 0));
    let tables = Box::new(PartitionTables { partitions: partitions.clone(), manager });
    all.service.set_partitions(partitions);
    all.net.with(0, |manager, now, _| manager.set_pkey_tables(now, tables));
    all.pass();
}

#[test]
fn port_removed_from_a_partition_leaves_its_multicast_groups() {
    let default = "Default=0x7fff: ALL, SELF=full;";
    let with = |members: &str| format!("{default} Storage=0x10, ipoib: {members};");
    let mut all = Administered::up(Partitions::default());
    set_partitions(&mut all, &with("0x100101=full, 0x100201=full, 0x100301=full"));
    all.subscribe(C);
    let guids = [A, B, C].map(|at| all.guid(at));
    let storage = Pkey(0x8010);
    let alone = all.join(A, group(1), guids[0], storage);
    let both = all.join(A, group(2), guids[0], storage);
    assert_eq!(all.join(C, group(2), guids[2], storage), both);
    let other = all.join(A, group(3), guids[0], Pkey::DEFAULT);
    let limited = all.join(B, group(4), guids[1], storage);
    all.pass();
    let routes = |all: &Administered| [alone, both, other, limited].map(|mlid| all.routes(mlid));
    let before = [vec![1], vec![1, 3], vec![1], vec![2]];
    assert_eq!((routes(&all), all.reported()), (before.clone(), vec![]));
    // A sweep that cannot read tables must not remove members from a partition.
    all.net.meddler = Box::new(|_, way, mad| {
        let header = MadHeader::parse(&mad[..]).expect("a MAD");
        let is_read = (header.method, header.attr_id) == (Method::GET, 0x16);
        !(way == Way::ToSubnet && is_read)
    });
    all.net.with(0, |manager, now, _| manager.sweep(now));
    all.pass();
    assert_eq!((routes(&all), all.reported()), (before, vec![]));
    all.net.meddler = Box::new(|_, _, _| true);
    set_partitions(&mut all, &with("0x100201, 0x100301=full"));
    assert_eq!(routes(&all), [vec![], vec![3], vec![1], vec![2]]);
    assert_eq!(all.reported(), [(all.lid(C), group(1))]);
    // A port that is in the partition again may join again, and is no member before.
    set_partitions(&mut all, &with("0x100101=full, 0x100201, 0x100301=full"));
    assert_eq!(routes(&all), [vec![], vec![3], vec![1], vec![2]]);
    assert_eq!(all.join(A, group(2), guids[0], storage), both);
    all.pass();
    assert_eq!(all.routes(both), [1, 3]);
    // Removing a partition removes its groups.
    set_partitions(&mut all, default);
    assert_eq!(routes(&all), [vec![], vec![], vec![1], vec![]]);
    let left: Vec<_> = all.service.administration().groups().collect();
    assert_eq!(left, [other]);
}
