//! Formats a subnet for Graphviz.

use std::fmt::Write as _;

use rdmux_fabric::proto::Snapshot;

/// Returns the graph: switches are boxes, adapters ellipses, links that are down are dashed.
pub(super) fn text(s: &Snapshot) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "graph {} {{", quoted(&s.fabric));
    let _ = writeln!(out, "  node [fontsize=10];\n  edge [fontsize=8];");
    for node in &s.nodes {
        let shape = if node.is_switch { "box" } else { "ellipse" };
        let mut label = node.description.clone();
        if let Some(host) = node.host.as_ref().filter(|host| **host != label) {
            let _ = write!(label, "\nhost {host}");
        }
        if let Some(port) = node.ports.iter().find(|port| port.lid.0 != 0) {
            let _ = write!(label, "\nLID {}", port.lid.0);
        }
        let filled = if node.host.is_some() { ", style=filled, fillcolor=lightblue" } else { "" };
        let (id, label) = (quoted(&node.id), quoted(&label));
        let _ = writeln!(out, "  {id} [shape={shape}, label={label}{filled}];");
    }
    for link in &s.links {
        let ends = (s.nodes.get(link.a.0 as usize), s.nodes.get(link.b.0 as usize));
        let (Some(a), Some(b)) = ends else { continue };
        let down = if link.up { "" } else { ", style=dashed, color=red" };
        let (a, b) = (quoted(&a.id), quoted(&b.id));
        let (from, to, rate) = (link.a.1, link.b.1, quoted(&link.rate));
        let _ =
            writeln!(out, "  {a} -- {b} [taillabel={from}, headlabel={to}, label={rate}{down}];");
    }
    out.push_str("}\n");
    out
}

/// Quotes a string for DOT: descriptions may contain anything.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_in_a_description_do_not_end_the_string() {
        assert_eq!(quoted("a \"b\" \\\nc"), "\"a \\\"b\\\" \\\\\\nc\"");
    }
}
