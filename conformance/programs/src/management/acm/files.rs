//! The files that rdmux's `ib_acme -A -O` writes, read by Debian's service.

use anyhow::{Result, ensure};

use super::super::ground::{Ground, HOSTS};
use super::{SOCKET, THEIR_TOOL, Whose, start};

/// The files of both hosts are where the services look for them: no command line names them.
pub(crate) fn are_read(ground: &Ground) -> Result<()> {
    let config = format!("XDG_CONFIG_HOME={}", ground.dir().join("acm-config").display());
    let mut services = Vec::new();
    for host in HOSTS {
        ground.said_on(host, &format!("{config} {} -A -O", Whose::Ours.tool(ground)))?;
        services.push(start(ground, host, &format!("{config} ibacm -P"))?);
    }
    let [own, other] = HOSTS;
    let address = ground.address(own)?;
    // The service opens the address file after its socket.
    let known =
        |said: &str| [own, &format!("{own}-1"), &*address].iter().all(|it| said.contains(it));
    let endpoints = || ground.said_on(own, &format!("{THEIR_TOOL} -S {SOCKET} -e"));
    ground.until("an endpoint with all addresses", || Ok(known(&endpoints()?)))?;
    let line = format!("{THEIR_TOOL} -S {SOCKET} -f n -s {own} -d {other} -v");
    let said = ground.said_on(own, &line)?;
    ensure!(said.contains("SA verification: success"), "{said}");
    Ok(())
}
