//! Partitions that change while the fabric is up, as `smpquery` and `saquery` see them.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::Ground;
use super::bring_up::pkeys;
use super::ground::{self, HOSTS, Shown};

/// The hosts are in a partition, then in another one, too, and finally a file is invalid.
pub(crate) fn while_up(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let [one, two] = [shown.node(HOSTS[0])?, shown.node(HOSTS[1])?];
    let [a, b] = [one, two].map(ground::port_guid);
    let file = ground.dir().join("partitions.conf");
    let name = file.to_str().context("a path")?;
    let change = |text: &str| {
        fs::write(&file, text)?;
        ground.rdmux(&["fabric", "partitions", name])
    };
    let has = |node, expected: &[u16]| {
        let lid = ground::lid(node)?.0;
        let wanted = format!("with the P_Keys {expected:04x?}");
        ground.until(&wanted, || {
            Ok(pkeys(&ground.said(&format!("smpquery pkeys {lid}"))?) == expected)
        })
    };
    has(one, &[0xffff])?;
    let default = "Default=0x7fff, ipoib: ALL=full;\n";
    change(&format!("{default}Lab=0x20, ipoib: {a:#x}=full, {b:#x}=limited;\n"))?;
    has(one, &[0xffff, 0x8020])?;
    has(two, &[0xffff, 0x0020])?;
    change(&format!(
        "{default}Low=0x10, ipoib, rate=7: {a:#x}=full;\nLab=0x20: {a:#x}, {b:#x}=full;\n"
    ))?;
    // Their earlier key keeps its index, also with another kind of membership.
    has(one, &[0xffff, 0x0020, 0x8010])?;
    has(two, &[0xffff, 0x8020])?;
    let groups = ground.said_on(HOSTS[0], "saquery -g")?;
    let found = |mgid: &str| groups.contains(mgid);
    ensure!(
        found("ff12:401b:8010::ffff:ffff"),
        "the group of a new partition is missing: {groups}"
    );
    ensure!(
        !found("ff12:401b:8020::ffff:ffff"),
        "the group of a removed partition still exists: {groups}"
    );
    let Err(refused) = change("Default=0x7fff: ALL;\nLab=0x20, mtu=9: ALL;") else {
        anyhow::bail!("an invalid file was accepted");
    };
    let says = format!("{name}: line 2, at `9`: ");
    ensure!(
        format!("{refused:#}").contains(&says),
        "the error does not name the place: {refused:#}"
    );
    has(one, &[0xffff, 0x0020, 0x8010])?;
    let kept = ground.status()?.manager.context("a manager")?.partitions;
    ensure!(kept.as_deref() == Some(name), "the fabric's partitions are from {kept:?}");
    Ok(())
}
