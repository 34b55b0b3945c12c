//! Fabrics of rdmux and of ibsim, with OpenSM on either.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux_command::child::find_program;
use rdmux_command::signals;
use rdmux_fabric::client::admin::{self, Plan};
use rdmux_fabric::client::{ConnectOptions, MadFile};
use rdmux_fabric::proto::{NodeRef, PortRef, Snapshot};
use rdmux_fabric::server::{FIRST_GUID, ManagerSetup, Setup};
use rdmux_fabric::{Config, FabricName};
use rdmux_runtime::UserDir;
use rdmux_subnet::topology::Shape;
use rdmux_wire::Guid;

use super::super::programs::require;
use super::super::resources::share;

/// The adapter that OpenSM uses, and the host that has it: an adapter is given to the host of its name.
pub(super) const HOST: &str = "node1";
/// How long a subnet may take to come up.
const TIMEOUT: Duration = Duration::from_secs(900);
/// The interval of checks whether it is up.
const GLANCE: Duration = Duration::from_millis(5);

/// The directory in which fabrics are started.
pub(super) struct Ground {
    dir: tempfile::TempDir,
    /// The path of the running program, `rdmux`.
    rdmux: PathBuf,
    /// The number of subdirectories.
    dirs: Cell<u32>,
}

/// A fabric of rdmux. It ends when this is dropped.
pub(super) struct Fabric {
    options: ConnectOptions,
    name: FabricName,
    rdmux: PathBuf,
    dir: PathBuf,
    opensm: Option<OpenSm>,
    /// Whether [`HOST`] has been started, or its start has begun.
    has_host: bool,
}

/// A subnet that ibsim simulates. It ends when this is dropped.
pub(super) struct Ibsim {
    process: Running,
    /// The name by which clients find it.
    name: String,
    /// The name of the node that OpenSM uses.
    node: String,
    dir: PathBuf,
}

/// An OpenSM that has brought its subnet up. It ends when this is dropped.
pub(super) struct OpenSm {
    process: Running,
    /// The seconds from its start until its log reported the subnet as up.
    pub(super) took: f64,
}

impl Ground {
    /// Creates the directory for fabrics, after a check that OpenSM and ibsim are installed.
    ///
    /// # Errors
    /// When OpenSM or ibsim is missing.
    pub(super) fn new() -> Result<Self> {
        for name in ["opensm", "ibsim"] {
            program(name)?;
        }
        preload()?;
        Self::bare()
    }

