//! XRC compared with RC and a shared receive queue: rate, latency and memory.

use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, bail};
use rdmux_link::SharedMem;

use super::part::LINE_WORDS;
use super::plain::{self, Relay};
use super::protocol::{Answer, Ask};
use super::run::{Bench, done, part};
use super::shared::{Hello, Kind, SENDS, Shared};
use super::stats::{Figure, Goal, Unit};
use rdmux_command::child::Child;

/// XRC may take at most this much longer.
const GOAL: Goal = Goal::AtLeast(1.0 / 1.5);
const RC: &str = "RC with a shared receive queue";
/// The number of processes of each host that communicate with each process of the other.
const PROCESSES: u64 = 64;
/// The basis of the memory figures.
pub(super) const NOTE: &str = "\
64 by 64: each of 64 processes of a host sends to each of 64 of another. The memory of 64 connections between one process
of each host is measured and extrapolated. Shared receive queues are as many in both cases and not counted. The rings
use memory only as far as they have been written, and their number does not depend on the number of senders.";

/// The processes that a case connects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    Udp,
    Ring,
}

/// A case to measure, over each link.
struct Case {
    link: Link,
    name: &'static str,
    size: usize,
    count: u32,
}

const RATES: [Case; 4] = [
    Case { link: Link::Udp, name: "XRC SEND 64 B, UDP", size: 64, count: 128 << 10 },
    Case { link: Link::Udp, name: "XRC SEND 64 KiB, UDP", size: 64 << 10, count: 8 << 10 },
    Case { link: Link::Ring, name: "XRC SEND 64 B, same host", size: 64, count: 512 << 10 },
    Case { link: Link::Ring, name: "XRC SEND 64 KiB, same host", size: 64 << 10, count: 16 << 10 },
];
const LATENCIES: [Case; 2] = [
    Case { link: Link::Udp, name: "XRC SEND 64 B one way, UDP", size: 64, count: 10_000 },
    Case { link: Link::Ring, name: "XRC SEND 64 B one way, same host", size: 64, count: 50_000 },
];

impl Bench {
    /// Measures all figures of XRC.
    pub(super) fn xrc(&mut self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for case in &RATES {
            figures.push(self.rate(case)?);
        }
        for case in &LATENCIES {
            figures.push(self.beside_rc(case)?);
        }
        figures.push(self.beside_three_processes(&LATENCIES[1])?);
        figures.extend(self.memory()?);
        Ok(figures)
    }

    fn other(&mut self, link: Link) -> &mut Child {
        match link {
            Link::Udp => &mut self.remote,
            Link::Ring => &mut self.local,
        }
    }

    /// Connects to the process on the other end of a link.
    fn shared(&mut self, link: Link, kind: Kind) -> Result<Shared> {
        let mut ours = Shared::new(&self.context, kind)?;
        let hello = ours.hello();
        let other = self.other(link);
        let Answer::Hello(theirs) = other.ask(&Ask::SharedMake(kind))? else { bail!(UNEXPECTED) };
        connect(&mut ours, other, &hello, &theirs)?;
        if ours.end.qp.is_same_host() != (link == Link::Ring) {
            bail!("the connection uses the wrong link: shared memory or not");
        }
        Ok(ours)
    }

    /// Destroys the connections of [`shared`](Self::shared).
    fn forget(&mut self, link: Link) -> Result<()> {
        let other = self.other(link);
        other.tell(&Ask::SharedForget)?;
        done(other)
    }

    fn rate(&mut self, case: &Case) -> Result<Figure> {
        let &Case { link, name, size, count } = case;
        let measure = |b: &mut Self, kind| {
            let shared = b.shared(link, kind)?;
            b.other(link).tell(&Ask::SharedSink { count })?;
            let time = shared.end.send_all(size, count, SENDS)?;
            done(b.other(link))?;
            b.forget(link)?;
            Ok(f64::from(count) / time)
        };
        let (xrc, rc) = self.rounds(name, |b| measure(b, Kind::Xrc), |b| measure(b, Kind::Rc))?;
        // Small messages are counted, large ones are measured in bytes.
        let unit = if size < 4096 { Unit::Messages } else { Unit::BytesPerSecond };
        let scale = if unit == Unit::Messages { 1.0 } else { size as f64 };
        let scaled = |rates: Vec<f64>| rates.iter().map(|r| r * scale).collect::<Vec<_>>();
        Ok(Figure::alone(name, unit, &scaled(xrc)).beside(RC, &scaled(rc)).with_goal(GOAL))
    }

