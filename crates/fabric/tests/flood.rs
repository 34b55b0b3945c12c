//! A flood of invalid packets at a host: they are dropped and counted by reason at that host's port, without other effects.

mod common;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use common::counters::Counters;
use common::managed;
use common::traffic::{Burst, Host};
use rdmux_fabric::client::admin;
use rdmux_fabric::server::{ManagerSetup, Setup};
use rdmux_link::ib::Encap;
use rdmux_wire::lrh::Lrh;
use rdmux_wire::{Bth, IbPacket, Lid, Opcode, Packet, Pkey, Psn, Qpn};

/// The test fails after this many rounds of the flood.
const MOST_ROUNDS: u32 = 1_000_000;

/// Makes a packet, LRH to ICRC.
fn packet(lrh: Lrh, qpn: u32, pkey: Pkey) -> Vec<u8> {
    let bth = Bth { pkey, ..Bth::new(Opcode::UC_SEND_ONLY, Qpn::new(qpn), Psn::new(0)) };
    let packet = IbPacket { lrh, grh: None, packet: Packet::new(bth, &[7; 256]) };
    let mut bytes = vec![0; packet.wire_len()];
    let len = packet.emit(&mut bytes);
    bytes.truncate(len - 2);
    bytes
}

fn datagram(packet: &[u8], number: u32) -> Vec<u8> {
    let total = u16::try_from(packet.len()).unwrap();
    let encap = Encap { part: 0, parts: 1, steer: 0x1001, number, total };
    [&encap.to_bytes(), packet].concat()
}

/// Returns datagrams of every kind that must be dropped, with the reason by which they are counted.
fn bad(slid: Lid, dlid: Lid) -> Vec<(&'static str, Vec<u8>)> {
    let lrh = Lrh { dlid, slid, ..Lrh::DEFAULT };
    let good = datagram(&packet(lrh, 0x1001, Pkey::DEFAULT), 0);
    let changed = |at: usize, bits: u8| {
        let mut datagram = good.clone();
        datagram[at] ^= bits;
        datagram
    };
    let part = {
        let whole = packet(lrh, 0x1001, Pkey::DEFAULT);
        let total = u16::try_from(whole.len()).unwrap();
        let encap = Encap { part: 0, parts: 2, steer: 0x1001, number: 0, total };
        [&encap.to_bytes(), &whole[encap.place()]].concat()
    };
    let other = Lrh { dlid: Lid(dlid.0 + 100), ..lrh };
    vec![
        ("rx_icrc", changed(good.len() - 1, 1)),
        ("rx_icrc", changed(60, 4)),
        ("rx_lid", datagram(&packet(other, 0x1001, Pkey::DEFAULT), 0)),
        ("rx_lid", datagram(&packet(Lrh { slid: Lid::NONE, ..lrh }, 0x1001, Pkey::DEFAULT), 0)),
        ("rx_pkey", datagram(&packet(lrh, 0x1001, Pkey(0x8123)), 0)),
        ("rx_malformed", changed(16 + 5, 2)),
        ("rx_malformed", good[..40].to_vec()),
        ("rx_malformed", vec![0]),
        ("rx_version", changed(0, 7)),
        ("rx_management", datagram(&packet(Lrh { vl: 15, ..lrh }, 0x1001, Pkey::DEFAULT), 0)),
        ("rx_given_up", part),
    ]
}

