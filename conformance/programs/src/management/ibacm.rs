//! Debian's ibacm on both hosts, and its ib_acme: addresses are resolved to paths by the service's multicast protocol, and by queries to
//! subnet administration.
//!
//! The service keeps its socket below /run, whatever its options: in the view of a host that is a folder of the host's own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::TIMEOUT;
use super::ground::{self, Ground, HOSTS, Shown as _};

/// Returns the folder that is /run for a host's programs.
fn run_folder(ground: &Ground, host: &str) -> PathBuf {
    ground.dir().join("run/hosts").join(host).join("acm")
}

/// Returns options for paths by the multicast protocol (`acm`), or by queries to administration (`sa`).
fn options(log: &Path, protocol: &str) -> String {
    let log = log.display();
    format!(
        "log_file {log}\nlog_level 1\nlock_file /run/ibacm.pid\nserver_mode unix\naddr_prot acm\n\
         addr_timeout 1440\nroute_prot {protocol}\nroute_timeout -1\nloopback_prot none\n\
         timeout 2000\nretries 2\nresolve_depth 1\nsa_depth 1\nsend_depth 1\nrecv_depth 1024\n\
         min_mtu 2048\nmin_rate 10\nsupport_ips_in_addr_cfg 1\n"
    )
}

/// Resolves addresses by the services' multicast protocol.
pub(crate) fn by_multicast(ground: &Ground) -> Result<()> {
    resolved(ground, "acm")
}

/// Resolves addresses by queries to subnet administration.
pub(crate) fn by_administration(ground: &Ground) -> Result<()> {
    resolved(ground, "sa")
}

fn resolved(ground: &Ground, protocol: &str) -> Result<()> {
    let mut services = Vec::new();
    let mut addresses = Vec::new();
    for host in HOSTS {
        let folder = run_folder(ground, host);
        let ip = ground.address(host)?;
        let (addr, opts) = (
            ground.dir().join(format!("{host}-{protocol}-addr.cfg")),
            ground.dir().join(format!("{host}-{protocol}-opts.cfg")),
        );
        fs::write(&addr, format!("{ip} rdmux_ib0 1 default\n"))?;
        fs::write(&opts, options(&ground.log(&format!("{host}-service")), protocol))?;
        let line = format!("ibacm -P -A {} -O {}", addr.display(), opts.display());
        let socket = folder.join("ibacm-unix.sock");
        // The socket of an earlier service.
        let _ = fs::remove_file(&socket);
        let mut service = ground.start(host, &format!("{host}-ibacm"), &line)?;
        service.until("listening", TIMEOUT, |_| Ok(socket.exists()))?;
        services.push(service);
        addresses.push(ip);
    }
    let shown = ground.show()?;
    let lid = |host| ground::lid(shown.node(host)?);
    let lids = [lid(HOSTS[0])?, lid(HOSTS[1])?];
    for (n, host) in HOSTS.into_iter().enumerate() {
        let (own, other) = (&addresses[n], &addresses[1 - n]);
        let (slid, dlid) = (lids[n], lids[1 - n]);
        let line = format!("ib_acme -f i -s {own} -d {other} -v");
        let said = ask(ground, host, &format!("{host}-acme"), &line)?;
        ensure!(
            said.contains("SA verification: success"),
            "on {host}, the path was not verified: {said}"
        );
        for field in [format!("slid: {}", slid.0), format!("dlid: {}", dlid.0)] {
            ensure!(said.lines().any(|line| line.trim() == field), "no {field} in {said}");
        }
        // Again, from its cache.
        let said = ask(ground, host, &format!("{host}-again"), &format!("{line} -c"))?;
        ensure!(
            said.contains("SA verification: success"),
            "on {host}, the path is not cached: {said}"
        );
    }
    Ok(())
}

fn ask(ground: &Ground, host: &str, role: &str, line: &str) -> Result<String> {
    let mut acme = ground.start(host, role, line)?;
    acme.succeed(TIMEOUT).context("ib_acme")?;
    Ok(acme.printed())
}
