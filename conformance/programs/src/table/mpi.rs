//! Open MPI over UCX: two ranks.

use crate::exchange::Exchange;
use crate::proof::Proof::Client;
use crate::row::{Row, Way};

const MPIRUN: &str = "mpirun --allow-run-as-root --oversubscribe --mca pml ucx --mca osc ucx \
                      --mca btl ^openib -x UCX_TLS=rc_v,self -n 2";

pub(super) fn rows() -> Vec<Row> {
    [
        (
            "mpi4py.bench ringtest",
            "/usr/bin/python3 -m mpi4py.bench ringtest -n 1000 -l 10",
            "time",
        ),
        ("NPopenmpi -i, data checked", "NPopenmpi -u 65536 -i -o {tmp}/np.out", "Integrity"),
    ]
    .into_iter()
    .flat_map(|(title, line, proof)| {
        let row = Exchange::new(format!("mpirun -n 2 {title}"));
        let row = row
            .client(format!("{MPIRUN} {line}"))
            .proof(Client(proof.into()))
            .timeout(300)
            .brief(&[Way::Ring]);
        Row::each(&[Way::Ring], &row)
    })
    .collect()
}
