//! `ib_acm`, the service that resolves names and addresses to paths for the programs of a host, and answers other hosts.
//!
//! The protocol is a machine without I/O, [`rdmux_acm`]; this crate drives it on the devices of a host, which it uses as any program does:
//! by the crate [`rdmux`]. It speaks the client protocol of Linux's ibacm on a Unix socket, and on TCP by option.
//!
//! ```text
//!   programs       Unix socket, TCP       ib_acm        verbs: a UD queue pair for each endpoint     other hosts
//!   ib_acme     <------------------>   clients  |                <------------------------>
//!   librdmacm                            machine | driver         management datagrams
//!   libibacm    <-- shared memory ---    cache   |                <------------------------>        subnet administration
//! ```
//!
//! In reading order: `args` and `config` are what it is told, `lock`, `log` and `listen` what it has in the file system; `clients` are
//! sockets with bounds, `devices` the ports as they are now, `queue` and `mads` how they are used, `cache` what programs read without
//! asking, `system` what the operating system knows; `driver` does what the machine
//! wants, `resolver` keeps what it has answered, and `service` is the loop around all.
#![forbid(unsafe_code)]

mod args;
mod background;
mod cache;
mod clients;
mod config;
mod devices;
mod driver;
mod error;
mod listen;
mod lock;
mod log;
mod mads;
mod poller;
mod queue;
mod resolver;
mod rest;
mod service;
mod system;
mod watch;

use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use rdmux_host::{ConnectOptions, DeviceChoice, HostDir, HostName};
use rdmux_runtime::start::{apart, raise_descriptor_limit, say};

pub use args::Args;
pub use error::AcmdError;

use crate::config::Sources;
use crate::lock::Lock;
use crate::log::Log;
use crate::service::Service;

/// A service that was started on demand stays so long without a client: what it knows is of use to the next, and who
/// reads it in shared memory is no client. [`IDLE_VARIABLE`] says it otherwise.
const IDLE: Duration = Duration::from_secs(60);

/// The environment variable that says how many seconds a service that was started on demand stays without a client; 0 is for ever.
const IDLE_VARIABLE: &str = "RDMUX_ACM_IDLE";

/// How long a service that was started on demand stays without a client; for ever if the host's service does.
fn idle_exit(connect: &ConnectOptions) -> Result<Option<Duration>, AcmdError> {
    let Ok(word) = std::env::var(IDLE_VARIABLE) else {
        return Ok(connect.config.service.idle_exit().map(|idle| idle.max(IDLE)));
    };
    let seconds: u32 = word.parse().map_err(|_| {
        AcmdError::Config(format!("{IDLE_VARIABLE} is '{word}', which is no number of seconds"))
    })?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds.into())))
}

/// What a service is for, and how it runs.
struct Setup {
    connect: ConnectOptions,
    host: HostDir,
    choice: DeviceChoice,
    sources: Sources,
    is_of_systemd: bool,
    /// How long it stays without a client; for ever if not said.
    idle_exit: Option<Duration>,
}

/// Runs the service as the command line says, whose first word is the program's name. Returns when the service has ended, or, if it
/// goes to the background, when clients can connect.
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
        return background::start(args, setup.host.name(), &setup.sources.places);
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

/// Prints what the files say, and which lines are wrong.
fn check(setup: &Setup) -> Result<(), AcmdError> {
    let (config, mut problems) = setup.sources.read();
    let (_, of_data) = config.load(&[]);
    problems.append(of_data);
    print!("{}", setup.sources.describe(&config));
    eprint!("{problems}");
    match problems.errors() {
        0 => Ok(()),
        n => Err(AcmdError::Config(format!("{n} lines are wrong"))),
    }
}

fn serve(args: &Args, setup: Setup) -> Result<(), AcmdError> {
    if args.on_demand && args.daemon {
        // It outlives its terminal.
        let _ = rustix::process::setsid();
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    raise_descriptor_limit();
    let log = Log::begin();
    let (config, problems) = setup.sources.read();
    make_folder(setup.sources.places.runtime())?;
    let _lock = Lock::take(&config.lock)?;
    log.follow(&config.log, config.options.log_level);
    tracing::info!("host {}, process {}", setup.host.name(), std::process::id());
    for problem in problems.problems() {
        tracing::warn!("{problem}");
    }
    let service = Service::new(setup, log, config)?;
    if args.systemd {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    }
    if args.on_demand {
        say("ready");
    }
    tracing::info!("ready");
    service.run()
}

/// Makes the folder of the socket, which only the owner may write. In a view it is `/run`, so that others may look into it; those
/// that it lies in are the owner's.
fn make_folder(path: &Path) -> Result<(), AcmdError> {
    let mode = 0o755;
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(AcmdError::of_file("make", path))?;
    // One of the machine's is the administrator's.
    if path.starts_with("/run") && path.components().count() == 2 {
        return Ok(());
    }
    let set = std::fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(AcmdError::of_file("set the mode of", path))
}
