//! `ib_acm`, the service that resolves names and addresses to paths for the programs of a host, and answers other hosts.
//!
//! The protocol is a machine without I/O, [`rdmux_acm`]. This crate drives it on the devices of a host, which it uses through the crate
//! [`rdmux`] like any program. It implements the client protocol of Linux's ibacm on a Unix socket, and optionally on TCP.
//!
//! ```text
//!   programs       Unix socket, TCP       ib_acm        verbs: a UD queue pair for each endpoint     other hosts
//!   ib_acme     <------------------>   clients  |                <------------------------>
//!   librdmacm                            machine | driver         management datagrams
//!   libibacm    <-- shared memory ---    cache   |                <------------------------>        subnet administration
//! ```
//!
//! In reading order: `args` and `config` are its configuration; `lock`, `log` and `listen` are its files; `clients` are the client
//! sockets and their limits; `devices` describes the ports, and `queue` and `mads` use them; `cache` is the shared memory that
//! programs read; `names` and `system` query the operating system; `worker` reads large files; `failures` logs repeated failures once; all
//! threads notify the loop by `wake`; `driver` performs the machine's I/O, `resolver` keeps its repeated answers, and `service` is the event loop around all.
#![forbid(unsafe_code)]

mod args;
mod background;
mod cache;
mod clients;
mod config;
mod devices;
mod driver;
mod error;
mod failures;
mod listen;
mod lock;
mod log;
mod mads;
mod names;
mod poller;
mod queue;
mod resolver;
mod rest;
mod service;
mod system;
mod wake;
mod watch;
mod worker;

use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser as _;
use rdmux_acm_files::Report;
use rdmux_host::{ConnectOptions, DeviceChoice, HostDir, HostName};
use rdmux_runtime::start::{apart, raise_descriptor_limit, say};

pub use args::Args;
pub use error::AcmdError;

use crate::config::{Config, Loaded, Sources};
use crate::devices::Devices;
use crate::lock::Lock;
use crate::log::Log;
use crate::poller::Poller;
use crate::service::{Service, unmet};

/// Time that a service that was started on demand runs without a client. Its cache is useful to the next client, and
/// programs that only read shared memory are not clients. [`IDLE_VARIABLE`] overrides it.
const IDLE: Duration = Duration::from_secs(60);

/// The environment variable with the seconds that a service started on demand runs without a client; 0 means forever.
const IDLE_VARIABLE: &str = "RDMUX_ACM_IDLE";

/// Returns how long a service that was started on demand runs without a client; none, meaning forever, if the host's
/// service does.
fn idle_exit(connect: &ConnectOptions) -> Result<Option<Duration>, AcmdError> {
    let Ok(word) = std::env::var(IDLE_VARIABLE) else {
        return Ok(connect.config.service.idle_exit().map(|idle| idle.max(IDLE)));
    };
    let seconds: u32 = word.parse().map_err(|_| {
        AcmdError::Config(format!("{IDLE_VARIABLE} is '{word}', which is not a number of seconds"))
    })?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds.into())))
}

/// The host of a service, and how the service runs.
struct Setup {
    connect: ConnectOptions,
    host: HostDir,
    choice: DeviceChoice,
    sources: Sources,
    is_of_systemd: bool,
    /// Time that the service runs without a client, or none to run forever.
    idle_exit: Option<Duration>,
}

/// Runs the service according to the command line, whose first word is the program's name. Returns when the service has ended, or,
/// if it goes to the background, when clients can connect.
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            if args.on_demand {
                say(&format!("error: {e}"));
            }
            eprintln!("ib_acm: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), AcmdError> {
    if args.on_demand && apart() {
        return Ok(());
    }
    let setup = setup(args)?;
    if args.check {
        return check(&setup);
    }
    if args.goes_to_background() {
        return background::start(args, &setup);
    }
    serve(args, setup)
}

