//! Packets with keys that do not match: the port that counts them, and the traps to the subnet
//! manager.

mod common;

use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use common::traffic::{Burst, Host};
use common::{DIRECTED, Fabric, Manager, managed};
use rdmux_fabric::client::MadFile;
use rdmux_fabric::proto::{NodeRef, PortFacts, PortRef, Violation};
use rdmux_fabric::server::{ManagerSetup, PartitionsFile, Setup};
use rdmux_link::ib::{Encap, KeyViolation, Violated};
use rdmux_subnet::umad::Registration;
use rdmux_wire::layout::Layout;
use rdmux_wire::lrh::Lrh;
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{BadKey, BadSwitchPkey, Notice, PhysState, PortInfo, PortState, Trap};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Bth, IbPacket, Lid, Opcode, Packet, Pkey, Psn, Qpn};

/// A subnet of three adapters. The third one gets the traps of the others and of the switch.
struct Net {
    fabric: Fabric,
    hosts: [Host; 2],
    listener: MadFile,
    manager: Manager,
    /// The switch ports to which the adapters are connected.
    at: [u8; 2],
    reports: Arc<Mutex<Vec<KeyViolation>>>,
}

impl Net {
    fn new() -> Self {
        let text = "Default=0x7fff, ipoib: ALL=full;\nStorage=0x10: 0x0002000000100101=full;\n";
        let partitions = PartitionsFile { name: "p.conf".into(), text: text.into() };
        let manager = ManagerSetup {
            partitions: Some(partitions),
            sweep_ms: Some(3_600_000),
            ..ManagerSetup::default()
        };
        let (fabric, shown) = managed("switch:3", Setup { manager, ..Setup::default() });
        let adapters: Vec<_> = shown.nodes.iter().filter(|node| !node.is_switch).collect();
        let hosts = [0, 1].map(|n| Host::new(&fabric, &format!("h{n}"), adapters[n].guid, 1));
        let (node, port) = (NodeRef::Guid(adapters[2].guid), 1);
        let listener = MadFile::open(&fabric.options, &fabric.name, &PortRef { node, port });
        let listener = listener.unwrap();
        let trap = Registration { class: 1, methods: 1 << Method::TRAP.0, ..DIRECTED };
        listener.register(&trap).unwrap();
        let switch = shown.nodes.iter().position(|node| node.is_switch).unwrap();
        let mut manager = fabric.manager(&shown.nodes[switch].id, 0);
        let switch = u32::try_from(switch).unwrap();
        let at = [0, 1].map(|n| {
            let index = shown.nodes.iter().position(|node| node.guid == adapters[n].guid).unwrap();
            let index = u32::try_from(index).unwrap();
            let ends = shown.links.iter().flat_map(|link| [(link.a, link.b), (link.b, link.a)]);
            let (_, far) = ends.into_iter().find(|(a, b)| a.0 == index && b.0 == switch).unwrap();
            far.1
        });
        for route in [&[][..], &at[..1], &at[1..]] {
            let data = manager.get(route, PortInfo::ATTR_ID, 0).data;
            let mut info = PortInfo::read(&data).unwrap();
            info.sm_lid = adapters[2].ports[0].lid;
            (info.port_state, info.port_physical_state) = (PortState(0), PhysState(0));
            let mut smp = Smp::directed(Method::SET, PortInfo::ATTR_ID, 0, route);
            smp.data.copy_from_slice(&info.to_bytes());
            manager.ask(&smp);
        }
        let reports = Arc::<Mutex<Vec<KeyViolation>>>::default();
        for host in &hosts {
            let to = reports.clone();
            let routes = &host.processes[0].routes;
            routes.report_violations(move |violation| to.lock().unwrap().push(*violation));
        }
        Self { fabric, hosts, listener, manager, at, reports }
    }

    /// Returns the only report since the last call, in the form that a host sends to the fabric.
    fn report(&mut self, host: usize) -> Violation {
        let reports = std::mem::take(&mut *self.reports.lock().unwrap());
        let [report] = reports[..] else { panic!("{reports:?}") };
        let violation = Violation::from(&report);
        self.hosts[host].attachment.violated(&violation).unwrap();
        violation
    }

    /// Returns the next trap, which no manager represses.
    fn trap(&self) -> Trap {
        let data = self.listener.recv_mad().unwrap().data;
        let smp = Smp::parse(&data).unwrap();
        assert_eq!(smp.header.attr_id, Notice::ATTR_ID);
        Notice::read(&smp.data).unwrap().trap().unwrap()
    }

    fn facts(&mut self, host: usize) -> PortFacts {
        let attachment = &mut self.hosts[host].attachment;
        while attachment.poll_update().unwrap().is_some() {}
        attachment.refresh().unwrap().port
    }
}

/// Makes a datagram with a packet from one port to another.
fn forged(slid: Lid, dlid: Lid, pkey: Pkey) -> Vec<u8> {
    let bth = Bth { pkey, ..Bth::new(Opcode::UC_SEND_ONLY, Qpn::new(0x1001), Psn::new(0)) };
    let lrh = Lrh { sl: 3, dlid, slid, ..Lrh::DEFAULT };
    let packet = IbPacket { lrh, grh: None, packet: Packet::new(bth, b"bad!") };
    let mut bytes = vec![0; packet.wire_len()];
    let len = packet.emit(&mut bytes) - 2;
    let total = u16::try_from(len).unwrap();
    let encap = Encap { part: 0, parts: 1, steer: 0x1001, number: 0, total };
    [&encap.to_bytes(), &bytes[..len]].concat()
}

