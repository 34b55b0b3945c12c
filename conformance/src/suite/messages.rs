//! `ucmatose` and `rdmux cmtest`: several connections at once, messages both ways, disconnect.

use anyhow::{Result, bail, ensure};

use super::{Asks, Check, Guest, Place};

/// How often a row is run whose last acknowledgement the wire swallowed, before that counts as a failure.
const TRIES: u32 = 4;

/// Both programs must end well, and the kernel's must say so: its exit status is not enough.
///
/// `ucmatose` disconnects when it has received all, by which its queue pairs fail and answer nothing
/// more. If the wire has just lost the acknowledgement of a last message, it cannot be asked for
/// again, and the client's retries run out though everything arrived: that is no fault of either, and the
/// row is run again.
pub(super) fn run(guest: &Guest, check: &Check) -> Result<()> {
    for n in 1..=TRIES {
        match exchange(guest, check)? {
            End::Acknowledged => return Ok(()),
            End::Unacknowledged => println!(
                "     # try {n} of {TRIES}: all arrived, then the wire lost an acknowledgement that \
                 the disconnected server does not repeat"
            ),
        }
    }
    bail!("the wire lost the last acknowledgement {TRIES} times")
}

/// How an exchange came to its end.
enum End {
    /// As it should.
    Acknowledged,
    /// The server got all and disconnected; our client does not know of the first.
    Unacknowledged,
}

fn exchange(guest: &Guest, check: &Check) -> Result<End> {
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
            server.says("waiting for", guest.timeout())?;
            (server, guest.start(Place::Kernel, "ucmatose", &theirs(&ask))?)
        }
    };
    let client_ended = client.succeed(guest.timeout());
    if client_ended.is_err() && check.asks == Asks::Rdmux && check.link.loss > 0 {
        let unanswered = client.output().contains("no answer from the peer after all retries");
        if unanswered && server.succeed(guest.timeout()).is_ok() {
            let all = server.output().contains("data transfers complete");
            ensure!(all && server.output().contains("return status 0"), "the server misses some");
            return Ok(End::Unacknowledged);
        }
    }
    client_ended?;
    server.succeed(guest.timeout())?;
    let kernel = if check.asks == Asks::Rdmux { server.output() } else { client.output() };
    ensure!(kernel.contains("return status 0"), "ucmatose does not say that it went well");
    Ok(End::Acknowledged)
}
