//! OpenSM and the manager that is part of the fabric: the choice of the master, and handover between them.
//!
//! Both check every second whether something has changed, and a standby polls its master twice a second.

use anyhow::{Context, Result, ensure};
use rdmux_fabric::FabricName;
use rdmux_fabric::client::Attachment;
use rdmux_fabric::proto::{ManagerStatus, NodeView, Snapshot};
use rdmux_subnet::PortEvent;
use rdmux_wire::{Guid, Lid};

use super::Ground;
use super::bring_up::all_is_active;
use super::ground::{self, HOSTS, Shown};
use super::opensm::{Conf, OpenSm};

/// A row: the subnet, the priority of the fabric's manager, and the test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handover {
    /// The title.
    pub(crate) title: &'static str,
    /// The subnet.
    pub(crate) subnet: Subnet,
    /// The priority of the fabric's manager.
    pub(crate) priority: &'static str,
    /// The test.
    pub(crate) run: fn(&Ground) -> Result<()>,
}

/// The subnet, and the places of the managers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subnet {
    /// One switch with adapters.
    Switch,
    /// Two switches with a cable between them, the first of which has this GUID: the fabric's manager is on the first, OpenSM on an
    /// adapter of the second.
    Cable(u64),
}

impl Subnet {
    /// Returns a shape, or the text of a topology file.
    pub(crate) fn shape(self) -> String {
        match self {
            Self::Switch => "switch:8".to_owned(),
            Self::Cable(guid) => include_str!("handover/two.net")
                .replace("{near}", &format!("{guid:#x}"))
                .replace("{far}", &format!("{:#x}", guid + 0x100)),
        }
    }
}

impl Handover {
    /// Returns the options of `rdmux fabric up` for the manager.
    pub(crate) fn options(&self) -> [&'static str; 6] {
        ["--sm-priority", self.priority, "--sm-sweep", "1", "--sm-poll", "0.5"]
    }
}

/// The rows, and whether CI runs them.
pub(crate) const ROWS: [(Handover, bool); 7] = [
    (
        row("opensm, and the fabric's manager with a lower priority", Subnet::Switch, "3", lower),
        true,
    ),
    (
        row(
            "opensm, whose priority falls below that of the fabric's manager",
            Subnet::Switch,
            "3",
            falls,
        ),
        true,
    ),
    (
        row(
            "opensm, and the fabric's manager with the same priority and a lower GUID",
            LOW,
            "5",
            lower_guid,
        ),
        false,
    ),
    (
        row(
            "opensm, and the fabric's manager with the same priority and a higher GUID",
            HIGH,
            "5",
            higher_guid,
        ),
        false,
    ),
    (
        row("opensm, killed as the master of the fabric's manager", Subnet::Switch, "2", killed),
        true,
    ),
    (
        row(
            "opensm, in a subnet that is joined to that of a worse manager in the fabric",
            LOW,
            "1",
            joined,
        ),
        false,
    ),
    (
        row(
            "opensm, in a subnet that is joined to that of a better manager in the fabric",
            LOW,
            "7",
            woken,
        ),
        true,
    ),
];

const fn row(
    title: &'static str,
    subnet: Subnet,
    priority: &'static str,
    run: fn(&Ground) -> Result<()>,
) -> Handover {
    Handover { title, subnet, priority, run }
}

/// Switches whose GUIDs are lower than those of adapters.
const LOW: Subnet = Subnet::Cable(0x1000);
/// Switches whose GUIDs are higher.
const HIGH: Subnet = Subnet::Cable(0x5000);
/// The ends of the cable.
const CABLE: [&str; 2] = ["near:2", "far:1"];

/// Returns the configuration of OpenSM with this priority. It polls its master every half second, and takes over after two lost answers.
fn conf(priority: u8) -> Conf {
    Conf::default()
        .with("sm_priority", priority)
        .with("sweep_interval", 1)
        .with("sminfo_polling_timeout", 500)
        .with("polling_retry_number", 2)
}

/// Starts OpenSM on the first host.
fn start(ground: &Ground, priority: u8) -> Result<OpenSm> {
    OpenSm::start(ground, HOSTS[0], "opensm", &conf(priority))
}