    /// Returns the ground for rdmux's fabrics only.
    pub(super) fn bare() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let rdmux = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(Self { dir, rdmux, dirs: Cell::new(0) })
    }

    /// Creates a new directory.
    fn dir(&self) -> Result<PathBuf> {
        self.dirs.set(self.dirs.get() + 1);
        let dir = self.dir.path().join(self.dirs.get().to_string());
        fs::create_dir(&dir)?;
        Ok(dir)
    }

    /// Brings up a fabric, with or without its own manager.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn fabric(&self, shape: Shape, managed: bool) -> Result<Fabric> {
        let dir = self.dir()?;
        let options = ConnectOptions {
            user: UserDir::at(dir.join("run"))?,
            config: Config::default(),
            embedded: false,
            program: Some(self.rdmux.clone()),
        };
        let name = FabricName::default();
        let manager = ManagerSetup { off: !managed, ..ManagerSetup::default() };
        let setup = Setup { source: shape.to_string(), manager, ..Setup::default() };
        let topology = Some(shape.topology(FIRST_GUID));
        admin::up(&options, &name, Some(&Plan { setup, topology, secret: None }))?;
        Ok(Fabric { options, name, rdmux: self.rdmux.clone(), dir, opensm: None, has_host: false })
    }

    /// Starts ibsim with the nodes and cables of a fabric of this shape.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn ibsim(&self, shape: Shape) -> Result<Ibsim> {
        let dir = self.dir()?;
        let topology = shape.topology(FIRST_GUID);
        let file = dir.join("topology");
        fs::write(&file, topology.to_string())?;
        let name = format!("rdmux-{}-{}", std::process::id(), self.dirs.get());
        let (nodes, ports) = (topology.nodes.len(), 40);
        let mut ibsim = Command::new(program("ibsim")?);
        ibsim.args(["-s", "-N", &nodes.to_string(), "-S", &nodes.to_string()]);
        ibsim.args(["-P", &(nodes * ports).to_string()]).arg(&file);
        ibsim.env("IBSIM_SOCKNAME", &name).current_dir(&dir);
        // ibsim ends when its console closes.
        let said = dir.join("ibsim.out");
        ibsim
            .stdin(Stdio::piped())
            .stdout(File::create(&said)?)
            .stderr(File::create(dir.join("ibsim.err"))?);
        let mut process = Running(ibsim.spawn().context("cannot start ibsim")?);
        let start = Instant::now();
        while !fs::read_to_string(&said)?.contains("sim>") {
            ensure!(process.0.try_wait()?.is_none(), "ibsim ended before its simulation started");
            ensure!(start.elapsed() < TIMEOUT, "ibsim's simulation did not start in time");
            signals::check()?;
            sleep(GLANCE);
        }
        let node = topology.nodes.iter().find(|node| node.description == HOST);
        let node = node.context("the topology has no adapter of the measured host")?.id.clone();
        Ok(Ibsim { process, name, node, dir })
    }
}

impl Fabric {
    /// Lets OpenSM bring the subnet up, on one of its hosts.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn opensm(&mut self, options: &[&str]) -> Result<&OpenSm> {
        self.has_host = true;
        self.rdmux(&["host", "up", HOST])?;
        let mut opensm = self.command();
        opensm.args(["run", "--device", "ib", "--"]).arg(program("opensm")?).args(options);
        // The host ends with the fabric.
        Ok(self.opensm.insert(OpenSm::start(&self.dir, opensm)?))
    }

    /// Waits until the fabric's own manager has brought the subnet up.
    ///
    /// # Errors
    /// When it does not come up completely.
    pub(super) fn until_up(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let status = admin::status(&self.options, &self.name)?;
            let manager = status.manager.context("the fabric has no subnet manager")?;
            if let Some(last) = manager.last.filter(|_| manager.state == "master") {
                let nodes = u64::from(status.adapters + status.switches);
                ensure!(
                    last.nodes == nodes,
                    "the sweep did not find {nodes} nodes, but {}",
                    last.nodes
                );
                ensure!(last.problem_count == 0, "problems: {:?}", last.problems);
                return Ok(());
            }
            ensure!(
                start.elapsed() < TIMEOUT,
                "the subnet manager did not bring the subnet up in time"
            );
            signals::check()?;
            sleep(GLANCE);
        }
    }

    /// Returns the memory of its process, in bytes.
    pub(super) fn memory(&self) -> Result<f64> {
        Ok(share(admin::status(&self.options, &self.name)?.pid)? as f64)
    }

    /// Returns all nodes and cables, and the LIDs of ports.
    pub(super) fn show(&self) -> Result<Snapshot> {
        Ok(admin::show(&self.options, &self.name)?)
    }

    /// Opens the management interface of a node's port 1, as libibumad does.
    pub(super) fn open(&self, node: Guid) -> Result<MadFile> {
        let port = PortRef { node: NodeRef::Guid(node), port: 1 };
        Ok(MadFile::open(&self.options, &self.name, &port)?)
    }

    /// Returns a command for this program, with the fabric's runtime directory.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.rdmux);
        self.equip(&mut command);
        command
    }

    /// Sets the fabric's runtime directory for an rdmux program.
    pub(super) fn equip(&self, command: &mut Command) {
        command.env("RDMUX_RUNTIME_DIR", self.runtime()).env("RDMUX_HOST", HOST);
        command.env_remove("RDMUX_FABRIC").env_remove("RUST_LOG");
    }

    /// Returns the runtime directory.
    pub(super) fn runtime(&self) -> &Path {
        self.options.user.path()
    }

    /// Returns a directory for the files of programs.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs this program with these arguments.
    pub(super) fn rdmux(&self, args: &[&str]) -> Result<()> {
        let out = self.command().args(args).output()?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "rdmux {}: {}", args.join(" "), said.trim());
        Ok(())
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        drop(self.opensm.take());
        let host = if self.has_host { self.rdmux(&["host", "down", HOST]) } else { Ok(()) };
        let down = admin::down(&self.options, &self.name).map_err(anyhow::Error::from);
        if let Err(error) = host.and(down) {
            tracing::warn!(%error, "cannot stop the fabric that this command started");
        }
    }
}

