//! Hosts with devices of several kinds: an address resolves to a kind on which its owner listens.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::{Client, Server};
use crate::row::{Device, Row, Way};

/// The devices visible to the client's process and to the server's.
const PAIRS: &[(&str, &str)] = &[
    ("roce", "roce"),
    ("iw", "iw"),
    ("ib", "ib"),
    ("all", "roce"),
    ("all", "iw"),
    ("all", "ib"),
    ("roce", "all"),
    ("iw", "all"),
    ("ib", "all"),
    ("all", "all"),
];

/// Returns rows on hosts of a fabric, which have all three kinds of device.
pub(super) fn rows() -> Vec<Row> {
    let rows = PAIRS.iter().flat_map(|(client, server)| {
        Row::each(Way::HERE, &ucmatose(client, server).brief(&[Way::Udp]))
    });
    rows.map(|row| Row { device: Device::Ib, ..row }).collect()
}

fn ucmatose(client: &'static str, server: &'static str) -> Exchange {
    let options = "-c 3 -C 10 -S 100 -p {port}";
    Exchange::new(format!("ucmatose, {client} to {server}"))
        .devices(server, client)
        .server(format!("ucmatose -b {{server}} {options}"), Ready::Cm, End::Alone)
        .client(format!("ucmatose -s {{server}} {options}"))
        .proof(Server("return status 0".into()))
        .proof(Client("return status 0".into()))
}
