//! Files with modules, aliases and commands are read as ibsim reads them.
//!
//! `tests/ibsim/dump` has the nodes and ports that ibsim 0.10 shows (`Dump`) for `tests/ibsim/racks.net`. The row "ibsim
//! reads the same file" of `cargo xtask programs` shows that the ibsim of the distribution still does.

use std::fmt::Write as _;

use rdmux_subnet::topology::{Included, Node, NodeKind, PortRef, Topology};

const DUMP: &str = include_str!("ibsim/dump");
const FILES: [(&str, &str); 3] = [
    ("racks.net", include_str!("ibsim/racks.net")),
    ("rack-a.net", include_str!("ibsim/rack-a.net")),
    ("rack-b.net", include_str!("ibsim/rack-b.net")),
];

fn open(_: &str, name: &str) -> Result<Included, String> {
    let file = FILES.iter().find(|(other, _)| *other == name).ok_or("no such file")?;
    Ok(Included { name: file.0.to_owned(), text: file.1.to_owned() })
}

/// Formats a node with its ports, as ibsim shows them after the start, without rates.
fn shown(t: &Topology, index: usize, node: &Node) -> String {
    let kind = match node.kind {
        NodeKind::Switch => "Switch",
        NodeKind::Ca => "Ca",
        NodeKind::Router => "Router",
    };
    let (guid, system) = (node.guid.0, node.system_guid.0);
    let mut text = format!(
        "{kind} {} \"{}\"\tnodeguid {guid:x}\tsysimgguid {system:x}\n",
        node.num_ports, node.id
    );
    let is_switch = node.kind == NodeKind::Switch;
    for number in u8::from(!is_switch)..=node.num_ports {
        let far = match t.link(PortRef { node: index, port: number }) {
            Some((far, _)) => format!("\"{}\"[{}]", t.nodes[far.node].id, far.port),
            None if number == 0 => "\"Sma Port\"[0]".to_owned(),
            None => String::new(),
        };
        write!(text, "{:x} [{number}] {far}", node.port_guid(number).0).unwrap();
        if !is_switch || number == 0 {
            let (lid, lmc) = node.ports.get(&number).map_or((0, 0), |p| (p.lid.0, p.lmc));
            write!(text, " lid {lid} lmc {lmc}").unwrap();
        }
        text.push('\n');
    }
    text
}

/// Returns ibsim's output without rates, states and the manager's LID.
fn compared(dump: &str) -> Vec<String> {
    let line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let end = words.iter().position(|w| *w == "smlid" || *w == "4x").unwrap_or(words.len());
        words[..end].join(" ")
    };
    dump.lines().map(line).collect()
}

#[test]
fn modules_aliases_and_commands_make_the_nodes_and_cables_that_ibsim_shows() {
    let topology = Topology::parse_with(FILES[0].1, &mut open).expect("a good file");
    let ours = topology.nodes.iter().enumerate().map(|(i, node)| shown(&topology, i, node));
    assert_eq!(compared(&ours.collect::<String>()), compared(DUMP));
}
