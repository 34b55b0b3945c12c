//! Parsing and writing, errors, and shapes.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use rdmux_wire::{Guid, Lid};

use super::*;

const FACTS: &str = "\
switchguid=0x100000
Switch 8 \"S-a\" # \"spine one\" base port 0 lid 0 lmc 0
[1] \"H-1\"[1]   # \"host1 mlx\" lid 0 4xQDR
[2] \"H-2\"[1]   # \"host2 mlx\" lid 0 4xQDR

hcaguids=0x200000
Hca 1 \"H-1\" # \"host1 mlx\"
[1](200001) \"S-a\"[1]  # lid 0 lmc 0 \"spine one\" lid 0 4xQDR

Hca 2 \"H-2\" # \"host2 mlx\"
[1] \"S-a\"[2]  # lid 0 lmc 0 \"spine one\" lid 0 4xQDR
";

fn at(node: usize, port: u8) -> PortRef {
    PortRef { node, port }
}

#[test]
fn a_file_as_the_tools_write_it_is_read() {
    let t = Topology::parse(FACTS).expect("a good file");
    let [switch, h1, h2] = &t.nodes[..] else { panic!("{t:?}") };
    assert_eq!((switch.kind, switch.guid), (NodeKind::Switch, Guid(0x10_0000)));
    assert_eq!(switch.description, "spine one");
    assert_eq!((h1.guid, h1.port_guid(1)), (Guid(0x20_0000), Guid(0x20_0001)));
    assert_eq!(h2.num_ports, 2);
    assert_ne!(h2.guid, Guid(0), "it has got one");
    let qdr = "4xQDR".parse().expect("a rate");
    assert_eq!(
        t.links().collect::<Vec<_>>(),
        [(at(0, 1), at(1, 1), qdr), (at(0, 2), at(2, 1), qdr)]
    );
}

#[test]
fn lids_and_guids_behind_the_comment_sign_are_read() {
    let text = "\
vendid=0x2c9
devid=0xbd36
sysimgguid=0x100003
switchguid=0x100000(100001)
Switch\t36 \"S-0000000000100000\"\t\t# \"sw\" enhanced port 0 lid 7 lmc 1
[36]\t\"H-0000000000200000\"[2](2000aa) \t\t# \"h\" lid 5 12xEDR

caguid=0x200000
Ca\t2 \"H-0000000000200000\"\t\t# \"h\"
[2](2000aa) \t\"S-0000000000100000\"[36]\t\t# lid 5 lmc 3 \"sw\" lid 7 12xEDR
";
    let t = Topology::parse(text).expect("a good file");
    let [switch, h] = &t.nodes[..] else { panic!("{t:?}") };
    assert_eq!((switch.vendor_id, switch.device_id), (0x2c9, 0xbd36));
    assert_eq!(switch.system_guid, Guid(0x10_0003));
    assert!(switch.enhanced_port0);
    assert_eq!((switch.ports[&0].lid, switch.ports[&0].lmc), (Lid(7), 1));
    assert_eq!(switch.port_guid(36), Guid(0x10_0001));
    assert_eq!((h.ports[&2].lid, h.ports[&2].lmc, h.port_guid(2)), (Lid(5), 3, Guid(0x20_00aa)));
    assert_eq!(t.to_string().parse_again(), t);
}

trait Again {
    fn parse_again(&self) -> Topology;
}

impl Again for String {
    fn parse_again(&self) -> Topology {
        Topology::parse(self).unwrap_or_else(|e| panic!("{e}\n{self}"))
    }
}

#[test]
fn width_and_speed_masks_of_port_and_file_determine_the_link_rate() {
    let text = "width=8\nSwitch 4 \"a\"\n[1] \"b\"[1] w=2 s=1\n[2] \"b\"[2]\n[3] \"b\"[3] e=2\n\nSwitch 4 \"b\"\n";
    let t = Topology::parse(text).expect("a good file");
    let rates: Vec<_> = t.links().map(|(.., rate)| rate.to_string()).collect();
    assert_eq!(rates, ["4xSDR", "12xEDR", "12xEDR"]);
}

