//! Programs that read counters: perfquery and ibqueryerrors.

use anyhow::{Context, Result, bail, ensure};
use rdmux_fabric::proto::NodeView;

use super::super::TIMEOUT;
use super::super::ground::{self, Ground, HOSTS, Shown};
use super::{contains, field, says};

pub(crate) fn counter(output: &str, name: &str) -> Result<u64> {
    let text = field(output, name)?;
    text.parse().with_context(|| format!("{name}: {text}"))
}

/// perfquery: counters of the local port grow with the packets that it sends, and are zero after a reset. In long and
/// short form, of one port and of all.
pub(crate) fn perfquery(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let own = shown.node(HOSTS[1])?;
    let lid = ground::lid(own)?.0;
    for (option, name) in
        [("", "PortXmitPkts"), ("-x ", "PortXmitPkts"), ("-x ", "PortUnicastXmitPkts")]
    {
        let read = || counter(&ground.said(&format!("perfquery {option}{lid} 1"))?, name);
        let before = read()?;
        // Requests to a port's own agents do not use the cable: another port is queried.
        let other = ground::lid(shown.node(HOSTS[0])?)?.0;
        let nodes = 5;
        for _ in 0..nodes {
            ground.said(&format!("smpquery nodeinfo {other}"))?;
        }
        let after = read()?;
        ensure!(
            after >= before + nodes,
            "{name} of perfquery {option}grew only from {before} to {after}"
        );
    }
    reset(ground, own)?;
    all_ports(ground)
}

/// A remote node has counted the data sent to it; then its counters are reset, and count from zero.
fn reset(ground: &Ground, own: &NodeView) -> Result<()> {
    let shown = ground.show()?;
    let far = shown.adapters().filter(|n| n.guid != own.guid).last().context("an adapter")?;
    let lid = ground::lid(far)?.0;
    for _ in 0..4 {
        ground.said(&format!("smpquery nodeinfo {lid}"))?;
    }
    let before = counter(&ground.said(&format!("perfquery {lid} 1"))?, "PortRcvPkts")?;
    ensure!(before >= 4, "{before} packets were received after 4 requests");
    // -R only resets, -r reads before the reset.
    ground.said(&format!("perfquery -R {lid} 1"))?;
    let output = ground.said(&format!("perfquery -r {lid} 1"))?;
    let after = counter(&output, "PortRcvPkts")?;
    ensure!(after < before, "{after} packets after a reset, {before} before it");
    // The extended counters are separate.
    let before = counter(&ground.said(&format!("perfquery -x {lid} 1"))?, "PortRcvPkts")?;
    ground.said(&format!("perfquery -x -R {lid} 1"))?;
    let after = counter(&ground.said(&format!("perfquery -x {lid} 1"))?, "PortRcvPkts")?;
    ensure!(after < before, "{after} packets after a reset, {before} before it");
    Ok(())
}

/// Checks the counters of a switch: each port, and all together.
fn all_ports(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let switch = shown.switches().next().context("a switch")?;
    let lid = ground::lid(switch)?.0;
    let ports = switch.ports.len() - 1;
    let output = ground.said(&format!("perfquery -l -a {lid}"))?;
    let read = output.matches("# Port counters: ").count();
    ensure!(read == ports, "perfquery -l reads {read} of {ports} ports");
    let mut sum = 0;
    for port in 1..=ports {
        sum += counter(&ground.said(&format!("perfquery -x {lid} {port}"))?, "PortRcvPkts")?;
    }
    let output = ground.said(&format!("perfquery -x -a {lid}"))?;
    says(&output, "PortSelect", 255)?;
    let all = counter(&output, "PortRcvPkts")?;
    ensure!(all >= sum && sum > 0, "all ports together have {all} packets, and one by one {sum}");
    Ok(())
}

/// perfquery -X and -S: the data of each service level. Both ends of the cable count the requests to a switch and the answers.
pub(crate) fn by_level(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let lid = ground::lid(shown.node(HOSTS[1])?)?.0;
    let other = ground::lid(shown.node(HOSTS[0])?)?.0;
    for (option, name) in [("-X", "XmtDataSL"), ("-S", "RcvDataSL")] {
        let read = || ground.said(&format!("perfquery {option} {lid} 1"));
        let before = read()?;
        says(&before, "PortSelect", 1)?;
        const REQUESTS: u64 = 5;
        for _ in 0..REQUESTS {
            ground.said(&format!("smpquery nodeinfo {other}"))?;
        }
        let after = read()?;
        // Words of four bytes: of 256 bytes and the headers of each datagram. Subnet management has no service level, and
        // counts as 0; the manager uses no other.
        let grown = counter(&after, &format!("{name}0"))? - counter(&before, &format!("{name}0"))?;
        ensure!(grown >= REQUESTS * 256 / 4, "{name}0 grew by {grown} words");
        for level in 1..16 {
            ensure!(counter(&after, &format!("{name}{level}"))? == 0, "{name}{level}: {after}");
        }
    }
    Ok(())
}

