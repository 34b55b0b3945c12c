//! Performance management: the events that are counted, and how counters are cleared.

use rdmux_subnet::{Counter, PortId};
use rdmux_wire::Lid;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass, status};
use rdmux_wire::sm::NodeInfo;

use crate::manager::Manager;
use crate::net::{Net, get, port, qp1};

const PORT_COUNTERS: u16 = 0x12;
const EXTENDED: u16 = 0x1d;

/// Queries the agent of a port for the counters of a port of its node. Returns status and data.
fn ask(
    net: &mut Net,
    to: PortId,
    method: Method,
    attr_id: u16,
    attr_mod: u32,
    data: &[u8],
) -> (u16, Vec<u8>) {
    net.inbox.packets.clear();
    let mut mad = [0; MAD_LEN];
    let header = MadHeader::new(MgmtClass::PERF, 1, method);
    MadHeader { attr_id, attr_mod, tid: 7, ..header }.emit(&mut mad);
    mad[64..64 + data.len()].copy_from_slice(data);
    let [own, far] = [port(1, 1), to].map(|p| net.subnet.port(p).expect("a port").lid());
    net.send(port(1, 1), qp1(own, far, mad));
    let (_, packet) = net.inbox.packets.pop_front().expect("an answer");
    let header = MadHeader::parse(&packet.mad[..]).expect("a MAD");
    assert_eq!((header.method, header.tid, header.attr_mod), (Method::GET_RESP, 7, attr_mod));
    (header.status, packet.mad[64..].to_vec())
}

fn counters(net: &mut Net, to: PortId, number: u8) -> Vec<u8> {
    let (status, data) = ask(net, to, Method::GET, PORT_COUNTERS, 0, &[0, number]);
    assert_eq!(status, status::OK);
    data
}

fn word(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(data[at..at + 4].try_into().expect("4 bytes"))
}

fn long(data: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(data[at..at + 8].try_into().expect("8 bytes"))
}

fn managed() -> Net {
    let mut net = Net::of("switch:3");
    Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    net
}

#[test]
fn every_hop_counts_packets_and_words_in_both_directions() {
    let mut net = Net::of("switch:3");
    for _ in 0..5 {
        net.dr(port(1, 1), &[1, 2], &get(NodeInfo::ATTR_ID, 0)).expect("an answer");
    }
    let both =
        [Counter::PortXmitPkts, Counter::PortRcvPkts, Counter::PortXmitData, Counter::PortRcvData];
    for at in [port(1, 1), port(0, 1), port(0, 2), port(2, 1)] {
        let view = net.subnet.port(at).expect("a port");
        assert_eq!(both.map(|c| view.counter(c)), [5, 5, 5 * 72, 5 * 72], "{at}");
    }
    assert_eq!(net.subnet.port(port(0, 3)).expect("a port").counter(Counter::PortXmitPkts), 0);
}

#[test]
fn counters_are_read_selected_and_cleared() {
    let mut net = managed();
    // Clear all counters, then send one request and one answer through port 2.
    let clear = [0, 2, 0xff, 0xff];
    let (status, data) = ask(&mut net, port(0, 0), Method::SET, PORT_COUNTERS, 0, &clear);
    assert_eq!((status, data[1], word(&data, 32)), (status::OK, 2, 0));
    assert_eq!(word(&counters(&mut net, port(2, 1), 1), 24) % 72, 0);
    let data = counters(&mut net, port(0, 0), 2);
    assert_eq!((word(&data, 24), word(&data, 28)), (72, 72));
    assert_eq!((word(&data, 32), word(&data, 36)), (1, 1));
    // Clear only what is selected: bit 12 is XmitData.
    ask(&mut net, port(0, 0), Method::SET, PORT_COUNTERS, 0, &[0, 2, 0x10, 0]);
    let data = counters(&mut net, port(0, 0), 2);
    assert_eq!((word(&data, 24), word(&data, 28), word(&data, 32)), (0, 72, 1));
    let (_, data) = ask(&mut net, port(0, 0), Method::GET, EXTENDED, 0, &[0, 2]);
    assert!(long(&data, 8) > 72, "the extended ones are cleared apart");
    assert_eq!(long(&data, 24), long(&data, 40), "all of it unicast");
}

#[test]
fn counters_saturate_and_extended_ones_go_on() {
    let mut net = managed();
    net.subnet.count(port(0, 2), Counter::PortXmitData, 5_000_000_000);
    net.subnet.count(port(0, 2), Counter::SymbolError, 70_000);
    net.subnet.count(port(0, 2), Counter::LinkDowned, 300);
    net.subnet.count(port(0, 2), Counter::LocalLinkIntegrityErrors, 20);
    net.subnet.count(port(0, 2), Counter::ExcessiveBufferOverrunErrors, 3);
    let data = counters(&mut net, port(0, 0), 2);
    assert_eq!(word(&data, 24), u32::MAX);
    assert_eq!((data[4..6].to_vec(), data[7], data[19]), (vec![0xff, 0xff], 255, 0xf3));
    let (_, data) = ask(&mut net, port(0, 0), Method::GET, EXTENDED, 0, &[0, 2]);
    assert!(long(&data, 8) >= 5_000_000_000);
    assert_eq!((long(&data, 72), long(&data, 88)), (70_000, 300));
}