#[test]
fn errors_name_line_token_and_rule() {
    let two = "Ca 1 \"a\"\n[1] \"b\"[1]\n\nCa 1 \"b\"\n";
    let cases: &[(&str, &str)] = &[
        ("\nSwich 4 \"a\"\n", "line 2, at `Swich`: a line begins with"),
        ("include \"x\"\n", "line 1, at `\"x\"`: included files cannot be read here"),
        ("color=3\n", "line 1, at `color=3`: a keyword is one of"),
        ("vendid=0x1000000\n", "line 1, at `0x1000000`: vendid must be a number, at most 0xffffff"),
        ("caguid=xyz\n", "line 1, at `xyz`: a GUID must be a number"),
        ("Ca 255 \"a\"\n", "line 1, at `255`: a node has 1 to 254 ports"),
        ("Ca 1 a\n", "line 1, at `a`: a name between quotes is expected"),
        (
            "Ca 1 \"a\"\nCa 1 \"a\"\n",
            "line 2, at `\"a\"`: another node has this name already, see line 1",
        ),
        (
            "caguid=1\nCa 1 \"a\"\ncaguid=1\nCa 1 \"b\"\n",
            "line 4, at `b`: 0x0000000000000001 is zero, or",
        ),
        (
            "Ca 1 \"a\" # \"x\u{7}\"\n",
            "line 1, at `\"x\u{7}\"`: a description has at most 64 bytes",
        ),
        ("[1] \"b\"[1]\n", "line 1, at `[1]`: a port belongs to the node above it"),
        ("Ca 1 \"a\"\n\n[1] \"b\"[1]\n", "line 3, at `[1]`: a port belongs to the node above it"),
        ("Ca 1 \"a\"\n[2] \"b\"[1]\n", "line 2, at `[2]`: the ports of this node are [1] to [1]"),
        (
            "Ca 1 \"a\"\n[1] \"b\"[1]\n[1] \"b\"[1]\n",
            "line 3, at `[1]`: this port is described by an earlier line already",
        ),
        ("Ca 1 \"a\"\n[1] b\n", "line 2, at `b`: after a port come"),
        ("Ca 1 \"a\"\n[1] \"b\"[1] x=3\n", "line 2, at `x=3`: after a port come"),
        ("Ca 1 \"a\"\n[1] \"b\"[1]\n", "line 2, at `\"b\"[1]`: there is no node with this name"),
        (
            "Ca 1 \"a\"\n[1] \"a\"[1]\n",
            "line 2, at `\"a\"[1]`: port 1 of node 0 cannot be cabled to itself",
        ),
    ];
    for (text, message) in cases {
        let error = Topology::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(message), "{error}\nnot\n{message}");
    }
    let conflict = format!("{two}[1] \"c\"[1]\n\nCa 1 \"c\"\n");
    let error = Topology::parse(&conflict).expect_err("two cables at one port").to_string();
    assert_eq!(
        error,
        "line 5, at `\"c\"[1]`: port 1 of node 1 has a cable already, to port 1 of node 0"
    );
    assert!(Topology::parse(two).is_ok(), "one end is enough");
}

#[test]
fn topology_file_with_too_many_ports_is_too_large() {
    let mut text = String::new();
    for i in 0..9000 {
        text.push_str(&format!("Switch 254 \"{i}\"\n\n"));
    }
    let error = Topology::parse(&text).expect_err("2,286,000 ports");
    assert_eq!(error.rule, Rule::TooLarge);
}

#[test]
fn node_description_quotes_are_replaced_and_length_cut_to_64() {
    let mut node = Node::new(NodeKind::Ca, "a".into(), Guid(1), 1);
    node.describe("a \"b\"\nc");
    assert_eq!(node.description, "a 'b' c");
    node.describe(&"ü".repeat(33));
    assert_eq!(node.description.len(), 64);
}

fn shape(text: &str) -> Topology {
    let shape: Shape = text.parse().unwrap_or_else(|e| panic!("{e}"));
    shape.topology(Guid(0x0002_c900_0000_0000))
}

fn count(t: &Topology, kind: NodeKind) -> usize {
    t.nodes.iter().filter(|n| n.kind == kind).count()
}

