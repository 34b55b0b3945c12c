//! `rdmux soak`: repeats an operation so often that leaks become visible.

mod acm;
mod gauge;
mod part;

use std::net::IpAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use rdmux::Gid;
use tempfile::{NamedTempFile, TempPath};

use self::gauge::Reading;
use self::part::{Answer, Ask, BATCH};
use crate::Global;
use rdmux_command::child::Child;
use rdmux_command::hosts::Hosts;
use rdmux_command::{output, signals, try_say};

/// What can be done for long.
#[derive(Subcommand)]
pub(crate) enum Soak {
    /// Connect by XRC, send and disconnect, with one server, from its own host and from another
    Xrc(XrcArgs),
    /// Resolve paths by ACM, cached and not, while hosts start and stop
    Acm(acm::AcmArgs),
    /// Have many hosts of one fabric, each with its own ACM service, resolve each other at the same time
    AcmPairs(acm::PairsArgs),
}

#[derive(Args)]
pub(crate) struct XrcArgs {
    /// Number of connections
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    cycles: u64,
}

/// The server's host, and another one.
const HOSTS: [&str; 2] = ["soak-a", "soak-b"];
/// How often a short-lived connection is made: once in this many connections. A new process makes it, and then exits or
/// is killed; a receiver that also holds its target is killed.
const SHORT_LIVED: u64 = 1_000;
/// The number of short-lived connections at the beginning. A host uses some dozens of slots before the first is
/// reused, and keeps a socket for each.
const PASSING: u64 = 100;
/// How long the host may take to notice the death of a process.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the state must not change to count as settled.
const SETTLING: Duration = Duration::from_millis(50);

