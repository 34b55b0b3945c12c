//! Package qperf. On Ethernet its queue pairs need the connection manager, which it supports for RC.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::Figure;
use crate::row::{Options, Row, Way, both, one_host, two_hosts};

/// A test, its figure, and its length: only the first one can count messages,
/// the others run for a time. The program's clock ticks every 10 ms, so the messages
/// must take many ticks: with none the figure is 0.
const TESTS: &[(Options, &str, &str)] = &[
    (both("rc_bw"), "bw", "-n 20000"),
    (two_hosts("rc_bi_bw"), "bw", SECOND),
    (one_host("rc_lat"), "latency", SECOND),
    (one_host("rc_rdma_read_bw"), "bw", SECOND),
    (two_hosts("rc_rdma_read_lat"), "latency", SECOND),
    (two_hosts("rc_rdma_write_bw"), "bw", SECOND),
    (one_host("rc_rdma_write_lat"), "latency", SECOND),
    (one_host("rc_rdma_write_poll_lat"), "latency", SECOND),
    (two_hosts("rc_compare_swap_mr"), "msg_rate", SECOND),
    (one_host("rc_fetch_add_mr"), "msg_rate", SECOND),
    (one_host("ver_rc_compare_swap"), "msg_rate", SECOND),
    (two_hosts("ver_rc_fetch_add"), "msg_rate", SECOND),
];
const SECOND: &str = "-t 1";

pub(super) fn rows() -> Vec<Row> {
    let row = |&(test, figure, length): &(Options, _, _)| {
        Row::each(Way::HERE, &qperf(test.text, figure, length).brief(test.brief))
    };
    TESTS.iter().flat_map(row).collect()
}

/// Returns the row of a test. The server runs until the same client makes it quit.
fn qperf(test: &str, figure: &'static str, length: &str) -> Exchange {
    Exchange::new(format!("qperf {test}"))
        .server("qperf -lp {port}", Ready::Tcp, End::Alone)
        .client(format!("qperf {{server}} -lp {{port}} -cm1 {length} {test} quit"))
        .proof(Figure(figure))
}
