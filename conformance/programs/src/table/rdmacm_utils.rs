//! Package rdmacm-utils: the connection manager's own examples, except those of rsockets.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::{Client, ClientLines, Server};
use crate::row::{Row, Way, both, one_host, two_hosts};

/// The configurations of everything that depends on addresses.
const EVERYWHERE: &[Way] =
    &[Way::Ring, Way::Udp, Way::Default, Way::Loopback6, Way::Wire4, Way::Wire6];

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(Row::each(EVERYWHERE, &rping("-C 1000 -v", 1000).brief(EVERYWHERE)));
    for (options, count) in [
        (both("-C 200 -v -V -S 65000"), 200),
        (one_host("-C 300 -v -S 23"), 300),
        // Queue pairs that the program creates and modifies itself.
        (both("-C 300 -v -V -q"), 300),
    ] {
        rows.extend(Row::each(Way::HERE, &rping(options.text, count).brief(options.brief)));
    }
    let brief = &[Way::Ring, Way::Udp, Way::Wire6];
    rows.extend(Row::each(&[Way::Udp], &rping_by_name().brief(&[Way::Udp])));
    rows.extend(Row::each(EVERYWHERE, &persistent_rping().brief(brief)));

    let ucmatose = |options| both_sides("ucmatose", options, " -p {port}");
    rows.extend(Row::each(EVERYWHERE, &ucmatose("-c 10 -C 50 -S 1000").brief(EVERYWHERE)));
    for options in
        [both("-c 200 -C 10 -S 100"), two_hosts("-c 5 -C 20 -S 40000"), both("-c 20 -C 20 -m")]
    {
        rows.extend(Row::each(Way::HERE, &ucmatose(options.text).brief(options.brief)));
    }
    // udaddy supports only one port, and hosts do not share it.
    let udaddy = |options| both_sides("udaddy", options, "");
    rows.extend(Row::each(EVERYWHERE, &udaddy("-c 10 -C 50 -S 1000").brief(EVERYWHERE)));
    rows.extend(Row::each(Way::HERE, &udaddy("-c 1 -C 500 -S 16").brief(&[Way::Ring])));

    rows.extend(by_format());

    // Each of these takes three seconds.
    let ways = &[Way::Ring, Way::Udp, Way::Wire4];
    rows.extend(Row::each(ways, &mckey("-m {group}", "").brief(&[Way::Ring])));
    rows.extend(Row::each(Way::HERE, &mckey("-m {group}", " -o").brief(&[Way::Udp])));
    rows.extend(Row::each(&[Way::Udp, Way::Wire4], &mckey_back().brief(&[Way::Wire4])));
    rows.extend(Row::each(&[Way::Wire6], &mckey("-m ff1e::77", "").brief(&[Way::Wire6])));
    // By the group's GID, which the program does not map.
    rows.extend(Row::each(Way::HERE, &mckey("-M ::ffff:{group}", "")));
    rows.extend(Row::each(&[Way::Udp], &mckey("-M ::ffff:{group}", " -o").brief(&[Way::Udp])));

    let brief = &[Way::Ring, Way::Udp, Way::Loopback6, Way::Wire6];
    rows.extend(Row::each(EVERYWHERE, &cmtime("cmtime -c 50", "{server}").brief(brief)));
    let by_name = cmtime("cmtime -s NAME -c 50", "{host}");
    rows.extend(Row::each(Way::HERE, &by_name.brief(&[Way::Udp])));
    let brief = &[Way::Ring, Way::Udp, Way::Default, Way::Wire4];
    let rdma_client = synchronous("rdma_server", "rdma_client", "");
    rows.extend(Row::each(EVERYWHERE, &rdma_client.brief(brief)));
    let rdma_xclient = |options| synchronous("rdma_xserver", "rdma_xclient", options);
    rows.extend(Row::each(Way::HERE, &rdma_xclient(" -c r").brief(&[Way::Udp])));
    for ways in [Way::HERE, &[Way::Default, Way::Wire4]] {
        rows.extend(Row::each(ways, &rdma_xclient(" -c x").brief(ways)));
    }
    rows
}

/// `-v` prints each ping; `-V` makes the client compare the returned data.
pub(super) fn rping(options: &str, count: usize) -> Exchange {
    let common = format!("{options} -a {{server}} -p {{port}}");
    Exchange::new(format!("rping {options}"))
        .server(format!("rping -s {common}"), Ready::Cm, End::Alone)
        .client(format!("rping -c {common}"))
        .proof(ClientLines("ping data: rdma-ping-", count))
        .proof(Server(format!("rdma-ping-{}: ", count - 1)))
}

/// Returns a row between virtual hosts, whose names resolve.
fn rping_by_name() -> Exchange {
    let common = "-v -V -C 300 -S 1000 -a {host} -p {port}";
    Exchange::new("rping -a NAME")
        .server(format!("rping -s {common}"), Ready::Cm, End::Alone)
        .client(format!("rping -c {common}"))
        .proof(ClientLines("ping data: rdma-ping-", 300))
        .proof(Server("rdma-ping-299: ".into()))
}

