//! A shared-memory ring whose other side is hostile.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use rdmux_link::ring::{self, Consumer, MIN_CAPACITY, Producer, RingPair};

/// The size of the page with positions and flags, before the data.
const HEADER: usize = 4096;

/// Overwrites data or positions, as the other side can, while a consumer and a producer use the ring.
pub fn ring(data: &[u8]) {
    run(data);
}

/// Runs the target. Returns how many records with bytes the consumer got.
fn run(data: &[u8]) -> usize {
    let Some((&kind, data)) = data.split_first() else { return 0 };
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
    let mut popped = 0;
    for _ in 0..MIN_CAPACITY / 64 {
        let Ok(Some(record)) = consumer.pop() else { break };
        let n = record.copy(usize::from(kind), &mut to);
        assert!(n <= to.len() && n <= record.len());
        popped += usize::from(!record.is_empty());
    }
    for len in [0, 1, 100, 1000] {
        let meta = [kind; 16];
        let _ = producer.try_push(kind, meta, &[&to[..100], &vec![0; len]]);
        let _ = producer.prepare_wait();
        let _ = producer.is_drained();
    }
    popped
}

/// Returns the data of rings that a producer has filled, behind a byte that writes them to their start.
///
/// # Errors
/// When no ring can be created.
pub fn rings() -> Result<Vec<Vec<u8>>> {
    let seed = |data: Vec<u8>| [&[0], data.as_slice()].concat();
    let mut all = Vec::new();
    for lengths in [&[1][..], &[100; 8], &[1000, 0, 40, 41, 500]] {
        all.push(seed(Filled::new(lengths)?.data()?));
    }
    all.push(seed(wrapped()?));
    Ok(all)
}

/// Returns the data of a ring whose records end at a marker: the consumer goes on at the start.
fn wrapped() -> Result<Vec<u8>> {
    let mut ring = Filled::new(&[900; 4])?;
    let mut data = ring.data()?;
    let end = usize::try_from(ring.producer.position())?;
    let mut consumer = Consumer::map(&ring.file)?;
    while consumer.pop().context("a valid ring")?.is_some() {}
    // This record does not fit before the end.
    ring.push(1000)?;
    data[end..].copy_from_slice(&ring.data()?[end..]);
    Ok(data)
}

/// A ring with its producer.
struct Filled {
    file: File,
    producer: Producer,
}

impl Filled {
    /// Creates a ring with records of these lengths.
    fn new(lengths: &[usize]) -> Result<Self> {
        let fd = ring::create(MIN_CAPACITY)?;
        let producer = Producer::map(&fd)?;
        let mut ring = Self { file: File::from(fd), producer };
        for &len in lengths {
            ring.push(len)?;
        }
        Ok(ring)
    }

    fn push(&mut self, len: usize) -> Result<()> {
        Ok(self.producer.try_push(3, [7; 16], &[&vec![0x5a; len]])?)
    }

    fn data(&self) -> Result<Vec<u8>> {
        let mut data = vec![0; MIN_CAPACITY];
        self.file.read_exact_at(&mut data, HEADER as u64)?;
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn consumer_gets_records_of_every_seed() {
        let seeds = super::rings().expect("rings");
        let popped: Vec<usize> = seeds.iter().map(|seed| super::run(seed)).collect();
        assert!(popped.iter().all(|n| *n > 0), "{popped:?}");
        // Behind the marker of the last ring, its four records follow again.
        assert!(popped.last().is_some_and(|n| *n > 4), "{popped:?}");
    }
}
