//! A fabric with two hosts.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rdmux_fabric::Config;
use rdmux_fabric::client::ConnectOptions;
use rdmux_fabric::proto::{NodeView, PortView, Snapshot, Status, Tables};
use rdmux_fabric::routes::Check;
use rdmux_runtime::UserDir;
use rdmux_subnet::Topology;
use rdmux_wire::Lid;
use serde::de::DeserializeOwned;
use std::time::Instant;

use super::bring_up::all_is_active;
use super::opensm::{Conf, OpenSm};
use super::{ManagedBy, TIMEOUT};
use crate::process::Process;
use crate::row::Device;
use crate::stage::{SHORTLY, find_program, is_assignment};

/// The hosts, named like their adapters in the shapes.
pub(super) const HOSTS: [&str; 2] = ["node1", "node2"];

/// The name of a host's service as a client of the fabric.
const SERVICE: &str = "rdmux";

/// A fabric with hosts on it, in a runtime directory of its own. It is shut down when this is dropped.
#[derive(Debug)]
pub(crate) struct Ground {
    /// The program rdmux.
    rdmux: PathBuf,
    /// The runtime directory, and the managers' files.
    dir: PathBuf,
    shape: String,
    /// The prefix of the row's logs.
    logs: PathBuf,
    started: Cell<u32>,
    /// OpenSM, if rows share it.
    manager: Option<OpenSm>,
    /// The manager that rows share, once there is one: OpenSM or the fabric's own.
    managed: Option<ManagedBy>,
    /// The attached hosts.
    hosts: RefCell<Vec<String>>,
}

impl Ground {
    /// Brings a fabric up. `shape` is that of `rdmux fabric up`, or the text of a topology file; `options` are its options for the
    /// manager.
    ///
    /// # Errors
    /// When it does not come up.
    pub(crate) fn up(
        rdmux: &Path,
        dir: PathBuf,
        shape: &str,
        options: &[&str],
        logs: PathBuf,
    ) -> Result<Self> {
        let (rdmux, shape, started) = (rdmux.to_path_buf(), shape.to_owned(), Cell::new(0));
        let hosts = RefCell::default();
        let ground = Self { rdmux, dir, shape, logs, started, manager: None, managed: None, hosts };
        let file = ground.dir.join("topology.net");
        let (way, value) = if ground.shape.contains('\n') {
            fs::write(&file, &ground.shape)?;
            ("--topology", file.to_str().context("a path")?)
        } else {
            ("--shape", &*ground.shape)
        };
        // The managers' groups must be only those that the rows' own programs have joined.
        fs::write(ground.config(), "[fabric]\nwithout_ip = true\n")?;
        ground.rdmux(&[&["fabric", "up", way, value], options].concat())?;
        for host in HOSTS {
            ground.attach(host)?;
        }
        Ok(ground)
    }

    /// Starts a host on the fabric, and waits until it is attached.
    pub(super) fn attach(&self, host: &str) -> Result<()> {
        self.attach_with(host, &[])
    }

    /// Attaches a host with options of `rdmux host up`.
    pub(super) fn attach_with(&self, host: &str, options: &[&str]) -> Result<()> {
        self.hosts.borrow_mut().push(host.to_owned());
        let mut up = self.on(host);
        let out = up.args(["host", "up", host]).args(options).output().context("rdmux")?;
        ensure!(out.status.success(), "host {host}: {}", String::from_utf8_lossy(&out.stderr));
        let there = || Ok(self.status()?.attached.iter().any(|a| a.host == host));
        self.until("attached", there)
    }

    /// Starts OpenSM on the fabric, for rows to share.
    pub(crate) fn managed_by_opensm(mut self) -> Result<Self> {
        self.managed = Some(ManagedBy::OpenSm);
        let manager = OpenSm::start(&self, HOSTS[0], "shared-opensm", &Conf::default())?;
        self.manager = Some(manager);
        let manager = self.manager.as_mut().context("a manager")?;
        manager.subnet_is_up(1)?;
        Ok(self)
    }

