//! Sends the same requests to Debian's service and to rdmux's, on a host whose peers have no service: with both tools the exit
//! status and the output are the same.

use std::fs;
use std::net::TcpListener;

use anyhow::{Context as _, Result, ensure};

use super::super::TIMEOUT;
use super::super::ground::{self, Ground, HOSTS, Shown as _};
use super::{
    Counters, SOCKET, Said, UNANSWERED, Whose, command, ipv6, said_by_both, socket, start,
};
use crate::process::Process;

/// Routes from OpenSM's dump, and the GIDs of hosts: entries of the files are resolved without a query.
pub(crate) fn by_files(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let [other, own] = HOSTS.map(|host| shown.node(host));
    let (other, own) = (other?, own?);
    let (lid, gid) = (ground::lid(other)?.0, ground::port_gid(other));
    let [routes, hosts] = ["routes", "hosts"].map(|it| ground.dir().join(format!("acm-{it}.data")));
    // An MTU less than the links', which is in no other source.
    let dump = [(own, lid), (other, ground::lid(own)?.0)].map(|(node, far)| {
        let (guid, base) = (ground::port_guid(node), ground::lid(node).unwrap_or_default().0);
        format!(
            "Channel Adapter 0x{guid:016x}, base LID {base}, LMC 0\n# LID : SL : MTU : RATE\n\
             {base:#06x} : 0 : 5 : 16\n{far:#06x} : 0 : 4 : 3\n0x0777 : UNREACHABLE\n\n"
        )
    });
    fs::write(&routes, dump.concat())?;
    fs::write(&hosts, format!("far {gid}\n192.0.2.9 {gid}\nfd00:ad::9 {gid}\n"))?;
    let options = format!(
        "{UNANSWERED}route_preload opensm_full_v1\nroute_data_file {}\naddr_preload acm_hosts\n\
         addr_data_file {}\n",
        routes.display(),
        hosts.display()
    );
    let (own_lid, own_gid) = (ground::lid(own)?.0, ground::port_gid(own));
    let (name, ip) = (HOSTS[1], ground.address(HOSTS[1])?);
    let lines = [
        format!("-f l -s {own_lid} -d {lid}"),
        format!("-f g -s {own_gid} -d {gid}"),
        format!("-f n -s {name} -d far"),
        format!("-f i -s {ip} -d 192.0.2.9"),
        format!("-f i -s {} -d fd00:ad::9", ipv6(1)),
    ];
    for protocol in ["sa", "acm"] {
        let ask = || {
            let before = Counters::of(ground, name)?;
            let said = all(ground, SOCKET, &lines)?;
            for (code, path) in &said {
                let is_of_file = [format!("dlid: {lid}"), "mtu: 4".into(), "rate: 3".into()]
                    .iter()
                    .all(|field| path.lines().any(|line| line.trim() == field));
                ensure!(*code == Some(0) && is_of_file, "not the file's path: {path}");
            }
            let asked = Counters::of(ground, name)?.since(before);
            let queries = (asked.address_queries, asked.route_queries);
            ensure!(
                queries == (0, 0),
                "the service sent queries for preloaded addresses or routes: {asked:?}"
            );
            Ok(said)
        };
        alike(|whose| {
            let line = command(ground, 1, whose, protocol, &options)?;
            let _service = start(ground, name, &line)?;
            ask()
        })
        .with_context(|| format!("route_prot {protocol}"))?;
    }
    Ok(())
}

/// Unknown names and addresses: after the last try, the same error. All requests have a source: for a name without one rdmux's service
/// chooses it, and Debian's refuses.
pub(crate) fn of_strangers(ground: &Ground) -> Result<()> {
    let (name, ip) = (HOSTS[1], ground.address(HOSTS[1])?);
    let lines = [
        format!("-f n -s {name} -d nobody"),
        format!("-f i -s {ip} -d 192.0.2.7"),
        format!("-f i -s {} -d fd00:ad::7", ipv6(1)),
    ];
    alike(|whose| {
        let line = command(ground, 1, whose, "acm", "timeout 40\nretries 0\n")?;
        let _service = start(ground, name, &line)?;
        let said = all(ground, SOCKET, &lines)?;
        for (_, said) in &said {
            ensure!(said.contains("failed"), "{said}");
        }
        Ok(said)
    })
}

/// Resolves the host's own addresses: a path to itself.
pub(crate) fn of_itself(ground: &Ground) -> Result<()> {
    let (name, ip) = (HOSTS[1], ground.address(HOSTS[1])?);
    let lines = [
        format!("-f n -s {name} -d {name}"),
        format!("-f i -s {ip} -d {ip}"),
        format!("-f i -s {0} -d {0} -c", ipv6(1)),
    ];
    alike(|whose| {
        let options = format!("{UNANSWERED}loopback_prot local\n");
        let line = command(ground, 1, whose, "acm", &options)?;
        let _service = start(ground, name, &line)?;
        let said = all(ground, SOCKET, &lines)?;
        ensure!(said.iter().all(|(code, _)| *code == Some(0)), "{said:?}");
        Ok(said)
    })
}

/// Services that listen at a TCP port, which a file contains.
pub(crate) fn by_tcp(ground: &Ground) -> Result<()> {
    let name = HOSTS[1];
    let lines = ["-e", "-e 1", "-f n -s node2 -d nobody -c", "-P col"].map(str::to_owned);
    for mode in ["loop", "open"] {
        alike(|whose| {
            let _service = listening(ground, whose, mode)?;
            let said = all(ground, "127.0.0.1", &lines[..3])?;
            // The counters differ. It is enough that both tools print the same.
            all(ground, "127.0.0.1", &lines[3..])?;
            ensure!(said[0].1.contains(name), "no endpoint of {name}: {}", said[0].1);
            Ok(said)
        })
        .with_context(|| format!("server_mode {mode}"))?;
    }
    Ok(())
}

/// Starts a service in a TCP mode, at an unused port.
fn listening(ground: &Ground, whose: Whose, mode: &str) -> Result<Listening> {
    let name = HOSTS[1];
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let options = format!("{UNANSWERED}server_mode {mode}\nserver_port {port}\n");
    let line = command(ground, 1, whose, "acm", &options)?;
    let files = ["ibacm.port", "ibacm-tcp.port"].map(|it| socket(ground, name).with_file_name(it));
    let mut process = ground.start(name, &format!("{name}-acm"), &line)?;
    let tells = || {
        files
            .iter()
            .all(|file| fs::read_to_string(file).is_ok_and(|at| at.trim() == port.to_string()))
    };
    process.until("listening", TIMEOUT, |_| Ok(tells() && ground::listens(port)))?;
    Ok(Listening { _process: process, files })
}

/// A service, and the files that contain its port: Debian's leaves them behind, and programs would read them.
struct Listening {
    _process: Process,
    files: [std::path::PathBuf; 2],
}

impl Drop for Listening {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

/// Returns the output of both tools for some command lines.
fn all(ground: &Ground, place: &str, lines: &[String]) -> Result<Vec<Said>> {
    lines.iter().map(|words| said_by_both(ground, place, words)).collect()
}

/// Checks that the output with Debian's service is that with rdmux's.
fn alike(said_of: impl Fn(Whose) -> Result<Vec<Said>>) -> Result<()> {
    let of = |whose| said_of(whose).with_context(|| format!("with the {whose:?} service"));
    let (theirs, ours) = (of(Whose::Debian)?, of(Whose::Ours)?);
    for (theirs, ours) in theirs.iter().zip(&ours) {
        ensure!(theirs == ours, "Debian's service gives {theirs:?}, rdmux's {ours:?}");
    }
    Ok(())
}
