//! The cost of the engine itself: two queue pairs in one thread, with the cheapest possible memory and wire.
//!
//! `cargo bench -p rdmux-transport`
#![expect(clippy::unwrap_used, reason = "a benchmark")]

mod pair;

use std::time::Instant;

use rdmux_transport::Time;
use rdmux_transport::wr::{RecvWr, SendData, SendOp, SendWr, Sge};
use rdmux_wire::{Lkey, Rkey};

use pair::{connect, deliver};

const MESSAGES: u64 = 2_000_000;

/// Sends messages that consume a receive each, `burst` at a time, and then one ACK.
fn run(name: &str, op: SendOp, data: SendData<'_>, burst: u64) {
    let (mut a, mut ea) = connect(1, 2);
    let (mut b, mut eb) = connect(2, 1);
    let sges = [Sge { addr: 8192, length: 8192, lkey: Lkey(1) }];
    let start = Instant::now();
    for round in 0..MESSAGES / burst {
        for i in 0..burst {
            if op == SendOp::Send {
                b.post_recv(&RecvWr { wr_id: i, sges: &sges }).unwrap();
            }
            let wr = SendWr::new(i, op, data);
            a.post_send(Time(round), &wr).unwrap();
        }
        a.poll_transmit(Time(round), 64, &mut ea);
        deliver(&mut ea, 1, &mut b, &mut eb);
        b.flush_ack(Time(round), &mut eb);
        deliver(&mut eb, 2, &mut a, &mut ea);
    }
    let each = start.elapsed().as_secs_f64() * 1e9 / MESSAGES as f64;
    assert!(ea.completions == MESSAGES / burst * burst);
    println!("{name:<36} {burst:>3} at a time {each:>8.1} ns each, both sides");
}

fn main() {
    let bytes = [1; 64];
    let parts: [&[u8]; 1] = [&bytes];
    let small = [Sge { addr: 0, length: 64, lkey: Lkey(1) }];
    let page = [Sge { addr: 0, length: 4096, lkey: Lkey(1) }];
    let write = SendOp::Write { remote_addr: 8192, rkey: Rkey(1) };
    for burst in [1, 16] {
        run("SEND 64 B inline", SendOp::Send, SendData::Inline(&parts), burst);
        run("SEND 64 B gathered", SendOp::Send, SendData::Sges(&small), burst);
        run("WRITE 64 B gathered", write, SendData::Sges(&small), burst);
        run("WRITE 4096 B gathered", write, SendData::Sges(&page), burst);
    }
}