    /// Uses the fabric's own manager, which has brought it up, for rows to share.
    pub(crate) fn managed_by_itself(mut self) -> Result<Self> {
        self.managed = Some(ManagedBy::Fabric);
        self.until("managed", || {
            let manager = self.status()?.manager.context("the fabric has no manager")?;
            let swept = manager.state == "master" && manager.sweeps > 0 && !manager.sweeping;
            Ok(swept && all_is_active(&self.show()?).is_ok())
        })?;
        Ok(self)
    }

    /// Returns the manager that rows share.
    pub(super) fn managed_by(&self) -> Result<ManagedBy> {
        self.managed.context("there is no shared subnet manager")
    }

    /// Returns the node with the manager that rows share.
    pub(super) fn manager_in<'s>(&self, shown: &'s Snapshot) -> Result<&'s NodeView> {
        match self.managed_by()? {
            ManagedBy::OpenSm => shown.node(HOSTS[0]),
            ManagedBy::Fabric => {
                shown.switches().chain(shown.adapters()).next().context("a fabric without nodes")
            }
        }
    }

    /// Returns how often the manager that rows share has logged a text.
    pub(super) fn manager_said(&self, what: &str) -> usize {
        self.manager.as_ref().map_or(0, |manager| manager.said(what))
    }

    /// Returns whether the fabric has this shape and this manager.
    pub(crate) fn is_like(&self, shape: &str, by: ManagedBy) -> bool {
        self.shape == shape && self.managed == Some(by)
    }

    /// Changes the prefix of the logs, for another row.
    pub(crate) fn log_to(&mut self, logs: PathBuf) {
        self.logs = logs;
        self.started.set(0);
    }

    /// Returns the directory for files of programs.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the log file of a program.
    pub(super) fn log(&self, role: &str) -> PathBuf {
        let mut log = self.logs.clone().into_os_string();
        log.push(format!("-{role}.log"));
        log.into()
    }

    /// Returns a program of this workspace beside `rdmux`.
    pub(super) fn beside(&self, program: &str) -> PathBuf {
        self.rdmux.with_file_name(program)
    }

    /// Starts a program on a host. Words like `NAME=VALUE` before it set its environment.
    pub(super) fn start(&self, host: &str, role: &str, line: &str) -> Result<Process> {
        self.start_by(self.on(host), role, line)
    }

    fn start_by(&self, mut command: Command, role: &str, line: &str) -> Result<Process> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let set = words.iter().take_while(|w| is_assignment(w)).count();
        let (program, args) = words[set..].split_first().context("an empty command line")?;
        let program =
            find_program(program).with_context(|| format!("{program} is not installed"))?;
        command.envs(words[..set].iter().filter_map(|w| w.split_once('=')));
        command.args(["run", "--device", Device::Ib.option(), "--"]).arg(program).args(args);
        Process::start(command, line, &self.log(role))
    }

    /// Runs a program on the second host, which has no manager, and returns its output. It must end with status 0.
    pub(super) fn said(&self, line: &str) -> Result<String> {
        self.said_on(HOSTS[1], line)
    }

    /// Runs a program on a host and returns its output. It must end with status 0.
    pub(super) fn said_on(&self, host: &str, line: &str) -> Result<String> {
        let mut process = self.next(host, line)?;
        process.succeed(TIMEOUT)?;
        Ok(process.printed())
    }

    /// Runs a program on the second host that must fail, and returns all of its output.
    pub(super) fn refused(&self, line: &str) -> Result<String> {
        let mut process = self.next(HOSTS[1], line)?;
        let status = process.finish(TIMEOUT)?;
        ensure!(!status.success(), "{line} succeeded; it should have failed");
        Ok(process.output())
    }

    /// Runs a program on the second host that must end with this status, and returns its output.
    pub(super) fn ends_with(&self, status: i32, line: &str) -> Result<String> {
        let mut process = self.next(HOSTS[1], line)?;
        let ended = process.finish(TIMEOUT)?;
        ensure!(ended.code() == Some(status), "{line} ended with {ended}, not {status}");
        Ok(process.printed())
    }

    fn next(&self, host: &str, line: &str) -> Result<Process> {
        self.started.set(self.started.get() + 1);
        self.start(host, &self.started.get().to_string(), line)
    }

    /// Runs a command of rdmux and returns its output.
    pub(super) fn rdmux(&self, args: &[&str]) -> Result<String> {
        let out = self.on(HOSTS[0]).args(args).output().context("rdmux")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "rdmux {}: {}", args.join(" "), said.trim());
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Starts a command of rdmux on a host.
    pub(super) fn start_rdmux(&self, host: &str, role: &str, args: &[&str]) -> Result<Process> {
        let mut command = self.on(host);
        command.args(args);
        Process::start(command, &format!("rdmux {}", args.join(" ")), &self.log(role))
    }

    /// Returns the command rdmux, run on a host.
    fn on(&self, host: &str) -> Command {
        self.equip(Command::new(&self.rdmux), host)
    }

    /// Returns the configuration file of hosts.
    fn config(&self) -> PathBuf {
        self.dir.join("config.toml")
    }

    /// Adds the environment that a command needs on a host.
    fn equip(&self, mut command: Command, host: &str) -> Command {
        command.env("RDMUX_RUNTIME_DIR", self.dir.join("run")).env("RDMUX_HOST", host);
        command.env("RDMUX_CONFIG", self.config());
        command.env_remove("RDMUX_FABRIC").env_remove("RUST_LOG").current_dir(&self.dir);
        // Scripts start other programs of their package, which plain users do not have in their PATH.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin"));
        command
    }

    /// Enables IP on the fabric for hosts attached from now on.
    pub(super) fn with_ip(&self) -> Result<()> {
        Ok(fs::write(self.config(), "")?)
    }

    /// Returns the IPv4 address of a host.
    pub(super) fn address(&self, host: &str) -> Result<String> {
        let said = self.rdmux(&["host", "status", host])?;
        let line = said.lines().find_map(|line| line.strip_prefix("addresses"));
        let address = line.and_then(|line| line.split_whitespace().next()).context("an address")?;
        Ok(address.to_owned())
    }

    fn json<T: DeserializeOwned>(&self, args: &[&str]) -> Result<T> {
        serde_json::from_str(&self.rdmux(args)?).with_context(|| args.join(" "))
    }

    /// Returns how a client in this crate connects to the fabric.
    pub(super) fn connect_options(&self) -> Result<ConnectOptions> {
        let user = UserDir::at(self.dir.join("run"))?;
        Ok(ConnectOptions { user, config: Config::default(), embedded: false, program: None })
    }

    /// Returns all nodes and cables, as the fabric shows them.
    pub(super) fn show(&self) -> Result<Snapshot> {
        self.json(&["fabric", "show", "--json"])
    }

    /// Returns the forwarding tables, as the fabric shows them.
    pub(super) fn tables(&self) -> Result<Tables> {
        self.json(&["fabric", "show", "--tables"])
    }

    /// Returns the topology, as the fabric writes it.
    pub(super) fn topology(&self) -> Result<Topology> {
        parse(&self.rdmux(&["fabric", "show", "--topology"])?)
    }

    /// Returns the status of the fabric.
    pub(super) fn status(&self) -> Result<Status> {
        // The command prints counters by name.
        let mut value: serde_json::Value =
            self.json(&["fabric", "status", "--fabric", "default", "--json"])?;
        value["counters"] = serde_json::json!([]);
        Ok(serde_json::from_value(value)?)
    }

    /// Checks that the forwarding tables lead from every adapter to every other one, and that all LIDs exist and are unique.
    pub(super) fn ways_are_whole(&self) -> Result<Check> {
        let out = self.on(HOSTS[0]).args(["fabric", "route", "--json"]).output()?;
        let check: Check = serde_json::from_slice(&out.stdout).context("rdmux fabric route")?;
        ensure!(check.is_whole(), "routes are missing: {check:?}");
        ensure!(out.status.success(), "rdmux fabric route failed, but reports {check:?}");
        Ok(check)
    }

    /// Waits until a condition holds.
    pub(super) fn until(&self, what: &str, mut there: impl FnMut() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while !there()? {
            ensure!(Instant::now() < end, "timed out: not {what}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until no program has the management interface of a port open, except the shared manager, and the hosts' services, which
    /// query subnet administration. A program that ended has closed its connections; this waits until the fabric has noticed.
    pub(crate) fn nothing_is_left(&self) -> Result<()> {
        let end = Instant::now() + SHORTLY;
        loop {
            let mut files = self.status()?.files;
            files.retain(|file| file.comm != SERVICE);
            files.retain(|file| self.manager.is_none() || file.comm != "opensm");
            if files.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("management interfaces were left open: {files:?}");
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.manager = None;
        for host in self.hosts.take() {
            let _ = self.rdmux(&["host", "down", &host]);
        }
        let _ = self.rdmux(&["fabric", "down"]);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Parses a topology that a program or the fabric wrote.
pub(super) fn parse(text: &str) -> Result<Topology> {
    Topology::parse(text).map_err(|e| anyhow::anyhow!("cannot parse the topology: {e}"))
}

/// Queries of a snapshot.
pub(super) trait Shown {
    /// Returns a node by its description.
    fn node(&self, description: &str) -> Result<&NodeView>;
    /// Returns the adapters.
    fn adapters(&self) -> impl Iterator<Item = &NodeView>;
    /// Returns the switches.
    fn switches(&self) -> impl Iterator<Item = &NodeView>;
    /// Returns the other end of a node's cable.
    fn far(&self, node: &NodeView, port: u8) -> Option<(&NodeView, u8)>;
}

impl Shown for Snapshot {
    fn node(&self, description: &str) -> Result<&NodeView> {
        let found = self.nodes.iter().find(|n| n.description == description);
        found.with_context(|| format!("the fabric shows no node {description:?}"))
    }

    fn adapters(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.iter().filter(|n| !n.is_switch)
    }

    fn switches(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.iter().filter(|n| n.is_switch)
    }

    fn far(&self, node: &NodeView, port: u8) -> Option<(&NodeView, u8)> {
        let index = self.nodes.iter().position(|n| n.guid == node.guid)?;
        let end = (u32::try_from(index).ok()?, port);
        let mut ends = self.links.iter().flat_map(|l| [(l.a, l.b), (l.b, l.a)]);
        let (_, far) = ends.find(|(near, _)| *near == end)?;
        Some((self.nodes.get(far.0 as usize)?, far.1))
    }
}

/// Returns the management port of a node: port 0 of a switch, the first of an adapter.
pub(super) fn own_port(node: &NodeView) -> Result<&PortView> {
    node.ports.first().with_context(|| format!("{} has no port", node.id))
}

/// Returns the GUID of that port: switches have one for all ports, adapters one for each, following the node's.
pub(super) fn port_guid(node: &NodeView) -> u64 {
    node.guid.0 + u64::from(!node.is_switch)
}

/// Returns the GID of that port, with the default prefix.
pub(super) fn port_gid(node: &NodeView) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(port_guid(node)))
}

/// Returns whether a TCP port has a listener, by the kernel's table.
pub(super) fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let of = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let tables = of("/proc/net/tcp") + &of("/proc/net/tcp6");
    tables.lines().any(|line| {
        let mut words = line.split_whitespace();
        let local = words.nth(1).unwrap_or_default();
        local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some(LISTEN)
    })
}

/// Returns the LID of a node.
pub(super) fn lid(node: &NodeView) -> Result<Lid> {
    let lid = own_port(node)?.lid;
    ensure!(lid.0 != 0, "{} has no LID", node.id);
    Ok(lid)
}
