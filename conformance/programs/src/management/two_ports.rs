//! A host with two ports of one subnet: one node, whose ports a manager brings up, and which programs open separately.

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::NodeView;

use super::Ground;
use super::bring_up::all_is_active;
use super::diags::field;
use super::ground::{HOSTS, Shown};
use super::opensm::{Conf, OpenSm};

/// The host.
const BOTH: &str = "both";

/// OpenSM brings both up, and then a second OpenSM does, at the second port.
pub(crate) fn opensm(ground: &Ground) -> Result<()> {
    attach(ground)?;
    let mut opensm = OpenSm::start(ground, HOSTS[0], "opensm", &Conf::default())?;
    opensm.subnet_is_up(1)?;
    is_seen(ground)?;
    goes_down_alone(ground)?;
    opensm.end()?;
    let guid = format!("{:#x}", ports(&node(ground)?)?[1].0);
    let mut second = OpenSm::start(ground, BOTH, "opensm-2", &Conf::default().with("guid", guid))?;
    second.subnet_is_up(1)?;
    let node = node(ground)?;
    let is_sm: Vec<bool> = node.ports.iter().map(|port| port.is_sm).collect();
    ensure!(is_sm == [false, true], "IsSM bits of the ports: {is_sm:?}");
    second.end()
}

/// The fabric's own manager brings both up.
pub(crate) fn own(ground: &Ground) -> Result<()> {
    attach(ground)?;
    is_seen(ground)?;
    goes_down_alone(ground)
}

fn attach(ground: &Ground) -> Result<()> {
    ground.attach_with(BOTH, &["--fabric", "default", "--fabric", "default"])
}

fn node(ground: &Ground) -> Result<NodeView> {
    Ok(ground.show()?.node(BOTH)?.clone())
}

/// Returns the GUID and LID of each port.
fn ports(node: &NodeView) -> Result<[(u64, u16); 2]> {
    let ports = [1, 2].map(|number| {
        let port = node.ports.iter().find(|port| port.number == number)?;
        Some((node.guid.0 + u64::from(number), port.lid.0))
    });
    let [one, two] = ports;
    Ok([one.context("the adapter has no port 1")?, two.context("the adapter has no port 2")?])
}

/// Returns the part of ibstat's output about a port.
fn ibstat(ground: &Ground, port: u8) -> Result<String> {
    let said = ground.said_on(BOTH, "ibstat")?;
    let (_, rest) = said.split_once(&format!("Port {port}:")).context("ibstat has no such port")?;
    // "Port GUID" is a line within it.
    let next = format!("Port {}:", port + 1);
    Ok(rest.split(&next).next().unwrap_or(rest).to_owned())
}

fn state(ground: &Ground, port: u8) -> Result<String> {
    field(&ibstat(ground, port)?, "State")
}

/// Programs see both ports, and reach the subnet by each.
fn is_seen(ground: &Ground) -> Result<()> {
    ground.until("active at both ports", || {
        Ok(all_is_active(&ground.show()?).is_ok() && state(ground, 2)? == "Active")
    })?;
    let ways = ground.ways_are_whole()?;
    ensure!(ways.lost == 0, "routes are missing: {ways:?}");
    let [one, two] = ports(&node(ground)?)?;
    ensure!(one.1 != two.1, "both ports have LID {}", one.1);
    let whole = ground.said_on(BOTH, "ibstat")?;
    ensure!(field(&whole, "Number of ports")? == "2", "ibstat shows another number of ports");
    for (number, (guid, lid)) in [(1, one), (2, two)] {
        let said = ibstat(ground, number)?;
        for (name, value) in [
            ("State", "Active".to_owned()),
            ("Base lid", lid.to_string()),
            ("Port GUID", format!("{guid:#018x}")),
        ] {
            let found = field(&said, name)?;
            ensure!(found == value, "port {number}: ibstat prints {found} for {name}, not {value}");
        }
        let own = ground.said_on(BOTH, &format!("ibaddr -P {number}"))?;
        ensure!(
            own.contains(&format!("LID start {lid:#x} ")),
            "port {number}: ibaddr does not print its LID: {own}"
        );
        ground.said_on(BOTH, &format!("sminfo -P {number}"))?;
        // From this port to the other one, whose agent reports the ingress port of the request.
        let other = if number == 1 { two } else { one };
        let line = format!("smpquery -P {number} nodeinfo {}", other.1);
        let info = ground.said_on(BOTH, &line)?;
        for (name, value) in [
            ("NumPorts", "2".to_owned()),
            ("PortGuid", format!("{:#018x}", other.0)),
            ("LocalPort", (3 - number).to_string()),
        ] {
            let found = field(&info, name)?;
            ensure!(found == value, "{line} prints {found} for {name}, not {value}");
        }
    }
    let devinfo = ground.said_on(BOTH, "ibv_devinfo")?;
    ensure!(
        devinfo.matches("PORT_ACTIVE").count() == 2,
        "ibv_devinfo does not print two active ports: {devinfo}"
    );
    Ok(())
}

/// A port whose cable fails does not affect the other one.
fn goes_down_alone(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let node = shown.node(BOTH)?;
    let (switch, port) = shown.far(node, 1).context("a cable")?;
    let (end, far) = (format!("{}:1", node.id), format!("{}:{port}", switch.id));
    ground.rdmux(&["fabric", "link", "down", &end, &far])?;
    ground.until("down at port 1", || Ok(state(ground, 1)? == "Down"))?;
    ensure!(state(ground, 2)? == "Active", "the other port went down, too");
    ground.said_on(BOTH, "sminfo -P 2")?;
    ground.rdmux(&["fabric", "link", "up", &end, &far])?;
    ground.until("active again", || Ok(state(ground, 1)? == "Active"))
}
