//! The rows that iWARP permits: those of RoCE whose programs let the connection manager connect
//! their queue pairs. [`NOT_THERE`] lists the others, with reasons.
//!
//! All connections between two programs are TCP, so one configuration is enough for most.

use std::collections::BTreeSet;

use super::perftest;
use crate::row::{Device, Row, Way};

/// The features that iWARP does not have, by words of the titles.
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

/// Returns why a row of RoCE does not exist for iWARP, if it does not.
pub(super) fn why_not(title: &str) -> Option<&'static str> {
    if title.split(' ').any(|word| word == "-R") && !title.contains(" -c U") {
        return None;
    }
    NOT_THERE.iter().find(|(word, _)| title.contains(word)).map(|(_, why)| *why)
}

/// Returns the rows of iWARP, from those of RoCE.
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

/// Marks the brief rows: those that are brief on RoCE. For perftest, whose rows differ, CI runs each program, and all options with the
/// first program that has them, with any numbers.
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

/// Returns whether a row exists in its configuration. A program that runs in further ones does so for their
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
    fn iwarp_rows_contain_rping_cmtime_and_atomics() {
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
