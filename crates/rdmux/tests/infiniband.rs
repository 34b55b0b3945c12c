//! An InfiniBand device, through the public API.

mod common;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::{active, disable, with_two_ports};
use rdmux::cm::{EventChannel, EventKind, Id, JoinFlags, PortSpace};
use rdmux::umad::sa::{self, JoinState, McMemberRecord, McMemberRecordMask, SaMad};
use rdmux::umad::sm::{self, Attribute, LinkDownDefault, NodeInfo, PhysState, PortInfo};
use rdmux::umad::smp::Smp;
use rdmux::umad::{Address, Agent, AgentAttr, Client, Event, Fabric, Method, MgmtClass, Port};
use rdmux::{
    Access, AddressVector, Ah, AsyncEvent, AttrMask, Cause, Completion, Context, Cq, DeviceKind,
    EMPTY, Gid, Lid, Mr, Options, Pkey, PortState, Qkey, Qp, QpAttr, QpState, QpType, Qpn, SendWr,
    WcFlags, WcStatus, Xrcd,
};

#[test]
fn a_host_without_a_fabric_reaches_itself_only() {
    let context = Context::builder().embedded().device(DeviceKind::Ib).open().unwrap();
    assert_eq!(context.query_port().unwrap().lid.0, 0, "there is no fabric");
    let elsewhere = "127.77.255.254:7".parse().unwrap();
    let error = Options::new().context(&context).connect(elsewhere).unwrap_err();
    assert_eq!(error.cause().kind(), ErrorKind::NetworkDown, "{error}");
}

#[test]
fn queue_pairs_of_one_host_connect_by_the_lid_of_its_port() {
    let fabric = Fabric::managed("switch:3").unwrap();
    let context = active(&fabric, "a");
    let (cq, pd) = (context.cq(16).unwrap(), context.pd());
    let [a, b] = [(); 2].map(|()| pd.qp(QpType::Rc).cq(&cq).build().unwrap());
    let (to_a, to_b) = (a.endpoint(0).unwrap(), b.endpoint(0).unwrap());
    assert_eq!((to_a.lid, to_a.gid), (context.query_port().unwrap().lid, to_b.gid));
    a.connect(to_b, 0, Access::empty()).unwrap();
    b.connect(to_a, 0, Access::empty()).unwrap();
    let mr = pd.alloc(16, Access::LOCAL_WRITE).unwrap();
    b.post_recv(7, &[mr.slice(..8)]).unwrap();
    a.post_send(&SendWr::send(8).inline(&[b"by a LID"]).signaled()).unwrap();
    for _ in 0..2 {
        assert_eq!(cq.wait_one(None).unwrap().status, WcStatus::Success);
    }
    assert_eq!(mr.to_vec(..8), b"by a LID");
}

/// A queue pair, its completion queue, and memory.
struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(context: Context, qp_type: QpType) -> Self {
        Self::at(context, qp_type, 1)
    }

    fn at(context: Context, qp_type: QpType, port: u8) -> Self {
        let (cq, pd) = (context.cq(64).unwrap(), context.pd());
        let qp = pd.qp(qp_type).cq(&cq).port(port).build().unwrap();
        let mr = pd.alloc(64 << 10, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        Self { context, cq, qp, mr }
    }

    fn wait(&self) -> Completion {
        self.cq.wait_one(None).unwrap()
    }
}

#[test]
fn queue_pairs_of_two_hosts_exchange_messages_by_lid_while_the_route_is_whole() {
    let fabric = Fabric::managed("switch:3").unwrap();
    let [a, b] = ["a", "b"].map(|host| End::new(active(&fabric, host), QpType::Rc));
    let (to_a, to_b) = (a.qp.endpoint(0).unwrap(), b.qp.endpoint(0).unwrap());
    assert_ne!(to_a.lid, to_b.lid);
    a.qp.connect(to_b, 0, Access::REMOTE_WRITE).unwrap();
    b.qp.connect(to_a, 0, Access::REMOTE_WRITE).unwrap();
    assert!(!a.qp.is_same_host(), "they are not processes of one host");
    a.mr.write(0, &[7; 64 << 10]);
    b.qp.post_recv(1, &[b.mr.slice(..)]).unwrap();
    a.qp.post_send(&SendWr::send(2).sges(&[a.mr.slice(..)]).signaled()).unwrap();
    assert_eq!((b.wait().byte_len, a.wait().status), (64 << 10, WcStatus::Success));
    assert_eq!(b.mr.to_vec(..), [7; 64 << 10]);
}

