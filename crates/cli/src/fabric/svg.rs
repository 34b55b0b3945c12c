//! Draws a subnet: one row per layer, adapters at the bottom.

use std::fmt::Write as _;

use rdmux_fabric::proto::{NodeView, Snapshot};

use super::layers::{layers, neighbours};

/// Width and height of a node, and the distances between nodes; in pixels.
const NODE: (f64, f64) = (96.0, 30.0);
const GAP: (f64, f64) = (12.0, 90.0);
const MARGIN: f64 = 20.0;
/// The maximum number of nodes in a row: ten thousand adapters would not fit a page.
const ROW: usize = 96;

/// Returns the picture.
pub(super) fn text(s: &Snapshot) -> String {
    let rows = rows(s);
    let widest = rows.iter().map(Vec::len).max().unwrap_or(1).max(1) as f64;
    let width = widest.mul_add(NODE.0 + GAP.0, 2.0 * MARGIN);
    let height = (rows.len() as f64).mul_add(NODE.1 + GAP.1, 2.0 * MARGIN);
    let mut at = vec![(0.0, 0.0); s.nodes.len()];
    for (row, nodes) in rows.iter().enumerate() {
        let step = (width - 2.0 * MARGIN) / nodes.len().max(1) as f64;
        for (column, &index) in nodes.iter().enumerate() {
            let x = (column as f64 + 0.5).mul_add(step, MARGIN);
            at[index] = (x, (row as f64 + 0.5).mul_add(NODE.1 + GAP.1, MARGIN));
        }
    }
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"9\">\n\
         <title>fabric {}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>",
        escaped(&s.fabric)
    );
    for link in &s.links {
        let ends = (at.get(link.a.0 as usize), at.get(link.b.0 as usize));
        let (Some(a), Some(b)) = ends else { continue };
        let look = if link.up { "#888" } else { "red\" stroke-dasharray=\"4 3" };
        let (ax, ay, bx, by) = (a.0, a.1, b.0, b.1);
        let _ = writeln!(
            out,
            "<path d=\"M{ax:.1} {ay:.1}L{bx:.1} {by:.1}\" stroke=\"{look}\" fill=\"none\"><title>port {} to port {}, {}</title></path>",
            link.a.1,
            link.b.1,
            escaped(&link.rate)
        );
    }
    for (node, &(x, y)) in s.nodes.iter().zip(&at) {
        draw(&mut out, node, x, y);
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, node: &NodeView, x: f64, y: f64) {
    let (fill, corner) = match (node.is_switch, &node.host) {
        (true, _) => ("#dde", 2),
        (false, Some(_)) => ("#bdf", 14),
        (false, None) => ("#eee", 14),
    };
    let lid = node.ports.iter().find(|port| port.lid.0 != 0).map(|port| port.lid.0);
    let name = if node.description.is_empty() { &node.id } else { &node.description };
    let (width, height) = NODE;
    let (left, top) = (x - width / 2.0, y - height / 2.0);
    let _ = writeln!(
        out,
        "<g><title>{} {}</title><rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width}\" height=\"{height}\" rx=\"{corner}\" fill=\"{fill}\" stroke=\"#444\"/>\
         <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text></g>",
        escaped(&node.id),
        node.guid,
        y - 2.0,
        escaped(&name.chars().take(18).collect::<String>()),
        y + 10.0,
        lid.map_or("no LID".to_owned(), |lid| format!("LID {lid}"))
    );
}

/// Returns the nodes of each row, the top one first. Those of a row are in the order of the nodes above to which they
/// are connected.
fn rows(s: &Snapshot) -> Vec<Vec<usize>> {
    let (layers, neighbours) = (layers(s), neighbours(s));
    let top = layers.iter().copied().max().unwrap_or(0);
    let mut place = vec![0; s.nodes.len()];
    let mut rows = Vec::new();
    for layer in (0..=top).rev() {
        let mut row: Vec<usize> = (0..s.nodes.len()).filter(|&i| layers[i] == layer).collect();
        let above = |i: usize| {
            neighbours[i].iter().filter(|&&n| layers[n] > layer).map(|&n| place[n]).min()
        };
        row.sort_by_key(|&i| (above(i), i));
        for (position, &i) in row.iter().enumerate() {
            place[i] = position;
        }
        rows.extend(row.chunks(ROW).map(<[usize]>::to_vec));
    }
    rows
}

/// Escapes text for XML: descriptions may contain anything.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_do_not_become_markup() {
        assert_eq!(escaped("<a b=\"&\">\n"), "&lt;a b=&quot;&amp;&quot;&gt; ");
    }
}
