//! A fabric, hosts on it and their ACM services, in a private directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux_acm_client::{Client, Places, Target};
use rdmux_fabric::FabricName;
use rdmux_fabric::client::{ConnectOptions, admin as fabric};
use rdmux_fabric::proto::Snapshot;
use rdmux_host::client::admin;
use rdmux_host::{HostName, RuntimeDir};
use rdmux_runtime::UserDir;
use rustix::process::{Pid, Signal, kill_process};

use super::super::gauge::{self, Reading};
use super::{COMING, TIMEOUT};

/// The pause between two readings.
const SETTLING: Duration = Duration::from_millis(50);
/// How long counts must stay the same to count as settled: threads that close descriptors stay idle for a second before they exit.
const SETTLED: Duration = Duration::from_secs(3);
/// How late the end of a process may be noticed.
const LATE: Duration = Duration::from_secs(10);
/// The statistics of a service that do not grow with the number of requests.
const STATISTICS: [&str; 5] =
    ["clients", "known_addresses", "open_requests", "open_searches", "endpoints"];

/// The way in which a guest's service ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Told,
    Killed,
}

/// The fabric, hosts and services, without the clients.
pub(super) struct Scene {
    dir: PathBuf,
    /// How to reach the fabric.
    fabric: ConnectOptions,
    /// The directory of the hosts.
    hosts: RuntimeDir,
    up: Vec<String>,
    /// The services of the hosts that stay.
    services: Vec<Service>,
    /// The options of all services.
    options: &'static str,
}

/// The ACM service of a host. It is killed when this is dropped.
pub(super) struct Service {
    host: String,
    child: Child,
    /// The process of the host's own service.
    host_pid: u32,
    places: Places,
}

impl Scene {
    /// Starts a fabric of this shape without hosts. Their services will have these options.
    pub(super) fn new(shape: &str, options: &'static str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("rdmux-soak-acm-{}", std::process::id()));
        let fabric = ConnectOptions {
            user: UserDir::at(&dir)?,
            config: rdmux_fabric::Config::default(),
            embedded: false,
            program: Some(std::env::current_exe()?),
        };
        let hosts = RuntimeDir::at(&dir)?;
        let this = Self { dir, fabric, hosts, up: Vec::new(), services: Vec::new(), options };
        this.rdmux(&["fabric", "up", "--shape", shape])?;
        Ok(this)
    }

    /// Starts a host with its service, which stay until the end.
    pub(super) fn add(&mut self, host: &str) -> Result<()> {
        let service = self.come(host)?;
        self.services.push(service);
        Ok(())
    }

    /// Returns the nodes of the fabric.
    pub(super) fn show(&self) -> Result<Snapshot> {
        Ok(fabric::show(&self.fabric, &FabricName::default())?)
    }

    /// Returns the services of the hosts that stay.
    pub(super) fn services(&self) -> &[Service] {
        &self.services
    }

    /// Returns the service of the n-th host.
    pub(super) fn service(&self, n: usize) -> &Service {
        &self.services[n]
    }

    /// Starts a host with its service.
    pub(super) fn come(&mut self, host: &str) -> Result<Service> {
        self.rdmux(&["host", "up", host])?;
        self.up.push(host.to_owned());
        let host_pid = admin::status(&self.hosts, &HostName::new(host)?)?.pid;
        let program = std::env::current_exe()?.with_file_name("ib_acm");
        ensure!(program.is_file(), "{} is missing: build all of rdmux-cli", program.display());
        let (addr, opts) = (self.dir.join("addr.cfg"), self.dir.join("opts.cfg"));
        let addr = addr.with_file_name(format!("{host}-addr.cfg"));
        fs::write(&addr, format!("{host} rdmux_ib0 1 default\n"))?;
        fs::write(&opts, self.options)?;
        let mut command = Command::new(program);
        self.equip(&mut command);
        command.args(["--host", host, "-P"]).arg("-A").arg(addr).arg("-O").arg(opts);
        command.env("RDMUX_DEVICE", "ib").stdin(Stdio::null());
        let child = command.spawn().context("cannot start ib_acm")?;
        let runtime = self.dir.join("hosts").join(host).join("acm");
        let places = Places::new(&runtime, &runtime);
        let mut service = Service { host: host.to_owned(), child, host_pid, places };
        let start = Instant::now();
        while service.client().connect(TIMEOUT).is_err() {
            if let Some(status) = service.child.try_wait()? {
                bail!("the ACM service of {host} ended: {status}");
            }
            ensure!(start.elapsed() < COMING, "the ACM service of {host} did not listen in time");
            sleep(Duration::from_millis(5));
        }
        Ok(service)
    }

    /// Stops a service, and then its host.
    pub(super) fn go(&mut self, mut service: Service, end: End) -> Result<()> {
        let host = service.host.clone();
        let signal = if end == End::Told { Signal::TERM } else { Signal::KILL };
        let pid = i32::try_from(service.child.id())?;
        kill_process(Pid::from_raw(pid).context("the ACM service has no process id")?, signal)?;
        let status = service.child.wait()?;
        ensure!(
            status.success() == (end == End::Told),
            "the ACM service of {host} ended unexpectedly: {status}"
        );
        self.rdmux(&["host", "down", &host])?;
        self.up.retain(|other| *other != host);
        Ok(())
    }

