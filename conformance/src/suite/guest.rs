//! Processes on both sides of a wire: the kernel's driver in the guest's first network namespace,
//! rdmux in namespace `b`.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::evidence::{Capture, Watch};
use super::{Family, Link};

/// The polling interval for conditions without a notification.
const GLANCE: Duration = Duration::from_millis(20);

/// The timeout of operations that take a moment: only a failure, or a busy machine,
/// takes so long.
pub(super) const WAIT: Duration = Duration::from_secs(60);

/// The number of packets of which a wire that loses 2 % has lost at least one: with a probability of 2e-9 it has lost none.
const MANY: u64 = 1000;

/// How much of each log is shown when a check fails: the last lines, and the most characters of each.
const LAST_LINES: usize = 60;
const LINE: usize = 8000;

/// The port of the kernel's device in sysfs.
pub(super) const RXE_PORT: &str = "/sys/class/infiniband/rxe0/ports/1";

/// A side of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The side with `rdma_rxe`.
    Kernel,
    /// The side with rdmux.
    Rdmux,
}

impl Place {
    /// Returns the side's address.
    pub fn address(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Kernel, Family::V4) => "10.77.0.1",
            (Self::Rdmux, Family::V4) => "10.77.0.2",
            (Self::Kernel, Family::V6) => "fd77::1",
            (Self::Rdmux, Family::V6) => "fd77::2",
        }
    }

    /// Returns the side's network interface.
    pub fn interface(self) -> &'static str {
        match self {
            Self::Kernel => "veth0",
            Self::Rdmux => "veth1",
        }
    }
}

/// The guest that this process runs in.
#[derive(Debug)]
pub struct Guest {
    programs: PathBuf,
    logs: PathBuf,
    link: Cell<Option<Link>>,
    check: Cell<u16>,
    processes: Cell<u16>,
    /// The logs of the current check, for the log on the host.
    said: RefCell<Vec<PathBuf>>,
    capture: RefCell<Option<Capture>>,
    /// The output of `ibv_devinfo` for rdmux's device in the current state of the wire.
    devinfo: RefCell<Option<String>>,
}

impl Guest {
    /// Creates a guest. `programs` is the folder of rdmux's binaries, `logs` that of the output of every process.
    ///
    /// # Errors
    /// When the folder for the logs cannot be made.
    pub fn new(programs: &Path, logs: &Path) -> Result<Self> {
        fs::create_dir_all(logs).with_context(|| logs.display().to_string())?;
        Ok(Self {
            programs: programs.to_path_buf(),
            logs: logs.to_path_buf(),
            link: Cell::new(None),
            check: Cell::new(0),
            processes: Cell::new(0),
            said: RefCell::new(Vec::new()),
            capture: RefCell::new(None),
            devinfo: RefCell::new(None),
        })
    }

    /// Begins check number `n` under these conditions.
    ///
    /// # Errors
    /// When the wire cannot be set up.
    pub fn begin(&self, n: u16, link: Link) -> Result<()> {
        self.check.set(n);
        self.processes.set(0);
        self.said.borrow_mut().clear();
        if self.link.get() != Some(link) {
            // A wire that is set up in part is none.
            let previous = self.link.take();
            if previous.is_some_and(|previous| previous.loss > 0) {
                self.check_loss()?;
            }
            self.set_up(link)?;
            self.link.set(Some(link));
        }
        if link.loss > 0 {
            *self.capture.borrow_mut() = Some(Capture::start(self)?);
        }
        Ok(())
    }

