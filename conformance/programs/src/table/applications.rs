//! Applications of RDMA: libfabric, fio, uDAPL, and iSCSI over iSER.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::{Client, Server};
use crate::row::{Row, Way};

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Row::each(&[Way::Ring, Way::Default], &fi_info().brief(&[Way::Default]));
    rows.extend(Row::each(Way::HERE, &fi_pingpong("-e dgram", "{server}").brief(Way::HERE)));
    for kind in ["-e msg", "-e rdm"] {
        // Connected endpoints are offered only if there is an interface other than loopback.
        // A server without an address listens on 127.0.0.1.
        let local = fi_pingpong(kind, "127.0.0.1").beside().brief(&[Way::Wire4]);
        rows.extend(Row::each(&[Way::Wire4], &local));
    }
    // Not the verb "send": fio sends before the peer has posted receives, and without RNR retries.
    for verb in ["write", "read"] {
        rows.extend(Row::each(Way::HERE, &fio(verb).brief(Way::HERE)));
    }
    rows
}

fn fi_info() -> Exchange {
    let row = Exchange::new("fi_info -p verbs").client("fi_info -p verbs");
    row.proof(Client("{dev}".into()))
}

fn fi_pingpong(kind: &str, address: &str) -> Exchange {
    let provider = if kind.ends_with("rdm") { "verbs;ofi_rxm" } else { "verbs" };
    let program = format!("fi_pingpong -p {provider} {kind} -c -I 50");
    Exchange::new(program.clone())
        .server(format!("{program} -B {{port}}"), Ready::Tcp, End::Alone)
        .client(format!("{program} -P {{port}} {address}"))
        .proof(Client("bytes   #sent   #ack".into()))
}

/// The server is a job that receives. It listens on all addresses, because fio takes the first character of a name to bind to
/// for the address.
fn fio(verb: &str) -> Exchange {
    let common = "fio --name=j --ioengine=rdma --port={port} --bs=64k --size=16m --iodepth=8";
    Exchange::new(format!("fio --ioengine=rdma --verb={verb}"))
        .server(format!("{common} --rw=read"), Ready::Cm, End::Alone)
        .client(format!("{common} --rw=write --hostname={{server}} --verb={verb}"))
        .proof(Client("err= 0".into()))
        .proof(Server("err= 0".into()))
}
