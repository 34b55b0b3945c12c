//! Two hosts of a fabric with an ACM service each, rdmux's or Debian's.

use std::fs::{self, File};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rdmux_acm_client::Client;

use super::load::{Socket, request};
use super::{TIMEOUT, beside, library};
use crate::peers::fabrics::{Fabric, Ground, HOST, program};

/// How long a service may take until it resolves.
const START: Duration = Duration::from_secs(60);
/// The interval of checks whether it does.
const GLANCE: Duration = Duration::from_millis(20);
/// Options that both services interpret alike: the multicast protocol, paths by groups, nothing without a request.
const OPTIONS: &str = "log_level 0\nserver_mode unix\naddr_prot acm\naddr_timeout 1440\nroute_prot acm\nroute_timeout -1\n\
    loopback_prot local\ntimeout 2000\nretries 2\nresolve_depth 1\nsa_depth 1\nsend_depth 1\nrecv_depth 1024\nmin_mtu 2048\nmin_rate 10\n";

/// The implementation of a service.
pub(super) trait Service {
    /// Its hosts.
    const HOSTS: [&'static str; 2];
    /// Its options.
    const OPTIONS: &'static str;

    /// Returns the command that runs it in the foreground on a host; its files are given by arguments.
    ///
    /// # Errors
    /// When it is not installed.
    fn command(fabric: &Fabric, host: &str) -> Result<Command>;
}

/// `ib_acm`.
pub(super) struct Ours;

impl Service for Ours {
    const HOSTS: [&'static str; 2] = ["acm-a", "acm-b"];
    const OPTIONS: &'static str = "announce no\n";

    fn command(fabric: &Fabric, host: &str) -> Result<Command> {
        own_service(fabric, host)
    }
}

/// Debian's ibacm.
pub(super) struct Debian;

impl Service for Debian {
    const HOSTS: [&'static str; 2] = ["ibacm-a", "ibacm-b"];
    const OPTIONS: &'static str = "lock_file /run/ibacm.pid\nlog_file /run/ibacm.log\n";

    fn command(fabric: &Fabric, host: &str) -> Result<Command> {
        let ibacm = program("ibacm")?;
        let mut command = fabric.command();
        command.args(["--host", host, "run", "--device", "ib", "--"]).arg(ibacm);
        Ok(command)
    }
}

/// Returns the command that runs rdmux's service on a host, in the foreground.
///
/// # Errors
/// When it is not installed beside this program.
pub(super) fn own_service(fabric: &Fabric, host: &str) -> Result<Command> {
    let mut command = Command::new(beside("ib_acm")?);
    fabric.equip(&mut command);
    command.args(["--host", host]).env("RDMUX_DEVICE", "ib").env_remove("RDMUX_ACM_DIR");
    Ok(command)
}

/// A fabric, and the hosts that were started on it. They end when this is dropped, before the fabric does.
pub(super) struct Stage {
    pub(super) fabric: Fabric,
    hosts: Vec<String>,
}

/// The subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Manager {
    /// The fabric itself.
    Own,
    /// OpenSM, on [`HOST`].
    OpenSm,
}

impl Stage {
    /// Brings up a fabric with a manager, and hosts on it.
    ///
    /// # Errors
    /// When the fabric or a host does not come up.
    pub(super) fn new(
        ground: &Ground,
        shape: &str,
        hosts: &[String],
        manager: Manager,
    ) -> Result<Self> {
        let mut fabric = ground.fabric(shape.parse()?, manager == Manager::Own)?;
        match manager {
            Manager::Own => fabric.until_up()?,
            Manager::OpenSm => drop(fabric.opensm(&[])?),
        }
        let mut this = Self { fabric, hosts: Vec::new() };
        for host in hosts {
            // OpenSM's host is up already, and ends with OpenSM.
            if manager == Manager::OpenSm && host == HOST {
                continue;
            }
            this.hosts.push(host.clone());
            this.fabric.rdmux(&["host", "up", host])?;
        }
        Ok(this)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for host in &self.hosts {
            if let Err(error) = self.fabric.rdmux(&["host", "down", host]) {
                tracing::warn!(%error, "cannot stop a host that this command started");
            }
        }
    }
}

/// A running service. It ends when this is dropped.
pub(super) struct Running {
    child: Child,
    /// The directory of its socket.
    pub(super) runtime: PathBuf,
    said: PathBuf,
}

impl Running {
    /// Starts the service with these names and options, and waits until clients can connect.
    ///
    /// # Errors
    /// When it exits, or never listens.
    pub(super) fn start(
        fabric: &Fabric,
        host: &str,
        mut command: Command,
        (names, options): (&str, &str),
    ) -> Result<Self> {
        let file = |what: &str| fabric.dir().join(format!("{host}-{what}"));
        let (addr, opts, said) = (file("addr.cfg"), file("opts.cfg"), file("said"));
        fs::write(&addr, names)?;
        fs::write(&opts, options)?;
        command.arg("-P").arg("-A").arg(&addr).arg("-O").arg(&opts);
        let out = File::create(&said)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command.spawn().context("cannot start an ACM service")?;
        let runtime = fabric.runtime().join("hosts").join(host).join("acm");
        let mut this = Self { child, runtime, said };
        let start = Instant::now();
        while Socket::connect(&this.socket()).is_err() {
            this.still_runs()?;
            ensure!(start.elapsed() < START, "the ACM service of {host} did not listen in time");
            sleep(GLANCE);
        }
        Ok(this)
    }

