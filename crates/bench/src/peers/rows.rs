//! The rows measured by programs on this machine, and the order of their rounds.

use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::process::{PTracer, Pid, set_ptracer};

use super::super::plain;
use super::super::programs::{calibrated, free_port, on_host, pair, require, tcp_listens};
use super::acm::Manager;
use super::administration::{Both, Client, Sizes};
use super::copy::{Buffer, Line};
use super::fabrics::Ground;
use super::figure::Figure;
use super::infiniband::Subnet;
use super::opensm::Up;
use super::part::{Answer, Ask};
use super::spec::Row;
use super::{memory, opensm, parse};
use rdmux_command::child::Child;
use rdmux_command::hosts::Hosts;
use rdmux_command::signals;

/// The hosts.
const HOSTS: [&str; 2] = ["bench-a", "bench-b"];
const MIB: usize = 1 << 20;
/// The number of copies of 1 MiB in a round, as in perftest.
const COPIES: u32 = 6_000;
/// The number of ping-pong turns in a round.
const PINGS: u32 = 200_000;
const UDP_PINGS: u32 = 30_000;
const CONNECTIONS: u32 = 1_000;
/// The number of concurrent TCP connects: more do not make it faster.
const AT_ONCE: u32 = 64;

/// The program for rows between hosts.
const WIDE: &str = "ib_write_bw -s 65536 -n 30000";
const SMALL: &str = "ib_send_lat -s 64 -n 30000";

/// The location of a queue pair's peer: the number of its host.
const SAME: usize = 0;
const OTHER: usize = 1;

/// Extracts a figure from a program's output.
type Parse = fn(&str) -> Result<f64>;
/// Variables for a program's environment.
type Variables<'v> = &'v [(&'v str, &'v str)];

/// Makes each side lose one of a hundred received packets.
const LOSS: Variables<'_> = &[("RDMUX_LOSS", "1")];

/// The state of a run.
pub(super) struct Bench {
    rounds: u32,
    progress: ProgressBar,
    hosts: Hosts,
    /// The figures of rows that were measured together with others, and not requested yet.
    taken: RefCell<Vec<(Row, Result<Figure>)>>,
}

impl Bench {
    pub(super) fn new(rounds: u32) -> Result<Self> {
        let progress = ProgressBar::new_spinner();
        if !std::io::stderr().is_terminal() {
            progress.set_draw_target(ProgressDrawTarget::hidden());
        }
        progress.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
        Ok(Self { rounds, progress, hosts: Hosts::up_to_end(&HOSTS)?, taken: RefCell::default() })
    }

    /// Prints the name of the measurement.
    pub(super) fn say(&self, what: &str) {
        self.progress.set_message(what.to_owned());
        self.progress.tick();
    }

