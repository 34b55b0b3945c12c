//! Package ucx-utils: UCX over `rc_verbs` and `ud_verbs`, by its lower layer (UCT) and its upper
//! one (UCP).

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::Client;
use crate::row::{Options, Row, Way, both, one_host, two_hosts};

/// Transport and tests of the lower layer.
const UCT: &[(&str, &[Options])] = &[
    (
        "rc_verbs",
        &[
            both("am_lat"),
            one_host("am_lat -D bcopy -s 4000"),
            two_hosts("am_lat -D zcopy -s 4000"),
            two_hosts("am_bw -s 4000 -D bcopy"),
            two_hosts("put_lat"),
            one_host("put_bw -s 8192 -D zcopy"),
            both("get -s 8192 -D zcopy"),
            two_hosts("add_mr"),
            one_host("fadd"),
            two_hosts("cswap"),
        ],
    ),
    (
        "ud_verbs",
        &[
            both("am_lat"),
            two_hosts("am_lat -D bcopy -s 1000"),
            one_host("am_lat -D zcopy -s 1000"),
            one_host("am_bw -s 1000 -D bcopy"),
        ],
    ),
];

/// Tests of the upper layer, UCP, with the ways in which CI runs them over `rc_verbs` and over `ud_verbs`.
const UCP: &[(Options, &[Way])] = &[
    (one_host("tag_lat"), &[Way::Udp]),
    (two_hosts("tag_lat -s 100000"), &[]),
    (both("tag_bw -s 1000000"), Way::HERE),
    (both("tag_lat -E sleep"), &[Way::Udp]),
    (two_hosts("tag_sync_lat"), &[]),
    (one_host("stream_bw -s 4000"), &[Way::Udp]),
    (two_hosts("ucp_put_lat"), &[]),
    (one_host("ucp_put_bw -s 100000"), &[]),
    (two_hosts("ucp_get -s 100000"), &[Way::Ring]),
    (one_host("ucp_fadd"), &[]),
    (two_hosts("ucp_am_bw -s 4000"), &[Way::Ring]),
];

pub(super) fn rows() -> Vec<Row> {
    let ways = &[Way::Ring, Way::Default];
    let mut rows = Row::each(ways, &info("ucx_info -d").brief(&[Way::Default]));
    let preload = info("ucx_info -d, by --view preload").run_with(&["--view", "preload"]);
    rows.extend(Row::each(ways, &preload.brief(ways)));
    for (transport, tests) in UCT {
        for test in *tests {
            let title = format!("-x {transport} -t {}", test.text);
            let line = format!("-d {{dev}}:1 {title}");
            rows.extend(Row::each(Way::HERE, &perftest(&title, &line, "").brief(test.brief)));
        }
    }
    for (tls, over_ud) in [("rc_v", false), ("ud_v", true)] {
        for (test, ud) in UCP {
            let env = format!("UCX_TLS={tls},self UCX_NET_DEVICES={{dev}}:1");
            let line = format!("-t {}", test.text);
            let row = perftest(&format!("UCX_TLS={tls} {line}"), &line, &env);
            rows.extend(Row::each(Way::HERE, &row.brief(if over_ud { ud } else { test.brief })));
        }
    }
    rows.extend(Row::each(Way::HERE, &io_demo().brief(Way::HERE)));
    rows
}

fn info(title: &str) -> Exchange {
    Exchange::new(title)
        .client("ucx_info -d")
        .proof(Client("Device: {dev}:1".into()))
        .proof(Client("Transport: rc_verbs".into()))
        .proof(Client("Transport: ud_verbs".into()))
}

fn perftest(title: &str, options: &str, env: &str) -> Exchange {
    let program = format!("UCX_IB_GID_INDEX={{gid}} {env} ucx_perftest -p {{port}}");
    // Tests with a long time per message have fewer messages.
    let count = if options.contains("000000") { 200 } else { 2000 };
    Exchange::new(format!("ucx_perftest {title}"))
        .server(program.clone(), Ready::Tcp, End::Alone)
        .client(format!("{program} {{server}} -w 100 -n {count} {options} -f -v"))
        .proof(Client(format!("{count},")))
}

/// Connects by UCX's connection manager, which uses rdmux's, and checks the data that it reads.
fn io_demo() -> Exchange {
    let program = "UCX_TLS=rc_v,self UCX_SOCKADDR_TLS_PRIORITY=rdmacm io_demo -p {port} -q";
    Exchange::new("io_demo -o read,write -i 300 -q")
        .server(program, Ready::Cm, End::Told)
        .client(format!("{program} -o read,write -i 300 {{server}}"))
}
