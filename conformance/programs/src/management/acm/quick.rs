//! The quick start of `docs/acm.md`, whose five lines are those of the notes of 2009.

use anyhow::{Context, Result, ensure};

use super::super::TIMEOUT;
use super::super::ground::Ground;
use super::{Counters, Whose, socket};
use crate::process::Process;
use crate::stage::find_program;

/// The names of the hosts in the document.
const HOSTS: [&str; 2] = ["a", "b"];

/// Writes files, starts services, verifies a path, and lets the connection manager resolve another.
pub(crate) fn start(ground: &Ground) -> Result<()> {
    ground.with_ip()?;
    HOSTS.iter().try_for_each(|host| ground.attach(host))?;
    let config = format!("XDG_CONFIG_HOME={}", ground.dir().join("acm-config").display());
    let tool = Whose::Ours.tool(ground);
    for host in HOSTS {
        ground.said_on(host, &format!("{config} {tool} -A -O"))?;
        // The service daemonises once it listens.
        ground.said_on(host, &format!("{config} {}", Whose::Ours.service(ground)))?;
        ensure!(socket(ground, host).exists(), "the ACM service of {host} does not listen");
    }
    let outcome = resolves(ground, &tool);
    // The services are daemons, and must be stopped explicitly.
    HOSTS.iter().try_for_each(|host| end_service(ground, host))?;
    outcome
}

fn resolves(ground: &Ground, tool: &str) -> Result<()> {
    let [a, b] = HOSTS;
    let said = ground.said_on(a, &format!("{tool} -s {a} -d {b} -v"))?;
    ensure!(said.contains("SA verification: success"), "{said}");
    // The connection manager would read the path that the tool has resolved from shared memory, without a counted request.
    ground.said_on(a, &format!("{tool} flush"))?;
    let before = Counters::of(ground, a)?;
    ping(ground)?;
    let asked = Counters::of(ground, a)?;
    let first = asked.since(before);
    ensure!(first.resolves >= 1, "the connection manager did not query the service: {first:?}");
    ping(ground)?;
    let second = Counters::of(ground, a)?.since(asked);
    let queries = (second.address_queries, second.route_queries);
    ensure!(queries == (0, 0), "a cached path was requested again: {second:?}");
    Ok(())
}

/// Runs rping between them.
fn ping(ground: &Ground) -> Result<()> {
    const ACM: &str = "RDMA_CM_USE_IB_ACM=1";
    let [a, b] = HOSTS;
    let mut server = ground.start(b, "rping-server", &format!("{ACM} rping -s -P -v"))?;
    let mut client = None;
    // A client is refused until the server listens, which the server does not report.
    ground.until("answered by rping", || {
        let line = format!("{ACM} rping -c -a {b} -v -C 3");
        let mut it = ground.start(a, "rping-client", &line)?;
        let status = it.finish(TIMEOUT)?;
        client = Some(it);
        Ok(status.success())
    })?;
    let said = client.as_ref().map(Process::printed).context("the service lists no client")?;
    ensure!(said.matches("rdma-ping-").count() == 3, "rping says {said:?}");
    server.kill(TIMEOUT)
}

/// Stops the service of a host.
fn end_service(ground: &Ground, host: &str) -> Result<()> {
    find_program("kill").context("kill(1) is not installed")?;
    let lock = socket(ground, host).with_file_name("ibacm.pid");
    let pid = std::fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
    ground.said_on(host, &format!("kill {}", pid.trim())).map(drop)
}
