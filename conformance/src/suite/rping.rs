//! `rping` and `rdmux ping`, which use the same protocol.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::guest::Process;
use super::{Asks, Check, Guest, Place};

const COUNT: &str = "10";

/// How often a row is run if the wire lost its DREQ, before that counts as a failure.
const TRIES: u32 = 4;

/// How long a server may take to exit after the client has disconnected, before its state is checked.
const LEAVE: Duration = Duration::from_secs(5);

/// A client pings a server. Both must succeed and the kernel's side must show every ping.
///
/// The kernel's client sends DREQ once: a program that disconnects and exits at once, as `rping` does,
/// destroys its connection, and the kernel cancels retransmission before the first one is due
/// (`cm_destroy_id` cancels it in the state DREQ_SENT). When the wire loses this datagram, no server
/// of any implementation can detect the end. Then the wire is simply silent, and the row is run again.
pub(super) fn ping(guest: &Guest, check: &Check, size: u32) -> Result<()> {
    for n in 1..=TRIES {
        match exchange(guest, check, size)? {
            End::Heard => return Ok(()),
            End::Lost => println!(
                "     # try {n} of {TRIES}: all pings succeeded, then the wire lost the only DREQ \
                 that the kernel sends"
            ),
        }
    }
    bail!("the wire lost the kernel's only DREQ {TRIES} times")
}

/// The end of an exchange's server.
enum End {
    /// The server received the client's DREQ.
    Heard,
    /// The server could not receive it: the client's kernel sent DREQ once, and that was lost.
    Lost,
}

fn exchange(guest: &Guest, check: &Check, size: u32) -> Result<End> {
    let (port, size) = (guest.port().to_string(), size.to_string());
    let to = check.asks.server().address(check.family);
    let load = ["-a", to, "-p", &port, "-S", &size, "-C", COUNT];
    let kernel = |role| [&[role, "-v"], &load[..]].concat();
    let ours = |role| [&["ping", role, "--verify", "--timeout", "60"], &load[..]].concat();
    let counted = check.link.offload && check.link.loss == 0;
    // The counters are those of one service process, which must not end in between.
    let _service = if counted { Some(guest.our_service()?) } else { None };
    let before = if counted { calls(guest)? } else { (0, 0) };
    let goodbyes = guest.goodbyes()?;
    let (mut server, mut client) = match check.asks {
        Asks::Rdmux => {
            let server = guest.start(Place::Kernel, "rping", &kernel("-s"))?;
            guest.kernel_listens(guest.port())?;
            (server, guest.start(Place::Rdmux, "rdmux", &ours("-c"))?)
        }
        Asks::Kernel => {
            let mut server = guest.start(Place::Rdmux, "rdmux", &ours("-s"))?;
            server.says("waiting for clients", guest.timeout())?;
            (server, guest.start(Place::Kernel, "rping", &kernel("-c"))?)
        }
    };
    ended(&mut client, guest.timeout())?;
    let mut end = End::Heard;
    if check.asks == Asks::Kernel
        && check.link.loss > 0
        && server.finish(LEAVE).is_err()
        && guest.goodbye_was_lost(goodbyes)?
    {
        end = End::Lost;
    } else {
        ended(&mut server, guest.timeout())?;
    }
    let kernel = if check.asks == Asks::Rdmux { &server } else { &client };
    let shown = kernel.output().matches("ping data: rdma-ping-").count();
    ensure!(shown.to_string() == COUNT, "the kernel's side shows {shown} pings, not {COUNT}");
    if counted {
        let after = calls(guest)?;
        let (packets, calls) = (after.0 - before.0, after.1 - before.1);
        ensure!(packets > 2 * calls, "{packets} packets in {calls} system calls: no offload");
    }
    Ok(end)
}

/// Waits for the end of a program, which must succeed, with one exception for `rping`: at its
/// end it destroys the event channel while another of its threads may be about to read an event, and then
/// fails although everything is done (`cm_thread` in librdmacm/examples/rping.c).
///
/// # Errors
/// When it does not end in time or fails.
pub(super) fn ended(process: &mut Process, timeout: Duration) -> Result<()> {
    const CLOSED: &str = "rdma_get_cm_event: Bad file descriptor";
    process
        .succeed(timeout)
        .or_else(|e| if process.said().trim_end().ends_with(CLOSED) { Ok(()) } else { Err(e) })
}

/// Returns the packets that rdmux sent, and the system calls for them.
fn calls(guest: &Guest) -> Result<(u64, u64)> {
    Ok((guest.counter("tx_packets")?, guest.counter("tx_calls")?))
}

/// A client finds no listener: it must be refused, with the reason.
pub(super) fn refused(guest: &Guest, check: &Check) -> Result<()> {
    let port = guest.port().to_string();
    let to = check.asks.server().address(check.family);
    // rdmux's service must run to refuse.
    let _service = guest.our_service()?;
    let mut client = match check.asks {
        Asks::Kernel => guest.start(Place::Kernel, "rping", &["-c", "-a", to, "-p", &port])?,
        Asks::Rdmux => {
            guest.start(Place::Rdmux, "rdmux", &["ping", "-c", "-a", to, "-p", &port])?
        }
    };
    let status = client.finish(guest.timeout())?;
    let said = client.output();
    ensure!(!status.success(), "the client succeeded although nothing listens");
    let told = match check.asks {
        Asks::Kernel => said.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        Asks::Rdmux => said.contains("reason 8"),
    };
    ensure!(told, "the client did not report a rejection with reason 8: {}", said.trim());
    Ok(())
}
