//! `rdmux bench`: measures each figure and its reference in the same run.
#![forbid(unsafe_code)]

mod connections;
mod end;
mod iwarp;
mod mad;
mod migration;
mod multicast;
mod native;
mod part;
mod peers;
mod perftest;
mod plain;
mod programs;
mod protocol;
mod rc;
mod resources;
mod run;
mod shared;
mod stats;
mod xrc;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use rdmux::Context;

use self::stats::Figure;
use rdmux_command::hosts;
use rdmux_command::output::{self, Report};
use rdmux_command::say;
use rdmux_command::signals;
use rdmux_command::usage::UsageError;

/// Measures performance between processes on two virtual hosts (over UDP) and on one (through shared memory).
/// Rounds of rdmux and of the reference that it is compared with alternate; each figure is a median. Ratios are
/// printed with their goal; a missed goal is not a failure.
#[derive(Args)]
pub struct BenchArgs {
    /// Measure unmodified programs on rdmux against UCX, iperf3, the kernel's rxe and process_vm_writev; and the subnet manager
    /// against OpenSM. A row that cannot be measured is a failure
    #[arg(long)]
    peers: bool,
    /// Measure only these figures
    #[arg(long, value_delimiter = ',', value_name = "NAME", long_help = names())]
    only: Vec<String>,
    /// Rounds of each figure
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the ratios and their goals to an SVG file
    #[arg(long, value_name = "FILE", requires = "peers")]
    svg: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// WRITE bandwidth over UDP, compared with a TCP stream
    Bandwidth,
    /// SEND latency over UDP, compared with a UDP ping-pong
    Latency,
    /// SEND latency through shared memory, compared with a cache-line ping-pong
    Ring,
    /// Time to poll an empty completion queue
    Poll,
    /// Latency and bandwidth of perftest's programs through the C library, compared with the Rust API
    C,
    /// Connections per second, compared with TCP
    Connections,
    /// Connections by GID with given paths, compared with those by IP address, on InfiniBand
    Native,
    /// Memory and idle processor time of 1,000 queue pairs
    Resources,
    /// XRC compared with RC with a shared receive queue: rate, latency, and memory of all-to-all connections
    Xrc,
    /// Round trip of a management datagram to a simulated node's agent, compared with a Unix-socket ping-pong
    Mad,
    /// Time without completions when a connection migrates to another link, compared with the retry timer
    Migration,
    /// Datagrams to a group by its address, compared with those by an address handle
    Multicast,
    /// The same through the C library: rdma_sendto compared with ibv_post_send
    Sendto,
    /// iWARP compared with one TCP stream, with and without CRC, and the cost of peer-to-peer mode
    Iwarp,
}

impl BenchArgs {
    /// Returns the subjects that `--only` names, or all.
    fn chosen<T: ValueEnum + PartialEq>(&self) -> Result<Vec<T>, UsageError> {
        let chosen = |value: &&T| self.only.is_empty() || self.only.contains(&name(*value));
        if let Some(unknown) = self.only.iter().find(|o| !list::<T>().contains(o)) {
            let list = list::<T>().join(", ");
            if !self.peers && self::list::<peers::Row>().contains(unknown) {
                let why = format!("{unknown:?} needs --peers; without it choose from {list}");
                return Err(UsageError(why));
            }
            return Err(UsageError(format!("there is no figure {unknown:?}: choose from {list}")));
        }
        Ok(T::value_variants().iter().filter(chosen).cloned().collect())
    }
}

fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

fn list<T: ValueEnum>() -> Vec<String> {
    T::value_variants().iter().map(name).collect()
}

/// Returns the values of `--only`.
fn names() -> String {
    let (subjects, rows) = (list::<Subject>().join(", "), list::<peers::Row>().join(", "));
    format!("Measure only these figures: of {subjects}; with --peers, of {rows}")
}

/// Runs `rdmux bench`.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    if args.peers {
        let wanted = args.chosen::<peers::Row>()?;
        let _lock = hosts::alone("bench")?;
        signals::defer()?;
        return peers::run(args, &wanted);
    }
    let mut wanted = args.chosen::<Subject>()?;
    let _lock = hosts::alone("bench")?;
    signals::defer()?;
    // A missing perftest is an error only if its measurement was named.
    if args.only.is_empty()
        && let Err(why) = perftest::require_all()
    {
        eprintln!("rdmux: the C library is not measured: {why}");
        wanted.retain(|subject| *subject != Subject::C);
    }
    let run::Outcome { figures, missing } = run::measure(&wanted, args.rounds)?;
    if args.json {
        output::json(&figures)?;
    } else {
        print(&figures)?;
        if wanted.contains(&Subject::Xrc) {
            say!("{}", xrc::NOTE);
        }
    }
    for (subject, why) in &missing {
        eprintln!("rdmux: cannot measure {}: {}", name(subject), rdmux_command::output::text(why));
    }
    Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the other side of the bench.
pub fn part(context: &Context) -> Result<ExitCode> {
    part::run(context)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the other side of the references.
pub fn peer_part() -> Result<ExitCode> {
    peers::part()?;
    Ok(ExitCode::SUCCESS)
}

fn print(figures: &[Figure]) -> Result<()> {
    let headings = ["FIGURE", "RDMUX", "BESIDE", "ITS VALUE", "RATIO", "GOAL", ""];
    let mut report = Report::new(&headings).right(&[1, 3, 4, 5]);
    for f in figures {
        let peer = f.peer.as_ref();
        report.row([
            f.name.to_owned(),
            f.show(f.value),
            peer.map_or("", |p| p.name).to_owned(),
            peer.map_or(String::new(), |p| f.show(p.value)),
            f.ratio.map_or(String::new(), |r| format!("{r:.2}")),
            match (f.goal, f.limit) {
                (Some(goal), _) => goal.to_string(),
                (None, Some(limit)) => format!("<= {}", f.show(limit)),
                (None, None) => String::new(),
            },
            f.met.map_or("", |met| if met { "met" } else { "missed" }).to_owned(),
        ]);
    }
    report.print();
    Ok(())
}
