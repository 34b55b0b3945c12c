//! Subnet administration: any datagrams, events and timeouts in any order, and partition files.

use std::time::Duration;

use anyhow::Result;
use rdmux_subnet::Time;
use rdmux_subnet::administration::{Administration, AdministrationSink, Config};
use rdmux_subnet::manager::Model;
use rdmux_subnet::manager::model::{Node, Port, Switch};
use rdmux_subnet::partitions::{EndPort, Partitions};
use rdmux_subnet::topology::PortRef;
use rdmux_subnet::umad::{UserAddress, UserMad};
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method};
use rdmux_wire::sa::{McMemberRecord, SaMad};
use rdmux_wire::sm::{NodeInfo, NodeType, Notice, PortInfo, SwitchInfo};
use rdmux_wire::{Gid, Guid, Lid, Pkey};

/// The number of adapters, at ports 1 to 3 of a switch.
const ADAPTERS: usize = 3;

/// The number of groups that the switch can have.
const GROUPS: u16 = 5;

/// Checks that a partition file is parsed, or refused with the place of the error.
pub fn subnet_partitions(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Partitions::parse("partitions.conf", &text) {
        Err(error) => assert!(error.to_string().starts_with("partitions.conf:")),
        Ok(partitions) => {
            let port = EndPort { guid: Guid(0x123), kind: NodeType::CA, is_manager: true };
            let table = partitions.table_for(&port);
            assert!(table.contains(&Pkey::DEFAULT), "the manager is in the default partition");
            assert!(table.iter().all(|key| key.0 & 0x7fff != 0));
            assert!(partitions.groups().all(|group| group.mgid.0[0] == 0xff));
        }
    }
}

/// Returns valid files.
///
/// # Errors
/// Never.
pub fn files() -> Result<Vec<Vec<u8>>> {
    let files = [
        "Default=0x7fff,ipoib: ALL=full;",
        "A=0x10,indx0,ipoib,rate=7,mtu=5,sl=3,scope=2,scope=5,Q_Key=9,TClass=4,FlowLabel=77:\n\
         ALL_CAS, SELF=both, 0x123=full; # text\n, ipoib, defmember=full: ALL_SWITCHES, ALL_ROUTERS=limi;",
        "A: mgid=ff12:401b::16,sl=1 # text\n mgid=ff12::1,sl=1,Q_Key=0xDEADBEEF,rate=3,mtu=2\n ALL;",
        "A = 0x80 : defmember=limited : 0x123456, 0x123457, 0x123458=full;",
    ];
    Ok(files.map(|text| text.as_bytes().to_vec()).into())
}

/// The output of administration, and the aliases that it sets in the model.
#[derive(Default)]
struct Out {
    sent: Vec<UserMad>,
    aliases: Vec<(PortRef, u8, Guid)>,
    full: bool,
}

impl AdministrationSink for Out {
    fn send(&mut self, mad: UserMad) -> bool {
        self.sent.push(mad);
        !self.full
    }
    fn group_changed(&mut self, mlid: Lid) {
        assert!(mlid.is_multicast());
    }
    fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid) {
        assert!((1..32).contains(&index));
        self.aliases.push((port, index, guid));
    }
}

