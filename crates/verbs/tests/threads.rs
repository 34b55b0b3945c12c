//! Many threads on many queue pairs at once: every message arrives once, in order, whichever thread polls.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

mod lab;

use std::sync::atomic::{AtomicUsize, Ordering};

use lab::{Lab, Node};
use rdmux_verbs::transport::attr::QpType;
use rdmux_verbs::transport::wr::{Completion, SendOp, WcOpcode, WcStatus};

const PAIRS: usize = 4;
const MESSAGES: u64 = 2000;
const CREDITS: u64 = 16;

/// Each node is used by one thread; its memory is its own.
struct Shared(Node);
// SAFETY: the raw pointer in a node is to memory that it owns; each node is used by one thread.
unsafe impl Send for Shared {}

fn exchange(same_host: bool) {
    let lab = Lab::new(same_host);
    let ips = ["127.77.203.1", if same_host { "127.77.203.1" } else { "127.77.203.2" }];
    let processes = ips.map(|ip| lab.process(ip));
    let node = |which: usize| {
        let (device, control) = processes[which].clone();
        let pd = rdmux_verbs::Pd::new(&device);
        Node::on(device, control, pd, QpType::Rc, 4096, None)
    };
    let running = AtomicUsize::new(2 * PAIRS);
    std::thread::scope(|scope| {
        for _ in 0..PAIRS {
            let (a, b) = (node(0), node(1));
            a.connect(&b);
            b.connect(&a);
            for side in [Shared(a), Shared(b)] {
                let running = &running;
                scope.spawn(move || {
                    let shared = side;
                    both_ways(&shared.0);
                    running.fetch_sub(1, Ordering::AcqRel);
                    // A peer may still wait for the last acknowledgement.
                    while running.load(Ordering::Acquire) != 0 {
                        shared.0.device.progress();
                        std::thread::yield_now();
                    }
                });
            }
        }
    });
}

/// Sends numbers and checks that the peer's arrive in order.
fn both_ways(node: &Node) {
    let (mut sent, mut done, mut received) = (0, 0, 0);
    let slot = |i: u64| (i % CREDITS) as usize * 8;
    (0..CREDITS).for_each(|i| node.recv(i, slot(i), 8));
    let mut out = [Completion::EMPTY; 8];
    while done < MESSAGES || received < MESSAGES {
        while sent < MESSAGES && sent - done < CREDITS {
            node.write(2048 + slot(sent), &sent.to_ne_bytes());
            node.send(sent, SendOp::Send, 2048 + slot(sent), 8);
            sent += 1;
        }
        let n = node.cq.poll(&mut out);
        if n == 0 {
            std::thread::yield_now();
        }
        for completion in &out[..n] {
            assert_eq!(completion.status, WcStatus::Success);
            if completion.opcode == WcOpcode::Recv {
                assert_eq!(completion.wr_id, received);
                assert_eq!(node.read(slot(received), 8), received.to_ne_bytes());
                node.recv(received + CREDITS, slot(received), 8);
                received += 1;
            } else {
                assert_eq!(completion.wr_id, done);
                done += 1;
            }
        }
    }
}

#[test]
fn threads_exchange_messages_over_the_network() {
    exchange(false);
}

#[test]
fn threads_exchange_messages_over_rings() {
    exchange(true);
}
