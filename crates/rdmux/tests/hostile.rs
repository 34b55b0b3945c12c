//! A hostile peer on the same host: it overwrites any part of the memory that the two share, puts impossible records
//! into its ring, publishes false state, stops in the middle of a copy, or is killed in one. Its connections fail, in
//! any way, and take no longer to fail than others do. The process at the other end survives and gets its memory back
//! when it deregisters it, and its other connections carry the right bytes.
//!
//! Random choices come from a seed, which a failure prints.

mod processes;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use processes::{ALL, End, LONG, Peer, ROLE, bytes, hex, in_a_process, pattern, stop, sum};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rdmux::{Endpoint, Mr, Qpn, RemoteMr, Rkey, SendWr, WcStatus};
use rdmux_host::{Config, ConnectOptions, HostName, RuntimeDir};
use rdmux_link::board::{QpRow, RegionRow};
use rdmux_link::ring::RingError;
use rdmux_link::{PeerBell, Producer};
use rdmux_verbs::control::{Control, DeviceKind, RingEnd, RingPeer, slot_of};
use rustix::fs::OFlags;
use rustix::net::{SendFlags, Shutdown};

/// Not a test, but the entry point of the other tests' processes.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("peer") => return processes::be_peer(attack),
        Ok("forger") => return be_forger(),
        Ok("scribbled") => scribbled(),
        Ok("flooded") => flooded(),
        Ok("forged") => forged(),
        Ok("deceived") => deceived(),
        Ok("stalled") => stalled(),
        Ok("killed") => killed(),
        Ok("rung") => rung(),
        Err(_) => return,
        Ok(other) => panic!("{other}"),
    }
    println!("SAYS done");
}

/// A connection to an honest peer, which must work throughout.
struct Honest {
    end: End,
    peer: Peer,
    far: RemoteMr,
    near: Mr,
    round: u8,
}

impl Honest {
    const LEN: usize = 300_000;

    /// Connects an honest peer to the device that the hostile peer is connected to.
    fn beside(end: &End) -> Self {
        let end = End::on(end.context.clone());
        let mut peer = Peer::start(&end, "on", ALL);
        let far = peer.region("region", Self::LEN, ALL);
        let near = end.pd.alloc(Self::LEN, ALL).unwrap();
        let mut honest = Self { end, peer, far, near, round: 0 };
        honest.check();
        honest
    }

    /// Checks all operations, short and long, with copies in both directions.
    fn check(&mut self) {
        for len in [8, 5000, Self::LEN] {
            self.round = self.round.wrapping_add(1);
            let (round, far) = (self.round, self.far.slice(0..len as u64));
            self.near.write(0, &pattern(len, round));
            let near = [self.near.slice(..len)];
            self.end.qp.post_send(&SendWr::write(1, far).sges(&near).signaled()).unwrap();
            self.end.done(1, WcStatus::Success);
            let expected = sum(&pattern(len, round)).to_string();
            assert_eq!(self.peer.ask(&format!("sum 0 {len}")), expected, "WRITE of {len}");
            self.near.write(0, &vec![0; len]);
            self.end.qp.post_send(&SendWr::read(2, far).sges(&near).signaled()).unwrap();
            self.end.done(2, WcStatus::Success);
            assert!(self.near.to_vec(..len) == pattern(len, round), "READ of {len}");
            self.near.write(0, &pattern(len, !round));
            self.peer.ask(&format!("recv 0 {}", Self::LEN));
            self.end.qp.post_send(&SendWr::send(3).sges(&near).signaled()).unwrap();
            assert_eq!(self.peer.ask("wait"), format!("Success {len}"));
            let expected = sum(&pattern(len, !round)).to_string();
            assert_eq!(self.peer.ask(&format!("sum 0 {len}")), expected, "SEND of {len}");
            self.end.done(3, WcStatus::Success);
        }
    }
}

/// Handles the commands of a hostile peer that ordinary peers do not have.
fn attack(end: &End, regions: &[Option<Mr>], words: &[&str]) -> String {
    match *words {
        ["scribble", name, seed, lines] => {
            let mut random = SmallRng::seed_from_u64(seed.parse().unwrap());
            scribble(name, &mut random, lines.parse().unwrap());
        }
        // From now on until it is killed.
        ["scribble", name, seed] => {
            let (name, seed) = (name.to_owned(), seed.parse().unwrap());
            std::thread::spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed);
                loop {
                    scribble(&name, &mut random, 1000);
                }
            });
        }
        ["flood", what, far] => flood(end, regions[0].as_ref().unwrap(), what, far),
        _ => panic!("{words:?}"),
    }
    String::new()
}