/// OpenSM has the higher priority, and takes over from the fabric's manager. When it ends, the fabric's takes over again. Both
/// make the ports reregister, and no port gets another LID.
fn lower(ground: &Ground) -> Result<()> {
    ours_is_master(ground, 3)?;
    let lids = lids(&ground.show()?)?;
    let mut witness = Witness::attach(ground)?;
    let mut opensm = start(ground, 7)?;
    opensm.says("Entering MASTER state", 1)?;
    opensm.subnet_is_up(1)?;
    opensm_is_master(ground, 7)?;
    witness.is_asked_to_register(ground, "by OpenSM")?;
    ensure!(self::lids(&ground.show()?)? == lids, "OpenSM gave ports other LIDs");
    opensm.stop()?;
    ours_is_master(ground, 3)?;
    witness.is_asked_to_register(ground, "by the fabric's manager")?;
    ensure!(self::lids(&ground.show()?)? == lids, "the fabric's manager gave ports other LIDs");
    Ok(())
}

/// OpenSM is the master until its priority is lowered. Then it hands over to the fabric's manager, and becomes a standby. When its
/// priority is raised, it becomes the master again.
fn falls(ground: &Ground) -> Result<()> {
    let mut witness = Witness::attach(ground)?;
    let mut opensm = start(ground, 7)?;
    opensm.subnet_is_up(1)?;
    opensm_is_master(ground, 7)?;
    witness.is_asked_to_register(ground, "by OpenSM")?;
    opensm.reconfigure(&conf(1))?;
    opensm.says("Entering STANDBY state", 1)?;
    ours_is_master(ground, 3)?;
    witness.is_asked_to_register(ground, "by the fabric's manager")?;
    opensm.reconfigure(&conf(9))?;
    opensm.says("Entering MASTER state", 2)?;
    opensm_is_master(ground, 9)?;
    opensm.end()
}

/// Of two managers with the same priority the one with the lower port GUID is the master: here the fabric's stays master.
fn lower_guid(ground: &Ground) -> Result<()> {
    ours_is_master(ground, 5)?;
    let mut opensm = start(ground, 5)?;
    opensm.says("Entering STANDBY state", 1)?;
    ours_is_master(ground, 5)?;
    opensm.has_no_complaint()?;
    opensm.end()
}

/// Two managers with the same priority and the opposite GUIDs: OpenSM becomes the master, though it starts later.
fn higher_guid(ground: &Ground) -> Result<()> {
    ours_is_master(ground, 5)?;
    let mut opensm = start(ground, 5)?;
    opensm.subnet_is_up(1)?;
    opensm_is_master(ground, 5)?;
    opensm.stop()
}

/// OpenSM is killed: its port's IsSM bit is cleared, and the fabric's manager takes over, until OpenSM is back.
fn killed(ground: &Ground) -> Result<()> {
    let mut witness = Witness::attach(ground)?;
    let mut opensm = start(ground, 9)?;
    opensm.subnet_is_up(1)?;
    opensm_is_master(ground, 9)?;
    witness.is_asked_to_register(ground, "by OpenSM")?;
    opensm.kill()?;
    ours_is_master(ground, 2)?;
    witness.is_asked_to_register(ground, "by the fabric's manager")?;
    let shown = ground.show()?;
    let left = ground::own_port(shown.node(HOSTS[0])?)?;
    ensure!(!left.is_sm, "the killed manager left its IsSM bit");
    let mut back = start(ground, 9)?;
    back.subnet_is_up(1)?;
    opensm_is_master(ground, 9)?;
    back.stop()
}

/// Two subnets, each with a manager, are joined by a cable: OpenSM, which has precedence, becomes the master of both. When the
/// cable is removed, each is master of its own part.
fn joined(ground: &Ground) -> Result<()> {
    ours_is_master(ground, 1)?;
    cable(ground, "down")?;
    let mut opensm = start(ground, 3)?;
    opensm.subnet_is_up(1)?;
    cable(ground, "up")?;
    opensm_is_master(ground, 3)?;
    cable(ground, "down")?;
    ground.until("without its master", || Ok(own(ground)?.state == "master"))?;
    cable(ground, "up")?;
    opensm_is_master(ground, 3)?;
    opensm.end()
}

