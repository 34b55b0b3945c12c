//! The bench's own side: the subjects, their order, and the number of rounds.

use std::io::IsTerminal as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rdmux::Context;
use rdmux_link::SharedMem;

use super::connections::Connector;
use super::part::LINE_WORDS;
use super::perftest::{DEPTH, Work};
use super::protocol::{Answer, Ask};
use super::rc::Rc;
use super::stats::{Figure, Goal, Unit};
use super::{Subject, perftest, plain, resources};
use rdmux_command::child::Child;
use rdmux_command::hosts::Hosts;
use rdmux_command::signals;

/// The bytes that one round of bandwidth transfers.
pub(super) const BULK: usize = 512 << 20;
/// The exchanges of one round over UDP and over shared memory.
pub(super) const PINGS: u32 = 20_000;
const RING_PINGS: u32 = 200_000;
/// The number of connections of one round, and of concurrent connects.
const CONNECTIONS: u32 = 192;
const AT_ONCE: u32 = 64;
/// The number of polls of one round.
const POLLS: u32 = 5_000_000;
/// The number of queue pairs whose cost is measured.
const MANY: usize = 1_000;
/// How long a process with idle queue pairs is observed.
const IDLE: Duration = Duration::from_secs(2);

/// The state of a run.
pub(super) struct Bench {
    pub(super) context: Context,
    /// A process on another host.
    pub(super) remote: Child,
    remote_addr: IpAddr,
    /// A process on this host.
    pub(super) local: Child,
    local_addr: IpAddr,
    pub(super) rounds: u32,
    pub(super) progress: ProgressBar,
    // Last: hosts end after everything that uses them.
    pub(super) hosts: Hosts,
}

/// The results: figures, and subjects that could not be measured.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) figures: Vec<Figure>,
    pub(super) missing: Vec<(Subject, anyhow::Error)>,
}

/// Measures all wanted subjects. After a failure the next subject gets new processes, because the previous ones may be
/// in the middle of an operation.
pub(super) fn measure(wanted: &[Subject], rounds: u32) -> Result<Outcome> {
    let mut bench = None;
    each(wanted, |subject| {
        let this = match bench.take() {
            Some(bench) => bench,
            None => Bench::new(rounds)?,
        };
        let this = bench.insert(this);
        let figures = this.measure(subject);
        this.progress.finish_and_clear();
        if figures.is_err() {
            bench = None;
        }
        figures
    })
}

/// Measures one subject after the other, regardless of failures, until a signal.
fn each(
    wanted: &[Subject],
    mut measure: impl FnMut(Subject) -> Result<Vec<Figure>>,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for subject in wanted {
        let measured = measure(*subject);
        signals::check()?;
        match measured {
            Ok(figures) => outcome.figures.extend(figures),
            Err(e) => outcome.missing.push((*subject, e)),
        }
    }
    Ok(outcome)
}

impl Bench {
    fn new(rounds: u32) -> Result<Self> {
        let progress = ProgressBar::new_spinner();
        if !std::io::stderr().is_terminal() {
            progress.set_draw_target(ProgressDrawTarget::hidden());
        }
        progress.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
        progress.enable_steady_tick(Duration::from_millis(200));
        progress.set_message("starting two hosts");
        let hosts = Hosts::up_to_end(&["bench-a", "bench-b"])?;
        Ok(Self {
            context: Context::builder().host("bench-a").open()?,
            remote: part("bench-b")?,
            remote_addr: hosts.address(1)?,
            local: part("bench-a")?,
            local_addr: hosts.address(0)?,
            rounds,
            progress,
            hosts,
        })
    }

    fn measure(&mut self, subject: Subject) -> Result<Vec<Figure>> {
        Ok(match subject {
            Subject::Bandwidth => vec![
                self.bandwidth("RC WRITE 64 KiB, UDP", 64 << 10, 64)?,
                self.bandwidth("RC WRITE 1 MiB, UDP", 1 << 20, 16)?,
            ],
            Subject::Latency => vec![self.latency()?],
            Subject::Ring => vec![self.ring()?],
            Subject::Poll => vec![self.poll_in_vain()?],
            Subject::C => self.c_library()?,
            Subject::Connections => vec![
                self.connections("connections, one at a time", 1)?,
                self.connections("connections, 64 at once", AT_ONCE)?,
            ],
            Subject::Native => vec![self.native()?],
            Subject::Resources => self.resources()?.into(),
            Subject::Xrc => self.xrc()?.into_iter().collect(),
            Subject::Mad => vec![self.mad()?],
            Subject::Migration => vec![self.migration()?],
            Subject::Multicast => vec![self.multicast(self.local_addr)?],
            Subject::Sendto => vec![self.sendto(self.local_addr)?],
            Subject::Iwarp => self.iwarp()?.into_iter().collect(),
        })
    }

