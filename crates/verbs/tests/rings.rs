//! Rings whose other end is no device.

mod lab;

use std::fs::File;
use std::os::unix::fs::FileExt;

use lab::Lab;
use rdmux_link::Producer;
use rdmux_verbs::control::{Control, RingPeer};
use rdmux_verbs::counters::Counter;

/// Where a record is in the file behind a ring that has not wrapped.
fn offset(position: u64) -> u64 {
    4096 + position
}

#[test]
fn what_a_ring_took_before_its_peer_broke_it_is_counted() {
    const RECORDS: u64 = 5;
    let lab = Lab::new(true);
    let (victim, counts) = lab.process("127.77.207.1");
    let (_device, peer) = lab.process("127.77.207.1");
    let slot = counts.info().slot.slot;
    let (_, end) = peer.connect_ring(RingPeer::here(slot)).unwrap().unwrap();
    victim.sync_control();
    let mut tx = Producer::map(&end.tx).unwrap();
    (0..RECORDS).for_each(|_| tx.try_push(0, [0; 16], &[b"of no kind"]).unwrap());
    // The next one is longer than any.
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
