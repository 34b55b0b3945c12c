//! A device with two ports of one subnet, which has four LIDs for each port and a second partition: tests of the second port, and of
//! the two ports with each other.

use super::ibverbs_utils::pingpong;
use super::perftest::perftest;
use crate::exchange::Exchange;
use crate::proof::Proof::Client;
use crate::row::{Device, Row, Way};

const WAYS: &[Way] = &[Way::OwnPorts, Way::Ports];

/// Programs with their options at port 2 of both sides.
const SECOND: &[(&str, &str)] = &[
    ("ib_send_bw", "-i 2"),
    ("ib_send_lat", "-i 2 -c UD"),
    ("ib_send_lat", "-i 2 -c XRC"),
    ("ib_write_bw", "-i 2 -a -n 50"),
    ("ib_read_lat", "-i 2"),
    ("ib_atomic_bw", "-i 2"),
    ("ib_send_bw", "-i 2 -c UD -S 3 -s 1024 -n 100"),
    // The second partition.
    ("ib_write_bw", "-i 2 --pkey_index=1"),
    ("ib_send_lat", "-i 2 -c UD --pkey_index=1"),
];

/// Programs with their options from port 1 to port 2.
const ACROSS: &[(&str, &str)] = &[
    ("ib_send_bw", "-c UD -s 1024 -n 100"),
    ("ib_send_lat", ""),
    ("ib_write_bw", "-a -n 50"),
    ("ib_read_bw", "-s 65536 -n 100"),
    ("ib_atomic_lat", ""),
    ("ib_send_lat", "-c XRC"),
];

pub(super) fn rows() -> Vec<Row> {
    let mut all = vec![devinfo()];
    for (program, options) in SECOND {
        all.push(by_lid(perftest(program, options)));
    }
    all.push(titled(perftest("ib_write_bw", "-i 2"), "with a GRH"));
    for (program, options) in ACROSS {
        all.push(across(by_lid(perftest(program, options))));
    }
    for transport in ["rc", "uc", "ud", "srq"] {
        all.push(by_lid(pingpong(transport, "-n 1000 -i 2")));
    }
    // The programs of perftest take a second each.
    let brief = |exchange: &Exchange| match exchange.title.starts_with("ibv_") {
        true => WAYS,
        false => &[Way::Ports][..],
    };
    let rows = all.into_iter().flat_map(|exchange| {
        let brief = brief(&exchange);
        Row::each(WAYS, &exchange.brief(brief))
    });
    rows.map(|row| Row { device: Device::Ib, ..row }).collect()
}

fn by_lid(exchange: Exchange) -> Exchange {
    exchange.lines(|line| line.replace(" -x {gid}", "").replace(" -g {gid}", ""))
}

/// Runs the client, which is the program that names the server, at port 1, and the server at port 2.
fn across(exchange: Exchange) -> Exchange {
    let ports = |line: &str| {
        let port = if line.contains("{server4}") { 1 } else { 2 };
        format!("{line} -i {port}")
    };
    titled(exchange.lines(ports), "from port 1 to port 2")
}

fn titled(mut exchange: Exchange, how: &str) -> Exchange {
    exchange.title += ", ";
    exchange.title += how;
    exchange
}

fn devinfo() -> Exchange {
    [
        "{dev}",
        "phys_port_cnt:\t\t\t2",
        "port:\t2",
        "PORT_ACTIVE (4)",
        "port_lmc:\t\t0x02",
        "link_layer:\t\tInfiniBand",
    ]
    .iter()
    .fold(Exchange::new("ibv_devinfo -v -i 2").client("ibv_devinfo -v -i 2"), |row, text| {
        row.proof(Client((*text).into()))
    })
}
