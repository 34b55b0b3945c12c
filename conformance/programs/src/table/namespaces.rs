//! Two network namespaces of one user, joined by a wire: two machines, although they share all files and are in reach of each
//! other's memory. What the programs send must be seen on the wire.

use super::perftest::perftest;
use super::rdmacm_utils::rping;
use crate::exchange::Exchange;
use crate::proof::Proof::Crossed;
use crate::row::{Device, Row, Way};

/// CI runs both: what each may see and reach differs.
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
