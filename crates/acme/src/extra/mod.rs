//! Commands that ib_acme of rdma-core does not have: [`watch`], [`flush`], [`top`].

mod flush;
mod top;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use rdmux_wire::acm::client::Query;

use crate::services::Service;
use crate::session::{Reply, Session};

/// The words of the command line that are commands.
const WORDS: [&str; 3] = ["watch", "flush", "top"];

/// The exit status after a failure.
const FAILED: u8 = 1;

#[derive(Parser)]
#[command(name = "ib_acme", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the counters of a service and their growth
    Watch(watch::WatchArgs),
    /// Make a service forget learned entries
    Flush(flush::FlushArgs),
    /// Show the cache that a service shares with programs, newest entries first
    Top(top::TopArgs),
}

/// Which service, and how results are printed.
#[derive(Args)]
struct Common {
    /// The service: a host, or the path of a socket; without it that of this host
    #[arg(short = 'S', long, value_name = "SERVICE")]
    service: Option<String>,
    /// The service's virtual host; without it that of RDMUX_HOST
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Common {
    /// Returns the service.
    fn found(&self) -> Result<Service> {
        match &self.service {
            Some(word) => Ok(Service::of_word(word)),
            None => Service::of_host(self.host.as_deref()),
        }
    }

    /// Opens a session with the service.
    fn session(&self) -> Result<Session> {
        let service = self.found()?;
        Session::open(&service).map_err(|unreachable| {
            let (name, why) = (service.name(), unreachable.why);
            anyhow::anyhow!("cannot contact {name}: {why}; start it with ib_acm")
        })
    }
}

/// Returns whether a word is one of these commands.
pub(crate) fn is_word(word: &str) -> bool {
    WORDS.contains(&word)
}

/// Returns arguments whose first word is one of these commands. The command may stand after the options of [`Common`], and is moved to
/// the front.
///
/// # Errors
/// The arguments, if none of these commands is there.
pub(crate) fn command_first(mut args: Vec<OsString>) -> Result<Vec<OsString>, Vec<OsString>> {
    match place(&args) {
        Some(at) => {
            args[..=at].rotate_right(1);
            Ok(args)
        }
        None => Err(args),
    }
}

/// Returns the index of the command.
fn place(args: &[OsString]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += match args.get(at)?.to_str()? {
            "-S" | "--service" | "--host" => 2,
            "--json" => 1,
            option if ["-S", "--service=", "--host="].iter().any(|o| option.starts_with(o)) => 1,
            word => return is_word(word).then_some(at),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When its output cannot be written.
pub(crate) fn run(args: &[OsString], out: &mut dyn Write) -> io::Result<u8> {
    let name = OsString::from("ib_acme");
    let cli = match Cli::try_parse_from([&name].into_iter().chain(args)) {
        Ok(cli) => cli,
        Err(e) => {
            // To standard error, or for --help to standard output.
            e.print()?;
            return Ok(e.exit_code().to_le_bytes()[0]);
        }
    };
    let done = match &cli.command {
        Command::Watch(args) => watch::run(args, out),
        Command::Flush(args) => flush::run(args, out),
        Command::Top(args) => top::run(args, out),
    };
    match done {
        Ok(()) => Ok(0),
        Err(e) => match e.downcast::<io::Error>() {
            Ok(e) => Err(e),
            Err(e) => {
                eprintln!("ib_acme: {e:#}");
                Ok(FAILED)
            }
        },
    }
}

/// Sends a query that only rdmux's service knows: that of rdma-core closes the connection.
fn ask(session: &Session, query: Query) -> Result<Reply> {
    session.ask(query).map_err(|failure| {
        let name = session.name();
        match failure.status() {
            Some(_) => {
                anyhow::anyhow!("{name} refused: {failure}; some requests only its owner may send")
            }
            None => anyhow::anyhow!(
                "{name} does not answer: {failure}; rdma-core's ibacm does not support this request"
            ),
        }
    })
}