    fn still_runs(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        let said = || fs::read_to_string(&self.said).unwrap_or_default();
        ensure!(ended.is_none(), "an ACM service ended: {}", said().trim());
        Ok(())
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.runtime.join("ibacm-unix.sock")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The service may have exited by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two hosts, each with a service of the same kind. The second host has any number of additional names.
pub(super) struct Pair<S> {
    services: [Running; 2],
    // Dropped after the services, which run on it.
    stage: Rc<Stage>,
    kind: PhantomData<S>,
}

impl<S: Service> Pair<S> {
    /// Starts a pair on a new fabric, which has room for another pair.
    ///
    /// # Errors
    /// When a process does not start.
    pub(super) fn new(ground: &Ground, names: u32) -> Result<Self> {
        let hosts: Vec<_> =
            Ours::HOSTS.iter().chain(&Debian::HOSTS).map(|h| (*h).to_owned()).collect();
        Self::start(Rc::new(Stage::new(ground, "switch:4", &hosts, Manager::Own)?), names)
    }

    /// Starts a pair on the fabric of another pair.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn on<T: Service>(other: &Pair<T>, names: u32) -> Result<Self> {
        Self::start(Rc::clone(&other.stage), names)
    }

    fn start(stage: Rc<Stage>, names: u32) -> Result<Self> {
        let options = [OPTIONS, S::OPTIONS].concat();
        let line = |name: &str| format!("{name} rdmux_ib0 1 default\n");
        let [own, other] = S::HOSTS;
        let others = (0..names).map(|n| line(&alias(other, n)));
        let others: String = [line(other)].into_iter().chain(others).collect();
        let start = |host, names: &str| {
            let command = S::command(&stage.fabric, host)?;
            Running::start(&stage.fabric, host, command, (names, &options))
        };
        let services = [start(own, &line(own))?, start(other, &others)?];
        Ok(Self { services, stage, kind: PhantomData })
    }

    /// Returns the name of the first host.
    pub(super) fn own(&self) -> &'static str {
        S::HOSTS[0]
    }

    /// Returns the name of the second host.
    pub(super) fn other(&self) -> &'static str {
        S::HOSTS[1]
    }

    /// Returns one of the second host's additional names.
    pub(super) fn alias(&self, n: u32) -> String {
        alias(self.other(), n)
    }

    /// Returns the socket of the first host's service.
    pub(super) fn socket(&self) -> PathBuf {
        self.services[0].socket()
    }

    /// Connects a client to the first host's service.
    ///
    /// # Errors
    /// Those of connect(2).
    pub(super) fn client(&self) -> Result<Socket> {
        Socket::connect(&self.socket())
    }

    /// Returns a library client of the first host's service.
    pub(super) fn library(&self) -> Client {
        library(&self.services[0].runtime)
    }

    /// Resolves the second host until that succeeds, because ports come up and groups are joined first. Returns the
    /// request.
    ///
    /// # Errors
    /// When it never succeeds.
    pub(super) fn warm(&self, socket: &mut Socket) -> Result<Vec<u8>> {
        let request = request(self.own(), self.other())?;
        let start = Instant::now();
        while let Err(e) = socket.ask(&request) {
            if start.elapsed() > START {
                return Err(e.context("the other host was not resolved in time"));
            }
            sleep(GLANCE);
            *socket = self.client()?;
        }
        Ok(request)
    }
}

impl Pair<Ours> {
    /// Returns how many requests the first service has sent by multicast.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn asked(&self) -> Result<u64> {
        let all = self.library().statistics(TIMEOUT)?;
        let sent = all.iter().find(|s| s.name.as_bytes() == b"sent_requests");
        Ok(sent.context("the service has no counter sent_requests")?.value)
    }
}

fn alias(host: &str, n: u32) -> String {
    format!("{host}-{n}")
}
