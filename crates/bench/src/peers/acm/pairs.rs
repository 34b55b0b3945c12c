//! 64 hosts of one fabric, each of which needs the paths to all others at the same time: from its ACM service, all of which start with
//! empty caches, or from subnet administration, with a query for each pair.
//!
//! Either way a host has one client, a thread, which sends all its requests and then waits for the answers, over an existing connection.

use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rdmux_acm_client::{Client, Error, Places, Reply, RequestId, Requests, Target};
use rdmux_acm_files::options::{Options, write};
use rdmux_fabric::client::MadFile;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::acm::client::Query;
use rdmux_wire::mad::{Method, MgmtClass};
use rdmux_wire::sa::{self, PathRecord, PathRecordMask, SaMad};
use rdmux_wire::{Gid, Guid, Lid};

use super::services::{Manager, Running, Stage, own_service};
use super::{TIMEOUT, library, name};
use crate::peers::fabrics::Ground;

/// The number of hosts.
const HOSTS: usize = 64;
/// The adapters and cables.
const SHAPE: &str = "fattree:64";
/// The timeout of an answer of subnet administration, in milliseconds.
const TIMEOUT_MS: u32 = 20_000;

/// The hosts, with two clients on each.
pub(in super::super) struct Pairs {
    hosts: Vec<Host>,
    // Dropped after the services, which run on it.
    _stage: Stage,
}

/// A host.
struct Host {
    name: String,
    gid: Gid,
    service: Running,
    /// A client of its service.
    control: Client,
    requests: Mutex<Requests>,
    /// The interface for queries to subnet administration.
    file: MadFile,
    agent: u32,
    manager: Lid,
}

impl Pairs {
    /// Starts hosts and services, with the options that `ib_acme -O` writes for this many hosts, and with `route_prot acm`.
    ///
    /// # Errors
    /// When one does not start.
    pub(in super::super) fn new(ground: &Ground, manager: Manager) -> Result<Self> {
        // The adapters have these names, and each is given to the host of its name.
        let names: Vec<_> = (1..=HOSTS).map(|n| format!("node{n}")).collect();
        let stage = Stage::new(ground, SHAPE, &names, manager)?;
        let shown = stage.fabric.show()?;
        let ports = || shown.nodes.iter().flat_map(|node| &node.ports);
        let manager = ports().find(|port| port.is_sm).context("no port has a subnet manager")?.lid;
        let mut options = Options::fitted(u32::try_from(HOSTS)?);
        options.machine.route_protocol = rdmux_acm::RouteProtocol::Acm;
        let options = write(&options);
        let host = |name: String| {
            let node = shown.nodes.iter().find(|node| node.description == name);
            let guid = node.with_context(|| format!("the fabric has no adapter {name}"))?.guid;
            let command = own_service(&stage.fabric, &name)?;
            let line = format!("{name} rdmux_ib0 1 default\n");
            let service = Running::start(&stage.fabric, &name, command, (&line, &options))?;
            let file = stage.fabric.open(guid)?;
            let agent = file.register(&Registration {
                qpn: 1,
                class: MgmtClass::SUBN_ADM.0,
                class_version: sa::CLASS_VERSION,
                rmpp_version: 1,
                ..Registration::default()
            })?;
            // The GUID of an adapter's port follows that of its node.
            let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(guid.0 + 1));
            let control = library(&service.runtime);
            let requests = Mutex::new(connect(&service)?);
            Ok(Host { name, gid, service, control, requests, file, agent, manager })
        };
        let hosts = names.into_iter().map(host).collect::<Result<_>>()?;
        let this = Self { hosts, _stage: stage };
        // Waits until all have joined.
        let start = Instant::now();
        while let Err(e) = this.by_acm() {
            ensure!(start.elapsed() < TIMEOUT * 3, "{e:#}");
        }
        Ok(this)
    }

    /// Measures the seconds until all hosts have all paths, by ACM.
    ///
    /// # Errors
    /// When a path is missing.
    pub(in super::super) fn by_acm(&self) -> Result<f64> {
        for host in &self.hosts {
            host.control.flush(None, TIMEOUT)?;
        }
        self.together(|host, gate| {
            let mut requests = host.requests.lock().unwrap_or_else(PoisonError::into_inner);
            let source = Some(name(&host.name)?);
            // The path to itself is known: this connects the client, as that of subnet administration is.
            let query = Query::Resolve { source, dest: name(&host.name)?, cached_only: false };
            // Unless answers to a round that has failed may still come.
            let used =
                requests.is_empty() || connect(&host.service).map(|new| *requests = new).is_ok();
            requests.start(&query, TIMEOUT);
            let connected = take(requests.wait(TIMEOUT));
            // All threads pass here, even those that failed.
            gate.pass();
            let start = Instant::now();
            connected?;
            ensure!(used, "a client could not open a new connection to the service");
            for other in self.others(host) {
                let dest = name(&other.name)?;
                requests.start(&Query::Resolve { source, dest, cached_only: false }, TIMEOUT);
            }
            while !requests.is_empty() {
                let path = take(requests.wait(TIMEOUT)).with_context(|| host.name.clone())?;
                ensure!(path.sgid == host.gid, "the path of another host");
            }
            Ok(start)
        })
    }

    /// Measures the same by queries to subnet administration.
    ///
    /// # Errors
    /// As [`by_acm`](Self::by_acm).
    pub(in super::super) fn by_administration(&self) -> Result<f64> {
        self.together(|host, gate| {
            gate.pass();
            let start = Instant::now();
            let mut waiting = 0;
            for (other, tid) in self.others(host).zip(1..) {
                host.ask(other.gid, tid)?;
                waiting += 1;
            }
            while waiting > 0 {
                let Some(answer) = host.file.try_recv_mad()? else {
                    host.file.wait()?;
                    continue;
                };
                ensure!(
                    answer.status == 0,
                    "{}: a query was not answered: error {}",
                    host.name,
                    answer.status
                );
                let path: PathRecord = SaMad::parse(&answer.data)?.record()?;
                ensure!(path.sgid == host.gid, "the path of another host");
                waiting -= 1;
            }
            Ok(start)
        })
    }

    fn others(&self, host: &Host) -> impl Iterator<Item = &Host> {
        let own = host.gid;
        self.hosts.iter().filter(move |other| other.gid != own)
    }

    /// Runs this for each host at the same time; it returns when it began. Returns the seconds from the first start to the last end.
    fn together(&self, run: impl Fn(&Host, &Gate) -> Result<Instant> + Sync) -> Result<f64> {
        let (come, ready) = mpsc::channel();
        let gate = Gate { come, open: RwLock::new(()) };
        let run = |host| run(host, &gate).map(|start| (start, Instant::now()));
        let run = &run;
        thread::scope(|scope| {
            let closed = gate.open.write().unwrap_or_else(PoisonError::into_inner);
            let threads: Vec<_> =
                self.hosts.iter().map(|host| scope.spawn(move || run(host))).collect();
            for () in ready.iter().take(HOSTS) {}
            drop(closed);
            let mut whole: Option<(Instant, Instant)> = None;
            for thread in threads {
                let (start, end) =
                    thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
                let (first, last) = whole.unwrap_or((start, end));
                whole = Some((first.min(start), last.max(end)));
            }
            let (first, last) = whole.context("the fabric has no hosts")?;
            Ok((last - first).as_secs_f64())
        })
    }
}

