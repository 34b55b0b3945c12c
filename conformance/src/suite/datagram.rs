//! `udaddy` and `rdmux udtest`: service ID resolution, then datagrams both ways.

use anyhow::{Result, ensure};

use super::{Asks, Check, Guest, Place};

/// The port, which cannot be changed in udaddy.
const PORT: u16 = 7174;

/// Checks that both programs exit successfully, and that the kernel's output reports success: its exit status is not enough.
pub(super) fn run(guest: &Guest, check: &Check) -> Result<()> {
    let to = check.asks.server().address(check.family);
    let load = ["-c", "5", "-C", "20", "-S", "900"];
    let serve = ["-b", to];
    let ask = ["-s", to];
    let ours = |role: &[&'static str]| [&["udtest", "--timeout", "60"], role, &load[..]].concat();
    let theirs = |role: &[&'static str]| [role, &load[..]].concat();
    let (mut server, mut client) = match check.asks {
        Asks::Rdmux => {
            let server = guest.start(Place::Kernel, "udaddy", &theirs(&serve))?;
            guest.kernel_listens(PORT)?;
            (server, guest.start(Place::Rdmux, "rdmux", &ours(&ask))?)
        }
        Asks::Kernel => {
            let mut server = guest.start(Place::Rdmux, "rdmux", &ours(&serve))?;
            server.says("waiting for", guest.timeout())?;
            (server, guest.start(Place::Kernel, "udaddy", &theirs(&ask))?)
        }
    };
    client.succeed(guest.timeout())?;
    server.succeed(guest.timeout())?;
    let kernel = if check.asks == Asks::Rdmux { server.output() } else { client.output() };
    ensure!(kernel.contains("return status 0"), "udaddy did not report success");
    Ok(())
}
