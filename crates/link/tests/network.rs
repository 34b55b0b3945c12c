//! Packets on a real network device: a veth pair in private network namespaces.
//!
//! Needs the privilege to create namespaces, and `ip` of iproute2. Without them, each test reports that it was skipped. Each runs
//! in a thread of its own, because a namespace belongs to a thread.
#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes")]

use std::io::Read;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdmux_link::udp::GroupOptions;
use rdmux_link::wire::{Frame, Payload, TxFail, Wire};
use rdmux_link::{Destination, IcrcCheck, McastSocket, RxBatch, TxBatch, UdpGroup, UdpPort};
use rdmux_wire::icrc::Icrc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

const OURS: &str = "10.77.0.1";
const THEIRS: &str = "10.77.0.2";

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

/// Moves this thread into a new network namespace.
fn new_namespace() -> Result<(), String> {
    // SAFETY: only the network namespace is unshared, no memory or descriptor table.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| format!("no namespace: {e}"))
}

/// Runs `ip` with these arguments, in this thread's namespace.
fn run_ip(words: &str) -> Result<(), String> {
    let out = Command::new("ip").args(words.split(' ')).output();
    let out = out.map_err(|e| format!("cannot run ip: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("ip {words}: {}", String::from_utf8_lossy(&out.stderr)))
}

/// Runs `test` in a thread with its own namespace that has both ends of a veth pair: v0 with [`OURS`], and v1, on which no host
/// answers for [`THEIRS`].
fn on_a_wire(test: impl FnOnce() + Send + 'static) {
    let outcome = thread::spawn(|| {
        let ready = new_namespace()
            .and_then(|()| run_ip("link set lo up"))
            .and_then(|()| run_ip("link add v0 type veth peer name v1"))
            .and_then(|()| run_ip("addr add 10.77.0.1/24 dev v0"))
            .and_then(|()| run_ip("link set v0 up"))
            .and_then(|()| run_ip("link set v1 up"))
            .and_then(|()| run_ip("neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev v0"));
        match ready {
            Ok(()) => test(),
            Err(why) => println!("SKIPPED: {why}"),
        }
    });
    outcome.join().unwrap();
}

fn options() -> GroupOptions {
    GroupOptions::default()
}

fn port(addr: &str) -> UdpPort {
    let mut group = UdpGroup::open(ip(addr), &options()).unwrap();
    UdpPort::new(group.socket(0).unwrap()).unwrap()
}

/// Opens a socket that receives every frame that arrives on a device.
fn capture(device: &str) -> std::fs::File {
    let index = std::fs::read_to_string("/proc/thread-self/net/dev_mcast").unwrap();
    let index = index
        .lines()
        .find_map(|l| {
            let mut words = l.split_ascii_whitespace();
            let index = words.next()?.parse::<i32>().ok()?;
            (words.next()? == device).then_some(index)
        })
        .expect("every interface that is up is listed");
    let all = 0x0003u16.to_be();
    // SAFETY: plain system calls; the address is a local that outlives the call.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(all));
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let fd = std::os::fd::FromRawFd::from_raw_fd(fd);
        let mut addr: libc::sockaddr_ll = std::mem::zeroed();
        addr.sll_family = libc::AF_PACKET as u16;
        addr.sll_protocol = all;
        addr.sll_ifindex = index;
        let owned: OwnedFd = fd;
        let r = libc::bind(
            std::os::fd::AsRawFd::as_raw_fd(&owned),
            (&raw const addr).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        );
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
        owned.into()
    }
}

/// Returns the next frame that contains a RoCEv2 packet: its IPv4 and UDP headers, and the rest.
fn next_packet(capture: &mut std::fs::File) -> ([u8; 20], [u8; 8], Vec<u8>) {
    let mut frame = vec![0; 70_000];
    loop {
        wait(&*capture);
        let n = capture.read(&mut frame).unwrap();
        let frame = &frame[..n];
        if n > 42 && frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == [0x12, 0xb7] {
            let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            let (ip, udp) = (frame[14..34].try_into().unwrap(), frame[34..42].try_into().unwrap());
            return (ip, udp, frame[42..14 + len].to_vec());
        }
    }
}

fn wait(fd: impl std::os::fd::AsFd) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_ne!(poll(&mut fds, Some(&timeout)).unwrap(), 0, "nothing arrives");
}

#[test]
fn icrc_covers_the_ipv4_identification_of_each_gso_segment() {
    on_a_wire(|| {
        // One segment per frame on the wire, as a real network adapter would send it.
        if let Err(why) = run_ip("link set v0 gso_max_segs 1") {
            return println!("SKIPPED: {why}");
        }
        let mut capture = capture("v1");
        let port = port(OURS);
        let to = Destination { tos: 0x20, ttl: 7, ..Destination::new(ip(THEIRS), 4791) };
        let mut batch = TxBatch::new();
        for i in 0..20u8 {
            let header = [i, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, i];
            let bytes: Vec<u8> = (0..1024).map(|n| n as u8 ^ i).collect();
            let frame =
                Frame { header: &header, payload: Payload::Bytes(&bytes), pad: 0, ack: None };
            batch.push(&port, &to, &frame).unwrap();
        }
        assert_eq!(batch.flush(&port).unwrap().packets, 20);
        assert!(port.segments(to.addr), "segmentation was refused");
        for i in 0..20u16 {
            let (ip, udp, packet) = next_packet(&mut capture);
            assert_eq!(ip[4..6], i.to_be_bytes(), "the Identification of segment {i}");
            assert_eq!((ip[1], ip[6], ip[8]), (0x20, 0x40, 7));
            assert_eq!(packet.len(), 12 + 1024 + 4);
            let (covered, stored) = packet.split_last_chunk::<4>().unwrap();
            let mut icrc = Icrc::of_ipv4_headers(&ip, udp);
            icrc.update(covered);
            assert_eq!(icrc.finish(), *stored, "segment {i}");
        }
    });
}

