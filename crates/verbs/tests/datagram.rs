//! Datagrams, multicast groups, and unreliable connections.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

mod lab;

use lab::{Lab, Node, pair, pattern};
use rdmux_verbs::control::{ControlEvent, DeviceKind, HostInfo};
use rdmux_verbs::counters::Counter;
use rdmux_verbs::transport::attr::{AddressVector, QpCaps, QpState, QpType};
use rdmux_verbs::transport::wr::{
    SendData, SendFlags, SendOp, SendWr, UdDest, WcFlags, WcOpcode, WcStatus,
};
use rdmux_verbs::wire::icrc::{Icrc, Ipv4Pseudo};
use rdmux_verbs::wire::{Bth, Deth, Gid, HeaderBuf, Mtu, Opcode, Psn, Qkey, Qpn};
use rdmux_verbs::{Pd, Qp, QpInit, VerbsError};

const KEY: Qkey = Qkey(0x1111_1111);

fn av(sgid_index: u8, dgid: Gid) -> AddressVector {
    let (is_global, hop_limit, port_num) = (true, 64, 1);
    AddressVector { is_global, dgid, sgid_index, hop_limit, port_num, ..AddressVector::default() }
}

fn send_to(from: &Node, wr_id: u64, dgid: Gid, qpn: Qpn, qkey: Qkey, at: usize, len: usize) {
    send_along(from, wr_id, av(0, dgid), qpn, qkey, at, len);
}

fn send_along(
    from: &Node,
    wr_id: u64,
    av: AddressVector,
    qpn: Qpn,
    qkey: Qkey,
    at: usize,
    len: usize,
) {
    let sges = [from.sge(at, len)];
    from.qp
        .post_send(&SendWr {
            flags: SendFlags::SIGNALED,
            dest: Some(UdDest { av, qpn, qkey }),
            ..SendWr::new(wr_id, SendOp::SendImm([1, 2, 3, 4]), SendData::Sges(&sges))
        })
        .unwrap();
}

fn ready(lab: &std::sync::Arc<Lab>, ip: &str) -> Node {
    let node = Node::new(lab, ip, QpType::Ud, 16384);
    node.ready_ud(KEY);
    node
}

/// Adapters choose the source port by the flow, so that it differs from RoCE's port.
#[test]
fn packet_that_the_service_passes_on_is_received_whatever_its_source_port() {
    let lab = Lab::new(false);
    let node = ready(&lab, "127.77.201.9");
    node.recv(1, 0, 40 + 8);
    let [src, dst] = ["127.77.201.8:49152", "127.77.201.9:4791"]
        .map(|end| end.parse::<std::net::SocketAddrV4>().unwrap());
    let bth = Bth { mig_req: true, ..Bth::new(Opcode::UD_SEND_ONLY, node.qp.qpn(), Psn::new(0)) };
    let headers = HeaderBuf::new(&bth).deth(&Deth { qkey: KEY, src_qpn: Qpn::new(7) });
    let mut bytes = headers.as_slice().to_vec();
    bytes.extend(*b"passed o");
    let mut icrc = Icrc::ipv4(&Ipv4Pseudo {
        src: *src.ip(),
        dst: *dst.ip(),
        id: 0,
        src_port: src.port(),
        dst_port: dst.port(),
        udp_len: (8 + bytes.len() + Icrc::LEN) as u16,
    });
    icrc.update(&bytes);
    bytes.extend(icrc.finish());
    node.control.tell(ControlEvent::Stray { src: src.into(), dst: dst.into(), bytes });
    let done = node.wait();
    assert_eq!((done.wr_id, done.status, done.byte_len), (1, WcStatus::Success, 48));
    assert_eq!(node.control.count(Counter::RxIcrc), 0);
}

#[test]
fn ud_receive_contains_the_ip_header_in_its_grh_area() {
    let lab = Lab::new(false);
    let (a, b) = (ready(&lab, "127.77.201.1"), ready(&lab, "127.77.201.2"));
    b.recv(1, 0, 40 + 1000);
    let data = pattern(1000, 3);
    a.write(0, &data);
    send_to(&a, 2, b.gid(), b.qp.qpn(), KEY, 0, 1000);
    let got = b.wait();
    assert_eq!((got.status, got.opcode), (WcStatus::Success, WcOpcode::Recv));
    assert_eq!((got.byte_len, got.src_qp), (1040, a.qp.qpn()));
    assert_eq!((got.imm, got.flags), ([1, 2, 3, 4], WcFlags::GRH | WcFlags::WITH_IMM));
    assert!(b.read(40, 1000) == data);
    let ip = b.read(20, 20);
    assert_eq!(ip[8], 64, "the hop limit is told");
    assert_eq!(ip[12..20], [127, 77, 201, 1, 127, 77, 201, 2]);
    assert_eq!(a.wait().status, WcStatus::Success);
}

