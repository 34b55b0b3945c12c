//! iWARP: the throughput of queue pairs over TCP streams, compared with a TCP stream.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::Instant;

use anyhow::Result;
use rdmux::{Context, DeviceKind};

use super::plain;
use super::protocol::Ask;
use super::rc::Rc;
use super::run::{BULK, Bench, PINGS, done, hang_up, listening};
use super::stats::{Figure, Goal, Unit};
use rdmux_command::child::Child;
use rdmux_command::hosts::Hosts;

/// The name of the reference, one TCP stream of the same run.
const STREAM: &str = "one TCP stream";
/// The number of connections of one round, one after another.
const CONNECTIONS: u32 = 32;

/// The operation to measure.
#[derive(Clone, Copy)]
enum Work {
    Write,
    Read,
}

/// Two hosts, and a process on the second one.
struct Pair {
    context: Context,
    remote: Child,
    at: IpAddr,
    // Last: hosts end after everything that uses them.
    _hosts: Option<Hosts>,
}

impl Pair {
    fn new(near: &str, far: &str, at: IpAddr, hosts: Option<Hosts>) -> Result<Self> {
        let context = Context::builder().host(near).device(DeviceKind::Iwarp).open()?;
        let args = ["--host", far, "part", "bench"];
        let remote = Child::spawn_with(format!("of {far}"), &args, &[("RDMUX_DEVICE", "iw")])?;
        Ok(Self { context, remote, at, _hosts: hosts })
    }

    fn connect(&mut self, peer_to_peer: Option<bool>) -> Result<Rc> {
        let to = listening(&mut self.remote, &Ask::RcAccept { at: self.at })?;
        let rc = Rc::connect_as(&self.context, to, peer_to_peer)?;
        done(&mut self.remote)?;
        Ok(rc)
    }
}

impl Bench {
    /// Measures all figures of iWARP.
    pub(super) fn iwarp(&mut self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        let mut pair = Pair::new("bench-a", "bench-b", self.hosts.address(1)?, None)?;
        for (name, work, size) in [
            ("iWARP WRITE 64 KiB", Work::Write, 64 << 10),
            ("iWARP WRITE 1 MiB", Work::Write, 1 << 20),
            ("iWARP READ 64 KiB", Work::Read, 64 << 10),
            ("iWARP READ 1 MiB", Work::Read, 1 << 20),
        ] {
            let figure = self.stream_bandwidth(&mut pair, name, work, size)?;
            figures.push(figure.with_goal(Goal::AtLeast(0.85)));
        }
        figures.push(self.stream_latency(&mut pair)?);
        figures.push(self.peer_to_peer(&mut pair)?);
        drop(pair);

        let mut config = tempfile::NamedTempFile::new()?;
        writeln!(config, "[iwarp]\ncrc = true")?;
        let names = ["bench-crc-a", "bench-crc-b"];
        let hosts = Hosts::up_configured(&names, config.path())?;
        let mut pair = Pair::new(names[0], names[1], hosts.address(1)?, Some(hosts))?;
        for (name, work, size) in [
            ("iWARP WRITE 1 MiB, with CRC", Work::Write, 1 << 20),
            ("iWARP READ 1 MiB, with CRC", Work::Read, 1 << 20),
        ] {
            figures.push(self.stream_bandwidth(&mut pair, name, work, size)?);
        }
        Ok(figures)
    }

    /// Measures bandwidth until the other side has received and confirmed everything, for both.
    fn stream_bandwidth(
        &mut self,
        pair: &mut Pair,
        name: &'static str,
        work: Work,
        size: usize,
    ) -> Result<Figure> {
        let count = u32::try_from(BULK / size)?;
        let depth = if size < 1 << 20 { 64 } else { 16 };
        let rc = pair.connect(None)?;
        let pair = std::cell::RefCell::new(pair);
        let (ours, tcp) = self.rounds(
            name,
            |_| {
                let remote = &mut pair.borrow_mut().remote;
                match work {
                    Work::Read => rc.read(size, count, depth),
                    Work::Write => {
                        remote.tell(&Ask::RcWaitMessage)?;
                        let start = Instant::now();
                        rc.write(size, count, depth)?;
                        rc.end.send()?;
                        done(remote)?;
                        Ok(size as f64 * f64::from(count) / start.elapsed().as_secs_f64())
                    }
                }
            },
            |_| {
                let Pair { remote, at, .. } = &mut **pair.borrow_mut();
                let to = listening(remote, &Ask::TcpSink { at: *at, size, count })?;
                let rate = plain::tcp_send(to, size, count)?;
                done(remote)?;
                Ok(rate)
            },
        )?;
        hang_up(&rc, &mut pair.borrow_mut().remote)?;
        Ok(Figure::alone(name, Unit::BytesPerSecond, &ours).beside(STREAM, &tcp))
    }

    fn stream_latency(&mut self, pair: &mut Pair) -> Result<Figure> {
        const NAME: &str = "iWARP SEND 64 B one way";
        let rc = pair.connect(None)?;
        let pair = std::cell::RefCell::new(pair);
        let (ours, tcp) = self.rounds(
            NAME,
            |_| {
                let remote = &mut pair.borrow_mut().remote;
                remote.tell(&Ask::RcEcho { count: PINGS })?;
                let time = rc.end.ping(PINGS)?;
                done(remote)?;
                Ok(time)
            },
            |_| {
                let Pair { remote, at, .. } = &mut **pair.borrow_mut();
                let to = listening(remote, &Ask::TcpEcho { at: *at, count: PINGS })?;
                let time = plain::tcp_ping(to, PINGS)?;
                done(remote)?;
                Ok(time)
            },
        )?;
        hang_up(&rc, &mut pair.borrow_mut().remote)?;
        let figure = Figure::alone(NAME, Unit::Seconds, &ours);
        Ok(figure.beside("TCP ping-pong, polling", &tcp).with_goal(Goal::AtMost(1.3)))
    }

    /// Compares a connection in peer-to-peer mode with one without. The connecting side sends an additional ready-to-receive frame and does
    /// not wait for it.
    fn peer_to_peer(&mut self, pair: &mut Pair) -> Result<Figure> {
        const NAME: &str = "iWARP connection, peer-to-peer";
        let pair = std::cell::RefCell::new(pair);
        let connect = |mode: bool| -> Result<f64> {
            let mut spent = 0.0;
            for _ in 0..CONNECTIONS {
                let pair = &mut **pair.borrow_mut();
                let to = listening(&mut pair.remote, &Ask::RcAccept { at: pair.at })?;
                let start = Instant::now();
                let rc = Rc::connect_as(&pair.context, to, Some(mode))?;
                done(&mut pair.remote)?;
                spent += start.elapsed().as_secs_f64();
                hang_up(&rc, &mut pair.remote)?;
            }
            Ok(spent / f64::from(CONNECTIONS))
        };
        let (with, without) = self.rounds(NAME, |_| connect(true), |_| connect(false))?;
        Ok(Figure::alone(NAME, Unit::Seconds, &with).beside("the same without", &without))
    }
}