    /// Measures a row.
    pub(super) fn measure(&self, row: Row) -> Result<Figure> {
        let latency = |line, to, env| self.perftest(line, to, env, parse::perftest_latency);
        let bandwidth = |line, to, env| self.perftest(line, to, env, parse::perftest_bandwidth);
        let rate = |line| self.perftest(line, SAME, &[], parse::perftest_messages);
        match row {
            Row::SendLat => self.alternate(
                row,
                || latency("ib_send_lat -s 8 -n 300000", SAME, &[]),
                || ucx("posix,self", "-t tag_lat -s 8 -n 500000", parse::ucx_latency),
            ),
            Row::WriteLat => {
                self.write_latency(row, || latency("ib_write_lat -s 8 -n 300000", SAME, &[]))
            }
            Row::WriteBw => {
                self.copies(row, || bandwidth("ib_write_bw -s 1048576 -n 6000", SAME, &[]))
            }
            Row::ReadBw => {
                self.copies(row, || bandwidth("ib_read_bw -s 1048576 -n 6000", SAME, &[]))
            }
            Row::SendBw => self.alternate(
                row,
                || bandwidth("ib_send_bw -s 1048576 -n 5000", SAME, &[]),
                || {
                    ucx(
                        "posix,cma,self",
                        "-t tag_bw -s 1048576 -n 5000 -w 500",
                        parse::ucx_bandwidth,
                    )
                },
            ),
            Row::Rate => self.alternate(
                row,
                || rate("ib_send_bw -s 8 -n 2000000"),
                || ucx("posix,self", "-t tag_bw -s 8 -n 3000000", parse::ucx_messages),
            ),
            Row::UdpBw => self.alternate(row, || bandwidth(WIDE, OTHER, &[]), iperf3),
            Row::UdpUcx => self.alternate(
                row,
                || bandwidth(WIDE, OTHER, &[]),
                || ucx("tcp,self", "-t tag_bw -s 65536 -n 20000 -w 1000", parse::ucx_bandwidth),
            ),
            Row::UdpLat => self.udp_latency(row, || latency(SMALL, OTHER, &[])),
            Row::LossBw => {
                self.alternate(row, || bandwidth(WIDE, OTHER, LOSS), || bandwidth(WIDE, OTHER, &[]))
            }
            Row::LossLat => {
                self.alternate(row, || latency(SMALL, OTHER, LOSS), || latency(SMALL, OTHER, &[]))
            }
            Row::Connect => self.connections(row),
            Row::Opensm => {
                let ground = Ground::new()?;
                self.alternate(row, || opensm::on_ours(&ground), || opensm::on_ibsim(&ground))
            }
            Row::SubnetUp | Row::SubnetMemory => self.together(row, Self::own_manager),
            Row::Path | Row::Paths | Row::Joins => self.together(row, Self::administration),
            Row::PathGrowth => {
                let ground = Ground::new()?;
                let Sizes { small, large } = Sizes::new(&ground)?;
                let time = |client: &Client| Ok(1.0 / client.paths(1)?);
                self.alternate(row, || time(&large), || time(&small))
            }
            Row::AcmLat => self.acm_latency(row),
            Row::AcmRate => self.acm_rate(row),
            Row::AcmLibrary => self.acm_library(row),
            Row::AcmCold => self.acm_cold(row),
            Row::AcmPairs => self.acm_pairs(row, Manager::Own),
            Row::AcmPairsOpensm => self.acm_pairs(row, Manager::OpenSm),
            Row::Memory => {
                self.say(row.spec().what);
                memory::measure(row)
            }
            Row::IbLat
            | Row::IbBw
            | Row::IbLongBw
            | Row::IbHostsLat
            | Row::IbHostsBw
            | Row::IbHostsLongBw
            | Row::IbUdpBw => {
                let subnet = Subnet::new()?;
                self.alternate(row, || subnet.ours(row), || subnet.peer(row))
            }
            Row::GuestBw | Row::GuestLat | Row::GuestCm => bail!("this is measured in a guest"),
        }
    }

    /// Returns one of several rows that are measured together. The first call measures all of them.
    fn together(
        &self,
        row: Row,
        measure: impl FnOnce(&Self) -> Result<Vec<(Row, Result<Figure>)>>,
    ) -> Result<Figure> {
        let mut taken = self.taken.borrow_mut();
        let place = |taken: &[(Row, _)]| taken.iter().position(|(other, _)| *other == row);
        if place(&taken).is_none() {
            taken.extend(measure(self)?);
        }
        let at = place(&taken).context("this row is not measured together with others")?;
        taken.swap_remove(at).1
    }

