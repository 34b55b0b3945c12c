//! `rdmux fabric`: InfiniBand subnets in software.

mod dot;
mod dropped;
mod layers;
mod manager;
mod route;
pub(crate) mod status;
mod svg;
mod tree;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use rdmux_fabric::client::ConnectOptions;
use rdmux_fabric::client::admin::{self, Plan};
use rdmux_fabric::proto::{End, NodeRef};
use rdmux_fabric::server::{self, FIRST_GUID, PartitionsFile, Setup, read_topology};
use rdmux_fabric::{FabricDir, FabricError, FabricName};
use rdmux_subnet::topology::Shape;
use rdmux_wire::Guid;

use rdmux_command::{output, say};

/// What to do with fabrics.
#[derive(Subcommand)]
pub(crate) enum FabricCommand {
    /// Start a fabric; it stays until `down`
    ///
    /// It has the nodes of a file or a shape, or else those that it had the last time, with the same
    /// LIDs; a new fabric has the shape switch:8. A host takes the adapter that it had before, else the one with its name, else
    /// the first free one, else it is plugged into a free port of a switch.
    ///
    /// Options are kept as a whole in the runtime directory: without any option the fabric starts with those of the last time;
    /// with some, the others return to their defaults, and only nodes and cables stay.
    Up(Up),
    /// End a fabric: all ports go down
    Down(Down),
    /// Show a fabric's state and attached hosts, or list all fabrics that are up
    Status(StatusArgs),
    /// Show nodes and cables
    Show(Show),
    /// Trace a route through the forwarding tables from a node to another, or check all routes
    Route(route::Route),
    /// Plug a cable between a host's adapter, or a switch, and a port of a switch
    Plug(Plug),
    /// Pull a cable out
    Unplug(Unplug),
    /// Take links down or up again; their cables stay
    Link(Link),
    /// Reset a switch: it forgets its tables
    Reset(Reset),
    /// Have a port detect faults of its link and report them to the manager by a trap
    ///
    /// The port counts them, and raises a trap each time that more occur in a row than its PortInfo allows: LocalPhyErrors
    /// for integrity, OverrunErrors for overrun. Every expiry of the flow control watchdog raises one.
    Fault(Fault),
    /// Change a node's SystemImageGUID, and report it to the manager by trap 145
    SystemGuid(SystemGuid),
    /// Change the partitions while the fabric is up, by a file in the format of OpenSM's partitions.conf
    ///
    /// The manager sets the ports' P_Key tables; keys that a port keeps stay at their index. The file's contents are kept with the fabric's options.
    /// An invalid file leaves the partitions unchanged.
    Partitions(PartitionsArgs),
    /// Run a fabric's process (started by the other commands when needed)
    #[command(hide = true)]
    Serve(Serve),
}

#[derive(Args)]
pub(crate) struct Which {
    /// The fabric's name; otherwise the one that RDMUX_FABRIC or the configuration file names, or "default"
    #[arg(long, value_name = "NAME")]
    fabric: Option<FabricName>,
}

impl Which {
    fn name(&self, options: &ConnectOptions) -> Result<FabricName> {
        let named = of_argument(self.fabric.as_ref())?;
        Ok(named.unwrap_or_else(|| options.config.name.clone()))
    }
}

/// Returns the fabric that the command line or the environment names.
fn of_argument(argument: Option<&FabricName>) -> Result<Option<FabricName>> {
    match argument {
        Some(name) => Ok(Some(name.clone())),
        None => FabricName::of_environment().context(FabricName::VARIABLE),
    }
}

