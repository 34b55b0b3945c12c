//! The shared-memory ring: against a model, between sleeping threads, and against hostile peers.
#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes")]

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use rdmux_link::ring::{
    Broken, MAX_RECORD, Meta, PACKET, Ring, RingError, RingFds, RingPath, SHORT,
};
use rdmux_link::wire::{Flushed, Frame, Payload, Wire};
use rdmux_link::{Consumer, PeerBell, Producer, RingPair, SharedMem};
use rdmux_wire::Psn;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Creates a ring, with both ends and the descriptor of its memory.
fn ring(capacity: usize) -> (Producer, Consumer, OwnedFd) {
    let (a, b) = RingPair::create(capacity).unwrap();
    (Producer::map(&a.tx).unwrap(), Consumer::map(&b.rx).unwrap(), a.tx)
}

fn pop(rx: &mut Consumer) -> Option<(u8, [u8; 16], Vec<u8>)> {
    let record = rx.pop().unwrap()?;
    let mut bytes = vec![0; record.len()];
    assert_eq!(record.copy(0, &mut bytes), bytes.len());
    Some((record.kind(), record.meta(), bytes))
}

#[derive(Clone, Debug)]
enum Op {
    Push(u8, usize),
    Short(u8, usize),
    Pop,
}

proptest! {
    #[test]
    fn ring_behaves_as_a_fifo_queue(ops in prop::collection::vec(
        prop_oneof![
            (any::<u8>(), 0usize..1100).prop_map(|(k, n)| Op::Push(k, n)),
            (any::<u8>(), 0..=SHORT).prop_map(|(k, n)| Op::Short(k, n)),
            Just(Op::Pop),
        ],
        1..400,
    )) {
        let (mut tx, mut rx, _) = ring(4096);
        let mut model = VecDeque::new();
        let mut serial = 0u8;
        for op in ops {
            match op {
                Op::Push(kind, len) => {
                    serial = serial.wrapping_add(1);
                    let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(serial)).collect();
                    let (a, b) = bytes.split_at(len / 3);
                    match tx.try_push(kind, [serial; 16], &[a, b]) {
                        Ok(()) => model.push_back((kind, [serial; 16], bytes)),
                        Err(RingError::Full) => prop_assert!(!model.is_empty()),
                        Err(RingError::TooLarge { max, .. }) => prop_assert!(len > max),
                        Err(RingError::Broken(_)) => prop_assert!(false, "broken"),
                    }
                }
                Op::Short(kind, len) => {
                    serial = serial.wrapping_add(1);
                    let bytes: [u8; SHORT] =
                        std::array::from_fn(|i| (i as u8).wrapping_mul(serial) ^ 0x55);
                    // `push_short` does not read the consumer's position itself.
                    prop_assert_eq!(tx.is_drained(), Ok(model.is_empty()));
                    if tx.push_short(kind, [serial; 16], &bytes, len) {
                        model.push_back((kind, [serial; 16], bytes[..len].to_vec()));
                    } else {
                        // Full, or at the end of the ring, where only the longer ones do not fit.
                        let one_line = len <= SHORT - 64;
                        prop_assert!(!one_line || !model.is_empty());
                    }
                }
                Op::Pop => prop_assert_eq!(pop(&mut rx), model.pop_front()),
            }
        }
        while let Some(expected) = model.pop_front() {
            prop_assert_eq!(pop(&mut rx), Some(expected));
        }
        prop_assert!(rx.is_empty());
        prop_assert!(tx.is_drained().unwrap());
    }

    /// Whatever a peer writes anywhere: no panic, and no record longer than the maximum.
    #[test]
    fn random_peer_writes_break_only_the_ring(
        scribbles in prop::collection::vec((0usize..(4096 + 4096) / 8, any::<u64>(), any::<bool>()), 1..60),
        sizes in prop::collection::vec(0usize..1000, 1..60),
    ) {
        let (mut tx, mut rx, fd) = ring(4096);
        let memory = SharedMem::map(fd, (4096 + 4096) / 8).unwrap();
        let mut buffer = vec![0; MAX_RECORD];
        for ((at, value, plausible), size) in scribbles.into_iter().zip(sizes.into_iter().cycle()) {
            let _ = tx.try_push(1, [0; 16], &[&buffer[..size]]);
            // Plausible: a state word with a random length, at the start of a line.
            let (at, value) = if plausible {
                (512 + at % 512 / 8 * 8, 1 << 63 | (value & 3) << 61 | value & 0xfff)
            } else {
                (at, value)
            };
            memory.words()[at].store(value, Ordering::Relaxed);
            for _ in 0..3 {
                match rx.pop() {
                    Ok(Some(record)) => {
                        prop_assert!(record.len() <= 1024);
                        record.copy(0, &mut buffer);
                    }
                    Ok(None) => break,
                    Err(Broken) => break,
                }
            }
            let _ = tx.prepare_wait();
            let _ = tx.consumer_sleeps();
            let _ = rx.prepare_sleep();
        }
    }
}