#[test]
fn packet_with_a_foreign_pkey_is_a_violation_of_its_receiver_and_trap_257() {
    let mut net = Net::new();
    let (slid, dlid) = (net.hosts[0].lid(), net.hosts[1].lid());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = net.hosts[1].group.local_addr();
    for _ in 0..50 {
        socket.send_to(&forged(slid, dlid, Pkey(0x8011)), to).unwrap();
    }
    socket.send_to(&forged(slid, dlid, Pkey::DEFAULT), to).unwrap();
    net.hosts[1].processes[0].expect(1);
    assert_eq!(net.hosts[1].processes[0].dropped(), [("rx_pkey", 50)]);
    net.reports.lock().unwrap().truncate(1);
    net.report(1);
    let expected = BadKey {
        lid1: slid,
        lid2: dlid,
        key: 0x8011,
        sl: 3,
        qp2: Qpn::new(0x1001),
        ..BadKey::default()
    };
    assert_eq!(net.trap(), Trap::Pkey(expected));
    let facts = net.facts(1);
    assert_eq!((facts.pkey_violations, facts.qkey_violations), (50, 0));
    // Managers and diagnostics see the same count, and may clear it.
    let route = [net.at[1]];
    let shown = |manager: &mut Manager| {
        let data = manager.get(&route, PortInfo::ATTR_ID, 0).data;
        PortInfo::read(&data).unwrap()
    };
    let mut info = shown(&mut net.manager);
    assert_eq!(info.pkey_violations, 50);
    socket.send_to(&forged(slid, dlid, Pkey(0x8011)), to).unwrap();
    socket.send_to(&forged(slid, dlid, Pkey::DEFAULT), to).unwrap();
    net.hosts[1].processes[0].expect(1);
    assert_eq!(shown(&mut net.manager).pkey_violations, 51, "without a report");
    info.pkey_violations = 0;
    (info.port_state, info.port_physical_state) = (PortState(0), PhysState(0));
    let mut smp = Smp::directed(Method::SET, PortInfo::ATTR_ID, 0, &route);
    smp.data.copy_from_slice(&info.to_bytes());
    net.manager.ask(&smp);
    assert_eq!(net.facts(1).pkey_violations, 0);
    assert_eq!(net.facts(0).pkey_violations, 0);
}

#[test]
fn packet_with_another_qkey_is_a_violation_of_its_receiver_and_trap_258() {
    let mut net = Net::new();
    let (slid, dlid) = (net.hosts[0].lid(), net.hosts[1].lid());
    let violation = KeyViolation {
        kind: Violated::Qkey,
        slid,
        dlid,
        sl: 1,
        key: 0x1234_5678,
        src_qpn: Qpn::new(0x1002),
        dst_qpn: Qpn::new(0x1001),
        gids: None,
    };
    net.hosts[1].processes[0].routes.violated(&violation);
    net.report(1);
    let Trap::Qkey(bad) = net.trap() else { panic!("another trap") };
    assert_eq!((bad.key, bad.qp1, bad.qp2), (0x1234_5678, Qpn::new(0x1002), Qpn::new(0x1001)));
    let facts = net.facts(1);
    assert_eq!((facts.pkey_violations, facts.qkey_violations), (0, 1));
}

#[test]
fn packet_that_a_switch_does_not_let_out_is_trap_259_of_its_port() {
    let mut net = Net::new();
    let burst = Burst { pkey: Pkey(0x8010), sl: 4, ..Burst::to(&net.hosts[1], 2, 40) };
    net.hosts[0].processes[0].send(&burst);
    net.report(0);
    let expected = BadSwitchPkey {
        data_valid: 0x3f,
        lid1: net.hosts[0].lid(),
        lid2: net.hosts[1].lid(),
        pkey: Pkey(0x8010),
        sl: 4,
        qp2: Qpn::new(0x1001),
        port: net.at[1],
        ..BadSwitchPkey::default()
    };
    let Trap::SwitchPkey(bad) = net.trap() else { panic!("another trap") };
    assert!(bad.switch_lid.is_unicast());
    assert_eq!(BadSwitchPkey { switch_lid: Lid::NONE, ..bad }, expected);
    assert_eq!(net.facts(1).pkey_violations, 0);
}

#[test]
fn forged_key_violation_reports_of_a_host_raise_no_trap() {
    let mut net = Net::new();
    let [own, other] = [0, 1].map(|n| net.hosts[n].lid());
    let violation = |kind, slid, dlid| {
        let (src_qpn, dst_qpn) = (Qpn::QP1, Qpn::QP1);
        KeyViolation { kind, slid, dlid, sl: 0, key: 0x8010, src_qpn, dst_qpn, gids: None }
    };
    for false_one in [
        violation(Violated::Pkey, own, other),
        violation(Violated::Qkey, own, other),
        violation(Violated::SwitchPkey, other, own),
        // No switch drops these.
        KeyViolation { key: 0xffff, ..violation(Violated::SwitchPkey, own, other) },
        KeyViolation { key: 0x8123, ..violation(Violated::SwitchPkey, own, other) },
        violation(Violated::SwitchPkey, own, Lid(0x77)),
    ] {
        net.hosts[0].attachment.violated(&Violation::from(&false_one)).unwrap();
    }
    // The first trap is for the last, valid report.
    let good = violation(Violated::Pkey, other, own);
    net.hosts[0].attachment.violated(&Violation::from(&good)).unwrap();
    let Trap::Pkey(bad) = net.trap() else { panic!("another trap") };
    assert_eq!((bad.lid1, bad.lid2), (other, own));
    drop(net.fabric);
}
