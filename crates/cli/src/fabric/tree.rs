//! Formats a subnet as text: switches with the peers of their ports.

use std::fmt::Write as _;

use rdmux_fabric::proto::{LinkView, NodeView, PortView, Snapshot};

/// Returns each switch with its ports, followed by the adapters without a cable to a switch.
pub(super) fn text(s: &Snapshot) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "fabric {}", s.fabric);
    let cables = cables(s);
    for (index, node) in s.nodes.iter().enumerate().filter(|(_, n)| n.is_switch) {
        let _ = writeln!(out, "\nswitch {}{}", title(node), lid(node.ports.first()));
        ports(&mut out, s, node, &cables[index]);
    }
    let is_switch = |node: u32| s.nodes.get(node as usize).is_some_and(|n| n.is_switch);
    for (index, node) in s.nodes.iter().enumerate().filter(|(_, n)| !n.is_switch) {
        if cables[index].iter().any(|c| is_switch(c.far.0)) {
            continue;
        }
        let _ = writeln!(out, "\nadapter {}{}", title(node), attached(node));
        ports(&mut out, s, node, &cables[index]);
    }
    out
}

/// An end of a cable, from its node's perspective.
struct Cable<'s> {
    port: u8,
    far: (u32, u8),
    link: &'s LinkView,
}

/// Returns the cables of each node.
fn cables(s: &Snapshot) -> Vec<Vec<Cable<'_>>> {
    let mut all: Vec<Vec<_>> = s.nodes.iter().map(|_| Vec::new()).collect();
    for link in &s.links {
        for (near, far) in [(link.a, link.b), (link.b, link.a)] {
            if let Some(cables) = all.get_mut(near.0 as usize) {
                cables.push(Cable { port: near.1, far, link });
            }
        }
    }
    all
}

fn ports(out: &mut String, s: &Snapshot, node: &NodeView, cables: &[Cable<'_>]) {
    let mut free = 0;
    for port in node.ports.iter().filter(|port| port.number != 0) {
        let Some(cable) = cables.iter().find(|c| c.port == port.number) else {
            free += 1;
            continue;
        };
        let Some(far) = s.nodes.get(cable.far.0 as usize) else { continue };
        let far_port = far.ports.iter().find(|p| p.number == cable.far.1);
        let own = if node.is_switch { String::new() } else { lid(Some(port)) };
        let state = if cable.link.up { state(port.state) } else { "link down" };
        let _ = writeln!(
            out,
            "  [{:>3}]{own} {} [{}]{}  {}  {state}{}",
            port.number,
            title(far),
            cable.far.1,
            if far.is_switch { String::new() } else { lid(far_port) },
            cable.link.rate,
            attached(far)
        );
    }
    if free > 0 {
        let _ = writeln!(out, "  {free} port{} free", if free == 1 { "" } else { "s" });
    }
}

/// Returns the name of a node in the file, and its description if that adds information.
fn title(node: &NodeView) -> String {
    match node.description.as_str() {
        "" => node.id.clone(),
        same if same == node.id => node.id.clone(),
        description => format!("{} \"{description}\"", node.id),
    }
}

fn attached(node: &NodeView) -> String {
    let sm = if node.ports.iter().any(|port| port.is_sm) { ", manager" } else { "" };
    match &node.host {
        Some(host) => format!("  host {host}{sm}"),
        None => sm.trim_start_matches(',').replace(" manager", "  manager"),
    }
}

fn lid(port: Option<&PortView>) -> String {
    match port {
        Some(PortView { lid, lmc: 0, .. }) if lid.0 != 0 => format!("  LID {}", lid.0),
        Some(PortView { lid, lmc, .. }) if lid.0 != 0 => {
            format!("  LID {}-{}", lid.0, u32::from(lid.0) + (1 << lmc) - 1)
        }
        _ => String::new(),
    }
}

fn state(code: u8) -> &'static str {
    match code {
        1 => "Down",
        2 => "Init",
        3 => "Armed",
        4 => "Active",
        _ => "?",
    }
}

#[cfg(test)]
mod tests {
    use rdmux_wire::{Guid, Lid};

    use super::*;

    fn port(number: u8, lid: u16, state: u8) -> PortView {
        PortView { number, guid: Guid(0), lid: Lid(lid), lmc: 0, state, is_sm: false }
    }

    #[test]
    fn fabric_tree_shows_the_peers_of_switch_ports() {
        let node = |is_switch, id: &str, description: &str, host: Option<&str>, ports| NodeView {
            is_switch,
            id: id.into(),
            description: description.into(),
            guid: Guid(1),
            host: host.map(Into::into),
            ports,
        };
        let s = Snapshot {
            fabric: "f".into(),
            nodes: vec![
                node(true, "S-1", "spine", None, vec![port(0, 1, 4), port(1, 0, 4), port(2, 0, 1)]),
                node(false, "H-1", "H-1", Some("a"), vec![port(1, 7, 4)]),
                node(false, "H-2", "two", None, vec![port(1, 0, 1)]),
            ],
            links: vec![LinkView { a: (0, 1), b: (1, 1), up: true, rate: "4xQDR".into() }],
        };
        assert_eq!(
            text(&s),
            "fabric f\n\nswitch S-1 \"spine\"  LID 1\n  [  1] H-1 [1]  LID 7  4xQDR  Active  host a\n  1 port free\n\n\
             adapter H-2 \"two\"\n  1 port free\n"
        );
    }
}