/// Runs requests, events and timeouts.
pub fn subnet_administration(data: &[u8]) {
    let mut model = model();
    let config = Config {
        table_bytes: 20_000,
        services: 6,
        services_of_port: 3,
        subscriptions: 6,
        subscriptions_of_port: 3,
        reports_of_port: 3,
        ..Config::default()
    };
    let mut administration = Administration::new(config, Partitions::default());
    let own = Guid(0x201);
    administration.set_master(Some(own));
    let mut out = Out::default();
    let mut now = Time::ZERO;
    let mut rest = data;
    while let Some((&[command, a, b, c], tail)) = rest.split_first_chunk() {
        rest = tail;
        let port = model.port(PortRef { node: 1 + usize::from(a) % ADAPTERS, port: 1 }).cloned();
        let port = port.expect("an adapter");
        match command % 16 {
            0 => now = now.after(Duration::from_millis(u64::from(b) << (c & 7))),
            1 => administration.port_appeared(now, &model, port.guid, &mut out),
            2 => administration.port_gone(now, &model, port.guid, &mut out),
            3 => administration.set_master((b & 3 > 0).then_some(own)),
            4 => out.full = b & 1 == 1,
            5 => {
                let mut notice = Notice {
                    trap_number: [64, 128, 144, 256][usize::from(b & 3)],
                    ..Notice::default()
                };
                (notice.issuer_lid, notice.is_generic) = (Lid((c & 7).into()), true);
                administration.handle_notice(now, &model, &notice, &mut out);
            }
            _ => {
                let (bytes, tail) = rest.split_at(rest.len().min(MAD_LEN));
                rest = tail;
                let mad = message(bytes, [a, b, c]);
                let before = out.sent.len();
                administration.handle_mad(now, &model, &mad, &mut out);
                check_answers(&mad, &out.sent[before..]);
            }
        }
        if administration.next_timeout().is_some_and(|at| at <= now) {
            administration.handle_timeout(now);
            assert!(administration.next_timeout().is_none_or(|at| at > now));
        }
        for (port, index, guid) in out.aliases.drain(..) {
            model.set_alias(port, index, guid);
        }
        let reports = out.sent.iter().filter(|mad| mad.data[3] == Method::REPORT.0).cloned();
        // Some Reports are answered, others are not.
        for mut report in reports.filter(|_| c & 1 == 1).collect::<Vec<_>>() {
            report.data[3] = Method::REPORT_RESP.0;
            administration.handle_mad(now, &model, &report, &mut out);
        }
        out.sent.clear();
        check(&administration);
    }
}

fn check(administration: &Administration) {
    let groups: Vec<_> = administration.groups().collect();
    assert!(groups.len() <= usize::from(GROUPS), "{} groups", groups.len());
    for mlid in groups {
        let members = administration.members(mlid).count();
        assert!(members <= ADAPTERS * 32 + 1, "{members} members");
    }
    let counters = administration.counters();
    let known = counters.answered + counters.refused + counters.not_master + counters.ignored;
    assert!(known + counters.busy <= counters.received);
}

/// Checks that there is at most one answer, and that it goes to the requester.
fn check_answers(question: &UserMad, sent: &[UserMad]) {
    let answers = sent.iter().filter(|mad| mad.data[3] != Method::REPORT.0);
    let answers: Vec<_> = answers.collect();
    assert!(answers.len() <= 1, "{} answers", answers.len());
    for answer in answers {
        let mad = SaMad::parse(&answer.data).expect("a MAD of the class");
        assert_eq!(answer.address, question.address);
        assert_eq!(mad.header.tid, MadHeader::parse(&question.data).expect("a MAD").tid);
        assert!(mad.header.method.is_response());
        assert!(answer.data.len() >= MAD_LEN || mad.rmpp.is_active());
    }
}

/// Returns a message, usually of the class.
fn message(bytes: &[u8], [a, b, c]: [u8; 3]) -> UserMad {
    let mut data = bytes.to_vec();
    if c & 0x80 == 0 {
        data.resize(MAD_LEN, 0);
        data[..3].copy_from_slice(&[1, 3, 2]);
        // The SA key is usually missing.
        data[36..44].copy_from_slice(&u64::from(c & 0x41 == 0x41).to_be_bytes());
    }
    if c & 0x20 != 0 && data.len() > 200 {
        // GIDs of existing ports.
        let gid = |n: u8| Gid::new(Gid::DEFAULT_PREFIX, Guid(0x101 + 0x100 * u64::from(n & 3))).0;
        data[64..80].copy_from_slice(&gid(a));
        data[80..96].copy_from_slice(&gid(b));
        if c & 0x10 != 0 {
            data[72..88].copy_from_slice(&gid(a));
        }
    }
    let status = if b & 0xf0 == 0xf0 { UserMad::TIMED_OUT } else { 0 };
    let address = UserAddress::gsi(Lid((a & 7).into()));
    UserMad { agent: 0, status, timeout_ms: 0, retries: 0, address, data }
}

