//! `rdmux demo`: runs every operation between processes and verifies it, including a fabric with its subnet manager.

mod acm;
mod fabric;
mod infiniband;
mod iwarp;
mod migration;
mod part;
mod protocol;
mod rows;
mod side;
mod stage;
mod xrc;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rdmux::{Context, DeviceChoice};
use rdmux_fabric::proto::Status;
use serde::Serialize;
use tempfile::{NamedTempFile, TempPath};

use self::rows::Row;
use self::stage::{Done, HOSTS, Link, Stage};
use crate::Global;
use crate::fabric::status;
use rdmux_command::child::Child;
use rdmux_command::hosts::{self, Hosts};
use rdmux_command::output::{self, Report};
use rdmux_command::say;
use rdmux_command::signals;
use rdmux_command::usage::UsageError;

/// Starts two virtual hosts and runs every operation between their processes: over UDP from
/// host to host, through shared memory within a host, and with iWARP over TCP. Then starts an InfiniBand fabric of 40
/// adapters with its subnet manager, and requests paths and multicast groups from it; and a fabric of two switches with a host each, whose
/// queue pairs reach each other by LID, GID and group while a cable fails, and whose ACM services resolve a name. Each byte is
/// compared, and each host's packets are counted in rows over UDP and rows on ACM. Exits with 0 only if all rows passed.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Run only rows whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A row of the table.
#[derive(Serialize)]
struct Outcome {
    operation: &'static str,
    link: &'static str,
    /// Whether packets are received, for rows where they are counted: over UDP, and those of ACM on InfiniBand.
    crosses: bool,
    passed: bool,
    bytes: u64,
    microseconds: f64,
    /// The packets of host a and of host b, over UDP and of ACM.
    packets: [Packets; 2],
    error: Option<String>,
}

impl Outcome {
    /// Returns the outcome of a row: its result, or the reason why it failed.
    fn new(
        operation: &'static str,
        link: &'static str,
        crosses: bool,
        result: Result<Done, String>,
    ) -> Self {
        let (bytes, time) =
            result.as_ref().map_or((0, Duration::ZERO), |done| (done.bytes, done.time));
        Self {
            operation,
            link,
            crosses,
            passed: result.is_ok(),
            bytes,
            microseconds: time.as_secs_f64() * 1e6,
            packets: Default::default(),
            error: result.err(),
        }
    }
}

impl DemoArgs {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|text| name.contains(text))
    }

    /// Checks that there is a row to run.
    fn check(&self) -> Result<(), UsageError> {
        let between_hosts = rows::all().chain(iwarp::ROWS).chain(iwarp::WITH_CRC);
        let has_row = between_hosts.map(|row| row.name).any(|name| self.wants(name))
            || fabric::ROWS.iter().any(|row| self.wants(row.name))
            || infiniband::ROWS.iter().any(|row| self.wants(row.name))
            || acm::ROWS.iter().any(|row| self.wants(row.name));
        match &self.only {
            Some(text) if !has_row => Err(UsageError(format!(
                "no row's name contains {text:?}: `rdmux demo` without --only shows all names"
            ))),
            _ => Ok(()),
        }
    }
}

/// The counters of a host.
#[derive(Clone, Copy, Default, Serialize)]
struct Packets {
    sent: u64,
    received: u64,
}

impl Packets {
    fn since(self, before: Self) -> Self {
        Self { sent: self.sent - before.sent, received: self.received - before.received }
    }
}

/// The link name of the rows on a fabric with hosts.
const INFINIBAND: &str = "InfiniBand";

/// How long sent packets may take to be counted. A few may be lost permanently.
const SETTLING: Duration = Duration::from_millis(100);

/// Runs `rdmux demo`.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode> {
    args.check()?;
    let _lock = hosts::alone("demo")?;
    signals::defer()?;
    let progress = progress()?;
    let mut outcomes = play(args, &progress)?;
    let (rows, managed) = manage(args, &progress)?;
    outcomes.extend(rows);
    outcomes.extend(connect_by_lid(args, &progress)?);
    progress.finish_and_clear();
    if args.json {
        output::json(&outcomes)?;
    } else {
        print(&outcomes)?;
        if let Some(status) = managed {
            say!("");
            status::print_summary(&status);
        }
    }
    let failed = outcomes.iter().filter(|o| !o.passed).count();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the other side of the demo.