/// Returns how many nodes the first one reaches.
fn reached(t: &Topology) -> usize {
    let mut seen = vec![false; t.nodes.len()];
    let mut next = VecDeque::from([0]);
    seen[0] = true;
    while let Some(node) = next.pop_front() {
        for (far, _) in t.nodes[node].ports.values().filter_map(|p| p.link) {
            if !core::mem::replace(&mut seen[far.node], true) {
                next.push_back(far.node);
            }
        }
    }
    seen.iter().filter(|s| **s).count()
}

#[test]
fn topology_shapes_have_the_expected_adapters_switches_and_cables() {
    // shape, adapters, switches, cables
    let table = [
        ("two", 2, 0, 1),
        ("switch:1", 1, 1, 1),
        ("switch:8", 8, 1, 8),
        ("switch:254", 254, 1, 254),
        ("fattree:1", 1, 2, 1 + 18),
        ("fattree:18", 18, 3, 18 + 36),
        ("fattree:36", 36, 3, 36 + 36),
        ("fattree:100", 100, 6 + 3, 100 + 6 * 18),
        ("fattree:648", 648, 36 + 18, 648 + 648),
        ("fattree:649", 649, 39 + 54 + 324, 649 + 39 * 18 + 54 * 18),
        ("fattree:10368", 10368, 1476, 3 * 10368),
        ("fattree:11664", 11664, 648 + 648 + 324, 3 * 11664),
        ("torus:3x4x5", 60, 60, 60 + 180),
        ("torus:2x2x2", 8, 8, 8 + 12),
        ("torus:4x4x1", 16, 16, 16 + 32),
        ("torus:1x1x1", 1, 1, 1),
        ("dragonfly:4,2,2", 72, 36, 72 + 9 * 6 + 36),
        ("dragonfly:4,2,2,3", 24, 12, 24 + 3 * 6 + 12),
        ("dragonfly:2,1,1,1", 2, 2, 2 + 1),
    ];
    for (text, adapters, switches, cables) in table {
        let t = shape(text);
        assert_eq!(count(&t, NodeKind::Ca), adapters, "{text}");
        assert_eq!(count(&t, NodeKind::Switch), switches, "{text}");
        assert_eq!(t.links().count(), cables, "{text}");
        assert_eq!(reached(&t), adapters + switches, "{text} is connected");
        let guids: BTreeSet<_> = t.nodes.iter().map(|n| n.guid).collect();
        assert_eq!(guids.len(), t.nodes.len(), "{text}");
        assert_eq!(t.to_string().parse_again(), t, "{text}");
    }
}

#[test]
fn a_fat_tree_of_648_has_one_cable_from_each_leaf_to_each_spine() {
    let t = shape("fattree:648");
    let mut pairs = BTreeSet::new();
    for (a, b, _) in t.links() {
        let both = [a, b].map(|p| t.nodes[p.node].kind == NodeKind::Switch);
        if both == [true, true] {
            assert!(pairs.insert((a.node, b.node)), "{a} and {b} have two");
        }
    }
    assert_eq!(pairs.len(), 36 * 18);
}

#[test]
fn switches_of_a_level_of_a_fat_tree_have_as_many_cables_downwards() {
    for text in ["fattree:649", "fattree:1000", "fattree:5000"] {
        let t = shape(text);
        let level = |node: &Node| node.description.trim_end_matches(char::is_numeric).to_string();
        let mut below: Vec<(String, usize)> = Vec::new();
        for node in t.nodes.iter().filter(|n| n.kind == NodeKind::Switch) {
            let down = node.ports.keys().filter(|port| **port <= 18 || level(node) == "top");
            below.push((level(node), down.count()));
        }
        below.retain(|(level, _)| level != "leaf");
        below.sort();
        below.dedup();
        assert_eq!(below.len(), 2, "{text}: {below:?}");
    }
}

#[test]
fn dragonfly_groups_are_all_linked_to_each_other() {
    let t = shape("dragonfly:4,2,2");
    let group = |node: usize| (t.nodes[node].kind == NodeKind::Switch).then_some(node / 4);
    let mut pairs = BTreeSet::new();
    for (a, b, _) in t.links() {
        if let (Some(a), Some(b)) = (group(a.node), group(b.node)) {
            pairs.insert((a.min(b), a.max(b)));
        }
    }
    assert_eq!(pairs.iter().filter(|(a, b)| a != b).count(), 36);
}