/// perfquery -E and -D report why datagrams were dropped: a LID without a route, and a port without a link.
pub(crate) fn details(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let own = shown.node(HOSTS[1])?;
    let (switch, port) = shown.far(own, 1).context("a cable")?;
    let lid = ground::lid(switch)?.0;
    let free = switch.ports.iter().map(|p| p.number).filter(|number| *number != 0);
    let free = free.rev().find(|number| shown.far(switch, *number).is_none());
    let free = free.context("a switch with a port that is free")?;
    let read = |option: &str, port: u8, name: &str| {
        counter(&ground.said(&format!("perfquery {option} {lid} {port}"))?, name)
    };
    let before = (
        read("-E", port, "PortDLIDMappingErrors")?,
        read("", port, "PortRcvSwitchRelayErrors")?,
        read("-D", free, "PortInactiveDiscards")?,
        read("", free, "PortXmitDiscards")?,
    );
    // No LID is so high. It is requested four times, because libibmad retries.
    ground.refused("ibaddr -t 50 48000")?;
    ground.refused(&format!("smpquery -t 50 -D nodeinfo 0,1,{free}"))?;
    let after = (
        read("-E", port, "PortDLIDMappingErrors")?,
        read("", port, "PortRcvSwitchRelayErrors")?,
        read("-D", free, "PortInactiveDiscards")?,
        read("", free, "PortXmitDiscards")?,
    );
    let grown = (after.0 - before.0, after.1 - before.1, after.2 - before.2, after.3 - before.3);
    ensure!(
        grown.0 > 0 && grown.0 == grown.1,
        "counters of drops by LID: {before:?}, then {after:?}"
    );
    ensure!(
        grown.2 > 0 && grown.2 == grown.3,
        "counters of drops by route: {before:?}, then {after:?}"
    );
    let clear = |port: u8| ground.said(&format!("perfquery -R {lid} {port}"));
    clear(port)?;
    clear(free)?;
    ground.said(&format!("perfquery -E -R {lid} {port}"))?;
    ground.said(&format!("perfquery -D -R {lid} {free}"))?;
    ensure!(read("-E", port, "PortDLIDMappingErrors")? == 0, "the counter was not reset");
    ensure!(read("-D", free, "PortInactiveDiscards")? == 0, "the counter was not reset");
    Ok(())
}

/// Faults of a link are counted: perfquery and ibqueryerrors report as many as there were. Counters that the ports do not have are refused.
pub(crate) fn faults(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let node = shown.adapters().last().context("an adapter")?;
    let lid = ground::lid(node)?.0;
    let at = node.guid.to_string();
    let info = ground.said(&format!("smpquery portinfo {lid} 1"))?;
    let each = |name: &str| -> Result<u64> { Ok(counter(&info, name)? + 1) };
    let (each_integrity, each_overrun) = (each("LocalPhysErr")?, each("OverrunErr")?);
    // Errors of other rows may be in flight to the next port that counts them.
    until_counted(ground, &at, lid, ("integrity", "LocalLinkIntegrityErrors"), each_integrity)?;
    until_counted(ground, &at, lid, ("overrun", "ExcessiveBufferOverrunErrors"), each_overrun)?;
    // ibqueryerrors reads the extended counters.
    for option in ["", "-x "] {
        ground.said(&format!("perfquery {option}-R {lid} 1"))?;
    }
    ground.rdmux(&["fabric", "fault", &at, "integrity", "--times", "33"])?;
    ground.rdmux(&["fabric", "fault", &at, "overrun", "--times", "34"])?;
    let (integrity, overruns) = (33 / each_integrity, 34 / each_overrun);
    let output = ground.said(&format!("perfquery {lid} 1"))?;
    says(&output, "SymbolErrorCounter", 33)?;
    // Fields of four bits, which stick at their largest value.
    says(&output, "LocalLinkIntegrityErrors", integrity.min(15))?;
    says(&output, "ExcessiveBufferOverrunErrors", overruns.min(15))?;
    let output = ground.ends_with(1, "ibqueryerrors -t 20000 -k")?;
    contains(&output, "[SymbolErrorCounter == 33 ")?;
    for option in ["-T", "--oprcvcounters", "--flowctlcounters", "--rcvcc", "--xmitcc", "-c"] {
        contains(&ground.refused(&format!("perfquery {option} {lid} 1"))?, "failed")?;
    }
    Ok(())
}

