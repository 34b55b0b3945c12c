//! ACM's services and tools, rdmux's beside Debian's, on the hosts of a fabric.
//!
//! [`lines`] sends the same requests to one service by both tools, [`alike`] to both services where no other host answers, [`mixed`]
//! has one service of each on two hosts, [`files`] has Debian's service read files from rdmux's tool, [`quick`] is the quick start of
//! `docs/acm.md`.

pub(crate) mod alike;
pub(crate) mod files;
pub(crate) mod lines;
pub(crate) mod mixed;
pub(crate) mod quick;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::TIMEOUT;
use super::ground::{Ground, HOSTS};
use crate::process::Process;

/// The socket of a host's service, as its programs see it.
const SOCKET: &str = "/run/ibacm-unix.sock";
/// Debian's tool, also if rdmux's precedes it in the path.
const THEIR_TOOL: &str = "/usr/bin/ib_acme";

/// The implementation of a service or tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Debian,
    Ours,
}

impl Whose {
    fn service(self, ground: &Ground) -> String {
        match self {
            Self::Debian => "ibacm".to_owned(),
            Self::Ours => ground.beside("ib_acm").display().to_string(),
        }
    }

    fn tool(self, ground: &Ground) -> String {
        match self {
            Self::Debian => THEIR_TOOL.to_owned(),
            Self::Ours => ground.beside("ib_acme").display().to_string(),
        }
    }
}

/// Returns the IPv6 address of a host's endpoint in these rows.
fn ipv6(host: usize) -> String {
    format!("fd00:ac::{}", host + 1)
}

/// Returns the path of a host's service socket.
fn socket(ground: &Ground, host: &str) -> PathBuf {
    ground.dir().join("run/hosts").join(host).join("acm/ibacm-unix.sock")
}

/// Starts a service on a host in the foreground, with the route protocol `acm` or `sa`. Its endpoint has the host's name, its IPv4 address
/// and an IPv6 address.
fn serve(ground: &Ground, host: usize, whose: Whose, protocol: &str) -> Result<Process> {
    let line = command(ground, host, whose, protocol, UNANSWERED)?;
    start(ground, HOSTS[host], &line)
}

/// Timeout and retries of multicast requests.
const UNANSWERED: &str = "timeout 2000\nretries 2\n";

/// Returns the command line of a service as [`serve`] starts it, with these additional option lines.
fn command(
    ground: &Ground,
    host: usize,
    whose: Whose,
    protocol: &str,
    options: &str,
) -> Result<String> {
    let more = options;
    let name = HOSTS[host];
    let [addresses, options] =
        ["addr", "opts"].map(|it| ground.dir().join(format!("{name}-{protocol}-{it}.cfg")));
    let endpoint = |address: &str| format!("{address} rdmux_ib0 1 default\n");
    let own = [name.to_owned(), ground.address(name)?, ipv6(host)];
    fs::write(&addresses, own.map(|address| endpoint(&address)).concat())?;
    let log = ground.log(&format!("{name}-service"));
    let text = format!(
        "log_file {}\nlog_level 1\nlock_file /run/ibacm.pid\naddr_prot acm\nroute_prot {protocol}\n\
         loopback_prot none\nsupport_ips_in_addr_cfg 1\n{more}",
        log.display()
    );
    fs::write(&options, text)?;
    let (addresses, options) = (addresses.display(), options.display());
    Ok(format!("{} -P -A {addresses} -O {options}", whose.service(ground)))
}

/// Starts a service by a command line, and waits until it listens.
fn start(ground: &Ground, host: &str, line: &str) -> Result<Process> {
    let socket = socket(ground, host);
    // The socket of an earlier service.
    let _ = fs::remove_file(&socket);
    let mut service = ground.start(host, &format!("{host}-acm"), line)?;
    service.until("listening", TIMEOUT, |_| Ok(socket.exists()))?;
    Ok(service)
}

/// The exit status of a tool, and its output.
type Said = (Option<i32>, String);

/// Returns what both tools print on the second host for a command line with the service at `place`, given by `-S`: it must be the same.
fn said_by_both(ground: &Ground, place: &str, words: &str) -> Result<Said> {
    let said = |whose: Whose| {
        let line = format!("{} -S {place} {words}", whose.tool(ground));
        let role = format!("acme-{whose:?}").to_lowercase();
        let mut process = ground.start(HOSTS[1], &role, &line)?;
        let status = process.finish(TIMEOUT)?;
        Ok::<Said, anyhow::Error>((status.code(), process.printed()))
    };
    let (theirs, ours) = (said(Whose::Debian)?, said(Whose::Ours)?);
    ensure!(theirs == ours, "ib_acme {words}: Debian's prints {theirs:?}, rdmux's {ours:?}");
    Ok(theirs)
}

/// A service's counters of requests received and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    resolves: u64,
    address_queries: u64,
    address_hits: u64,
    route_queries: u64,
}

impl Counters {
    /// Reads those of the service on a host, by Debian's tool. Reading them changes none.
    fn of(ground: &Ground, host: &str) -> Result<Self> {
        let said = ground.said_on(host, &format!("{THEIR_TOOL} -S {SOCKET} -P"))?;
        Self::read(&said).with_context(|| format!("no counters of {host} in {said:?}"))
    }

    /// Reads a row below its heading.
    fn read(said: &str) -> Option<Self> {
        let (names, values) =
            said.lines().zip(said.lines().skip(1)).find(|(names, _)| names.starts_with("svc,"))?;
        let value = |name: &str| {
            let at = names.split(',').position(|it| it == name)?;
            values.split(',').nth(at)?.trim().parse().ok()
        };
        Some(Self {
            resolves: value("Resolve Count")?,
            address_queries: value("Addr Query Count")?,
            address_hits: value("Addr Cache Count")?,
            route_queries: value("Route Query Count")?,
        })
    }

    /// Returns the increase since `before`.
    fn since(self, before: Self) -> Self {
        Self {
            resolves: self.resolves - before.resolves,
            address_queries: self.address_queries - before.address_queries,
            address_hits: self.address_hits - before.address_hits,
            route_queries: self.route_queries - before.route_queries,
        }
    }
}

/// Checks that a tool's output reports that subnet administration confirmed the path between the LIDs.
fn is_verified(said: &str, [from, to]: [u16; 2]) -> Result<()> {
    ensure!(said.contains("SA verification: success"), "not verified: {said}");
    for field in [format!("slid: {from}"), format!("dlid: {to}")] {
        ensure!(said.lines().any(|line| line.trim() == field), "no {field} in {said}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Counters;

    #[test]
    fn counters_are_read_by_their_names() {
        let said = "svc,Error Count,Resolve Count,No Data,Addr Query Count,Addr Cache Count,Route \
                    Query Count,Route Cache Count\n/run/ibacm-unix.sock,8,52,2,5,28,14,27\n\
                    return status 0x0\n";
        let expected =
            Counters { resolves: 52, address_queries: 5, address_hits: 28, route_queries: 14 };
        assert_eq!(Counters::read(said), Some(expected));
        assert_eq!(Counters::read("return status 0x0\n"), None);
        assert_eq!(Counters::read("svc,Error Count\n/run/ibacm-unix.sock,8\n"), None);
    }
}