    /// Reads all gauges while nothing is active: until counts are those of `wanted`, for at most [`LATE`], or without `wanted`
    /// until they have not changed for [`SETTLED`]. On a busy machine a service may notice late that its client has closed.
    ///
    /// # Errors
    /// If counts still change after three times [`LATE`].
    pub(super) fn read(&self, wanted: Option<&[Reading]>) -> Result<Vec<Reading>> {
        let start = Instant::now();
        let mut before = self.read_now()?;
        let mut same_since = start;
        loop {
            let now = self.read_now()?;
            if !gauge::same_counts(&before, &now) {
                same_since = Instant::now();
            }
            let is_settled = match wanted {
                Some(wanted) => gauge::same_counts(wanted, &now),
                None => same_since.elapsed() >= SETTLED,
            };
            if is_settled || (wanted.is_some() && start.elapsed() > LATE) {
                return Ok(now);
            }
            ensure!(start.elapsed() <= 3 * LATE, "the gauges of hosts and services keep changing");
            before = now;
            sleep(SETTLING);
        }
    }

    /// Reads the process of a service before querying it, because the query adds a client.
    fn read_now(&self) -> Result<Vec<Reading>> {
        let mut readings = gauge::of_process("clients", std::process::id())?;
        let pid = fabric::status(&self.fabric, &FabricName::default())?.pid;
        readings.extend(gauge::of_process("fabric", pid)?);
        for service in &self.services {
            let host = service.host();
            let acm = format!("ib_acm of {host}");
            readings.extend(gauge::of_process(&acm, service.pid())?);
            readings.extend(gauge::of_process(&format!("service of {host}"), service.host_pid)?);
            let status = admin::status(&self.hosts, &HostName::new(host)?)?;
            readings.extend(gauge::of_host(host, &status));
            let all = service.client().statistics(TIMEOUT)?;
            for name in STATISTICS {
                let found = all.iter().find(|s| s.name.as_bytes() == name.as_bytes());
                let value =
                    found.with_context(|| format!("the service has no counter {name}"))?.value;
                readings.push(Reading::count(format!("{acm}: {name}"), value));
            }
        }
        readings.push(Reading::count("processes".to_owned(), processes(&self.dir).len() as u64));
        readings.push(Reading::count("files".to_owned(), files(&self.dir).len() as u64));
        Ok(readings)
    }

    /// Ends everything. Returns processes and sockets that still exist.
    pub(super) fn end(mut self) -> Result<Vec<String>> {
        for service in std::mem::take(&mut self.services) {
            self.go(service, End::Told)?;
        }
        self.rdmux(&["fabric", "down"])?;
        let start = Instant::now();
        loop {
            let sockets = files(&self.dir).into_iter().filter(|file| is_socket(file));
            let mut left: Vec<_> = sockets.map(|file| file.display().to_string()).collect();
            left.extend(processes(&self.dir).iter().map(|pid| format!("process {pid}")));
            if left.is_empty() || start.elapsed() > LATE {
                return Ok(left);
            }
            sleep(SETTLING);
        }
    }

    fn rdmux(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        self.equip(&mut command);
        let out = command.args(args).output()?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "rdmux {}: {}", args.join(" "), said.trim());
        Ok(())
    }

    fn equip(&self, command: &mut Command) {
        command.env("RDMUX_RUNTIME_DIR", &self.dir).env_remove("RDMUX_HOST");
        for name in ["RDMUX_FABRIC", "RDMUX_ACM_DIR", "RUST_LOG"] {
            command.env_remove(name);
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.services.clear();
        let up = std::mem::take(&mut self.up);
        // After an error the state may be anything.
        up.iter().for_each(|host| drop(self.rdmux(&["host", "down", host])));
        let _ = self.rdmux(&["fabric", "down"]);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Service {
    /// Returns the name of the service's host.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the service's process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a client of it.
    pub(super) fn client(&self) -> Client {
        Client::new([Target::Tools(self.places())])
    }

    /// Returns the locations of its files.
    pub(super) fn places(&self) -> Places {
        self.places.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The service may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processes that have this runtime directory.
fn processes(dir: &Path) -> Vec<u32> {
    let wanted = format!("RDMUX_RUNTIME_DIR={}", dir.display());
    let has = |pid: &u32| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(has).collect()
}

/// Returns all files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir { dirs.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found
}

fn is_socket(file: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    fs::symlink_metadata(file).is_ok_and(|meta| meta.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn files_sockets_and_processes_of_a_directory_are_found() {
        let dir = rdmux_testing::temp_dir();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let _listener = UnixListener::bind(below.join("socket")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let all = files(dir.path());
        assert_eq!((all.len(), all.iter().filter(|file| is_socket(file)).count()), (2, 1));
        let mut cat = Command::new("cat");
        cat.env("RDMUX_RUNTIME_DIR", dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut cat = cat.spawn().unwrap();
        // A process has no environment for a moment, while its program is loaded. Once it echoes, it is loaded.
        cat.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert_eq!(processes(dir.path()), [cat.id()]);
        cat.kill().unwrap();
        cat.wait().unwrap();
        assert_eq!(processes(dir.path()), [0; 0]);
    }
}
