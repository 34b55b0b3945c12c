//! Devices on InfiniBand: connected by LIDs, through a port that a subnet manager changes while they are in use.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

#[allow(unsafe_code, reason = "memory of the tests' own")]
mod lab;

use std::sync::Arc;

use lab::{ALL, Lab, Node, pattern};
use rdmux_verbs::control::{ControlEvent, DeviceKind};
use rdmux_verbs::counters::Counter;
use rdmux_verbs::port::{GidEntry, GidTable, Port, PortEvent, PortState};
use rdmux_verbs::transport::attr::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use rdmux_verbs::transport::wr::{SendOp, WcStatus};
use rdmux_verbs::wire::{AckTimeout, Gid, Guid, Lid, Mtu, Pkey, Qpn, RnrTimer};
use rdmux_verbs::{AsyncEventKind, Pd};

const HOST: &str = "127.77.201.1";
const BIG: usize = 3 << 20;
/// The port's LID, which is the first of four.
const LID: u16 = 8;

fn gid() -> Gid {
    Gid::new(0xfe80 << 48, Guid(0x11))
}

/// A port that is active, with four LIDs.
fn port() -> Port {
    let entry = GidEntry { gid: gid(), ..GidEntry::empty() };
    let mut port = Port::over_ip(DeviceKind::Ib, Guid(0x10), Vec::new());
    port.attr.lid = Lid(LID);
    port.attr.lmc = 2;
    port.attr.active_mtu = Mtu::M2048;
    port.gids = GidTable::Own(vec![entry]);
    port.pkeys = vec![Pkey::DEFAULT, Pkey(0x8001), Pkey(0)];
    port.attr.pkey_tbl_len = 3;
    port
}

fn node(lab: &Arc<Lab>, qp_type: QpType) -> Node {
    let (device, control) =
        lab.process_told(HOST, DeviceKind::Ib, |info| info.ports = vec![port()]);
    let pd = Pd::new(&device);
    Node::on(device, control, pd, qp_type, BIG, None)
}

/// The attributes that a program sets to reach `dest` by LID, with path bits.
fn attr(dlid: u16, dest_qpn: Qpn) -> QpAttr {
    let av = AddressVector { dlid, port_num: 1, ..AddressVector::default() };
    QpAttr {
        av,
        port_num: 1,
        dest_qpn,
        path_mtu: Mtu::M2048,
        access: ALL,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        // A quarter of a second, eight times.
        timeout: AckTimeout::new(16),
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: RnrTimer::new(1),
        ..QpAttr::default()
    }
}

fn connect(node: &Node, attr: &QpAttr) {
    for (state, mask) in rdmux_testing::qp::steps(node.qp.init().qp_type, QpState::Rts) {
        node.qp.modify(&QpAttr { state, ..*attr }, mask).unwrap();
    }
}

fn pair(qp_type: QpType) -> (Node, Node) {
    let lab = Lab::new(true);
    let (a, b) = (node(&lab, qp_type), node(&lab, qp_type));
    connect(&a, &attr(LID, b.qp.qpn()));
    connect(&b, &attr(LID + 3, a.qp.qpn()));
    assert!(a.qp.is_same_host() && b.qp.is_same_host());
    (a, b)
}

fn tell(node: &Node, change: impl FnOnce(&mut Port), events: &[PortEvent]) {
    let mut port = port();
    change(&mut port);
    let events = events.iter().map(|event| (1, *event)).collect();
    node.control.tell(ControlEvent::Ports { ports: vec![port], events });
    node.device.sync_control();
}

fn down(node: &Node) {
    tell(node, |port| port.attr.state = PortState::Down, &[PortEvent::Error]);
}

fn up(node: &Node) {
    tell(node, |_| {}, &[PortEvent::Active]);
}

#[test]
fn rc_and_uc_messages_of_every_size_arrive_by_lid() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (a, b) = pair(qp_type);
        for (i, len) in [0, 1, 255, 2048, 2049, 100_001, BIG].into_iter().enumerate() {
            let data = pattern(len, i as u8);
            a.write(0, &data);
            b.recv(i as u64, 0, len);
            a.send(100 + i as u64, SendOp::Send, 0, len);
            let received = b.wait();
            assert_eq!((received.wr_id, received.status), (i as u64, WcStatus::Success));
            assert!(b.read(0, len) == data, "bytes differ at length {len}");
            assert_eq!(a.wait().status, WcStatus::Success);
        }
    }
}