/// Injects faults of a kind, one at a time, until the counter with that name counts one more, as it does with one of `each`.
fn until_counted(
    ground: &Ground,
    at: &str,
    lid: u16,
    (fault, name): (&str, &str),
    each: u64,
) -> Result<()> {
    ground.said(&format!("perfquery -R {lid} 1"))?;
    for _ in 0..each {
        ground.rdmux(&["fabric", "fault", at, fault, "--times", "1"])?;
        if counter(&ground.said(&format!("perfquery {lid} 1"))?, name)? == 1 {
            return Ok(());
        }
    }
    bail!("{name} did not count after {each} faults")
}

/// ibqueryerrors finds a link that was down, at both of its ends, and nothing else; after a reset it finds nothing.
pub(crate) fn ibqueryerrors(ground: &Ground) -> Result<()> {
    // Resets what other rows have caused, if anything: it ends with 1 if it finds something.
    let reset = ground.start(HOSTS[1], "reset", "ibqueryerrors -t 20000 -k -K")?.finish(TIMEOUT)?;
    ensure!(matches!(reset.code(), Some(0 | 1)), "ibqueryerrors -k -K ended with {reset}");
    let quiet = ground.said("ibqueryerrors -t 20000")?;
    ensure!(errors(&quiet).is_empty(), "errors without a cause: {quiet}");
    let shown = ground.show()?;
    let node = shown.adapters().last().context("an adapter")?;
    let (switch, port) = shown.far(node, 1).context("a cable")?;
    let ends = [format!("{}:1", node.guid), format!("{}:{port}", switch.guid)];
    for way in ["down", "up"] {
        ground.rdmux(&["fabric", "link", way, &ends[0], &ends[1]])?;
    }
    ground.until("swept again", || {
        Ok(super::super::bring_up::all_is_active(&ground.show()?).is_ok())
    })?;
    let output = ground.ends_with(1, "ibqueryerrors -t 20000")?;
    let down = |guid: u64, port: u8| (guid, port, "[LinkDownedCounter == 1".to_owned());
    let expected = vec![down(node.guid.0 + 1, 1), down(switch.guid.0, port)];
    super::same("errors", errors(&output), expected)?;
    contains(&output, &format!("Errors for {:#x} \"{}\"", switch.guid.0, switch.description))?;
    let all = shown.nodes.len();
    contains(&output, &format!("## Summary: {all} nodes checked, 2 bad nodes found"))?;
    ground.ends_with(1, "ibqueryerrors -t 20000 -k")?;
    let quiet = ground.said("ibqueryerrors -t 20000")?;
    ensure!(errors(&quiet).is_empty(), "errors after a reset: {quiet}");
    Ok(())
}

/// Parses lines `   GUID 0x1 port 2: [Counter == 1 (1.000)]`: GUID of the port, its number, the counters and their values.
fn errors(output: &str) -> Vec<(u64, u8, String)> {
    let line = |line: &str| {
        let (guid, rest) = line.trim_start().strip_prefix("GUID ")?.split_once(" port ")?;
        let (port, counters) = rest.split_once(':')?;
        let counters = counters.split_once(" (").map_or(counters, |(counters, _)| counters);
        // The sum of all ports has no number.
        Some((super::number(guid)?, port.parse().ok()?, counters.trim().to_owned()))
    };
    output.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn ibqueryerrors_counts_are_read_per_port_not_port_all() {
        let text = "Errors for 0x100 \"switch\"\n   GUID 0x100 port ALL: [LinkDownedCounter == 2 (2.000)]\n\
                    \x20  GUID 0x100 port 7: [LinkDownedCounter == 1 (1.000)]\n\n## Summary: 3 nodes checked\n";
        assert_eq!(super::errors(text), [(0x100, 7, "[LinkDownedCounter == 1".to_owned())]);
    }
}