    /// Ends the current check. If it failed, prints evidence.
    pub fn end(&self, success: bool) {
        let capture = self.capture.borrow_mut().take();
        if success {
            return;
        }
        if let Some(capture) = capture {
            let file = self.logs.join(format!("{:03}.pcap", self.check.get()));
            if let Err(e) = capture.keep(&file) {
                println!("     # cannot capture packets: {e:#}");
            }
        }
        for log in self.logs().into_iter().chain([self.state_file()]) {
            let Ok(text) = fs::read(&log) else { continue };
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            println!("     # {}:", log.display());
            for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
                println!("     #   {}", line.chars().take(LINE).collect::<String>());
            }
        }
    }

    /// Returns the logs of the current check.
    pub fn logs(&self) -> Vec<PathBuf> {
        self.said.borrow().clone()
    }

    /// Returns the file for the state of both sides when something takes long.
    fn state_file(&self) -> PathBuf {
        self.logs.join(format!("{:03}-state.log", self.check.get()))
    }

    /// Returns a port that no other check uses.
    pub fn port(&self) -> u16 {
        7300 + self.check.get()
    }

    /// Returns the timeout of a process under the conditions of the wire: many times the usual time, because
    /// the machine may be slow and busy.
    pub fn timeout(&self) -> Duration {
        let lossy = self.link.get().is_some_and(|l| l.loss > 0);
        Duration::from_secs(if lossy { 240 } else { 120 })
    }

    fn set_up(&self, link: Link) -> Result<()> {
        self.devinfo.take();
        // The service reads the MTU of its interfaces when it starts.
        self.must(Place::Rdmux, "rdmux", &["host", "down"])?;
        for place in [Place::Kernel, Place::Rdmux] {
            let dev = place.interface();
            let mtu = link.interface_mtu().to_string();
            self.must(place, "ip", &["link", "set", dev, "mtu", &mtu])?;
            let _ = self.start(place, "tc", &["qdisc", "del", "dev", dev, "root"])?.finish(WAIT);
            if link.loss > 0 {
                let loss = format!("{}%", link.loss);
                let netem = ["qdisc", "add", "dev", dev, "root", "netem", "limit", "20000", "loss"];
                self.must(place, "tc", &[&netem[..], &[&loss]].concat())?;
            }
            // With the offload the network stack takes one large send and splits it before the wire.
            let on = if link.offload { "on" } else { "off" };
            let args = ["-K", dev, "tx", on, "sg", on, "gso", on, "tx-udp-segmentation", "off"];
            self.must(place, "ethtool", &args)?;
        }
        self.check_mtu(link)
    }

    /// Checks that rdmux's RoCE port has the MTU of the wire: peers agree on the smaller one, so another would not be noticed.
    fn check_mtu(&self, link: Link) -> Result<()> {
        // Only standard output: the log is on standard error.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", "b"]).arg(self.program("rdmux")).args(["devices", "--json"]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
        let devices: Value =
            serde_json::from_slice(&output.stdout).context("rdmux devices --json")?;
        let address = Place::Rdmux.address(Family::V4);
        let ports = devices.as_array().into_iter().flatten().filter_map(|d| d["ports"].as_array());
        let gids = ports.flatten().filter_map(|port| port["gids"].as_array()).flatten();
        let mut roce = gids.filter(|gid| gid["kind"] == "RoCE v2" && gid["address"] == address);
        let mtu = roce.next().context("rdmux has no RoCE GID on the wire")?["mtu"].as_u64();
        ensure!(mtu == Some(link.mtu.into()), "rdmux's MTU is {mtu:?}, not {}", link.mtu);
        Ok(())
    }

    /// Checks that the wire of the previous checks, which should lose packets, has lost some in each direction.
    fn check_loss(&self) -> Result<()> {
        for place in [Place::Kernel, Place::Rdmux] {
            let dev = place.interface();
            let status = self.must(place, "tc", &["-s", "qdisc", "show", "dev", dev])?;
            let (sent, dropped) = sent_and_dropped(&status)
                .with_context(|| format!("no packets of {dev} are counted: {status}"))?;
            ensure!(dropped > 0 || sent < MANY, "{dev} should lose packets, but sent {sent}");
        }
        Ok(())
    }

    /// Runs a program to its end, and returns its output. It must succeed.
    ///
    /// # Errors
    /// When it is not.
    pub fn must(&self, place: Place, program: &str, args: &[&str]) -> Result<String> {
        let mut p = self.start(place, program, args)?;
        p.succeed(WAIT)?;
        Ok(p.output())
    }

    /// Returns the path of a program, if it is one of rdmux's.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Starts a program. Those of rdmux are taken from their folder, others from the path.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, place: Place, program: &str, args: &[&str]) -> Result<Process> {
        let ours = self.program(program);
        let path = if ours.is_file() { ours } else { PathBuf::from(program) };
        let mut command = match place {
            Place::Kernel => Command::new(&path),
            Place::Rdmux => {
                let mut c = Command::new("ip");
                c.args(["netns", "exec", "b"]).arg(&path);
                c
            }
        };
        let n = self.processes.get();
        self.processes.set(n + 1);
        let log = self.logs.join(format!("{:03}-{n}-{program}.log", self.check.get()));
        let out = File::create(&log).with_context(|| log.display().to_string())?;
        fs::write(&log, format!("$ {program} {}\n", args.join(" ")))?;
        let out = File::options().append(true).open(&log).unwrap_or(out);
        let err = out.try_clone()?;
        command.args(args).stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        self.said.borrow_mut().push(log.clone());
        let watch = Watch::new(&self.programs, self.state_file());
        Ok(Process { child, program: program.to_owned(), log, watch })
    }

    /// Returns the output of `ibv_devinfo` for rdmux's device, which `ask` obtains.
    ///
    /// # Errors
    /// Those of `ask`.
    pub(super) fn devinfo(&self, ask: impl FnOnce(&Self) -> Result<String>) -> Result<String> {
        if let Some(known) = &*self.devinfo.borrow() {
            return Ok(known.clone());
        }
        let found = ask(self)?;
        self.devinfo.replace(Some(found.clone()));
        Ok(found)
    }

    /// Keeps rdmux's service running while the result lives, by a program that waits.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn our_service(&self) -> Result<Process> {
        let args = ["ping", "-s", "-a", Place::Rdmux.address(Family::V4), "-p", "7999"];
        let mut holder = self.start(Place::Rdmux, "rdmux", &args)?;
        holder.says("waiting for clients", self.timeout())?;
        Ok(holder)
    }

    /// Returns a counter of rdmux's service; 0 when it does not run.
    ///
    /// # Errors
    /// When the service has no such counter.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let args = ["host", "status", "default", "--json", "--all"];
        let mut status = self.start(Place::Rdmux, "rdmux", &args)?;
        if !status.finish(WAIT)?.success() {
            return Ok(0);
        }
        let json = status.output();
        let quoted = format!("\"{name}\"");
        let (_, rest) = json
            .split_once(&quoted)
            .with_context(|| format!("the service has no counter {name}"))?;
        let digits: String = rest
            .chars()
            .skip_while(|c| !c.is_ascii_digit())
            .take_while(char::is_ascii_digit)
            .collect();
        Ok(digits.parse()?)
    }

    /// Waits until the kernel has a listener on this port.
    ///
    /// # Errors
    /// When it has none in time.
    pub fn kernel_listens(&self, port: u16) -> Result<()> {
        let wanted = format!(":{port} ");
        wait_for("a listener in the kernel", WAIT, || {
            let out = Command::new("rdma").args(["resource", "show", "cm_id"]).output()?;
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            Ok(text.lines().any(|l| l.contains("LISTEN") && l.contains(&wanted)))
        })
    }

    /// Waits until the network stack of a side is, or is not, a member of an IPv4 group.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn member(&self, place: Place, group: &str, wanted: bool) -> Result<()> {
        let octets: std::net::Ipv4Addr = group.parse()?;
        // The table has the group as a number in the machine's byte order.
        let number = format!("{:08X}", u32::from_ne_bytes(octets.octets()));
        let what = format!("{group} {} /proc/net/igmp", if wanted { "in" } else { "not in" });
        wait_for(&what, WAIT, || {
            let mut command = match place {
                Place::Kernel => Command::new("cat"),
                Place::Rdmux => Command::new("ip"),
            };
            if place == Place::Rdmux {
                command.args(["netns", "exec", "b", "cat"]);
            }
            let out = command.arg("/proc/net/igmp").output()?;
            Ok(String::from_utf8_lossy(&out.stdout).contains(&number) == wanted)
        })
    }
}

