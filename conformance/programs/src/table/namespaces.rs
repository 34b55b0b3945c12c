//! Two network namespaces of one user, joined by a wire. They act as two machines, although they share all files and can reach each
//! other's memory. The programs' data must be seen on the wire.

use super::ibverbs_utils::pingpong;
use super::perftest::perftest;
use super::rdmacm_utils::{mckey, rping};
use crate::exchange::Exchange;
use crate::proof::Proof::Crossed;
use crate::row::{Device, Row, Way};

/// CI runs both: the two have different access rights.
const WAYS: &[Way] = &[Way::Namespaces, Way::UserNamespaces];

pub(super) fn rows() -> Vec<Row> {
    let roce = [
        (perftest("ib_write_bw", "-s 65536 -n 1000"), 65_536_000),
        (perftest("ib_send_bw", "-R -s 65536 -n 1000"), 65_536_000),
        (rping("-C 300 -v -S 1000", 300), 600_000),
    ];
    let iwarp = [
        (perftest("ib_write_bw", "-R -s 65536 -n 1000"), 65_536_000),
        (rping("-C 300 -v -S 1000", 300), 600_000),
    ];
    let mut rows = Vec::new();
    for (device, exchanges) in [(Device::Roce, &roce[..]), (Device::Iw, &iwarp)] {
        for (exchange, bytes) in exchanges {
            let exchange: Exchange = exchange.clone().proof(Crossed(*bytes)).brief(WAYS);
            let each = Row::each(WAYS, &exchange);
            rows.extend(each.into_iter().map(|row| Row { device, ..row }));
        }
    }
    rows
}

/// Returns rows by LID and by IP address, on a fabric of one of the two machines that the other has joined: packets of 4,096 bytes over a
/// wire with an MTU of 1,500. In the first way the fabric has its own manager, in the other OpenSM runs on the fabric's machine.
pub(super) fn infiniband() -> Vec<Row> {
    let by_lid = |exchange: Exchange| {
        exchange.lines(|line| line.replace(" -x {gid}", "").replace(" -g {gid}", ""))
    };
    let exchanges = [
        (perftest("ib_write_bw", "-s 65536 -n 1000"), 65_536_000),
        (perftest("ib_send_bw", "-s 65536 -n 1000"), 65_536_000),
        (perftest("ib_read_bw", "-s 65536 -n 500"), 32_768_000),
        (pingpong("rc", "-n 1000"), 8_192_000),
        (pingpong("ud", "-n 1000"), 2_048_000),
        (perftest("ib_send_bw", "-R -s 65536 -n 1000"), 65_536_000),
        (rping("-C 300 -v -S 1000", 300), 600_000),
        (mckey("-m {group}", ""), 20_000),
    ];
    let mut rows = Vec::new();
    for (exchange, bytes) in exchanges {
        let exchange = by_lid(exchange).proof(Crossed(bytes)).brief(WAYS);
        let each = Row::each(WAYS, &exchange);
        rows.extend(each.into_iter().map(|row| Row { device: Device::Ib, ..row }));
    }
    rows
}
