//! Admission of packets, and delivery of those that no agent answers: keys of case 19, and the rules of delivery.

use rdmux_subnet::{DropReason, PortId};
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass, status};
use rdmux_wire::sm::{
    Attribute, MulticastForwardingTable, PkeyTable, PortState, SlToVlTable, Trap, Vl,
};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Gid, Grh, Lid, Pkey, Qkey, Qpn};

use crate::manager::Manager;
use crate::net::{Net, port, qp1};

const A: PortId = port(1, 1);
const B: PortId = port(2, 1);

fn managed() -> Net {
    let mut net = Net::of("switch:3");
    Manager::bring_up(&mut net, A).expect("a subnet");
    net.inbox.packets.clear();
    net
}

fn lid(net: &Net, port: PortId) -> Lid {
    net.subnet.port(port).expect("a port").lid()
}

fn drops(net: &Net, port: PortId, reason: DropReason) -> u64 {
    net.subnet.port(port).expect("a port").drops(reason)
}

/// Returns a datagram of the connection manager, which is delivered to programs.
fn cm() -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    MadHeader::new(MgmtClass::COMM, 2, Method::SEND).emit(&mut mad);
    mad
}

fn set_pkeys(net: &mut Net, hops: &[u8], modifier: u32, keys: &[u16]) {
    let mut table = PkeyTable::default();
    table.pkeys.iter_mut().zip(keys).for_each(|(slot, key)| *slot = Pkey(*key));
    let (status, _) = net.set(A, hops, table, modifier).expect("an answer");
    assert_eq!(status, status::OK);
}

