//! The rows of InfiniBand: those of RoCE whose programs connect by IP address, or connect queue pairs by themselves, by LID without a GRH
//! and, for the first of each kind, with one. [`NOT_THERE`] lists the others, with reasons. Rows that are brief on RoCE are so here.

use std::collections::BTreeSet;

use super::rdmacm_utils::mckey;
use crate::row::{Device, Row, Run, Way};

/// The unsupported features, by words of the titles.
const NOT_THERE: &[(&str, &str)] = &[
    ("ibv_devi", "what it shows differs, and the management rows look at it"),
    ("ibv_asyncwatch", "events come when a manager does something: the management rows have that"),
    ("ucx_info", "what it shows differs"),
    ("mckey -M", "GIDs of groups differ, and have rows of their own"),
];

/// The configurations of the rows.
const WAYS: &[Way] = &[Way::Ring, Way::Udp, Way::Default, Way::Loopback6];

/// The options of the rows that also run with a GRH.
const WITH_GRH: &[&str] = &[
    "ibv_rc_pingpong -c -n 1000",
    "ibv_uc_pingpong -c -n 1000",
    "ibv_ud_pingpong -c -n 1000",
    "ibv_xsrq_pingpong -n 1000",
    "ib_send_bw -a -n 50",
    "ib_send_lat -c UD",
    "ib_send_lat -c XRC",
    "ib_write_bw",
    "ib_read_bw -a -n 50",
    "ib_atomic_bw -A CMP_AND_SWAP",
];

/// The options of the rows that CI also runs on a fabric that OpenSM manages.
const UNDER_OPENSM: &[&str] = &[
    "ibv_rc_pingpong -c -n 1000",
    "ib_write_bw",
    "rping -C 1000 -v",
    "mckey -m {group} -c 2 -C 20 -S 500",
];

/// The options of the row that also runs with ACM.
const BY_ACM: &str = "rping -C 1000 -v";

/// Returns why a row of RoCE does not exist for InfiniBand, if it does not.
fn why_not(title: &str) -> Option<&'static str> {
    NOT_THERE.iter().find(|(word, _)| title.contains(word)).map(|(_, why)| *why)
}

/// Returns the rows of InfiniBand, from those of RoCE.
pub(super) fn rows(of: &[Row]) -> Vec<Row> {
    let mut rows = Vec::new();
    let permitted = of.iter().filter(|row| row.device == Device::Roce);
    for row in permitted.filter(|row| WAYS.contains(&row.way) && why_not(&row.title).is_none()) {
        let Run::Exchange(exchange) = &row.run else { continue };
        let by_lid = exchange.clone().lines(|line| {
            // A GID needs a GRH; qperf connects by itself unless told otherwise.
            let words = [" -x {gid}", " -g {gid}", "UCX_IB_GID_INDEX={gid} ", " -cm1"];
            words.iter().fold(line.to_owned(), |line, word| line.replace(word, ""))
        });
        let row = Row { device: Device::Ib, ..row.clone() };
        if WITH_GRH.contains(&row.title.as_str()) {
            let title = format!("{}, with a GRH", row.title);
            rows.push(Row { title, brief: row.way == Way::Udp, ..row.clone() });
        }
        rows.push(Row { run: Run::Exchange(by_lid), ..row });
    }
    rows.extend(groups());
    let by_acm = rows.iter().filter(|row| row.way == Way::Udp && row.title == BY_ACM);
    let by_acm: Vec<Row> = by_acm.filter_map(by_acm_first).collect();
    rows.extend(by_acm);
    mark(&mut rows);
    let managed: Vec<Row> = rows.iter().filter(|row| row.way == Way::Udp).map(by_opensm).collect();
    rows.extend(managed);
    rows
}

/// Marks rows of a second or more as brief in one of the two ways only: rings are the same as RoCE's, which has both.
fn mark(rows: &mut [Row]) {
    const SLOW: &[&str] = &["ib_", "qperf ", "ucx_perftest ", "fio "];
    let between: BTreeSet<String> = rows
        .iter()
        .filter(|row| row.brief && row.way == Way::Udp)
        .filter(|row| SLOW.iter().any(|program| row.title.starts_with(program)))
        .map(|row| row.title.clone())
        .collect();
    for row in rows.iter_mut().filter(|row| row.way == Way::Ring) {
        row.brief &= !between.contains(&row.title);
    }
}

/// Returns the row with ACM asked first. Each side's first program starts the service, which ends soon after the last.
fn by_acm_first(row: &Row) -> Option<Row> {
    let Run::Exchange(exchange) = &row.run else { return None };
    let exchange =
        exchange.clone().lines(|line| format!("RDMA_CM_USE_IB_ACM=1 RDMUX_ACM_IDLE=1 {line}"));
    let title = format!("{}, with ACM", row.title);
    Some(Row { title, run: Run::Exchange(exchange), ..row.clone() })
}

/// Groups by a GID and by an IPv6 address, with members that receive and send-only members.
fn groups() -> Vec<Row> {
    let by_gid = |how| mckey("-M ff15:7777::1", how);
    let by_ipv6 = |how| mckey("-m ff1e::77", how);
    let rows = [
        Row::each(Way::HERE, &by_gid("")),
        Row::each(&[Way::Udp], &by_gid(" -o").brief(&[Way::Udp])),
        Row::each(&[Way::Loopback6], &by_ipv6("").brief(&[Way::Loopback6])),
        Row::each(&[Way::Loopback6], &by_ipv6(" -o")),
    ];
    rows.into_iter().flatten().map(|row| Row { device: Device::Ib, ..row }).collect()
}

/// Returns the row on a fabric that OpenSM manages. A manager determines routes and group membership, which few programs show.
fn by_opensm(row: &Row) -> Row {
    let brief = UNDER_OPENSM.contains(&row.title.as_str());
    Row { way: Way::OpenSm, brief, ..row.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_one_of_a_row() {
        let all = crate::table::roce();
        for (word, why) in NOT_THERE {
            let used = |row: &&Row| row.title.contains(word) && why_not(&row.title) == Some(why);
            assert!(all.iter().any(|row| used(&row)), "{word}");
        }
    }

    #[test]
    fn rows_with_grh_match_their_rows_by_lid() {
        let rows = rows(&crate::table::roce());
        for title in WITH_GRH {
            let of = |title: &str| rows.iter().filter(|row| row.title == title).count();
            assert_eq!(of(title), of(&format!("{title}, with a GRH")), "{title}");
            assert_ne!(of(title), 0, "{title}");
        }
        assert!(rows.iter().all(|row| row.device == Device::Ib));
    }
}
