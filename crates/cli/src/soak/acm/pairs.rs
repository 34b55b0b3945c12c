//! `rdmux soak acm-pairs`: many hosts of one fabric, each with an ACM service in a separate process, resolve all others at the same time,
//! first with empty caches and then again.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use rdmux_acm_client::{Client, Reply, RequestId, Requests, Target};
use rdmux_command::{output, signals, try_say};
use rdmux_fabric::proto::Snapshot;
use rdmux_wire::acm::client::Query;
use rdmux_wire::{Gid, Guid, Lid};

use super::scene::{Scene, Service};
use super::{TIMEOUT, gauge, name};

#[derive(Args)]
pub(crate) struct PairsArgs {
    /// Number of hosts
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(2..=250))]
    hosts: u16,
    /// Number of rounds in which all hosts resolve all others, with empty caches
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

/// Paths from groups, and no announcements that would tell a host the address of another that it has not requested.
const OPTIONS: &str = "route_prot acm\nannounce no\n";
/// The timeout until all hosts are up, and until all resolve all others.
const START: Duration = Duration::from_secs(300);
/// A service's counters of sent datagrams, and of queries to subnet administration.
const REQUESTS: &str = "sent_requests";
const ANSWERS: &str = "sent_answers";
const QUESTIONS: [&str; 2] = ["joins", "route_queries"];

/// A host as shown by the fabric.
struct Host<'a> {
    service: &'a Service,
    control: Client,
    gid: Gid,
    lid: Lid,
}

/// The sums of the counters of all hosts' services.
#[derive(Clone, Copy)]
struct Sums {
    requests: u64,
    answers: u64,
    questions: u64,
}

/// Runs the soak. Returns whether everything succeeded, and nothing was left behind.
pub(in super::super) fn run(args: &PairsArgs) -> Result<bool> {
    let start = Instant::now();
    let mut scene = Scene::new(&format!("fattree:{}", args.hosts), OPTIONS)?;
    for n in 1..=args.hosts {
        signals::check()?;
        scene.add(&format!("pairs-{n}"))?;
        ensure!(start.elapsed() < START, "only {n} of {} hosts are up after {START:?}", args.hosts);
    }
    play(&scene, args, start)?;
    let left = scene.end()?;
    left.iter().try_for_each(|what| try_say!("still exists: {what}"))?;
    Ok(left.is_empty())
}

fn play(scene: &Scene, args: &PairsArgs, start: Instant) -> Result<()> {
    let up = start.elapsed();
    // Waits until all have joined their groups, and switches know these.
    let hosts = loop {
        signals::check()?;
        match hosts(scene).and_then(|hosts| all(&hosts).map(|_| hosts)) {
            Ok(hosts) => break hosts,
            Err(e) => {
                ensure!(start.elapsed() < up + START, "not all hosts resolve all others: {e:#}")
            }
        }
    };
    let memory: Vec<_> =
        hosts.iter().map(|host| gauge::memory(host.service.pid())).collect::<Result<_>>()?;
    try_say!(
        "{} hosts, with an ib_acm of {} each, up in {}, all resolved in {}",
        hosts.len(),
        output::bytes(memory.iter().sum::<u64>() / memory.len() as u64),
        output::time(up),
        output::time(start.elapsed())
    )?;
    for _ in 0..args.rounds {
        signals::check()?;
        hosts.iter().try_for_each(|host| host.control.flush(None, TIMEOUT).map(drop))?;
        round("cold", &hosts)?;
    }
    let warm = round("warm", &hosts)?;
    ensure!(warm.requests == 0 && warm.questions == 0, "cached paths were requested again");
    Ok(())
}