    /// Measures rdmux's manager compared with OpenSM on ibsim: time and memory.
    fn own_manager(&self) -> Result<Vec<(Row, Result<Figure>)>> {
        let ground = Ground::new()?;
        let (mut ours, mut peer) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            signals::check()?;
            let spec = Row::SubnetUp.spec();
            self.say(&format!("{}: round {round} of {}", spec.what, self.rounds));
            peer.push(opensm::beside_manager(&ground).context(spec.peer)?);
            ours.push(opensm::own_manager(&ground)?);
        }
        let figure = |row, of: fn(&Up) -> f64| {
            let of = |ups: &[Up]| ups.iter().map(of).collect::<Vec<_>>();
            (row, Ok(Figure::new(row, &of(&ours), &of(&peer))))
        };
        Ok(vec![figure(Row::SubnetUp, |up| up.time), figure(Row::SubnetMemory, |up| up.memory)])
    }

    /// Measures rdmux's subnet administration compared with OpenSM's.
    fn administration(&self) -> Result<Vec<(Row, Result<Figure>)>> {
        self.say("queries to subnet administration");
        let ground = Ground::new()?;
        let Both { ours, opensm } = Both::new(&ground)?;
        let figure = |row, ask: fn(&Client) -> Result<f64>| {
            (row, self.alternate(row, || ask(&ours), || ask(&opensm)))
        };
        Ok(vec![
            figure(Row::Path, |client| client.paths(1)),
            figure(Row::Paths, |client| client.paths(64)),
            figure(Row::Joins, Client::joins),
        ])
    }

    /// Returns the number of rounds.
    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Alternates rounds of the reference and of rdmux.
    pub(super) fn alternate(
        &self,
        row: Row,
        mut ours: impl FnMut() -> Result<f64>,
        mut peer: impl FnMut() -> Result<f64>,
    ) -> Result<Figure> {
        let spec = row.spec();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            signals::check()?;
            self.say(&format!("{}: round {round} of {}", spec.what, self.rounds));
            b.push(peer().with_context(|| spec.peer)?);
            a.push(ours()?);
        }
        Ok(Figure::new(row, &a, &b))
    }

    /// Runs a program of perftest and its server on host number `to`.
    fn perftest(
        &self,
        line: &str,
        to: usize,
        variables: Variables<'_>,
        parse: Parse,
    ) -> Result<f64> {
        let (program, args) = line.split_once(' ').context("the command line has no arguments")?;
        calibrated(|| {
            let port = free_port()?;
            let command = |host| -> Result<Command> {
                let mut command = on_host(host, program)?;
                command.args(args.split(' ')).args(["-F", "-p", &port.to_string()]);
                command.envs(variables.iter().copied());
                Ok(command)
            };
            let mut client = command(HOSTS[SAME])?;
            client.arg(self.hosts.address(to)?.to_string());
            pair(&mut command(HOSTS[to])?, &mut client, || Ok(tcp_listens(port)), parse)
        })
    }

    fn write_latency(&self, row: Row, ours: impl FnMut() -> Result<f64>) -> Result<Figure> {
        let line = Line(AtomicU64::new(0));
        let mut peer = stranger()?;
        let (here, there) = (i32::try_from(std::process::id())?, i32::try_from(peer.id())?);
        let tracer = Pid::from_raw(there).context("the process has no id")?;
        // A kernel without Yama refuses this, and does not need it.
        let _ = set_ptracer(PTracer::ProcessID(tracer));
        let va = memory_of(&mut peer, &Ask::Line)?;
        self.alternate(row, ours, || {
            peer.tell(&Ask::LineEcho { pid: here, va: line.address(), count: PINGS.into() })?;
            let time = line.ping(there, va, PINGS.into())?;
            done(&mut peer)?;
            Ok(time)
        })
    }

    /// Measures copies between as much memory as perftest has: one buffer on each side.
    fn copies(&self, row: Row, ours: impl FnMut() -> Result<f64>) -> Result<Figure> {
        let mut buffer = Buffer::new(MIB);
        let mut peer = stranger()?;
        let (pid, va) = (i32::try_from(peer.id())?, memory_of(&mut peer, &Ask::Memory(MIB))?);
        self.alternate(row, ours, || match row {
            Row::ReadBw => buffer.read(pid, va, COPIES),
            _ => buffer.write(pid, va, COPIES),
        })
    }

    fn udp_latency(&self, row: Row, ours: impl FnMut() -> Result<f64>) -> Result<Figure> {
        let (here, at) = (self.hosts.address(SAME)?, self.hosts.address(OTHER)?);
        let mut peer = stranger()?;
        self.alternate(row, ours, || {
            let to = listening(&mut peer, &Ask::UdpEcho { at, count: UDP_PINGS })?;
            let socket = UdpSocket::bind(SocketAddr::new(here, 0))?;
            socket.connect(to)?;
            let time = plain::udp_ping(&socket, UDP_PINGS)?;
            done(&mut peer)?;
            Ok(time)
        })
    }

    /// Measures connections. cmtime takes all connections through one step after the other. All steps count, because
    /// a TCP connection is also opened, accepted and closed.
    fn connections(&self, row: Row) -> Result<Figure> {
        let mut peer = stranger()?;
        let at = self.hosts.address(SAME)?;
        let ours = || {
            let port = free_port()?;
            let command = || -> Result<Command> {
                let mut command = on_host(HOSTS[SAME], "cmtime")?;
                command.args(["-p", &port.to_string()]);
                Ok(command)
            };
            let mut client = command()?;
            client.args(["-c", &CONNECTIONS.to_string(), "-s", &at.to_string()]);
            let listens = || self.hosts.has_listener(SAME, port);
            pair(&mut command()?, &mut client, listens, parse::cmtime)
        };
        self.alternate(row, ours, || {
            let to = listening(&mut peer, &Ask::TcpClose { at, count: CONNECTIONS })?;
            let time = plain::tcp_connect_close(to, CONNECTIONS, AT_ONCE)?;
            done(&mut peer)?;
            Ok(time)
        })
    }
}

