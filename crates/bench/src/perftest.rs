//! perftest's programs on the C library: parses their output to figures.

use std::process::Command;

use anyhow::Result;

use super::peers::{perftest_bandwidth, perftest_latency};
use super::programs::{calibrated, free_port, on_host, pair, require, tcp_listens};
use super::stats::{Figure, Goal, Unit};

/// The number of outstanding work requests, perftest's default.
pub(super) const DEPTH: u32 = 128;

/// The operation of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// SENDs back and forth.
    Send,
    /// RDMA WRITEs.
    Write,
    /// RDMA READs.
    Read,
}

/// A program, with the same work through the Rust API.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) work: Work,
    pub(super) size: usize,
    pub(super) count: u32,
    program: &'static str,
}

/// The cases to measure.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "ib_send_lat 64 B, same host",
        work: Work::Send,
        size: 64,
        count: 200_000,
        program: "ib_send_lat",
    },
    Case {
        name: "ib_write_bw 64 KiB, same host",
        work: Work::Write,
        size: 64 << 10,
        count: 32_768,
        program: "ib_write_bw",
    },
    Case {
        name: "ib_read_bw 64 KiB, same host",
        work: Work::Read,
        size: 64 << 10,
        count: 32_768,
        program: "ib_read_bw",
    },
];

/// Checks that all programs are installed.
pub(super) fn require_all() -> Result<()> {
    CASES.iter().try_for_each(|case| require(case.program))
}

impl Case {
    /// Runs server and client on `host`. Returns seconds one way, or bytes per second.
    pub(super) fn run(&self, host: &str) -> Result<f64> {
        let parse = if self.work == Work::Send { perftest_latency } else { perftest_bandwidth };
        calibrated(|| {
            let port = free_port()?;
            let program = || -> Result<Command> {
                let mut command = on_host(host, self.program)?;
                command.args(["-F", "-s", &self.size.to_string(), "-n", &self.count.to_string()]);
                command.args(["-p", &port.to_string()]);
                Ok(command)
            };
            let mut client = program()?;
            client.arg("localhost");
            pair(&mut program()?, &mut client, || Ok(tcp_listens(port)), parse)
        })
    }

    /// Compares the C library's rounds with the Rust API's.
    pub(super) fn figure(&self, c: &[f64], rust: &[f64]) -> Figure {
        let (unit, goal) = match self.work {
            Work::Send => (Unit::Seconds, Goal::AtMost(1.1)),
            _ => (Unit::BytesPerSecond, Goal::AtLeast(1.0 / 1.1)),
        };
        Figure::alone(self.name, unit, c).beside("the Rust API", rust).with_goal(goal)
    }
}
