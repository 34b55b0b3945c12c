//! Programs that use RDMA to get something done: libfabric, fio, uDAPL, and iSCSI over iSER.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::{Client, Server};
use crate::row::{Row, Way};

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Row::each(&[Way::Ring, Way::Default], &fi_info());
    for kind in ["-e msg", "-e dgram", "-e rdm"] {
        rows.extend(Row::each(Way::HERE, &fi_pingpong(kind)));
    }
    for verb in ["write", "read", "send"] {
        rows.extend(Row::each(Way::HERE, &fio(verb)));
    }
    rows
}

fn fi_info() -> Exchange {
    let row = Exchange::new("fi_info -p verbs").client("fi_info -p verbs");
    row.proof(Client("{dev}".into()))
}

fn fi_pingpong(kind: &str) -> Exchange {
    let provider = if kind.ends_with("rdm") { "verbs;ofi_rxm" } else { "verbs" };
    let program = format!("fi_pingpong -p {provider} {kind} -c -I 100");
    Exchange::new(program.clone())
        .server(format!("{program} -B {{port}}"), Ready::Tcp, End::Alone)
        .client(format!("{program} -P {{port}} {{server}}"))
        .proof(Client("bytes   #sent   #ack".into()))
}

/// The server is a job that receives.
fn fio(verb: &str) -> Exchange {
    let common = "fio --name=j --ioengine=rdma --port={port} --bs=64k --size=16m --iodepth=8";
    Exchange::new(format!("fio --ioengine=rdma --verb={verb}"))
        .server(format!("{common} --rw=read --bindname={{server}}"), Ready::Cm, End::Alone)
        .client(format!("{common} --rw=write --hostname={{server}} --verb={verb}"))
        .proof(Client("err= 0".into()))
        .proof(Server("err= 0".into()))
}