    /// Alternates rounds of rdmux and of the reference.
    pub(super) fn rounds(
        &mut self,
        name: &'static str,
        mut ours: impl FnMut(&mut Self) -> Result<f64>,
        mut peer: impl FnMut(&mut Self) -> Result<f64>,
    ) -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            signals::check()?;
            self.progress.set_message(format!("{name}: round {round} of {}", self.rounds));
            b.push(peer(self)?);
            a.push(ours(self)?);
        }
        Ok((a, b))
    }

    fn bandwidth(&mut self, name: &'static str, size: usize, depth: u32) -> Result<Figure> {
        let at = self.remote_addr;
        let count = u32::try_from(BULK / size)?;
        let rc = connect(&self.context, &mut self.remote, at)?;
        if rc.is_same_host() {
            bail!("the connection between the hosts goes through shared memory");
        }
        let (ours, tcp) = self.rounds(
            name,
            |b| {
                b.remote.tell(&Ask::RcWaitMessage)?;
                let rate = rc.write(size, count, depth)?;
                rc.end.send()?;
                done(&mut b.remote)?;
                Ok(rate)
            },
            |b| {
                let to = listening(&mut b.remote, &Ask::TcpSink { at, size, count })?;
                let rate = plain::tcp_send(to, size, count)?;
                done(&mut b.remote)?;
                Ok(rate)
            },
        )?;
        hang_up(&rc, &mut self.remote)?;
        let figure = Figure::alone(name, Unit::BytesPerSecond, &ours);
        Ok(figure.beside("one TCP stream", &tcp).with_goal(Goal::AtLeast(1.0)))
    }

    fn latency(&mut self) -> Result<Figure> {
        const NAME: &str = "RC SEND 64 B one way, UDP";
        let at = self.remote_addr;
        let rc = connect(&self.context, &mut self.remote, at)?;
        let here = SocketAddr::new(self.local_addr, 0);
        let (ours, udp) = self.rounds(
            NAME,
            |b| {
                b.remote.tell(&Ask::RcEcho { count: PINGS })?;
                let time = rc.end.ping(PINGS)?;
                done(&mut b.remote)?;
                Ok(time)
            },
            |b| {
                let to = listening(&mut b.remote, &Ask::UdpEcho { at, count: PINGS })?;
                let socket = UdpSocket::bind(here)?;
                socket.connect(to)?;
                let time = plain::udp_ping(&socket, PINGS)?;
                done(&mut b.remote)?;
                Ok(time)
            },
        )?;
        hang_up(&rc, &mut self.remote)?;
        let figure = Figure::alone(NAME, Unit::Seconds, &ours);
        Ok(figure.beside("UDP ping-pong, polling", &udp).with_goal(Goal::AtMost(2.0)))
    }

    fn ring(&mut self) -> Result<Figure> {
        const NAME: &str = "RC SEND 64 B one way, same host";
        let rc = connect(&self.context, &mut self.local, self.local_addr)?;
        if !rc.is_same_host() {
            bail!("the connection within the host does not go through shared memory");
        }
        let memory = SharedMem::create("rdmux-bench", LINE_WORDS)?;
        let fd = memory.duplicate()?;
        let file = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let (ours, line) = self.rounds(
            NAME,
            |b| {
                b.local.tell(&Ask::RcEcho { count: RING_PINGS })?;
                let time = rc.end.ping(RING_PINGS)?;
                done(&mut b.local)?;
                Ok(time)
            },
            |b| {
                let Some(line) = memory.words().first() else {
                    bail!("the shared memory is too small")
                };
                line.store(0, std::sync::atomic::Ordering::Release);
                let count = RING_PINGS.into();
                b.local.tell(&Ask::LineEcho { file: file.clone(), count })?;
                let time = plain::line_ping(line, count)?;
                done(&mut b.local)?;
                Ok(time)
            },
        )?;
        hang_up(&rc, &mut self.local)?;
        Ok(Figure::alone(NAME, Unit::Seconds, &ours).beside("a cache line, polling", &line))
    }

    fn poll_in_vain(&mut self) -> Result<Figure> {
        let mut times = Vec::new();
        for _ in 0..self.rounds {
            signals::check()?;
            // A separate process: one that has communicated with another host has sockets to poll.
            let mut child = part("bench-a")?;
            match child.ask(&Ask::PollInVain { count: POLLS })? {
                Answer::Took(seconds) => times.push(seconds / f64::from(POLLS)),
                other => bail!("the other process sent {other:?}, not Took"),
            }
        }
        let figure = Figure::alone("poll of an empty completion queue", Unit::Seconds, &times);
        Ok(figure.with_limit(20e-9))
    }

    /// Compares perftest's programs on the C library with the same work through the Rust API.
    fn c_library(&mut self) -> Result<Vec<Figure>> {
        perftest::require_all()?;
        let rc = connect(&self.context, &mut self.local, self.local_addr)?;
        let mut figures = Vec::new();
        for case in perftest::CASES {
            let (c, rust) = self.rounds(
                case.name,
                |_| case.run("bench-a"),
                |b| match case.work {
                    Work::Send => {
                        b.local.tell(&Ask::RcEcho { count: RING_PINGS })?;
                        let time = rc.end.ping(RING_PINGS)?;
                        done(&mut b.local)?;
                        Ok(time)
                    }
                    Work::Write => rc.write(case.size, case.count, DEPTH),
                    Work::Read => rc.read(case.size, case.count, DEPTH),
                },
            )?;
            figures.push(case.figure(&c, &rust));
        }
        hang_up(&rc, &mut self.local)?;
        Ok(figures)
    }

    fn connections(&mut self, name: &'static str, at_once: u32) -> Result<Figure> {
        let (at, count) = (self.remote_addr, CONNECTIONS);
        let connector = Connector::new(&self.context)?;
        let (ours, tcp) = self.rounds(
            name,
            |b| {
                let to = listening(&mut b.remote, &Ask::CmAccept { at, count })?;
                let (nodes, rate) =
                    connector.connect(to, CONNECTIONS as usize, at_once as usize)?;
                connector.disconnect(nodes)?;
                done(&mut b.remote)?;
                Ok(rate)
            },
            |b| {
                let to = listening(&mut b.remote, &Ask::TcpAccept { at, count })?;
                let rate = plain::tcp_connect(to, count, at_once)?;
                done(&mut b.remote)?;
                Ok(rate)
            },
        )?;
        let figure = Figure::alone(name, Unit::PerSecond, &ours);
        Ok(figure.beside("TCP connect and accept", &tcp).with_goal(Goal::AtMost(10.0)))
    }

    /// Measures a thousand connected queue pairs: their memory, and their processor time when idle.
    fn resources(&mut self) -> Result<[Figure; 2]> {
        self.progress.set_message(format!("{MANY} queue pairs"));
        let connector = Connector::new(&self.context)?;
        let count = u32::try_from(MANY)?;
        let ask = Ask::CmAccept { at: self.remote_addr, count };
        let to = listening(&mut self.remote, &ask)?;
        let before = resources::resident()?;
        let (nodes, _) = connector.connect(to, MANY, AT_ONCE as usize)?;
        let each = resources::resident()?.saturating_sub(before) as f64 / f64::from(count);

        self.progress.set_message(format!("{MANY} idle queue pairs for {} s", IDLE.as_secs()));
        self.progress.disable_steady_tick();
        // Lets the work that connecting leaves finish before the measurement begins.
        thread::sleep(Duration::from_millis(200));
        let used = resources::cpu_time()?;
        thread::sleep(IDLE);
        let idle = (resources::cpu_time()? - used) / IDLE.as_secs_f64();
        self.progress.enable_steady_tick(Duration::from_millis(200));

        connector.disconnect(nodes)?;
        done(&mut self.remote)?;
        let memory = Figure::alone("memory of a connected queue pair", Unit::Bytes, &[each]);
        let processor =
            Figure::alone("processor, 1,000 idle queue pairs", Unit::Processors, &[idle]);
        Ok([memory, processor])
    }
}