#[test]
fn requests_sent_while_port_is_down_arrive_when_it_is_active_again() {
    let (a, b) = pair(QpType::Rc);
    let (remote_addr, rkey) = (b.base() + 8, b.mr.rkey());
    for cut in [&a, &b] {
        down(cut);
        assert_eq!(cut.device.query_port(1).unwrap().state, PortState::Down);
        a.write(0, &pattern(64, 1));
        b.write(0, &[0; 128]);
        b.recv(1, 0, 64);
        a.send(2, SendOp::Send, 0, 64);
        a.send(3, SendOp::Write { remote_addr: remote_addr + 64, rkey }, 0, 64);
        // The first packet is dropped at one end or the other.
        let lost = |node: &Node| {
            node.control.count(Counter::TxNoLink) + node.control.count(Counter::RxNoLink)
        };
        let before = lost(cut);
        while lost(cut) == before {
            a.device.progress();
            b.device.progress();
        }
        assert_eq!(b.read(0, 128), [0; 128]);
        up(cut);
        assert_eq!((b.wait().wr_id, a.wait().wr_id, a.wait().wr_id), (1, 2, 3));
        assert_eq!(b.read(0, 64), pattern(64, 1));
        assert_eq!(b.read(72, 64 - 8)[..8], pattern(64, 1)[..8]);
        for expected in [PortEvent::Error, PortEvent::Active] {
            let event = cut.device.try_get_async_event().unwrap();
            let AsyncEventKind::Port(1, event) = event.kind() else { panic!("{event:?}") };
            assert_eq!(*event, expected);
        }
    }
}

#[test]
fn port_that_stays_down_is_retry_exceeded_and_nothing_is_written() {
    let lab = Lab::new(true);
    let (a, b) = (node(&lab, QpType::Rc), node(&lab, QpType::Rc));
    connect(&a, &QpAttr { timeout: AckTimeout::new(8), ..attr(LID, b.qp.qpn()) });
    connect(&b, &attr(LID + 3, a.qp.qpn()));
    down(&b);
    a.write(0, &[7; 64]);
    let (remote_addr, rkey) = (b.base(), b.mr.rkey());
    a.send(1, SendOp::Write { remote_addr, rkey }, 0, 64);
    while a.device.query_port(1).is_ok() {
        b.device.progress();
        let mut out = [rdmux_verbs::transport::wr::Completion::EMPTY];
        if a.cq.poll(&mut out) == 1 {
            assert_eq!(out[0].status, WcStatus::RetryExcErr);
            break;
        }
    }
    assert_eq!((a.qp.state(), b.read(0, 64)), (QpState::Err, vec![0; 64]));
}

#[test]
fn removed_pkey_drops_packets_until_it_is_restored() {
    let lab = Lab::new(true);
    let (a, b) = (node(&lab, QpType::Rc), node(&lab, QpType::Rc));
    connect(&a, &QpAttr { pkey_index: 1, ..attr(LID, b.qp.qpn()) });
    connect(&b, &QpAttr { pkey_index: 1, ..attr(LID, a.qp.qpn()) });
    tell(&b, |port| port.pkeys[1] = Pkey(0), &[PortEvent::PkeyChange]);
    a.write(0, &[5; 8]);
    b.recv(1, 0, 8);
    a.send(2, SendOp::Send, 0, 8);
    while b.control.count(Counter::RxPkey) == 0 {
        a.device.progress();
        b.device.progress();
    }
    assert_eq!(b.read(0, 8), [0; 8]);
    tell(&b, |_| {}, &[PortEvent::PkeyChange]);
    assert_eq!((b.wait().wr_id, a.wait().wr_id), (1, 2));
    assert_eq!(b.read(0, 8), [5; 8]);
}

#[test]
fn pkey_index_beyond_the_port_table_is_einval() {
    let lab = Lab::new(true);
    let node = node(&lab, QpType::Rc);
    let to_init = |pkey_index| {
        let attr = QpAttr { state: QpState::Init, pkey_index, ..attr(LID, Qpn::new(0)) };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        node.qp.modify(&attr, mask)
    };
    let error = to_init(3).unwrap_err();
    assert_eq!(error.errno(), 22);
    assert_eq!(
        error.to_string(),
        "cannot modify a queue pair: P_Key index 3 exceeds the port's table of 3 entries"
    );
    to_init(2).unwrap();
}
