//! smpquery, all of its operations, and smpdump.

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::NodeView;
use rdmux_subnet::topology::Node;

use super::super::bring_up::pkeys;
use super::super::ground::{self, Ground, Shown};
use super::{contains, number, says};

/// nodeinfo, nodedesc, portinfo, switchinfo, guids: by LID, by direct route and by GUID, of an adapter and of a switch.
pub(crate) fn nodes(ground: &Ground) -> Result<()> {
    let (shown, topology) = (ground.show()?, ground.topology()?);
    let adapter = shown.adapters().last().context("an adapter")?;
    let switch = shown.switches().last().context("a switch")?;
    for node in [adapter, switch] {
        let lid = ground::lid(node)?.0.to_string();
        let full = topology.nodes.iter().find(|n| n.guid == node.guid).context("a node")?;
        node_info(&ground.said(&format!("smpquery nodeinfo {lid}"))?, full)?;
        let guid = if node.is_switch { node.guid.0 } else { node.guid.0 + 1 };
        node_info(&ground.said(&format!("smpquery -G nodeinfo {guid:#x}"))?, full)?;
        let description =
            super::field(&ground.said(&format!("smpquery nodedesc {lid}"))?, "Node Description")?;
        ensure!(description == node.description, "{description:?} is not {:?}", node.description);
    }
    // The local adapter is at the end of the route of no hops, its switch at that of one.
    let own = shown.node(ground::HOSTS[1])?;
    let (first, _) = shown.far(own, 1).context("a cable")?;
    for (route, node) in [("0", own), ("0,1", first)] {
        let full = topology.nodes.iter().find(|n| n.guid == node.guid).context("a node")?;
        node_info(&ground.said(&format!("smpquery -D nodeinfo {route}"))?, full)?;
    }
    guids(ground, adapter)
}

fn node_info(output: &str, node: &Node) -> Result<()> {
    let is_switch = node.kind == rdmux_subnet::topology::NodeKind::Switch;
    says(output, "NodeType", if is_switch { "Switch" } else { "Channel Adapter" })?;
    says(output, "NumPorts", node.num_ports)?;
    says(output, "SystemGuid", format!("{:#018x}", node.system_guid.0))?;
    says(output, "Guid", format!("{:#018x}", node.guid.0))?;
    says(output, "PortGuid", format!("{:#018x}", node.port_guid(u8::from(!is_switch)).0))?;
    says(output, "DevId", format!("{:#06x}", node.device_id))?;
    says(output, "VendorId", format!("{:#08x}", node.vendor_id))
}

fn guids(ground: &Ground, adapter: &NodeView) -> Result<()> {
    let output = ground.said(&format!("smpquery guidinfo {}", ground::lid(adapter)?.0))?;
    let first = output.lines().find_map(|line| line.trim_start().strip_prefix("0:"));
    let first = first.and_then(|row| number(row.split_whitespace().next()?));
    ensure!(first == Some(adapter.guid.0 + 1), "GUID 0 of the port: {output}");
    Ok(())
}

/// portinfo and its extended form: LID, state and speed of each port.
pub(crate) fn ports(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let switch = shown.switches().next().context("a switch")?;
    let lid = ground::lid(switch)?.0;
    for port in switch.ports.iter().filter(|port| port.number != 0) {
        let output = ground.said(&format!("smpquery portinfo {lid} {}", port.number))?;
        let cable = shown.far(switch, port.number).is_some();
        says(&output, "LinkState", state(port.state))?;
        says(&output, "PhysLinkState", if cable { "LinkUp" } else { "Polling" })?;
        if cable {
            says(&output, "LinkWidthActive", "4X")?;
            says(&output, "LinkSpeedActive", "10.0 Gbps")?;
        }
    }
    let adapter = shown.adapters().last().context("an adapter")?;
    let lid = ground::lid(adapter)?.0;
    let output = ground.said(&format!("smpquery portinfo {lid} 1"))?;
    says(&output, "Lid", lid)?;
    says(&output, "LMC", 0)?;
    says(&output, "LocalPort", 1)?;
    says(&output, "SMLid", ground::lid(ground.manager_in(&shown)?)?.0)?;
    says(&output, "GidPrefix", "0xfe80000000000000")
}

fn state(code: u8) -> &'static str {
    match code {
        1 => "Down",
        2 => "Initialize",
        3 => "Armed",
        _ => "Active",
    }
}

/// switchinfo: as many LIDs as the fabric's table has.
pub(crate) fn switches(ground: &Ground) -> Result<()> {
    let (shown, tables) = (ground.show()?, ground.tables()?);
    for table in &tables.switches {
        let node = shown.nodes.get(table.node as usize).context("a switch")?;
        let output = ground.said(&format!("smpquery switchinfo {}", ground::lid(node)?.0))?;
        says(&output, "LinearFdbTop", table.linear.len() - 1)?;
        says(&output, "LinearFdbCap", 49_152)?;
        says(&output, "StateChange", 0)?;
    }
    // An adapter has no SwitchInfo.
    let adapter = shown.adapters().last().context("an adapter")?;
    let refused = ground.refused(&format!("smpquery switchinfo {}", ground::lid(adapter)?.0))?;
    contains(&refused, "failed")
}

