//! Output of a real ibnetdiscover is parsed, and written unchanged.
//!
//! The files in `tests/ibnetdiscover` are the output of ibnetdiscover (infiniband-diags 44.0) on ibsim 0.10, after OpenSM
//! 3.3.23 had brought the subnet up and assigned the LIDs. `net.2sw2path4hca` is the example of this name in ibsim's sources.
//! `mixed` is our own topology, with vendors and devices that ibnetdiscover queries for Mellanox's speeds.

use rdmux_subnet::Topology;
use rdmux_subnet::topology::{NodeKind, PortRef};
use rdmux_wire::{Guid, Lid};

const MIXED: &str = include_str!("ibnetdiscover/mixed");
const EXAMPLE: &str = include_str!("ibnetdiscover/net.2sw2path4hca");

/// Returns the lines with content, with single blanks.
fn words(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Returns every cable, by the descriptions of its ends.
fn cables(t: &Topology) -> Vec<String> {
    let end = |at: PortRef| format!("{}[{}]", t.nodes[at.node].description, at.port);
    t.links().map(|(a, b, rate)| format!("{} {} {rate}", end(a), end(b))).collect()
}

#[test]
fn output_of_ibnetdiscover_is_written_as_it_was_read() {
    for text in [MIXED, EXAMPLE] {
        let topology = Topology::parse(text).expect("a topology");
        assert_eq!(words(&topology.to_string()), words(text));
    }
}

#[test]
fn lids_guids_and_rates_are_what_ibnetdiscover_found() {
    let t = Topology::parse(MIXED).expect("a topology");
    assert_eq!(
        cables(&t),
        [
            "spine[35] leaf one[21] 4xFDR",
            "spine[36] leaf one[20] 12xQDR",
            "leaf one[1] host one[1] 4xFDR10",
            "leaf one[2] host two[1] 4xEDR",
            "leaf one[3] host two[2] 4xHDR",
        ]
    );
    let [spine, leaf, one, two] = &t.nodes[..] else { panic!("{t:?}") };
    assert_eq!((spine.kind, spine.num_ports, spine.enhanced_port0), (NodeKind::Switch, 36, true));
    assert!(!leaf.enhanced_port0);
    assert_eq!((leaf.vendor_id, leaf.device_id, leaf.system_guid), (0x2c9, 0xcb20, Guid(0x10003)));
    assert_eq!([spine, leaf].map(|s| s.ports[&0].lid), [Lid(2), Lid(1)]);
    assert_eq!((one.ports[&1].lid, two.ports[&1].lid, two.ports[&2].lid), (Lid(3), Lid(4), Lid(5)));
    assert_eq!(two.port_guid(2), Guid(0x30002));

    let t = Topology::parse(EXAMPLE).expect("a topology");
    assert_eq!(
        cables(&t),
        [
            "Switch2[1] Hca2[1] 4xSDR",
            "Switch2[2] Hca4[1] 4xSDR",
            "Switch2[3] Switch1[3] 4xSDR",
            "Switch2[5] Switch1[5] 4xSDR",
            "Switch1[1] Hca1[1] 4xSDR",
            "Switch1[2] Hca3[1] 4xSDR",
        ]
    );
}
