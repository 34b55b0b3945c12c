//! Package ibverbs-utils: device attributes, and the smallest programs that use a device.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::{Client, Server};
use crate::row::{Options, Row, Way, both, one_host, rest, two_hosts};

/// Transport and options of `ibv_*_pingpong`; all check what they receive.
const PINGPONGS: &[(&str, &[Options])] = &[
    (
        "rc",
        &[
            both("-n 1000"),
            both("-n 1000 -e"),
            one_host("-n 2000 -s 1 -m 256"),
            two_hosts("-n 1000 -s 1000 -m 512"),
            two_hosts("-n 500 -s 65536 -m 2048"),
            both("-n 100 -s 1048576 -m 4096"),
            two_hosts("-n 1000 -r 16 -l 3"),
            // The interface of ibv_wr_*; completion timestamps; on-demand paging, explicit, implicit
            // and with advice; device memory.
            one_host("-n 1000 -N"),
            two_hosts("-n 1000 -t"),
            two_hosts("-n 1000 -N -e"),
            one_host("-n 1000 -o"),
            two_hosts("-n 1000 -o -P"),
            two_hosts("-n 1000 -O"),
            both("-n 1000 -j"),
        ],
    ),
    (
        "uc",
        &[
            both("-n 1000"),
            one_host("-n 1000 -e"),
            two_hosts("-n 500 -s 16384 -m 2048"),
            rest("-n 1000 -s 100 -m 256"),
        ],
    ),
    (
        "ud",
        &[
            both("-n 1000"),
            one_host("-n 1000 -e"),
            rest("-n 1000 -s 64"),
            two_hosts("-n 1000 -s 4096"),
        ],
    ),
    (
        "srq",
        &[
            both("-n 1000"),
            two_hosts("-n 1000 -e"),
            one_host("-n 1000 -q 1"),
            two_hosts("-n 1000 -q 64 -s 100 -m 512"),
            one_host("-n 500 -s 65536"),
        ],
    ),
];

/// Options of `ibv_xsrq_pingpong`: XRC, with a receive queue pair of each side.
const XRC_PINGPONGS: &[Options] = &[
    both("-n 1000"),
    two_hosts("-n 1000 -e"),
    one_host("-n 1000 -s 1"),
    both("-n 200 -s 100000"),
    one_host("-n 1000 -o"),
];

/// The further configurations of the first of each.
const ELSEWHERE: &[Way] = &[Way::Loopback6, Way::Wire6, Way::Default, Way::Wire4];

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for alone in [devices(), devinfo(), devinfo_list(), asyncwatch()] {
        let ways = &[Way::Ring, Way::Default];
        rows.extend(Row::each(ways, &alone.brief(ways)));
    }
    for (transport, all) in PINGPONGS {
        for options in *all {
            let pingpong = pingpong(transport, options.text);
            rows.extend(Row::each(Way::HERE, &pingpong.brief(options.brief)));
        }
        let elsewhere = pingpong(transport, all[0].text);
        // Each transport in each family on the wire; the loopback addresses with one of them.
        let brief = if *transport == "rc" { ELSEWHERE } else { &[Way::Wire6, Way::Wire4] };
        rows.extend(Row::each(ELSEWHERE, &elsewhere.brief(brief)));
    }
    for options in XRC_PINGPONGS {
        rows.extend(Row::each(Way::HERE, &xrc_pingpong(options.text).brief(options.brief)));
    }
    let elsewhere = xrc_pingpong(XRC_PINGPONGS[0].text).brief(&[Way::Default, Way::Wire6]);
    rows.extend(Row::each(ELSEWHERE, &elsewhere));
    rows.extend(Row::each(Way::HERE, &xrc_pingpong_of_four().brief(Way::HERE)));
    rows
}

fn devices() -> Exchange {
    Exchange::new("ibv_devices").client("ibv_devices").proof(Client("{dev}".into()))
}

fn devinfo() -> Exchange {
    ["{dev}", "PORT_ACTIVE (4)", "InfiniBand (0)", "Ethernet", "GID[  0]:", "RoCE v2"]
        .iter()
        .fold(Exchange::new("ibv_devinfo -v").client("ibv_devinfo -v"), |row, text| {
            row.proof(Client((*text).into()))
        })
}

/// Returns the row of ibv_devinfo for an iWARP device.
pub(super) fn devinfo_iwarp() -> Exchange {
    ["{dev}", "PORT_ACTIVE (4)", "iWARP (1)", "Ethernet", "max_qp_rd_atom:\t\t\t128"]
        .iter()
        .fold(Exchange::new("ibv_devinfo -v, of iWARP").client("ibv_devinfo -v"), |row, text| {
            row.proof(Client((*text).into()))
        })
}

fn devinfo_list() -> Exchange {
    Exchange::new("ibv_devinfo -l").client("ibv_devinfo -l").proof(Client("1 HCA found".into()))
}

/// Returns the row of ibv_asyncwatch, which waits for events for ever. Its standard output is a file, and only `stdbuf` makes it flush at
/// once.
fn asyncwatch() -> Exchange {
    let row = Exchange::new("ibv_asyncwatch");
    row.server("stdbuf -oL ibv_asyncwatch", Ready::Says("async event FD"), End::Told)
}

/// Returns the row of a ping-pong program of this transport.
pub(super) fn pingpong(transport: &str, options: &str) -> Exchange {
    let program = format!("ibv_{transport}_pingpong -c {options}");
    let line = format!("{program} -g {{gid}} -p {{port}}");
    let n = options.split_whitespace().nth(1).unwrap_or_default();
    Exchange::new(program)
        .server(line.clone(), Ready::Tcp, End::Alone)
        // Their servers listen on IPv4 only, whatever the GID.
        .client(line + " {server4}")
        .proof(Server(format!("{n} iters in")))
        .proof(Client(format!("{n} iters in")))
}

/// Returns the row with one server, whose receive queue pairs, one for each client, share a receive queue.
fn xrc_pingpong_of_four() -> Exchange {
    let program = "ibv_xsrq_pingpong -n 500 -g {gid} -p {port}";
    let client = format!("{program} {{server4}}");
    Exchange::new("ibv_xsrq_pingpong -n 500 -c 3, three clients")
        .server(format!("{program} -c 3"), Ready::Tcp, End::Alone)
        .client(client.clone())
        .client(client.clone())
        .client(client)
        .proof(Server("success".into()))
        .proof(Client("success".into()))
}

/// Returns a row of ibv_xsrq_pingpong, which has no counters and no timing, but compares the received data.
fn xrc_pingpong(options: &str) -> Exchange {
    let program = format!("ibv_xsrq_pingpong {options}");
    let line = format!("{program} -g {{gid}} -p {{port}}");
    Exchange::new(program)
        .server(line.clone(), Ready::Tcp, End::Alone)
        .client(line + " {server4}")
        .proof(Server("success".into()))
        .proof(Client("success".into()))
}