/// IBTA 9.8.3.1: a datagram is at most one packet of the port's MTU.
#[test]
fn datagram_above_the_active_mtu_ends_with_local_length_error() {
    let lab = Lab::new(false);
    let narrow = |ip| {
        let told = |info: &mut HostInfo| info.ports[0].attr.active_mtu = Mtu::M1024;
        let (device, control) = lab.process_told(ip, DeviceKind::default(), told);
        let pd = Pd::new(&device);
        let node = Node::on(device, control, pd, QpType::Ud, 16384, None);
        node.ready_ud(KEY);
        node
    };
    let (a, b) = (narrow("127.77.201.21"), narrow("127.77.201.22"));
    assert_eq!(a.device.query_port(1).unwrap().active_mtu, Mtu::M1024);
    let to_b = |from: &Node, wr_id, len| {
        send_to(from, wr_id, b.gid(), b.qp.qpn(), KEY, 0, len);
    };
    b.recv(1, 0, 8192);
    b.recv(2, 0, 8192);
    to_b(&a, 3, 1024);
    assert_eq!((a.wait().status, b.wait().byte_len), (WcStatus::Success, 1064));
    to_b(&a, 4, 1025);
    let failed = a.wait();
    assert_eq!((failed.wr_id, failed.status), (4, WcStatus::LocLenErr));
    assert_eq!(a.qp.state(), QpState::Sqe);

    // A longer datagram from a port with a larger MTU is dropped, and the next one takes its receive.
    let wide = ready(&lab, "127.77.201.23");
    to_b(&wide, 5, 1025);
    to_b(&wide, 6, 1000);
    assert_eq!([wide.wait().status, wide.wait().status], [WcStatus::Success; 2]);
    assert_eq!((b.wait().byte_len, b.control.count(Counter::RxLength)), (1040, 1));
}

#[test]
fn ud_completion_sl_encodes_ipv4_or_ipv6() {
    for (from, to, kind) in [("127.77.201.9", "127.77.201.10", 0b1010), ("::1", "::1", 0b1001)] {
        if std::net::UdpSocket::bind((to, 0)).is_err() {
            println!("skipped: no {to} here");
            continue;
        }
        let lab = Lab::new(false);
        let (a, b) = (ready(&lab, from), ready(&lab, to));
        b.recv(1, 0, 48);
        send_to(&a, 2, b.gid(), b.qp.qpn(), KEY, 0, 8);
        assert_eq!(b.wait().sl, kind, "{to}");
    }
}

#[test]
fn ud_datagram_with_wrong_qkey_is_dropped_and_counted() {
    let lab = Lab::new(false);
    let (a, b) = (ready(&lab, "127.77.201.3"), ready(&lab, "127.77.201.4"));
    b.recv(1, 0, 100);
    send_to(&a, 2, b.gid(), b.qp.qpn(), Qkey(5), 0, 8);
    send_to(&a, 3, b.gid(), b.qp.qpn(), KEY, 0, 9);
    assert_eq!(b.wait().byte_len, 49);
    assert_eq!(b.control.count(Counter::RxQkey), 1);
}

#[test]
fn attached_qp_receives_multicast_and_double_attach_or_detach_fails() {
    let lab = Lab::new(false);
    let (a, b) = (ready(&lab, "127.77.201.5"), ready(&lab, "127.77.201.6"));
    let group = Gid::from(std::net::Ipv4Addr::new(239, 77, 201, 1));
    b.qp.attach_multicast(group).unwrap();
    let again = b.qp.attach_multicast(group).unwrap_err();
    assert!(matches!(again, VerbsError::Attached(mgid) if mgid == group), "{again}");
    assert!(b.qp.attach_multicast(a.gid()).is_err());
    b.recv(1, 0, 100);
    send_to(&a, 2, group, Qpn::MULTICAST, KEY, 0, 5);
    let got = b.wait();
    assert_eq!((got.status, got.byte_len), (WcStatus::Success, 45));
    b.qp.detach_multicast(group).unwrap();
    assert!(b.qp.detach_multicast(group).is_err());
}

