//! The references: plain TCP, plain UDP and a plain cache line, between the same two processes and addresses.

use std::hint::spin_loop;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rdmux_link::SharedMem;

/// How long a side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Sends `count` messages of `size` bytes through one TCP stream and waits until the other side has read the last.
/// Returns bytes per second.
pub(crate) fn tcp_send(to: SocketAddr, size: usize, count: u32) -> Result<f64> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let message = vec![0x5a; size];
    let start = Instant::now();
    for _ in 0..count {
        stream.write_all(&message)?;
    }
    stream.read_exact(&mut [0])?;
    Ok(size as f64 * f64::from(count) / start.elapsed().as_secs_f64())
}

/// Runs the other side of [`tcp_send`].
pub(crate) fn tcp_sink(listener: &TcpListener, size: usize, count: u32) -> Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut message = vec![0; size];
    for _ in 0..count {
        stream.read_exact(&mut message)?;
    }
    stream.write_all(&[1])?;
    Ok(())
}

/// Exchanges `count` messages of 64 bytes through one TCP stream, busy-polling. Returns the seconds one way.
pub(crate) fn tcp_ping(to: SocketAddr, count: u32) -> Result<f64> {
    let mut stream = polled(TcpStream::connect(to)?)?;
    let mut message = [0x5a; 64];
    let start = Instant::now();
    for _ in 0..count {
        stream.write_all(&message)?;
        poll_message(&mut stream, &mut message, start)?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(count) / 2.0)
}

/// Runs the other side of [`tcp_ping`].
pub(crate) fn tcp_echo(listener: &TcpListener, count: u32) -> Result<()> {
    let mut stream = polled(listener.accept()?.0)?;
    let mut message = [0; 64];
    let start = Instant::now();
    for _ in 0..count {
        poll_message(&mut stream, &mut message, start)?;
        stream.write_all(&message)?;
    }
    Ok(())
}

