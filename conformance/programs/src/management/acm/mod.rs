//! ACM's services and tools, ours beside Debian's, on the hosts of a fabric.
//!
//! [`lines`] puts the same questions to a service by both tools, [`alike`] to both services where no other host answers, [`mixed`] has a service of
//! each on two hosts, [`files`] has Debian's service read what our tool writes, [`quick`] is the quick start of `docs/acm.md`.

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

/// Where the service of a host is for its programs.
const SOCKET: &str = "/run/ibacm-unix.sock";
/// Debian's tool, also where ours comes before it in the path.
const THEIR_TOOL: &str = "/usr/bin/ib_acme";

/// Whose service or tool it is.
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

/// The IPv6 address that a host's endpoint has here.
fn ipv6(host: usize) -> String {
    format!("fd00:ac::{}", host + 1)
}

/// Where the socket of a host's service lies.
fn socket(ground: &Ground, host: &str) -> PathBuf {
    ground.dir().join("run/hosts").join(host).join("acm/ibacm-unix.sock")
}

/// Starts a service on a host, whose endpoint has the host's name, its IPv4 address and one of IPv6; in the foreground, with the
/// route protocol `acm` or `sa`.
fn serve(ground: &Ground, host: usize, whose: Whose, protocol: &str) -> Result<Process> {
    let line = command(ground, host, whose, protocol, UNANSWERED)?;
    start(ground, HOSTS[host], &line)
}

/// How long a try by multicast is waited for, and how often it is tried again.
const UNANSWERED: &str = "timeout 2000\nretries 2\n";

/// The command line of a service as [`serve`] starts it, with these lines of options, too.
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
    // One of a service before.
    let _ = fs::remove_file(&socket);
    let mut service = ground.start(host, &format!("{host}-acm"), line)?;
    service.until("listening", TIMEOUT, |_| Ok(socket.exists()))?;
    Ok(service)
}

/// The exit status of a tool, and what it printed.
type Said = (Option<i32>, String);

/// What both tools say on the second host to a command line, asking the service at a place that `-S` names: it must be the same.
fn said_by_both(ground: &Ground, place: &str, words: &str) -> Result<Said> {
    let said = |whose: Whose| {
        let line = format!("{} -S {place} {words}", whose.tool(ground));
        let role = format!("acme-{whose:?}").to_lowercase();
        let mut process = ground.start(HOSTS[1], &role, &line)?;
        let status = process.finish(TIMEOUT)?;
        Ok::<Said, anyhow::Error>((status.code(), process.printed()))
    };
    let (theirs, ours) = (said(Whose::Debian)?, said(Whose::Ours)?);
    ensure!(theirs == ours, "ib_acme {words}: {theirs:?} by Debian's, {ours:?} by ours");
    Ok(theirs)
}

/// A service's own sums of what it was asked for and had to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    resolves: u64,
    address_queries: u64,
    address_hits: u64,
    route_queries: u64,
}

impl Counters {
    /// Those of the service on a host, by Debian's tool. Asking for them changes none.
    fn of(ground: &Ground, host: &str) -> Result<Self> {
        let said = ground.said_on(host, &format!("{THEIR_TOOL} -S {SOCKET} -P"))?;
        Self::read(&said).with_context(|| format!("no counters of {host} in {said:?}"))
    }

    /// From a row below its heading.
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

    /// What was added since `before`.
    fn since(self, before: Self) -> Self {
        Self {
            resolves: self.resolves - before.resolves,
            address_queries: self.address_queries - before.address_queries,
            address_hits: self.address_hits - before.address_hits,
            route_queries: self.route_queries - before.route_queries,
        }
    }
}

/// What a tool printed has that subnet administration confirmed the path between the LIDs.
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
