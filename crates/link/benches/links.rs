//! Performance of the links, as ratios to bare counterparts in the same run.
//!
//! `cargo bench -p rdmux-link` prints a table; each figure is the median of several rounds.
//!
//! - UDP: batches of 4 KiB segments between two threads, ICRC computed and checked, payload copied to its destination, with a
//!   window of data in flight; against one TCP stream that is read into the same destination
//! - InfiniBand: packets of 4 KiB from port to port over UDP in the same way; against the same TCP stream
//! - UDP latency: 64 bytes there and back through batches, both sides polling; against bare sendto
//!   and recvfrom, polling likewise
//! - ring: 64 bytes there and back, both sides polling; against one cache line that is transferred there and back

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rdmux_link::ib::{Routes, Sender};
use rdmux_link::ring::RingPath;
use rdmux_link::routes::{OwnPort, Peer, PeerId, RouteTable, RouteView, Way};
use rdmux_link::udp::{GroupOptions, PushError};
use rdmux_link::wire::{Arrivals, Frame, Payload, Piece};
use rdmux_link::{
    Consumer, Destination, IbWire, IcrcCheck, LinkError, PeerBell, Producer, Ring, RingPair,
    RxBatch, TxBatch, UdpGroup, UdpPort, Wire,
};
use rdmux_transport::attr::AddressVector;
use rdmux_wire::{Bth, Guid, Lid, Mtu, Opcode, Pkey, Psn, Qpn};

const ROUNDS: usize = 5;
const SEGMENT: usize = 4096;
/// The data to send and its destination: larger than a first-level cache, as a message is.
const MESSAGE: usize = 1 << 20;
const TOTAL: usize = 1 << 30;
/// Bytes in flight, well below a socket's buffer.
const WINDOW: u64 = 1 << 20;

fn main() {
    let only = std::env::args().nth(1).filter(|a| !a.starts_with('-'));
    let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
    if wanted("udp") {
        let udp = median(|| udp_bandwidth(true));
        let bare = median(|| udp_bandwidth(false));
        let tcp = median(tcp_bandwidth);
        println!("UDP 4 KiB segments, ICRC both ways   {:6.2} GB/s   {:.2} x TCP", udp, udp / tcp);
        println!(
            "  not checked by the receiver        {:6.2} GB/s   {:.2} x TCP",
            bare,
            bare / tcp
        );
        println!("TCP, one stream                      {tcp:6.2} GB/s");
    }
    if wanted("ib") {
        let whole = median(ib_bandwidth);
        let tcp = median(tcp_bandwidth);
        println!(
            "InfiniBand 4 KiB, ICRC both ways     {whole:6.2} GB/s   {:.2} x TCP",
            whole / tcp
        );
        println!("TCP, one stream                      {tcp:6.2} GB/s");
    }
    if wanted("latency") {
        let plain = median(|| udp_round_trip(false));
        let told = median(|| udp_round_trip(true));
        let bare = median(bare_udp_round_trip);
        println!(
            "UDP 64 B, ICRC, one way              {plain:6.0} ns     {:.2} x bare",
            plain / bare
        );
        println!(
            "  with traffic class and hop limit   {told:6.0} ns     {:.2} x bare",
            told / bare
        );
        println!("bare UDP, one way                    {bare:6.0} ns");
    }
    if wanted("ring") {
        let ring = median(ring_round_trip);
        let line = median(line_round_trip);
        println!(
            "ring, 64 B, one way                  {:6.0} ns     {:.2} x line",
            ring,
            ring / line
        );
        println!("cache line, one way                  {line:6.0} ns");
    }
}

fn median(mut f: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<_> = (0..ROUNDS).map(|_| f()).collect();
    all.sort_by(f64::total_cmp);
    all[ROUNDS / 2]
}

