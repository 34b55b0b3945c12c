//! Two processes of one host that reach each other's memory, and what must not go wrong then.
//!
//! The processes are this test program again, told by its environment to be one: the initiator, which makes the
//! checks, and its peer, which does what it is told on its standard input.
#![expect(clippy::cast_possible_truncation, reason = "small numbers of the tests themselves")]

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rdmux::{
    Access, Completion, Context, Cq, EMPTY, Endpoint, Mr, Pd, Qp, QpType, RemoteMr, Rkey, SendWr,
    WcStatus,
};
use rdmux_host::client::admin;
use rdmux_host::service::{Service, ServiceOptions};
use rdmux_host::{HostError, HostName, RuntimeDir};

const ROLE: &str = "RDMUX_TEST_ROLE";
const DIR: &str = "RDMUX_RUNTIME_DIR";
const SWITCH: &str = "RDMUX_CROSS_MEMORY";
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const LONG: usize = 8 << 20;

/// A host, and on it the process of a role.
fn in_a_process(role: &str) {
    let n = std::process::id();
    let path = std::env::temp_dir().join(format!("rdmux-reach-{n}-{role}"));
    let dir = RuntimeDir::at(&path).unwrap();
    let seed = role.bytes().fold(n, |n, b| n.wrapping_mul(31).wrapping_add(b.into()));
    let mut service = None;
    for attempt in 0..20 {
        let [a, b, ..] = seed.wrapping_add(attempt).wrapping_mul(0x9e37_79b1).to_be_bytes();
        let mut options = ServiceOptions::new(HostName::new("default").unwrap(), dir.clone());
        options.addresses = Some(vec![IpAddr::from(Ipv4Addr::new(127, 81, a, b.clamp(1, 254)))]);
        match Service::spawn(options) {
            Err(HostError::PortInUse { .. }) => {}
            other => {
                service = Some(other.unwrap());
                break;
            }
        }
    }
    let done = command(role).env(DIR, &path).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("SAYS done"), "{said}");
    service.unwrap().stop().unwrap();
    let _ = std::fs::remove_dir_all(&path);
}

fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Not a test, but what the processes of the others do.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("peer") => return be_peer(),
        Ok("copies") => copies(),
        Ok("order") => order(),
        Ok("rights") => rights(),
        Ok("takes_back") => takes_back(),
        Ok("fails") => fails(),
        Ok("gives_up") => gives_up(),
        Ok("dies") => dies(),
        Ok("hostile") => hostile(),
        Ok("off_there") => off(),
        Err(_) => return,
        Ok(other) => panic!("{other}"),
    }
    println!("SAYS done");
}

/// What both ends have.
struct End {
    qp: Qp,
    cq: Cq,
    pd: Pd,
    context: Context,
}

impl End {
    fn open() -> Self {
        let context = Context::builder().no_start().open().unwrap();
        let (pd, cq) = (context.pd(), context.cq(64).unwrap());
        let qp = pd.qp(QpType::Rc).cq(&cq).max_send_wr(32).max_recv_wr(32).build().unwrap();
        Self { qp, cq, pd, context }
    }

    /// The next completion, whatever it says.
    fn next(&self) -> Completion {
        let mut one = [EMPTY];
        assert_eq!(self.cq.wait(&mut one, PATIENCE).unwrap(), 1);
        one[0]
    }

    fn done(&self, wr_id: u64, status: WcStatus) {
        let done = self.next();
        assert_eq!((done.wr_id, done.status), (wr_id, status));
    }
}

/// The other process.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts it and connects to it. What it may do to us is `access`, and what we may do is whatever it says.
    fn start(end: &End, switch: &str, access: Access) -> Self {
        let mut child = command("peer")
            .env(SWITCH, switch)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut peer = Self { child, to, from };
        let theirs = Endpoint::from_bytes(&bytes(&peer.hear())).unwrap();
        end.qp.connect(theirs, 0, ALL).unwrap();
        let own = hex(&end.qp.endpoint(0).unwrap().to_bytes());
        peer.ask(&format!("connect {own} {}", access.bits()));
        peer
    }

    fn hear(&mut self) -> String {
        let mut lines = self.from.by_ref().map_while(Result::ok);
        let said = lines.find_map(|l| l.split_once("SAYS ").map(|(_, word)| word.to_owned()));
        said.expect("it ended without a word")
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.hear()
    }

    /// A region of its memory, of zeros.
    fn region(&mut self, how: &str, len: usize, access: Access) -> RemoteMr {
        let said = self.ask(&format!("{how} {len} {}", access.bits()));
        RemoteMr::from_bytes(&bytes(&said)).unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |n: u64, b| n.wrapping_mul(31).wrapping_add(u64::from(*b)))
}

