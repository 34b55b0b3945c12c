//! ACM: how fast names become paths, by our service and by Debian's ibacm, on one fabric.
//!
//! In reading order: here the rows; `services` are hosts and what runs on them, `load` the clients, which speak the protocol of ibacm to
//! either service, `pairs` is 64 hosts, each of which resolves all others.

mod load;
mod pairs;
mod services;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rdmux_acm_client::{Client, Target};
use rdmux_wire::acm::Address;

use self::load::{REPLY, Socket, request};
use self::services::{Debian, Ours, Pair, Service};
use super::fabrics::{Ground, program};
use super::figure::Figure;
use super::part::Ask;
use super::rows::{Bench, done, stranger};
use super::spec::Row;

pub(super) use self::load::echo;
pub(super) use self::pairs::Pairs;
pub(super) use self::services::Manager;

/// Cached resolves of a round by one client.
const RESOLVES: u32 = 50_000;
/// The same through shared memory.
const READS: u32 = 1_000_000;
/// The same by many clients together, and how many those are.
const TOGETHER: u32 = 100_000;
const CLIENTS: usize = 64;
/// Resolves of a round that are in no cache: as many names of the other host.
const COLD: u32 = 64;
/// How long a service may take to answer.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Bench {
    /// A cached resolve by the socket, beside a ping-pong of as many bytes.
    pub(super) fn acm_latency(&self, row: Row) -> Result<Figure> {
        let ground = Ground::bare()?;
        let ours = Pair::<Ours>::new(&ground, 0)?;
        let mut socket = ours.client()?;
        let request = ours.warm(&mut socket)?;
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("echo");
        let listener = UnixListener::bind(&path)?;
        let mut peer = stranger()?;
        self.alternate(
            row,
            || socket.ping(&request, RESOLVES),
            || {
                let (path, count) = (path.clone(), RESOLVES);
                peer.tell(&Ask::UnixEcho { path, request: request.len(), reply: REPLY, count })?;
                let time = Socket::of(listener.accept()?.0).ping(&request, count)?;
                done(&mut peer)?;
                Ok(time)
            },
        )
    }

    /// Cached resolves a second by the socket, of 64 clients, beside ibacm.
    pub(super) fn acm_rate(&self, row: Row) -> Result<Figure> {
        program("ibacm")?;
        let ground = Ground::bare()?;
        let ours = Pair::<Ours>::new(&ground, 0)?;
        let debian = Pair::<Debian>::on(&ours, 0)?;
        let ours_request = ours.warm(&mut ours.client()?)?;
        let debian_request = debian.warm(&mut debian.client()?)?;
        self.alternate(
            row,
            || load::together(&ours.socket(), &ours_request, CLIENTS, TOGETHER),
            || load::together(&debian.socket(), &debian_request, CLIENTS, TOGETHER),
        )
    }

    /// Cached resolves a second of one client through our library, beside one of ibacm's by its socket.
    pub(super) fn acm_library(&self, row: Row) -> Result<Figure> {
        program("ibacm")?;
        let ground = Ground::bare()?;
        let ours = Pair::<Ours>::new(&ground, 0)?;
        let debian = Pair::<Debian>::on(&ours, 0)?;
        ours.warm(&mut ours.client()?)?;
        let mut socket = debian.client()?;
        let request = debian.warm(&mut socket)?;
        let client = ours.library();
        let (own, other) = (name(ours.own())?, name(ours.other())?);
        ensure!(client.cached(Some(&own), &other).is_some(), "the cache that is shared lacks it");
        self.alternate(
            row,
            || {
                let start = Instant::now();
                for _ in 0..READS {
                    let paths = client.resolve(Some(own), other, TIMEOUT)?;
                    ensure!(!paths.paths.is_empty(), "no path");
                }
                Ok(f64::from(READS) / start.elapsed().as_secs_f64())
            },
            || Ok(1.0 / socket.ping(&request, RESOLVES)?),
        )
    }

    /// A resolve by multicast, beside ibacm's: each of a name that nobody has asked for before.
    pub(super) fn acm_cold(&self, row: Row) -> Result<Figure> {
        program("ibacm")?;
        let ground = Ground::bare()?;
        let names = self.rounds() * COLD;
        let ours = Pair::<Ours>::new(&ground, names)?;
        // On a fabric of its own: each request wakes all who hear the group.
        let debian = Pair::<Debian>::new(&ground, names)?;
        let mut ours = Cold::new(&ours)?;
        let mut debian = Cold::new(&debian)?;
        let before = ours.pair.asked()?;
        let figure = self.alternate(row, || ours.resolve(), || debian.resolve())?;
        let asked = ours.pair.asked()? - before;
        ensure!(asked >= u64::from(names), "{names} resolves took {asked} requests only");
        Ok(figure)
    }

    /// 64 hosts, each of which resolves all others, beside as many questions to administration.
    pub(super) fn acm_pairs(&self, row: Row, manager: Manager) -> Result<Figure> {
        if manager == Manager::OpenSm {
            program("opensm")?;
        }
        let ground = Ground::bare()?;
        let pairs = Pairs::new(&ground, manager)?;
        self.alternate(row, || pairs.by_acm(), || pairs.by_administration())
    }
}

/// A client that resolves one name of the other host after the other.
struct Cold<'p, S: Service> {
    pair: &'p Pair<S>,
    socket: Socket,
    next: u32,
}

impl<'p, S: Service> Cold<'p, S> {
    fn new(pair: &'p Pair<S>) -> Result<Self> {
        let mut socket = pair.client()?;
        pair.warm(&mut socket)?;
        Ok(Self { pair, socket, next: 0 })
    }

    /// Seconds that a resolve takes.
    fn resolve(&mut self) -> Result<f64> {
        let of = self.next..self.next + COLD;
        self.next = of.end;
        let requests = of.map(|n| request(self.pair.own(), &self.pair.alias(n)));
        let requests: Vec<_> = requests.collect::<Result<_>>()?;
        let start = Instant::now();
        for request in &requests {
            self.socket.ask(request)?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(COLD))
    }
}

/// A name as ACM has it.
fn name(text: &str) -> Result<Address> {
    Address::name(text).with_context(|| format!("{text} is too long for a name"))
}

/// A program of ours that is installed beside this one.
fn beside(program: &str) -> Result<std::path::PathBuf> {
    let path = std::env::current_exe()?.with_file_name(program);
    ensure!(path.is_file(), "{} is missing: build all of rdmux-cli", path.display());
    Ok(path)
}

/// The library, as a program has it that knows where the service's files are.
fn library(runtime: &Path) -> Client {
    Client::new([Target::Tools(rdmux_acm_client::Places::new(runtime, runtime))])
}