fn gigabytes_per_second(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// Measures one direction over UDP, with a window of [`WINDOW`] that the receiver opens through shared memory, as
/// acknowledgements would.
fn udp_bandwidth(check: bool) -> f64 {
    let options = GroupOptions { port: 0, header_info: false, ..GroupOptions::default() };
    let open = |host| UdpGroup::open([127, 77, 203, host].into(), &options).unwrap();
    let (mut rx, mut tx) = (open(1), open(2));
    let (rx, tx) = (
        UdpPort::new(rx.socket(0).unwrap()).unwrap(),
        UdpPort::new(tx.socket(0).unwrap()).unwrap(),
    );
    let to = Destination::new(rx.local_addr().ip(), rx.local_addr().port());
    let received = AtomicU64::new(0);
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let message = vec![0x5a; MESSAGE];
            let mut batch = TxBatch::new();
            start.wait();
            for i in 0..TOTAL / SEGMENT {
                let at = i * SEGMENT;
                while at as u64 > received.load(Ordering::Acquire) + WINDOW {
                    if !batch.is_empty() {
                        batch.flush(&tx).unwrap();
                    }
                    std::hint::spin_loop();
                }
                let bytes = &message[at % MESSAGE..][..SEGMENT];
                let piece = Piece::new(bytes.as_ptr(), SEGMENT);
                let header = [0; 12];
                let frame = Frame {
                    header: &header,
                    payload: Payload::Pieces(&[piece]),
                    pad: 0,
                    ack: None,
                };
                while let Err(PushError::Full) = batch.push(&tx, &to, &frame) {
                    batch.flush(&tx).unwrap();
                }
            }
            batch.flush(&tx).unwrap();
        });
        let mut place = vec![0; MESSAGE];
        let mut batch = RxBatch::new(RxBatch::USUAL);
        let mut got = 0;
        start.wait();
        let since = Instant::now();
        while got < TOTAL {
            if batch.recv(&rx).unwrap() == 0 {
                std::hint::spin_loop();
            }
            for d in batch.arrivals() {
                assert!(!check || d.check_icrc() == IcrcCheck::Right);
                let payload = &d.without_icrc()[12..];
                place[got % MESSAGE..][..SEGMENT].copy_from_slice(payload);
                got += SEGMENT;
            }
            received.store(got as u64, Ordering::Release);
        }
        gigabytes_per_second(TOTAL, since.elapsed())
    })
}

/// Creates a port whose table has a route to the LID that is twice its own.
fn ib_port(n: u8, peer: Option<&IbWire>) -> (IbWire, RouteTable) {
    let options = GroupOptions { port: 0, header_info: false, ..GroupOptions::default() };
    let mut group = UdpGroup::open([127, 77, 203, 10 + n].into(), &options).unwrap();
    let mut table = RouteTable::create().unwrap();
    let mut own =
        OwnPort { active: true, lid: Lid(n.into()), mtu: Mtu::M4096, ..OwnPort::default() };
    own.pkeys[0] = Pkey::DEFAULT;
    table.set_own(&own).unwrap();
    if let Some(peer) = peer {
        let id = PeerId::new(1).unwrap();
        let lid = Lid(2 * u16::from(n));
        let at = Peer {
            addr: peer.port().local_addr(),
            port_guid: Guid(1),
            lid,
            lmc: 0,
            multicast: false,
        };
        table.set_peer(id, Some(&at)).unwrap();
        let (mtu, rate) = (Mtu::M4096, 3);
        let way = Way { peer: id, hops: 1, mtu, rate, sls: 1, pkeys: 1, back: 1, answered: 1 };
        table.set_way(lid, Some(&way)).unwrap();
    }
    let routes = Arc::new(Routes::new(1));
    routes.set_view(Some(RouteView::map(table.fd()).unwrap()));
    (IbWire::new(group.socket(0).unwrap(), 0, routes).unwrap(), table)
}

/// Measures one direction from InfiniBand port to port, otherwise as [`udp_bandwidth`].
fn ib_bandwidth() -> f64 {
    let (rx, _there) = ib_port(2, None);
    let (tx, _here) = ib_port(1, Some(&rx));
    let received = AtomicU64::new(0);
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let message = vec![0x5a; MESSAGE];
            let header = Bth::new(Opcode::UC_SEND_MIDDLE, Qpn::new(7), Psn::new(0)).to_bytes();
            let av = AddressVector { dlid: 2, ..AddressVector::default() };
            let mut sender = Sender::new();
            start.wait();
            for at in (0..TOTAL).step_by(SEGMENT) {
                while at as u64 > received.load(Ordering::Acquire) + WINDOW {
                    tx.flush(&mut sender).unwrap();
                    std::hint::spin_loop();
                }
                let piece = [Piece::new(message[at % MESSAGE..].as_ptr(), SEGMENT)];
                let payload = Payload::Pieces(&piece);
                let frame = Frame { header: &header, payload, pad: 0, ack: None };
                while let Err(error) = tx.send(&mut sender, &av, &frame) {
                    assert!(matches!(error, LinkError::Full), "{error}");
                    tx.flush(&mut sender).unwrap();
                }
            }
            tx.flush(&mut sender).unwrap();
        });
        let mut place = vec![0; MESSAGE];
        let (mut arrivals, mut got) = (Arrivals::default(), 0);
        start.wait();
        let since = Instant::now();
        while got < TOTAL {
            if rx.receive(&mut arrivals).unwrap() == 0 {
                std::hint::spin_loop();
            }
            for arrival in arrivals.iter() {
                place[got % MESSAGE..][..SEGMENT].copy_from_slice(&arrival.bytes[12..]);
                got += SEGMENT;
            }
            received.store(got as u64, Ordering::Release);
        }
        gigabytes_per_second(TOTAL, since.elapsed())
    })
}