/// Does what it is told.
fn be_peer() {
    let end = End::open();
    let mut regions: Vec<Option<Mr>> = Vec::new();
    let other = end.context.pd();
    println!("SAYS {}", hex(&end.qp.endpoint(0).unwrap().to_bytes()));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<usize>().unwrap();
        let access = |i: usize| Access::from_bits_retain(words[i].parse().unwrap());
        let answer = match words[0] {
            "connect" => {
                let to = Endpoint::from_bytes(&bytes(words[1])).unwrap();
                end.qp.connect(to, 0, access(2)).unwrap();
                String::new()
            }
            "region" | "elsewhere" => {
                let pd = if words[0] == "region" { &end.pd } else { &other };
                let region = pd.alloc(number(1), access(2)).unwrap();
                let said = hex(&region.remote().to_bytes());
                regions.push(Some(region));
                said
            }
            "fill" => {
                let region = regions[number(1)].as_ref().unwrap();
                region.write(0, &pattern(region.len(), number(2) as u8));
                String::new()
            }
            "sum" => {
                let region = regions[number(1)].as_ref().unwrap();
                sum(&region.to_vec(..number(2))).to_string()
            }
            "first" => regions[number(1)].as_ref().unwrap().load(0).to_string(),
            "change" => {
                regions[number(1)].as_mut().unwrap().reregister(access(2)).unwrap();
                String::new()
            }
            "back" => {
                // From now on nobody writes to it.
                let memory = regions[number(1)].take().unwrap().into_vec().unwrap();
                let before = memory.clone();
                let same = (0..200).all(|_| {
                    std::thread::yield_now();
                    std::hint::black_box(&memory) == &before
                });
                if same { "same" } else { "changed" }.to_owned()
            }
            "recv" => {
                let region = regions[number(1)].as_ref().unwrap();
                end.qp.post_recv(1, &[region.slice(..number(2))]).unwrap();
                String::new()
            }
            "wait" => {
                let done = end.next();
                format!("{:?} {}", done.status, done.byte_len)
            }
            "scribble" => {
                scribble(words[1], number(2) as u64).unwrap();
                String::new()
            }
            "fail" => {
                end.qp.fail().unwrap();
                String::new()
            }
            other => panic!("{other}"),
        };
        println!("SAYS {answer}");
    }
}

/// Writes anything at all over what this process shares with others under a name, except its page of identity.
fn scribble(name: &str, mut random: u64) -> std::io::Result<()> {
    let memory = File::options().write(true).open("/proc/self/mem")?;
    for line in std::fs::read_to_string("/proc/self/maps")?.lines().filter(|l| l.contains(name)) {
        let (range, _) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        // Of the boards that are mapped, others' cannot be written to.
        for at in (from + 64..to).step_by(64).take(1 << 16) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let line = [random, random << 32, !0, random | 1 << 63, 0, 8, 1 << 63, random];
            let _ = memory.write_at(&line.map(u64::to_ne_bytes).concat(), at);
        }
    }
    Ok(())
}

fn counter(name: &str) -> u64 {
    let dir = RuntimeDir::at(PathBuf::from(std::env::var_os(DIR).unwrap())).unwrap();
    let status = admin::status(&dir, &HostName::new("default").unwrap()).unwrap();
    status.counter(name).unwrap()
}

/// Lengths around every limit.
fn lengths() -> impl Iterator<Item = usize> {
    [1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 16 << 10, 32 << 10, (32 << 10) + 1, 64 << 10]
        .into_iter()
        .chain([(64 << 10) + 3, 256 << 10, (256 << 10) + 1, 1 << 20, (1 << 20) + 9, LONG])
}

/// Each operation of each length, and how many of them were copies by the initiator.
fn all_lengths(end: &End, peer: &mut Peer) {
    let far = peer.region("region", LONG, ALL);
    let near = end.pd.alloc(LONG, ALL).unwrap();
    for (i, len) in lengths().enumerate() {
        near.write(0, &pattern(len, i as u8));
        // From two pieces.
        let list = [near.slice(..len / 3), near.slice(len / 3..len)];
        let part = far.slice(0..len as u64);
        end.qp.post_send(&SendWr::write(1, part).sges(&list).signaled()).unwrap();
        end.done(1, WcStatus::Success);
        let expected = sum(&pattern(len, i as u8)).to_string();
        assert_eq!(peer.ask(&format!("sum 0 {len}")), expected, "WRITE of {len}");
        near.write(0, &vec![0; len]);
        end.qp.post_send(&SendWr::read(2, part).sges(&list).signaled()).unwrap();
        end.done(2, WcStatus::Success);
        assert_eq!(sum(&near.to_vec(..len)).to_string(), expected, "READ of {len}");
        near.write(0, &pattern(len, 100 + i as u8));
        peer.ask(&format!("recv 0 {LONG}"));
        end.qp.post_send(&SendWr::send(3).sges(&list).signaled()).unwrap();
        assert_eq!(peer.ask("wait"), format!("Success {len}"));
        let expected = sum(&pattern(len, 100 + i as u8)).to_string();
        assert_eq!(peer.ask(&format!("sum 0 {len}")), expected, "SEND of {len}");
        end.done(3, WcStatus::Success);
    }
}