/// Finds the packets that a queue has sent and dropped, in a line like `Sent 8112 bytes 77 pkt (dropped 2, overlimits 0 requeues 0)`.
fn sent_and_dropped(status: &str) -> Option<(u64, u64)> {
    let (_, counts) = status.split_once(" bytes ")?;
    let (sent, counts) = counts.split_once(" pkt (dropped ")?;
    let (dropped, _) = counts.split_once(',')?;
    Some((sent.parse().ok()?, dropped.parse().ok()?))
}

/// Polls until `there` returns true.
///
/// # Errors
/// When it does not within `timeout`.
pub(super) fn wait_for(
    what: &str,
    timeout: Duration,
    mut there: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let until = Instant::now() + timeout;
    while !there()? {
        if Instant::now() >= until {
            bail!("timed out waiting for {what}");
        }
        sleep(GLANCE);
    }
    Ok(())
}

/// A started program. It is killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    program: String,
    log: PathBuf,
    watch: Watch,
}

impl Process {
    /// Returns the process's log so far: a line with its name and arguments, then its output.
    pub fn output(&self) -> String {
        fs::read(&self.log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// Returns the process's output so far.
    pub(super) fn said(&self) -> String {
        let log = self.output();
        log.split_once('\n').map(|(_, said)| said.to_owned()).unwrap_or_default()
    }

    /// Returns the process ID.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has printed `text`.
    ///
    /// # Errors
    /// When it ends or the timeout expires before.
    pub fn says(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let what = format!("{} to say {text:?}", self.program);
        self.until(&what, timeout, |process| Ok(process.output().contains(text)))
    }

    /// Waits until `there` returns true.
    ///
    /// # Errors
    /// When it ends or the timeout expires before.
    pub(super) fn until(
        &mut self,
        what: &str,
        timeout: Duration,
        mut there: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        wait_for(what, timeout, || {
            self.watch.look(&self.program);
            let ended = self.child.try_wait()?;
            match ended {
                _ if there(self)? => Ok(true),
                Some(status) => bail!("{} ended with {status}: {}", self.program, self.last_line()),
                None => Ok(false),
            }
        })
    }

    /// Waits for the process's end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn finish(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            self.watch.look(&self.program);
            if Instant::now() >= until {
                bail!(
                    "{} did not end in {} s: {}",
                    self.program,
                    timeout.as_secs(),
                    self.last_line()
                );
            }
            sleep(GLANCE);
        }
    }

    /// Waits for the process's end. It must succeed.
    ///
    /// # Errors
    /// When it does not end in time or fails.
    pub fn succeed(&mut self, timeout: Duration) -> Result<()> {
        let status = self.finish(timeout)?;
        if !status.success() {
            bail!("{} ended with {status}: {}", self.program, self.last_line());
        }
        Ok(())
    }

    fn last_line(&self) -> String {
        let out = self.output();
        out.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::sent_and_dropped;

    #[test]
    fn packets_of_a_queue_are_found_in_its_status() {
        let status = "$ tc -s qdisc show dev veth0\nqdisc netem 8001: root refcnt 2 limit 20000 loss 2%\n \
            Sent 65216 bytes 570 pkt (dropped 12, overlimits 0 requeues 0)\n backlog 0b 0p requeues 0\n";
        assert_eq!(sent_and_dropped(status), Some((570, 12)));
        assert_eq!(sent_and_dropped("qdisc noqueue 0: root refcnt 2\n"), None);
    }
}
