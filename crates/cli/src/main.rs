//! The `rdmux` command.
#![forbid(unsafe_code)]

mod capture;
mod decode;
mod demo;
mod devices;
mod doctor;
mod env;
mod fabric;
mod host;
mod interrupt;
mod pcapng;
mod peer;
mod ping;
mod run;
mod soak;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::str::FromStr;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};
use rdmux_bench as bench;
use rdmux_command::output::{is_closed, text};
use rdmux_command::signals::Interrupted;
use rdmux_command::usage::UsageError;
use rdmux_host::HostName;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// RDMA without an adapter: software RoCEv2, iWARP and InfiniBand devices, a connection manager and tools
#[derive(Parser)]
#[command(
    name = "rdmux",
    version,
    after_help = "Try `rdmux demo` first: it runs every operation of the stack and prints a table.\n\n\
        Exit status: 0 on success, 1 on failure, 2 if the command line is invalid. The demo and the bench end what they have\n\
        started after Ctrl-C or another signal, and exit with 128 plus its number; a second Ctrl-C ends them at once.\n\
        Environment: RDMUX_HOST names the virtual host, RDMUX_DEVICE the kind of device (roce, iw, ib or all),\n\
        RDMUX_CROSS_MEMORY=off keeps other processes of the user from reading a program's memory, RDMUX_HOST_RINGS=off makes InfiniBand use UDP between\n\
        virtual hosts, RDMUX_CONFIG names the configuration file, RUST_LOG filters the log of commands (see -v), and RDMUX_LOG (RDMUX_LOG=debug)\n\
        that of the C libraries in programs, for example why a device cannot be opened."
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// A host's name on the command line or in the environment. Empty, it names none.
#[derive(Clone)]
struct HostArg(Option<HostName>);

impl FromStr for HostArg {
    type Err = <HostName as FromStr>::Err;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Ok(Self(if name.is_empty() { None } else { Some(name.parse()?) }))
    }
}

/// What every command takes.
#[derive(Args, Clone)]
pub(crate) struct Global {
    /// The virtual host to run on; without it the default host, which has the machine's own addresses
    #[arg(long, value_name = "NAME", env = "RDMUX_HOST", global = true)]
    host: Option<HostArg>,
    /// Log more to standard error: -v events, -vv every step
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

impl Global {
    /// Opens the device of the host that the command line or the environment names.
    pub(crate) fn open(&self) -> rdmux::Result<rdmux::Context> {
        self.builder().open()
    }

    /// Returns a builder for a device of that host.
    pub(crate) fn builder(&self) -> rdmux::ContextBuilder {
        let builder = rdmux::Context::builder();
        match self.named_host() {
            Some(name) => builder.host(name.as_str()),
            None => builder,
        }
    }

    /// Returns the host's name.
    pub(crate) fn host_name(&self) -> anyhow::Result<HostName> {
        Ok(match self.named_host() {
            Some(name) => name.clone(),
            None => HostName::of_environment()?,
        })
    }