/// The same, but the fabric's manager has precedence, and OpenSM looks for no changes, not even after traps, until the fabric's
/// manager prompts it.
fn woken(ground: &Ground) -> Result<()> {
    ours_is_master(ground, 7)?;
    cable(ground, "down")?;
    let deaf = conf(3).with("sweep_interval", 0).with("sweep_on_trap", "FALSE");
    let mut opensm = OpenSm::start(ground, HOSTS[0], "opensm", &deaf)?;
    opensm.subnet_is_up(1)?;
    cable(ground, "up")?;
    opensm.says("Entering STANDBY state", 1)?;
    ours_is_master(ground, 7)?;
    // As the master, OpenSM ignores a DISCOVER signal. Then it gets a handover.
    let refused = opensm.said("OSM_SM_SIGNAL_DISCOVER in state MASTER");
    ensure!(refused > 0, "OpenSM's log does not contain that it refuses to discover");
    opensm.end()
}

/// Takes the link between the switches down or up.
fn cable(ground: &Ground, way: &str) -> Result<()> {
    ground.rdmux(&["fabric", "link", way, CABLE[0], CABLE[1]]).map(drop)
}

fn own(ground: &Ground) -> Result<ManagerStatus> {
    ground.status()?.manager.context("the fabric has no manager")
}

/// Waits until the fabric's manager is the master of the whole subnet.
fn ours_is_master(ground: &Ground, priority: u8) -> Result<()> {
    let state = |state: &str| Ok(own(ground)?.state == state && !own(ground)?.sweeping);
    ground.until("master", || state("master"))?;
    is_master(ground, priority, |shown| shown.switches().next().context("a switch"))
}

/// Waits until OpenSM is the master, and the fabric's manager is a standby.
fn opensm_is_master(ground: &Ground, priority: u8) -> Result<()> {
    ground.until("standing by", || Ok(own(ground)?.state == "standby"))?;
    is_master(ground, priority, |shown| shown.node(HOSTS[0]))?;
    let (own, shown) = (own(ground)?, ground.show()?);
    let master = Guid(ground::port_guid(shown.node(HOSTS[0])?));
    ensure!(own.master == Some(master), "the fabric's manager has another master: {own:?}");
    Ok(())
}

/// Waits until all ports have the LID of this manager and are active; sminfo finds it, and every port reaches every other one.
fn is_master(
    ground: &Ground,
    priority: u8,
    which: for<'s> fn(&'s Snapshot) -> Result<&'s NodeView>,
) -> Result<()> {
    ground.until("the manager of all ports", || {
        let shown = ground.show()?;
        let lid = ground::own_port(which(&shown)?)?.lid;
        // While LIDs and routes change, a port may be unreachable.
        let is_its = |node| manager_of(ground, node).is_ok_and(|manager| manager == lid);
        Ok(all_is_active(&shown).is_ok() && shown.adapters().all(is_its))
    })?;
    ground.ways_are_whole()?;
    let shown = ground.show()?;
    let master = which(&shown)?;
    let said = ground.said("sminfo")?;
    let expected = [
        format!("sm lid {} sm guid {:#x},", ground::lid(master)?.0, ground::port_guid(master)),
        format!("priority {priority} state 3 SMINFO_MASTER"),
    ];
    for text in &expected {
        ensure!(said.contains(text), "sminfo does not print {text:?}: {said}");
    }
    ensure!(ground::own_port(master)?.is_sm, "the master's port has no IsSM bit");
    Ok(())
}

/// Returns the manager's LID in a port's PortInfo.
fn manager_of(ground: &Ground, node: &NodeView) -> Result<Lid> {
    let lid = ground::lid(node)?.0;
    let info = ground.said(&format!("smpquery portinfo {lid} 1"))?;
    Ok(Lid(super::diags::field(&info, "SMLid")?.parse()?))
}

fn lids(shown: &Snapshot) -> Result<Vec<Lid>> {
    shown.nodes.iter().map(ground::lid).collect()
}

/// A third host, whose port reports its events.
struct Witness {
    attachment: Attachment,
}

impl Witness {
    /// Attaches the host to the subnet, which has a master.
    fn attach(ground: &Ground) -> Result<Self> {
        let options = ground.connect_options()?;
        let guid = Guid(0x0002_0000_0077_0000);
        let (attachment, _) = Attachment::open(&options, &FabricName::default(), "witness", guid)?;
        Ok(Self { attachment })
    }

    /// Waits until a manager asks the port's programs to reregister.
    fn is_asked_to_register(&mut self, ground: &Ground, what: &str) -> Result<()> {
        let asked = || {
            while let Some(update) = self.attachment.poll_update()? {
                if update.events.contains(&PortEvent::ClientReregister) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        ground.until("asked to register again", asked).with_context(|| what.to_owned())
    }
}