#[test]
fn multicast_detach_succeeds_after_the_service_died() {
    let node = ready(&Lab::new(false), "127.77.201.7");
    let group = Gid::from(std::net::Ipv4Addr::new(239, 77, 201, 2));
    node.qp.attach_multicast(group).unwrap();
    assert!(node.qp.is_attached());
    node.control.die();
    node.device.get_async_event().unwrap();
    node.qp.detach_multicast(group).unwrap();
    assert!(!node.qp.is_attached());
}

/// Sends a datagram from a row of `a`'s GID table to `b`. Returns its source address.
fn source_of(a: &Node, b: &Node, sgid_index: u8) -> std::net::Ipv4Addr {
    b.recv(1, 0, 48);
    send_along(a, 2, av(sgid_index, b.gid()), b.qp.qpn(), KEY, 0, 8);
    let sent = a.wait();
    assert_eq!(sent.status, WcStatus::Success, "from row {sgid_index}");
    assert_eq!(b.wait().status, WcStatus::Success);
    let source: [u8; 4] = b.read(32, 4).try_into().unwrap();
    source.into()
}

#[test]
fn empty_gid_table_rows_are_skipped() {
    let lab = Lab::new(false);
    let a = Node::new(&lab, "127.77.201.31", QpType::Ud, 4096);
    a.control.readdress(&[Some("127.77.201.31"), None, Some("127.77.201.32")]);
    a.device.sync_control();
    a.ready_ud(KEY);
    let b = ready(&lab, "127.77.201.33");
    assert_eq!(source_of(&a, &b, 0).octets()[3], 31);
    assert_eq!(source_of(&a, &b, 2).octets()[3], 32);
}

#[test]
fn address_removed_while_its_socket_is_opened_is_skipped() {
    let lab = Lab::new(false);
    let a = Node::new(&lab, "127.77.201.34", QpType::Ud, 4096);
    a.control.readdress(&[Some("127.77.201.34"), Some("127.77.201.35"), Some("127.77.201.36")]);
    a.device.sync_control();
    a.control.lose_when_asked_for(1);
    a.ready_ud(KEY);
    let b = ready(&lab, "127.77.201.37");
    assert_eq!(source_of(&a, &b, 2).octets()[3], 36);
}

#[test]
fn address_added_later_sends_and_receives() {
    let lab = Lab::new(false);
    let (a, b) = (ready(&lab, "127.77.201.41"), ready(&lab, "127.77.201.42"));
    let later = "127.77.201.43";
    a.control.readdress(&[Some("127.77.201.41"), Some(later)]);
    a.device.sync_control();
    assert_eq!(a.device.gids(1).len(), 2);
    a.recv(3, 64, 48);
    let to_later = Gid::from(later.parse::<std::net::IpAddr>().unwrap());
    send_to(&b, 4, to_later, a.qp.qpn(), KEY, 0, 8);
    assert_eq!(b.wait().status, WcStatus::Success);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(source_of(&a, &b, 1).octets()[3], 43);
}

/// A round that sends a datagram holds the locks that opening a socket needs.
#[test]
fn send_in_a_round_opens_the_socket_of_a_later_address() {
    const SENDS: usize = 300;
    let lab = Lab::new(false);
    let mut a = Node::new(&lab, "127.77.201.44", QpType::Ud, 4096);
    let caps = QpCaps { max_send_wr: SENDS as u32, ..lab::caps() };
    a.qp = Qp::new(&a.pd, QpInit { caps, ..a.qp.init().clone() }).unwrap();
    a.ready_ud(KEY);
    let b = ready(&lab, "127.77.201.45");
    a.control.readdress(&[Some("127.77.201.44"), Some("127.77.201.46")]);
    a.device.sync_control();
    let sges = [a.sge(0, 8)];
    let send = |n: usize| SendWr {
        flags: SendFlags::SIGNALED,
        dest: Some(UdDest {
            av: av(u8::from(n == SENDS - 1), b.gid()),
            qpn: b.qp.qpn(),
            qkey: KEY,
        }),
        ..SendWr::new(n as u64, SendOp::Send, SendData::Sges(&sges))
    };
    let sends: Vec<_> = (0..SENDS).map(send).collect();
    a.qp.post_sends(&sends).unwrap();
    for n in 0..SENDS {
        let sent = a.wait();
        assert_eq!((sent.wr_id, sent.status), (n as u64, WcStatus::Success));
    }
}

