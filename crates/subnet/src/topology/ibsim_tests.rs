//! ibsim's extensions of the format: modules, aliases, included files, commands, automatic GUIDs.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use proptest::prelude::*;
use rdmux_wire::{Guid, Lid};

use super::*;

/// Parses the first of some files. Any file can include the others.
fn parse(files: &[(&str, &str)]) -> Result<Topology, ParseError> {
    let all: BTreeMap<_, _> = files.iter().copied().collect();
    let mut open = |_: &str, name: &str| match all.get(name) {
        Some(text) => Ok(Included { name: name.to_string(), text: text.to_string() }),
        None => Err(format!("{name} is not there")),
    };
    Topology::parse_with(files[0].1, &mut open)
}

fn cables(t: &Topology) -> Vec<String> {
    let end = |at: PortRef| format!("{}[{}]", t.nodes[at.node].id, at.port);
    t.links().map(|(a, b, _)| format!("{} {}", end(a), end(b))).collect()
}

#[test]
fn a_cable_without_a_port_at_the_other_end_goes_to_port_1() {
    let t = Topology::parse("Switch 4 \"s\"\n[3] \"h\" w=2\n\nCa 2 \"h\"\n[1] \"s\"[3]\n").unwrap();
    assert_eq!(cables(&t), ["s[3] h[1]"]);
}

#[test]
fn nodes_without_a_description_are_described_by_their_names() {
    let t = Topology::parse("Ca 1 \"a\"\n\nCa 1 \"b\" # \"\"\n\nCa 1 \"c\" # see 4\n").unwrap();
    let described: Vec<_> = t.nodes.iter().map(|n| n.description.as_str()).collect();
    assert_eq!(described, ["a", "", "c"]);
}

#[test]
fn guids_of_a_kind_are_counted_from_the_last_that_the_file_has() {
    let text = "Ca 2 \"a\"\n\nSwitch 4 \"s\"\n\nCa 1 \"b\"\n\nhcaguids=0x5000\nCa 2 \"c\"\n\nSwitch 4 \"t\"\n\n\
                Ca 1 \"d\"\n\nRt 1 \"r\"\n\ncaguid+0x100\n\nCa 1 \"e\"\n\nCa 1 \"H-0000000000000042\"\n\nCa 1 \"f\"\n";
    let t = Topology::parse(text).unwrap();
    let guids: Vec<_> = t.nodes.iter().map(|n| (n.id.as_str(), n.guid.0)).collect();
    assert_eq!(
        guids,
        [
            ("a", 0x10_0000),
            ("s", 0x20_0000),
            ("b", 0x10_0003),
            ("c", 0x5000),
            ("t", 0x20_0001),
            ("d", 0x5003),
            ("r", 0x30_0000),
            ("e", 0x5100),
            ("H-0000000000000042", 0x42),
            ("f", 0x5102)
        ]
    );
    // A GUID in the file takes precedence over an automatic one.
    let t = Topology::parse("Ca 1 \"a\"\n\ncaguid=0x100000\nCa 1 \"b\"\n").unwrap();
    assert_eq!([t.nodes[0].guid.0, t.nodes[1].guid.0], [0x10_0002, 0x10_0000]);
}

#[test]
fn modules_have_nodes_and_aliases_of_their_own() {
    let rack = "Switch 4 \"sw\"\n[1] \"node\"\n@[3] \"up\" w=2 s=1\n\nCa 1 \"node\"\n[1] \"sw\"\n";
    let top = "module=\"a\"\ninclude \"rack\"\nmodule = \"b\"\ninclude \"rack\"\nmodule=\"\"\n\
               Switch 4 \"top\"\n[1] \"a@up\"\n[2] \"b@up\"\n[3] \"edge\"\n@[4] \"x\"\n\n\
               Ca 1 \"edge\"\n[1] \"top\"[3]\n\nCa 1 \"last\"\n[1] \"@x\"\n";
    let t = parse(&[("top", top), ("rack", rack)]).unwrap();
    let all = ["a#sw[1] a#node[1]", "a#sw[3] top[1]", "b#sw[1] b#node[1]", "b#sw[3] top[2]"];
    assert_eq!(cables(&t)[..4], all);
    assert_eq!(cables(&t)[4..], ["top[3] edge[1]", "top[4] last[1]"]);
    let (.., rate) = t.links().nth(1).unwrap();
    assert_eq!(rate.to_string(), "4xSDR", "the alias says how fast its port is");
    // The written file has the final names.
    let again = Topology::parse(&t.to_string()).unwrap();
    assert_eq!(again, t);
}

