//! `mckey` and `rdmux mctest`: datagrams to a group, and IGMP reports of the membership.

use anyhow::{Result, anyhow, ensure};

use super::guest::WAIT;
use super::{Asks, Check, Family, Guest, Outcome, Place};

pub(super) const ROWS: &[&str] = &[
    "mckey: datagrams to a group",
    "multicast: member in /proc/net/igmp",
    "multicast: join and leave on the wire",
];

const COUNT: &str = "10";

/// The client sends to the group, the other side receives.
pub(super) fn run(guest: &Guest, check: &Check) -> Vec<Outcome> {
    let mut igmp = Err(anyhow!("not reached"));
    let mut wire = Err(anyhow!("not reached"));
    let datagrams = exchange(guest, check, &mut igmp, &mut wire);
    vec![datagrams, igmp, wire]
}

fn exchange(guest: &Guest, check: &Check, igmp: &mut Outcome, wire: &mut Outcome) -> Result<()> {
    let group = format!("239.77.{}.{}", check.part, guest.port() % 200);
    let dev = Place::Kernel.interface();
    let mut dump = guest.start(
        Place::Kernel,
        "tcpdump",
        &["-i", dev, "-n", "-l", "-v", "--immediate-mode", "igmp"],
    )?;
    dump.says("listening on", guest.timeout())?;
    let kernel = Place::Kernel.address(Family::V4);
    let ours = Place::Rdmux.address(Family::V4);
    // mckey's output would be delayed by buffering when it is a file.
    let mckey = ["-oL", "mckey", "-m", &group, "-b", kernel, "-C", COUNT, "-S", "100"];
    let mctest = ["mctest", "--timeout", "60", "-m", &group, "-b", ours, "-C", COUNT, "-S", "100"];
    // Long enough to see the sender's membership.
    let send = ["--sender", "--delay", "3000"];
    let (mut receiver, mut sender);
    match check.asks {
        Asks::Rdmux => {
            receiver = guest.start(Place::Kernel, "stdbuf", &mckey)?;
            receiver.says("joined dgid", guest.timeout())?;
            sender = guest.start(Place::Rdmux, "rdmux", &[&mctest[..], &send].concat())?;
        }
        Asks::Kernel => {
            receiver = guest.start(Place::Rdmux, "rdmux", &mctest)?;
            receiver.says("joined", guest.timeout())?;
            *igmp = guest.member(Place::Rdmux, &group, true);
            sender = guest.start(Place::Kernel, "stdbuf", &[&mckey[..], &["-s"]].concat())?;
        }
    }
    if check.asks == Asks::Rdmux {
        *igmp = guest.member(Place::Rdmux, &group, true);
    }
    sender.succeed(guest.timeout())?;
    receiver.succeed(guest.timeout())?;
    if igmp.is_ok() {
        *igmp = guest.member(Place::Rdmux, &group, false);
    }
    *wire = (|| {
        dump.says(&format!("{ours} > 224.0.0.22"), WAIT)?;
        dump.says(&format!("{group} to_ex"), WAIT)?;
        dump.says(&format!("{group} to_in"), WAIT)
    })();
    let kernel = if check.asks == Asks::Rdmux { receiver.output() } else { sender.output() };
    ensure!(kernel.contains("return status 0"), "mckey did not report success");
    Ok(())
}
