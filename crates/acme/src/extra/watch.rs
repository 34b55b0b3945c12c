//! `ib_acme watch`: counters, and their growth.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use rdmux_wire::acm::client::{COUNTERS, Query, Subject};

use super::{Common, ask};
use crate::perf;
use crate::session::{Reply, Session, shown};

/// What to watch, and how often.
#[derive(Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    common: Common,
    /// Show the counters of endpoint N, from 1, instead of the whole service
    #[arg(short, long, value_name = "N", conflicts_with = "all")]
    endpoint: Option<u8>,
    /// Show all counters of the service, not only those that ibacm has
    #[arg(short, long)]
    all: bool,
    /// Seconds between two readings
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Stop after N readings
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s: &f64| (0.0..=86_400.0).contains(s));
    seconds.ok_or_else(|| "use a number of seconds from 0 to 86400".to_owned())
}

/// Runs the command until it is interrupted or the count is reached.
pub(super) fn run(args: &WatchArgs, out: &mut dyn Write) -> Result<()> {
    let session = args.common.session()?;
    let mut before: Option<(Instant, Vec<(String, u64)>)> = None;
    let mut left = args.count;
    while left != Some(0) {
        if before.is_some() {
            thread::sleep(Duration::from_secs_f64(args.interval));
        }
        let (at, now) = (Instant::now(), look(&session, args)?);
        let growth = before.as_ref().map(|(then, values)| (at - *then, grown(values, &now)));
        if args.common.json {
            let growth = growth.map(|(time, growth)| (time, named(&now, &growth)));
            print_json(out, &session, &now, growth)?;
        } else {
            print(out, &now, growth.map(|(_, growth)| growth), before.is_none())?;
        }
        out.flush()?;
        before = Some((at, now));
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// Reads names and values.
fn look(session: &Session, args: &WatchArgs) -> Result<Vec<(String, u64)>> {
    if args.all {
        return match ask(session, Query::Statistics)? {
            Reply::Statistics(all) => {
                Ok(all.iter().map(|s| (shown(s.name.as_bytes()), s.value)).collect())
            }
            other => Err(anyhow!("{} answered with {other:?}", session.name())),
        };
    }
    let subject = args.endpoint.map_or(Subject::Service, Subject::Index);
    let values =
        perf::counters(session, subject).map_err(|why| anyhow!("{}: {why}", session.name()))?;
    // The width of a column is that of its name.
    let names = COUNTERS.iter().map(|name| name.trim_end_matches(" Count").to_owned());
    Ok(names.zip(values).collect())
}

/// Returns the growth of each counter. A restarted service counts from 0 again.
fn grown(before: &[(String, u64)], now: &[(String, u64)]) -> Vec<u64> {
    let old = |name: &str| before.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value);
    now.iter().map(|(name, value)| value.checked_sub(old(name)).unwrap_or(*value)).collect()
}

/// Prints a row: first the current values, later their growth.
fn print(
    out: &mut dyn Write,
    now: &[(String, u64)],
    growth: Option<Vec<u64>>,
    is_first: bool,
) -> io::Result<()> {
    let width = |name: &str| name.len().max(8);
    if is_first {
        let names = now.iter().map(|(name, _)| format!("{name:>width$}", width = width(name)));
        writeln!(out, "   {}", names.collect::<Vec<_>>().join("  "))?;
    }
    let sign = if growth.is_some() { "+" } else { " " };
    let values = growth.unwrap_or_else(|| now.iter().map(|(_, value)| *value).collect());
    let cells = values.iter().zip(now);
    let cells = cells.map(|(value, (name, _))| format!("{value:>width$}", width = width(name)));
    writeln!(out, "{sign}  {}", cells.collect::<Vec<_>>().join("  "))
}

type Named = serde_json::Map<String, serde_json::Value>;

fn named(now: &[(String, u64)], values: &[u64]) -> Named {
    now.iter().zip(values).map(|((name, _), value)| (key(name), (*value).into())).collect()
}

fn key(name: &str) -> String {
    name.to_lowercase().replace(' ', "_")
}

/// Prints a line of JSON for each reading.
fn print_json(
    out: &mut dyn Write,
    session: &Session,
    now: &[(String, u64)],
    growth: Option<(Duration, Named)>,
) -> Result<()> {
    let counters: Named = now.iter().map(|(name, value)| (key(name), (*value).into())).collect();
    let mut line = serde_json::json!({ "service": session.name(), "counters": counters });
    if let Some((time, growth)) = growth {
        line["seconds"] = time.as_secs_f64().into();
        line["growth"] = growth.into();
    }
    writeln!(out, "{line}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(values: [u64; 2]) -> Vec<(String, u64)> {
        ["Resolve", "A Rather Long Name"].iter().map(|n| (*n).to_owned()).zip(values).collect()
    }

    #[test]
    fn first_row_is_totals_and_the_next_ones_growth() {
        let mut out = Vec::new();
        let (first, second) = (counters([5, 7]), counters([9, 7]));
        print(&mut out, &first, None, true).unwrap();
        print(&mut out, &second, Some(grown(&first, &second)), false).unwrap();
        let expected = "    Resolve  A Rather Long Name\n          5                   7\n+         4                   0\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn counters_that_went_back_are_those_of_a_new_service() {
        assert_eq!(grown(&counters([5, 7]), &counters([3, 8])), [3, 1]);
        assert_eq!(grown(&[], &counters([3, 8])), [3, 8]);
    }
}