#[derive(Args)]
pub(crate) struct Down {
    #[command(flatten)]
    which: Which,
    /// All fabrics that are up
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    which: Which,
    /// Nodes and cables from a file in the format of ibnetdiscover and ibsim
    #[arg(long, value_name = "FILE", conflicts_with = "shape")]
    topology: Option<PathBuf>,
    /// Generated nodes and cables: two, switch:N, fattree:N, torus:AxBxC or dragonfly:A,P,H[,G]
    #[arg(long, value_name = "SHAPE")]
    shape: Option<Shape>,
    /// Simulate all adapters: no host attaches
    #[arg(long)]
    simulate: bool,
    #[command(flatten)]
    manager: manager::Options,
    /// Let hosts of other machines attach over TCP. They need a copy of the fabric's secret, which is generated the first time
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Attach to the fabric of another machine, which listens at this address; it has this fabric's name here
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        conflicts_with_all = ["topology", "shape", "simulate", "listen", "Options"],
        requires = "secret"
    )]
    join: Option<SocketAddr>,
    /// A copy of the other machine's secret
    #[arg(long, value_name = "FILE", requires = "join")]
    secret: Option<PathBuf>,
    /// Run the fabric in this process instead of in the background
    #[arg(long)]
    foreground: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// The fabric's name; otherwise the one that RDMUX_FABRIC names, or all fabrics that are up
    #[arg(long, value_name = "NAME")]
    fabric: Option<FabricName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also print counters that are zero
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    which: Which,
    /// Print a graph for Graphviz's dot
    #[arg(long, group = "form")]
    dot: bool,
    /// Write a picture to a file
    #[arg(long, value_name = "FILE", group = "form")]
    svg: Option<PathBuf>,
    /// Print the format of ibnetdiscover
    #[arg(long, group = "form")]
    topology: bool,
    /// Print the forwarding tables of all switches as JSON
    #[arg(long, group = "form")]
    tables: bool,
    /// Print JSON
    #[arg(long, group = "form")]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Plug {
    #[command(flatten)]
    which: Which,
    /// A host's adapter, by the host's name, or a node, by its name or GUID; without PORT its first free port
    #[arg(value_name = "HOST[:PORT]")]
    end: End,
    /// A port of a switch
    #[arg(value_name = "SWITCH:PORT", value_parser = switch_port)]
    switch: End,
}

#[derive(Args)]
pub(crate) struct Unplug {
    #[command(flatten)]
    which: Which,
    /// One end of the cable; without PORT the only cable of the node
    #[arg(value_name = "NODE[:PORT]")]
    end: End,
}

#[derive(Args)]
pub(crate) struct Link {
    #[command(flatten)]
    which: Which,
    /// Whether to take the links down or up
    #[arg(value_name = "down|up")]
    way: Way,
    /// One end; without PORT all links to the other end
    #[arg(value_name = "NODE[:PORT]")]
    a: End,
    /// The other end
    #[arg(value_name = "NODE[:PORT]")]
    b: End,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// Take the link down, and with it both ports
    Down,
    /// Take the link up again
    Up,
}

#[derive(Args)]
pub(crate) struct Reset {
    #[command(flatten)]
    which: Which,
    /// The switch, by its name or GUID
    #[arg(value_name = "SWITCH")]
    switch: NodeRef,
}

#[derive(Args)]
pub(crate) struct Fault {
    #[command(flatten)]
    which: Which,
    /// The port; without PORT the only one of an adapter
    #[arg(value_name = "NODE:PORT")]
    at: End,
    /// The fault
    #[arg(value_name = "integrity|overrun|flow-control")]
    kind: FaultKind,
    /// Number of times in a row; without it 16, which exceeds every threshold, or 1 for flow-control
    #[arg(long, value_name = "N")]
    times: Option<std::num::NonZeroU32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum FaultKind {
    /// Symbol errors: trap 129
    Integrity,
    /// Packets that find no buffer: trap 130
    Overrun,
    /// The watchdog timer of flow control expires: trap 131
    FlowControl,
}

impl FaultKind {
    /// Returns the fault, and the default number of times that a port notices it.
    fn fault(self) -> (rdmux_subnet::Fault, u32) {
        match self {
            Self::Integrity => (rdmux_subnet::Fault::Symbol, 16),
            Self::Overrun => (rdmux_subnet::Fault::Overrun, 16),
            Self::FlowControl => (rdmux_subnet::Fault::Watchdog, 1),
        }
    }
}

#[derive(Args)]
pub(crate) struct SystemGuid {
    #[command(flatten)]
    which: Which,
    /// The node, by its name or GUID
    #[arg(value_name = "NODE")]
    node: NodeRef,
    /// The new SystemImageGUID, hexadecimal
    #[arg(value_name = "GUID", value_parser = guid)]
    guid: Guid,
}

/// Parses a GUID other than zero: hexadecimal, with 0x or without.
fn guid(text: &str) -> Result<Guid, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let clean = digits.bytes().all(|b| b.is_ascii_hexdigit());
    let guid = clean.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    guid.filter(|guid| *guid != 0)
        .map(Guid)
        .ok_or_else(|| "use 1 to 16 hexadecimal digits, not all 0".into())
}

#[derive(Args)]
pub(crate) struct PartitionsArgs {
    #[command(flatten)]
    which: Which,
    /// A file in the format of OpenSM's partitions.conf
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Args)]
pub(crate) struct Serve {
    /// The fabric's name
    #[arg(value_name = "NAME")]
    name: FabricName,
    /// Exit some time after the last client has disconnected
    #[arg(long)]
    on_demand: bool,
}

