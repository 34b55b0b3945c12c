//! The outcomes as tables, and a document with these tables.

use std::time::Duration;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use super::Outcome;

/// A column: its heading and its text for an outcome.
type Column = (&'static str, fn(&Outcome) -> String);

/// The parameters of the simulation.
const SETUP: [Column; 3] = [
    ("endpoints", |o| count(o.endpoints.into())),
    ("simulated", |o| if o.sample == o.endpoints { "all".into() } else { count(o.sample.into()) }),
    ("loss", |o| format!("{} %", f64::from(o.loss_ppm) / 10_000.0)),
];

/// Messages and time until all endpoints have all paths.
const COLD: [Column; 7] = [
    ("requests per endpoint", |o| format!("{:.2}", o.requests_per_endpoint)),
    ("deliveries per endpoint", |o| {
        format!("{:.3} N", o.deliveries_per_endpoint / f64::from(o.endpoints))
    }),
    ("dropped, no buffer", |o| count(o.overflows)),
    ("most buffers in use", |o| count(o.most_buffers)),
    ("all pairs resolved after", |o| time(o.time)),
    ("with rdmux's SA alone", |o| time(o.by_sa.time[0])),
    ("with OpenSM alone", |o| time(o.by_sa.time[1])),
];

/// The load of each party, and of resolving everything again.
const LOAD: [Column; 9] = [
    ("all joined after", |o| time(o.join_time)),
    ("SA datagrams per endpoint", |o| format!("{:.2}", o.administration_per_endpoint)),
    ("with SA alone", |o| count(o.by_sa.messages / u64::from(o.endpoints))),
    ("most deliveries to one", |o| count(o.most_deliveries)),
    ("per downward link", |o| count(o.messages_per_link)),
    ("cache per endpoint", |o| format!("{:.1} MiB", mib(o.bytes_per_endpoint))),
    ("processor time per endpoint", |o| time(o.cpu / o.sample.max(1))),
    ("warm: requests", |o| count(o.warm_requests)),
    ("warm: time per resolve", |o| format!("{:.0} ns", o.nanoseconds_per_warm_resolve)),
];

/// Returns two tables in Markdown: cold resolution, and its load compared with that of warm resolution.
pub fn tables(outcomes: &[Outcome]) -> [String; 2] {
    [table(outcomes, &COLD), table(outcomes, &LOAD)]
}

/// Returns a document with both tables and the plot, which is in the same folder.
pub fn document(outcomes: &[Outcome], command: &str, plot: &str) -> String {
    let [cold, load] = tables(outcomes);
    format!(
        "# ACM at scale: figures

Written by `{command}`, together with a JSON file and a plot of the same figures. For the scope of the simulation see [acm.md](acm.md#at-scale).

![Datagrams of subnet administration and time until all have all paths, over the number of endpoints]({plot})

## Cold

All endpoints start at once with empty caches and resolve all others. `SA` is subnet administration, `N` the number of endpoints. Deliveries, and drops
for lack of a receive buffer, are those to simulated endpoints; `loss` is the share of all deliveries that the network loses.

{cold}

## Load, and warm

SA datagrams are joins and their answers; `with SA alone` they are a query and an answer for each destination. `Most deliveries to one` are the datagrams delivered
to the endpoint that received most, `per downward link` those on each link of the multicast tree between switches, away from its root. Processor time is that of
the whole simulation, divided by the number of simulated endpoints. Warm: some endpoints resolve all others again.

{load}
"
    )
}

fn table(outcomes: &[Outcome], columns: &[Column]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    let all = || SETUP.iter().chain(columns);
    table.set_header(all().map(|(heading, _)| *heading));
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for outcome in outcomes {
        table.add_row(all().map(|(_, text)| text(outcome)));
    }
    table.to_string()
}

/// Formats a number with a comma for each three digits.
fn count(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Formats a time with about three digits, in a suitable unit.
fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 300.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_formats_counts_with_commas_and_times_with_units() {
        assert_eq!([0, 999, 1000, 4_294_967].map(count), ["0", "999", "1,000", "4,294,967"]);
        let times =
            [0.000_005, 0.0046, 3.26, 900.0, 15_840.0].map(|s| time(Duration::from_secs_f64(s)));
        assert_eq!(times, ["5 us", "4.6 ms", "3.3 s", "15.0 min", "4.4 h"]);
    }
}