#[test]
fn other_modules_are_named_with_their_prefix() {
    let text = "module=\"a\"\nCa 1 \"h\"\n\nmodule=\"b\"\nCa 2 \"h\"\n[1] \"a#h\"\n[2] \"i\"\n\nCa 1 \"i\"\n";
    assert_eq!(cables(&Topology::parse(text).unwrap()), ["a#h[1] b#h[1]", "b#h[2] b#i[1]"]);
}

#[test]
fn commands_link_ports_and_set_guids_and_lids() {
    let text = "Switch 4 \"s\"\n@[2] \"x\"\n\ncaguid=0x100\nCa 2 \"h\"\n\n\
                do Link \"s\"[1] \"h\"[1] w=8\ndo LINK \"@x\" \"h\"[2] # by its alias\n\
                do guid \"h\" 0x500\ndo Guid \"h\"[2] 0x77\ndo guid \"@x\"\n";
    let error = Topology::parse(text).unwrap_err().to_string();
    assert!(error.starts_with("line 11, at `\"@x\"`: Guid takes a node"), "{error}");
    let text =
        text.replace("do guid \"@x\"\n", "do Baselid \"h\"[2] 9 3\ndo baselid \"s\"[0] 0x12\n");
    let t = Topology::parse(&text).unwrap();
    assert_eq!(cables(&t), ["s[1] h[1]", "s[2] h[2]"]);
    assert_eq!(t.links().next().unwrap().2.width, Width::X12);
    let h = &t.nodes[1];
    // When the GUID of a node changes, its ports and its system keep theirs.
    assert_eq!((h.guid, h.system_guid), (Guid(0x500), Guid(0x100)));
    assert_eq!((h.port_guid(1), h.port_guid(2)), (Guid(0x101), Guid(0x77)));
    assert_eq!((h.ports[&2].lid, h.ports[&2].lmc), (Lid(9), 3));
    assert_eq!(t.nodes[0].ports[&0].lid, Lid(0x12));
    assert_eq!(Topology::parse(&t.to_string()).unwrap(), t);
}

#[test]
fn a_switch_with_another_guid_leaves_its_ports_the_old_one() {
    let t = Topology::parse("switchguid=0x10\nSwitch 4 \"s\"\n\ndo Guid \"s\" 0x20\n").unwrap();
    assert_eq!((t.nodes[0].guid, t.nodes[0].port_guid(3)), (Guid(0x20), Guid(0x10)));
}

