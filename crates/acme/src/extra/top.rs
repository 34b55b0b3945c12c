//! `ib_acme top`: the cache entries that a service shares with the programs of its host.

use std::io::Write;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use rdmux_acm_client::Shared;
use rdmux_link::acm::{Entry, Key, now};
use serde::Serialize;

use super::Common;

const NANOS: u64 = 1_000_000_000;

/// Which entries.
#[derive(Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    common: Common,
    /// Show at most N entries
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    count: usize,
    /// Show all entries
    #[arg(short, long, conflicts_with = "count")]
    all: bool,
}

/// An entry, as displayed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    destination: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    dgid: String,
    dlid: u16,
    sl: u8,
    mtu: u8,
    rate: u8,
    /// The time until it expires; none if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<u64>,
}

impl Row {
    fn new(key: &Key, entry: &Entry, now: u64) -> Self {
        let path = &entry.path.path;
        let source = key.source.map(|source| source.to_string());
        let is_for_ever = entry.expiry == u64::MAX;
        Self {
            destination: key.dest.to_string(),
            source: source.or_else(|| entry.source.map(|ip| ip.to_string())),
            dgid: crate::address::Text(path.dgid).to_string(),
            dlid: path.dlid.0,
            sl: path.sl,
            mtu: path.mtu,
            rate: path.rate.0,
            seconds: (!is_for_ever).then(|| entry.expiry.saturating_sub(now) / NANOS),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &TopArgs, out: &mut dyn Write) -> Result<()> {
    let service = args.common.found()?;
    let name = service.name();
    let path = service.cache().with_context(|| {
        format!("{name} is reached over TCP: only programs on its own machine can read its cache")
    })?;
    let shared = Shared::new(&path);
    ensure!(
        shared.is_there(),
        "{name} shares no cache at {}: it does not run, or is rdma-core's ibacm",
        path.display()
    );
    let (now, mut rows) = (now(), Vec::new());
    shared.each(|key, entry| rows.push(Row::new(key, entry, now)));
    rank(&mut rows);
    let total = rows.len();
    rows.truncate(if args.all { usize::MAX } else { args.count });
    if args.common.json {
        let document = serde_json::json!({ "service": name, "entries": total, "top": rows });
        writeln!(out, "{document:#}")?;
        return Ok(());
    }
    writeln!(out, "{name}: {total} entries")?;
    print(out, &rows)?;
    Ok(())
}

/// Sorts rows: the most recently confirmed first, then entries from files by name. A path that is shared both with and
/// without its source is one row.
fn rank(rows: &mut Vec<Row>) {
    rows.sort_by(|a, b| {
        let (a, b) =
            ((b.seconds, &a.destination, &a.source), (a.seconds, &b.destination, &b.source));
        a.cmp(&b)
    });
    rows.dedup();
}

fn print(out: &mut dyn Write, rows: &[Row]) -> std::io::Result<()> {
    let width =
        |text: &dyn Fn(&Row) -> usize, least| rows.iter().map(text).max().unwrap_or(0).max(least);
    let source = |row: &Row| row.source.clone().unwrap_or_default();
    let destinations = width(&|row| row.destination.len(), 11);
    let sources = width(&|row| source(row).len(), 6);
    if !rows.is_empty() {
        writeln!(
            out,
            "{:destinations$}  {:sources$}   dlid  sl  mtu  rate  expires  dgid",
            "destination", "source"
        )?;
    }
    for row in rows {
        let expires = row.seconds.map_or_else(|| "never".to_owned(), |s| format!("{s} s"));
        let Row { destination, dgid, dlid, sl, mtu, rate, .. } = row;
        let source = source(row);
        writeln!(
            out,
            "{destination:destinations$}  {source:sources$}  {dlid:>5}  {sl:>2}  {mtu:>3}  {rate:>4}  {expires:>7}  {dgid}"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_with_and_without_a_source_is_one_row() {
        let row = |destination: &str, seconds| Row {
            destination: destination.to_owned(),
            source: Some("10.0.0.1".to_owned()),
            dgid: "fe80::1".to_owned(),
            dlid: 1,
            sl: 0,
            mtu: 5,
            rate: 16,
            seconds,
        };
        let mut rows = vec![row("b", None), row("a", Some(7)), row("b", None), row("b", Some(9))];
        rank(&mut rows);
        assert_eq!(rows, [row("b", Some(9)), row("a", Some(7)), row("b", None)]);
    }
}
