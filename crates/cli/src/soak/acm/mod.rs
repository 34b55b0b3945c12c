//! `rdmux soak acm`: resolves paths by ACM, cached and not, while hosts start and stop.

mod pairs;
mod scene;

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use rdmux_acm_client::{Client, Error, Shared, Target};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{Query, Request, Status};

use self::scene::{End, Scene, Service};
use super::gauge;
use rdmux_command::{output, signals, try_say};

#[derive(Args)]
pub(crate) struct AcmArgs {
    /// Number of times a path is resolved
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    resolves: u64,
    /// Number of hosts that start and stop, in addition to those at the beginning
    #[arg(long, default_value_t = 50)]
    guests: u64,
}

pub(super) use self::pairs::{PairsArgs, run as pairs};

/// The fabric's shape, with one more adapter than concurrent hosts.
const SHAPE: &str = "switch:4";
/// The multicast protocol, and short timeouts, because guests that have stopped are requested.
const OPTIONS: &str = "route_prot acm\ntimeout 50\nretries 1\nnegative_timeout_ms 0\n";
/// The hosts that stay, and those that start and stop.
const HOSTS: [&str; 2] = ["soak-a", "soak-b"];
const GUESTS: [&str; 2] = ["soak-c", "soak-d"];
/// The number of resolves in a batch: one by multicast, then some over the socket, and the rest from shared memory.
const BATCH: u64 = 128;
const BY_SOCKET: u64 = 15;
/// After this many batches clients reconnect, and others close without receiving an answer.
const HANG_UP: u64 = 64;
/// The timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The timeout until a started host is found: its port comes up, groups are joined.
const COMING: Duration = Duration::from_secs(60);

/// Runs the soak. Returns whether nothing has grown.
pub(super) fn run(args: &AcmArgs) -> Result<bool> {
    let mut soak = Soak::new()?;
    // Each guest with each kind of end, so that one-time allocations have been made.
    (0..4).try_for_each(|n| soak.guest(n))?;
    let warm_up = (args.resolves / 5).clamp(1, 50_000);
    let start = Instant::now();
    soak.play(warm_up, args, start)?;
    let first = (soak.done, soak.read(None)?);
    soak.play(args.resolves - warm_up, args, start)?;
    let last = (soak.done, soak.read(Some(&first.1))?);
    try_say!(
        "{} resolves in {}, {} of them by multicast; {} hosts started and stopped",
        soak.done,
        output::time(start.elapsed()),
        soak.cold,
        soak.guests
    )?;
    let flat = gauge::compare(&first, &last)?;
    // A killed service has left its sockets; the next one on its host removes them.
    for host in GUESTS {
        let guest = soak.scene.come(host)?;
        soak.scene.go(guest, End::Told)?;
    }
    let left = soak.scene.end()?;
    left.iter().try_for_each(|what| try_say!("still exists: {what}"))?;
    Ok(flat && left.is_empty())
}

/// The state of a soak, with its counts.
struct Soak {
    clients: Clients,
    done: u64,
    /// The number of resolves that were not cached.
    cold: u64,
    batches: u64,
    guests: u64,
    scene: Scene,
}

/// The clients of the first host's service.
struct Clients {
    /// Knows the service's files, and reads its cache.
    library: Client,
    /// Knows only the socket.
    socket: Client,
}

impl Clients {
    /// Makes the clients, and waits until the library has the service's cache.
    fn of(service: &Service) -> Result<Self> {
        let at = rdmux_acm_client::Address::Unix(service.places().socket());
        let library = Client::new([Target::Tools(service.places())]);
        let until = Instant::now() + TIMEOUT;
        while !library.shared().is_some_and(Shared::is_there) {
            ensure!(Instant::now() < until, "the service does not pass its cache");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { library, socket: Client::new([Target::At(at)]) })
    }
}

impl Soak {
    fn new() -> Result<Self> {
        let mut scene = Scene::new(SHAPE, OPTIONS)?;
        HOSTS.iter().try_for_each(|host| scene.add(host))?;
        let clients = Clients::of(scene.service(0))?;
        let this = Self { clients, done: 0, cold: 0, batches: 0, guests: 0, scene };
        found(&this.clients.library, HOSTS[0], HOSTS[1])?;
        Ok(this)
    }