/// Starts a process that does not use rdmux.
pub(super) fn stranger() -> Result<Child> {
    Child::spawn("that rdmux is compared with", &["part", "bench-peer"])
}

fn memory_of(peer: &mut Child, ask: &Ask) -> Result<u64> {
    match peer.ask(ask)? {
        Answer::Memory(va) => Ok(va),
        other => bail!("{ask:?} was answered by {other:?}"),
    }
}

fn listening(peer: &mut Child, ask: &Ask) -> Result<SocketAddr> {
    match peer.ask(ask)? {
        Answer::Listening(at) => Ok(at),
        other => bail!("{ask:?} was answered by {other:?}"),
    }
}

/// Waits for the answer that a request is done.
pub(super) fn done(peer: &mut Child) -> Result<()> {
    match peer.hear()? {
        Answer::Done => Ok(()),
        other => bail!("the other process sent {other:?}, not Done"),
    }
}

/// Runs `ucx_perftest` and its server on these transports.
fn ucx(transports: &str, args: &str, parse: Parse) -> Result<f64> {
    const PROGRAM: &str = "ucx_perftest";
    require(PROGRAM)?;
    let port = free_port()?;
    let command = || {
        let mut command = Command::new(PROGRAM);
        // The receiver reads a large message: this is the faster of the two schemes of cma with one copy.
        command.env("UCX_TLS", transports).env("UCX_RNDV_SCHEME", "get_zcopy");
        command.env("UCX_NET_DEVICES", "lo").env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command.args(["-p", &port.to_string()]);
        command
    };
    let mut client = command();
    client.arg("127.0.0.1").args(args.split(' ')).args(["-f", "-v"]);
    pair(&mut command(), &mut client, || Ok(tcp_listens(port)), parse)
}

/// Measures one TCP stream over the loopback interface for a second. Returns bytes per second.
fn iperf3() -> Result<f64> {
    const PROGRAM: &str = "iperf3";
    const HERE: &str = "127.0.0.1";
    require(PROGRAM)?;
    let port = free_port()?;
    let command = || {
        let mut command = Command::new(PROGRAM);
        command.args(["--port", &port.to_string()]);
        command
    };
    let (mut server, mut client) = (command(), command());
    server.args(["--server", "--one-off", "--bind", HERE]);
    client.args(["--client", HERE, "--time", "1", "--json"]);
    pair(&mut server, &mut client, || Ok(tcp_listens(port)), parse::iperf3)
}