/// Runs `rdmux fabric`.
pub(crate) fn run(command: &FabricCommand) -> Result<ExitCode> {
    match command {
        FabricCommand::Up(args) => up(args)?,
        FabricCommand::Down(args) => return down(args),
        FabricCommand::Status(args) => return status(args),
        FabricCommand::Show(args) => show(args)?,
        FabricCommand::Route(args) => return route::run(args, &options()?),
        FabricCommand::Plug(Plug { which, end, switch }) => {
            let options = options()?;
            say!("{}", admin::plug(&options, &which.name(&options)?, end, switch)?);
        }
        FabricCommand::Unplug(Unplug { which, end }) => {
            let options = options()?;
            say!("{}", admin::unplug(&options, &which.name(&options)?, end)?);
        }
        FabricCommand::Link(Link { which, way, a, b }) => {
            let options = options()?;
            say!("{}", admin::link(&options, &which.name(&options)?, *way == Way::Up, a, b)?);
        }
        FabricCommand::Reset(Reset { which, switch }) => {
            let options = options()?;
            say!("{}", admin::reset(&options, &which.name(&options)?, switch)?);
        }
        FabricCommand::Fault(Fault { which, at, kind, times }) => {
            let options = options()?;
            let (fault, default) = kind.fault();
            let times = times.map_or(default, std::num::NonZeroU32::get);
            say!("{}", admin::fault(&options, &which.name(&options)?, at, fault, times)?);
        }
        FabricCommand::SystemGuid(SystemGuid { which, node, guid }) => {
            let options = options()?;
            say!("{}", admin::set_system_guid(&options, &which.name(&options)?, node, *guid)?);
        }
        FabricCommand::Partitions(PartitionsArgs { which, file }) => {
            let (options, file) = (options()?, PartitionsFile::read(file)?);
            say!("{}", admin::set_partitions(&options, &which.name(&options)?, file)?);
        }
        FabricCommand::Serve(Serve { name, on_demand }) => {
            let options = options()?;
            server::serve(&options.user, name, options.config, *on_demand, || {})?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns how to reach fabrics, according to the environment and the configuration.
pub(crate) fn options() -> Result<ConnectOptions> {
    let config = rdmux_host::Config::of_environment()?;
    Ok(ConnectOptions::of_environment(config.fabric)?)
}

/// Parses a port of a switch, which has a number.
fn switch_port(text: &str) -> Result<End, String> {
    let end: End = text.parse()?;
    if end.port.is_none() {
        let node = plain(&end.node);
        return Err(format!("{node:?} has no port number: use SWITCH:PORT, as in {node}:1"));
    }
    Ok(end)
}

fn plain(node: &NodeRef) -> String {
    match node {
        NodeRef::Guid(guid) => guid.to_string(),
        NodeRef::Name(name) => name.clone(),
    }
}

impl Up {
    /// Returns the plan of the fabric. None leaves it unchanged.
    fn plan(&self, dir: &FabricDir) -> Result<Option<Plan>> {
        if !self.changes() {
            return Ok(None);
        }
        if let Some(join) = self.join {
            let read = |file: &PathBuf| {
                std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
            };
            let secret = self.secret.as_ref().map(read).transpose()?;
            let setup = Setup { join: Some(join), source: join.to_string(), ..Setup::default() };
            return Ok(Some(Plan { setup, topology: None, secret }));
        }
        // A damaged setup is ignored if the command says what to create.
        let before = match Setup::load(dir) {
            Err(_) if self.topology.is_some() || self.shape.is_some() => Setup::default(),
            before => before?,
        };
        let of_shape = |shape: Shape| (shape.to_string(), shape.topology(FIRST_GUID));
        let topology = match (&self.topology, self.shape) {
            (Some(path), _) => Some((path.display().to_string(), read_topology(path)?)),
            (None, Some(shape)) => Some(of_shape(shape)),
            // Nodes of the previous fabric are kept, unless there were none or they belonged to a joined fabric.
            (None, None) if before.source.is_empty() || before.join.is_some() => {
                Some(of_shape(server::DEFAULT_SHAPE))
            }
            (None, None) => None,
        };
        let source = topology.as_ref().map_or(before.source, |(source, _)| source.clone());
        let (simulate, listen, manager) = (self.simulate, self.listen, self.manager.setup()?);
        let setup = Setup { source, simulate, listen, join: None, manager };
        Ok(Some(Plan { setup, topology: topology.map(|(_, topology)| topology), secret: None }))
    }

    /// Returns whether any option of the fabric's setup is given.
    fn changes(&self) -> bool {
        self.topology.is_some()
            || self.shape.is_some()
            || self.simulate
            || self.listen.is_some()
            || self.manager.changes()
            || self.join.is_some()
    }
}

fn up(args: &Up) -> Result<()> {
    let options = options()?;
    let fabric = &args.which.name(&options)?;
    let dir = options.dir(fabric)?;
    let plan = args.plan(&dir)?;
    let before = Setup::load(&dir).unwrap_or_default();
    let tell_what_ends = || {
        let ends = plan.as_ref().map_or(Vec::new(), |plan| dropped::dropped(&before, &plan.setup));
        if !ends.is_empty() {
            eprintln!(
                "rdmux: options not given again return to their defaults: {}",
                ends.join(", ")
            );
        }
    };
    if args.foreground {
        let keep = |plan: &Plan| plan.keep(&options, fabric);
        let mut kept = plan.as_ref().map(keep).transpose()?;
        let served = server::serve(&options.user, fabric, options.config.clone(), false, || {
            drop(kept.take());
            tell_what_ends();
        });
        if let (Err(_), Some(kept)) = (&served, kept) {
            kept.undo();
        }
        return Ok(served?);
    }
    let status = admin::up(&options, fabric, plan.as_ref())?;
    tell_what_ends();
    if status.pid == std::process::id() {
        bail!(
            "fabric {fabric} runs in this command and would end with it: name the program `rdmux`, or set RDMUX_DAEMON to it"
        );
    }
    if args.json {
        return output::json(&status::as_json(&status));
    }
    say!("fabric {fabric} is up: {}, process {}", status::size(&status), status.pid);
    if let Some(join) = args.join {
        say!("hosts of this machine attach to it at {join}");
    } else if let Some(listen) = &status.listen {
        say!(
            "it listens at {listen}; on the other machine, with a copy of {}:",
            dir.secret().display()
        );
        say!("rdmux fabric up --join {listen} --secret FILE");
    }
    Ok(())
}

fn down(args: &Down) -> Result<ExitCode> {
    let options = options()?;
    let fabrics = match args.all {
        true => admin::running(&options)?,
        false => vec![args.which.name(&options)?],
    };
    if fabrics.is_empty() {
        say!("no fabric is up");
    }
    let mut code = ExitCode::SUCCESS;
    for fabric in fabrics {
        match admin::down(&options, &fabric) {
            Ok(()) => say!("fabric {fabric} is down"),
            // It ended by itself after it was listed.
            Err(FabricError::NotUp { .. }) if args.all => {}
            // The other fabrics are still ended.
            Err(e) => {
                eprintln!("rdmux: {}", output::text(&e.into()));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn status(args: &StatusArgs) -> Result<ExitCode> {
    let options = options()?;
    if let Some(fabric) = &of_argument(args.fabric.as_ref())? {
        let status = admin::status(&options, fabric)?;
        if args.json {
            output::json(&status::as_json(&status))?;
        } else {
            status::print(&status, args.all)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    let mut all = Vec::new();
    for fabric in admin::running(&options)? {
        match admin::status(&options, &fabric) {
            Ok(status) => all.push(status),
            // The other fabrics are still shown.
            Err(e) => {
                eprintln!("rdmux: {e}");
                code = ExitCode::FAILURE;
            }
        }
    }
    if args.json {
        output::json(&all.iter().map(status::as_json).collect::<Vec<_>>())?;
    } else if all.is_empty() {
        say!("no fabric is up; `rdmux fabric up` starts one");
    } else {
        status::list(&all)?;
    }
    Ok(code)
}

fn show(args: &Show) -> Result<()> {
    let options = options()?;
    let fabric = &args.which.name(&options)?;
    if args.topology {
        say!("{}", admin::topology(&options, fabric)?.trim_end_matches('\n'));
        return Ok(());
    }
    if args.tables {
        return output::json(&admin::tables(&options, fabric)?);
    }
    let snapshot = admin::show(&options, fabric)?;
    if args.json {
        return output::json(&snapshot);
    }
    if args.dot {
        say!("{}", dot::text(&snapshot).trim_end());
    } else if let Some(path) = &args.svg {
        std::fs::write(path, svg::text(&snapshot))
            .with_context(|| format!("cannot write {}", path.display()))?;
        say!(
            "{} nodes and {} cables are in {}",
            snapshot.nodes.len(),
            snapshot.links.len(),
            path.display()
        );
    } else {
        say!("{}", tree::text(&snapshot).trim_end());
    }
    Ok(())
}
