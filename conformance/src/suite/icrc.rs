//! The invariant CRC, in both directions.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use anyhow::{Context, Result, anyhow, ensure};
use rdmux_wire::icrc::{Icrc, Ipv6Pseudo};
use rdmux_wire::{Bth, Deth, HeaderBuf, Opcode, Psn, Qkey, Qpn};

use super::guest::{WAIT, wait_for};
use super::{Check, Family, Guest, Outcome, Place};

pub(super) const ROWS: &[&str] = &[
    "ICRC: every frame, both directions",
    "ICRC: the kernel took all that we sent",
    "ICRC: the kernel drops a wrong one",
    "ICRC: rdmux drops and counts a wrong one",
];

/// Decodes the traffic on the wire, then sends datagrams with correct and with wrong checksums.
pub(super) fn run(guest: &Guest, check: &Check) -> Vec<Outcome> {
    let mut taken = Err(anyhow!("not reached"));
    let frames = frames(guest, check, &mut taken);
    vec![frames, taken, kernel_drops(guest), we_drop(guest)]
}

/// Captures the traffic while both sides ping each other, and decodes it by `rdmux decode`.
fn frames(guest: &Guest, check: &Check, taken: &mut Outcome) -> Result<()> {
    let file = "/tmp/icrc.pcap";
    let dev = Place::Kernel.interface();
    let args = ["-i", dev, "-U", "-s", "0", "-w", file, "udp", "port", "4791"];
    let args = [&["--immediate-mode"], &args[..]].concat();
    let mut dump = guest.start(Place::Kernel, "tcpdump", &args)?;
    dump.says("listening on", guest.timeout())?;
    let before = final_counts()?;
    for family in [Family::V4, Family::V6] {
        super::rping::ping(guest, &Check { family, ..check.clone() }, 4000)?;
    }
    // The frames that rdmux sent, once there are some of both sides and families, and those that the kernel accepted.
    let seen = || {
        // `rdmux decode` fails at a wrong checksum.
        let decoded = guest.must(Place::Kernel, "rdmux", &["decode", file])?;
        let from = |place: Place| {
            let arrows = [Family::V4, Family::V6].map(|f| format!("{} > ", place.address(f)));
            arrows.map(|arrow| decoded.lines().filter(|l| l.contains(&arrow)).count() as u64)
        };
        let [v4, v6] = from(Place::Rdmux);
        let complete = v6 > 0 && v4 + v6 > 20 && !from(Place::Kernel).contains(&0);
        let taken = taken_by_kernel()? - before;
        anyhow::Ok(complete.then_some((v4 + v6, taken)))
    };
    wait_for("frames of both sides and families", WAIT, || Ok(seen()?.is_some()))?;
    // The last ones may not be in the file yet, or not counted.
    let mut last = None;
    let all = wait_for("the kernel to accept all frames", WAIT / 4, || {
        last = seen()?;
        Ok(last.is_some_and(|(ours, taken)| ours == taken))
    });
    *taken = all.with_context(|| format!("(sent, accepted) is {last:?}"));
    Ok(())
}

/// Returns the number of packets that the kernel's driver received with a correct checksum. It updates its counters
/// every 12 ms.
fn taken_by_kernel() -> Result<u64> {
    let file = "/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts";
    Ok(fs::read_to_string(file).context(file)?.trim().parse()?)
}

/// The kernel reports no dropped packets, but counts accepted ones, in order: when it has counted the correct
/// packet after a wrong one, it has dropped the wrong one.
fn kernel_drops(guest: &Guest) -> Result<()> {
    let to = Place::Kernel.address(Family::V6);
    let before = final_counts()?;
    guest.must(Place::Rdmux, "peer-suite", &["datagram", "--wrong", to])?;
    guest.must(Place::Rdmux, "peer-suite", &["datagram", to])?;
    wait_for("the kernel to accept a correct datagram", WAIT, || Ok(taken_by_kernel()? > before))?;
    let taken = final_counts()? - before;
    ensure!(taken == 1, "the kernel accepted {taken} of a wrong and a correct datagram");
    Ok(())
}

/// Returns the kernel's counter once it is stable, so that nothing is in flight any more.
fn final_counts() -> Result<u64> {
    let (mut last, mut same) = (taken_by_kernel()?, 0);
    wait_for("the kernel's counter to be stable", WAIT, || {
        let now = taken_by_kernel()?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        Ok(same == 50)
    })?;
    Ok(last)
}

fn we_drop(guest: &Guest) -> Result<()> {
    let _service = guest.our_service()?;
    let to = Place::Rdmux.address(Family::V6);
    let counted = || guest.counter("service_drop_icrc");
    let before = counted()?;
    guest.must(Place::Kernel, "peer-suite", &["datagram", to])?;
    ensure!(counted()? == before, "rdmux dropped a correct datagram");
    guest.must(Place::Kernel, "peer-suite", &["datagram", "--wrong", to])?;
    wait_for("the counter to rise", WAIT, || Ok(counted()? > before))
}

/// Sends a management datagram to QP1, with a correct checksum or a wrong one. Over IPv6, because there the checksum
/// covers no header field that a plain socket does not know.
///
/// # Errors
/// The socket's.
pub fn send_datagram(to: Ipv6Addr, wrong: bool) -> Result<()> {
    let bth = Bth { mig_req: true, ..Bth::new(Opcode::UD_SEND_ONLY, Qpn::QP1, Psn::new(1)) };
    let deth = Deth { qkey: Qkey::QP1, src_qpn: Qpn::QP1 };
    let mut packet = HeaderBuf::new(&bth).deth(&deth).as_slice().to_vec();
    packet.extend_from_slice(&[0; 256]);

    let probe = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    probe.connect((to, 4791))?;
    let IpAddr::V6(src) = probe.local_addr()?.ip() else {
        return Err(anyhow!("the probe's address is not IPv6"));
    };
    let socket = UdpSocket::bind((src, 0))?;
    let udp_len = u16::try_from(8 + packet.len() + Icrc::LEN)?;
    let src_port = socket.local_addr()?.port();
    let pseudo = Ipv6Pseudo { src, dst: to, src_port, dst_port: 4791, udp_len };
    let mut icrc = Icrc::ipv6(&pseudo);
    icrc.update(&packet);
    let mut sum = icrc.finish();
    if wrong {
        sum[0] ^= 1;
    }
    packet.extend_from_slice(&sum);
    socket.send_to(&packet, (to, 4791))?;
    Ok(())
}
