//! The resources of processes and services at one moment, and whether they have grown.

use std::fs;

use anyhow::{Context as _, Result};
use rdmux_host::proto::Status;

use rdmux_command::output::{self, Report};

/// The growth of memory that is tolerated, because allocators keep some.
const SLACK: u64 = 2 << 20;

/// A gauge.
pub(super) struct Reading {
    what: String,
    value: u64,
    unit: Unit,
}

/// The unit of a reading, which decides how much growth is tolerated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// A number of objects, which must be as before.
    Count,
    /// A number of bytes, which must not be much higher than before.
    Bytes,
}

impl Reading {
    /// Returns a count of objects.
    pub(super) fn count(what: String, value: u64) -> Self {
        Self { what, value, unit: Unit::Count }
    }

    fn show(&self) -> String {
        match self.unit {
            Unit::Count => self.value.to_string(),
            Unit::Bytes => output::bytes(self.value),
        }
    }

    /// Returns whether the reading equals `before`, or nearly so.
    fn is_flat(&self, before: &Self) -> bool {
        match self.unit {
            Unit::Count => self.value == before.value,
            Unit::Bytes => self.value <= before.value + SLACK,
        }
    }
}

/// Reads the objects of a host.
pub(super) fn of_host(name: &str, status: &Status) -> Vec<Reading> {
    let mut readings = Vec::new();
    let mut count = |what: &str, n: u64| {
        readings.push(Reading::count(format!("{name}: {what}"), n));
    };
    count("processes", status.clients.len() as u64);
    count("slots", status.slots.into());
    count("ring pairs", status.rings.into());
    count("queue pairs", status.clients.iter().map(|c| c.qps).sum());
    count("XRC domains", status.xrc_domains.len() as u64);
    count("XRC shared receive queues", status.xrc_domains.iter().map(|d| d.srqs).sum());
    count("XRC targets", status.xrc_targets.len() as u64);
    readings
}

/// Reads the resources of a process, as counted by the kernel.
pub(super) fn of_process(name: &str, pid: u32) -> Result<Vec<Reading>> {
    let entries =
        |what: &str| Ok::<_, anyhow::Error>(fs::read_dir(format!("/proc/{pid}/{what}"))?.count());
    let value = memory(pid)?;
    Ok(vec![
        Reading { what: format!("{name}: resident memory"), value, unit: Unit::Bytes },
        Reading::count(format!("{name}: open files"), entries("fd")? as u64),
        Reading::count(format!("{name}: threads"), entries("task")? as u64),
    ])
}

/// Returns the resident memory of a process, in bytes.
pub(super) fn memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    resident(&status).with_context(|| format!("cannot read the memory of process {pid}"))
}

/// Parses `VmRSS:      1234 kB` to bytes.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Returns whether all counts are equal.
pub(super) fn same_counts(before: &[Reading], now: &[Reading]) -> bool {
    let counts = |all: &[Reading]| -> Vec<u64> {
        all.iter().filter(|r| r.unit == Unit::Count).map(|r| r.value).collect()
    };
    counts(before) == counts(now)
}

/// Prints both, each with the amount of work done. Returns whether nothing has grown.
pub(super) fn compare(first: &(u64, Vec<Reading>), last: &(u64, Vec<Reading>)) -> Result<bool> {
    let ((begun, first), (done, last)) = (first, last);
    let headings = ["", &format!("AFTER {begun}"), &format!("AFTER {done}"), ""];
    let mut report = Report::new(&headings).right(&[1, 2]);
    for (before, after) in first.iter().zip(last) {
        let verdict = if after.is_flat(before) { "flat" } else { "DIFFERS" };
        report.row([after.what.clone(), before.show(), after.show(), verdict.to_owned()]);
    }
    report.try_print()?;
    Ok(first.iter().zip(last).all(|(before, after)| after.is_flat(before)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_in_kib() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1234 kB\nRssAnon: 1 kB\n"), Some(1234 << 10));
        assert_eq!(resident("VmRSS: many"), None);
        assert!(of_process("this", std::process::id()).unwrap()[0].value > 4096);
    }

    #[test]
    fn a_little_memory_more_is_flat_and_an_object_is_not() {
        let bytes = |value| Reading { what: "b".into(), value, unit: Unit::Bytes };
        assert!(bytes(10 << 20).is_flat(&bytes(9 << 20)));
        assert!(!bytes(10 << 20).is_flat(&bytes(7 << 20)));
        let count = |n| Reading::count("n".into(), n);
        assert!(count(3).is_flat(&count(3)));
        assert!(!count(4).is_flat(&count(3)) && !count(2).is_flat(&count(3)));
    }
}
