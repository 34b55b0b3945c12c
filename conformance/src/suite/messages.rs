//! `ucmatose` and `rdmux cmtest`: several connections at once, messages both ways, disconnect.

use anyhow::{Result, ensure};

use super::{Asks, Check, Guest, Place};

/// Both programs must end well, and the kernel's must say so: its exit status is not enough.
pub(super) fn run(guest: &Guest, check: &Check) -> Result<()> {
    let to = check.asks.server().address(check.family);
    let port = guest.port().to_string();
    let load = ["-c", "5", "-C", "20", "-S", "3000", "-p", &port];
    let serve = ["-b", to];
    let ask = ["-s", to];
    let ours = |role: &[&'static str]| [&["cmtest", "--timeout", "60"], role, &load[..]].concat();
    let theirs = |role: &[&'static str]| [role, &load[..]].concat();
    let (mut server, mut client) = match check.asks {
        Asks::Rdmux => {
            let server = guest.start(Place::Kernel, "ucmatose", &theirs(&serve))?;
            guest.kernel_listens(guest.port())?;
            (server, guest.start(Place::Rdmux, "rdmux", &ours(&ask))?)
        }
        Asks::Kernel => {
            let mut server = guest.start(Place::Rdmux, "rdmux", &ours(&serve))?;
            server.says("waiting for", guest.patience())?;
            (server, guest.start(Place::Kernel, "ucmatose", &theirs(&ask))?)
        }
    };
    client.succeed(guest.patience())?;
    server.succeed(guest.patience())?;
    let kernel = if check.asks == Asks::Rdmux { server.output() } else { client.output() };
    ensure!(kernel.contains("return status 0"), "ucmatose does not say that it went well");
    Ok(())
}