fn trap(net: &mut Net) -> Trap {
    let smp = net.take_smps().into_iter().map(|(.., smp)| smp).next_back().expect("a trap");
    match smp.attribute() {
        Some(Attribute::Notice(notice)) => notice.trap().expect("a known trap"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn qp1_mad_of_a_class_without_agent_is_delivered_to_the_host() {
    let mut net = managed();
    let packet = qp1(lid(&net, A), lid(&net, B), cm());
    net.send(A, packet.clone());
    assert_eq!(net.inbox.packets.pop_front(), Some((B, packet)));
}

#[test]
fn limited_members_of_a_partition_do_not_hear_each_other() {
    let mut net = managed();
    set_pkeys(&mut net, &[1, 2], 0, &[0xffff, 0x0001]);
    let mut packet = qp1(lid(&net, A), lid(&net, B), cm());
    packet.pkey = Pkey(0x8001);
    net.send(A, packet.clone());
    assert_eq!(net.inbox.packets.pop_front().map(|(to, _)| to), Some(B), "a full member is heard");
    packet.pkey = Pkey(0x0001);
    net.send(A, packet);
    let Trap::Pkey(bad) = trap(&mut net) else { panic!("another trap") };
    assert_eq!((bad.key, bad.lid1, bad.lid2), (1, lid(&net, A), lid(&net, B)));
    assert_eq!((bad.qp1, bad.qp2), (Qpn::QP1, Qpn::QP1));
    assert_eq!(net.subnet.port(B).expect("a port").info().pkey_violations, 1);
    assert_eq!(drops(&net, B, DropReason::WrongPkey), 1);
}

#[test]
fn a_limited_member_gets_answers_with_the_key_of_a_full_one() {
    let mut net = managed();
    set_pkeys(&mut net, &[1, 1], 0, &[0x7fff]);
    let mut mad = [0; MAD_LEN];
    let header = MadHeader::new(MgmtClass::PERF, 1, Method::GET);
    MadHeader { attr_id: 1, ..header }.emit(&mut mad);
    let mut packet = qp1(lid(&net, A), lid(&net, B), mad);
    packet.pkey = Pkey(0x7fff);
    net.send(A, packet);
    let (to, answer) = net.inbox.packets.pop_front().expect("an answer");
    assert_eq!((to, answer.pkey), (A, Pkey(0xffff)));
    assert_eq!(net.subnet.port(A).expect("a port").info().pkey_violations, 0);
}

#[test]
fn a_pkey_that_is_taken_away_keeps_datagrams_out() {
    let mut net = managed();
    set_pkeys(&mut net, &[1, 2], 0, &[0x8001]);
    net.send(A, qp1(lid(&net, A), lid(&net, B), cm()));
    assert_eq!(drops(&net, B, DropReason::WrongPkey), 1);
}

#[test]
fn another_qkey_than_that_of_qp1_is_a_violation() {
    let mut net = managed();
    let mut packet = qp1(lid(&net, A), lid(&net, B), cm());
    packet.qkey = Qkey(0x0123_4567);
    net.send(A, packet.clone());
    let Trap::Qkey(bad) = trap(&mut net) else { panic!("another trap") };
    assert_eq!(bad.key, 0x0123_4567);
    assert_eq!(net.subnet.port(B).expect("a port").info().qkey_violations, 1);
    // A packet for a program's queue pair is checked by that queue pair.
    packet.dst_qpn = Qpn::new(0x48);
    net.send(A, packet);
    assert_eq!(net.inbox.packets.len(), 1);
}

#[test]
fn mad_between_qp0_and_qp1_is_dropped_as_wrong_queue_pair() {
    let mut net = managed();
    let (own, far) = (lid(&net, A), lid(&net, B));
    let mut from_qp1 = qp1(own, far, Smp::lid_routed(Method::GET, 0x11, 0).to_bytes());
    from_qp1.dst_qpn = Qpn::QP0;
    let mut to_qp1 = qp1(own, far, cm());
    to_qp1.src_qpn = Qpn::QP0;
    net.send(A, from_qp1);
    net.send(A, to_qp1);
    assert!(net.inbox.packets.is_empty());
    assert_eq!(drops(&net, A, DropReason::WrongQueuePair), 2);
}

#[test]
fn data_needs_active_ports_and_subnet_management_does_not() {
    let mut net = managed();
    net.change(A, &[1, 2], 1, |info| info.port_state = PortState::DOWN).expect("an answer");
    assert_eq!(net.state(B), PortState::INIT);
    net.send(A, qp1(lid(&net, A), lid(&net, B), cm()));
    assert!(net.inbox.packets.iter().all(|(to, _)| *to != B));
    assert_eq!(drops(&net, port(0, 2), DropReason::NotActive), 1);
    let far = lid(&net, B);
    assert!(net.ask(A, far, Smp::lid_routed(Method::GET, 0x11, 0)).is_some());
}

#[test]
fn packet_without_route_or_routed_back_to_its_ingress_is_dropped() {
    let mut net = managed();
    let own = lid(&net, A);
    net.send(A, qp1(own, Lid(40), cm()));
    assert_eq!(drops(&net, port(0, 1), DropReason::NoRoute), 1);
    let mut ports = [255; 64];
    ports[usize::from(own.0)] = 1;
    ports[4] = 1;
    net.set(A, &[1], rdmux_wire::sm::LinearForwardingTable { ports }, 0).expect("an answer");
    net.send(A, qp1(own, Lid(4), cm()));
    assert_eq!(drops(&net, port(0, 1), DropReason::Loop), 1);
}

#[test]
fn misrouted_packet_is_dropped_as_wrong_lid_at_the_receiving_port() {
    let mut net = managed();
    let mut ports = [255; 64];
    (ports[1], ports[2], ports[3], ports[4]) = (1, 0, 2, 2);
    net.set(A, &[1], rdmux_wire::sm::LinearForwardingTable { ports }, 0).expect("an answer");
    net.send(A, qp1(Lid(1), Lid(4), cm()));
    assert_eq!(drops(&net, B, DropReason::WrongLid), 1);
}

#[test]
fn path_bits_reach_the_port_and_answers_come_from_them() {
    let mut net = managed();
    net.change(A, &[1, 2], 1, |info| (info.lid, info.lmc) = (Lid(8), 2)).expect("an answer");
    let mut ports = [255; 64];
    ports[1] = 1;
    ports[8..12].fill(2);
    net.set(A, &[1], rdmux_wire::sm::LinearForwardingTable { ports }, 0).expect("an answer");
    let answer = |net: &mut Net, to| {
        let smp = Smp::lid_routed(Method::GET, 0x11, 0);
        net.send(A, crate::net::qp0(Lid(1), to, &smp));
        net.inbox.packets.pop_front().map(|(_, packet)| packet.slid)
    };
    // LIDs above LinearFDBTop have no route.
    assert_eq!(answer(&mut net, Lid(10)), None);
    let Attribute::SwitchInfo(info) = net.get(A, &[1], 0x12, 0) else { panic!() };
    let top = rdmux_wire::sm::SwitchInfo { linear_fdb_top: Lid(63), ..info };
    net.set(A, &[1], top, 0).expect("an answer");
    assert_eq!(answer(&mut net, Lid(8)), Some(Lid(8)));
    assert_eq!(answer(&mut net, Lid(10)), Some(Lid(10)));
    assert_eq!(answer(&mut net, Lid(12)), None);
}

#[test]
fn packet_to_the_own_lid_is_looped_back_without_being_transmitted() {
    let mut net = managed();
    let own = lid(&net, A);
    let sent = |net: &Net| {
        net.subnet.port(A).expect("a port").counter(rdmux_subnet::Counter::PortXmitPkts)
    };
    let before = sent(&net);
    assert!(net.ask(A, own, Smp::lid_routed(Method::GET, 0x11, 0)).is_some());
    net.send(A, qp1(own, own, cm()));
    assert_eq!(net.inbox.packets.pop_front().map(|(to, _)| to), Some(A));
    assert_eq!(sent(&net), before);
}

#[test]
fn get_to_a_port_without_host_is_answered_unsupported() {
    let mut net = managed();
    net.subnet.set_attached(B, false);
    let mut mad = [0; MAD_LEN];
    MadHeader::new(MgmtClass::SUBN_ADM, 2, Method::GET).emit(&mut mad);
    let (own, far) = (lid(&net, A), lid(&net, B));
    let mut packet = qp1(own, far, mad);
    let grh = Grh {
        tclass: 0,
        flow_label: 0,
        pay_len: 0,
        next_hdr: Grh::NEXT_BTH,
        hop_limit: 0,
        sgid: Gid([1; 16]),
        dgid: Gid([2; 16]),
    };
    packet.grh = Some(grh);
    packet.src_qpn = Qpn::new(0x50);
    net.send(A, packet);
    let (to, answer) = net.inbox.packets.pop_front().expect("an answer");
    let header = MadHeader::parse(&answer.mad[..]).expect("a MAD");
    assert_eq!((to, header.status), (A, status::UNSUPPORTED_METHOD_ATTRIBUTE));
    assert_eq!((answer.slid, answer.dst_qpn, answer.qkey), (far, Qpn::new(0x50), Qkey::QP1));
    assert_eq!(answer.grh.map(|g| (g.sgid, g.dgid)), Some((grh.dgid, grh.sgid)));
    net.send(A, qp1(own, far, cm()));
    assert_eq!(net.inbox.packets.pop_front().map(|(to, _)| to), Some(B), "a Send has no answer");
}

#[test]
fn partition_enforcing_switch_port_drops_bad_pkey_and_sends_trap_259() {
    for (inbound, number, reason) in
        [(true, 1, DropReason::PkeyIn), (false, 2, DropReason::PkeyOut)]
    {
        let mut net = managed();
        let changed = net.change(A, &[1], number, |info| {
            info.partition_enforcement_inbound = inbound;
            info.partition_enforcement_outbound = !inbound;
        });
        assert_eq!(changed.expect("an answer").0, status::OK);
        set_pkeys(&mut net, &[1], number << 16, &[0x8001]);
        net.send(A, qp1(lid(&net, A), lid(&net, B), cm()));
        let number = u8::try_from(number).expect("a port");
        assert_eq!(drops(&net, port(0, number), reason), 1);
        // The trap itself is subnet management, which partitions do not block.
        let Trap::SwitchPkey(bad) = trap(&mut net) else { panic!("another trap") };
        assert_eq!(
            (bad.pkey, bad.port, bad.switch_lid),
            (Pkey(0xffff), number, lid(&net, port(0, 0)))
        );
        set_pkeys(&mut net, &[1], u32::from(number) << 16, &[0x8001, 0x7fff]);
        net.send(A, qp1(lid(&net, A), lid(&net, B), cm()));
        assert!(net.inbox.packets.iter().any(|(to, _)| *to == B), "{reason:?}");
    }
}

#[test]
fn packet_whose_sl_maps_to_vl15_is_dropped() {
    let mut net = managed();
    let mut table = SlToVlTable { vls: [Vl(0); 16] };
    table.vls[5] = Vl(15);
    net.set(A, &[1], table, 1 << 8 | 2).expect("an answer");
    let mut packet = qp1(lid(&net, A), lid(&net, B), cm());
    packet.sl = 4;
    net.send(A, packet.clone());
    assert_eq!(net.inbox.packets.pop_front().map(|(to, _)| to), Some(B));
    packet.sl = 5;
    net.send(A, packet.clone());
    assert_eq!(drops(&net, port(0, 1), DropReason::NoVirtualLane), 1);
    net.set(A, &[], table, 0).expect("an answer");
    net.send(A, packet);
    assert_eq!(drops(&net, A, DropReason::NoVirtualLane), 1, "the adapter's own table");
    assert!(net.inbox.packets.is_empty());
}

#[test]
fn multicast_packet_is_delivered_once_per_port_and_not_to_the_sender() {
    let mut net = managed();
    let mut table = MulticastForwardingTable::default();
    table.port_masks[0] = 0b1110;
    net.set(A, &[1], table, 0).expect("an answer");
    let mut packet = qp1(lid(&net, A), Lid(0xc000), cm());
    packet.dst_qpn = Qpn::MULTICAST;
    net.send(A, packet);
    let mut reached: Vec<_> = net.inbox.packets.drain(..).map(|(to, _)| to).collect();
    reached.sort();
    assert_eq!(reached, [B, port(3, 1)]);
}
