//! A shared-memory ring whose other side is hostile.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rdmux_link::ring::{Consumer, MIN_CAPACITY, Producer, RingPair};

/// The size of the page with positions and flags, before the data.
const HEADER: usize = 4096;

/// Overwrites data or positions, as the other side can, while a consumer and a producer use the ring.
pub fn ring(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else { return };
    let (ours, theirs) = RingPair::create(MIN_CAPACITY).expect("a ring");
    let mut consumer = Consumer::map(&ours.rx).expect("just made");
    let mut producer = Producer::map(&ours.tx).expect("just made");
    let written = File::from(theirs.tx);
    let read = File::from(theirs.rx);
    // The other side can write the positions after magic and capacity, and all data.
    let first = usize::from(kind & 0x3f);
    for (file, at) in [(&written, HEADER + first), (&read, 64 + first)] {
        let room = HEADER + MIN_CAPACITY - at;
        let some = &data[..data.len().min(room)];
        file.write_all_at(some, at as u64).expect("inside the memfd");
    }
    let mut to = [0; 256];
    for _ in 0..MIN_CAPACITY / 64 {
        let Ok(Some(record)) = consumer.pop() else { break };
        let n = record.copy(usize::from(kind), &mut to);
        assert!(n <= to.len() && n <= record.len());
    }
    for len in [0, 1, 100, 1000] {
        let meta = [kind; 16];
        let _ = producer.try_push(kind, meta, &[&to[..100], &vec![0; len]]);
        let _ = producer.prepare_wait();
        let _ = producer.is_drained();
    }
}
