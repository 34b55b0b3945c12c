//! `ucmatose` and `rdmux cmtest`: several connections at once, messages both ways, disconnect.

use anyhow::{Result, bail, ensure};

use super::{Asks, Check, Guest, Place};

/// How often a row is run if the wire lost its last acknowledgement, before that counts as a failure.
const TRIES: u32 = 4;

/// Checks that both programs exit successfully, and that the kernel's output reports success: its exit status is not enough.
///
/// `ucmatose` disconnects when it has received everything. Its queue pairs then fail and answer no
/// further packets. If the wire has just lost the acknowledgement of the last message, it is not sent
/// again, and the client's retries are exhausted though everything arrived. That is no fault of either side, and the
/// row is run again.
pub(super) fn run(guest: &Guest, check: &Check) -> Result<()> {
    for n in 1..=TRIES {
        match exchange(guest, check)? {
            End::Acknowledged => return Ok(()),
            End::Unacknowledged => println!(
                "     # try {n} of {TRIES}: all messages arrived, then the wire lost an acknowledgement that \
                 the disconnected server does not repeat"
            ),
        }
    }
    bail!("the wire lost the last acknowledgement {TRIES} times")
}

/// The end of an exchange.
enum End {
    /// Both sides succeeded.
    Acknowledged,
    /// The server received all and disconnected; rdmux's client does not know of the first.
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
            ensure!(
                all && server.output().contains("return status 0"),
                "the server did not receive all messages"
            );
            return Ok(End::Unacknowledged);
        }
    }
    client_ended?;
    server.succeed(guest.timeout())?;
    let kernel = if check.asks == Asks::Rdmux { server.output() } else { client.output() };
    ensure!(kernel.contains("return status 0"), "ucmatose did not report success");
    Ok(End::Acknowledged)
}
