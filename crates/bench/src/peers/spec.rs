//! The table of measurements, with their references and the goals of the ratios.

use clap::ValueEnum;
use serde::Serialize;

use super::super::stats::Unit;
use super::figure::Ratio;

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Row {
    /// ib_send_lat, 8 B, same host
    SendLat,
    /// ib_write_lat, 8 B, same host
    WriteLat,
    /// ib_write_bw, 1 MiB, same host
    WriteBw,
    /// ib_read_bw, 1 MiB, same host
    ReadBw,
    /// ib_send_bw, 1 MiB, same host
    SendBw,
    /// ib_send_bw, 8 B, same host: messages per second
    Rate,
    /// ib_write_bw, 64 KiB, between hosts, compared with iperf3
    UdpBw,
    /// The same compared with ucx_perftest over TCP
    UdpUcx,
    /// ib_send_lat, 64 B, between hosts
    UdpLat,
    /// ib_write_bw, 64 KiB, between hosts, with loss
    LossBw,
    /// ib_send_lat, 64 B, between hosts, with loss
    LossLat,
    /// ib_send_lat, 8 B, same host, on InfiniBand compared with RoCE
    IbLat,
    /// ib_write_bw, 64 KiB, likewise
    IbBw,
    /// ib_write_bw, 1 MiB, likewise
    IbLongBw,
    /// ib_send_lat, 8 B, on InfiniBand, between two virtual hosts compared with the same host
    IbHostsLat,
    /// ib_write_bw, 64 KiB, likewise
    IbHostsBw,
    /// ib_write_bw, 1 MiB, likewise
    IbHostsLongBw,
    /// ib_write_bw, 64 KiB, over UDP between hosts, on InfiniBand compared with RoCE
    IbUdpBw,
    /// ib_write_bw in a guest, compared with rxe
    GuestBw,
    /// ib_send_lat in a guest, compared with rxe
    GuestLat,
    /// cmtime in a guest, compared with rxe
    GuestCm,
    /// cmtime, 1,000 connections
    Connect,
    /// Memory of idle connected queue pairs
    Memory,
    /// OpenSM brings up 10,368 adapters on rdmux's fabric, compared with ibsim
    Opensm,
    /// The fabric's own manager brings up 10,368 adapters, compared with OpenSM on ibsim
    SubnetUp,
    /// Memory of fabric and manager afterwards
    SubnetMemory,
    /// PathRecords by GID at 3,240 nodes, one at a time, compared with OpenSM on the same fabric
    Path,
    /// The same, 64 at a time
    Paths,
    /// Joins of multicast groups, 16 at a time, compared with OpenSM on the same fabric
    Joins,
    /// Time of a PathRecord query at 10,368 nodes compared with 648
    PathGrowth,
    /// A cached resolve through ACM's socket, compared with a ping-pong of the same bytes
    AcmLat,
    /// Cached resolves through ACM's socket by 64 clients, compared with Debian's ibacm on the same fabric
    AcmRate,
    /// Cached resolves through libibacm, compared with Debian's ibacm through its socket
    AcmLibrary,
    /// Resolves by multicast between two hosts, compared with Debian's ibacm
    AcmCold,
    /// 64 hosts resolve each other, compared with a query to subnet administration for each pair
    AcmPairs,
    /// The same with OpenSM as subnet administration
    AcmPairsOpensm,
}

/// The specification of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) what: &'static str,
    /// The reference; empty if there is none.
    pub(super) peer: &'static str,
    pub(super) unit: Unit,
    pub(super) ratio: Ratio,
    /// The minimum ratio (for times, the maximum) and the aim; without them the row is only reported. For a row
    /// without a reference these are values, in its unit.
    pub(super) goals: Option<(f64, f64)>,
}

const TIME: Unit = Unit::Seconds;
const BYTES: Unit = Unit::BytesPerSecond;
const OPENSM: &str = "opensm on our fabric";
const ROCE: &str = "the same on RoCE";
const SAME: &str = "the same, same host";

impl Row {
    /// Returns whether the row is measured in a guest, together with all such rows.
    pub(super) const fn is_in_guest(self) -> bool {
        matches!(self, Self::GuestBw | Self::GuestLat | Self::GuestCm)
    }

