//! Package ucx-utils: UCX over `rc_verbs` and `ud_verbs`, by its lower layer (UCT) and its upper
//! one (UCP).

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::Client;
use crate::row::{Row, Way};

/// Transport and tests of the lower layer.
const UCT: &[(&str, &[&str])] = &[
    (
        "rc_verbs",
        &[
            "am_lat",
            "am_lat -D bcopy -s 4000",
            "am_lat -D zcopy -s 4000",
            "am_bw -s 4000 -D bcopy",
            "put_lat",
            "put_bw -s 8192 -D zcopy",
            "get -s 8192 -D zcopy",
            "add_mr",
            "fadd",
            "cswap",
        ],
    ),
    (
        "ud_verbs",
        &["am_lat", "am_lat -D bcopy -s 1000", "am_lat -D zcopy -s 1000", "am_bw -s 1000 -D bcopy"],
    ),
];

/// Tests of the upper one, over each transport.
const UCP: &[&str] = &[
    "tag_lat",
    "tag_lat -s 100000",
    "tag_bw -s 1000000",
    "tag_lat -E sleep",
    "tag_sync_lat",
    "stream_bw -s 4000",
    "ucp_put_lat",
    "ucp_put_bw -s 100000",
    "ucp_get -s 100000",
    "ucp_fadd",
    "ucp_am_bw -s 4000",
];

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Row::each(&[Way::Ring, Way::Default], &info("ucx_info -d"));
    let preload = info("ucx_info -d, by --view preload").run_with(&["--view", "preload"]);
    rows.extend(Row::each(&[Way::Ring, Way::Default], &preload));
    for (transport, tests) in UCT {
        for test in *tests {
            let title = format!("-x {transport} -t {test}");
            let line = format!("-d {{dev}}:1 {title}");
            rows.extend(Row::each(Way::HERE, &perftest(&title, &line, "")));
        }
    }
    for tls in ["rc_v", "ud_v"] {
        for test in UCP {
            let env = format!("UCX_TLS={tls},self UCX_NET_DEVICES={{dev}}:1");
            let line = format!("-t {test}");
            rows.extend(Row::each(
                Way::HERE,
                &perftest(&format!("UCX_TLS={tls} {line}"), &line, &env),
            ));
        }
    }
    rows.extend(Row::each(Way::HERE, &io_demo()));
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
    // What takes long per message is done less often.
    let count = if options.contains("000000") { 200 } else { 2000 };
    Exchange::new(format!("ucx_perftest {title}"))
        .server(program.clone(), Ready::Tcp, End::Alone)
        .client(format!("{program} {{server}} -w 100 -n {count} {options} -f -v"))
        .proof(Client(format!("{count},")))
}

/// Connects by UCX's connection manager, which is on ours, and checks what it reads.
fn io_demo() -> Exchange {
    let program = "UCX_TLS=rc_v,self UCX_SOCKADDR_TLS_PRIORITY=rdmacm io_demo -p {port} -q";
    Exchange::new("io_demo -o read,write -i 300 -q")
        .server(program, Ready::Cm, End::Told)
        .client(format!("{program} -o read,write -i 300 {{server}}"))
}
