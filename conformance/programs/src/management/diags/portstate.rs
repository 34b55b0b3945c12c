//! ibportstate: a port is disabled and enabled, and the fabric shows it.

use anyhow::{Context, Result};

use super::super::bring_up::all_is_active;
use super::super::ground::{self, Ground, Shown};
use super::{contains, says};

/// Down (IBTA 14.2.5.6).
const DOWN: u8 = 1;

/// query, disable, enable and reset of a switch's port; the manager brings the link up again.
pub(crate) fn ibportstate(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let node = shown.adapters().last().context("an adapter")?;
    let (switch, port) = shown.far(node, 1).context("a cable")?;
    let lid = ground::lid(switch)?.0;
    // With its peer, which is asked along a route that is directed from the switch on.
    let output = ground.said(&format!("ibportstate {lid} {port} query"))?;
    says(&output, "LinkState", "Active")?;
    says(&output, "PhysLinkState", "LinkUp")?;
    contains(&output, "Peer PortInfo:")?;
    let peer = output.split("Peer PortInfo:").nth(1).unwrap_or_default();
    says(peer, "Lid", ground::lid(node)?.0)?;
    says(peer, "LinkState", "Active")?;

    let state_of = |guid| -> Result<u8> {
        let shown = ground.show()?;
        let node = shown.nodes.iter().find(|n| n.guid == guid).context("a node")?;
        let number = if node.is_switch { port } else { 1 };
        let port = node.ports.iter().find(|p| p.number == number).context("a port")?;
        Ok(port.state)
    };
    ground.said(&format!("ibportstate {lid} {port} disable"))?;
    for guid in [switch.guid, node.guid] {
        ground.until("down", || Ok(state_of(guid)? == DOWN))?;
    }
    let output = ground.said(&format!("ibportstate {lid} {port} query"))?;
    says(&output, "PhysLinkState", "Disabled")?;
    ground.said(&format!("ibportstate {lid} {port} enable"))?;
    ground.until("active", || Ok(all_is_active(&ground.show()?).is_ok()))?;
    ground.said(&format!("ibportstate {lid} {port} reset"))?;
    ground.until("active", || Ok(all_is_active(&ground.show()?).is_ok()))?;
    ground.ways_are_whole().map(drop)
}