/// Resolves all hosts from all others. Prints the time, and returns the number of messages that they sent for it.
fn round(what: &str, hosts: &[Host<'_>]) -> Result<Sums> {
    let before = sums(hosts)?;
    let time = all(hosts)?;
    let after = sums(hosts)?;
    let sums = Sums {
        requests: after.requests - before.requests,
        answers: after.answers - before.answers,
        questions: after.questions - before.questions,
    };
    let each = |n: u64| n as f64 / hosts.len() as f64;
    try_say!(
        "{what}: {} pairs in {}; per host {:.2} multicast requests, {:.2} answers, {:.2} queries to subnet administration",
        hosts.len() * (hosts.len() - 1),
        output::time(time),
        each(sums.requests),
        each(sums.answers),
        each(sums.questions)
    )?;
    Ok(sums)
}

fn hosts(scene: &Scene) -> Result<Vec<Host<'_>>> {
    let shown = scene.show()?;
    scene.services().iter().map(|service| Host::of(service, &shown)).collect()
}

/// Runs a client on each host, which requests all others and then waits for the answers. Returns the time from the common start until the
/// last has all paths, which must lead where the fabric has the hosts.
fn all(hosts: &[Host<'_>]) -> Result<Duration> {
    let barrier = Barrier::new(hosts.len() + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = hosts
            .iter()
            .map(|host| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let requests = Requests::new([Target::Tools(host.service.places())]);
                    // All threads pass here, even those that failed.
                    barrier.wait();
                    host.resolve(requests?, hosts).map(|()| Instant::now())
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let ends = threads.into_iter().map(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a client panicked")).and_then(|end| end)
        });
        let ends: Vec<Instant> = ends.collect::<Result<_>>()?;
        Ok(ends
            .into_iter()
            .max()
            .map_or(Duration::ZERO, |end| end.saturating_duration_since(start)))
    })
}

impl<'a> Host<'a> {
    fn of(service: &'a Service, shown: &Snapshot) -> Result<Self> {
        let name = service.host();
        let node = shown.nodes.iter().find(|node| node.host.as_deref() == Some(name));
        let node = node.with_context(|| format!("{name} has no adapter"))?;
        let lid = node.ports.first().context("the adapter has no port")?.lid;
        ensure!(lid.is_unicast(), "{name} has no LID yet");
        // The GUID of an adapter's port follows that of its node.
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(node.guid.0 + 1));
        Ok(Self { service, control: service.client(), gid, lid })
    }

    fn resolve(&self, mut requests: Requests, hosts: &[Host<'_>]) -> Result<()> {
        let source = Some(name(self.service.host())?);
        let mut asked: BTreeMap<RequestId, &Host<'_>> = BTreeMap::new();
        for other in hosts.iter().filter(|other| other.gid != self.gid) {
            let dest = name(other.service.host())?;
            let query = Query::Resolve { source, dest, cached_only: false };
            asked.insert(requests.start(&query, TIMEOUT), other);
        }
        while let Some((id, answer)) = requests.wait(TIMEOUT) {
            let other = asked.remove(&id).context("received an answer without a request")?;
            let ends = || format!("from {} to {}", self.service.host(), other.service.host());
            let Reply::Paths(paths) = answer.with_context(ends)? else {
                anyhow::bail!("{}: the answer is not a path", ends())
            };
            let path = &paths.paths.first().with_context(ends)?.path;
            let is_right = (path.sgid, path.dgid) == (self.gid, other.gid)
                && (path.slid, path.dlid) == (self.lid, other.lid);
            ensure!(is_right, "{}: the path leads elsewhere: {path:?}", ends());
        }
        ensure!(
            asked.is_empty(),
            "{}: {} paths were not answered in time",
            self.service.host(),
            asked.len()
        );
        Ok(())
    }
}

fn sums(hosts: &[Host<'_>]) -> Result<Sums> {
    let mut sums = Sums { requests: 0, answers: 0, questions: 0 };
    for host in hosts {
        let all = host.control.statistics(TIMEOUT)?;
        let count = |name: &str| {
            let found = all.iter().find(|s| s.name.as_bytes() == name.as_bytes());
            Ok::<_, anyhow::Error>(
                found.with_context(|| format!("the service has no counter {name}"))?.value,
            )
        };
        sums.requests += count(REQUESTS)?;
        sums.answers += count(ANSWERS)?;
        for name in QUESTIONS {
            sums.questions += count(name)?;
        }
    }
    Ok(sums)
}