#[test]
fn datagrams_of_two_hosts_carry_lids_and_a_grh_where_one_is_asked_for() {
    const QKEY: Qkey = Qkey(0x1111);
    let fabric = Fabric::managed("switch:3").unwrap();
    let [a, b] = ["a", "b"].map(|host| End::new(active(&fabric, host), QpType::Ud));
    for end in [&a, &b] {
        end.qp.activate(QKEY).unwrap();
    }
    let (lid_a, lid_b) = (a.context.query_port().unwrap().lid, b.context.query_port().unwrap().lid);
    let local = Ah::to_lid(lid_b);
    let global = Ah::from_vector(AddressVector {
        is_global: true,
        dgid: b.context.gid(0).unwrap(),
        hop_limit: 1,
        ..*local.vector()
    });
    for (ah, has_grh) in [(local, false), (global, true)] {
        b.qp.post_recv(1, &[b.mr.slice(..)]).unwrap();
        let datagram = SendWr::send(2).inline(&[b"hello"]).to(&ah, b.qp.qpn(), QKEY).signaled();
        a.qp.post_send(&datagram).unwrap();
        assert_eq!(a.wait().status, WcStatus::Success);
        let got = b.wait();
        assert_eq!((got.byte_len, got.slid, got.src_qp), (45, lid_a.0, a.qp.qpn()));
        assert_eq!(got.flags.contains(WcFlags::GRH), has_grh);
        assert_eq!(b.mr.to_vec(40..45), b"hello");
        if has_grh {
            assert_eq!(b.mr.to_vec(8..24), a.context.gid(0).unwrap().0);
            assert_eq!(b.mr.to_vec(24..40), b.context.gid(0).unwrap().0);
        }
    }
}

#[test]
fn a_datagram_to_a_group_reaches_members_of_the_sender_s_own_port() {
    let fabric = Fabric::managed("switch:3").unwrap();
    let a = End::new(active(&fabric, "a"), QpType::Ud);
    let b = End::new(a.context.clone(), QpType::Ud);
    let to_group = Ah::from_vector(AddressVector {
        is_global: true,
        dgid: GROUP,
        hop_limit: 1,
        ..*Ah::to_lid(join(&a.context)).vector()
    });
    for end in [&a, &b] {
        end.qp.activate(Qkey(0x11)).unwrap();
        end.qp.attach_multicast(GROUP).unwrap();
        end.qp.post_recv(1, &[end.mr.slice(..)]).unwrap();
    }
    let datagram = SendWr::send(2).inline(&[b"to all"]);
    a.qp.post_send(&datagram.to(&to_group, Qpn::MULTICAST, Qkey(0x11))).unwrap();
    for end in [&a, &b] {
        let got = end.wait();
        assert_eq!((got.wr_id, got.byte_len, got.src_qp), (1, 46, a.qp.qpn()));
        assert_eq!(end.mr.to_vec(40..46), b"to all");
    }
}

#[test]
fn datagram_to_own_lid_is_looped_back() {
    let fabric = Fabric::managed("two").unwrap();
    let a = End::new(active(&fabric, "a"), QpType::Ud);
    a.qp.activate(Qkey(5)).unwrap();
    let ah = Ah::to_lid(a.context.query_port().unwrap().lid);
    a.qp.post_recv(1, &[a.mr.slice(..)]).unwrap();
    let datagram = SendWr::send(2).inline(&[b"echo"]).to(&ah, a.qp.qpn(), Qkey(5)).signaled();
    a.qp.post_send(&datagram).unwrap();
    let mut both = [a.wait().wr_id, a.wait().wr_id];
    both.sort_unstable();
    assert_eq!((both, a.mr.to_vec(40..44)), ([1, 2], b"echo".to_vec()));
}

#[test]
fn a_request_with_a_privileged_qkey_sends_that_of_its_queue_pair() {
    const OWN: Qkey = Qkey(0x8001_0000);
    let fabric = Fabric::managed("switch:3").unwrap();
    let [a, b] = ["a", "b"].map(|host| End::new(active(&fabric, host), QpType::Ud));
    a.qp.activate(OWN).unwrap();
    b.qp.activate(OWN).unwrap();
    let ah = Ah::to_lid(b.context.query_port().unwrap().lid);
    // The first Q_Key is not a queue pair's own, and is used as it is.
    for (qkey, words) in [(Qkey(1), b"refused"), (Qkey(0x8000_0001), b"arrives")] {
        b.qp.post_recv(1, &[b.mr.slice(..)]).unwrap();
        let words = [&words[..]];
        let datagram = SendWr::send(2).inline(&words).to(&ah, b.qp.qpn(), qkey);
        a.qp.post_send(&datagram.signaled()).unwrap();
        assert_eq!(a.wait().status, WcStatus::Success);
    }
    assert_eq!((b.wait().byte_len, b.mr.to_vec(40..47)), (47, b"arrives".to_vec()));
    assert!(b.cq.poll_one().is_none());
}

