//! `rdmux host`: virtual hosts and their services.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use rdmux_fabric::FabricName;
use rdmux_host::client::admin;
use rdmux_host::proto::{FabricStatus, HolderStatus, Status};
use rdmux_host::service::daemon;
use rdmux_host::{ConnectOptions, HostError, HostName, NodeGuid, RuntimeDir};
use rdmux_verbs::kind::{self, KindRow};
use rdmux_verbs::port::MAX_PORTS;
use serde_json::{Map, Value, json};

use crate::Global;
use crate::run::{self, view};
use rdmux_command::output::{self, Report};
use rdmux_command::say;
use rdmux_command::usage::UsageError;

/// The timeout of a service's status.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What to do with hosts.
#[derive(Subcommand)]
pub(crate) enum HostCommand {
    /// Start a host's service; it stays until `down`
    ///
    /// The host is NAME, or else the one that --host or RDMUX_HOST names.
    ///
    /// Programs start the services that they need by themselves, and these end some seconds after
    /// the last program. A host has a loopback address of its own: the next free one of
    /// 127.77.0.0/16, or the one given here, which it keeps.
    Up(Up),
    /// End a host's service, or all of them
    ///
    /// The host is NAME, or else the one that --host or RDMUX_HOST names; without any of them, all services end. The ACM
    /// service of a host ends with it.
    Down(Down),
    /// Show addresses, processes, connections and counters of a host, or list all that are up
    Status(StatusArgs),
    /// Run a host's service (started by the other commands when needed)
    #[command(hide = true)]
    Serve(Serve),
    /// Create the namespaces in which a host's device is under /sys and /dev (started by `rdmux run`)
    #[command(hide = true)]
    Mount(Mount),
}

