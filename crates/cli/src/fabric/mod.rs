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
use rdmux_fabric::{FabricDir, FabricName};
use rdmux_subnet::topology::Shape;
use rdmux_wire::Guid;

use rdmux_command::{output, say};

/// What to do with fabrics.
#[derive(Subcommand)]
pub(crate) enum FabricCommand {
    /// Start a fabric; it stays until `down`
    ///
    /// It comes up with the nodes of a file or a shape, or with those that it had the last time, and then with the same
    /// LIDs; one that never was has the shape switch:8. Hosts take the adapter that they had before, else the one with their name, else
    /// the first free one, else they are plugged to a free port of a switch.
    ///
    /// Options are kept as a whole in the runtime directory: without any the fabric comes up with those of the last time, and
    /// with some those that are not given are as usual again; only nodes and cables stay.
    Up(Up),
    /// End a fabric: all ports go down
    Down(Down),
    /// Show how a fabric is and who is attached, or list all that are up
    Status(StatusArgs),
    /// Show nodes and cables
    Show(Show),
    /// Show the way that the forwarding tables make from a node to another, or whether all ways are whole
    Route(route::Route),
    /// Plug a cable between a host's adapter, or a switch, and a port of a switch
    Plug(Plug),
    /// Pull a cable out
    Unplug(Unplug),
    /// Take links down or up again; their cables stay
    Link(Link),
    /// Reset a switch: it forgets its tables
    Reset(Reset),
    /// Have a port notice faults of its link, and tell the manager by a trap
    ///
    /// The port counts them, and raises a trap each time that more come in a row than its PortInfo allows: LocalPhyErrors
    /// for integrity, OverrunErrors for overrun. Every expiry of the flow control watchdog raises one.
    Fault(Fault),
    /// Change the GUID of the system that a node is in, and tell the manager by trap 145
    SystemGuid(SystemGuid),
    /// Change who is in which partition, as OpenSM's partitions.conf says, while the fabric is up
    ///
    /// The manager sets the tables of ports; keys that a port keeps stay at their index. What the file says now is kept with the fabric's options.
    /// If something is wrong in it, the partitions stay as they were.
    Partitions(PartitionsArgs),
    /// Be a fabric (started by the others when needed)
    #[command(hide = true)]
    Serve(Serve),
}

#[derive(Args)]
pub(crate) struct Which {
    /// The fabric's name; otherwise the one that the configuration file names, or "default"
    #[arg(long, value_name = "NAME", env = "RDMUX_FABRIC")]
    fabric: Option<FabricName>,
}

impl Which {
    fn name(&self, options: &ConnectOptions) -> FabricName {
        self.fabric.clone().unwrap_or_else(|| options.config.name.clone())
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
    /// Nodes and cables from a file as ibnetdiscover writes it and ibsim reads it
    #[arg(long, value_name = "FILE", conflicts_with = "shape")]
    topology: Option<PathBuf>,
    /// Nodes and cables by rule: two, switch:N, fattree:N, torus:AxBxC or dragonfly:A,P,H[,G]
    #[arg(long, value_name = "SHAPE")]
    shape: Option<Shape>,
    /// All adapters are simulated: no host attaches
    #[arg(long)]
    simulate: bool,
    #[command(flatten)]
    manager: manager::Options,
    /// Let hosts of other machines attach, by TCP. They need the fabric's secret, which is drawn at the first time
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Have the fabric of another machine here, under this name: where it listens
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
    /// Be the fabric rather than start it in the background
    #[arg(long)]
    foreground: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// The fabric's name; all fabrics that are up if absent
    #[arg(long, value_name = "NAME", env = "RDMUX_FABRIC")]
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
    /// For Graphviz's dot
    #[arg(long, group = "form")]
    dot: bool,
    /// As a picture, into a file
    #[arg(long, value_name = "FILE", group = "form")]
    svg: Option<PathBuf>,
    /// As ibnetdiscover writes it
    #[arg(long, group = "form")]
    topology: bool,
    /// The forwarding tables of all switches, as JSON
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
    /// The adapter of a host, by the host's name, or a node, by its name or GUID; without PORT its first free port
    #[arg(value_name = "HOST[:PORT]")]
    end: End,
    /// A port of a switch
    #[arg(value_name = "SWITCH:PORT")]
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
    /// Which way
    #[arg(value_name = "down|up")]
    way: Way,
    /// One end; without PORT all links that lead to the other
    #[arg(value_name = "NODE[:PORT]")]
    a: End,
    /// The other end
    #[arg(value_name = "NODE[:PORT]")]
    b: End,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// No light: both ports are down
    Down,
    /// As before
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
    /// What happens to it
    #[arg(value_name = "integrity|overrun|flow-control")]
    kind: FaultKind,
    /// How many times in a row; otherwise 16 times, which is more than any threshold, and flow-control once
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
    /// Its SystemImageGUID from now on, hexadecimal
    #[arg(value_name = "GUID", value_parser = guid)]
    guid: Guid,
}

/// Parses a GUID other than zero: hexadecimal, with 0x or without.
fn guid(text: &str) -> Result<Guid, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let clean = digits.bytes().all(|b| b.is_ascii_hexdigit());
    let guid = clean.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    guid.filter(|guid| *guid != 0).map(Guid).ok_or_else(|| "use 1 to 16 hexadecimal digits".into())
}