#[test]
fn all_ports_are_one_sum_and_one_set() {
    let mut net = managed();
    for number in 1..=3 {
        net.subnet.count(port(0, number), Counter::SymbolError, 10);
    }
    assert_eq!(counters(&mut net, port(0, 0), 0xff)[4..6], [0, 30]);
    ask(&mut net, port(0, 0), Method::SET, PORT_COUNTERS, 0, &[0, 0xff, 0, 1]);
    assert_eq!(counters(&mut net, port(0, 0), 0xff)[4..6], [0, 0]);
}

#[test]
fn ports_and_modifiers_that_do_not_exist_are_invalid() {
    let mut net = managed();
    let mut status = |to, number, modifier| {
        ask(&mut net, to, Method::GET, PORT_COUNTERS, modifier, &[0, number]).0
    };
    assert_eq!(status(port(0, 0), 0, 0), status::OK, "port 0 counts too");
    assert_eq!(status(port(0, 0), 4, 0), status::INVALID_VALUE);
    assert_eq!(status(port(2, 1), 0, 0), status::INVALID_VALUE);
    assert_eq!(status(port(2, 1), 2, 0), status::INVALID_VALUE);
    assert_eq!(status(port(2, 1), 1, 1), status::INVALID_VALUE);
    assert_eq!(status(port(2, 1), 1, 0), status::OK);
}

#[test]
fn perf_class_port_info_has_the_supported_capabilities_only() {
    let mut net = managed();
    let (status, data) = ask(&mut net, port(2, 1), Method::GET, 1, 0, &[]);
    assert_eq!(status, status::OK);
    assert_eq!(data[..4], [1, 1, 0x13, 0x00], "all ports, extended width, XmitWait");
    assert_eq!(word(&data, 4) >> 5, 2, "64-bit error counters");
    for attr_id in [0x10, 0x11, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1f] {
        let (status, _) = ask(&mut net, port(2, 1), Method::GET, attr_id, 0, &[0, 1]);
        assert_eq!(status, status::UNSUPPORTED_METHOD_ATTRIBUTE, "{attr_id:#x}");
    }
}

#[test]
fn words_are_counted_by_service_level_and_cleared_by_it() {
    const XMIT: u16 = 0x36;
    const RCV: u16 = 0x37;
    let mut net = managed();
    let clear = [0, 1, 0xff, 0xff];
    let (status, data) = ask(&mut net, port(2, 1), Method::SET, RCV, 0, &clear);
    assert_eq!((status, &data[..4]), (status::OK, &clear[..]));
    assert_eq!(word(&data, 4), 0, "the question is counted before it is answered");
    ask(&mut net, port(2, 1), Method::SET, XMIT, 0, &clear);
    let mut high = qp1(Lid(1), net.subnet.port(port(2, 1)).expect("a port").lid(), [0; MAD_LEN]);
    high.sl = 5;
    net.send(port(1, 1), high);
    let (_, data) = ask(&mut net, port(2, 1), Method::GET, RCV, 0, &[0, 1]);
    assert_eq!((word(&data, 4), word(&data, 4 + 4 * 5)), (2 * 72, 72));
    let (_, data) = ask(&mut net, port(2, 1), Method::GET, XMIT, 0, &[0, 1]);
    assert_eq!((word(&data, 4), word(&data, 4 + 4 * 5)), (2 * 72, 0), "two answers");
    // Only service level 5, on all ports of the switch.
    let (_, data) = ask(&mut net, port(0, 0), Method::SET, RCV, 0, &[0, 0xff, 0, 1 << 5]);
    assert_eq!(word(&data, 4 + 4 * 5), 0);
    assert!(word(&data, 4) > 0);
    net.subnet.count(port(0, 3), Counter::PortXmitData, u64::from(u32::MAX) + 9);
    let (_, data) = ask(&mut net, port(0, 0), Method::GET, XMIT, 0, &[0, 3]);
    assert_eq!(word(&data, 4), u32::MAX, "they do not wrap");
    assert_eq!(ask(&mut net, port(0, 0), Method::GET, XMIT, 0, &[0, 4]).0, status::INVALID_VALUE);
}

#[test]
fn error_and_discard_details_count_drops_by_reason() {
    const RCV_ERRORS: u16 = 0x15;
    const DISCARDS: u16 = 0x16;
    let mut net = managed();
    // A LID without route, and a removed cable.
    net.send(port(1, 1), qp1(Lid(1), Lid(0xb000), [0; MAD_LEN]));
    let gone = net.subnet.port(port(3, 1)).expect("a port").lid();
    net.subnet.set_cable(net.now, port(3, 1), false, &mut net.inbox).expect("a cable");
    for _ in 0..2 {
        net.send(port(1, 1), qp1(Lid(1), gone, [0; MAD_LEN]));
    }
    let (status, data) = ask(&mut net, port(0, 0), Method::GET, RCV_ERRORS, 0, &[0, 1]);
    assert_eq!((status, &data[4..16]), (status::OK, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0][..]));
    let (status, data) = ask(&mut net, port(0, 0), Method::GET, DISCARDS, 0, &[0, 3]);
    assert_eq!((status, &data[4..12]), (status::OK, &[0, 2, 0, 0, 0, 0, 0, 0][..]));
    let (_, data) = ask(&mut net, port(0, 0), Method::SET, DISCARDS, 0, &[0, 3, 0, 1]);
    assert_eq!(data[..12], [0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(counters(&mut net, port(0, 0), 3)[14..16], [0, 2], "the sum is another counter");
}