/// Overwrites that many lines of each named memory that this process shares, with anything, except for its line of
/// identity, by which other processes recognize it.
fn scribble(name: &str, random: &mut SmallRng, lines: usize) {
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.contains(name)) {
        let (range, _) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        for _ in 0..lines {
            // Half of the writes hit the parts of rings and boards that both sides read most.
            let end = if random.random() { to } else { to.min(from + (16 << 10)) };
            let at = random.random_range(from / 64 + 1..end / 64) * 64;
            let words: [u64; 8] = std::array::from_fn(|_| match random.random_range(0..7) {
                0 => 0,
                1 => u64::MAX,
                2 => random.random_range(0..256),
                // Record states: with a possible length, or not; and the marker.
                3 => 1 << 63 | random.next_u64() & 0x3_0000_ffff,
                4 => 1 << 63 | random.next_u64() & 0x3_ffff_ffff,
                5 => 1 << 63 | 1 << 62,
                _ => random.next_u64(),
            });
            // Boards of other processes are mapped read-only.
            let _ = memory.write_at(&words.map(u64::to_ne_bytes).concat(), at);
        }
    }
}

/// Posts one long operation after the other until it is killed. Reports once the first ones are posted.
fn flood(end: &End, near: &Mr, what: &str, far: &str) {
    let far = RemoteMr::from_bytes(&bytes(far)).unwrap();
    let near = [near.slice(..)];
    for n in 0.. {
        let wr = match what {
            "write" => SendWr::write(1, far),
            "read" => SendWr::read(1, far),
            _ => SendWr::send(1),
        };
        end.qp.post_send(&wr.sges(&near).signaled()).unwrap();
        end.done(1, WcStatus::Success);
        if n == 2 {
            println!("SAYS going");
        }
    }
}

/// Posts one operation of each kind, and waits until each completes with any status. Returns whether all succeeded.
fn each(end: &End, near: &Mr, far: RemoteMr) -> bool {
    let near = [near.slice(..)];
    let mut all = true;
    for wr in [SendWr::write(1, far), SendWr::read(1, far), SendWr::send(1)] {
        end.qp.post_send(&wr.sges(&near).signaled()).unwrap();
        all &= end.next().status == WcStatus::Success;
    }
    all
}

/// The peer scribbles from time to time, with varying amounts.
fn scribbled() {
    let first = End::open();
    let mut honest = Honest::beside(&first);
    for (seed, what) in ["rdmux-ring", "rdmux-board", "rdmux-ring", "rdmux-"].iter().enumerate() {
        println!("seed {seed}");
        let end = End::on(first.context.clone());
        let mut peer = Peer::start(&end, "on", ALL);
        let far = peer.region("region", 100_000, ALL);
        let near = end.pd.alloc(100_000, ALL).unwrap();
        for round in 0..8 {
            peer.ask("recv 0 100000");
            peer.ask(&format!("scribble {what} {} {}", seed * 100 + round, 1 << round));
            if !each(&end, &near, far) {
                break;
            }
        }
        near.into_vec().unwrap();
        honest.check();
    }
}

/// The peer scribbles all the time.
fn flooded() {
    let first = End::open();
    let mut honest = Honest::beside(&first);
    for (seed, what) in ["rdmux-ring", "rdmux-board", "rdmux-"].iter().enumerate() {
        println!("seed {seed}");
        let end = End::on(first.context.clone());
        let mut peer = Peer::start(&end, "on", ALL);
        let far = peer.region("region", 100_000, ALL);
        let near = end.pd.alloc(100_000, ALL).unwrap();
        let each = |peer: &mut Peer| {
            peer.ask("recv 0 100000");
            each(&end, &near, far)
        };
        assert!(each(&mut peer));
        peer.ask(&format!("scribble {what} {seed}"));
        // Wherever it scribbles except on its own board, operations still complete through the ring.
        (0..20).take_while(|_| each(&mut peer)).for_each(drop);
        honest.check();
        near.into_vec().unwrap();
        drop(end);
        honest.check();
    }
}

