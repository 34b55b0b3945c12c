//! OpenSM brings a subnet of 10,368 adapters up: ours, and ibsim's, which carries management datagrams only.
//!
//! Both have the same nodes and cables, and the same OpenSM with the same options. What is timed is from its start until its log
//! says that the subnet is up; starting the fabric, and ibsim, is not.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux_command::child::find_program;
use rdmux_fabric::server::FIRST_GUID;
use rdmux_subnet::topology::Shape;

use super::super::programs::require;

/// Its nodes and cables.
const SHAPE: Shape = Shape::FatTree(10_368);
/// The adapter that OpenSM runs on, and the host that has it: an adapter is given to the host of its name.
const HOST: &str = "node1";
/// How long OpenSM may take.
const TIMEOUT: Duration = Duration::from_secs(900);
/// How often is looked into its log. It takes seconds.
const GLANCE: Duration = Duration::from_millis(5);

/// Both of them.
pub(super) struct Fabrics {
    dir: tempfile::TempDir,
    /// This program.
    rdmux: PathBuf,
    /// What makes a program see ibsim's adapters.
    preload: PathBuf,
    /// Whether ours is up.
    ours: bool,
}

impl Fabrics {
    /// # Errors
    /// When a program is missing.
    pub(super) fn new() -> Result<Self> {
        for name in ["opensm", "ibsim"] {
            program(name)?;
        }
        let preload = preload()?;
        let dir = tempfile::tempdir()?;
        let rdmux = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(Self { dir, rdmux, preload, ours: false })
    }

    /// Seconds until the subnet is up on ours.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn ours(&mut self) -> Result<f64> {
        self.ours = true;
        self.rdmux(&["fabric", "up", "--no-sm", "--shape", &SHAPE.to_string()])?;
        self.rdmux(&["host", "up", HOST])?;
        let mut opensm = self.command();
        opensm.args(["run", "--device", "ib", "--"]).arg(program("opensm")?);
        let time = self.opensm("ours", opensm);
        self.down();
        time
    }

    /// Seconds until the subnet is up on ibsim.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn ibsim(&self) -> Result<f64> {
        let topology = SHAPE.topology(FIRST_GUID);
        let file = self.dir.path().join("topology");
        fs::write(&file, topology.to_string())?;
        let name = format!("rdmux-{}", std::process::id());
        let (nodes, ports) = (topology.nodes.len(), 40);
        let mut ibsim = Command::new(program("ibsim")?);
        ibsim.args(["-s", "-N", &nodes.to_string(), "-S", &nodes.to_string()]);
        ibsim.args(["-P", &(nodes * ports).to_string()]).arg(&file);
        ibsim.env("IBSIM_SOCKNAME", &name).current_dir(self.dir.path());
        // It ends when its console does.
        let said = self.dir.path().join("ibsim.out");
        ibsim
            .stdin(Stdio::piped())
            .stdout(File::create(&said)?)
            .stderr(File::create(self.dir.path().join("ibsim.err"))?);
        let mut ibsim = Running(ibsim.spawn().context("cannot start ibsim")?);
        let start = Instant::now();
        while !fs::read_to_string(&said)?.contains("sim>") {
            ensure!(ibsim.0.try_wait()?.is_none(), "ibsim ended before it simulated");
            ensure!(start.elapsed() < TIMEOUT, "ibsim never simulated");
            sleep(GLANCE);
        }
        let node = topology.nodes.iter().find(|node| node.description == HOST);
        let mut opensm = Command::new(program("opensm")?);
        opensm.env("LD_PRELOAD", &self.preload).env("IBSIM_SOCKNAME", &name);
        opensm.env("SIM_HOST", &node.context("a tree without its first adapter")?.id);
        self.opensm("ibsim", opensm)
    }

    /// Starts OpenSM, and takes the time until it says that the subnet is up.
    fn opensm(&self, which: &str, mut command: Command) -> Result<f64> {
        let dir = self.dir.path().join(which);
        // Nothing of an earlier round: it would give the same LIDs again.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir)?;
        let (log, conf) = (dir.join("opensm.log"), dir.join("opensm.conf"));
        // Neither of them may be taken for dead while others have the processor.
        let text = format!(
            "partition_config_file {}\ntransaction_timeout 5000\nforce_log_flush TRUE\n",
            dir.join("none").display()
        );
        fs::write(&conf, text)?;
        command.arg("-F").arg(&conf).arg("-f").arg(&log).current_dir(&dir);
        command.env("OSM_TMP_DIR", &dir).env("OSM_CACHE_DIR", &dir);
        let out = File::create(dir.join("opensm.out"))?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let start = Instant::now();
        let mut opensm = Running(command.spawn().context("cannot start opensm")?);
        loop {
            let text = fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            if text.contains("SUBNET UP") {
                return Ok(start.elapsed().as_secs_f64());
            }
            if let Some(error) = text.lines().find(|line| line.contains(": ERR ")) {
                bail!("OpenSM on {which} complains: {error}");
            }
            ensure!(opensm.0.try_wait()?.is_none(), "OpenSM on {which} ended: {text}");
            ensure!(
                start.elapsed() < TIMEOUT,
                "OpenSM on {which} never brought the subnet up: {text}"
            );
            sleep(GLANCE);
        }
    }

    /// Our program, with a runtime directory of its own.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.rdmux);
        command.env("RDMUX_RUNTIME_DIR", self.dir.path().join("run")).env("RDMUX_HOST", HOST);
        command.env_remove("RDMUX_FABRIC").env_remove("RUST_LOG");
        command
    }

    fn rdmux(&self, args: &[&str]) -> Result<()> {
        let out = self.command().args(args).output()?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "rdmux {}: {}", args.join(" "), said.trim());
        Ok(())
    }

    fn down(&mut self) {
        if std::mem::take(&mut self.ours) {
            let down =
                self.rdmux(&["host", "down", HOST]).and_then(|()| self.rdmux(&["fabric", "down"]));
            if let Err(error) = down {
                tracing::warn!(%error, "the fabric that was started here did not end");
            }
        }
    }
}

impl Drop for Fabrics {
    fn drop(&mut self) {
        self.down();
    }
}

/// A process that is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// ibsim's library that stands in for the files of adapters. Its folder has the name of the machine's architecture.
fn preload() -> Result<PathBuf> {
    let dirs = fs::read_dir("/usr/lib")?.flatten().map(|dir| dir.path());
    let files = dirs.chain(["/usr/lib".into()]).map(|dir| dir.join("umad2sim/libumad2sim.so"));
    let mut files = files.filter(|file| file.is_file());
    files.next().context("libumad2sim.so is missing: install the Debian package libumad2sim0")
}

/// A program, which may be among those that only administrators have on their path.
fn program(name: &str) -> Result<PathBuf> {
    let admins = Path::new("/usr/sbin").join(name);
    if admins.is_file() {
        return Ok(admins);
    }
    require(name)?;
    find_program(OsStr::new(name)).with_context(|| format!("{name} is missing"))
}
