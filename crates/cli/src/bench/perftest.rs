//! perftest's programs on the C library: what they print, as figures.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::stats::{Figure, Goal, Unit};

/// Work requests outstanding, as perftest has them by default.
pub(super) const DEPTH: u32 = 128;
/// How long a pair of programs may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a case moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// SENDs to and fro.
    Send,
    /// RDMA WRITEs.
    Write,
    /// RDMA READs.
    Read,
}

/// A program and the same work through the Rust API.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) work: Work,
    pub(super) size: usize,
    pub(super) count: u32,
    program: &'static str,
}

/// What is measured.
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

/// Whether there is anything to run.
pub(super) fn is_installed() -> bool {
    CASES.iter().all(|case| {
        let mut program = Command::new(case.program);
        program.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    })
}

impl Case {
    /// Runs server and client on `host`: seconds one way, or bytes a second.
    pub(super) fn run(&self, host: &str) -> Result<f64> {
        // Free now; the server takes it a moment later.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
        let size = self.size.to_string();
        let count = self.count.to_string();
        let program = || -> Result<Command> {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--host", host, "run", "--", self.program, "-F", "-s", &size]);
            command.args(["-n", &count, "-p", &port]);
            Ok(command)
        };
        let mut server = program()?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let outcome = self.client(program()?);
        // It ends after its client, or is of no more use.
        let _ = outcome.is_err().then(|| server.kill());
        server.wait()?;
        outcome
    }

    /// The client, which is tried again until its server listens.
    fn client(&self, mut command: Command) -> Result<f64> {
        command.arg("localhost");
        let start = Instant::now();
        loop {
            let output = command.output().with_context(|| self.program)?;
            if output.status.success() {
                return self.parse(&String::from_utf8_lossy(&output.stdout));
            }
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(
                why.contains("Couldn't connect") && start.elapsed() < PATIENCE,
                "{} failed: {}{why}",
                self.program,
                String::from_utf8_lossy(&output.stdout),
            );
            thread::yield_now();
        }
    }

    /// The figure in a table with one row: the sixth column of latencies is the average in
    /// microseconds, the fourth of bandwidths the average in MiB a second.
    fn parse(&self, table: &str) -> Result<f64> {
        let row = table
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>())
            .find(|f| f.first().is_some_and(|first| first.parse() == Ok(self.size)));
        let column = if self.work == Work::Send { 5 } else { 3 };
        let Some(value) = row.as_ref().and_then(|r| r.get(column)?.parse::<f64>().ok()) else {
            bail!("{} printed no figure:\n{table}", self.program);
        };
        Ok(if self.work == Work::Send { value * 1e-6 } else { value * f64::from(1 << 20) })
    }

    /// Ours beside the Rust API's.
    pub(super) fn figure(&self, c: &[f64], rust: &[f64]) -> Figure {
        let (unit, goal) = match self.work {
            Work::Send => (Unit::Seconds, Goal::AtMost(1.1)),
            _ => (Unit::BytesPerSecond, Goal::AtLeast(1.0 / 1.1)),
        };
        Figure::alone(self.name, unit, c).beside("the Rust API", rust).with_goal(goal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_perftest_are_understood() {
        let latencies = "
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 64      1000          0.92           7.17         0.98                1.25             0.34
";
        assert!((CASES[0].parse(latencies).unwrap() - 1.25e-6).abs() < 1e-12);
        let bandwidths = "
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             9000.00            8000.00            0.128000
";
        assert!((CASES[1].parse(bandwidths).unwrap() - 8000.0 * 1_048_576.0).abs() < 1.0);
        assert!(CASES[1].parse("nothing").is_err());
    }
}