const GROUP: Gid = Gid([0xff, 0x12, 0x40, 0x01, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77]);

/// Joins a device's port to a group by subnet administration; returns the group's LID.
fn join(context: &Context) -> Lid {
    let components = McMemberRecordMask::MGID
        | McMemberRecordMask::PORT_GID
        | McMemberRecordMask::JOIN_STATE
        | McMemberRecordMask::QKEY
        | McMemberRecordMask::TCLASS
        | McMemberRecordMask::PKEY
        | McMemberRecordMask::FLOW_LABEL
        | McMemberRecordMask::SL;
    let record = McMemberRecord {
        mgid: GROUP,
        port_gid: context.gid(0).unwrap(),
        qkey: Qkey(0x11),
        pkey: Pkey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    }
    .to_bytes();
    let mut mad = SaMad::new(Method::SET, McMemberRecord::ATTR_ID, &record);
    mad.sa.component_mask = components.bits();
    let agent = AgentAttr::new(MgmtClass::SUBN_ADM, sa::CLASS_VERSION);
    let mut client = Port::open(context, 1).unwrap().client(&agent).unwrap();
    let manager = Address::gsi(context.query_port().unwrap().sm_lid);
    let answer = client.ask(&manager, &mad.to_bytes()).unwrap();
    let answer = SaMad::parse(&answer.mad).unwrap();
    assert_eq!(answer.header.status, 0);
    answer.record::<McMemberRecord>().unwrap().mlid
}

/// Sets a port's LID and state, as the manager with LID 1 does.
fn set_port(client: &mut Client, route: &[u8], lid: Lid, state: sm::PortState) {
    let smp = |method| Smp::directed(method, PortInfo::ATTR_ID, 1, route);
    let answer = client.ask_smp(&Address::directed(), &smp(Method::GET)).unwrap();
    let Some(Attribute::PortInfo(mut info)) = answer.attribute() else { panic!("{answer:?}") };
    (info.lid, info.sm_lid) = (lid, Lid(1));
    (info.port_state, info.port_physical_state) = (state, PhysState::NO_CHANGE);
    info.link_down_default_state = LinkDownDefault(0);
    let mut set = smp(Method::SET);
    set.set_attribute(&Attribute::PortInfo(info));
    assert_eq!(client.ask_smp(&Address::directed(), &set).unwrap().status(), 0);
}

/// Grants a port membership of the next group that it requests, like subnet administration. Returns the group's record.
/// The request for the group `before` may be retransmitted.
fn let_join(agent: &Agent, mlid: Lid, before: Option<Gid>) -> McMemberRecord {
    let (asked, record) = loop {
        let Event::Mad(asked) = agent.port().recv().unwrap() else { panic!("no request") };
        let record = SaMad::parse(&asked.mad).unwrap().record::<McMemberRecord>().unwrap();
        if before != Some(record.mgid) {
            break (asked, record);
        }
    };
    let record = McMemberRecord { mlid, ..record };
    let bytes = record.to_bytes();
    let answer = SaMad::new(Method::GET_RESP, McMemberRecord::ATTR_ID, &bytes);
    agent.respond(&asked, &answer.to_bytes()).unwrap();
    record
}

/// An id that joins a group on a port that has just become active, before subnet administration has returned the broadcast
/// group.
struct Early {
    manager: Client,
    administration: Agent,
    channel: EventChannel,
    id: Id,
}

const EARLY: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 79, 1, 1));

