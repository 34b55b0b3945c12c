//! Package qperf. On Ethernet its queue pairs want the connection manager, which it has for RC.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::Figure;
use crate::row::{Row, Way};

/// A test, the figure it prints, and how long it takes: only the first one counts messages if asked,
/// the others run until their time is over.
const TESTS: &[(&str, &str, &str)] = &[
    ("rc_bw", "bw", "-n 2000"),
    ("rc_bi_bw", "bw", SECOND),
    ("rc_lat", "latency", SECOND),
    ("rc_rdma_read_bw", "bw", SECOND),
    ("rc_rdma_read_lat", "latency", SECOND),
    ("rc_rdma_write_bw", "bw", SECOND),
    ("rc_rdma_write_lat", "latency", SECOND),
    ("rc_rdma_write_poll_lat", "latency", SECOND),
    ("rc_compare_swap_mr", "msg_rate", SECOND),
    ("rc_fetch_add_mr", "msg_rate", SECOND),
    ("ver_rc_compare_swap", "msg_rate", SECOND),
    ("ver_rc_fetch_add", "msg_rate", SECOND),
];
const SECOND: &str = "-t 1";

pub(super) fn rows() -> Vec<Row> {
    let row = |&(test, figure, length)| Row::each(Way::HERE, &qperf(test, figure, length));
    TESTS.iter().flat_map(row).collect()
}

/// The server runs until it is told to quit, by the same client.
fn qperf(test: &str, figure: &'static str, length: &str) -> Exchange {
    Exchange::new(format!("qperf {test}"))
        .server("qperf -lp {port}", Ready::Tcp, End::Alone)
        .client(format!("qperf {{server}} -lp {{port}} -cm1 {length} {test} quit"))
        .proof(Figure(figure))
}