/// A gate where clients wait for the last one. Threads leave a [`Barrier`](std::sync::Barrier) one after the other through its mutex, each
/// when the previous one has had a processor. If services that the first threads use keep processors busy, the last ones would begin when
/// nearly all is done.
struct Gate {
    come: Sender<()>,
    open: RwLock<()>,
}

impl Gate {
    fn pass(&self) {
        // The gate's opener listens until then.
        let _ = self.come.send(());
        drop(self.open.read());
    }
}

/// Returns a client of a host's service.
fn connect(service: &Running) -> Result<Requests> {
    let places = Places::new(&service.runtime, &service.runtime);
    Ok(Requests::new([Target::Tools(places)])?)
}

/// Returns the path of an answer.
fn take(answer: Option<(RequestId, Result<Reply, Error>)>) -> Result<PathRecord> {
    match answer.context("a path was not answered in time")?.1? {
        Reply::Paths(paths) => Ok(paths.paths[0].path),
        _ => anyhow::bail!("the answer is not a path"),
    }
}

impl Host {
    fn ask(&self, dgid: Gid, tid: u64) -> Result<()> {
        let mask = PathRecordMask::SGID | PathRecordMask::DGID | PathRecordMask::NUMB_PATH;
        let record = PathRecord { sgid: self.gid, dgid, numb_path: 1, ..PathRecord::default() };
        let record = record.to_bytes();
        let mut mad = SaMad::new(Method::GET, PathRecord::ATTR_ID, &record);
        mad.sa.component_mask = mask.bits();
        mad.header.tid = tid;
        Ok(self.file.send_mad(&UserMad {
            agent: self.agent,
            status: 0,
            timeout_ms: TIMEOUT_MS,
            retries: 0,
            address: UserAddress::gsi(self.manager),
            data: mad.to_bytes().to_vec(),
        })?)
    }
}