#[test]
fn topology_shape_text_round_trips() {
    for text in ["two", "switch:8", "fattree:648", "torus:3x4x5", "dragonfly:4,2,2,9"] {
        let shape: Shape = text.parse().expect("a good shape");
        assert_eq!(shape.to_string(), text);
    }
    let short: Shape = "dragonfly:4,2,2".parse().expect("a good shape");
    assert_eq!(short.to_string(), "dragonfly:4,2,2,9");
}

#[test]
fn invalid_topology_shape_is_an_error_that_says_the_valid_range() {
    for text in [
        "",
        "ring:8",
        "two:2",
        "switch",
        "switch:0",
        "switch:255",
        "switch:+1",
        "fattree:0",
        "fattree:11665",
        "torus:3x4",
        "torus:3x4x5x6",
        "torus:0x1x1",
        "torus:999x999x999",
        "dragonfly:4,2",
        "dragonfly:4,2,2,10",
        "dragonfly:0,1,1",
        "dragonfly:200,50,50",
        "dragonfly:65535,1,65535",
    ] {
        let error = text.parse::<Shape>().expect_err(text).to_string();
        assert!(error.contains(text), "{error}");
    }
    let error = "fattree:x".parse::<Shape>().expect_err("no number").to_string();
    assert_eq!(error, "`fattree:x`: fattree:N takes 1 to 11664 adapters");
}

/// Generates topologies of a few nodes with arbitrary names, LIDs, GUIDs and cables.
fn any_topology() -> impl Strategy<Value = Topology> {
    let node = (0..3u8, 1..5u8, "[^\"\\p{C}]{0,16}", any::<(u32, u16, bool, Option<u64>)>());
    let cable = (0..6usize, 1..5u8, 0..6usize, 1..5u8, 0..5usize, 0..7usize);
    let lid = (0..6usize, 0..5u8, 1..0xc000u16, 0..8u8, proptest::option::of(any::<u64>()));
    let lists = (
        proptest::collection::vec(node, 1..6),
        proptest::collection::vec(cable, 0..12),
        proptest::collection::vec(lid, 0..6),
    );
    lists.prop_map(|(nodes, cables, lids)| {
        let mut t = Topology::default();
        for (i, (kind, ports, text, (vendor, device, enhanced, system))) in
            nodes.into_iter().enumerate()
        {
            let kind = [NodeKind::Ca, NodeKind::Switch, NodeKind::Router][usize::from(kind)];
            let mut n =
                Node::new(kind, format!("{i} {text}"), Guid(0x1000 + i as u64 * 0x100), ports);
            n.describe(&text);
            n.vendor_id = vendor & 0xff_ffff;
            n.device_id = device;
            n.enhanced_port0 = enhanced && kind == NodeKind::Switch;
            n.system_guid = system.filter(|g| *g != 0).map_or(n.guid, Guid);
            t.nodes.push(n);
        }
        for (a, ap, b, bp, width, speed) in cables {
            let rate = LinkRate { width: Width::ALL[width], speed: Speed::ALL[speed] };
            // Many are refused.
            let _ = t.connect(at(a, ap), at(b, bp), rate);
        }
        for (node, port, lid, lmc, guid) in lids {
            let Some(n) = t.nodes.get_mut(node) else { continue };
            let is_switch = n.kind == NodeKind::Switch;
            // Only port 0 of a switch has a LID and GUID of its own.
            if is_switch != (port == 0) || port > n.num_ports {
                continue;
            }
            let p = n.ports.entry(port).or_default();
            (p.lid, p.lmc) = (Lid(lid), lmc);
            let default = n.guid.0 + u64::from(port);
            p.guid = guid.filter(|g| *g != default).map(Guid);
        }
        t
    })
}

proptest! {
    #[test]
    fn topology_round_trips_through_text(t in any_topology()) {
        let text = t.to_string();
        match Topology::parse(&text) {
            Ok(again) => prop_assert_eq!(again, t, "{}", text),
            Err(e) => prop_assert!(false, "{e}\n{text}"),
        }
    }

    #[test]
    fn arbitrary_topology_text_does_not_panic(text in "([\\[\\]()\"# \n=0-9a-z]|Switch|Ca|lid|lmc|guid){0,200}") {
        if let Ok(t) = Topology::parse(&text) {
            prop_assert_eq!(t.to_string().parse_again(), t);
        }
    }
}