/// Acts as a process that is connected to the service, but with the tests' code instead of a device behind its rings.
/// Its queue pair is only a number.
fn be_forger() {
    let dir = RuntimeDir::of_environment().unwrap();
    let options = ConnectOptions { dir, config: Config::default(), embedded: true, program: None };
    let name = HostName::new("default").unwrap();
    let client = options.connect(&name, DeviceKind::default()).unwrap();
    let slot = client.info().slot.slot;
    let gid = client.info().addresses()[0].gid;
    let own = Endpoint::new(gid, Qpn::new(u32::from(slot) << 12 | 5));
    println!("SAYS {}", hex(&own.to_bytes()));
    let mut line = String::new();
    let mut words = || {
        line.clear();
        std::io::stdin().read_line(&mut line).unwrap();
        line.trim().split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let connect = words();
    let victim = Endpoint::from_bytes(&bytes(&connect[1])).unwrap().qpn;
    println!("SAYS connected");
    let (peer, rings) = client.connect_ring(RingPeer::here(slot_of(victim))).unwrap().unwrap();
    let mut tx = Producer::map(&rings.tx).unwrap();
    let bell = &rings.bell;
    let board = client.board().unwrap();
    loop {
        let words = words();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        match words[0].as_str() {
            "records" => {
                let others = Qpn::new(u32::try_from(number(2)).unwrap());
                let mut random = SmallRng::seed_from_u64(number(1));
                for _ in 0..number(3) {
                    let (kind, meta, record) = record(&mut random, victim, others);
                    while tx.try_push(kind, meta, &[&record]) == Err(RingError::Full) {
                        bell.ring().unwrap();
                        std::thread::yield_now();
                    }
                }
                bell.ring().unwrap();
                while !tx.is_drained().unwrap() {
                    std::thread::yield_now();
                }
            }
            "row" => {
                board.add_slot(slot);
                let (qpn, dest_qpn, access) = (own.qpn.get(), victim.get(), ALL.bits());
                board.show_qp(&QpRow { qpn, dest_qpn, pd: 1, access, pkey: 0xffff });
                let (addr, length) = (number(2), number(3));
                let key = u32::try_from(number(1)).unwrap();
                board.show_region(&RegionRow { key, pd: 1, access, addr, length, iova: 0 });
            }
            "bell" => abuse(&rings.bell, &words[1]),
            "deaf" => deaf(&mut tx, &rings, victim, number(1)),
            "enter" => std::mem::forget(board.enter(peer).unwrap()),
            _ => return,
        }
        println!("SAYS it is done");
    }
}

/// Misuses its end of the bell in a way that may block, silence or flood the process at the other end.
fn abuse(bell: &PeerBell, how: &str) {
    match how {
        "block" => rustix::fs::fcntl_setfl(bell, OFlags::empty()).unwrap(),
        "fill" => (0..10_000).for_each(|_| bell.ring().unwrap()),
        "empty" => (0..10_000).for_each(|_| drop(bell.clear())),
        "nothing" => {
            rustix::net::send(bell, &[], SendFlags::DONTWAIT).unwrap();
        }
        "shut" => rustix::net::shutdown(bell, Shutdown::Both).unwrap(),
        _ => panic!("{how}"),
    }
}

/// Claims to sleep each time it sends a packet that is answered, and takes none of the wakeups.
fn deaf(tx: &mut Producer, rings: &RingEnd, victim: Qpn, times: u64) {
    /// The offset in a ring of the flag that its consumer sleeps.
    const SLEEPS: u64 = 128;
    let rx = File::from(rings.rx.try_clone().unwrap());
    // A duplicate SEND that requests an acknowledgement.
    let mut packet = [0; 12];
    packet[0] = 4;
    packet[2..4].copy_from_slice(&[0xff, 0xff]);
    packet[4..8].copy_from_slice(&victim.get().to_be_bytes());
    packet[8..12].copy_from_slice(&(1_u32 << 31 | 0xff_ffff).to_be_bytes());
    let mut meta = [0; 16];
    meta[0] = 12;
    meta[4..8].copy_from_slice(&victim.get().to_ne_bytes());
    let flag = || {
        let mut flag = [0; 8];
        rx.read_exact_at(&mut flag, SLEEPS).unwrap();
        u64::from_ne_bytes(flag)
    };
    for _ in 0..times {
        rx.write_all_at(&1_u64.to_ne_bytes(), SLEEPS).unwrap();
        tx.try_push(1, meta, &[&packet]).unwrap();
        rings.bell.ring().unwrap();
        while flag() != 0 {
            std::thread::yield_now();
        }
    }
}

/// Returns a record that no honest process writes: of any kind, or a packet with its payload or references to it, or an
/// acknowledgement. It is for a queue pair of the peer, of another process, or for none, of any opcode and length, with
/// numbers that are nearly right.
fn record(random: &mut SmallRng, victim: Qpn, others: Qpn) -> (u8, [u8; 16], Vec<u8>) {
    const PACKETS: [u8; 3] = [1, 9, 10];
    let mut meta = [0; 16];
    random.fill_bytes(&mut meta);
    let mut record =
        vec![0; [0, 3, 12, 20, 28, 36, 52, 300, 5000, 40_000][random.random_range(0..10)]];
    random.fill_bytes(&mut record);
    if random.random_ratio(1, 4) {
        return (random.random(), meta, record);
    }
    let named = match random.random_range(0..8) {
        0 => others,
        1 => Qpn::new(random.random_range(0..1 << 24)),
        _ => victim,
    };
    meta[0] = [0, 12, 16, 28, 40, 255][random.random_range(0..6)];
    meta[1] = random.random_range(0..5);
    meta[4..8].copy_from_slice(&named.get().to_ne_bytes());
    let ack = u32::from(random.random::<bool>()) << 31 | random.random_range(0..4);
    meta[8..12].copy_from_slice(&ack.to_ne_bytes());
    if record.len() >= 12 {
        // Opcodes mostly of RC, the version of the header, the default partition.
        record[0] =
            if random.random_ratio(7, 8) { random.random_range(0..0x18) } else { record[0] };
        record[1] &= 0xf0;
        record[2..4].copy_from_slice(&[0xff, 0xff]);
        record[4..8].copy_from_slice(&named.get().to_be_bytes());
        let psn: u32 = if random.random() { random.random_range(0..4) } else { 0xff_ffff };
        record[8..12]
            .copy_from_slice(&(u32::from(random.random::<bool>()) << 31 | psn).to_be_bytes());
    }
    (PACKETS[random.random_range(0..3)], meta, record)
}

/// Connects to a [forger](be_forger).
fn forger(end: &End) -> Peer {
    let mut command = processes::command("forger");
    Peer::start_by(&mut command, end, ALL)
}

fn forged() {
    let first = End::open();
    let mut honest = Honest::beside(&first);
    for seed in 0..6 {
        println!("seed {seed}");
        let end = End::on(first.context.clone());
        let mut peer = forger(&end);
        let near = end.pd.alloc(4096, ALL).unwrap();
        // A region that the forger may write to, with any contents.
        end.qp.post_recv(9, &[near.slice(..)]).unwrap();
        let others = honest.end.qp.qpn().get();
        peer.tell(&format!("records {seed} {others} 3000"));
        honest.check();
        peer.hear();
        honest.check();
        near.into_vec().unwrap();
    }
}

/// The peer names memory that it does not have, or not with these rights.
fn deceived() {
    let first = End::open();
    let mut honest = Honest::beside(&first);
    let key = 0x100;
    for (addr, length) in [(0, 4096), (1, u64::MAX), (1 << 63, 1 << 30), (u64::MAX - 4095, 4095)] {
        let end = End::on(first.context.clone());
        let mut peer = forger(&end);
        peer.ask(&format!("row {key} {addr} {length}"));
        let near = end.pd.alloc(4000, ALL).unwrap();
        let far = RemoteMr { rkey: Rkey(key), addr: 0, len: 4000 };
        end.qp.post_send(&SendWr::write(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
        end.done(1, WcStatus::RetryExcErr);
        near.into_vec().unwrap();
        honest.check();
    }
}

/// The peer announces a copy from or to this process's memory, and stops.
fn stalled() {
    let first = End::open();
    let mut honest = Honest::beside(&first);
    let end = End::on(first.context.clone());
    let mut peer = forger(&end);
    let near = vec![7; 4096];
    let bytes_at = near.as_ptr();
    let near = end.pd.register(near, ALL).unwrap();
    let (more, before) = (end.pd.alloc(1 << 20, ALL).unwrap(), end.pd.alloc(1 << 20, ALL).unwrap());
    let [more_at, before_at] = [&more, &before].map(Mr::addr);
    let is_there = |at| {
        let memory = File::open("/proc/self/mem").unwrap();
        memory.read_exact_at(&mut [0; 4096], at).is_ok()
    };
    drop(before);
    assert!(!is_there(before_at), "what nobody copies to is given back");
    peer.ask("enter");
    stop(&peer.child);
    std::thread::scope(|scope| {
        scope.spawn(|| honest.check());
        // The copy may change the memory forever, so it is not reused: the bytes are returned as a copy.
        let bytes = near.into_vec().unwrap();
        assert_eq!(bytes, [7; 4096]);
        assert_ne!(bytes.as_ptr(), bytes_at);
    });
    // The process is not waited for again, and the copy's results are ignored.
    drop(more);
    assert!(is_there(more_at));
    let far = RemoteMr { rkey: Rkey(0x100), addr: 0, len: 8 };
    end.qp.post_send(&SendWr::read(1, far).signaled()).unwrap();
    end.done(1, WcStatus::RetryExcErr);
    honest.check();
    // It does not delay the end of the connection either, nor later connections.
    drop(end);
    drop(peer);
    Honest::beside(&first);
}

/// The peer is killed in the middle of long operations of both sides.
fn killed() {
    let first = End::open();
    let mut honest = Honest::beside(&first);
    for what in ["write", "read", "send"] {
        into_the_dead(&first, what);
        honest.check();
        of_the_dead(&first, what);
        honest.check();
    }
}

/// Writes to, reads from and sends to the peer while it is killed.
fn into_the_dead(first: &End, what: &str) {
    let end = End::on(first.context.clone());
    let mut peer = Peer::start(&end, "on", ALL);
    let far = peer.region("region", LONG, ALL);
    let near = end.pd.alloc(LONG, ALL).unwrap();
    let part = [near.slice(..)];
    for _ in 0..20 {
        peer.ask(&format!("recv 0 {LONG}"));
    }
    let done = Arc::new(AtomicUsize::new(0));
    let seen = done.clone();
    let killer = std::thread::spawn(move || {
        while seen.load(Ordering::Acquire) < 3 {
            std::thread::yield_now();
        }
        peer.child.kill().unwrap();
        peer
    });
    loop {
        let wr = match what {
            "write" => SendWr::write(1, far),
            "read" => SendWr::read(1, far),
            _ => SendWr::send(1),
        };
        end.qp.post_send(&wr.sges(&part).signaled()).unwrap();
        if end.next().status != WcStatus::Success {
            break;
        }
        done.fetch_add(1, Ordering::Release);
    }
    drop(killer.join().unwrap());
    near.into_vec().unwrap();
}

/// The peer is killed while it writes to, reads from and sends to this process.
fn of_the_dead(first: &End, what: &str) {
    let end = End::on(first.context.clone());
    let mut peer = Peer::start(&end, "on", ALL);
    peer.region("region", LONG, ALL);
    let near = end.pd.alloc(LONG, ALL).unwrap();
    for _ in 0..20 {
        end.qp.post_recv(9, &[near.slice(..)]).unwrap();
    }
    peer.ask(&format!("flood {what} {}", hex(&near.remote().to_bytes())));
    peer.child.kill().unwrap();
    // The queue pair fails because its peer is gone. At the latest its receives report it.
    while end.next().status == WcStatus::Success {}
    near.into_vec().unwrap();
}

/// The peer abuses the bell by which the two wake each other.
fn rung() {
    let first = End::open();
    let mut honest = Honest::beside(&first);
    for how in ["block", "fill", "empty", "nothing", "shut"] {
        println!("{how}");
        let end = End::on(first.context.clone());
        let mut peer = forger(&end);
        let deaf = "deaf 1000";
        peer.ask("bell block");
        peer.ask(deaf);
        peer.ask(&format!("bell {how}"));
        honest.check();
        assert!(processes::counter("ring_tx_packets") > 1000, "the service answers");
        if !matches!(how, "nothing" | "shut") {
            // Its bell works again.
            peer.ask("bell empty");
            peer.ask(deaf);
            honest.check();
        }
    }
}

#[test]
fn abused_doorbell_of_a_peer_does_not_block_other_connections() {
    in_a_process("rung");
}

#[test]
fn shared_memory_corruption_by_a_peer_leaves_other_connections_working() {
    in_a_process("scribbled");
}

#[test]
fn endless_shared_memory_corruption_leaves_other_connections_working() {
    in_a_process("flooded");
}

#[test]
fn forged_ring_records_leave_other_connections_working() {
    in_a_process("forged");
}

#[test]
fn offers_of_memory_without_rights_leave_other_connections_working() {
    in_a_process("deceived");
}

#[test]
fn peer_that_stalls_in_a_direct_copy_is_given_up() {
    in_a_process("stalled");
}

#[test]
fn peer_killed_in_any_direct_copy_leaves_other_connections_working() {
    in_a_process("killed");
}