impl Ibsim {
    /// Lets OpenSM bring the subnet up.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn opensm(&self, options: &[&str]) -> Result<OpenSm> {
        let mut opensm = Command::new(program("opensm")?);
        opensm.env("LD_PRELOAD", preload()?).env("IBSIM_SOCKNAME", &self.name);
        opensm.env("SIM_HOST", &self.node).args(options);
        OpenSm::start(&self.dir, opensm)
    }

    /// Returns the memory of its process, in bytes.
    pub(super) fn memory(&self) -> Result<f64> {
        Ok(share(self.process.0.id())? as f64)
    }
}

impl OpenSm {
    /// Starts OpenSM, and measures the time until it reports that the subnet is up.
    fn start(dir: &Path, mut command: Command) -> Result<Self> {
        let (log, conf) = (dir.join("opensm.log"), dir.join("opensm.conf"));
        // Neither side may be considered dead while other processes have the processor.
        let text = format!(
            "partition_config_file {}\ntransaction_timeout 5000\nforce_log_flush TRUE\n",
            dir.join("none").display()
        );
        fs::write(&conf, text)?;
        command.arg("-F").arg(&conf).arg("-f").arg(&log).current_dir(dir);
        command.env("OSM_TMP_DIR", dir).env("OSM_CACHE_DIR", dir);
        let out = File::create(dir.join("opensm.out"))?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let start = Instant::now();
        let mut process = Running(command.spawn().context("cannot start opensm")?);
        loop {
            let text = fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            if text.contains("SUBNET UP") {
                return Ok(Self { process, took: start.elapsed().as_secs_f64() });
            }
            if let Some(error) = text.lines().find(|line| line.contains(": ERR ")) {
                bail!("OpenSM logged an error: {error}");
            }
            ensure!(process.0.try_wait()?.is_none(), "OpenSM ended: {text}");
            ensure!(
                start.elapsed() < TIMEOUT,
                "OpenSM did not bring the subnet up in time: {text}"
            );
            signals::check()?;
            sleep(GLANCE);
        }
    }

    /// Returns the memory of its process, in bytes.
    pub(super) fn memory(&self) -> Result<f64> {
        Ok(share(self.process.0.id())? as f64)
    }
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns ibsim's library that replaces the files of adapters. Its directory is named after the machine's
/// architecture.
fn preload() -> Result<PathBuf> {
    let dirs = fs::read_dir("/usr/lib")?.flatten().map(|dir| dir.path());
    let files = dirs.chain(["/usr/lib".into()]).map(|dir| dir.join("umad2sim/libumad2sim.so"));
    let mut files = files.filter(|file| file.is_file());
    files.next().context("libumad2sim.so is missing: install the Debian package libumad2sim0")
}

/// Returns the path of a program, which may be in a directory that only administrators have on their path.
pub(super) fn program(name: &str) -> Result<PathBuf> {
    let admins = Path::new("/usr/sbin").join(name);
    if admins.is_file() {
        return Ok(admins);
    }
    require(name)?;
    find_program(OsStr::new(name)).with_context(|| format!("{name} is missing"))
}
