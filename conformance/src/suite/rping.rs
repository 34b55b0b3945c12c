//! `rping` and `rdmux ping`, which speak the same exchange.

use anyhow::{Result, ensure};

use super::{Asks, Check, Guest, Place};

const COUNT: &str = "10";

/// A client pings a server; both must be content and the kernel's side must show every ping.
pub(super) fn ping(guest: &Guest, check: &Check, size: u32) -> Result<()> {
    let (port, size) = (guest.port().to_string(), size.to_string());
    let to = check.asks.server().address(check.family);
    let load = ["-a", to, "-p", &port, "-S", &size, "-C", COUNT];
    let kernel = |role| [&[role, "-v"], &load[..]].concat();
    let ours = |role| [&["ping", role, "--verify", "--timeout", "60"], &load[..]].concat();
    let before = calls(guest)?;
    let (mut server, mut client) = match check.asks {
        Asks::Rdmux => {
            let server = guest.start(Place::Kernel, "rping", &kernel("-s"))?;
            guest.kernel_listens(guest.port())?;
            (server, guest.start(Place::Rdmux, "rdmux", &ours("-c"))?)
        }
        Asks::Kernel => {
            let mut server = guest.start(Place::Rdmux, "rdmux", &ours("-s"))?;
            server.says("waiting for clients", guest.patience())?;
            (server, guest.start(Place::Kernel, "rping", &kernel("-c"))?)
        }
    };
    client.succeed(guest.patience())?;
    server.succeed(guest.patience())?;
    let kernel = if check.asks == Asks::Rdmux { &server } else { &client };
    let shown = kernel.output().matches("ping data: rdma-ping-").count();
    ensure!(shown.to_string() == COUNT, "the kernel's side shows {shown} pings, not {COUNT}");
    if check.link.offload && check.link.loss == 0 {
        let after = calls(guest)?;
        let (packets, calls) = (after.0 - before.0, after.1 - before.1);
        ensure!(packets > 2 * calls, "{packets} packets in {calls} system calls: no offload");
    }
    Ok(())
}

/// Packets that we sent, and the system calls that it took.
fn calls(guest: &Guest) -> Result<(u64, u64)> {
    Ok((guest.counter("tx_packets")?, guest.counter("tx_calls")?))
}

/// A client finds no listener: it must be told so, with the reason.
pub(super) fn refused(guest: &Guest, check: &Check) -> Result<()> {
    let port = guest.port().to_string();
    let to = check.asks.server().address(check.family);
    // Something of ours must be there to refuse.
    let _service = guest.our_service()?;
    let mut client = match check.asks {
        Asks::Kernel => guest.start(Place::Kernel, "rping", &["-c", "-a", to, "-p", &port])?,
        Asks::Rdmux => {
            guest.start(Place::Rdmux, "rdmux", &["ping", "-c", "-a", to, "-p", &port])?
        }
    };
    let status = client.finish(guest.patience())?;
    let said = client.output();
    ensure!(!status.success(), "it succeeded");
    let told = match check.asks {
        Asks::Kernel => said.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        Asks::Rdmux => said.contains("reason 8"),
    };
    ensure!(told, "not told that it was rejected with reason 8: {}", said.trim());
    Ok(())
}