/// pkeys, sl2vl and vlarb: the tables of ports, which are the default ones without partitions and QoS.
pub(crate) fn tables(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let adapter = shown.adapters().last().context("an adapter")?;
    let lid = ground::lid(adapter)?.0;
    let keys = ground.said(&format!("smpquery pkeys {lid}"))?;
    ensure!(pkeys(&keys) == [0xffff], "{keys}");
    let lanes = ground.said(&format!("smpquery sl2vl {lid} 1"))?;
    contains(&lanes, "ports: in  0, out  0: | 0|")?;
    let weights = ground.said(&format!("smpquery vlarb {lid} 1"))?;
    contains(&weights, "# Low priority VL Arbitration Table:")?;
    contains(&weights, "# High priority VL Arbitration Table:")?;
    // For a switch: for each pair of ports.
    let switch = shown.switches().next().context("a switch")?;
    let lanes = ground.said(&format!("smpquery sl2vl {} 1", ground::lid(switch)?.0))?;
    let rows = lanes.lines().filter(|line| line.starts_with("ports: in")).count();
    ensure!(rows == switch.ports.len(), "{rows} rows for {} ports", switch.ports.len());
    Ok(())
}

/// ExtendedPortInfo, by which Mellanox's devices distinguish FDR10 from QDR: the links of the shapes are QDR.
pub(crate) fn vendors(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let lid = ground::lid(shown.adapters().last().context("an adapter")?)?.0;
    let output = ground.said(&format!("smpquery mlnxextportinfo {lid} 1"))?;
    contains(&output, &format!("Lid {lid} port 1"))?;
    says(&output, "LinkSpeedActive", "0x00")
}

/// Other forms of requests: abbreviated names of operations, routes that begin with a LID, extended speeds; and PortInfoExtended, for
/// ports that announce it in CapabilityMask2. rdmux's do not.
pub(crate) fn ways(ground: &Ground) -> Result<()> {
    let (shown, topology) = (ground.show()?, ground.topology()?);
    let switch = shown.switches().next().context("a switch")?;
    let lid = ground::lid(switch)?.0;
    // The node behind a port of the switch: by the switch's LID, and then one hop.
    let ends = switch.ports.iter().filter(|port| port.number != 0);
    let mut far = ends.filter_map(|port| Some((port.number, shown.far(switch, port.number)?)));
    let (port, (node, number)) = far.next().context("a cable")?;
    let full = topology.nodes.iter().find(|n| n.guid == node.guid).context("a node")?;
    let output = ground.said(&format!("smpquery -c nodeinfo {lid} 0,{port}"))?;
    says(&output, "NodeType", if node.is_switch { "Switch" } else { "Channel Adapter" })?;
    says(&output, "Guid", format!("{:#018x}", full.guid.0))?;
    says(&output, "LocalPort", number)?;
    // Operations by their aliases, each with a field that only it prints.
    let adapter = shown.adapters().last().context("an adapter")?;
    let own = ground::lid(adapter)?.0;
    says(&ground.said(&format!("smpquery NI {own}"))?, "NumPorts", adapter.ports.len())?;
    let described = super::field(&ground.said(&format!("smpquery nd {own}"))?, "Node Description")?;
    ensure!(described == adapter.description, "{described:?}");
    says(&ground.said(&format!("smpquery pi {own} 1"))?, "Lid", own)?;
    says(&ground.said(&format!("smpquery SI {lid}"))?, "LinearFdbCap", 49_152)?;
    ensure!(pkeys(&ground.said(&format!("smpquery PKeyTable {own}"))?) == [0xffff], "P_Keys");
    for line in ["sl2vltable", "vlarbitration", "gi", "mepi"] {
        ground.said(&format!("smpquery {line} {own} 1"))?;
    }
    let output = ground.said(&format!("smpquery -x portinfo {own} 1"))?;
    says(&output, "LinkSpeedExtActive", "25.78125 Gbps")?;
    for operation in ["portinfoextended", "PIE"] {
        let refused = ground.refused(&format!("smpquery {operation} {own} 1"))?;
        contains(&refused, "doesn't indicate PortInfoExtended support")?;
    }
    Ok(())
}

/// smpdump: the bytes of NodeInfo and NodeDescription as they were received.
pub(crate) fn smpdump(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let adapter = shown.adapters().last().context("an adapter")?;
    let lid = ground::lid(adapter)?.0;
    let info = bytes(&ground.said(&format!("smpdump {lid} 0x11 0"))?);
    ensure!(info.get(12..20) == Some(&adapter.guid.0.to_be_bytes()), "NodeInfo: {info:02x?}");
    ensure!(info.get(20..28) == Some(&(adapter.guid.0 + 1).to_be_bytes()), "NodeInfo: {info:02x?}");
    let text = bytes(&ground.said(&format!("smpdump {lid} 0x10 0"))?);
    let name = adapter.description.as_bytes();
    ensure!(text.starts_with(name), "NodeDescription: {text:02x?}");
    let own = shown.node(ground::HOSTS[1])?;
    let info = bytes(&ground.said("smpdump -D 0 0x11 0")?);
    ensure!(info.get(12..20) == Some(&own.guid.0.to_be_bytes()), "NodeInfo: {info:02x?}");
    Ok(())
}

/// Parses the bytes that smpdump prints: groups of four digits.
fn bytes(output: &str) -> Vec<u8> {
    let words = output.lines().flat_map(str::split_whitespace);
    let pairs = words.filter(|w| w.len() == 4).filter_map(|w| u16::from_str_radix(w, 16).ok());
    pairs.flat_map(u16::to_be_bytes).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn smpdump_hex_words_are_parsed_to_bytes() {
        assert_eq!(
            super::bytes("0101 0102\n0000 00a1\nSMP status: 0x0\n"),
            [1, 1, 1, 2, 0, 0, 0, 0xa1]
        );
    }
}