/// Returns the row of rping's persistent server, which serves several clients at once, but mixes them up when they connect at the same
/// moment.
fn persistent_rping() -> Exchange {
    let client = "rping -c -v -V -C 100 -S 1000 -a {server} -p {port}";
    let server = "rping -s -P -S 1000 -a {server} -p {port}";
    Exchange::new("rping -P, four clients")
        .in_turn()
        .server(server, Ready::Cm, End::Told)
        .client(client)
        .client(client)
        .client(client)
        .client(client)
        .proof(ClientLines("ping data: rdma-ping-", 100))
}

/// The programs that report their result at the end.
fn both_sides(program: &str, options: &str, port: &str) -> Exchange {
    Exchange::new(format!("{program} {options}"))
        .server(format!("{program} -b {{server}} {options}{port}"), Ready::Cm, End::Alone)
        .client(format!("{program} -s {{server}} {options}{port}"))
        .proof(Server("return status 0".into()))
        .proof(Client("return status 0".into()))
}

/// Returns a row for each format of addresses that the programs support: names of virtual hosts, addresses as text, and GIDs, in the
/// port space of IP and in InfiniBand's own.
fn by_format() -> Vec<Row> {
    let gid = "-f gid";
    let mut rows = Vec::new();
    for (program, port) in [("ucmatose", " -p {port}"), ("udaddy", "")] {
        for (format, node, ways) in [
            ("-f name", "{host}", Way::HERE),
            ("-f ip", "{server}", Way::HERE),
            ("-f ipv6", "{server}", Way::IPV6),
            (gid, "{server_gid}", Way::HERE),
            (gid, "{server_gid}", &[Way::Default, Way::Loopback6, Way::Wire4, Way::Wire6]),
        ] {
            let brief: &[Way] = if format == gid { ways } else { &ways[..1] };
            let options = format!("{format} -c 3 -C 10 -S 100");
            rows.extend(Row::each(ways, &at(program, &options, node, port).brief(brief)));
        }
    }
    let of_infiniband =
        at("ucmatose", "-f gid -P ib -c 3 -C 10 -S 100", "{server_gid}", " -p {port}");
    rows.extend(Row::each(Way::HERE, &of_infiniband.brief(Way::HERE)));
    // The client looks up a GID by itself in this port space; the server has an IP address.
    let found = at("ucmatose", "-P ib -c 3 -C 10 -S 100", "{server}", " -p {port}");
    rows.extend(Row::each(Way::HERE, &found.brief(Way::HERE)));
    rows
}

/// Returns a row in which both sides get the server's address in one of its forms.
fn at(program: &str, options: &str, node: &str, port: &str) -> Exchange {
    Exchange::new(format!("{program} {options}"))
        .server(format!("{program} -b {node} {options}{port}"), Ready::Cm, End::Alone)
        .client(format!("{program} -s {node} {options}{port}"))
        .proof(Server("return status 0".into()))
        .proof(Client("return status 0".into()))
}

/// The receiver joins first, so it takes the part of the server.
pub(super) fn mckey(group: &str, how: &str) -> Exchange {
    let common = format!("{group} -c 2 -C 20 -S 500{how}");
    Exchange::new(format!("mckey {common}"))
        .server(
            format!("mckey -b {{server}} {}", common.replace(" -o", "")),
            Ready::Group,
            End::Alone,
        )
        .client(format!("mckey -s -b {{client}} {common}"))
        .proof(Server("return status 0".into()))
        .proof(Client("return status 0".into()))
}

/// The reverse: the server's side sends.
fn mckey_back() -> Exchange {
    let common = "-m {group} -C 10 -S 100";
    Exchange::new("mckey -m {group} -C 10 -S 100, the other way")
        .turned()
        .server(format!("mckey -b {{client}} {common}"), Ready::Group, End::Alone)
        .client(format!("mckey -s -b {{server}} {common}"))
        .proof(Server("return status 0".into()))
        .proof(Client("return status 0".into()))
}

fn cmtime(title: &str, node: &str) -> Exchange {
    Exchange::new(title)
        .server(format!("cmtime -b {node} -p {{port}} -c 50"), Ready::Cm, End::Told)
        .client(format!("cmtime -s {node} -p {{port}} -c 50"))
        .proof(Client("disconnect".into()))
}

/// The synchronous examples. Only one of the servers can be given an address; otherwise it listens on IPv4.
fn synchronous(server: &str, client: &str, options: &str) -> Exchange {
    let address = if server == "rdma_server" { " -s {server}" } else { "" };
    Exchange::new(format!("{client}{options}"))
        .server(format!("{server}{address} -p {{port}}{options}"), Ready::Cm, End::Alone)
        .client(format!("{client} -s {{server}} -p {{port}}{options}"))
        .proof(Server("end 0".into()))
        .proof(Client("end 0".into()))
}
