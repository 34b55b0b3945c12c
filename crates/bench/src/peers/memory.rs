//! The memory of idle connected queue pairs: in both processes and in the service of their host.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use super::super::protocol::{Answer, Ask};
use super::super::resources::share;
use super::super::run;
use super::figure::Figure;
use super::spec::Row;
use rdmux_command::child::Child;
use rdmux_command::hosts::Hosts;

/// A host that is used for nothing else.
const HOST: &str = "bench-m";
/// The number of connections, each of two queue pairs.
const CONNECTIONS: usize = 5_000;
const AT_ONCE: usize = 64;
/// The time in which the work that connecting leaves is finished. It is not measured.
const REST: Duration = Duration::from_millis(500);

/// Returns the bytes per queue pair, by their holders. The queue pairs have 16 send and 16 receive requests, no
/// registered memory, and share a completion queue. Rings that the processes share count once; the kernel's memory
/// for their sockets does not count.
pub(super) fn measure(row: Row) -> Result<Figure> {
    let hosts = Hosts::up_to_end(&[HOST])?;
    let (mut client, mut server) = (run::part(HOST)?, run::part(HOST)?);
    let ask = Ask::CmAccept { at: hosts.address(0)?, count: u32::try_from(CONNECTIONS)? };
    let to = run::listening(&mut server, &ask)?;
    let parts = [client.id(), server.id(), hosts.status(0)?.pid];
    let before = shares(parts)?;
    keep(&mut client, to)?;
    thread::sleep(REST);
    let after = shares(parts)?;
    client.tell(&Ask::CmDisconnect)?;
    run::done(&mut client)?;
    run::done(&mut server)?;

    let each = |n: usize| after[n].saturating_sub(before[n]) as f64 / (2 * CONNECTIONS) as f64;
    let parts = [("client", each(0)), ("server", each(1)), ("service", each(2))];
    let mut figure = Figure::new(row, &[parts.iter().map(|(_, bytes)| bytes).sum()], &[]);
    figure.parts = parts.to_vec();
    Ok(figure)
}

fn shares(pids: [u32; 3]) -> Result<[u64; 3]> {
    Ok([share(pids[0])?, share(pids[1])?, share(pids[2])?])
}

/// Makes a process establish connections and keep them.
fn keep(client: &mut Child, to: SocketAddr) -> Result<()> {
    match client.ask(&Ask::CmConnect { to, count: CONNECTIONS, at_once: AT_ONCE })? {
        Answer::Done => Ok(()),
        other => bail!("the other process sent {other:?}, not Done"),
    }
}
