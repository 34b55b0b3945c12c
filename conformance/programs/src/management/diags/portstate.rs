//! ibportstate: a port is disabled and enabled, and the fabric shows it.

use std::fs;

use anyhow::{Context, Result, ensure};
use rdmux_fabric::FabricName;
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{PhysState, PortInfo, PortState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

use super::super::bring_up::all_is_active;
use super::super::client;
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
    // With its peer, which is queried along a route that is directed from the switch on.
    let output = ground.said(&format!("ibportstate {lid} {port} query"))?;
    says(&output, "LinkState", "Active")?;
    says(&output, "PhysLinkState", "LinkUp")?;
    contains(&output, "Peer PortInfo:")?;
    let peer = output.split("Peer PortInfo:").nth(1).unwrap_or_default();
    says(peer, "Lid", ground::lid(node)?.0)?;
    says(peer, "LinkState", "Active")?;

    ground.said(&format!("ibportstate {lid} {port} disable"))?;
    for (guid, number) in [(switch.guid, port), (node.guid, 1)] {
        ground.until("down", || Ok(state_of(ground, guid, number)? == DOWN))?;
    }
    let output = ground.said(&format!("ibportstate {lid} {port} query"))?;
    says(&output, "PhysLinkState", "Disabled")?;
    ground.said(&format!("ibportstate {lid} {port} enable"))?;
    ground.until("active", || Ok(all_is_active(&ground.show()?).is_ok()))?;
    ground.said(&format!("ibportstate {lid} {port} reset"))?;
    ground.until("active", || Ok(all_is_active(&ground.show()?).is_ok()))?;
    ground.ways_are_whole().map(drop)
}

/// A manager with that policy disables a port that sends traps without end, and logs this. ibportstate shows it and enables the
/// port again.
pub(crate) fn babbles(ground: &Ground) -> Result<()> {
    /// The number of traps of one kind that suffices.
    const TRAPS: u32 = 250;
    let shown = ground.show()?;
    let node = shown.adapters().last().context("an adapter")?;
    let (switch, port) = shown.far(node, 1).context("a cable")?;
    let (at, lid) = (node.guid.to_string(), ground::lid(switch)?.0);
    hurry(ground, ground::lid(node)?)?;
    let mut faults = 0;
    ground.until("disabled", || {
        faults += 1;
        ground.rdmux(&["fabric", "fault", &at, "flow-control", "--times", "1"])?;
        Ok(state_of(ground, switch.guid, port)? == DOWN)
    })?;
    ensure!(faults >= TRAPS, "the port was disabled after only {faults} faults");
    let said = format!("babbling port {port} of {:#018x} was disabled", switch.guid.0);
    let log = ground.connect_options()?.dir(&FabricName::default())?.log();
    let log = fs::read_to_string(&log).with_context(|| log.display().to_string())?;
    ensure!(
        log.matches(&said).count() == 1,
        "the log does not contain exactly once \"{said}\": {log}"
    );
    let output = ground.said(&format!("ibportstate {lid} {port} query"))?;
    says(&output, "PhysLinkState", "Disabled")?;
    ground.said(&format!("ibportstate {lid} {port} enable"))?;
    ground.until("active", || Ok(all_is_active(&ground.show()?).is_ok()))?;
    ground.ways_are_whole().map(drop)
}

/// Returns the state of a node's port, as the fabric shows it.
fn state_of(ground: &Ground, guid: Guid, number: u8) -> Result<u8> {
    let shown = ground.show()?;
    let node = shown.nodes.iter().find(|n| n.guid == guid).context("a node")?;
    let port = node.ports.iter().find(|p| p.number == number).context("a port")?;
    Ok(port.state)
}

/// Makes an adapter's port repeat traps as fast as it can: with the usual SubnetTimeOut each takes more than a second.
fn hurry(ground: &Ground, lid: Lid) -> Result<()> {
    let answer =
        client::ask_port(ground, lid, &Smp::lid_routed(Method::GET, PortInfo::ATTR_ID, 1))?;
    let info = PortInfo {
        subnet_timeout: 0,
        // Both states stay unchanged.
        port_state: PortState(0),
        port_physical_state: PhysState(0),
        ..PortInfo::from_bytes(&answer.data)
    };
    let mut set = Smp::lid_routed(Method::SET, PortInfo::ATTR_ID, 1);
    set.set_attribute(&info.into());
    client::ask_port(ground, lid, &set).map(drop)
}
