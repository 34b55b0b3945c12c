//! The rows that iWARP permits: those of RoCE whose programs leave it to the connection manager how
//! their queue pairs are connected. The others are in [`NOT_THERE`], with the reason.
//!
//! All ways between two programs are TCP, so one is enough for most.

use std::collections::BTreeSet;

use super::perftest;
use crate::row::{Device, Row, Way};

/// What iWARP does not have, by words of the titles.
pub(super) const NOT_THERE: &[(&str, &str)] = &[
    ("udaddy", "datagrams"),
    ("-f gid", "its ports have no GIDs that lead to them"),
    ("-P ib", "InfiniBand's port space"),
    ("mckey", "multicast"),
    ("-c UD", "datagrams"),
    ("-c UC", "unreliable connections"),
    ("-c XRC", "XRC"),
    ("-e dgram", "datagrams"),
    ("ud_verbs", "datagrams"),
    ("=ud_v", "datagrams"),
    ("rdma_xclient -c x", "XRC"),
    ("_pingpong -c", "the programs exchange numbers of queue pairs over a socket of their own"),
    ("ibv_xsrq_pingpong", "XRC"),
    ("rping -C 300 -v -V -q", "the program takes its queue pair to RTS before there is a stream"),
    (
        "ib_",
        "without -R the programs exchange numbers of queue pairs over a connection of their own",
    ),
    ("ucx_", "UCX takes InfiniBand and RoCE devices only"),
    ("io_demo", "UCX takes InfiniBand and RoCE devices only"),
    ("mpirun", "UCX takes InfiniBand and RoCE devices only"),
    ("fi_info", "on virtual hosts libfabric offers datagrams only"),
    ("ibv_devinfo -v", "what it shows differs: there is a row below"),
    ("test_", "rdma-core's own tests connect queue pairs by themselves, nearly all of them"),
];

/// Why a row of RoCE is none of iWARP, if it is not.
pub(super) fn why_not(title: &str) -> Option<&'static str> {
    if title.split(' ').any(|word| word == "-R") && !title.contains(" -c U") {
        return None;
    }
    NOT_THERE.iter().find(|(word, _)| title.contains(word)).map(|(_, why)| *why)
}

/// The rows of iWARP, of those of RoCE.
pub(super) fn rows(of: &[Row]) -> Vec<Row> {
    let permitted = of.iter().filter(|row| has_way(row) && why_not(&row.title).is_none());
    let devinfo = super::ibverbs_utils::devinfo_iwarp().brief(&[Way::Udp]);
    let own = [devinfo].into_iter().chain(perftest::by_stream());
    let own = own.flat_map(|exchange| Row::each(&[Way::Udp], &exchange));
    let rows = permitted.cloned().chain(own);
    let mut rows: Vec<Row> = rows.map(|row| Row { device: Device::Iw, ..row }).collect();
    mark(&mut rows);
    rows
}

/// What is brief on RoCE is so here. Of perftest, whose rows differ, CI runs each program, and all options with the
/// first program that has them, with whichever numbers.
fn mark(rows: &mut [Row]) {
    let mut known = BTreeSet::new();
    for row in rows {
        let Some((program, options)) = row.title.split_once(" -R") else { continue };
        if program.starts_with("ib_") && row.way == Way::Udp {
            let first = known.insert(options.replace(char::is_numeric, ""));
            row.brief = options.is_empty() || first;
        }
    }
}

/// Whether a row is to be in the way that it is. Where a program runs everywhere else too, it is for its
/// addresses, which iWARP has as well.
fn has_way(row: &Row) -> bool {
    let everywhere = ["rping -C 1000", "ucmatose -c 10", "cmtime", "rdma_client"];
    match row.way {
        Way::Udp => true,
        Way::Ring => !row.title.starts_with("ib_") && !row.title.starts_with("qperf"),
        _ => {
            everywhere.iter().any(|title| row.title.starts_with(title)) || row.title.contains("-e ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_one_of_a_row() {
        let all = crate::table::roce();
        for (word, why) in NOT_THERE {
            let used =
                all.iter().any(|row| row.title.contains(word) && why_not(&row.title) == Some(why));
            assert!(used, "{word}");
        }
    }

    #[test]
    fn what_is_permitted_is_there() {
        let names: Vec<String> =
            rows(&crate::table::roce()).iter().map(ToString::to_string).collect();
        for wanted in [
            "iWARP, two hosts  | rping -C 1000 -v",
            "iWARP, ::1        | cmtime -c 50",
            "iWARP, two hosts  | ib_atomic_lat -R -A CMP_AND_SWAP",
        ] {
            assert!(names.iter().any(|name| name == wanted), "{wanted}");
        }
    }
}
