//! Debian's service on one host and rdmux's on the other: each resolves the other's addresses by multicast, and sends no further
//! request for cached ones.
//!
//! Both have the same route protocol. A host with `acm` beside one with `sa` takes the path of the common group, which is the slowest, and
//! queries administration for exactly that rate. This manager then finds no path. Two ibacm of rdma-core behave the same.

use anyhow::{Context, Result, ensure};

use super::super::ground::{self, Ground, HOSTS, Shown as _};
use super::{Counters, SOCKET, Whose, command, is_verified, serve, start};

/// Paths made of the groups that both have joined.
pub(crate) fn by_multicast(ground: &Ground) -> Result<()> {
    resolved(ground, "acm")
}

/// Addresses by multicast, paths by administration.
pub(crate) fn by_administration(ground: &Ground) -> Result<()> {
    resolved(ground, "sa")
}

fn resolved(ground: &Ground, protocol: &str) -> Result<()> {
    // The first requester must not know the other one from its request: each is the first once.
    for first in [0, 1] {
        let services = [(0, Whose::Debian), (1, Whose::Ours)];
        let mut processes = Vec::new();
        for (host, whose) in services {
            processes.push(serve(ground, host, whose, protocol)?);
        }
        for from in [first, 1 - first] {
            resolves(ground, from, from == first).with_context(|| {
                let whose = services[from].1;
                format!("route_prot {protocol}, requested from the {whose:?} service")
            })?;
        }
    }
    Ok(())
}

/// Resolves GIDs and LIDs. Both services query administration for them at once, with either route protocol, because neither answers for
/// them by multicast.
pub(crate) fn by_ports(ground: &Ground) -> Result<()> {
    /// Options with which no row lasts as long as three unanswered tries by multicast.
    const PATIENT: &str = "timeout 120000\nretries 2\n";
    for protocol in ["acm", "sa"] {
        let serve = |host, whose| {
            start(ground, HOSTS[host], &command(ground, host, whose, protocol, PATIENT)?)
        };
        let _services = [serve(0, Whose::Debian)?, serve(1, Whose::Ours)?];
        for from in [1, 0] {
            resolves_ports(ground, from)
                .with_context(|| format!("route_prot {protocol}, requested on {}", HOSTS[from]))?;
        }
    }
    Ok(())
}

/// Queries one host's service for the other host's GID and LID: each request causes one query to administration.
fn resolves_ports(ground: &Ground, from: usize) -> Result<()> {
    let (host, to) = (HOSTS[from], 1 - from);
    let shown = ground.show()?;
    let node = |host: usize| shown.node(HOSTS[host]);
    let lids = [ground::lid(node(from)?)?.0, ground::lid(node(to)?)?.0];
    let (own, other) = (ground::port_gid(node(from)?), ground::port_gid(node(to)?));
    for words in
        [format!("-f g -s {own} -d {other}"), format!("-f l -s {} -d {}", lids[0], lids[1])]
    {
        let resolve = format!("{} -S {SOCKET} {words}", Whose::Debian.tool(ground));
        let before = Counters::of(ground, host)?;
        ground.said_on(host, &resolve)?;
        let asked = Counters::of(ground, host)?.since(before);
        ensure!(
            (asked.resolves, asked.route_queries) == (1, 1),
            "{words}: not one resolve and one route query: {asked:?}"
        );
        is_verified(&ground.said_on(host, &format!("{resolve} -v"))?, lids)?;
    }
    Ok(())
}

/// Queries one host's service for the other host twice. The second time the service sends no request.
fn resolves(ground: &Ground, from: usize, is_first: bool) -> Result<()> {
    let (host, to) = (HOSTS[from], 1 - from);
    let shown = ground.show()?;
    let lid = |host: usize| ground::lid(shown.node(HOSTS[host])?);
    let lids = [lid(from)?.0, lid(to)?.0];
    let (own, other) = (ground.address(host)?, ground.address(HOSTS[to])?);
    let asked = [
        format!("-f i -s {own} -d {other}"),
        format!("-f i -s {} -d {}", super::ipv6(from), super::ipv6(to)),
        format!("-f n -s {host} -d {}", HOSTS[to]),
    ];
    // The second requester has received the other's request, so one address is enough.
    let asked = if is_first { &asked[..] } else { &asked[..1] };
    for (n, words) in asked.iter().enumerate() {
        let whose = if n == 0 { Whose::Debian } else { Whose::Ours };
        let resolve = format!("{} -S {SOCKET} {words}", whose.tool(ground));
        let before = Counters::of(ground, host)?;
        ground.said_on(host, &resolve)?;
        let known = Counters::of(ground, host)?;
        let first = known.since(before);
        ensure!(first.resolves == 1, "{words}: not one resolve: {first:?}");
        if is_first && n == 0 {
            ensure!(
                first.address_queries == 1,
                "{words}: the first resolve sent no address query: {first:?}"
            );
        }
        ground.said_on(host, &format!("{resolve} -c"))?;
        let second = Counters::of(ground, host)?.since(known);
        let asked = (second.address_queries, second.route_queries);
        ensure!(
            second.resolves == 1 && asked == (0, 0),
            "{words}: the second resolve was not answered from the cache: {second:?}"
        );
        is_verified(&ground.said_on(host, &format!("{resolve} -v"))?, lids)?;
    }
    Ok(())
}
