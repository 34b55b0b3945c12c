//! Runs the same command lines with Debian's ib_acme and with rdmux's, with one service: the output and the exit status are the same.

use anyhow::{Context as _, Result, ensure};

use super::super::ground::{self, Ground, HOSTS, Shown as _};
use super::{SOCKET, THEIR_TOOL, Whose, ipv6, said_by_both, serve};

/// Compares the two tools with rdmux's service.
pub(crate) fn of_ours(ground: &Ground) -> Result<()> {
    compared(ground, Whose::Ours)
}

/// Compares the two tools with Debian's service.
pub(crate) fn of_theirs(ground: &Ground) -> Result<()> {
    compared(ground, Whose::Debian)
}

/// Compares the two tools. The second host has `whose` service; the other host always has Debian's, as a destination.
fn compared(ground: &Ground, whose: Whose) -> Result<()> {
    for protocol in ["sa", "acm"] {
        let _other = serve(ground, 0, Whose::Debian, protocol)?;
        let _asked = serve(ground, 1, whose, protocol)?;
        for words in lines(ground)? {
            said_by_both(ground, SOCKET, &words)
                .with_context(|| format!("route_prot {protocol}"))?;
        }
    }
    Ok(())
}

/// The command lines. None waits for an answer that never arrives.
fn lines(ground: &Ground) -> Result<Vec<String>> {
    let shown = ground.show()?;
    let node = |host: usize| shown.node(HOSTS[host]);
    let (own_lid, other_lid) = (ground::lid(node(1)?)?.0, ground::lid(node(0)?)?.0);
    let (own, other) = (ground.address(HOSTS[1])?, ground.address(HOSTS[0])?);
    let (own6, other6) = (ipv6(1), ipv6(0));
    let (own_gid, other_gid) = (ground::port_gid(node(1)?), ground::port_gid(node(0)?));
    let (name, other_name) = (HOSTS[1], HOSTS[0]);
    Ok(vec![
        format!("-f i -s {own} -d {other}"),
        format!("-f i -s {own} -d {other} -c"),
        format!("-f i -s {own} -d {other} -v"),
        format!("-f i -s {own} -d {other} -v -c"),
        format!("-s {own} -d {other} -v"),
        format!("-f i -s {own6} -d {other6} -v"),
        format!("-f i -s {own6} -d {other6} -c"),
        format!("-f n -s {name} -d {other_name} -v"),
        format!("-f n -d {other_name}"),
        format!("-f n -s {name} -d nobody -c"),
        format!("-f n -s {name} -d node[1,1] -v"),
        "-f n -s node2 -d node[1-1] -c".to_owned(),
        format!("-f l -s {own_lid} -d {other_lid} -v"),
        format!("-f l -d {other_lid}"),
        format!("-f g -s {own_gid} -d {other_gid} -v"),
        format!("-f g -d {other_gid}"),
        format!("-C 2 -f i -s {own} -d {other}"),
        format!("-f i -s {own} -d 999.1.1.1"),
        "-e".to_owned(),
        "-e 1".to_owned(),
        "-P".to_owned(),
        "-P col".to_owned(),
        "-P 1".to_owned(),
        "-P all".to_owned(),
        format!("-P s -s {own}"),
    ])
}

/// Compares the two tools without a service: both print the same.
pub(crate) fn of_nobody(ground: &Ground) -> Result<()> {
    let theirs = ground.ends_with(2, &format!("{THEIR_TOOL} -S /nowhere -d 1"))?;
    let ours = Whose::Ours.tool(ground);
    let ours = ground.ends_with(2, &format!("{ours} -S /nowhere -d 1"))?;
    ensure!(theirs == ours, "Debian's ib_acme prints {theirs:?}, rdmux's {ours:?}");
    Ok(())
}