fn tcp_bandwidth() -> f64 {
    let listener = TcpListener::bind("127.77.203.3:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect(addr).unwrap();
            let message = vec![0x5a; MESSAGE];
            for _ in 0..TOTAL / MESSAGE {
                stream.write_all(&message).unwrap();
            }
        });
        let (mut stream, _) = listener.accept().unwrap();
        let mut place = vec![0; MESSAGE];
        let since = Instant::now();
        for _ in 0..TOTAL / MESSAGE {
            stream.read_exact(&mut place).unwrap();
        }
        gigabytes_per_second(TOTAL, since.elapsed())
    })
}

fn udp_round_trip(header_info: bool) -> f64 {
    let options = GroupOptions { port: 0, header_info, ..GroupOptions::default() };
    let open = |host| UdpGroup::open([127, 77, 203, host].into(), &options).unwrap();
    let ports = [open(4), open(5)].map(|mut g| UdpPort::new(g.socket(0).unwrap()).unwrap());
    let [a, b] = &ports;
    let step = |port: &UdpPort, batch: &mut RxBatch| {
        while batch.recv(port).unwrap() == 0 {}
        assert!(batch.arrivals().all(|d| d.check_icrc() == IcrcCheck::Right));
    };
    let send = |port: &UdpPort, to: &UdpPort, batch: &mut TxBatch| {
        let to = Destination::new(to.local_addr().ip(), to.local_addr().port());
        let frame =
            Frame { header: &[0; 12], payload: Payload::Bytes(&[7; 64]), pad: 0, ack: None };
        batch.push(port, &to, &frame).unwrap();
        batch.flush(port).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut rx, mut tx) = (RxBatch::new(RxBatch::USUAL), TxBatch::new());
            for _ in 0..UDP_TRIPS {
                step(b, &mut rx);
                send(b, a, &mut tx);
            }
        });
        let (mut rx, mut tx) = (RxBatch::new(RxBatch::USUAL), TxBatch::new());
        let since = Instant::now();
        for _ in 0..UDP_TRIPS {
            send(a, b, &mut tx);
            step(a, &mut rx);
        }
        one_way(since.elapsed(), UDP_TRIPS)
    })
}

fn bare_udp_round_trip() -> f64 {
    let socket = |host: u8| {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 77, 203, host), 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (a, b) = (socket(6), socket(7));
    let (to_a, to_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    let step = |socket: &UdpSocket| while socket.recv_from(&mut [0; 80]).is_err() {};
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..UDP_TRIPS {
                step(&b);
                b.send_to(&[7; 80], to_a).unwrap();
            }
        });
        let since = Instant::now();
        for _ in 0..UDP_TRIPS {
            a.send_to(&[7; 80], to_b).unwrap();
            step(&a);
        }
        one_way(since.elapsed(), UDP_TRIPS)
    })
}

const TRIPS: u64 = 300_000;
const UDP_TRIPS: u64 = 50_000;

/// Returns the time of one direction in nanoseconds: half a round trip.
fn one_way(time: Duration, trips: u64) -> f64 {
    time.as_nanos() as f64 / (2 * trips) as f64
}

fn ring_round_trip() -> f64 {
    let (a, b) = RingPair::create(1 << 20).unwrap();
    let (near, far) = PeerBell::pair().unwrap();
    let (mut a, mut b) = (a.open(near).unwrap(), b.open(far).unwrap());
    let step = |(_, _, rx): &mut (Ring, Producer, Consumer), bytes: &mut [u8; 64]| {
        while rx.is_empty() {
            std::hint::spin_loop();
        }
        rx.pop().unwrap().unwrap().copy(0, bytes);
    };
    let send = |(ring, tx, _): &mut (Ring, Producer, Consumer), bytes: &[u8; 64]| {
        let payload = Payload::Bytes(&bytes[12..]);
        let frame = Frame { header: &bytes[..12], payload, pad: 0, ack: None };
        ring.send(tx, &RingPath::default(), &frame).unwrap();
        ring.flush(tx).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = [0; 64];
            for _ in 0..TRIPS {
                step(&mut b, &mut bytes);
                send(&mut b, &bytes);
            }
        });
        let mut bytes = [7; 64];
        let since = Instant::now();
        for _ in 0..TRIPS {
            send(&mut a, &bytes);
            step(&mut a, &mut bytes);
        }
        one_way(since.elapsed(), TRIPS)
    })
}

#[repr(align(128))]
struct Line(AtomicU64);

fn line_round_trip() -> f64 {
    let line = Line(AtomicU64::new(0));
    let wait = |odd: u64, i: u64| {
        while line.0.load(Ordering::Acquire) != 2 * i + odd {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..TRIPS {
                wait(1, i);
                line.0.store(2 * i + 2, Ordering::Release);
            }
        });
        let since = Instant::now();
        for i in 0..TRIPS {
            wait(0, i);
            line.0.store(2 * i + 1, Ordering::Release);
        }
        wait(0, TRIPS);
        one_way(since.elapsed(), TRIPS)
    })
}