    /// Returns the seconds one way.
    fn ping(&mut self, case: &Case, kind: Kind) -> Result<f64> {
        let &Case { link, count, .. } = case;
        let shared = self.shared(link, kind)?;
        self.other(link).tell(&Ask::SharedEcho { count })?;
        let time = shared.end.ping(count)?;
        done(self.other(link))?;
        self.forget(link)?;
        Ok(time)
    }

    fn beside_rc(&mut self, case: &Case) -> Result<Figure> {
        let (xrc, rc) =
            self.rounds(case.name, |b| b.ping(case, Kind::Xrc), |b| b.ping(case, Kind::Rc))?;
        Ok(Figure::alone(case.name, Unit::Seconds, &xrc).beside(RC, &rc))
    }

    /// Compares with a turn that a third process relays, as the host's service does with packets.
    fn beside_three_processes(&mut self, case: &Case) -> Result<Figure> {
        let memory = SharedMem::create("rdmux-bench", LINE_WORDS)?;
        let fd = memory.duplicate()?;
        let file = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let mut third = part("bench-a")?;
        let count = case.count.into();
        let (xrc, lines) = self.rounds(
            case.name,
            |b| b.ping(case, Kind::Xrc),
            |b| {
                let relay = Relay::new(&memory).context("the shared memory is too small")?;
                relay.reset();
                third.tell(&Ask::LinesRelay { file: file.clone(), count })?;
                b.local.tell(&Ask::LinesEcho { file: file.clone(), count })?;
                let time = plain::relay_ping(&relay, count)?;
                done(&mut third)?;
                done(&mut b.local)?;
                Ok(time)
            },
        )?;
        let figure = Figure::alone(case.name, Unit::Seconds, &xrc);
        Ok(figure.beside("cache lines through a third process", &lines))
    }

    /// Measures the memory of a host's queue pairs if each process sends to each of the other host.
    fn memory(&mut self) -> Result<Vec<Figure>> {
        self.progress.set_message("memory of XRC and RC");
        let (rc, _) = self.footprints(Kind::Rc)?;
        let (xrc, targets) = self.footprints(Kind::Xrc)?;
        let each = PROCESSES as f64;
        // RC: one from each process to each. XRC: each has one queue pair to the other host, and one target there.
        let (many, few) = (each * each, each);
        Ok(vec![
            Figure::alone("queue pairs a host, 64 by 64, XRC", Unit::Count, &[2.0 * few])
                .beside(RC, &[many]),
            Figure::alone("their memory", Unit::Bytes, &[few * (xrc + targets)])
                .beside(RC, &[many * rc]),
            Figure::alone("rings from the hub, 64, at most", Unit::Bytes, &[each * RING]),
        ])
    }

    /// Returns the bytes of a sending queue pair, and of the target that it sends to, as means of one process. The
    /// targets are the other host's.
    fn footprints(&mut self, kind: Kind) -> Result<(f64, f64)> {
        let all: Vec<_> =
            (0..PROCESSES).map(|_| self.shared(Link::Udp, kind)).collect::<Result<_>>()?;
        let qps: usize = all.iter().map(|s| s.end.qp.footprint()).sum();
        let status = self.hosts.status(1)?;
        let theirs = |qpn: u32| all.iter().any(|s| s.end.qp.qpn().get() == qpn);
        let targets: Vec<_> =
            status.xrc_targets.iter().filter(|t| theirs(t.dest_qpn)).map(|t| t.bytes).collect();
        if kind == Kind::Xrc && targets.len() != all.len() {
            bail!("host bench-b has {} targets for {} senders", targets.len(), all.len());
        }
        let (qps, targets) = (qps as f64, targets.iter().sum::<u64>() as f64);
        drop(all);
        self.forget(Link::Udp)?;
        Ok((qps / PROCESSES as f64, targets / PROCESSES as f64))
    }
}

/// The bytes of the ring through which the hub reaches a process.
const RING: f64 = rdmux_link::ring::DEFAULT_CAPACITY as f64;
const UNEXPECTED: &str = "the other process sent an unexpected answer";

/// Connects both sides.
fn connect(ours: &mut Shared, other: &mut Child, hello: &Hello, theirs: &Hello) -> Result<()> {
    let number = ours.accept(theirs)?;
    match other.ask(&Ask::SharedConnect { peer: *hello, number })? {
        Answer::Number(number) => ours.connect(theirs, number),
        _ => bail!(UNEXPECTED),
    }
}