#[derive(Args)]
pub(crate) struct PartitionsArgs {
    #[command(flatten)]
    which: Which,
    /// A file in the form of OpenSM's partitions.conf
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Args)]
pub(crate) struct Serve {
    /// The fabric's name
    #[arg(value_name = "NAME")]
    name: FabricName,
    /// End some time after the last client
    #[arg(long)]
    on_demand: bool,
}

/// Runs `rdmux fabric`.
pub(crate) fn run(command: &FabricCommand) -> Result<ExitCode> {
    match command {
        FabricCommand::Up(args) => up(args)?,
        FabricCommand::Down(args) => down(args)?,
        FabricCommand::Status(args) => return status(args),
        FabricCommand::Show(args) => show(args)?,
        FabricCommand::Route(args) => return route::run(args, &options()?),
        FabricCommand::Plug(Plug { which, end, switch }) => {
            if switch.port.is_none() {
                bail!("{switch} lacks the port: use SWITCH:PORT, as in {}:1", plain(&switch.node));
            }
            let options = options()?;
            say!("{}", admin::plug(&options, &which.name(&options), end, switch)?);
        }
        FabricCommand::Unplug(Unplug { which, end }) => {
            let options = options()?;
            say!("{}", admin::unplug(&options, &which.name(&options), end)?);
        }
        FabricCommand::Link(Link { which, way, a, b }) => {
            let options = options()?;
            say!("{}", admin::link(&options, &which.name(&options), *way == Way::Up, a, b)?);
        }
        FabricCommand::Reset(Reset { which, switch }) => {
            let options = options()?;
            say!("{}", admin::reset(&options, &which.name(&options), switch)?);
        }
        FabricCommand::Fault(Fault { which, at, kind, times }) => {
            let options = options()?;
            let (fault, default) = kind.fault();
            let times = times.map_or(default, std::num::NonZeroU32::get);
            say!("{}", admin::fault(&options, &which.name(&options), at, fault, times)?);
        }
        FabricCommand::SystemGuid(SystemGuid { which, node, guid }) => {
            let options = options()?;
            say!("{}", admin::set_system_guid(&options, &which.name(&options), node, *guid)?);
        }
        FabricCommand::Partitions(PartitionsArgs { which, file }) => {
            let (options, file) = (options()?, PartitionsFile::read(file)?);
            say!("{}", admin::set_partitions(&options, &which.name(&options), file)?);
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
    let fabric = &args.which.name(&options);
    let dir = options.dir(fabric)?;
    let plan = args.plan(&dir)?;
    let before = Setup::load(&dir).unwrap_or_default();
    let tell_what_ends = || {
        let ends = plan.as_ref().map_or(Vec::new(), |plan| dropped::dropped(&before, &plan.setup));
        if !ends.is_empty() {
            eprintln!("rdmux: not given again, and so as usual from now on: {}", ends.join(", "));
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
            "fabric {fabric} would end with this command: name the program `rdmux`, or set RDMUX_DAEMON to it"
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

fn down(args: &Down) -> Result<()> {
    let options = options()?;
    let fabrics = match args.all {
        true => admin::running(&options)?,
        false => vec![args.which.name(&options)],
    };
    if fabrics.is_empty() {
        say!("no fabric is up");
    }
    for fabric in fabrics {
        admin::down(&options, &fabric)?;
        say!("fabric {fabric} is down");
    }
    Ok(())
}

fn status(args: &StatusArgs) -> Result<ExitCode> {
    let options = options()?;
    if let Some(fabric) = &args.fabric {
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
    let fabric = &args.which.name(&options);
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