    /// Performs this many more resolves, with guests as often as the arguments say.
    fn play(&mut self, resolves: u64, args: &AcmArgs, start: Instant) -> Result<()> {
        let until = self.done + resolves;
        let step = (resolves / 10).max(1);
        let mut next = self.done + step;
        while self.done < until {
            signals::check()?;
            self.batch(BATCH.min(until - self.done))?;
            // The first four guests were part of the warm-up.
            while (self.guests - 4) * args.resolves < self.done * args.guests {
                self.guest(self.guests)?;
            }
            if self.done >= next {
                let rate = self.done as f64 / start.elapsed().as_secs_f64();
                try_say!("{} resolves, {rate:.0}/s", self.done)?;
                next += step;
            }
        }
        Ok(())
    }

    fn batch(&mut self, count: u64) -> Result<()> {
        let (own, other) = (name(HOSTS[0])?, name(HOSTS[1])?);
        self.clients.library.flush(Some(other), TIMEOUT)?;
        let cold = self.clients.library.cached(Some(&own), &other);
        ensure!(cold.is_none(), "a flushed path is still cached");
        for n in 0..count {
            let by_socket = n <= BY_SOCKET;
            let client = if by_socket { &self.clients.socket } else { &self.clients.library };
            let paths = client.resolve(Some(own), other, TIMEOUT)?;
            ensure!(paths.paths.len() == 1, "{} paths", paths.paths.len());
        }
        self.done += count;
        self.cold += 1;
        self.batches += 1;
        if self.batches.is_multiple_of(HANG_UP) {
            self.clients = Clients::of(self.scene.service(0))?;
            self.close_early()?;
        }
        Ok(())
    }

    /// Runs a client that sends half a request, and one that does not wait for the answer.
    fn close_early(&self) -> Result<()> {
        let query = Query::Resolve { source: None, dest: name("soak-nobody")?, cached_only: false };
        let request = Request { tid: 1, query }.to_bytes();
        for part in [&request[..request.len() / 2], &request[..]] {
            let mut stream = UnixStream::connect(self.scene.service(0).places().socket())?;
            stream.write_all(part)?;
        }
        Ok(())
    }

    /// Starts a host that is resolved and resolves another one, and stops it: its service by a signal, or killed.
    fn guest(&mut self, n: u64) -> Result<()> {
        let host = GUESTS[usize::from(n % 2 == 1)];
        let end = if n % 4 < 2 { End::Told } else { End::Killed };
        let guest = self.scene.come(host)?;
        found(&self.clients.library, HOSTS[0], host)?;
        found(&guest.client(), host, HOSTS[1])?;
        self.done += 2;
        self.cold += 2;
        self.guests += 1;
        self.scene.go(guest, end)?;
        // A stopped host is not found.
        self.clients.library.flush(Some(name(host)?), TIMEOUT)?;
        match self.clients.library.resolve(Some(name(HOSTS[0])?), name(host)?, TIMEOUT) {
            Err(Error::Status(_, Status::TIMED_OUT)) => Ok(()),
            Err(e) => Err(e.into()),
            Ok(_) => bail!("{host} is still resolved after it stopped"),
        }
    }

    /// Reads all gauges while nothing is active and nothing is cached. Waits for the values of `wanted`, for a limited time.
    fn read(&mut self, wanted: Option<&[gauge::Reading]>) -> Result<Vec<gauge::Reading>> {
        for n in 0..HOSTS.len() {
            self.scene.service(n).client().flush(None, TIMEOUT)?;
        }
        self.clients = Clients::of(self.scene.service(0))?;
        self.scene.read(wanted)
    }
}

/// Resolves until there is an answer.
fn found(client: &Client, source: &str, dest: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        signals::check()?;
        match client.resolve(Some(name(source)?), name(dest)?, TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(Error::Status(
                _,
                Status::NOT_CONNECTED | Status::TIMED_OUT | Status::SOURCE_ADDRESS,
            )) if start.elapsed() < COMING => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => return Err(e).with_context(|| format!("from {source} to {dest}")),
        }
    }
}

fn name(text: &str) -> Result<Address> {
    Address::name(text).with_context(|| format!("{text} is too long for a name"))
}