    /// Returns the row's specification, with the goals.
    pub(super) const fn spec(self) -> Spec {
        let (what, peer, unit) = match self {
            Self::SendLat => ("ib_send_lat 8 B, same host", "ucx tag_lat, posix", TIME),
            Self::WriteLat => ("ib_write_lat 8 B, same host", "process_vm_writev and a line", TIME),
            Self::WriteBw => ("ib_write_bw 1 MiB, same host", "process_vm_writev", BYTES),
            Self::ReadBw => ("ib_read_bw 1 MiB, same host", "process_vm_readv", BYTES),
            Self::SendBw => ("ib_send_bw 1 MiB, same host", "ucx tag_bw, cma", BYTES),
            Self::Rate => ("ib_send_bw 8 B, same host", "ucx tag_bw, posix", Unit::Messages),
            Self::UdpBw => ("ib_write_bw 64 KiB, two hosts", "iperf3, one stream", BYTES),
            Self::UdpUcx => ("ib_write_bw 64 KiB, two hosts", "ucx tag_bw, tcp", BYTES),
            Self::UdpLat => ("ib_send_lat 64 B, two hosts", "UDP ping-pong, polling", TIME),
            Self::LossBw => ("ib_write_bw 64 KiB, 1 % loss", "the same without loss", BYTES),
            Self::LossLat => ("ib_send_lat 64 B, 1 % loss", "the same without loss", TIME),
            Self::IbLat => ("ib_send_lat 8 B, InfiniBand, same host", ROCE, TIME),
            Self::IbBw => ("ib_write_bw 64 KiB, InfiniBand, same host", ROCE, BYTES),
            Self::IbLongBw => ("ib_write_bw 1 MiB, InfiniBand, same host", ROCE, BYTES),
            Self::IbHostsLat => ("ib_send_lat 8 B, InfiniBand, two hosts", SAME, TIME),
            Self::IbHostsBw => ("ib_write_bw 64 KiB, InfiniBand, two hosts", SAME, BYTES),
            Self::IbHostsLongBw => ("ib_write_bw 1 MiB, InfiniBand, two hosts", SAME, BYTES),
            Self::IbUdpBw => ("ib_write_bw 64 KiB, InfiniBand over UDP", ROCE, BYTES),
            Self::GuestBw => ("ib_write_bw 64 KiB, in a guest", "rxe", BYTES),
            Self::GuestLat => ("ib_send_lat 8 B, in a guest", "rxe", TIME),
            Self::GuestCm => ("cmtime connections, in a guest", "rxe", Unit::PerSecond),
            Self::Connect => ("cmtime, each of 1,000", "TCP connect, accept, close", TIME),
            Self::Opensm => ("opensm, 10,368 adapters", "opensm on ibsim", TIME),
            Self::SubnetUp => {
                ("own manager in the fabric, 10,368 up", "opensm -n 64 on ibsim, by sockets", TIME)
            }
            Self::SubnetMemory => ("its memory, with the fabric", "opensm and ibsim", Unit::Bytes),
            Self::Path => ("paths by GID, 3,240 nodes", OPENSM, Unit::PerSecond),
            Self::Paths => ("paths, 64 outstanding", OPENSM, Unit::PerSecond),
            Self::Joins => ("multicast joins, 16 outstanding", OPENSM, Unit::PerSecond),
            Self::PathGrowth => ("a path, 10,368 nodes", "648 nodes", TIME),
            Self::AcmLat => {
                ("cached resolve by ACM's socket", "Unix-socket ping-pong, same bytes", TIME)
            }
            Self::AcmRate => ("cached resolves, 64 clients", "ibacm", Unit::PerSecond),
            Self::AcmLibrary => {
                ("cached resolves by libibacm", "ibacm by its socket", Unit::PerSecond)
            }
            Self::AcmCold => ("resolve by multicast, two hosts", "ibacm", TIME),
            Self::AcmPairs => ("64 hosts, 4,032 pairs, by ACM", "a path query for each pair", TIME),
            Self::AcmPairsOpensm => {
                ("the same, OpenSM on our fabric", "a path query for each pair to OpenSM", TIME)
            }
            Self::Memory => ("each of 10,000 idle queue pairs", "", Unit::Bytes),
        };
        let (ratio, goals) = self.goals();
        Spec { what, peer, unit, ratio, goals }
    }

    const fn goals(self) -> (Ratio, Option<(f64, f64)>) {
        match self {
            Self::SendLat => (Ratio::Less, Some((1.5, 0.9))),
            Self::WriteLat => (Ratio::Less, Some((1.5, 1.1))),
            Self::WriteBw | Self::ReadBw => (Ratio::More, Some((0.85, 0.97))),
            Self::SendBw => (Ratio::More, Some((0.7, 1.0))),
            Self::Rate => (Ratio::More, Some((0.5, 1.2))),
            Self::UdpBw => (Ratio::More, Some((1.5, 3.0))),
            Self::UdpUcx => (Ratio::More, None),
            Self::UdpLat => (Ratio::Less, Some((1.5, 1.15))),
            Self::LossBw => (Ratio::More, Some((0.5, 0.8))),
            Self::LossLat => (Ratio::Inverse, Some((0.5, 0.8))),
            Self::IbLat | Self::IbHostsLat => (Ratio::Less, Some((1.15, 1.0))),
            Self::IbBw | Self::IbLongBw => (Ratio::More, Some((0.95, 1.0))),
            Self::IbHostsBw | Self::IbHostsLongBw | Self::IbUdpBw => {
                (Ratio::More, Some((0.9, 1.0)))
            }
            Self::GuestBw => (Ratio::More, Some((5.0, 15.0))),
            Self::GuestLat => (Ratio::Less, Some((0.5, 0.2))),
            Self::GuestCm => (Ratio::More, Some((3.0, 10.0))),
            Self::Connect => (Ratio::Less, Some((6.0, 2.0))),
            Self::Opensm => (Ratio::Less, Some((1.0, 0.6))),
            Self::SubnetUp => (Ratio::Less, Some((0.35, 0.1))),
            Self::SubnetMemory => (Ratio::Less, Some((0.3, 0.15))),
            Self::Path => (Ratio::More, Some((1.5, 3.0))),
            Self::Paths => (Ratio::More, Some((2.0, 5.0))),
            Self::Joins => (Ratio::More, Some((1.5, 4.0))),
            Self::PathGrowth => (Ratio::Less, Some((1.3, 1.0))),
            Self::AcmLat => (Ratio::Less, Some((2.0, 1.2))),
            Self::AcmRate => (Ratio::More, Some((1.0, 1.5))),
            Self::AcmLibrary => (Ratio::More, Some((5.0, 20.0))),
            Self::AcmCold => (Ratio::Less, Some((1.0, 0.5))),
            Self::AcmPairs | Self::AcmPairsOpensm => (Ratio::Less, Some((0.5, 0.1))),
            Self::Memory => (Ratio::Less, Some((16384.0, 4096.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aim_of_each_row_is_stricter_than_its_minimum() {
        for row in Row::value_variants() {
            let Spec { ratio, goals: Some((at_least, aim)), .. } = row.spec() else { continue };
            assert_eq!(aim < at_least, ratio == Ratio::Less, "{row:?}");
        }
    }
}
