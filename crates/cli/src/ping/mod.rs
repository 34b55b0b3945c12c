//! `rdmux ping`: the exchange of rping, which may be the peer.

mod client;
mod endpoint;
mod exchange;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::Global;

/// Speaks the exchange of `rping`: the server READs each ping's data from the client's memory and
/// WRITEs it back.
#[derive(Args, Clone)]
#[command(group = clap::ArgGroup::new("role").required(true).args(["server", "client"]))]
pub(crate) struct PingArgs {
    /// Wait for a client
    #[arg(short, long)]
    server: bool,
    /// Ping a server
    #[arg(short, long)]
    client: bool,
    /// The server's address or name; without it, a server listens on all addresses
    #[arg(short, long, value_name = "ADDRESS", required_if_eq("client", "true"))]
    addr: Option<String>,
    /// The client's local address
    #[arg(short = 'I', long, value_name = "ADDRESS", requires = "client")]
    source: Option<String>,
    /// The server's port
    #[arg(short, long, default_value_t = exchange::PORT)]
    port: u16,
    /// Pings to send; without it, ping until interrupted
    #[arg(short = 'C', long, value_name = "N")]
    count: Option<u32>,
    /// Bytes of each ping
    #[arg(short = 'S', long, value_name = "BYTES", default_value_t = 64,
          value_parser = size_parser())]
    size: u32,
    /// Verify the returned data
    #[arg(short = 'V', long)]
    verify: bool,
    /// Print the data of each ping; so does -v
    #[arg(short = 'd', long)]
    data: bool,
    /// Serve one client after another
    #[arg(short = 'P', long, requires = "server")]
    persistent: bool,
    /// Print only the summary
    #[arg(short, long)]
    quiet: bool,
    /// Seconds to wait for the peer
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,
    /// Print the client's summary as JSON
    #[arg(long, conflicts_with = "server")]
    json: bool,
}

impl PingArgs {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

fn size_parser() -> clap::builder::RangedI64ValueParser<u32> {
    let bounds = exchange::MIN_SIZE as i64..=exchange::MAX_SIZE as i64;
    clap::value_parser!(u32).range(bounds)
}

/// Runs `rdmux ping`.
pub(crate) fn run(global: &Global, args: &PingArgs) -> Result<ExitCode> {
    let context = global.open()?;
    // As in rping, -v prints the data.
    let args = &PingArgs { data: args.data || global.verbose > 0, ..args.clone() };
    if args.server {
        server::run(&context, args)?
    } else {
        client::run(&context, args)?
    }
    Ok(ExitCode::SUCCESS)
}