#[test]
fn reused_gid_table_row_uses_its_new_address() {
    let lab = Lab::new(false);
    let (a, b) = (ready(&lab, "127.77.201.51"), ready(&lab, "127.77.201.53"));
    assert_eq!(source_of(&a, &b, 0).octets()[3], 51);
    a.control.readdress(&[Some("127.77.201.52")]);
    a.device.sync_control();
    assert_eq!(source_of(&a, &b, 0).octets()[3], 52, "by the route that it used last");
    a.recv(3, 64, 48);
    send_to(&b, 4, a.gid(), a.qp.qpn(), KEY, 0, 8);
    assert_eq!([b.wait().status, a.wait().status], [WcStatus::Success; 2]);

    // Connected queue pairs use existing sockets.
    let rc = |node: &mut Node| {
        let init = QpInit { qp_type: QpType::Rc, ..node.qp.init().clone() };
        node.qp = Qp::new(&node.pd, init).unwrap();
    };
    let (mut a, mut b) = (a, b);
    rc(&mut a);
    rc(&mut b);
    a.connect(&b);
    b.connect(&a);
    b.recv(5, 0, 8);
    a.send(6, SendOp::Send, 0, 8);
    assert_eq!([a.wait().status, b.wait().status], [WcStatus::Success; 2]);
}

#[test]
fn removed_address_has_its_socket_closed() {
    let lab = Lab::new(false);
    let a = ready(&lab, "127.77.201.54");
    let b = ready(&lab, "127.77.201.56");
    a.control.readdress(&[Some("127.77.201.54"), Some("127.77.201.55")]);
    a.device.sync_control();
    assert_eq!(source_of(&a, &b, 1).octets()[3], 55);
    a.control.readdress(&[Some("127.77.201.54"), None]);
    a.device.sync_control();
    // No socket has the port there, so that a service can bind it again.
    lab.reopen("127.77.201.55");
    a.control.readdress(&[Some("127.77.201.54"), Some("127.77.201.55")]);
    a.device.sync_control();
    assert_eq!(source_of(&a, &b, 1).octets()[3], 55);
}

#[test]
fn rc_connection_keeps_the_socket_of_a_removed_address_until_destroyed() {
    let lab = Lab::new(false);
    let node = |ip| Node::new(&lab, ip, QpType::Rc, 64);
    let (a, b) = (node("127.77.201.57"), node("127.77.201.58"));
    a.connect(&b);
    b.connect(&a);
    a.control.readdress(&[None]);
    a.device.sync_control();
    for (from, to) in [(&a, &b), (&b, &a)] {
        to.recv(1, 0, 8);
        from.send(2, SendOp::Send, 0, 8);
        assert_eq!((to.wait().status, from.wait().status), (WcStatus::Success, WcStatus::Success));
    }
    drop(b);
    let Node { device, control, qp, .. } = a;
    drop(qp);
    lab.reopen("127.77.201.57");
    control.readdress(&[Some("127.77.201.57")]);
    device.sync_control();
}

#[test]
fn socket_of_a_removed_address_is_closed_when_the_service_dies() {
    let lab = Lab::new(false);
    let node = |ip| Node::new(&lab, ip, QpType::Rc, 64);
    let (a, b) = (node("127.77.201.59"), node("127.77.201.60"));
    a.connect(&b);
    a.control.readdress(&[None]);
    a.device.sync_control();
    a.control.die();
    a.device.sync_control();
    // The next service can bind its port, though the queue pair still exists.
    lab.reopen_when_free("127.77.201.59");
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn uc_send_and_write_with_immediate_arrive() {
    for same_host in [false, true] {
        let (a, b) = pair(QpType::Uc, same_host, 65536);
        let data = pattern(30000, 1);
        a.write(0, &data);
        b.recv(1, 0, 30000);
        a.send(2, SendOp::Send, 0, 30000);
        assert_eq!(b.wait().status, WcStatus::Success);
        assert!(b.read(0, 30000) == data);
        assert_eq!(a.wait().status, WcStatus::Success);
        b.recv(3, 0, 0);
        let (remote_addr, rkey) = (b.base() + 32768, b.mr.rkey());
        a.send(4, SendOp::WriteImm { remote_addr, rkey, imm: [1; 4] }, 0, 20000);
        let got = b.wait();
        assert_eq!((got.status, got.opcode), (WcStatus::Success, WcOpcode::RecvRdmaWithImm));
        assert!(b.read(32768, 20000) == data[..20000]);
    }
}