    /// Returns the host that the command line or the environment names.
    pub(crate) fn named_host(&self) -> Option<&HostName> {
        self.host.as_ref()?.0.as_ref()
    }
}

#[derive(Subcommand)]
enum Command {
    /// Run a program written for libibverbs and librdmacm on the software device
    Run(run::RunArgs),
    /// Print the variables that `run` sets, as shell commands
    Env(env::EnvArgs),
    /// Check whether this machine meets the requirements, and print advice
    Doctor(doctor::DoctorArgs),
    /// Run every operation between processes, check each byte and print a table
    Demo(demo::DemoArgs),
    /// Ping by RDMA READ and WRITE as rping does; an rping on a kernel device may be the peer
    Ping(ping::PingArgs),
    /// List devices with their ports, GIDs and limits
    Devices(devices::DevicesArgs),
    /// Start, stop and inspect virtual hosts
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Start, stop, show and change InfiniBand subnets in software
    #[command(subcommand)]
    Fabric(fabric::FabricCommand),
    /// Print capture files, one line per frame, and verify every checksum
    Decode(decode::DecodeArgs),
    /// Show what a host sends and receives, or record it as pcapng
    Capture(capture::CaptureArgs),
    /// Measure bandwidth, latency, connection rate and memory, compared with plain TCP and UDP
    Bench(bench::BenchArgs),
    /// Connect and exchange messages as ucmatose does; it may be the peer
    Cmtest(peer::cmtest::CmtestArgs),
    /// Exchange datagrams as udaddy does; it may be the peer
    Udtest(peer::udtest::UdtestArgs),
    /// Send or receive multicast as mckey does; it may be the peer
    Mctest(peer::mctest::MctestArgs),
    /// Repeat an operation many times and check that nothing grows
    #[command(hide = true, subcommand)]
    Soak(soak::Soak),
    /// Run as a helper process of the demo, the bench or a soak, with requests on standard input
    #[command(hide = true, subcommand)]
    Part(Part),
}

/// Parts that processes of this program play for another one.
#[derive(Subcommand)]
enum Part {
    /// An ACM service with these arguments, as `ib_acm`
    Acm {
        #[arg(last = true)]
        words: Vec<OsString>,
    },
    /// The other side of the bench
    Bench,
    /// The other side of the programs that the bench compares with
    BenchPeer,
    /// The other side of the demo
    Demo,
    /// A receiver in the demo's rows on XRC
    Receiver,
    /// A server or a client in a soak
    Soak,
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|e| refuse(e));
    // An ACM service has its own log.
    if !matches!(cli.command, Command::Part(Part::Acm { .. })) {
        log(cli.global.verbose);
    }
    match run(cli) {
        Ok(code) => code,
        Err(e) if is_closed(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rdmux: {}", text(&e));
            exit_code(&e)
        }
    }
}

/// Returns the exit status after an error.
fn exit_code(e: &anyhow::Error) -> ExitCode {
    match e.downcast_ref::<Interrupted>() {
        Some(interrupted) => ExitCode::from(interrupted.exit_status()),
        None if e.is::<UsageError>() => ExitCode::from(2),
        None => ExitCode::FAILURE,
    }
}

/// Reports an error of the command line, or prints what it requests, and exits.
fn refuse(mut e: clap::Error) -> ! {
    // Some of them are hidden.
    if let Some(ContextValue::Strings(names)) = e.get(ContextKind::ValidSubcommand) {
        let cli = Cli::command();
        let is_shown = |name: &&String| cli.find_subcommand(name).is_none_or(|c| !c.is_hide_set());
        let shown = names.iter().filter(is_shown).cloned().collect();
        e.insert(ContextKind::ValidSubcommand, ContextValue::Strings(shown));
    }
    e.exit()
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = &cli.global;
    match cli.command {
        Command::Run(args) => Ok(run::run(global, &args)),
        Command::Env(args) => env::run(global, &args),
        Command::Doctor(args) => doctor::run(global, &args),
        Command::Demo(args) => demo::run(&args),
        Command::Ping(args) => ping::run(global, &args),
        Command::Devices(args) => devices::run(global, &args),
        Command::Host(command) => host::run(global, &command),
        Command::Fabric(command) => fabric::run(&command),
        Command::Decode(args) => decode::run(&args),
        Command::Capture(args) => capture::run(global, &args),
        Command::Bench(args) => bench::run(&args),
        Command::Cmtest(args) => peer::cmtest::run(global, &args),
        Command::Udtest(args) => peer::udtest::run(global, &args),
        Command::Mctest(args) => peer::mctest::run(global, &args),
        Command::Soak(soak) => soak::run(&soak),
        Command::Part(Part::Acm { words }) => {
            Ok(rdmux_acmd::main([OsString::from("ib_acm")].into_iter().chain(words)))
        }
        Command::Part(Part::Bench) => bench::part(&global.open()?),
        Command::Part(Part::BenchPeer) => bench::peer_part(),
        Command::Part(Part::Demo) => demo::part(global),
        Command::Part(Part::Receiver) => demo::receiver(global),
        Command::Part(Part::Soak) => soak::part(global),
    }
}

/// Logs to standard error. RUST_LOG takes precedence over -v.
fn log(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A logging error would be reported on standard error, where a failure panics. A full disk must not end a service.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