fn join_early() -> Early {
    let fabric = Fabric::embedded("two").unwrap();
    let builder = Context::builder().embedded().fabric(&fabric);
    let context = builder.device(DeviceKind::Ib).open().unwrap();
    // This test is the subnet manager, on the other adapter.
    let other = &fabric.nodes().unwrap()[1].name;
    let open = || fabric.port(other, 1).unwrap();
    let methods = AgentAttr::new(MgmtClass::SUBN_ADM, sa::CLASS_VERSION).methods([Method::SET]);
    let administration = open().agent(&methods).unwrap();
    let directed = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
    let mut manager = open().client(&directed).unwrap();
    for state in [sm::PortState::NO_CHANGE, sm::PortState::ARMED, sm::PortState::ACTIVE] {
        set_port(&mut manager, &[], Lid(1), state);
        set_port(&mut manager, &[1], Lid(2), state);
    }
    while context.query_port().unwrap().state != PortState::Active {
        context.next_event(None).unwrap();
    }
    let channel = EventChannel::new(&context).unwrap();
    let id = Id::new(&channel, PortSpace::Udp).unwrap();
    id.bind(SocketAddr::new(context.address().unwrap(), 0)).unwrap();
    id.join_multicast(EARLY, JoinFlags::FullMember).unwrap();
    assert!(channel.try_next().unwrap().is_none());
    Early { manager, administration, channel, id }
}

#[test]
fn lid_change_fails_join_that_waits_for_the_broadcast_group() {
    let Early { mut manager, channel, id: _id, .. } = join_early();
    set_port(&mut manager, &[1], Lid(3), sm::PortState::NO_CHANGE);
    let event = channel.next(Some(Duration::from_secs(30))).unwrap().expect("it is told");
    assert_eq!((event.kind(), event.status()), (EventKind::MulticastError, -99));
}

#[test]
fn join_before_the_broadcast_group_is_known_completes_later() {
    let Early { administration, channel, id, manager: _manager } = join_early();
    let broadcast = let_join(&administration, Lid(0xc001), None);
    let joined = let_join(&administration, Lid(0xc002), Some(broadcast.mgid));
    assert_eq!(joined.pkey, broadcast.pkey);
    let event = channel.next(None).unwrap().unwrap();
    assert_eq!((event.kind(), event.status()), (EventKind::MulticastJoin, 0));
    assert_eq!(id.group(EARLY).unwrap().mlid, Lid(0xc002));
}

#[test]
fn a_datagram_to_a_group_reaches_the_members_of_other_hosts() {
    let fabric = Fabric::managed("switch:3").unwrap();
    let [a, b] = ["a", "b"].map(|host| End::new(active(&fabric, host), QpType::Ud));
    let [mlid, other] = [&a, &b].map(|end| join(&end.context));
    assert!(mlid.is_multicast() && mlid == other);
    for end in [&a, &b] {
        end.qp.activate(Qkey(0x11)).unwrap();
    }
    b.qp.attach_multicast(GROUP).unwrap();
    b.qp.post_recv(1, &[b.mr.slice(..)]).unwrap();
    // Packets for no process are delivered to XRC targets if any exist. Groups still receive theirs.
    let domain = Xrcd::private(&b.context).unwrap();
    let target = domain.create().unwrap();
    target.accept(a.qp.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
    let to_group = Ah::from_vector(AddressVector {
        is_global: true,
        dgid: GROUP,
        hop_limit: 1,
        ..*Ah::to_lid(mlid).vector()
    });
    // The manager updates the switch's table after its answer. Until then datagrams are lost.
    let got = loop {
        let datagram = SendWr::send(2).inline(&[b"to all"]).signaled();
        a.qp.post_send(&datagram.to(&to_group, Qpn::MULTICAST, Qkey(0x11))).unwrap();
        assert_eq!(a.wait().status, WcStatus::Success);
        if let Some(got) = b.cq.poll_one() {
            break got;
        }
    };
    assert_eq!((got.status, got.byte_len, got.src_qp), (WcStatus::Success, 46, a.qp.qpn()));
    assert_eq!(b.mr.to_vec(40..46), b"to all");
    assert_eq!(b.mr.to_vec(24..40), GROUP.0);
    b.qp.detach_multicast(GROUP).unwrap();
    assert!(b.qp.detach_multicast(GROUP).is_err(), "it is attached no more");
}

/// Returns the NodeInfo of the node at the end of a route.
fn node_info(client: &mut Client, route: &[u8]) -> NodeInfo {
    let question = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, route);
    let answer = client.ask_smp(&Address::directed(), &question).unwrap();
    let Some(Attribute::NodeInfo(node)) = answer.attribute() else { panic!("{answer:?}") };
    node
}

