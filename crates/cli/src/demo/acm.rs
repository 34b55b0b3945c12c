//! The rows on ACM: a name is resolved with one multicast request, and then with none. The datagrams are those that the services of
//! both hosts have counted.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rdmux_acm_client::{Client, Places, Target};
use rdmux_host::{ConnectOptions, DeviceChoice, HostName};
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempPath;

use super::infiniband::{Ground, HOSTS};
use super::stage::Done;
use super::{Packets, temporary};
use rdmux_command::signals;

/// The timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout until both are members of their groups.
const START: Duration = Duration::from_secs(20);
/// The interval of checks whether they are.
const GLANCE: Duration = Duration::from_millis(2);
/// Paths from groups, so that subnet administration is not queried, and no announcements that would tell the first host the second
/// one's address.
const OPTIONS: &str = "route_prot acm\nannounce no\n";
/// A service's counters of sent datagrams (announcements are requests, too), and of received ones.
const SENT: [&str; 3] = ["sent_requests", "sent_checks", "sent_answers"];
const RECEIVED: [&str; 2] = ["received_requests", "received_answers"];
/// Its counters of queries to subnet administration.
const QUESTIONS: [&str; 2] = ["route_queries", "joins"];

/// A row: its name and its function.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) run: fn(&Services<'_>) -> Result<Found>,
}

/// The two rows, in the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row { name: "ACM: resolve a name, by one multicast request", run: by_request },
    Row { name: "ACM: resolve it again, from the cache", run: from_cache },
];

/// The outcome of a row, and the datagrams that it made the two services send and receive.
pub(super) struct Found {
    pub(super) done: Done,
    pub(super) packets: [Packets; 2],
}

/// An ACM service on each of the two hosts.
pub(super) struct Services<'a> {
    ground: &'a Ground,
    services: [Service; 2],
}

/// The service of a host. It ends when this is dropped.
struct Service {
    child: Child,
    /// The files, which are removed when it has ended.
    _files: [TempPath; 2],
    client: Client,
}

/// A service's counters.
#[derive(Clone, Copy)]
struct Count {
    packets: Packets,
    questions: u64,
}

impl<'a> Services<'a> {
    /// Starts both, and waits until the first one resolves the second.
    ///
    /// # Errors
    /// When one does not start, or is not resolved.
    pub(super) fn start(ground: &'a Ground) -> Result<Self> {
        let services = [Service::start(HOSTS[0])?, Service::start(HOSTS[1])?];
        let this = Self { ground, services };
        let start = Instant::now();
        while let Err(e) = this.resolve() {
            signals::check()?;
            ensure!(start.elapsed() < START, "{} is not resolved: {e:#}", HOSTS[1]);
            std::thread::sleep(GLANCE);
        }
        Ok(this)
    }

    fn resolve(&self) -> Result<PathRecord> {
        let [own, other] = HOSTS.map(Address::name);
        let other = other.context("a name that is too long")?;
        let paths = self.services[0].client.resolve(own, other, TIMEOUT)?;
        Ok(paths.paths.first().context("the answer has no path")?.path)
    }

    /// Resolves the second host's name, for which the first must send this many packets.
    fn count(&self, packets: u64) -> Result<Found> {
        let before = self.counts()?;
        let start = Instant::now();
        let path = self.resolve()?;
        let time = start.elapsed();
        let after = self.counts()?;
        let [_, to] = self.ground.contexts();
        let (dgid, dlid) = (to.gid(0).context("a port has a GID")?, to.query_port()?.lid);
        ensure!(path.dgid == dgid && path.dlid == dlid, "the path leads elsewhere: {path:?}");
        let [a, b] = [0, 1].map(|n| after[n].packets.since(before[n].packets));
        let questions = after[0].questions - before[0].questions;
        ensure!(a.sent == packets, "{} sent {} packets, not {packets}", HOSTS[0], a.sent);
        ensure!(b.sent == packets, "{} sent {} answers, not {packets}", HOSTS[1], b.sent);
        ensure!(questions == 0, "the service queried subnet administration");
        Ok(Found { done: Done { bytes: 0, time }, packets: [a, b] })
    }

    fn counts(&self) -> Result<[Count; 2]> {
        let [a, b] = &self.services;
        Ok([a.count()?, b.count()?])
    }
}

impl Service {
    fn start(host: &str) -> Result<Self> {
        let files = [temporary(&format!("{host} rdmux_ib0 1 default\n"))?, temporary(OPTIONS)?];
        // `ib_acm` may not be installed beside this program.
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["part", "acm", "--", "--on-demand", "--host", host]);
        command.arg("-A").arg(&files[0]).arg("-O").arg(&files[1]);
        command.env(DeviceChoice::VARIABLE, "ib").env_remove(Places::VARIABLE);
        // Ctrl-C is for this process alone, which then ends the service.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let places = ConnectOptions::of_environment()?.dir.host(&HostName::new(host)?)?.acm();
        let client = Client::new([Target::Tools(places)]);
        let child = command.spawn().context("cannot start an ACM service")?;
        let mut this = Self { child, _files: files, client };
        let mut said = String::new();
        let stdout =
            this.child.stdout.take().context("the ACM service's standard output is not a pipe")?;
        BufReader::new(stdout).read_line(&mut said)?;
        ensure!(said == "ready\n", "the ACM service of {host} does not start: {}", said.trim());
        Ok(this)
    }

    fn count(&self) -> Result<Count> {
        let all = self.client.statistics(TIMEOUT)?;
        let sum = |names: &[&str]| -> Result<u64> {
            let value = |name: &&str| {
                let found = all.iter().find(|s| s.name.as_bytes() == name.as_bytes());
                Ok(found.with_context(|| format!("the service has no counter {name}"))?.value)
            };
            names.iter().map(value).sum()
        };
        let packets = Packets { sent: sum(&SENT)?, received: sum(&RECEIVED)? };
        Ok(Count { packets, questions: sum(&QUESTIONS)? })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The service may have ended already. It removes its sockets when it gets a signal.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Resolves with an empty cache: one multicast request, and one answer.
fn by_request(services: &Services<'_>) -> Result<Found> {
    for service in &services.services {
        service.client.flush(None, TIMEOUT)?;
    }
    services.count(1)
}

/// Reads a cached path from shared memory.
fn from_cache(services: &Services<'_>) -> Result<Found> {
    // The previous row has done that, if it was wanted.
    services.resolve()?;
    services.count(0)
}
