//! Rings whose other end is not a device.

mod lab;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use lab::{Lab, Node, caps};
use rdmux_link::Producer;
use rdmux_link::ring::DEFAULT_CAPACITY;
use rdmux_testing::qp::{connected_to, steps};
use rdmux_verbs::Pd;
use rdmux_verbs::control::{Control, ControlEvent, RingPeer};
use rdmux_verbs::counters::Counter;
use rdmux_verbs::transport::attr::{QpAttr, QpCaps, QpState, QpType};
use rdmux_verbs::transport::wr::{Completion, SendOp, WcStatus};

/// Returns the offset of a record in the file of a ring that has not wrapped.
fn offset(position: u64) -> u64 {
    4096 + position
}

#[test]
fn records_before_ring_corruption_are_counted() {
    const RECORDS: u64 = 5;
    let lab = Lab::new(true);
    let (victim, counts) = lab.process("127.77.207.1");
    let (_device, peer) = lab.process("127.77.207.1");
    let slot = counts.info().slot.slot;
    let (_, end) = peer.connect_ring(RingPeer::here(slot)).unwrap().unwrap();
    victim.sync_control();
    let mut tx = Producer::map(&end.tx).unwrap();
    (0..RECORDS).for_each(|_| tx.try_push(0, [0; 16], &[b"of no kind"]).unwrap());
    // The next record claims to be longer than any can be.
    let state = (1_u64 << 63 | u64::from(u32::MAX)).to_ne_bytes();
    File::from(end.tx).write_at(&state, offset(tx.position())).unwrap();
    end.bell.ring().unwrap();
    while counts.count(Counter::RingCorrupt) == 0 {
        victim.progress();
        std::thread::yield_now();
    }
    // The round that found it has ended.
    victim.drain();
    assert_eq!(counts.count(Counter::RingRxPackets), RECORDS);
    assert_eq!(counts.count(Counter::RingRxBytes), RECORDS * 10);
}

/// The end of a process is reported only once: a ring that was opened after that would be found by a connection to the next
/// process with the slot.
#[test]
fn process_that_exits_while_its_ring_is_opened_gets_no_ring() {
    let lab = Lab::new(true);
    let [node, peer] = [(); 2].map(|()| Node::new(&lab, "127.77.207.2", QpType::Rc, 64));
    let (device, control) = (node.device.clone(), node.control.clone());
    let (slot, peer_control) = (peer.control_slot(), peer.control.clone());
    node.control.at_rings(move |_| {
        peer_control.leave();
        control.tell(ControlEvent::PeerGone { slot });
        device.sync_control();
    });
    node.connect(&peer);
    assert!(!node.qp.is_same_host(), "there is no ring to it");
}

/// The process sends more messages before its death than the rounds up to the event of its death take.
#[test]
fn messages_sent_before_the_exit_of_a_process_are_received() {
    const SENDS: u32 = 5_000;
    let lab = Lab::new(true);
    let [from, to] = ["127.77.207.3"; 2].map(|ip| {
        let (device, control) = lab.driven_process(ip);
        let pd = Pd::new(&device);
        let caps = QpCaps { max_send_wr: SENDS, max_recv_wr: SENDS, ..caps() };
        Node::with_caps((device, control), &pd, (QpType::Rc, caps), 64, None)
    });
    from.connect(&to);
    to.connect(&from);
    (0..u64::from(SENDS)).for_each(|n| to.recv(n, 0, 8));
    (0..u64::from(SENDS)).for_each(|n| from.send(n, SendOp::Send, 0, 8));
    from.device.drain();
    assert_eq!(from.control.count(Counter::RingTxPackets), u64::from(SENDS));
    from.control.leave();
    to.control.tell(ControlEvent::PeerGone { slot: from.control_slot() });
    to.device.drive();
    let mut came = vec![Completion::EMPTY; SENDS as usize];
    assert_eq!(to.cq.poll(&mut came), came.len());
    let received = came.iter().filter(|done| done.status == WcStatus::Success).count();
    assert_eq!(received, came.len());
}

/// No thread empties the ring any more, so packets that find it full are lost.
#[test]
fn uc_sends_complete_after_the_exit_of_the_peers_process() {
    const LEN: usize = 16 << 10;
    const SENDS: usize = 2 * DEFAULT_CAPACITY / LEN;
    let lab = Lab::new(true);
    let [from, to] = ["127.77.207.5"; 2].map(|ip| {
        let (device, control) = lab.driven_process(ip);
        let pd = Pd::new(&device);
        let caps = QpCaps { max_send_wr: 1000, ..caps() };
        Node::with_caps((device, control), &pd, (QpType::Uc, caps), LEN, None)
    });
    from.connect(&to);
    assert!(from.qp.is_same_host());
    let mut done = vec![Completion::EMPTY; 2 * SENDS];
    (0..SENDS as u64).for_each(|n| from.send(n, SendOp::Send, 0, LEN));
    from.device.drain();
    let before = from.cq.poll(&mut done);
    assert!(before < SENDS, "the ring is full");
    to.control.leave();
    from.control.tell(ControlEvent::PeerGone { slot: to.control_slot() });
    from.device.drive();
    (0..SENDS as u64).for_each(|n| from.send(n, SendOp::Send, 0, LEN));
    from.device.drain();
    assert_eq!(before + from.cq.poll(&mut done[before..]), 2 * SENDS);
    assert!(done.iter().all(|done| done.status == WcStatus::Success));
    assert_eq!(from.qp.state(), QpState::Rts);
}

/// The peer has opened its end, and would send by the ring what this process expects by the network.
#[test]
fn modify_to_rtr_fails_with_eacces_if_ring_cannot_be_mapped_and_can_be_retried() {
    let lab = Lab::new(true);
    let [node, peer] = [(); 2].map(|()| Node::new(&lab, "127.77.207.4", QpType::Rc, 64));
    node.control.at_rings(|end| {
        // Opened like this, it can be mapped only for reading.
        let path = format!("/proc/self/fd/{}", end.tx.as_raw_fd());
        end.tx = File::open(path).unwrap().into();
    });
    let attr = connected_to(peer.gid(), peer.qp.qpn(), &node.qp.query());
    let modify = |last| {
        let (state, mask) = steps(QpType::Rc, last).last().unwrap();
        node.qp.modify(&QpAttr { state, ..attr }, mask)
    };
    modify(QpState::Init).unwrap();
    let refused = modify(QpState::Rtr).unwrap_err();
    assert_eq!(refused.errno(), libc::EACCES, "{refused}");
    assert_eq!(node.qp.state(), QpState::Init);
    modify(QpState::Rtr).unwrap();
    assert!(node.qp.is_same_host());
}