/// Makes a stream nonblocking, with TCP_NODELAY.
fn polled(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn poll_message(stream: &mut TcpStream, into: &mut [u8], start: Instant) -> Result<()> {
    let (mut have, mut turns) = (0, 0_u32);
    while have < into.len() {
        match stream.read(&mut into[have..]) {
            Ok(0) => bail!("the other side of the TCP ping-pong closed the connection"),
            Ok(n) => have += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(1 << 16) && start.elapsed() > TIMEOUT {
                    bail!("the other side of the TCP ping-pong did not answer in time");
                }
                spin_loop();
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Exchanges `count` datagrams of 64 bytes, busy-polling. Returns the seconds one way.
pub(crate) fn udp_ping(socket: &UdpSocket, count: u32) -> Result<f64> {
    socket.set_nonblocking(true)?;
    let mut datagram = [0x5a; 64];
    let start = Instant::now();
    for _ in 0..count {
        socket.send(&datagram)?;
        poll_datagram(socket, &mut datagram, start)?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(count) / 2.0)
}

/// Runs the other side of [`udp_ping`].
pub(crate) fn udp_echo(socket: &UdpSocket, count: u32) -> Result<()> {
    socket.set_nonblocking(true)?;
    let mut datagram = [0; 64];
    let start = Instant::now();
    for _ in 0..count {
        let from = poll_datagram(socket, &mut datagram, start)?;
        socket.send_to(&datagram, from)?;
    }
    Ok(())
}

fn poll_datagram(socket: &UdpSocket, into: &mut [u8], start: Instant) -> Result<SocketAddr> {
    let mut turns = 0_u32;
    loop {
        match socket.recv_from(into) {
            Ok((_, from)) => return Ok(from),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(1 << 16) && start.elapsed() > TIMEOUT {
                    bail!("a datagram of the bare UDP ping-pong was lost");
                }
                spin_loop();
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Passes a turn back and forth through one cache line `count` times. Returns the seconds one way. The other side
/// runs [`line_echo`] on the same memory.
pub(crate) fn line_ping(line: &AtomicU64, count: u64) -> Result<f64> {
    let start = Instant::now();
    for i in 0..count {
        line.store(2 * i + 1, Ordering::Release);
        wait_line(line, 2 * i + 2, start)?;
    }
    Ok(start.elapsed().as_secs_f64() / count as f64 / 2.0)
}

/// Runs the other side of [`line_ping`].
pub(crate) fn line_echo(line: &AtomicU64, count: u64) -> Result<()> {
    let start = Instant::now();
    for i in 0..count {
        wait_line(line, 2 * i + 1, start)?;
        line.store(2 * i + 2, Ordering::Release);
    }
    Ok(())
}

/// Busy-polls a cache line until it has this value.
pub(super) fn wait_line(line: &AtomicU64, value: u64, start: Instant) -> Result<()> {
    let mut turns = 0_u32;
    while line.load(Ordering::Acquire) != value {
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1 << 20) && start.elapsed() > TIMEOUT {
            bail!("the other side of the cache-line ping-pong did not answer in time");
        }
        spin_loop();
    }
    Ok(())
}

/// A turn that is passed back and forth through a third process, by cache lines.
pub(crate) struct Relay<'m> {
    /// The words of a turn: from this process to the third, on to the other side, from there to the third, and back.
    steps: [&'m AtomicU64; 4],
}

impl<'m> Relay<'m> {
    /// Uses lines of 64 bytes at the start of the memory, if it has that many.
    pub(crate) fn new(memory: &'m SharedMem) -> Option<Self> {
        let words = memory.words();
        let [Some(a), Some(b), Some(c), Some(d)] = [0, 1, 2, 3].map(|n| words.get(16 * n)) else {
            return None;
        };
        Some(Self { steps: [a, b, c, d] })
    }

    /// Sets all words to zero.
    pub(crate) fn reset(&self) {
        self.steps.iter().for_each(|line| line.store(0, Ordering::Release));
    }
}

/// Passes a turn there and back `count` times. Returns the seconds one way.
pub(crate) fn relay_ping(relay: &Relay<'_>, count: u64) -> Result<f64> {
    let start = Instant::now();
    for turn in 1..=count {
        relay.steps[0].store(turn, Ordering::Release);
        wait_turn(relay.steps[3], turn, start)?;
    }
    Ok(start.elapsed().as_secs_f64() / count as f64 / 2.0)
}

/// Runs the other side of [`relay_ping`].
pub(crate) fn relay_echo(relay: &Relay<'_>, count: u64) -> Result<()> {
    let start = Instant::now();
    for turn in 1..=count {
        wait_turn(relay.steps[1], turn, start)?;
        relay.steps[2].store(turn, Ordering::Release);
    }
    Ok(())
}

/// Runs the process between the two.
pub(crate) fn relay(relay: &Relay<'_>, count: u64) -> Result<()> {
    let start = Instant::now();
    for turn in 1..=count {
        wait_turn(relay.steps[0], turn, start)?;
        relay.steps[1].store(turn, Ordering::Release);
        wait_turn(relay.steps[2], turn, start)?;
        relay.steps[3].store(turn, Ordering::Release);
    }
    Ok(())
}

/// Waits for a turn. Three processes may share two processors, so each yields while it waits.
fn wait_turn(line: &AtomicU64, value: u64, start: Instant) -> Result<()> {
    let mut turns = 0_u32;
    while line.load(Ordering::Acquire) != value {
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1 << 20) && start.elapsed() > TIMEOUT {
            bail!("the other side of the ping-pong through a third process did not answer in time");
        }
        if turns.is_multiple_of(SPINS) {
            thread::yield_now();
        }
        spin_loop();
    }
    Ok(())
}

/// The number of polls before it yields.
const SPINS: u32 = 16;

/// Connects `count` times, `at_once` at a time, and waits each time until the other side has accepted. Returns
/// connections per second.
pub(crate) fn tcp_connect(to: SocketAddr, count: u32, at_once: u32) -> Result<f64> {
    let start = Instant::now();
    let mut open = Vec::with_capacity(count as usize);
    while open.len() < count as usize {
        let first = open.len();
        let batch = (count as usize - first).min(at_once as usize);
        for _ in 0..batch {
            open.push(connect_nonblocking(to)?);
        }
        for stream in &mut open[first..] {
            stream.set_nonblocking(false)?;
            stream.read_exact(&mut [0])?;
        }
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

fn connect_nonblocking(to: SocketAddr) -> io::Result<TcpStream> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd.into()),
        Err(e) => Err(e.into()),
    }
}

/// Runs the other side: accepts `count` connections and confirms each.
pub(crate) fn tcp_accept(listener: &TcpListener, count: u32) -> Result<()> {
    let mut open = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(&[1])?;
        open.push(stream);
    }
    Ok(())
}

/// Connects `count` times, `at_once` at a time, waits each time until the other side has accepted and closed, and
/// closes. Returns the seconds per connection. The other side runs [`tcp_close`].
pub(super) fn tcp_connect_close(to: SocketAddr, count: u32, at_once: u32) -> Result<f64> {
    let start = Instant::now();
    let mut left = count;
    while left > 0 {
        let batch = left.min(at_once);
        let open: Vec<_> = (0..batch).map(|_| connect_nonblocking(to)).collect::<Result<_, _>>()?;
        for mut stream in open {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut rest = Vec::new();
            if stream.read_to_end(&mut rest)? != 0 {
                bail!("received data on a connection that should end");
            }
        }
        left -= batch;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(count))
}

/// Runs the other side: accepts `count` connections and closes each.
pub(super) fn tcp_close(listener: &TcpListener, count: u32) -> Result<()> {
    for _ in 0..count {
        listener.accept()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_baselines_run_against_their_servers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        thread::scope(|s| {
            s.spawn(|| {
                tcp_sink(&listener, 1000, 3).unwrap();
                tcp_accept(&listener, 5).unwrap();
                tcp_accept(&listener, 64).unwrap();
                tcp_echo(&listener, 10).unwrap();
                tcp_close(&listener, 20).unwrap();
            });
            assert!(tcp_send(addr, 1000, 3).unwrap() > 0.0);
            assert!(tcp_connect(addr, 5, 1).unwrap() > 0.0);
            assert!(tcp_connect(addr, 64, 10).unwrap() > 0.0);
            assert!(tcp_ping(addr, 10).unwrap() > 0.0);
            assert!(tcp_connect_close(addr, 20, 8).unwrap() > 0.0);
        });
    }

    #[test]
    fn relay_ping_passes_through_a_third_thread() {
        let memory = SharedMem::create("rdmux-test", 512).unwrap();
        let lines = Relay::new(&memory).unwrap();
        thread::scope(|s| {
            s.spawn(|| relay(&lines, 10).unwrap());
            s.spawn(|| relay_echo(&lines, 10).unwrap());
            assert!(relay_ping(&lines, 10).unwrap() > 0.0);
        });
        assert_eq!(lines.steps.map(|l| l.load(Ordering::Relaxed)), [10; 4]);
        lines.reset();
        assert_eq!(lines.steps.map(|l| l.load(Ordering::Relaxed)), [0; 4]);
    }

    #[test]
    fn udp_and_cache_line_ping_are_echoed() {
        let (a, b) = ("127.0.0.1:0", "127.0.0.1:0");
        let (a, b) = (UdpSocket::bind(a).unwrap(), UdpSocket::bind(b).unwrap());
        a.connect(b.local_addr().unwrap()).unwrap();
        let line = AtomicU64::new(0);
        thread::scope(|s| {
            s.spawn(|| {
                udp_echo(&b, 10).unwrap();
                line_echo(&line, 10).unwrap();
            });
            assert!(udp_ping(&a, 10).unwrap() > 0.0);
            assert!(line_ping(&line, 10).unwrap() > 0.0);
        });
        assert_eq!(line.load(Ordering::Relaxed), 20);
    }
}
