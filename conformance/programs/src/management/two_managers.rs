//! Two managers of one subnet: the choice of the master, and takeover.

use anyhow::{Result, ensure};

use super::Ground;
use super::bring_up::all_is_active;
use super::ground::{self, HOSTS, Shown};
use super::opensm::{Conf, OpenSm};

/// Returns the configuration of a manager that polls its master every second, and takes over after two lost answers.
fn manager(priority: u8) -> Conf {
    Conf::default()
        .with("sm_priority", priority)
        .with("sminfo_polling_timeout", 1000)
        .with("polling_retry_number", 2)
}

/// Starts a manager; each has its own host.
fn start(ground: &Ground, which: usize, priority: u8) -> Result<OpenSm> {
    OpenSm::start(ground, HOSTS[which], &format!("opensm-{}", HOSTS[which]), &manager(priority))
}

/// The manager with the higher priority becomes master though it starts later, and the other one becomes a standby. When it
/// ends, the other one takes over.
pub(crate) fn priority(ground: &Ground) -> Result<()> {
    let mut low = start(ground, 0, 3)?;
    low.subnet_is_up(1)?;
    is_master(ground, 0, 3)?;
    let mut high = start(ground, 1, 7)?;
    high.says("Entering MASTER state", 1)?;
    low.says("Entering STANDBY state", 1)?;
    high.subnet_is_up(1)?;
    is_master(ground, 1, 7)?;
    low.has_no_complaint()?;
    high.stop()?;
    low.says("Entering MASTER state", 2)?;
    low.says("SUBNET UP", 2)?;
    is_master(ground, 0, 3)?;
    // Meanwhile it has logged that its master did not answer.
    low.end()
}

/// Of two managers with the same priority the one with the lower port GUID is master, even if it starts later.
pub(crate) fn equal_priority(ground: &Ground) -> Result<()> {
    let mut second = start(ground, 1, 5)?;
    second.subnet_is_up(1)?;
    is_master(ground, 1, 5)?;
    let mut first = start(ground, 0, 5)?;
    first.subnet_is_up(1)?;
    second.says("Entering STANDBY state", 1)?;
    is_master(ground, 0, 5)?;
    first.stop()?;
    second.end()
}

/// The master is killed. Its port's IsSM bit is cleared, and the standby takes over.
pub(crate) fn killed(ground: &Ground) -> Result<()> {
    let mut master = start(ground, 0, 9)?;
    master.subnet_is_up(1)?;
    let mut other = start(ground, 1, 2)?;
    other.says("Entering STANDBY state", 1)?;
    is_master(ground, 0, 9)?;
    master.kill()?;
    other.says("Entering MASTER state", 1)?;
    other.says("SUBNET UP", 1)?;
    is_master(ground, 1, 2)?;
    let killed = ground.show()?;
    ensure!(
        !ground::own_port(killed.node(HOSTS[0])?)?.is_sm,
        "the killed manager left its IsSM bit"
    );
    // The killed manager is restarted, and is master again.
    let mut back = start(ground, 0, 9)?;
    back.subnet_is_up(1)?;
    is_master(ground, 0, 9)?;
    back.stop()?;
    other.says("Entering MASTER state", 2)?;
    other.end()
}

/// Checks the manager that sminfo finds, by its port's GUID and the LID that the fabric shows, and the one in the ports' PortInfo.
fn is_master(ground: &Ground, which: usize, priority: u8) -> Result<()> {
    let shown = ground.show()?;
    all_is_active(&shown)?;
    ground.ways_are_whole()?;
    let master = shown.node(HOSTS[which])?;
    let lid = ground::lid(master)?;
    ensure!(ground::own_port(master)?.is_sm, "the master's port has no IsSM bit");
    let said = ground.said("sminfo")?;
    let guid = format!("sm guid {:#x}", master.guid.0 + 1);
    let expected =
        [format!("sm lid {} ", lid.0), guid, format!("priority {priority} state 3 SMINFO_MASTER")];
    for text in &expected {
        ensure!(said.contains(text), "sminfo does not print {text:?}: {said}");
    }
    for node in shown.adapters() {
        let info = ground.said(&format!("smpquery portinfo {} 1", ground::lid(node)?.0))?;
        let manager = super::diags::field(&info, "SMLid")?;
        ensure!(
            manager == lid.0.to_string(),
            "{} has the manager's LID {manager}, not {}",
            node.id,
            lid.0
        );
    }
    Ok(())
}