/// Returns a model of a switch with LID 1, and adapters with LIDs 2 to 4.
fn model() -> Model {
    let mut model = Model::default();
    let info = |kind, guid| NodeInfo {
        node_type: kind,
        num_ports: if kind == NodeType::SWITCH { 3 } else { 1 },
        node_guid: Guid(guid),
        partition_cap: 32,
        ..NodeInfo::default()
    };
    let port = |guid, lid, peer| {
        let info = PortInfo {
            gid_prefix: Gid::DEFAULT_PREFIX,
            lid: Lid(lid),
            mtu_cap: 5,
            neighbor_mtu: 5,
            guid_cap: 32,
            link_width_active: rdmux_wire::sm::LinkWidth::X4,
            link_speed_active: rdmux_wire::sm::LinkSpeed::QDR,
            ..PortInfo::default()
        };
        Port {
            guid: Guid(guid),
            info: Some(info),
            pkeys: vec![Pkey::DEFAULT],
            peer,
            ..Port::default()
        }
    };
    let at = |node, port| Some(PortRef { node, port });
    let mut ports = vec![port(0x100, 1, None)];
    ports.extend((1..=3u8).map(|number| port(0x100, 0, at(number.into(), 1))));
    let switch = Switch {
        info: SwitchInfo {
            multicast_fdb_cap: GROUPS,
            linear_fdb_top: Lid(4),
            ..SwitchInfo::default()
        },
        forwarding: vec![0xff, 0, 1, 2, 3],
        multicast: Default::default(),
    };
    let node = |info, ports, switch: Option<Switch>| Node {
        info,
        description: Default::default(),
        ports,
        switch: switch.map(Box::new),
        route: Vec::new(),
    };
    model.add(node(info(NodeType::SWITCH, 0x100), ports, Some(switch)));
    for n in 1..=3u8 {
        let guid = 0x100 * u64::from(n);
        let ports = vec![Port::default(), port(guid + 1, u16::from(n) + 1, at(0, n))];
        model.add(node(info(NodeType::CA, guid + 0x1000), ports, None));
    }
    model
}

/// Returns requests with each method of each attribute, with all components and with none.
///
/// # Errors
/// Never.
pub fn scripts() -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for attr_id in [
        1, 2, 3, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x18, 0x20, 0x30, 0x31, 0x33, 0x35, 0x36,
        0x38, 0x3a, 0xf3,
    ] {
        let mut script = Vec::new();
        for method in
            [Method::GET, Method::SET, Method::GET_TABLE, Method::GET_MULTI, Method::DELETE]
        {
            for (mask, flags) in [(0, 0x41), (u64::MAX, 0), (0x3c0c, 0x20)] {
                let join = McMemberRecord {
                    mgid: Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]),
                    port_gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x101)),
                    pkey: Pkey::DEFAULT,
                    join_state: rdmux_wire::sa::JoinState::FULL_MEMBER,
                    ..McMemberRecord::default()
                };
                let mut mad = SaMad::new(method, attr_id, &[]);
                let data = join.to_bytes();
                if attr_id == McMemberRecord::ATTR_ID {
                    mad.data = &data;
                }
                mad.sa.component_mask =
                    if attr_id == McMemberRecord::ATTR_ID { 0x130c7 } else { mask };
                script.extend_from_slice(&[15, 2, 0, flags]);
                script.extend_from_slice(&mad.to_bytes());
            }
        }
        script.extend_from_slice(&[1, 1, 0, 1, 2, 1, 0, 0, 5, 0, 2, 2]);
        all.push(script);
    }
    Ok(all)
}