#[test]
fn port_of_a_device_has_a_management_interface_on_the_fabric_of_its_host() {
    let fabric = Fabric::embedded("switch:3").unwrap();
    let open = |host: &str| {
        let builder = Context::builder().embedded().fabric(&fabric).host(host);
        builder.device(DeviceKind::Ib).open().unwrap()
    };
    let contexts = [open("a"), open("b")];
    let agent = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
    let mut own = contexts.each_ref().map(|context| {
        let port = Port::open(context, 1).unwrap();
        assert_eq!(port.fabric().name(), fabric.name());
        let mut client = port.client(&agent).unwrap();
        assert_eq!(node_info(&mut client, &[1]).num_ports, 3, "its cable leads to the switch");
        let own = node_info(&mut client, &[]);
        (client, own)
    });
    let nodes = fabric.nodes().unwrap();
    let adapters: Vec<_> = nodes.iter().filter(|n| !n.is_switch).map(|n| n.guid).collect();
    assert_eq!([own[0].1.node_guid, own[1].1.node_guid], adapters[..2]);
    // The port keeps alive all that it needs.
    drop((contexts, fabric));
    node_info(&mut own[1].0, &[1, 1]);
}

#[test]
fn port_that_is_not_managed_is_refused_and_says_why() {
    let open = |kind: DeviceKind| Context::builder().embedded().device(kind).open().unwrap();
    let refusal = |context: &Context, number: u8| {
        let e = Port::open(context, number).unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid(_)), "{e}");
        e.to_string()
    };
    let ib = open(DeviceKind::Ib);
    assert!(refusal(&ib, 1).contains("its host is not attached to a fabric"));
    for number in [0, 2] {
        let said = refusal(&ib, number);
        assert!(
            said.contains("does not have this port")
                && said.contains(&format!("port {number} of device"))
        );
    }
    for kind in [DeviceKind::default(), DeviceKind::Iwarp] {
        assert!(refusal(&open(kind), 1).contains("only InfiniBand"));
    }
}

/// Returns queue pairs of two devices, connected from port to port.
fn connected(a: (&Context, u8), b: (&Context, u8)) -> [End; 2] {
    let ends = [a, b].map(|(context, port)| End::at(context.clone(), QpType::Rc, port));
    let [to_a, to_b] = ends.each_ref().map(|end| end.qp.endpoint(0).unwrap());
    ends[0].qp.connect(to_b, 0, Access::REMOTE_WRITE).unwrap();
    ends[1].qp.connect(to_a, 0, Access::REMOTE_WRITE).unwrap();
    ends
}

fn exchange([a, b]: &[End; 2]) {
    b.qp.post_recv(1, &[b.mr.slice(..)]).unwrap();
    a.qp.post_send(&SendWr::send(2).inline(&[b"hello"]).signaled()).unwrap();
    assert_eq!((b.wait().wr_id, a.wait().status), (1, WcStatus::Success));
    assert_eq!(b.mr.to_vec(..5), b"hello");
}

#[test]
fn a_device_with_two_ports_on_one_fabric_exchanges_messages_by_each() {
    let fabric = Fabric::managed("switch:4").unwrap();
    let a = with_two_ports([&fabric, &fabric], "a");
    let b = active(&fabric, "b");
    let lids = [1, 2].map(|port| a.query_port_number(port).unwrap().lid);
    assert_ne!(lids[0], lids[1]);
    let gids = [1, 2].map(|port| a.gid_of_port(port, 0).unwrap());
    assert_eq!(gids[1].guid().0, gids[0].guid().0 + 1, "each port has a GUID");
    for port in [1, 2] {
        exchange(&connected((&a, port), (&b, 1)));
        exchange(&connected((&b, 1), (&a, port)));
        exchange(&connected((&a, port), (&a, port)));
        // The packets leave by one port and arrive at the other.
        exchange(&connected((&a, port), (&a, 3 - port)));
    }
    let nodes = fabric.nodes().unwrap();
    let own = nodes.iter().find(|node| node.description == "a").unwrap();
    assert_eq!((own.guid, own.ports.len()), (a.query().node_guid, 2), "one node");
}