#[test]
fn invalid_consumer_position_breaks_the_ring() {
    for lie in [64, 4096 * 3, u64::MAX] {
        let (mut tx, _, fd) = ring(4096);
        let memory = SharedMem::map(fd, 512).unwrap();
        memory.words()[8].store(lie, Ordering::Relaxed);
        assert_eq!(tx.is_drained(), Err(Broken));
        assert_eq!(tx.try_push(0, [0; 16], &[]), Err(RingError::Broken(Broken)));
    }
    // Backwards.
    let (mut tx, mut rx, fd) = ring(4096);
    let memory = SharedMem::map(fd, 512).unwrap();
    tx.try_push(0, [0; 16], &[]).unwrap();
    assert!(pop(&mut rx).is_some());
    assert!(tx.is_drained().unwrap());
    memory.words()[8].store(0, Ordering::Relaxed);
    assert_eq!(tx.is_drained(), Err(Broken));
}

#[test]
fn mapping_memory_that_is_no_sealed_ring_is_refused() {
    let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    Producer::map(&file).unwrap_err();
    let small = SharedMem::create("small", 8).unwrap();
    Consumer::map(small.duplicate().unwrap()).unwrap_err();
    let zeros = SharedMem::create("zeros", 4096).unwrap();
    Consumer::map(zeros.duplicate().unwrap()).unwrap_err();
    // A header that claims more than there is.
    let (_, _, fd) = ring(4096);
    let memory = SharedMem::map(fd.try_clone().unwrap(), 2).unwrap();
    for claim in [8192, 1 << 40, 4097, 0] {
        memory.words()[1].store(claim, Ordering::Relaxed);
        Consumer::map(&fd).unwrap_err();
    }
    // Not sealed: it could shrink while mapped.
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 65_536).unwrap();
    SharedMem::map(open, 8).unwrap_err();
    // A ring's memory cannot.
    rustix::fs::ftruncate(&fd, 0).unwrap_err();
}

#[test]
fn largest_record_is_accepted_and_one_byte_more_is_too_large() {
    let (mut tx, mut rx, _) = ring(1 << 20);
    assert_eq!(tx.max_record(), MAX_RECORD);
    let bytes = vec![3; MAX_RECORD];
    for _ in 0..40 {
        tx.try_push(2, [1; 16], &[&bytes]).unwrap();
        assert_eq!(pop(&mut rx).unwrap().2, bytes);
    }
    assert!(matches!(tx.try_push(2, [1; 16], &[&bytes, &[0]]), Err(RingError::TooLarge { .. })));
}

/// One process's side of a wire.
struct End {
    wire: Ring,
    tx: Producer,
    rx: Consumer,
}

impl End {
    fn open(fds: RingFds, bell: PeerBell) -> Self {
        let (wire, tx, rx) = fds.open(bell).unwrap();
        Self { wire, tx, rx }
    }

    fn wake_peer(&mut self) {
        if self.tx.consumer_sleeps() | self.rx.producer_waits() {
            assert!(self.wire.wake());
        }
    }

    fn bell(&self) -> &PeerBell {
        self.wire.bell().unwrap()
    }
}

