//! Data transfer on InfiniBand compared with RoCE, and between two hosts of a subnet compared with one host: the
//! programs of perftest alternate.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::super::programs::{calibrated, free_port, pair, require, tcp_listens};
use super::fabrics::{Fabric, Ground};
use super::parse;
use super::spec::Row;

/// The hosts.
const HOSTS: [&str; 2] = ["bench-a", "bench-b"];
/// Makes processes of two hosts use UDP.
const NO_RINGS: &[(&str, &str)] = &[("RDMUX_HOST_RINGS", "off")];

const LATENCY: &str = "ib_send_lat -s 8 -n 300000";
const WIDE: &str = "ib_write_bw -s 65536 -n 30000";
const LONG: &str = "ib_write_bw -s 1048576 -n 6000";
/// Like [`WIDE`], for connections that take longer.
const WIDE_UDP: &str = "ib_write_bw -s 65536 -n 20000";

/// A fabric with a subnet manager and a switch, and two hosts on it, which also have RoCE devices.
pub(super) struct Subnet {
    fabric: Fabric,
    // Dropped after the fabric, which has a directory in it.
    _ground: Ground,
}

/// A program of perftest and where it runs.
struct Run {
    device: &'static str,
    line: &'static str,
    /// The number of the server's host; the client is on the first.
    to: usize,
    variables: &'static [(&'static str, &'static str)],
}

impl Run {
    const fn new(device: &'static str, line: &'static str, to: usize) -> Self {
        Self { device, line, to, variables: &[] }
    }
}

impl Subnet {
    pub(super) fn new() -> Result<Self> {
        let ground = Ground::bare()?;
        let fabric = ground.fabric("switch:4".parse()?, true)?;
        fabric.until_up()?;
        let this = Self { fabric, _ground: ground };
        HOSTS.iter().try_for_each(|host| this.fabric.rdmux(&["host", "up", host]))?;
        Ok(this)
    }

    /// Measures rdmux's side of a row once.
    pub(super) fn ours(&self, row: Row) -> Result<f64> {
        self.run(&match row {
            Row::IbLat => Run::new("ib", LATENCY, 0),
            Row::IbBw => Run::new("ib", WIDE, 0),
            Row::IbLongBw => Run::new("ib", LONG, 0),
            Row::IbHostsLat => Run::new("ib", LATENCY, 1),
            Row::IbHostsBw => Run::new("ib", WIDE, 1),
            Row::IbHostsLongBw => Run::new("ib", LONG, 1),
            _ => Run { variables: NO_RINGS, ..Run::new("ib", WIDE_UDP, 1) },
        })
    }

    /// Measures the reference of a row once.
    pub(super) fn peer(&self, row: Row) -> Result<f64> {
        self.run(&match row {
            Row::IbLat => Run::new("roce", LATENCY, 0),
            Row::IbBw => Run::new("roce", WIDE, 0),
            Row::IbLongBw => Run::new("roce", LONG, 0),
            Row::IbHostsLat => Run::new("ib", LATENCY, 0),
            Row::IbHostsBw => Run::new("ib", WIDE, 0),
            Row::IbHostsLongBw => Run::new("ib", LONG, 0),
            _ => Run::new("roce", WIDE_UDP, 1),
        })
    }

    fn run(&self, run: &Run) -> Result<f64> {
        let (program, args) =
            run.line.split_once(' ').context("the command line has no arguments")?;
        require(program)?;
        let is_time = program.ends_with("_lat");
        let parse = if is_time { parse::perftest_latency } else { parse::perftest_bandwidth };
        calibrated(|| {
            let port = free_port()?;
            let command = |host: &str| -> Command {
                let mut command = self.fabric.command();
                command.args(["--host", host, "run", "--device", run.device, "--", program]);
                command.args(args.split(' ')).args(["-F", "-p", &port.to_string()]);
                command.envs(run.variables.iter().copied());
                command
            };
            let mut client = command(HOSTS[0]);
            client.arg("127.0.0.1");
            pair(&mut command(HOSTS[run.to]), &mut client, || Ok(tcp_listens(port)), parse)
        })
    }
}

impl Drop for Subnet {
    fn drop(&mut self) {
        for host in HOSTS {
            if let Err(error) = self.fabric.rdmux(&["host", "down", host]) {
                tracing::warn!(%error, "cannot stop a host that this command started");
            }
        }
    }
}