fn copies() {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    all_lengths(&end, &mut peer);
    let bytes: usize = lengths().sum();
    assert_eq!(counter("direct_write_bytes"), bytes as u64);
    assert_eq!(counter("direct_read_bytes"), bytes as u64);
    let fetched: usize = lengths().filter(|len| *len >= 32 << 10).sum();
    assert_eq!(counter("direct_fetch_bytes"), fetched as u64);
    assert_eq!(counter("direct_fetch_failures"), 0);
}

fn off() {
    let end = End::open();
    let mut peer = Peer::start(&end, "off", ALL);
    all_lengths(&end, &mut peer);
    assert_eq!(counter("direct_writes") + counter("direct_reads") + counter("direct_fetches"), 0);
}

/// SENDs and WRITEs by turns: what a message says is there when it arrives.
fn order() {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    let far = peer.region("region", 1 << 20, ALL);
    peer.region("region", 4096, ALL);
    let near = end.pd.alloc(1 << 20, ALL).unwrap();
    for round in 0..200_u64 {
        let len = [8, 5000, 100_000, 1 << 20][round as usize % 4];
        near.store(0, round);
        peer.tell("recv 1 64");
        peer.hear();
        let part = far.slice(0..len as u64);
        end.qp.post_send(&SendWr::write(1, part).sges(&[near.slice(..len)])).unwrap();
        end.qp.post_send(&SendWr::send(2).sges(&[near.slice(..8)])).unwrap();
        end.qp.post_send(&SendWr::read(3, part).sges(&[near.slice(..len)]).signaled()).unwrap();
        assert_eq!(peer.ask("wait"), "Success 8");
        assert_eq!(peer.ask("first 0"), round.to_string());
        end.done(3, WcStatus::Success);
        assert_eq!(near.load(0), round);
    }
    assert!(counter("direct_writes") >= 200);
}

