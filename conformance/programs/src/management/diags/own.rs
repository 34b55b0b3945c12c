//! Programs that report a host's own port, and its manager: ibstat, ibstatus, ibaddr, sminfo.

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::{NodeView, Snapshot};

use super::super::ManagedBy;
use super::super::ground::{self, Ground, HOSTS, Shown};
use super::{contains, number, says};
use crate::row::Device;

/// Returns the host on which programs run.
fn own(shown: &Snapshot) -> Result<&NodeView> {
    shown.node(HOSTS[1])
}

/// The default GID prefix of a subnet.
const PREFIX: u64 = 0xfe80_0000_0000_0000;

/// ibstat prints the adapter's GUIDs, and the port's state, LID and manager.
pub(crate) fn ibstat(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let (node, manager) = (own(&shown)?, ground.manager_in(&shown)?);
    let output = ground.said("ibstat")?;
    contains(&output, &format!("CA '{}'", Device::Ib.name()))?;
    says(&output, "Number of ports", node.ports.len())?;
    says(&output, "Node GUID", format!("{:#018x}", node.guid.0))?;
    says(&output, "Port GUID", format!("{:#018x}", node.guid.0 + 1))?;
    says(&output, "State", "Active")?;
    says(&output, "Physical state", "LinkUp")?;
    says(&output, "Base lid", ground::lid(node)?.0)?;
    says(&output, "LMC", 0)?;
    says(&output, "SM lid", ground::lid(manager)?.0)?;
    says(&output, "Link layer", "InfiniBand")?;
    // The manager's own port has the IsSM flag.
    let flags = |output: &str, name: &str| -> Result<u64> {
        let flags = super::field(output, name)?;
        number(&flags).with_context(|| flags.clone())
    };
    const IS_SM: u64 = 2;
    let managers = match ground.managed_by()? {
        ManagedBy::OpenSm => flags(&ground.said_on(HOSTS[0], "ibstat")?, "Capability mask")?,
        // The manager is on a switch, which has no host.
        ManagedBy::Fabric => {
            let lid = ground::lid(manager)?.0;
            flags(&ground.said(&format!("smpquery portinfo {lid} 0"))?, "CapMask")?
        }
    };
    ensure!(
        flags(&output, "Capability mask")? & IS_SM == 0,
        "a port without manager has the IsSM bit"
    );
    ensure!(managers & IS_SM != 0, "the manager's port lacks the IsSM bit");
    let named = ground.said("ibstat -l")?;
    ensure!(named.lines().any(|name| name == Device::Ib.name()), "ibstat -l: {named}");
    let guids = ground.said("ibstat -p")?;
    contains(&guids, &format!("{:#018x}", node.guid.0 + 1))
}

/// ibstatus prints the port's GID, LID, manager, state and rate.
pub(crate) fn ibstatus(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let (node, manager) = (own(&shown)?, ground.manager_in(&shown)?);
    let output = ground.said(&format!("ibstatus {}:1", Device::Ib.name()))?;
    let gid = std::net::Ipv6Addr::from((u128::from(PREFIX) << 64) | u128::from(node.guid.0 + 1));
    let groups = gid.segments().map(|group| format!("{group:04x}")).join(":");
    says(&output, "default gid", groups)?;
    says(&output, "base lid", format!("{:#x}", ground::lid(node)?.0))?;
    says(&output, "sm lid", format!("{:#x}", ground::lid(manager)?.0))?;
    says(&output, "state", "4: ACTIVE")?;
    says(&output, "phys state", "5: LinkUp")?;
    says(&output, "link_layer", "InfiniBand")?;
    // The cables of all shapes are 4xEDR.
    says(&output, "rate", "100 Gb/sec (4X EDR)")
}

/// ibaddr prints the GID and the LIDs of the local port, and of another one.
pub(crate) fn ibaddr(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let tells = |output: &str, node: &NodeView| -> Result<()> {
        let (gid, lid) = (gid(node), ground::lid(node)?.0);
        contains(output, &format!("GID {gid} "))?;
        contains(output, &format!("LID start {lid:#x} end {lid:#x}"))
    };
    tells(&ground.said("ibaddr")?, own(&shown)?)?;
    let other = shown.adapters().last().context("an adapter")?;
    tells(&ground.said(&format!("ibaddr {}", ground::lid(other)?.0))?, other)?;
    // By its GUID, which the manager resolves.
    tells(&ground.said(&format!("ibaddr -G {:#x}", other.guid.0 + 1))?, other)?;
    let refused = ground.refused("ibaddr -t 100 48000")?;
    contains(&refused, "failed")
}

/// Returns the GID of an adapter's first port, as `inet_ntop(3)` writes it.
pub(in super::super) fn gid(node: &NodeView) -> std::net::Ipv6Addr {
    ((u128::from(PREFIX) << 64) | u128::from(node.guid.0 + 1)).into()
}

/// sminfo prints the manager's LID, GUID and state; a port without a manager refuses the request.
pub(crate) fn sminfo(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let manager = ground.manager_in(&shown)?;
    let lid = ground::lid(manager)?.0;
    let guid = ground::port_guid(manager);
    let expected = format!("sminfo: sm lid {lid} sm guid {guid:#x}, activity count ");
    for line in ["sminfo".to_owned(), format!("sminfo {lid}")] {
        let output = ground.said(&line)?;
        contains(&output, &expected)?;
        contains(&output, "priority 0 state 3 SMINFO_MASTER")?;
    }
    let other = ground::lid(own(&shown)?)?.0;
    contains(&ground.refused(&format!("sminfo {other}"))?, "failed")
}