/// Runs `rdmux soak`.
pub(crate) fn run(soak: &Soak) -> Result<ExitCode> {
    signals::defer()?;
    let flat = match soak {
        Soak::Xrc(args) => xrc(args.cycles),
        Soak::Acm(args) => acm::run(args),
        Soak::AcmPairs(args) => acm::pairs(args),
    };
    // After Ctrl-C a step of the soak may have failed because a process that it uses has ended as well.
    let flat = flat.or_else(|e| signals::check().map_err(Into::into).and(Err(e)))?;
    Ok(if flat { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a server or a client.
pub(crate) fn part(global: &Global) -> Result<ExitCode> {
    part::run(global.open()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the soak. Returns whether nothing has grown.
fn xrc(cycles: u64) -> Result<bool> {
    let mut scene = Scene::new()?;
    (0..PASSING).try_for_each(|n| scene.short_lived(n))?;
    let start = Instant::now();
    scene.play(warm_up(cycles), start)?;
    let first = (scene.done, scene.read()?);
    scene.play(cycles - warm_up(cycles), start)?;
    let last = (scene.done, scene.read()?);
    try_say!("{} connections in {}", scene.done, output::time(start.elapsed()))?;
    gauge::compare(&first, &last)
}

/// Returns the number of cycles after which everything that is reused has been used once, including all of the rings.
fn warm_up(cycles: u64) -> u64 {
    (cycles / 5).min(50_000)
}

/// The processes of the soak.
struct Scene {
    server: Child,
    /// The number of the server's shared receive queue.
    srqn: u32,
    /// The clients, one on each host.
    clients: [Child; 2],
    addresses: [IpAddr; 2],
    /// The process ids of the hosts' services.
    services: [u32; 2],
    /// The file of the domain.
    file: TempPath,
    done: u64,
    // Last: hosts end after everything that uses them.
    hosts: Hosts,
}

impl Scene {
    fn new() -> Result<Self> {
        let hosts = Hosts::up(&HOSTS)?;
        let addresses = [hosts.address(0)?, hosts.address(1)?];
        let services = [hosts.status(0)?.pid, hosts.status(1)?.pid];
        let (mut server, file) = (process(0)?, NamedTempFile::new()?.into_temp_path());
        let clients = [process(0)?, process(1)?];
        let srqn = number(&mut server, &Ask::Serve(file.to_path_buf()))?;
        Ok(Self { server, srqn, clients, addresses, services, file, done: 0, hosts })
    }

    /// Makes this many more connections.
    fn play(&mut self, cycles: u64, start: Instant) -> Result<()> {
        let until = self.done + cycles;
        let step = (cycles / 10).max(1);
        let mut next = self.done + step;
        while self.done < until {
            signals::check()?;
            let count = BATCH.min(u32::try_from(until - self.done).unwrap_or(BATCH));
            let passed = self.done / SHORT_LIVED;
            self.batch(usize::from(self.done / u64::from(BATCH) % 2 == 1), count)?;
            if self.done / SHORT_LIVED > passed {
                self.short_lived(passed)?;
            }
            if self.done >= next {
                let rate = self.done as f64 / start.elapsed().as_secs_f64();
                try_say!("{} connections, {rate:.0}/s", self.done)?;
                next += step;
            }
        }
        Ok(())
    }

    /// Makes this many connections at once, by the client on a host.
    fn batch(&mut self, host: usize, count: u32) -> Result<()> {
        let client = &mut self.clients[host];
        connect(&mut self.server, client, self.addresses, host, self.srqn, count)?;
        simply(client, &Ask::HangUp)?;
        simply(&mut self.server, &Ask::Finish)?;
        self.done += u64::from(count);
        Ok(())
    }

    /// Makes a connection by a process that exits afterwards, or is killed before it could disconnect, with a
    /// receiver that is killed when no other process holds the target.
    fn short_lived(&mut self, n: u64) -> Result<()> {
        signals::check()?;
        let host = usize::from(n % 2 == 1);
        let mut client = process(host)?;
        let addresses = self.addresses;
        let [target] = connect(&mut self.server, &mut client, addresses, host, self.srqn, 1)?[..]
        else {
            bail!("the server did not report one target for one connection");
        };
        let mut receiver = process(0)?;
        simply(&mut receiver, &Ask::Register(self.file.to_path_buf(), target))?;
        match n % 4 {
            0 | 1 => client.end()?,
            _ => client.kill()?,
        }
        simply(&mut self.server, &Ask::Finish)?;
        receiver.kill()?;
        self.done += 1;
        Ok(())
    }

    /// Reads all gauges while nothing is active: hosts notice deaths a moment later.
    fn read(&self) -> Result<Vec<Reading>> {
        let start = Instant::now();
        let mut before = Vec::new();
        loop {
            signals::check()?;
            let (quiet, now) = self.read_now()?;
            if quiet && gauge::same_counts(&before, &now) {
                return Ok(now);
            }
            if start.elapsed() > TIMEOUT {
                bail!("processes that have exited left objects at a host");
            }
            before = now;
            thread::sleep(SETTLING);
        }
    }

    /// Reads all gauges, and whether no other process is connected. Reads the process of a service before querying
    /// it, because the query adds a process.
    fn read_now(&self) -> Result<(bool, Vec<Reading>)> {
        let mut readings = Vec::new();
        for (service, host) in self.services.iter().zip(HOSTS) {
            readings.extend(gauge::of_process(&format!("service of {host}"), *service)?);
        }
        readings.extend(gauge::of_process("server", self.server.id())?);
        for (client, host) in self.clients.iter().zip(HOSTS) {
            readings.extend(gauge::of_process(&format!("client on {host}"), client.id())?);
        }
        let mut quiet = true;
        // The server and a client on the first host, a client on the second.
        for (host, processes) in [(0, 2), (1, 1)] {
            let status = self.hosts.status(host)?;
            quiet &= status.clients.len() == processes && status.xrc_targets.is_empty();
            readings.extend(gauge::of_host(HOSTS[host], &status));
        }
        Ok((quiet, readings))
    }
}

/// Creates queue pairs by the client, and a target for each by the server, and sends a message over each. Returns the
/// targets' numbers.
fn connect(
    server: &mut Child,
    client: &mut Child,
    addresses: [IpAddr; 2],
    host: usize,
    srqn: u32,
    count: u32,
) -> Result<Vec<u32>> {
    let gid = |host: usize| Gid::from(addresses[host]).0;
    let peers = numbers(client, &Ask::Make(count))?;
    let targets = numbers(server, &Ask::Accept { gid: gid(host), peers })?;
    simply(client, &Ask::Send { gid: gid(0), targets: targets.clone(), srqn })?;
    Ok(targets)
}

fn process(host: usize) -> Result<Child> {
    Child::spawn(format!("on {}", HOSTS[host]), &["--host", HOSTS[host], "part", "soak"])
}

fn simply(child: &mut Child, ask: &Ask) -> Result<()> {
    match child.ask(ask)? {
        Answer::Done => Ok(()),
        other => bail!("{ask:?} was answered by {other:?}"),
    }
}

fn numbers(child: &mut Child, ask: &Ask) -> Result<Vec<u32>> {
    match child.ask(ask)? {
        Answer::Numbers(numbers) => Ok(numbers),
        other => bail!("{ask:?} was answered by {other:?}"),
    }
}

fn number(child: &mut Child, ask: &Ask) -> Result<u32> {
    numbers(child, ask)?.first().copied().context("the process reported no number")
}
