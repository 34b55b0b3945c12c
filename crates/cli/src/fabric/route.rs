//! `rdmux fabric route`: shows the routes of packets.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rdmux_command::output;
use rdmux_command::say;
use rdmux_fabric::client::{ConnectOptions, admin};
use rdmux_fabric::proto::{NodeRef, NodeView, Snapshot, ambiguous};
use rdmux_fabric::routes::{Check, Hop, Lost, Routes};
use rdmux_wire::Lid;

use super::Which;

#[derive(Args)]
pub(crate) struct Route {
    #[command(flatten)]
    which: Which,
    /// The source: a host, or a node by its name or GUID; without it the routes between all ports are checked
    #[arg(value_name = "NODE", requires = "to")]
    from: Option<NodeRef>,
    /// The destination: a host, a node or a LID
    #[arg(value_name = "NODE|LID")]
    to: Option<NodeRef>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints a route, or a summary of all routes. Fails if packets do not arrive.
pub(super) fn run(args: &Route, options: &ConnectOptions) -> Result<ExitCode> {
    let fabric = &args.which.name(options)?;
    let tables = admin::tables(options, fabric)?;
    let snapshot = admin::show(options, fabric)?;
    let routes = Routes::new(&snapshot, &tables);
    if let (Some(from), Some(to)) = (&args.from, &args.to) {
        let (from, to) = (source(&snapshot, from)?, destination(&snapshot, to)?);
        return one(&snapshot, to, &routes.route(from, to), args.json);
    }
    let check = routes.check();
    if args.json {
        output::json(&check)?;
    } else {
        say!("{}", summary(&snapshot, &check));
    }
    Ok(if check.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn one(snapshot: &Snapshot, to: Lid, way: &Result<Vec<Hop>, Lost>, json: bool) -> Result<ExitCode> {
    match way {
        Ok(hops) if json => output::json(hops)?,
        Ok(hops) => hops.iter().for_each(|hop| say!("{}", step(snapshot, *hop))),
        Err(lost) => {
            let at =
                lost.node().map_or_else(String::new, |n| format!(" beyond {}", name(snapshot, n)));
            bail!("packets do not reach LID {}{at}: {lost}", to.0);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn step(snapshot: &Snapshot, hop: Hop) -> String {
    let name = name(snapshot, hop.node);
    match (hop.ingress, hop.egress) {
        (ingress, 0) => format!("into port {ingress} of {name}"),
        (0, egress) => format!("out of port {egress} of {name}"),
        (ingress, egress) => format!("into port {ingress} of {name}, out of port {egress}"),
    }
}

fn summary(snapshot: &Snapshot, check: &Check) -> String {
    let Check { ports, pairs, lost, switches_at_most, .. } = check;
    let mut text = format!("{ports} ports, {pairs} routes from a port to another port's LID");
    text += &match lost {
        0 => format!(", through at most {switches_at_most} switches"),
        lost => format!(", {lost} of which are broken"),
    };
    if check.lost_between_switches > 0 {
        text += &format!(", {} of them from switch to switch", check.lost_between_switches);
    }
    for (count, what) in [
        (check.without_lid, "ports without a LID"),
        (check.duplicate_lids, "LIDs of more than one port"),
    ] {
        if count > 0 {
            text += &format!("\n{count} {what}");
        }
    }
    for (node, port, lid, lost) in &check.examples {
        let at = lost
            .node()
            .map_or_else(String::new, |n| format!(" beyond {}", self::name(snapshot, n)));
        let from = name(snapshot, *node);
        text +=
            &format!("\npackets from port {port} of {from} do not reach LID {}{at}: {lost}", lid.0);
    }
    text
}

/// Returns the port from which a node sends: port 0 of a switch, the first port of an adapter with a LID.
fn source(snapshot: &Snapshot, node: &NodeRef) -> Result<(u32, u8)> {
    let index = find(snapshot, node)?;
    let ports = &snapshot.nodes[index].ports;
    let port = ports.iter().find(|port| port.lid.0 != 0).or(ports.first());
    let port = port.with_context(|| format!("{node} has no port"))?;
    Ok((u32::try_from(index)?, port.number))
}

fn destination(snapshot: &Snapshot, node: &NodeRef) -> Result<Lid> {
    if let NodeRef::Name(text) = node
        && let Ok(lid) = text.parse()
    {
        return Ok(Lid(lid));
    }
    let ports = &snapshot.nodes[find(snapshot, node)?].ports;
    let port = ports.iter().find(|port| port.lid.0 != 0);
    Ok(port.with_context(|| format!("{node} has no LID; check that a subnet manager runs"))?.lid)
}

/// Returns the index of a node, given by its GUID or that of a port, its host, its name in the file, or its
/// description.
fn find(snapshot: &Snapshot, node: &NodeRef) -> Result<usize> {
    let is_it: &[&dyn Fn(&NodeView) -> bool] = match node {
        NodeRef::Guid(guid) => {
            &[&|n| n.guid == *guid, &|n| n.ports.iter().any(|p| p.guid == *guid)]
        }
        NodeRef::Name(name) => {
            &[&|n| n.host.as_ref() == Some(name), &|n| n.id == *name, &|n| n.description == *name]
        }
    };
    for is_it in is_it {
        let mut found = snapshot.nodes.iter().enumerate().filter(|(_, n)| is_it(n));
        match (found.next(), found.next()) {
            (Some((_, a)), Some((_, b))) => {
                bail!(ambiguous(&super::plain(node), (&a.id, a.guid), (&b.id, b.guid)))
            }
            (Some((index, _)), None) => return Ok(index),
            _ => {}
        }
    }
    bail!("there is no node {node}")
}

fn name(snapshot: &Snapshot, node: u32) -> &str {
    let node = usize::try_from(node).ok().and_then(|node| snapshot.nodes.get(node));
    match node {
        Some(node) if !node.description.is_empty() => &node.description,
        Some(node) => &node.id,
        None => "?",
    }
}