#[test]
fn datagrams_use_only_the_port_of_their_queue_pair() {
    const QKEY: Qkey = Qkey(7);
    let fabric = Fabric::managed("switch:4").unwrap();
    let [a, b] = [with_two_ports([&fabric; 2], "a"), active(&fabric, "b")];
    let [first, second] = [1, 2].map(|port| End::at(a.clone(), QpType::Ud, port));
    let far = End::new(b, QpType::Ud);
    for end in [&first, &second, &far] {
        end.qp.activate(QKEY).unwrap();
    }
    let lids = [1, 2].map(|port| a.query_port_number(port).unwrap().lid);
    let lid_of_b = far.context.query_port().unwrap().lid;
    for (end, lid) in [(&first, lids[0]), (&second, lids[1])] {
        far.qp.post_recv(1, &[far.mr.slice(..)]).unwrap();
        let ah = Ah::to_lid(lid_of_b).port(end.qp.port());
        let datagram = SendWr::send(2).inline(&[b"from"]).to(&ah, far.qp.qpn(), QKEY);
        end.qp.post_send(&datagram.signaled()).unwrap();
        assert_eq!((end.wait().status, far.wait().slid), (WcStatus::Success, lid.0));
    }
    // A queue pair has no number at the other port, although its process receives from both.
    for (end, lid) in [(&second, lids[0]), (&second, lids[1])] {
        end.qp.post_recv(lid.0.into(), &[end.mr.slice(..)]).unwrap();
        let datagram = SendWr::send(2).inline(&[b"to"]).to(&Ah::to_lid(lid), end.qp.qpn(), QKEY);
        far.qp.post_send(&datagram.signaled()).unwrap();
        far.wait();
    }
    assert_eq!(second.wait().wr_id, lids[0].0.into(), "the second datagram has the first receive");
    assert!(second.cq.poll_one().is_none());
    // Address handles belong to one port (`IBV_DEVICE_UD_AV_PORT_ENFORCE`).
    let datagram = SendWr::send(3).inline(&[b"x"]).to(&Ah::to_lid(lid_of_b), far.qp.qpn(), QKEY);
    second.qp.post_send(&datagram.signaled()).unwrap();
    let mut one = [EMPTY];
    assert_eq!(second.cq.wait(&mut one, None).unwrap(), 1);
    assert_eq!(one[0].status, WcStatus::LocQpOpErr);
}

#[test]
fn port_down_does_not_affect_the_other_port_of_the_device() {
    let one = Fabric::managed("switch:3").unwrap();
    let two = one.beside("two", "switch:3").unwrap();
    let a = with_two_ports([&one, &two], "a");
    let [b, c] = [active(&one, "b"), active(&two, "c")];
    let at_first = connected((&a, 1), (&b, 1));
    let at_second = connected((&a, 2), (&c, 1));
    let near = connected((&a, 2), (&a, 2));
    [&at_first, &at_second, &near].into_iter().for_each(exchange);
    let prefixes = [1, 2].map(|port| a.gid_of_port(port, 0).unwrap().guid());
    assert_eq!(prefixes[1].0, prefixes[0].0 + 1, "one node, which both fabrics know by one GUID");
    disable(&a, 1);
    loop {
        match a.next_event(None).unwrap().unwrap() {
            AsyncEvent::PortError(1) => break,
            AsyncEvent::PortError(port) => panic!("port {port}"),
            _ => {}
        }
    }
    assert_eq!(a.query_port_number(1).unwrap().state, PortState::Down);
    assert_eq!(a.query_port_number(2).unwrap().state, PortState::Active);
    exchange(&at_second);
    exchange(&near);
}

#[test]
fn invalid_port_number_is_refused() {
    let fabric = Fabric::managed("switch:4").unwrap();
    let a = with_two_ports([&fabric; 2], "a");
    for port in [0, 3] {
        assert!(a.query_port_number(port).is_err());
        assert!(a.gid_of_port(port, 0).is_err());
        assert!(a.pkey(port, 0).is_err());
        assert!(Port::open(&a, port).is_err());
    }
    assert_eq!(a.pkey(2, 0).unwrap(), Pkey::DEFAULT);
    let end = End::at(a.clone(), QpType::Ud, 3);
    assert!(matches!(end.qp.activate(Qkey(1)).unwrap_err().cause(), Cause::Invalid(_)));
    // A path from a port other than the queue pair's.
    let end = End::at(a.clone(), QpType::Rc, 2);
    let init = QpAttr { state: QpState::Init, port_num: 2, ..end.qp.attr() };
    let init_mask =
        AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    end.qp.modify(&init, init_mask).unwrap();
    let lid = a.query_port_number(2).unwrap().lid;
    let rtr =
        QpAttr { state: QpState::Rtr, av: *Ah::to_lid(lid).port(1).vector(), ..end.qp.attr() };
    let rtr_mask = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    let error = end.qp.modify(&rtr, rtr_mask).unwrap_err();
    assert!(error.to_string().contains("path starts at port 1"), "{error}");
    end.qp.modify(&QpAttr { av: *Ah::to_lid(lid).port(2).vector(), ..rtr }, rtr_mask).unwrap();
}