/// Starts another process on this host.
pub(super) fn part(host: &str) -> Result<Child> {
    Child::spawn(format!("of {host}"), &["--host", host, "part", "bench"])
}

/// Connects to a process, which then keeps its side.
pub(super) fn connect(context: &Context, to: &mut Child, at: IpAddr) -> Result<Rc> {
    let address = listening(to, &Ask::RcAccept { at })?;
    let rc = Rc::connect(context, address)?;
    done(to)?;
    Ok(rc)
}

/// Ends a connection on both sides.
pub(super) fn hang_up(rc: &Rc, other: &mut Child) -> Result<()> {
    rc.disconnect()?;
    other.tell(&Ask::RcWaitDisconnected)?;
    done(other)
}

/// Sends a request that listens. Returns its address.
pub(super) fn listening(child: &mut Child, ask: &Ask) -> Result<SocketAddr> {
    match child.ask(ask)? {
        Answer::Listening(at) => Ok(at),
        other => bail!("{ask:?} was answered by {other:?}"),
    }
}

/// Waits until a request is done.
pub(super) fn done(child: &mut Child) -> Result<()> {
    match child.hear()? {
        Answer::Done => Ok(()),
        other => bail!("the other process sent {other:?}, not Done"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_benchmark_subject_does_not_stop_the_others() {
        let wanted = [Subject::Bandwidth, Subject::C, Subject::Ring];
        let outcome = each(&wanted, |subject| match subject {
            Subject::C => bail!("ib_send_lat failed"),
            _ => Ok(vec![Figure::alone("a figure", Unit::Seconds, &[1.0])]),
        })
        .unwrap();
        assert_eq!(outcome.figures.len(), 2);
        let missing: Vec<_> = outcome.missing.iter().map(|(subject, _)| *subject).collect();
        assert_eq!(missing, [Subject::C]);
    }
}
