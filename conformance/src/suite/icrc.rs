//! The invariant CRC, in both directions.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rdmux_wire::icrc::{Icrc, Ipv6Pseudo};
use rdmux_wire::{Bth, Deth, HeaderBuf, Opcode, Pkey, Psn, Qkey, Qpn};

use super::guest::wait_for;
use super::{Check, Family, Guest, Outcome, Place};

pub(super) const ROWS: &[&str] = &[
    "ICRC: every frame, both directions",
    "ICRC: the kernel took all that we sent",
    "ICRC: the kernel drops a wrong one",
    "ICRC: rdmux drops and counts a wrong one",
];

/// Decodes what crosses the wire, then sends datagrams with right and with wrong checksums.
pub(super) fn run(guest: &Guest, check: &Check) -> Vec<Outcome> {
    let mut taken = Err(anyhow!("not reached"));
    let frames = frames(guest, check, &mut taken);
    vec![frames, taken, kernel_drops(guest), we_drop(guest)]
}

/// All that crosses the wire while both sides ping each other, as `rdmux decode` sees it.
fn frames(guest: &Guest, check: &Check, taken: &mut Outcome) -> Result<()> {
    let file = "/tmp/icrc.pcap";
    let dev = Place::Kernel.interface();
    let args = ["-i", dev, "-U", "-s", "0", "-w", file, "udp", "port", "4791"];
    let args = [&["--immediate-mode"], &args[..]].concat();
    let mut dump = guest.start(Place::Kernel, "tcpdump", &args)?;
    dump.says("listening on", guest.patience())?;
    let before = taken_by_kernel()?;
    for family in [Family::V4, Family::V6] {
        super::rping::ping(guest, &Check { family, ..check.clone() }, 4000)?;
    }
    let mut ours = 0;
    wait_for("frames of both sides and families", Duration::from_secs(5), || {
        let decoded = guest.must(Place::Kernel, "rdmux", &["decode", file])?;
        let from = |place: Place, family| {
            let arrow = format!("{} > ", place.address(family));
            decoded.lines().filter(|l| l.contains(&arrow)).count() as u64
        };
        ours = from(Place::Rdmux, Family::V4) + from(Place::Rdmux, Family::V6);
        let theirs = [Family::V4, Family::V6].map(|f| from(Place::Kernel, f));
        Ok(from(Place::Rdmux, Family::V6) > 0 && ours > 20 && !theirs.contains(&0))
    })?;
    let got = taken_by_kernel()? - before;
    *taken = if got == ours { Ok(()) } else { Err(anyhow!("it took {got} of {ours} packets")) };
    Ok(())
}

/// Packets that the kernel's driver has received and whose checksum was right.
fn taken_by_kernel() -> Result<u64> {
    // The driver brings its counters up to date every 12 ms.
    sleep(Duration::from_millis(50));
    let file = "/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts";
    Ok(fs::read_to_string(file).context(file)?.trim().parse()?)
}

/// The kernel says nothing of a packet that it drops, but counts only those that it takes.
fn kernel_drops(guest: &Guest) -> Result<()> {
    let to = Place::Kernel.address(Family::V6);
    let before = taken_by_kernel()?;
    guest.must(Place::Rdmux, "peer-suite", &["datagram", to])?;
    let right = taken_by_kernel()?;
    ensure!(right == before + 1, "of one right datagram it took {}", right - before);
    guest.must(Place::Rdmux, "peer-suite", &["datagram", "--wrong", to])?;
    let wrong = taken_by_kernel()?;
    ensure!(wrong == right, "it took a wrong one");
    Ok(())
}

fn we_drop(guest: &Guest) -> Result<()> {
    let _service = guest.our_service()?;
    let to = Place::Rdmux.address(Family::V6);
    let counted = || guest.counter("service_drop_icrc");
    let before = counted()?;
    guest.must(Place::Kernel, "peer-suite", &["datagram", to])?;
    ensure!(counted()? == before, "it dropped a right one");
    guest.must(Place::Kernel, "peer-suite", &["datagram", "--wrong", to])?;
    wait_for("the counter to rise", Duration::from_secs(5), || Ok(counted()? > before))
}

/// Sends a management datagram to QP1, with a right checksum or a wrong one. Over IPv6, for there a
/// plain socket sends nothing that the checksum covers and the socket does not know.
///
/// # Errors
/// The socket's.
pub fn send_datagram(to: Ipv6Addr, wrong: bool) -> Result<()> {
    let bth = Bth {
        opcode: Opcode(0x64), // UD SEND_ONLY
        solicited: false,
        mig_req: true,
        pad: 0,
        tver: 0,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: Qpn::QP1,
        ack_req: false,
        psn: Psn::new(1),
    };
    let deth = Deth { qkey: Qkey::QP1, src_qpn: Qpn::QP1 };
    let mut packet = HeaderBuf::new(&bth).deth(&deth).as_slice().to_vec();
    packet.extend_from_slice(&[0; 256]);

    let probe = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    probe.connect((to, 4791))?;
    let IpAddr::V6(src) = probe.local_addr()?.ip() else { return Err(anyhow!("not IPv6")) };
    let socket = UdpSocket::bind((src, 0))?;
    let udp_len = u16::try_from(8 + packet.len() + Icrc::LEN)?;
    let src_port = socket.local_addr()?.port();
    let mut icrc = Icrc::ipv6(&Ipv6Pseudo { src, dst: to, src_port, udp_len });
    icrc.update(&packet);
    let mut sum = icrc.finish();
    if wrong {
        sum[0] ^= 1;
    }
    packet.extend_from_slice(&sum);
    socket.send_to(&packet, (to, 4791))?;
    Ok(())
}