/// What is not permitted is refused as ever.
fn rights() {
    let read_only = Access::LOCAL_WRITE | Access::REMOTE_READ;
    type Case = (&'static str, Access, Access, fn(RemoteMr) -> RemoteMr);
    let cases: [Case; 6] = [
        ("region", ALL, read_only, |r| r),
        ("region", read_only, ALL, |r| r),
        ("elsewhere", ALL, ALL, |r| r),
        ("region", ALL, ALL, |r| RemoteMr { addr: r.addr + 1, ..r }),
        ("region", ALL, ALL, |r| RemoteMr { addr: u64::MAX - 10, ..r }),
        ("region", ALL, ALL, |r| RemoteMr { rkey: Rkey(r.rkey.0 ^ 1), ..r }),
    ];
    for (i, (how, qp, region, change)) in cases.into_iter().enumerate() {
        let end = End::open();
        let mut peer = Peer::start(&end, "on", qp);
        let far = peer.region(how, 4096, region);
        let near = end.pd.alloc(4096, ALL).unwrap();
        near.write(0, &[7; 4096]);
        let wr = SendWr::write(1, change(far));
        end.qp.post_send(&wr.sges(&[near.slice(..)]).signaled()).unwrap();
        let done = end.next();
        assert!(
            matches!(done.status, WcStatus::RemAccessErr | WcStatus::RemInvReqErr),
            "{i}: {:?}",
            done.status
        );
        assert_eq!(peer.ask("first 0"), "0");
    }
    assert_eq!(counter("direct_writes"), 0);
}

/// Memory is taken back while it is written to all the time.
fn takes_back() {
    for round in 0..8 {
        let end = End::open();
        let mut peer = Peer::start(&end, "on", ALL);
        let len = [64, 300_000][round % 2];
        let far = peer.region("region", len, ALL);
        let near = end.pd.alloc(len, ALL).unwrap();
        peer.tell(if round % 4 < 2 { "back 0" } else { "fail" });
        let mut fill = 0_u8;
        let status = loop {
            fill = fill.wrapping_add(1);
            near.write(0, &vec![fill; len]);
            end.qp.post_send(&SendWr::write(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
            let done = end.next();
            if done.status != WcStatus::Success {
                break done.status;
            }
        };
        if round % 4 < 2 {
            assert_eq!(status, WcStatus::RemAccessErr);
            assert_eq!(peer.hear(), "same");
        } else {
            // Nobody answers for a queue pair that has failed.
            assert_eq!(status, WcStatus::RetryExcErr);
            peer.hear();
            assert_eq!(peer.ask("back 0"), "same");
        }
    }
}

/// A SEND arrives as its memory was before its queue pair failed, or not at all.
fn gives_up() {
    let mut arrived = 0;
    for round in 0..60 {
        let end = End::open();
        let mut peer = Peer::start(&end, "on", ALL);
        peer.region("region", 1 << 20, ALL);
        peer.ask("recv 0 1048576");
        let near = end.pd.alloc(1 << 20, ALL).unwrap();
        near.write(0, &pattern(1 << 20, round));
        end.qp.post_send(&SendWr::send(1).sges(&[near.slice(..)]).signaled()).unwrap();
        (0..u32::from(round) * 200).for_each(|_| std::hint::spin_loop());
        end.qp.fail().unwrap();
        near.write(0, &vec![0; 1 << 20]);
        peer.ask("fail");
        if peer.ask("wait").starts_with("Success") {
            arrived += 1;
            assert_eq!(peer.ask("sum 0 1048576"), sum(&pattern(1 << 20, round)).to_string());
        }
    }
    println!("{arrived} arrived");
}

/// The rights are taken away, and given back.
fn fails() {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    let far = peer.region("region", 4096, ALL);
    let near = end.pd.alloc(4096, ALL).unwrap();
    let write = |status| {
        end.qp.post_send(&SendWr::write(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
        end.done(1, status);
    };
    write(WcStatus::Success);
    peer.ask(&format!("change 0 {}", (Access::LOCAL_WRITE | Access::REMOTE_READ).bits()));
    end.qp.post_send(&SendWr::read(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
    end.done(1, WcStatus::Success);
    peer.ask(&format!("change 0 {}", ALL.bits()));
    write(WcStatus::Success);
    assert_eq!(counter("direct_writes"), 2);
    peer.ask("change 0 1");
    write(WcStatus::RemAccessErr);
    assert_eq!(counter("direct_writes"), 2);
}

/// The peer is killed while it is written to.
fn dies() {
    for _ in 0..3 {
        let end = End::open();
        let mut peer = Peer::start(&end, "on", ALL);
        let far = peer.region("region", 1 << 20, ALL);
        let near = end.pd.alloc(1 << 20, ALL).unwrap();
        let mut writes = 0;
        loop {
            end.qp.post_send(&SendWr::write(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
            let done = end.next();
            if done.status != WcStatus::Success {
                break;
            }
            writes += 1;
            if writes == 20 {
                peer.child.kill().unwrap();
            }
        }
        assert!(writes >= 20);
        // And what we have is ours again.
        near.into_vec().unwrap();
    }
}

/// A peer that breaks every rule hurts nobody but its own connections.
fn hostile() {
    for (what, seed) in [("rdmux-board", 1), ("rdmux-ring", 2), ("rdmux-", 3), ("rdmux-", 4)] {
        let end = End::open();
        let mut peer = Peer::start(&end, "on", ALL);
        let far = peer.region("region", 1 << 20, ALL);
        let near = end.pd.alloc(1 << 20, ALL).unwrap();
        let all = [near.slice(..)];
        end.qp.post_send(&SendWr::write(1, far).sges(&all).signaled()).unwrap();
        end.done(1, WcStatus::Success);
        peer.ask("recv 0 1048576");
        peer.ask(&format!("scribble {what} {seed}"));
        // Each ends, in whatever way, and so does taking the memory back.
        for wr in [SendWr::write(1, far), SendWr::read(1, far), SendWr::send(1)] {
            end.qp.post_send(&wr.sges(&all).signaled()).unwrap();
            end.next();
        }
        near.into_vec().unwrap();
    }
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    let far = peer.region("region", 64, ALL);
    let near = end.pd.alloc(64, ALL).unwrap();
    end.qp.post_send(&SendWr::write(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
    end.done(1, WcStatus::Success);
}

#[test]
fn every_length_goes_by_every_way() {
    in_a_process("copies");
}

#[test]
fn without_leave_everything_goes_by_the_ring() {
    in_a_process("off_there");
}

#[test]
fn order_is_kept() {
    in_a_process("order");
}

#[test]
fn what_is_not_permitted_is_refused() {
    in_a_process("rights");
}

#[test]
fn memory_that_was_taken_back_does_not_change() {
    in_a_process("takes_back");
}

#[test]
fn memory_that_was_given_up_is_not_sent() {
    in_a_process("gives_up");
}

#[test]
fn rights_that_change_count_at_once() {
    in_a_process("fails");
}

#[test]
fn a_peer_that_breaks_every_rule_hurts_itself() {
    in_a_process("hostile");
}

#[test]
fn a_peer_may_die_at_any_time() {
    in_a_process("dies");
}
