//! `rdmux run`: runs an unmodified program on the software device.
//!
//! In reading order: here the command; `variables` are the environment by which a program finds the C library, `view` is
//! what it sees under `/sys` and `/dev`, `known` recognizes programs that look there.

pub(crate) mod known;
pub(crate) mod variables;
pub(crate) mod view;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rdmux_command::library;
use rdmux_host::client::admin;
use rdmux_host::{ConnectOptions, DeviceChoice, DeviceRow, HostError, HostName, Registry};
use rdmux_verbs::kind::{self, KindRow};

use self::variables::Variables;
use self::view::{Place, View, Wants};
use crate::Global;

/// The exit status of `env(1)` and similar programs after an error of their own.
const OWN_FAULT: u8 = 125;
/// The exit status if the program exists but cannot be run.
const CANNOT_RUN: u8 = 126;
/// The exit status if the program does not exist.
const NOT_FOUND: u8 = 127;

/// Which program, and on what.
#[derive(Args)]
#[command(
    after_help = "Exit status: the program's own; 127 if the program does not exist, 126 if it cannot be \
    run, 125 if a step before it failed.\n\n\
    Programs that read /sys/class/infiniband or /dev/infiniband themselves see the devices there that the \
    library lists, in a mount namespace that all programs of the host share. There, they find the virtual hosts \
    by their names in /etc/hosts, too. Where the kernel allows no such namespace, \
    `auto` preloads a library into programs that are known to read these files: those linked with UCX, MPI, libibumad or libraries above it, those \
    that contain these directories' names, Python, mpirun and the like, scripts that contain the names, and any program with \
    such an argument, or with the name of a virtual host as one. An unprivileged user's mount namespace needs a user namespace, in which \
    programs like sudo and ping have no privileges, and groups other than the user's own have no name: \
    use `none` for these. A process that would lose capabilities stays in its namespaces, unless it is known to read these files.\n\n\
    In the namespace, files that programs create directly in /run and /var/log, such as opensm.log, are in the host's \
    folder below the runtime directory (acm/ and view/log/; `rdmux doctor` shows the directory), and /etc/rdma is the host's."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// How to show the program the device under /sys/class/infiniband and /dev/infiniband, and the names of virtual hosts
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    view: View,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true
    )]
    program: Vec<OsString>,
}

/// The devices that a program sees.
#[derive(Args, Clone, Copy)]
pub(crate) struct DeviceArgs {
    /// The kind of device that the program gets; without it that of $RDMUX_DEVICE, else RoCE
    #[arg(long, value_parser = choices(), value_name = "KIND")]
    device: Option<DeviceChoice>,
}

/// Returns a parser of the words for devices, with their descriptions.
fn choices() -> impl TypedValueParser<Value = DeviceChoice> {
    let kind = |row: &'static KindRow| PossibleValue::new(row.word).help(row.summary);
    let all = DeviceChoice::All.word();
    let all = PossibleValue::new(all).help(
        "All devices of the host; an address resolves to the first kind on which its host listens",
    );
    PossibleValuesParser::new(kind::rows().iter().map(kind).chain([all]))
        .try_map(|word| word.parse::<DeviceChoice>())
}

impl DeviceArgs {
    /// Returns the choice of the command line, or of the environment.
    pub(crate) fn choice(self) -> Result<DeviceChoice> {
        Ok(match self.device {
            Some(choice) => choice,
            None => DeviceChoice::of_environment()?,
        })
    }

    /// Returns the choice of the command line or the environment, or else all kinds.
    pub(crate) fn choice_or_all(self) -> Result<DeviceChoice> {
        let said = std::env::var_os(DeviceChoice::VARIABLE).is_some_and(|word| !word.is_empty());
        if self.device.is_none() && !said { Ok(DeviceChoice::All) } else { self.choice() }
    }
}

/// Runs `rdmux run`. Returns only if the program could not be run.
pub(crate) fn run(global: &Global, args: &RunArgs) -> ExitCode {
    let Some((program, rest)) = args.program.split_first() else { return OWN_FAULT.into() };
    let mut command = Command::new(program);
    command.args(rest);
    if let Err(e) = prepare(global, args, &mut command) {
        eprintln!("rdmux: {}", rdmux_command::output::text(&e));
        return OWN_FAULT.into();
    }
    // The program replaces this process, so its signals and its exit status are its own.
    let e = command.exec();
    eprintln!("rdmux: cannot run {}: {e}", program.display());
    if e.kind() == io::ErrorKind::NotFound { NOT_FOUND.into() } else { CANNOT_RUN.into() }
}

fn prepare(global: &Global, args: &RunArgs, command: &mut Command) -> Result<()> {
    let devices = args.device.choice()?;
    check_environment()?;
    let host = global.host_name()?;
    let options = connect_options()?;
    let library = library::find()?;
    if !options.embedded {
        options.devices(&host)?;
    }
    let mut variables = Variables::new(&options, &host, devices, &library)?;
    // Last, because it may move this process into other namespaces.
    let program = command.get_program().to_owned();
    let rest = &args.program[1..];
    let wants = Wants {
        files: &|| known::looks(&program, rest),
        names: &|| known::names_host(rest, |name| Registry::look_up(&options.dir, name).is_some()),
    };
    let place = Place { options: &options, host: &host, devices };
    view::show(args.view, &wants, &place, &library, &mut variables)?;
    // The variable of an enclosing run may be for another host.
    command.env_remove(view::VARIABLE);
    command.envs(variables.iter());
    Ok(())
}

/// Checks that the program can open a device with the variables of this environment, because it might not report why
/// it cannot.
fn check_environment() -> Result<()> {
    rdmux_verbs::check_environment().map_err(anyhow::Error::msg)?;
    rdmux_host::client::check_environment().map_err(anyhow::Error::msg)
}

/// Returns the devices of a host, for commands that only inspect: they start a host that has existed before, but
/// create no new one.
pub(crate) fn devices_of(
    options: &ConnectOptions,
    host: &HostName,
) -> Result<Vec<DeviceRow>, HostError> {
    if !host.is_default() && Registry::look_up(&options.dir, host.as_str()).is_none() {
        // The host may be running nevertheless, as part of a program.
        admin::status(&options.dir, host)?;
    }
    options.devices(host)
}

/// Returns how to reach and start services. This program is the one to start, whatever its name is.
pub(crate) fn connect_options() -> Result<ConnectOptions> {
    let mut options = ConnectOptions::of_environment()?;
    options.program = Some(std::env::current_exe()?);
    Ok(options)
}