fn setup(args: &Args) -> Result<Setup, AcmdError> {
    let connect = ConnectOptions::of_environment()?;
    let name = match args.host.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => HostName::new(name),
        None => HostName::of_environment(),
    };
    let name = name.map_err(|e| AcmdError::Config(e.to_string()))?;
    let is_said = std::env::var_os(DeviceChoice::VARIABLE).is_some_and(|word| !word.is_empty());
    let choice = if is_said {
        DeviceChoice::of_environment().map_err(|e| AcmdError::Config(e.to_string()))?
    } else {
        DeviceChoice::All
    };
    let host = connect.dir.host(&name)?;
    let places = host.acm().or_of_environment();
    let others = !connect.config.service.users.is_empty();
    let sources = Sources::new(places, args, &name, others);
    let is_on_demand = args.on_demand && !args.daemon;
    let idle_exit = if is_on_demand { idle_exit(&connect)? } else { None };
    Ok(Setup { connect, host, choice, sources, is_of_systemd: args.systemd, idle_exit })
}

/// Prints the resulting configuration, and which lines are invalid.
fn check(setup: &Setup) -> Result<(), AcmdError> {
    let (config, mut problems) = setup.sources.read();
    let (loaded, of_data) = config.data.load(&[], &Loaded::default());
    problems.append(of_data);
    problems.append(config.surplus(&loaded));
    problems.append(setup.unmet(&config));
    print!("{}", setup.sources.describe(&config));
    eprint!("{problems}");
    match problems.errors() {
        0 => Ok(()),
        n => Err(AcmdError::Config(format!("{n} lines are invalid"))),
    }
}

fn serve(args: &Args, setup: Setup) -> Result<(), AcmdError> {
    if args.on_demand && args.daemon {
        // The service outlives its terminal.
        let _ = rustix::process::setsid();
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    raise_descriptor_limit();
    let log = Log::begin();
    let (config, problems, files) = setup.sources.read_watched(None);
    setup.make_folder()?;
    let _lock = Lock::take(&config.lock)?;
    log.follow(&config.log, config.options.log_level);
    tracing::info!("serving host {}, process {}", setup.host.name(), std::process::id());
    for problem in problems.problems() {
        tracing::warn!("{problem}");
    }
    let service = Service::new(setup, log, config, files)?;
    if args.systemd {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    }
    if args.on_demand {
        say("ready");
    }
    tracing::info!("ready");
    service.run()
}

impl Setup {
    /// Returns the lines of the file of addresses that have no port. Does not query a host whose service is not running.
    fn unmet(&self, config: &Config) -> Report {
        let running = rdmux_host::client::admin::running(&self.connect.dir).unwrap_or_default();
        let file = config.assignments.as_ref().filter(|_| running.contains(self.host.name()));
        let (Some(file), Ok(poller)) = (file, Poller::new()) else { return Report::default() };
        let mut devices = Devices::new(self.host.name().as_str(), self.choice);
        devices.open(Instant::now(), &poller);
        unmet(&devices.see(), file, &self.sources.addresses_path())
    }

    /// Creates the directory of the socket, unless it exists.
    fn make_folder(&self) -> Result<(), AcmdError> {
        let path = self.sources.places.runtime();
        let is_own = path == self.host.acm().runtime();
        make_folder(path, is_own).map_err(AcmdError::of_file("make", path))
    }
}

/// Creates a directory that only the owner may write. In a view it is `/run`, so others may read it, and its parents are the owner's.
/// An existing directory is not changed, unless it is the host's own, which a view may have created for its user alone.
fn make_folder(path: &Path, is_own: bool) -> io::Result<()> {
    let mode = 0o755;
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(mode).create(parent)?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        // Independent of the umask.
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(e) if e.kind() != ErrorKind::AlreadyExists || !path.is_dir() => Err(e),
        Err(_) if is_own => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rdmux_testing::temp_dir;

    use super::*;

    #[test]
    fn folder_that_is_made_has_a_mode_and_one_that_is_there_keeps_its_own_unless_it_is_the_host_s()
    {
        let dir = temp_dir();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let path = dir.path().join("hosts/a");
        make_folder(&path, false).unwrap();
        assert_eq!(mode(&path), 0o755);
        for theirs in [0o700, 0o2770, 0o1777] {
            std::fs::set_permissions(&path, Permissions::from_mode(theirs)).unwrap();
            make_folder(&path, false).unwrap();
            assert_eq!(mode(&path), theirs);
        }
        make_folder(&path, true).unwrap();
        assert_eq!(mode(&path), 0o755);
    }

    #[test]
    fn file_in_place_of_the_folder_is_an_error() {
        let dir = temp_dir();
        let path = dir.path().join("a");
        std::fs::write(&path, "").unwrap();
        for is_own in [false, true] {
            assert_eq!(make_folder(&path, is_own).unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
    }
}