/// Both ends sleep whenever they can. A lost wakeup hangs this test.
fn exchange(capacity: usize, count: u32, size: impl Fn(u32) -> usize + Sync) {
    let (a, b) = RingPair::create(capacity).unwrap();
    let (bell_a, bell_b) = PeerBell::pair().unwrap();
    let (mut a, mut b) = (End::open(a, bell_a), End::open(b, bell_b));
    let size = &size;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for i in 0..count {
                let bytes = vec![i as u8; size(i)];
                loop {
                    match a.tx.reserve_or_wait(4 + bytes.len()) {
                        Ok(mut record) => {
                            record.put(&i.to_ne_bytes());
                            record.put(&bytes);
                            record.publish(0, [0; 16]);
                            break;
                        }
                        Err(RingError::Full) => {
                            a.wake_peer();
                            a.bell().wait(None).unwrap();
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
                a.wake_peer();
            }
        });
        scope.spawn(move || {
            let mut expected = 0;
            while expected < count {
                while let Some((_, _, bytes)) = pop(&mut b.rx) {
                    assert_eq!(bytes[..4], expected.to_ne_bytes());
                    assert_eq!(bytes.len(), 4 + size(expected));
                    assert!(bytes[4..].iter().all(|byte| *byte == expected as u8));
                    expected += 1;
                }
                b.wake_peer();
                if expected < count && b.wire.arm(&b.rx) {
                    b.bell().wait(None).unwrap();
                    b.wire.disarm(&b.rx);
                }
            }
        });
    });
}

#[test]
fn no_wakeup_is_lost() {
    exchange(4096, 100_000, |_| 20);
    exchange(4096, 30_000, |i| (i as usize * 37) % 900);
    exchange(1 << 20, 2_000, |i| (i as usize * 7919) % 65_000);
}

/// Makes the kernel refuse membarrier(2) to this thread, as to a process that enters a sandbox.
fn forbid_membarrier() {
    let rules = [(libc::SYS_membarrier, Vec::new())].into_iter().collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

#[test]
fn consumer_without_membarrier_sleeps_once_the_producer_fences() {
    let (mut tx, rx, fd) = ring(4096);
    let memory = SharedMem::map(fd, (4096 + 4096) / 8).unwrap();
    // The consumer's capability in the header.
    let heavy = || memory.words()[136 / 8].load(Ordering::Acquire);
    if heavy() == 0 {
        println!("no membarrier(2) here: not run");
        return;
    }
    let forbidden = std::thread::spawn(move || {
        forbid_membarrier();
        // The producer may have checked before it receives the request.
        assert!(!rx.prepare_sleep());
        while !rx.prepare_sleep() {
            std::thread::yield_now();
        }
        rx
    });
    let mut rx = forbidden.join().unwrap();
    assert_eq!(heavy(), 0);
    tx.try_push(0, [0; 16], &[]).unwrap();
    assert!(tx.consumer_sleeps());
    assert!(pop(&mut rx).is_some());
}

#[test]
fn packet_is_one_ring_record_and_flush_wakes_once() {
    let (a, b) = RingPair::create(1 << 20).unwrap();
    let (near, far) = PeerBell::pair().unwrap();
    let (mut a, mut b) = (End::open(a, near), End::open(b, far));
    let caps = a.wire.caps();
    assert!(caps.lossless && caps.piggybacks_acks && caps.max_payload >= 32_768);
    assert!(b.wire.arm(&b.rx));
    let header = [1, 0, 0, 0, 0xaa, 0, 0x12, 0x34, 0, 0, 0, 0];
    let ack = Some(Psn::new(7));
    let path = RingPath { port: 2, near: 3, far: 4 };
    let frame = Frame { header: &header, payload: Payload::Bytes(&[2; 5]), pad: 3, ack };
    assert!(b.wire.receive(&mut b.rx).unwrap().is_none());
    a.wire.send(&mut a.tx, &path, &frame).unwrap();
    assert!(!b.bell().clear().unwrap(), "woken at the flush");
    assert_eq!(a.wire.flush(&mut a.tx).unwrap(), Flushed::default());
    assert!(b.bell().clear().unwrap());
    a.wire.flush(&mut a.tx).unwrap();
    assert!(!b.bell().clear().unwrap(), "woken once");
    assert!(!b.wire.arm(&b.rx), "a record waits");
    let head = b.wire.receive(&mut b.rx).unwrap().unwrap();
    let record = b.rx.take(head);
    assert_eq!((record.kind(), record.len()), (PACKET, frame.len()));
    let meta = Meta { header: 12, pad: 3, dest_qpn: 0x1234, ack, path };
    assert_eq!(Meta::parse(record.meta()), meta);
    let mut tail = [0xff; 10];
    assert_eq!(record.copy(12, &mut tail), 8);
    assert_eq!(tail, [2, 2, 2, 2, 2, 0, 0, 0, 0xff, 0xff]);
}
