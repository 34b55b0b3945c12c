//! Package qperf. On Ethernet its queue pairs want the connection manager, which it has for RC.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::Figure;
use crate::row::{Row, Way};

const TESTS: &[(&str, &str)] = &[
    ("rc_bw", "bw"),
    ("rc_bi_bw", "bw"),
    ("rc_lat", "latency"),
    ("rc_rdma_read_bw", "bw"),
    ("rc_rdma_read_lat", "latency"),
    ("rc_rdma_write_bw", "bw"),
    ("rc_rdma_write_lat", "latency"),
    ("rc_rdma_write_poll_lat", "latency"),
    ("rc_compare_swap_mr", "msg_rate"),
    ("rc_fetch_add_mr", "msg_rate"),
    ("ver_rc_compare_swap", "msg_rate"),
    ("ver_rc_fetch_add", "msg_rate"),
];

pub(super) fn rows() -> Vec<Row> {
    let row = |&(test, figure)| Row::each(Way::HERE, &qperf(test, figure));
    TESTS.iter().flat_map(row).collect()
}

/// The server runs until it is told to quit, by the same client.
fn qperf(test: &str, figure: &'static str) -> Exchange {
    Exchange::new(format!("qperf {test}"))
        .server("qperf -lp {port}", Ready::Tcp, End::Alone)
        .client(format!("qperf {{server}} -lp {{port}} -cm1 -n 2000 {test} quit"))
        .proof(Figure(figure))
}
