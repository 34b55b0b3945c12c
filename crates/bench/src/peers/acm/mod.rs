//! ACM: the rate of resolving names to paths, with rdmux's service and with Debian's ibacm, on one fabric.
//!
//! In reading order: here the rows; `services` are hosts and their services, `load` the clients, which use the protocol of ibacm with
//! either service, `pairs` is 64 hosts, each of which resolves all others.

mod load;
mod pairs;
mod services;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rdmux_acm_client::{Client, Shared, Target};
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

/// The number of cached resolves of a round by one client.
const RESOLVES: u32 = 50_000;
/// The number of resolves through shared memory.
const READS: u32 = 1_000_000;
/// The number of resolves by many concurrent clients, and the number of clients.
const TOGETHER: u32 = 100_000;
const CLIENTS: usize = 64;
/// The number of uncached resolves of a round, each of another name of the other host.
const COLD: u32 = 64;
/// The timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Bench {
    /// Measures a cached resolve over the socket, compared with a ping-pong of the same size.
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

    /// Measures cached resolves per second over the socket, of 64 clients, compared with ibacm.
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

    /// Measures cached resolves per second of one client through rdmux's library, compared with one of ibacm over its
    /// socket.
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
        ensure!(
            client.shared().is_some_and(Shared::is_there),
            "the service does not pass its cache"
        );
        ensure!(client.cached(Some(&own), &other).is_some(), "the shared cache lacks the path");
        self.alternate(
            row,
            || {
                let start = Instant::now();
                for _ in 0..READS {
                    let paths = client.resolve(Some(own), other, TIMEOUT)?;
                    ensure!(!paths.paths.is_empty(), "the answer has no path");
                }
                Ok(f64::from(READS) / start.elapsed().as_secs_f64())
            },
            || Ok(1.0 / socket.ping(&request, RESOLVES)?),
        )
    }

    /// Measures a resolve by multicast, compared with ibacm: each of a name that was not requested before.
    pub(super) fn acm_cold(&self, row: Row) -> Result<Figure> {
        program("ibacm")?;
        let ground = Ground::bare()?;
        let names = self.rounds() * COLD;
        let ours = Pair::<Ours>::new(&ground, names)?;
        // On a separate fabric: each request wakes all members of the group.
        let debian = Pair::<Debian>::new(&ground, names)?;
        let mut ours = Cold::new(&ours)?;
        let mut debian = Cold::new(&debian)?;
        let before = ours.pair.asked()?;
        let figure = self.alternate(row, || ours.resolve(), || debian.resolve())?;
        let asked = ours.pair.asked()? - before;
        ensure!(asked >= u64::from(names), "{names} resolves sent only {asked} requests");
        Ok(figure)
    }

    /// Measures 64 hosts, each of which resolves all others, compared with as many queries to subnet administration.
    pub(super) fn acm_pairs(&self, row: Row, manager: Manager) -> Result<Figure> {
        if manager == Manager::OpenSm {
            program("opensm")?;
        }
        let ground = Ground::bare()?;
        let pairs = Pairs::new(&ground, manager)?;
        self.alternate(row, || pairs.by_acm(), || pairs.by_administration())
    }
}

/// A client that resolves the names of the other host one after another.
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

    /// Returns the seconds that a resolve takes.
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

/// Returns a name in ACM's form.
fn name(text: &str) -> Result<Address> {
    Address::name(text).with_context(|| format!("{text} is too long for a name"))
}

/// Returns the path of an rdmux program that is installed beside this one.
fn beside(program: &str) -> Result<std::path::PathBuf> {
    let path = std::env::current_exe()?.with_file_name(program);
    ensure!(path.is_file(), "{} is missing: build all of rdmux-cli", path.display());
    Ok(path)
}

/// Returns a library client as in a program that knows the locations of the service's files.
fn library(runtime: &Path) -> Client {
    Client::new([Target::Tools(rdmux_acm_client::Places::new(runtime, runtime))])
}