#[test]
fn flood_of_bad_packets_is_counted_by_drop_reason_and_good_ones_arrive() {
    let manager = ManagerSetup { sweep_ms: Some(3_600_000), ..ManagerSetup::default() };
    let (fabric, shown) = managed("switch:4", Setup { manager, ..Setup::default() });
    let adapters: Vec<_> = shown.nodes.iter().filter(|node| !node.is_switch).collect();
    let host = |n: usize| Host::new(&fabric, &format!("h{n}"), adapters[n].guid, 1);
    let (a, mut b, other) = (host(0), host(1), host(2));
    let agents: Vec<_> = shown.nodes.iter().map(|node| Counters::of(&fabric, node)).collect();
    let own = shown.nodes.iter().position(|node| node.guid == adapters[1].guid).unwrap();
    let errors = |n: usize, port: u8| {
        let of = agents[n].extended(port);
        let constraints = of.port_xmit_constraint_errors + of.port_rcv_constraint_errors;
        [of.port_rcv_errors, of.port_rcv_switch_relay_errors, of.port_xmit_discards, constraints]
    };
    let ports = || {
        let all = shown.nodes.iter().enumerate();
        all.flat_map(|(n, node)| node.ports.iter().map(move |port| (n, port.number)))
    };
    let before: Vec<_> = ports().map(|(n, port)| errors(n, port)).collect();
    let kinds = bad(a.lid(), b.lid());
    let (to, done, rounds) = (b.addr(), AtomicBool::new(false), AtomicU32::new(0));
    let sent = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let mut sent = 0_u32;
            while !done.load(Ordering::Relaxed) {
                for (_, datagram) in &kinds {
                    let mut datagram = datagram.clone();
                    // Fragments of packets, no two of the same packet.
                    if datagram.len() > 12 && datagram[3] == 2 {
                        datagram[8..12].copy_from_slice(&sent.to_be_bytes());
                    }
                    // A full socket drops some.
                    let _ = socket.send_to(&datagram, to);
                }
                sent += 1;
                rounds.store(sent, Ordering::Relaxed);
            }
            sent
        });
        // Packets of other hosts arrive as far as the socket has room, and so do datagrams of each kind.
        let burst = Burst::to(&b, 1, 32);
        let mut came = 0;
        let is_counted = |dropped: &[(&str, u64)]| {
            kinds.iter().all(|(reason, _)| dropped.iter().any(|(name, _)| name == reason))
        };
        while came < 500 || !is_counted(&b.processes[0].dropped()) {
            a.processes[0].send(&burst);
            came += b.processes[0].receive();
            if rounds.load(Ordering::Relaxed) > MOST_ROUNDS {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        let sent = flood.join().unwrap();
        assert!(came >= 500, "{came} came beside {sent} rounds");
        sent
    });
    // Drains the rest of the flood from the socket.
    a.processes[0].send(&Burst::to(&b, 1, 32));
    while b.processes[0].receive() > 0 {}
    let dropped = b.processes[0].dropped();
    for (reason, _) in &kinds {
        let count = dropped.iter().find(|(name, _)| name == reason).map_or(0, |(_, count)| *count);
        let of = kinds.iter().filter(|(name, _)| name == reason).count() as u64;
        assert!((1..=of * u64::from(sent)).contains(&count), "{reason}: {count} of {sent}");
    }
    let named = |(name, _): &(&str, u64)| kinds.iter().any(|(reason, _)| reason == name);
    assert!(dropped.iter().all(named), "{dropped:?}");
    // The port's own counters change, and no other port's.
    let counted = |name: &str| dropped.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
    let rcv_errors = counted("rx_icrc") + counted("rx_malformed") + counted("rx_version");
    for ((n, port), before) in ports().zip(before) {
        let expected = if n == own { [before[0] + rcv_errors, 0, 0, 0] } else { before };
        assert_eq!(errors(n, port), expected, "{} port {port}", shown.nodes[n].id);
    }
    let facts = b.attachment.refresh().unwrap().port;
    let violations = u16::try_from(counted("rx_pkey")).unwrap_or(u16::MAX);
    assert_eq!((facts.pkey_violations, facts.qkey_violations), (violations, 0));
    assert_eq!(a.processes[0].dropped(), []);
    assert_eq!(other.processes[0].dropped(), []);
    assert_eq!(admin::status(&fabric.options, &fabric.name).unwrap().attached.len(), 3);
}