#[test]
fn errors_name_line_token_and_rule() {
    let cases: &[(&str, &str)] = &[
        ("include leaf\n", "line 1, at `leaf`: the name of a file between quotes"),
        ("include \"gone\"\n", "line 1, at `\"gone\"`: gone is not there"),
        ("module=x\n", "line 1, at `x`: a module has a name of at most 20 bytes"),
        ("module=\"123456789012345678901\"\n", "line 1, at `\"123456789012345678901\"`: a module"),
        ("module=\"a#b\"\n", "line 1, at `\"a#b\"`: a module has a name"),
        ("module=\"a\"\nCa 1 \"b#c\"\n", "line 2, at `\"b#c\"`: # and @ are reserved"),
        ("@[1] \"x\"\n", "line 1, at `[1]`: a port belongs to the node above it"),
        ("Ca 1 \"a\"\n@[2] \"x\"\n", "line 2, at `[2]`: the ports of this node are"),
        ("Ca 1 \"a\"\n@[1] x\n", "line 2, at `x`: a name between quotes"),
        ("Ca 1 \"a\"\n@[1] \"b@x\"\n", "line 2, at `\"b@x\"`: # and @ are reserved"),
        ("Ca 1 \"a\"\n@[1] \"x\"[2]\n", "line 2, at `[2]`: after a port come"),
        (
            "Ca 2 \"a\"\n@[1] \"x\"\n@[2] \"x\"\n",
            "line 3, at `\"x\"`: another port has this alias already, see line 2",
        ),
        // An alias must precede its use.
        (
            "Ca 1 \"a\"\n[1] \"@x\"\n\nCa 1 \"b\"\n@[1] \"x\"\n",
            "line 2, at `\"@x\"[1]`: there is no node with this name",
        ),
        (
            "Ca 1 \"a\"\n[1] \"b\"\n\nCa 1 \"b\"\n@[1] \"x\"\n\nCa 1 \"c\"\n[1] \"@x\"\n",
            "line 8, at `\"b\"[1]`: port 1 of node 1 has a cable already",
        ),
        ("Ca 1 \"a\"\n[1] \"a\"[x]\n", "line 2, at `[x]`: after a port come"),
        ("do Unlink \"a\"[1]\n", "line 1, at `Unlink`: `do` supports Link, Guid and Baselid"),
        ("do\n", "line 1, at `end of line`: `do` supports Link, Guid and Baselid"),
        ("do Link a b\n", "line 1, at `a`: Link takes two ports"),
        (
            "do Link \"a\"[1] \"b\"[1]\n\nCa 1 \"a\"\n",
            "line 1, at `\"a\"[1]`: there is no node or alias",
        ),
        (
            "Ca 1 \"a\"\ndo Link \"a\"[2] \"a\"[1]\n",
            "line 2, at `\"a\"[2]`: there is no node or alias",
        ),
        ("Ca 1 \"a\"\ndo Link \"a\" \"a\"[1]\n", "line 2, at `\"a\"`: Link takes two ports"),
        (
            "Ca 1 \"a\"\ndo Link \"a\"[1] \"a\"[1]\n",
            "line 2, at `\"a\"[1]`: port 1 of node 0 cannot",
        ),
        ("Ca 2 \"a\"\ndo Link \"a\"[1] \"a\"[2] now\n", "line 2, at `now`: Link takes two ports"),
        ("Ca 1 \"a\"\ndo Guid \"a\"[0] 1\n", "line 2, at `\"a\"[0]`: Guid takes a node"),
        ("Switch 1 \"a\"\ndo Guid \"a\"[1] 1\n", "line 2, at `\"a\"[1]`: Guid takes a node"),
        (
            "Ca 1 \"a\"\ndo Guid \"a\" 0\n",
            "line 2, at `0x0000000000000000`: 0x0000000000000000 is zero",
        ),
        (
            "caguid=1\nCa 1 \"a\"\n\nCa 1 \"b\"\n\ndo Guid \"b\" 1\n",
            "line 6, at `0x0000000000000001`: 0x0000000000000001 is zero, or the GUID of another",
        ),
        ("Ca 1 \"a\"\ndo Baselid \"a\" 1\n", "line 2, at `\"a\"`: Baselid takes the port"),
        ("Ca 1 \"a\"\ndo Baselid \"a\"[0] 1\n", "line 2, at `\"a\"[0]`: Baselid takes the port"),
        (
            "Switch 1 \"a\"\ndo Baselid \"a\"[1] 1\n",
            "line 2, at `\"a\"[1]`: Baselid takes the port",
        ),
        ("Ca 1 \"a\"\ndo Baselid \"a\"[1] 0xc000\n", "line 2, at `0xc000`: Baselid takes the port"),
        ("Ca 1 \"a\"\ndo Baselid \"a\"[1] 1 8\n", "line 2, at `8`: Baselid takes the port"),
        ("colorguid+5\n", "line 1, at `colorguid+5`: a keyword is one of"),
    ];
    for (text, message) in cases {
        let error = parse(&[("", text)]).expect_err(text).to_string();
        assert!(error.starts_with(message), "{error}\nnot\n{message}");
    }
}

