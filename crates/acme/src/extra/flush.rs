//! `ib_acme flush`: makes a service invalidate its cache, entirely or for some destinations.

use std::io::Write;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use rdmux_wire::acm::client::Query;

use super::{Common, ask};
use crate::address::{self, Format};
use crate::range::expand;
use crate::session::Reply;

/// What to forget.
#[derive(Args)]
pub(super) struct FlushArgs {
    #[command(flatten)]
    common: Common,
    /// Forget only this destination, or those of a list like node[1-3,5]
    #[arg(short, long, value_name = "DESTINATION")]
    destination: Option<String>,
    /// Format of the destination: i(p), n(ame), l(id), g(id), or u(nspecified)
    #[arg(short, long, value_name = "FORMAT", default_value = "u")]
    format: Format,
}

/// Runs the command.
pub(super) fn run(args: &FlushArgs, out: &mut dyn Write) -> Result<()> {
    let addresses = match &args.destination {
        None => vec![None],
        Some(list) => {
            let one = |word: &String| address::source(word, args.format).map(Some);
            expand(list)?.iter().map(one).collect::<Result<_, _>>().map_err(|e| anyhow!(e))?
        }
    };
    let session = args.common.session()?;
    let mut flushed = 0;
    for address in addresses {
        match ask(&session, Query::Flush(address))? {
            Reply::Flushed(count) => flushed += count,
            other => bail!("{} answered a flush with {other:?}", session.name()),
        }
    }
    if args.common.json {
        let document = serde_json::json!({ "service": session.name(), "flushed": flushed });
        writeln!(out, "{document:#}")?;
    } else {
        writeln!(out, "{}: {flushed} entries flushed", session.name())?;
    }
    Ok(())
}
