//! Programs that exchange data between the hosts: port counters, wrong keys, and the end of the fabric.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::NodeView;
use rustix::process::{Pid, Signal, kill_process};

use super::TIMEOUT;
use super::diags::counters::counter;
use super::ground::{self, Ground, HOSTS, Shown};
use crate::ports;
use crate::process::Process;

/// Bytes of each message.
const SIZE: u64 = 65_536;

/// A program of perftest between both hosts; options for both sides.
struct Exchange {
    server: Process,
    client: Process,
}

impl Exchange {
    fn start(ground: &Ground, program: &str, options: &str) -> Result<Self> {
        let port = ports::free()?;
        let line = format!("{program} -F -s {SIZE} -p {port} {options}");
        let mut server = ground.start(HOSTS[0], "server", &line)?;
        server.until("listening", TIMEOUT, |_| Ok(ground::listens(port)))?;
        let client = ground.start(HOSTS[1], "client", &format!("{line} 127.0.0.1"))?;
        Ok(Self { server, client })
    }

    fn succeed(mut self) -> Result<()> {
        self.client.succeed(TIMEOUT)?;
        self.server.succeed(TIMEOUT)
    }
}

/// Returns the counters of a port: words and packets sent, and received.
fn counted(ground: &Ground, node: &NodeView, port: u8) -> Result<[u64; 4]> {
    let lid = ground::lid(node)?.0;
    let said = ground.said(&format!("perfquery -x {lid} {port}"))?;
    let names = ["PortXmitData", "PortUnicastXmitPkts", "PortRcvData", "PortUnicastRcvPkts"];
    let all = names.map(|name| counter(&said, name));
    let [a, b, c, d] = all;
    Ok([a?, b?, c?, d?])
}

/// Checks that the data of a program is in the counters of all ports on its path.
pub(crate) fn is_counted(ground: &Ground) -> Result<()> {
    const MESSAGES: u64 = 500;
    let shown = ground.show()?;
    let [to, from] = HOSTS;
    let (to, from) = (shown.node(to)?, shown.node(from)?);
    let (switch, into) = shown.far(from, 1).context("a cable")?;
    let (_, out) = shown.far(to, 1).context("a cable")?;
    // The path of the data, in order, with the counters it is in: those of sent, or of received data.
    let ways = [(from, 1, 0), (switch, into, 2), (switch, out, 0), (to, 1, 2)];
    let of = |(node, port, _): &(&NodeView, u8, usize)| counted(ground, node, *port);
    let read = || ways.iter().map(of).collect::<Result<Vec<_>>>();
    let before = read()?;
    Exchange::start(ground, "ib_write_bw", &format!("-n {MESSAGES}"))?.succeed()?;
    let after = read()?;
    let data = MESSAGES * SIZE / 4;
    // Perftest sends some more to warm up; headers are six words, and ten with a GRH; requests are counted, too.
    let most = data + data / 4;
    for ((before, after), (node, port, at)) in before.iter().zip(&after).zip(ways) {
        let grown = after[at] - before[at];
        let name = &node.description;
        ensure!(
            (data..most).contains(&grown),
            "port {port} of {name} counted {grown} words for {data}"
        );
        let packets = after[at + 1] - before[at + 1];
        ensure!(
            packets >= MESSAGES * SIZE / 4096,
            "port {port} of {name} counted only {packets} packets"
        );
    }
    // The host soon shows at least as much for its port.
    let file = "/sys/class/infiniband/rdmux_ib0/ports/1/counters/port_xmit_data";
    ground.until("shown", || {
        let shown: u64 = ground.said(&format!("cat {file}"))?.trim().parse()?;
        Ok(shown >= after[0][0])
    })
}

/// Kills the fabric while programs exchange data: they end, the ports are down, and after the fabric restarts everything works again.
pub(crate) fn fabric_is_killed(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let node = shown.node(HOSTS[1])?.clone();
    let Exchange { mut server, mut client } =
        Exchange::start(ground, "ib_write_bw", "-D 100 -t 16")?;
    let before = counted(ground, &node, 1)?[1];
    ground.until("busy", || Ok(counted(ground, &node, 1)?[1] > before + 10_000))?;
    let pid = i32::try_from(ground.status()?.pid).context("a process number")?;
    kill_process(Pid::from_raw(pid).context("a process")?, Signal::KILL)?;
    let killed = Instant::now();
    for host in HOSTS {
        ground.until("down", || Ok(ground.said_on(host, "ibv_devinfo")?.contains("PORT_DOWN")))?;
    }
    // The client's packets are lost, until the queue pair's retries are exhausted.
    let status = client.finish(TIMEOUT)?;
    ensure!(!status.success(), "the client succeeded although the fabric was killed");
    // IBV_WC_RETRY_EXC_ERR
    ensure!(client.output().contains("Failed status 12"), "{}", client.output());
    ensure!(
        killed.elapsed() < Duration::from_secs(90),
        "the client took {:?} to fail",
        killed.elapsed()
    );
    server.finish(TIMEOUT)?;
    ground.rdmux(&["fabric", "up"])?;
    for host in HOSTS {
        ground.until("up again", || {
            Ok(ground.said_on(host, "ibv_devinfo")?.contains("PORT_ACTIVE"))
        })?;
    }
    Exchange::start(ground, "ib_write_bw", "-n 100")?.succeed()
}