#[test]
fn packet_above_the_path_mtu_fails_as_too_large() {
    on_a_wire(|| {
        let port = port(OURS);
        let to = Destination::new(ip(THEIRS), 4791);
        let mut batch = TxBatch::new();
        for count in [1, 3] {
            for _ in 0..count {
                let frame = Frame {
                    header: &[0; 12],
                    payload: Payload::Bytes(&[0; 2048]),
                    pad: 0,
                    ack: None,
                };
                batch.push(&port, &to, &frame).unwrap();
            }
            let fail = batch.flush(&port).unwrap_err();
            assert!(
                matches!(fail, TxFail::TooLarge { len: 2064, lost, .. } if lost == count),
                "{fail}"
            );
            assert!(batch.is_empty() && port.segments(to.addr));
        }
    });
}

/// Simulates another host: a thread with its own namespace that has v1 with [`THEIRS`] (and fd77::2), while the calling thread
/// keeps v0 with [`OURS`] (and fd77::1).
fn with_a_peer(ours: impl FnOnce() + Send + 'static, theirs: impl FnOnce() + Send + 'static) {
    let (tell_tid, tid) = mpsc::channel();
    let (tell_go, go) = mpsc::channel();
    let (tell_ready, ready) = mpsc::channel::<()>();
    let peer = thread::spawn(move || {
        let outcome = new_namespace().map(|()| gettid().as_raw_nonzero().get());
        let _ = tell_tid.send(outcome);
        if go.recv().is_ok() {
            run_ip("addr add 10.77.0.2/24 dev v1").unwrap();
            run_ip("addr add fd77::2/64 dev v1 nodad").unwrap();
            run_ip("link set v1 up").unwrap();
            let _ = tell_ready.send(());
            theirs();
        }
    });
    let us = thread::spawn(move || {
        let prepare = || {
            let tid = tid.recv().map_err(|e| e.to_string())??;
            new_namespace()?;
            run_ip("link add v0 type veth peer name v1")?;
            run_ip(&format!("link set v1 netns /proc/{tid}/ns/net"))
                .or_else(|_| run_ip(&format!("link set v1 netns {tid}")))?;
            run_ip("addr add 10.77.0.1/24 dev v0")?;
            run_ip("addr add fd77::1/64 dev v0 nodad")?;
            run_ip("link set v0 up")
        };
        match prepare() {
            Ok(()) => {
                tell_go.send(()).unwrap();
                ready.recv().unwrap();
                ours();
            }
            Err(why) => println!("SKIPPED: {why}"),
        }
    });
    us.join().unwrap();
    peer.join().unwrap();
}

/// Sends packets to a group until `stop` receives a message.
fn send_until(port: &UdpPort, to: Destination, stop: &mpsc::Receiver<()>) {
    let mut batch = TxBatch::new();
    while let Err(mpsc::TryRecvError::Empty) = stop.try_recv() {
        let frame =
            Frame { header: &[0xff; 12], payload: Payload::Bytes(b"to all"), pad: 2, ack: None };
        port.send(&mut batch, &to, &frame).unwrap();
        // A device that has just come up may not be ready yet.
        let _ = port.flush(&mut batch);
        thread::yield_now();
    }
}

/// Waits until the group is left. A process that another test is just starting has a copy of every descriptor, until its exec.
fn wait_until_left(group: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while membership_shows(group) {
        assert!(Instant::now() < deadline, "still a member of {group}");
        thread::yield_now();
    }
}

fn multicast_crosses_the_wire(group: &'static str, ours: &'static str, theirs: &'static str) {
    let (tell_stop, stop) = mpsc::channel();
    with_a_peer(
        move || {
            let member = McastSocket::join(ip(group), ip(ours), &options()).unwrap();
            assert!(membership_shows(group), "joined on the wrong interface");
            let mut batch = RxBatch::new(1);
            wait(member.port());
            assert_ne!(member.port().receive(&mut batch).unwrap(), 0);
            let datagram = batch.arrivals().next().unwrap();
            assert_eq!((datagram.src.ip(), datagram.dst.ip()), (ip(theirs), ip(group)));
            assert_eq!(datagram.check_icrc(), IcrcCheck::Right);
            tell_stop.send(()).unwrap();
            drop(member);
            wait_until_left(group);
        },
        move || {
            send_until(
                &port(theirs),
                Destination { ttl: 64, ..Destination::new(ip(group), 4791) },
                &stop,
            )
        },
    );
}

/// Returns whether this thread's namespace shows the membership on v0.
fn membership_shows(group: &str) -> bool {
    match ip(group) {
        IpAddr::V4(group) => {
            let wanted = format!("{:08X}", u32::from_ne_bytes(group.octets()));
            let table = std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap();
            let of_v0 = table.split("v0 ").nth(1).unwrap_or_default();
            of_v0.lines().skip(1).take_while(|l| l.starts_with('\t')).any(|l| l.contains(&wanted))
        }
        IpAddr::V6(group) => {
            let wanted = format!("{:032x}", u128::from(group));
            let table = std::fs::read_to_string("/proc/thread-self/net/igmp6").unwrap();
            table.lines().any(|l| l.contains("v0 ") && l.contains(&wanted))
        }
    }
}

#[test]
fn ipv4_multicast_crosses_a_network() {
    multicast_crosses_the_wire("239.77.0.1", OURS, THEIRS);
}

#[test]
fn ipv6_multicast_crosses_a_network() {
    multicast_crosses_the_wire("ff05::77:1", "fd77::1", "fd77::2");
}