#[test]
fn errors_in_included_files_name_the_file() {
    let error = |files: &[_]| parse(files).unwrap_err().to_string();
    let said = error(&[("", "\ninclude \"a\"\n"), ("a", "include \"b\"\n"), ("b", "\n\nSwich\n")]);
    assert!(said.starts_with("b, line 3, at `Swich`: a line begins with"), "{said}");
    let said = error(&[("", "include \"a\"\nSwich\n"), ("a", "Ca 1 \"h\"\n")]);
    assert!(said.starts_with("line 2, at `Swich`: "), "{said}");
    let said = error(&[("", "include \"a\"\n\nCa 1 \"h\"\n"), ("a", "\nCa 1 \"h\"\n")]);
    assert_eq!(said, "line 3, at `\"h\"`: another node has this name already, see a, line 2");
    // A contradictory cable is reported at its line, and the end of a file ends its last node.
    let said = error(&[("", "include \"a\"\n"), ("a", "Ca 1 \"h\"\n[1] \"gone\"\n")]);
    assert!(said.starts_with("a, line 2, at `\"gone\"[1]`: there is no node"), "{said}");
    let said = error(&[("", "include \"a\"\n[1] \"h\"\n"), ("a", "Ca 1 \"h\"\n")]);
    assert!(said.starts_with("line 2, at `[1]`: a port belongs to the node above it"), "{said}");
    let said = error(&[("", "Ca 1 \"h\"\ninclude \"a\"\n"), ("a", "[1] \"h\"\n")]);
    assert!(said.starts_with("a, line 1, at `[1]`: a port belongs to the node above it"), "{said}");
}

#[test]
fn files_that_include_each_other_too_often_are_refused() {
    let error = |files: &[_]| parse(files).unwrap_err();
    let said = error(&[("", "include \"a\"\n"), ("a", "\ninclude \"a\"\n")]);
    assert_eq!((said.rule, said.place), (Rule::TooManyFiles, Place { file: "a".into(), line: 2 }));
    let many = "include \"empty\"\n".repeat(MAX_FILES);
    assert!(parse(&[("", &many), ("empty", "")]).is_ok());
    let more = format!("{many}include \"empty\"\n");
    let said = error(&[("", &more), ("empty", "")]);
    assert_eq!((said.rule, said.place.line), (Rule::TooManyFiles, MAX_FILES + 1));
    let long = "#".repeat(MAX_TEXT / 2);
    let said = error(&[("", "include \"long\"\ninclude \"long\"\n"), ("long", &long)]);
    assert_eq!((said.rule, said.place.line), (Rule::TooManyFiles, 2));
}

proptest! {
    #[test]
    fn arbitrary_included_ibsim_files_do_not_panic_and_round_trip(
        texts in proptest::collection::vec(
            "((include \"[0-3]\"|module=\"[ab]?\"|do (Link|guid|BASELID) \"[ab]?[#@]?[sh]\"(\\[[0-3]\\])? \"?[0-9sh\"\\[\\]]{0,6}\
              |Switch 3 \"s\"|Ca 2 \"h\"|@\\[[0-3]\\] \"[xy]\"|\\[[0-3]\\] \"[ab]?[#@]?[shxy]\"(\\[[0-3]\\])?|caguid[=+][0-3])?\n){0,12}",
            1..4,
        )
    ) {
        let mut open = |_: &str, name: &str| {
            let text = name.parse().ok().and_then(|at: usize| texts.get(at));
            let text = text.ok_or_else(|| "gone".to_string())?;
            Ok(Included { name: name.to_string(), text: text.clone() })
        };
        if let Ok(t) = Topology::parse_with(&texts[0], &mut open) {
            let written = t.to_string();
            prop_assert_eq!(Topology::parse(&written), Ok(t), "{}", written);
        }
    }
}
