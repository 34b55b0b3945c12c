//! The conformance suite against the kernel's `rdma_rxe`; runs as root inside the guest of `peer-vm`.
#![forbid(unsafe_code)]

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use rdmux_conformance::suite::{Check, Guest, Link, Siw, Wanted, send_datagram, take_the_wire};

/// Runs the conformance suite against the kernel's rdma_rxe or siw, inside the guest of peer-vm.
#[derive(Parser)]
enum Cli {
    /// Print the names of the rows
    List {
        #[command(flatten)]
        choice: Choice,
        /// Print those of the iWARP suite
        #[arg(long)]
        iwarp: bool,
    },
    /// Send a management datagram to QP1
    #[command(hide = true)]
    Datagram {
        /// The destination
        to: Ipv6Addr,
        /// Send a wrong ICRC
        #[arg(long)]
        wrong: bool,
    },
    /// Run the checks and print a line for each row, which begins with "pass" or "FAIL"
    Run {
        /// Folder of the programs rdmux, verbs-peer and verbs_peer
        #[arg(long)]
        programs: PathBuf,
        /// Folder for the output of every process
        #[arg(long)]
        logs: PathBuf,
        #[command(flatten)]
        choice: Choice,
        /// Run the iWARP suite, against siw
        #[arg(long)]
        iwarp: bool,
        /// Run each check N times, to find rare failures
        #[arg(long, value_name = "N", default_value_t = 1)]
        repeat: u32,
        /// Percentage of packets lost in the checks with loss, instead of the table's
        #[arg(long, value_name = "PERCENT")]
        loss: Option<u8>,
        /// Do not retry checks that fail; by default each is retried once, because the kernel's side has races
        #[arg(long)]
        strict: bool,
    },
}

/// Which checks.
#[derive(clap::Args)]
struct Choice {
    /// Select only checks with a row that contains this text, brief or not
    #[arg(long)]
    only: Option<String>,
    /// Select all checks, not only the brief ones
    #[arg(long)]
    all: bool,
}

impl From<Choice> for Wanted {
    fn from(Choice { only, all }: Choice) -> Self {
        Self { only, all }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse() {
        Cli::List { choice, iwarp: true } => {
            let wanted = Wanted::from(choice);
            wanted.checks_of_siw().for_each(|(_, check)| println!("{}", check.row()));
            Ok(ExitCode::SUCCESS)
        }
        Cli::List { choice, iwarp: false } => {
            for row in Wanted::from(choice).checks().flat_map(|(_, check)| check.rows()) {
                println!("{row}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Cli::Datagram { to, wrong } => {
            send_datagram(to, wrong)?;
            Ok(ExitCode::SUCCESS)
        }
        Cli::Run { programs, logs, choice, iwarp, repeat, loss, strict } => {
            let wanted = Wanted::from(choice);
            let guest = Guest::new(&programs, &logs)?;
            let mut clean = true;
            if iwarp {
                take_the_wire(&guest)?;
                for (n, check) in wanted.checks_of_siw() {
                    for _ in 0..repeat {
                        clean &= run(&guest, n, &check, strict);
                    }
                }
                return Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            for (n, mut check) in wanted.checks() {
                check.link.loss = loss.filter(|_| check.link.loss > 0).unwrap_or(check.link.loss);
                for _ in 0..repeat {
                    clean &= run(&guest, n, &check, strict);
                }
            }
            Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// A check that can be run.
trait Runs {
    fn link(&self) -> Link;
    fn rows(&self) -> Vec<String>;
    fn run(&self, guest: &Guest) -> Vec<anyhow::Result<()>>;
}

impl Runs for Check {
    fn link(&self) -> Link {
        self.link
    }
    fn rows(&self) -> Vec<String> {
        self.rows()
    }
    fn run(&self, guest: &Guest) -> Vec<anyhow::Result<()>> {
        self.run(guest)
    }
}

impl Runs for Siw {
    fn link(&self) -> Link {
        self.link
    }
    fn rows(&self) -> Vec<String> {
        vec![self.row()]
    }
    fn run(&self, guest: &Guest) -> Vec<anyhow::Result<()>> {
        vec![self.run(guest)]
    }
}

fn attempt(guest: &Guest, n: u16, check: &impl Runs) -> Vec<anyhow::Result<()>> {
    match guest.begin(n, check.link()) {
        Ok(()) => check.run(guest),
        Err(e) => vec![Err(e.context("setting up the wire"))],
    }
}

/// Runs a check, a second time if it fails.
fn run(guest: &Guest, n: u16, check: &impl Runs, strict: bool) -> bool {
    let start = Instant::now();
    let rows = check.rows();
    let mut outcomes = attempt(guest, n, check);
    if !strict && outcomes.iter().any(Result::is_err) {
        for (row, e) in rows.iter().zip(&outcomes).filter_map(|(r, o)| Some((r, o.as_ref().err()?)))
        {
            println!("again | {row} | {}", format!("{e:#}").replace('\n', " "));
        }
        guest.end(false);
        outcomes = attempt(guest, n, check);
    }
    let mut clean = rows.len() == outcomes.len();
    // The time of the check, divided among its rows.
    let each = start.elapsed().as_secs_f64() / rows.len().max(1) as f64;
    for (row, outcome) in rows.iter().zip(outcomes) {
        match outcome {
            Ok(()) => println!("pass | {row} | {each:.1} s"),
            Err(e) => {
                clean = false;
                println!("FAIL | {row} | {} | {each:.1} s", format!("{e:#}").replace('\n', " "));
            }
        }
    }
    guest.end(clean);
    let logs = guest.logs();
    let logs: Vec<_> =
        logs.iter().filter_map(|l| l.file_name()).map(|l| l.to_string_lossy()).collect();
    println!("     # {n}: {:.1} s; {}", start.elapsed().as_secs_f32(), logs.join(" "));
    clean
}