#[derive(Args)]
pub(crate) struct Up {
    /// The host's name: 1 to 63 of a-z, 0-9 and '-'
    #[arg(value_name = "NAME", required_unless_present = "host")]
    name: Option<HostName>,
    /// Its address, stored in the runtime directory; without it, one that no other host has
    #[arg(long, value_name = "ADDRESS")]
    addr: Option<IpAddr>,
    /// Its node GUID, which it keeps; without it a host without one gets a random GUID
    #[arg(long, value_name = "GUID")]
    guid: Option<NodeGuid>,
    /// The fabric that its InfiniBand adapter is on, kept in the runtime directory
    ///
    /// Given twice, it names the fabric of each of two ports: two names, or the same name twice for an adapter with both ports
    /// on one fabric. Without it, the adapter is on the fabric that RDMUX_FABRIC or the configuration file names when the
    /// service starts, or on "default". The host attaches when the fabric is up.
    #[arg(long = "fabric", value_name = "NAME")]
    fabrics: Vec<FabricName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Down {
    /// The host's name
    #[arg(value_name = "NAME")]
    name: Option<HostName>,
    /// Kill the process of a service that does not answer
    ///
    /// If the service runs in a thread of a program (RDMUX_EMBEDDED), the whole program is killed.
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// The host's name; if absent, that of --host or RDMUX_HOST, or else all hosts that are up
    #[arg(value_name = "NAME")]
    name: Option<HostName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also print counters that are zero
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
pub(crate) struct Serve {
    /// The host's name
    #[arg(value_name = "NAME")]
    name: HostName,
    /// Exit some time after the last program has disconnected
    #[arg(long)]
    on_demand: bool,
}

#[derive(Args)]
pub(crate) struct Mount {
    /// The host's name
    #[arg(value_name = "NAME")]
    name: HostName,
}

/// Runs `rdmux host`.
pub(crate) fn run(global: &Global, command: &HostCommand) -> Result<ExitCode> {
    match command {
        HostCommand::Up(args) => up(global, args)?,
        HostCommand::Down(args) => return down(global, args),
        HostCommand::Status(args) => return status(global, args),
        HostCommand::Serve(args) => serve(args)?,
        HostCommand::Mount(args) => view::make(&run::connect_options()?, &args.name)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the host of a command: its argument, or the one that --host or the environment names.
fn named<'a>(global: &'a Global, argument: Option<&'a HostName>) -> Option<&'a HostName> {
    argument.or_else(|| global.named_host())
}

fn up(global: &Global, args: &Up) -> Result<()> {
    let Some(name) = named(global, args.name.as_ref()) else {
        return Err(UsageError("RDMUX_HOST is empty: give the host's NAME".to_owned()).into());
    };
    if args.fabrics.len() > usize::from(MAX_PORTS) {
        let n = args.fabrics.len();
        let why = format!("{n} fabrics are given, but a device has at most {MAX_PORTS} ports");
        return Err(UsageError(why).into());
    }
    let options = ConnectOptions::of_environment()?;
    if let (Some(wish), Ok(status)) = (args.addr, admin::status_within(&options.dir, name, TIMEOUT))
        && status.gids.iter().all(|row| row.gid.ip() != wish)
    {
        let has = addresses(&status);
        bail!("host {name} is up with {has}: run `rdmux host down {name}` first to change that");
    }
    if let Some(guid) = args.guid {
        assign_guid(&options, name, guid)?;
    }
    if !args.fabrics.is_empty() {
        options.dir.host(name)?.set_fabrics(&args.fabrics)?;
    }
    let status = admin::up(&options, name, args.addr)?;
    if let Some(wish) = args.guid.filter(|wish| wish.guid() != status.node_guid) {
        bail!(
            "host {name} does not have the node GUID {wish}: the configuration file sets another one"
        );
    }
    let wishes: Vec<_> = args.fabrics.iter().map(FabricName::as_str).collect();
    let has: Vec<_> = status.fabrics.iter().map(|fabric| fabric.name.as_str()).collect();
    if !wishes.is_empty() && wishes != has {
        bail!(
            "host {name} is up on fabric {}: run `rdmux host down {name}`; it will start on {}",
            has.join(" and "),
            wishes.join(" and ")
        );
    }
    if status.pid == std::process::id() {
        bail!(
            "the service of host {name} runs in this command and would end with it: name the program `rdmux`, or set \
             RDMUX_DAEMON to it"
        );
    }
    if args.json {
        return output::json(&as_json(&status));
    }
    say!("host {} is up: {}, process {}", status.host, addresses(&status), status.pid);
    say!("to use it: rdmux --host {0} COMMAND, or RDMUX_HOST={0} for any program", status.host);
    Ok(())
}

/// Assigns a GUID to a host, unless it has it already.
fn assign_guid(options: &ConnectOptions, name: &HostName, guid: NodeGuid) -> Result<()> {
    match admin::status(&options.dir, name) {
        Ok(status) if status.node_guid == guid.guid() => Ok(()),
        Ok(_) => bail!(
            "host {name} is up with another node GUID: run `rdmux host down {name}` first to change that"
        ),
        Err(_) => Ok(guid.assign(&options.dir, name)?),
    }
}

fn down(global: &Global, args: &Down) -> Result<ExitCode> {
    let dir = RuntimeDir::of_environment()?;
    let name = named(global, args.name.as_ref());
    let is_named = name.is_some();
    let names = name.map_or_else(|| admin::running(&dir), |name| Ok(vec![name.clone()]))?;
    if names.is_empty() {
        say!("no host is up");
    }
    let end = if args.force { admin::down_by_force } else { admin::down };
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let acm = admin::end_acm(&dir, &name, args.force).unwrap_or_else(|e| {
            code = complain(&e);
            false
        });
        match end(&dir, &name) {
            Ok(()) if acm => say!("host {name} and its ACM service are down"),
            Ok(()) => say!("host {name} is down"),
            Err(HostError::NotUp { .. }) if acm => {
                say!("host {name} was not up; its ACM service ended");
            }
            // It ended by itself after it was listed.
            Err(HostError::NotUp { .. }) if !is_named => {}
            // The command ends a host, so it must not start one.
            Err(HostError::NotUp { .. }) => {
                eprintln!("rdmux: host \"{name}\" is not up");
                code = ExitCode::FAILURE;
            }
            // The other hosts are still ended.
            Err(e) => code = complain(&e),
        }
    }
    Ok(code)
}

fn status(global: &Global, args: &StatusArgs) -> Result<ExitCode> {
    let dir = RuntimeDir::of_environment()?;
    let Some(name) = named(global, args.name.as_ref()) else { return list(&dir, args.json) };
    let status = admin::status_within(&dir, name, TIMEOUT)?;
    if args.json {
        output::json(&as_json(&status))?;
    } else {
        print(&status, args.all)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports a failure that does not end the command.
fn complain(e: &HostError) -> ExitCode {
    eprintln!("rdmux: {e}");
    ExitCode::FAILURE
}

/// Lists all running hosts, one per row. A host that does not answer fails the command, after the others are listed.
fn list(dir: &RuntimeDir, json: bool) -> Result<ExitCode> {
    let all = admin::status_of_all(dir, TIMEOUT)?;
    if json {
        let entry = |(host, answer): &(HostName, Result<Status, HostError>)| match answer {
            Ok(status) => as_json(status),
            Err(e) => json!({ "host": host.as_str(), "pid": pid_of(e), "error": e.to_string() }),
        };
        output::json(&all.iter().map(entry).collect::<Vec<_>>())?;
    } else if all.is_empty() {
        say!("no host is up; the first program that needs one starts it, or `rdmux host up NAME`");
    } else {
        print_rows(&all)?;
    }
    let failed = all.iter().filter_map(|(_, answer)| answer.as_ref().err());
    Ok(failed.fold(ExitCode::SUCCESS, |_, e| complain(e)))
}

/// Returns the process of a service that does not answer, if it is known.
fn pid_of(e: &HostError) -> Option<i32> {
    match e {
        HostError::Unresponsive { pid, .. } => pid.map(|pid| pid.as_raw_nonzero().get()),
        _ => None,
    }
}

fn print_rows(all: &[(HostName, Result<Status, HostError>)]) -> Result<()> {
    let headings = ["HOST", "ADDRESSES", "PID", "UP", "PROCESSES", "QPS", "TX", "RX", "DROPPED"];
    let mut report = Report::new(&headings).right(&[2, 3, 4, 5, 6, 7, 8]);
    for (host, answer) in all {
        let s = match answer {
            Ok(s) => s,
            Err(e) => {
                let pid = pid_of(e).map_or_else(|| "-".to_owned(), |pid| pid.to_string());
                report.row([host.to_string(), "does not answer".to_owned(), pid]);
                continue;
            }
        };
        report.row([
            s.host.clone(),
            addresses(s),
            s.pid.to_string(),
            output::time(Duration::from_millis(s.uptime_ms)),
            s.clients.len().to_string(),
            s.clients.iter().map(|c| c.qps).sum::<u64>().to_string(),
            s.counter("tx_packets").unwrap_or(0).to_string(),
            s.counter("rx_packets").unwrap_or(0).to_string(),
            dropped(s).to_string(),
        ]);
    }
    report.print();
    Ok(())
}

/// Prints a host completely.
fn print(s: &Status, all_counters: bool) -> Result<()> {
    let kind = if s.embedded { " (a thread of that process)" } else { "" };
    say!("host       {}", s.host);
    say!("addresses  {}", addresses(s));
    let has_adapter = s.fabrics.iter().any(|fabric| fabric.node_guid.is_some());
    let is_there = |row: &&KindRow| !row.kind.is_on_fabric() || has_adapter;
    let names: Vec<_> = kind::rows().iter().filter(is_there).map(|row| row.device_name).collect();
    say!("devices    {}", names.join(" "));
    let label = |one: &FabricStatus| match s.fabrics.len() {
        1 => "fabric    ".to_owned(),
        _ => format!("port {}    ", one.port),
    };
    for one in &s.fabrics {
        say!("{} {}", label(one), fabric(one));
        for gid in &one.gids {
            say!("           {gid}");
        }
    }
    say!("node GUID  {}", s.node_guid);
    say!("port       UDP {}", s.port);
    say!(
        "service    process {}{kind}, up {}",
        s.pid,
        output::time(Duration::from_millis(s.uptime_ms))
    );
    say!("slots      {} in use, {} ring pairs", s.slots, s.rings);

    if !s.clients.is_empty() {
        say!("\nPROCESSES");
        let mut report =
            Report::new(&["PID", "NAME", "DEVICE", "SLOTS", "QPS", "CHANNELS", "IDS", "UP"])
                .right(&[0, 4, 5, 6, 7]);
        for c in &s.clients {
            let slots: Vec<_> = c.slots.iter().map(u16::to_string).collect();
            report.row([
                c.pid.to_string(),
                c.comm.clone(),
                c.device.clone(),
                slots.join(" "),
                c.qps.to_string(),
                c.channels.to_string(),
                c.ids.to_string(),
                output::time(Duration::from_millis(c.uptime_ms)),
            ]);
        }
        report.print();
    }
    if !s.ids.is_empty() {
        say!("\nCONNECTIONS AND LISTENERS");
        let mut report =
            Report::new(&["ID", "PID", "SPACE", "STATE", "LOCAL", "PEER"]).right(&[0, 1]);
        let address = |a: &Option<String>| a.clone().unwrap_or_else(|| "-".to_owned());
        for id in &s.ids {
            report.row([
                id.id.to_string(),
                id.pid.to_string(),
                id.space.clone(),
                id.state.clone(),
                address(&id.src),
                address(&id.dst),
            ]);
        }
        report.print();
    }
    if !s.groups.is_empty() {
        say!("\nMULTICAST GROUPS");
        let mut report = Report::new(&["GROUP", "ON", "MEMBERS"]).right(&[2]);
        for g in &s.groups {
            report.row([g.group.to_string(), g.local.to_string(), g.members.to_string()]);
        }
        report.print();
    }
    print_xrc(s)?;
    counters("DEVICES", &s.device_counters, all_counters)?;
    counters("SERVICE", &s.service_counters, all_counters)?;
    counters("CONNECTION MANAGER", &s.cm_counters, all_counters)
}

/// Describes the host's port on its fabric.
fn fabric(s: &FabricStatus) -> String {
    let name = &s.name;
    match (&s.node_guid, &s.why) {
        (Some(guid), _) => {
            let manager = if s.is_sm { ", a subnet manager uses it" } else { "" };
            let state = s.state.to_lowercase();
            if s.lid == 0 {
                return format!("{name}: adapter {guid}, no LID, {state}{manager}");
            }
            let pkeys: Vec<_> = s.pkeys.iter().map(ToString::to_string).collect();
            format!(
                "{name}: adapter {guid}, LID {}, LMC {}, {state}, manager at LID {}, P_Keys {}{manager}",
                s.lid,
                s.lmc,
                s.sm_lid,
                pkeys.join(" ")
            )
        }
        (None, Some(why)) => format!("{name}: {why}"),
        (None, None) => format!("{name}: fabric is not up"),
    }
}

/// Prints XRC domains, and the queue pairs in them that belong to no process.
fn print_xrc(s: &Status) -> Result<()> {
    if !s.xrc_domains.is_empty() {
        say!("\nXRC DOMAINS");
        let mut report = Report::new(&["DEVICE", "ID", "FILE", "SRQS", "OPENED BY"]).right(&[1, 3]);
        for d in &s.xrc_domains {
            let file = d.file.map_or("private".into(), |(dev, ino)| format!("{dev:#x}:{ino}"));
            let pids: Vec<_> = d.pids.iter().map(i32::to_string).collect();
            let (id, srqs) = (d.id.to_string(), d.srqs.to_string());
            report.row([d.device.clone(), id, file, srqs, pids.join(" ")]);
        }
        report.print();
    }
    if !s.xrc_targets.is_empty() {
        say!("\nXRC RECEIVE QUEUE PAIRS");
        let mut report =
            Report::new(&["DEVICE", "QPN", "DOMAIN", "STATE", "PEER QPN", "HELD BY"]).right(&[2]);
        for t in &s.xrc_targets {
            report.row([
                t.device.clone(),
                format!("{:#08x}", t.qpn),
                t.domain.to_string(),
                t.state.clone(),
                format!("{:#08x}", t.dest_qpn),
                t.holders.iter().map(holder).collect::<Vec<_>>().join(", "),
            ]);
        }
        report.print();
    }
    Ok(())
}

/// Describes how a process holds an XRC receive queue pair.
fn holder(h: &HolderStatus) -> String {
    let how = match (h.registered, h.handles) {
        (true, 0) => "registered".into(),
        (true, n) => format!("registered, {n} handle{}", if n == 1 { "" } else { "s" }),
        (false, n) => format!("{n} handle{}", if n == 1 { "" } else { "s" }),
    };
    format!("{} {} ({how})", h.pid, h.comm)
}

fn counters(title: &str, counters: &[(String, u64)], all: bool) -> Result<()> {
    let shown: Vec<_> = counters.iter().filter(|(_, value)| all || *value != 0).collect();
    if shown.is_empty() {
        return Ok(());
    }
    say!("\nCOUNTERS: {title}");
    let mut report = Report::new(&["NAME", "VALUE"]).right(&[1]);
    for (name, value) in shown {
        report.row([name.clone(), value.to_string()]);
    }
    report.print();
    Ok(())
}

/// Converts a status to JSON for scripts: addresses as text, counters by name.
fn as_json(s: &Status) -> Value {
    let by_name = |counters: &[(String, u64)]| -> Map<String, Value> {
        counters.iter().map(|(name, value)| (name.clone(), (*value).into())).collect()
    };
    let gids = s.gids.iter().map(|g| {
        json!({
            "gid": g.gid.to_string(),
            "address": g.gid.ip(),
            "interface": g.interface,
            "mtu": g.mtu.bytes(),
        })
    });
    let fabrics = s.fabrics.iter().map(|one| {
        let mut fabric = json!(one);
        fabric["pkeys"] = one.pkeys.iter().map(ToString::to_string).collect();
        fabric["gids"] = one.gids.iter().map(ToString::to_string).collect();
        fabric
    });
    let fabrics: Vec<Value> = fabrics.collect();
    json!({
        "host": s.host,
        "pid": s.pid,
        "uptime_ms": s.uptime_ms,
        "embedded": s.embedded,
        "node_guid": s.node_guid.to_string(),
        "gids": gids.collect::<Vec<_>>(),
        "port": s.port,
        "fabrics": fabrics,
        "slots": s.slots,
        "rings": s.rings,
        "processes": s.clients,
        "ids": s.ids,
        "groups": s.groups,
        "xrc_domains": s.xrc_domains,
        "xrc_targets": s.xrc_targets,
        "counters": {
            "devices": by_name(&s.device_counters),
            "service": by_name(&s.service_counters),
            "cm": by_name(&s.cm_counters),
        },
    })
}

fn addresses(s: &Status) -> String {
    let all: Vec<_> = s.gids.iter().map(|row| row.gid.ip().to_string()).collect();
    all.join(" ")
}

/// Returns the number of packets dropped for any reason: received ones, and those that InfiniBand did not send.
fn dropped(s: &Status) -> u64 {
    let is_drop = |name: &str| name.starts_with("rx_drop_") || name.starts_with("tx_drop_ib_");
    s.device_counters.iter().filter(|(name, _)| is_drop(name)).map(|(_, v)| v).sum()
}

/// Serves until a request or a signal ends the service. The process that started this one reads one line: `ready`, or the error.
fn serve(args: &Serve) -> Result<()> {
    Ok(daemon::serve(&args.name, args.on_demand)?)
}