pub(crate) fn part(global: &Global) -> Result<ExitCode> {
    part::run(global.open()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a receiver of the rows on XRC.
pub(crate) fn receiver(global: &Global) -> Result<ExitCode> {
    xrc::receive(global.open()?)?;
    Ok(ExitCode::SUCCESS)
}

fn play(args: &DemoArgs, progress: &ProgressBar) -> Result<Vec<Outcome>> {
    let wanted = |row: &&Row| args.wants(row.name);
    let parts: [(Link, Vec<&Row>); 4] = [
        (Link::Udp, rows::all().filter(wanted).collect()),
        (Link::SameHost, rows::all().filter(wanted).collect()),
        (Link::Tcp, iwarp::ROWS.iter().filter(wanted).collect()),
        (Link::TcpCrc, iwarp::WITH_CRC.iter().filter(wanted).collect()),
    ];
    progress.inc_length(parts.iter().map(|(_, rows)| rows.len() as u64).sum());
    progress.set_message("starting two hosts");
    // The lock excludes other demos. Hosts that are still up are those of a demo that was killed.
    let hosts = Rc::new(Hosts::up_to_end(&HOSTS)?);
    let mut outcomes = Vec::new();
    for (link, rows) in parts.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        let (hosts, names) = match link {
            Link::TcpCrc => (Rc::new(with_crc()?), CRC_HOSTS),
            _ => (hosts.clone(), HOSTS),
        };
        let kind = link.device();
        let context = Context::builder().host(names[0]).device(kind).open()?;
        let (own, addr) = (hosts.address(0)?, hosts.address(link.host())?);
        let host = names[link.host()];
        let device = [(DeviceChoice::VARIABLE, link.choice().word())];
        let spawn =
            || Child::spawn_with(format!("on {host}"), &["--host", host, "part", "demo"], &device);
        let mut stage = Stage::new(context, spawn()?, link, own, addr, hosts.clone());
        for row in rows {
            progress.set_message(format!("{}, {}", row.name, link.name()));
            let outcome = perform(row, &mut stage, &hosts)?;
            signals::check()?;
            if !outcome.passed {
                // The other side's state is unknown: a new process replaces it.
                stage.abandon();
                stage.xrc = None;
                stage.other = spawn()?;
            }
            outcomes.push(outcome);
            progress.inc(1);
        }
        // A connection that a failed row left behind is not a failure.
        let _ = stage.hang_up();
    }
    Ok(outcomes)
}

/// Runs the rows on a fabric. Returns their outcomes and the fabric's final status.
fn manage(args: &DemoArgs, progress: &ProgressBar) -> Result<(Vec<Outcome>, Option<Status>)> {
    let rows: Vec<_> = fabric::ROWS.iter().filter(|row| args.wants(row.name)).collect();
    if rows.is_empty() {
        return Ok((Vec::new(), None));
    }
    progress.inc_length(rows.len() as u64);
    progress.set_message("starting a fabric");
    let ground = fabric::Ground::up();
    let mut outcomes = Vec::new();
    for row in rows {
        progress.set_message(row.name);
        let result = match &ground {
            Ok(ground) => (row.run)(ground).map_err(|e| format!("{e:#}")),
            Err(e) => Err(format!("{e:#}")),
        };
        signals::check()?;
        outcomes.push(Outcome::new(row.name, "fabric", false, result));
        progress.inc(1);
    }
    Ok((outcomes, ground.ok().and_then(|ground| ground.status().ok())))
}

/// Runs the rows on a fabric with hosts, and those of ACM there.
fn connect_by_lid(args: &DemoArgs, progress: &ProgressBar) -> Result<Vec<Outcome>> {
    let rows: Vec<_> = infiniband::ROWS.iter().filter(|row| args.wants(row.name)).collect();
    let names: Vec<_> = acm::ROWS.iter().filter(|row| args.wants(row.name)).collect();
    if rows.is_empty() && names.is_empty() {
        return Ok(Vec::new());
    }
    progress.inc_length((rows.len() + names.len()) as u64);
    progress.set_message("starting a fabric with two hosts");
    let ground = infiniband::Ground::up().map_err(|e| format!("{e:#}"));
    let perform = |row: &infiniband::Row| {
        progress.set_message(row.name);
        let result = match &ground {
            Ok(ground) => (row.run)(ground).map_err(|e| format!("{e:#}")),
            Err(e) => Err(e.clone()),
        };
        signals::check()?;
        progress.inc(1);
        Ok(Outcome::new(row.name, INFINIBAND, false, result))
    };
    let mut outcomes = rows.into_iter().map(perform).collect::<Result<Vec<_>>>()?;
    if !names.is_empty() {
        outcomes.extend(resolve_names(&names, &ground, progress)?);
    }
    Ok(outcomes)
}

/// Runs the rows on ACM.
fn resolve_names(
    rows: &[&acm::Row],
    ground: &Result<infiniband::Ground, String>,
    progress: &ProgressBar,
) -> Result<Vec<Outcome>> {
    progress.set_message("starting two ACM services");
    let services = match ground {
        Ok(ground) => acm::Services::start(ground).map_err(|e| format!("{e:#}")),
        Err(e) => Err(e.clone()),
    };
    let perform = |row: &&acm::Row| {
        progress.set_message(row.name);
        let result = match &services {
            Ok(services) => (row.run)(services).map_err(|e| format!("{e:#}")),
            Err(e) => Err(e.clone()),
        };
        signals::check()?;
        progress.inc(1);
        let packets = result.as_ref().map_or_else(|_| Default::default(), |found| found.packets);
        let result = result.map(|found| found.done);
        Ok(Outcome { packets, ..Outcome::new(row.name, INFINIBAND, true, result) })
    };
    rows.iter().map(perform).collect()
}

/// The hosts on which FPDUs of iWARP have CRCs.
const CRC_HOSTS: [&str; 2] = ["demo-crc-a", "demo-crc-b"];

fn with_crc() -> Result<Hosts> {
    Hosts::up_configured(&CRC_HOSTS, &temporary(iwarp::CRC_CONFIG)?)
}

/// Writes a file, which no other user can have put there before. It is removed when the value is dropped.
fn temporary(text: &str) -> Result<TempPath> {
    let mut file = NamedTempFile::new()?;
    let written = file.write_all(text.as_bytes());
    written.with_context(|| format!("cannot write {}", file.path().display()))?;
    Ok(file.into_temp_path())
}

/// Runs one row; its failure is an outcome.
fn perform(row: &Row, stage: &mut Stage, hosts: &Hosts) -> Result<Outcome> {
    let before = [packets(hosts, 0)?, packets(hosts, 1)?];
    let result = (row.run)(stage);
    let counted = final_counts(hosts, &before)?;
    let result = result.and_then(|done| plausible(row, stage.link, &counted).map(|()| done));
    let result = result.map_err(|e| format!("{e:#}"));
    let outcome = Outcome::new(row.name, stage.link.name(), row.crosses, result);
    Ok(Outcome { packets: counted, ..outcome })
}

/// Returns the packets counted since `before`. A process counts a packet after it has processed it, so the operation
/// may end before the last is counted. Waits until as many were received as sent.
fn final_counts(hosts: &Hosts, before: &[Packets; 2]) -> Result<[Packets; 2]> {
    let start = Instant::now();
    loop {
        let [a, b] = [packets(hosts, 0)?.since(before[0]), packets(hosts, 1)?.since(before[1])];
        let complete = a.received >= b.sent && b.received >= a.sent;
        if complete || start.elapsed() > SETTLING {
            return Ok([a, b]);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that over UDP, one host sent and the other received. UC sends no answers.
fn plausible(row: &Row, link: Link, [a, b]: &[Packets; 2]) -> Result<()> {
    let crossed = a.sent > 0 && b.received > 0;
    ensure!(
        link != Link::Udp || !row.crosses || crossed,
        "the hosts counted no packets: it did not cross UDP"
    );
    Ok(())
}

/// Returns the packets of a host so far: those of its devices and of its service.
fn packets(hosts: &Hosts, n: usize) -> Result<Packets> {
    let status = hosts.status(n)?;
    let count = |name: &str| status.counter(name).unwrap_or(0);
    Ok(Packets {
        sent: count("tx_packets") + count("service_tx_mads"),
        received: count("rx_packets") + count("service_rx_packets"),
    })
}

fn print(outcomes: &[Outcome]) -> Result<()> {
    let headings = [
        "OPERATION",
        "LINK",
        "BYTES",
        "VERIFIED",
        "HOST A SENT/RECEIVED",
        "HOST B SENT/RECEIVED",
        "TIME",
    ];
    let mut report = Report::new(&headings).right(&[2, 4, 5, 6]);
    for o in outcomes {
        let packets = |p: Packets| {
            if o.crosses && [Link::Udp.name(), INFINIBAND].contains(&o.link) {
                format!("{}/{}", p.sent, p.received)
            } else {
                "-".into()
            }
        };
        report.row([
            o.operation.to_owned(),
            o.link.to_owned(),
            output::bytes(o.bytes),
            if o.passed { "yes" } else { "FAILED" }.to_owned(),
            packets(o.packets[0]),
            packets(o.packets[1]),
            output::time(Duration::from_secs_f64(o.microseconds / 1e6)),
        ]);
    }
    report.print();
    for o in outcomes {
        if let Some(error) = &o.error {
            say!("FAILED: {}, {}: {error}", o.operation, o.link);
        }
    }
    let failed = outcomes.iter().filter(|o| !o.passed).count();
    match failed {
        0 => say!("all {} rows passed", outcomes.len()),
        n => say!("{n} of {} rows failed", outcomes.len()),
    }
    Ok(())
}

fn progress() -> Result<ProgressBar> {
    let progress = ProgressBar::new(0);
    if !std::io::stderr().is_terminal() {
        progress.set_draw_target(ProgressDrawTarget::hidden());
    }
    progress.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    Ok(progress)
}
