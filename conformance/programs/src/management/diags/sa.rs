//! saquery: the records of subnet administration, by RMPP where there are many.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::{NodeView, Snapshot};
use rdmux_wire::Lid;

use super::super::ManagedBy;
use super::super::ground::{self, Ground, Shown};
use super::{contains, field, number, own, same};

/// A record in its output: lines `name....value`.
pub(super) struct Record<'o>(&'o str);

impl Record<'_> {
    /// Returns the value of a field.
    pub(super) fn text(&self, name: &str) -> Result<String> {
        let value = |line: &str| {
            let rest = line.trim_start().strip_prefix(name)?.strip_prefix('.')?;
            Some(rest.trim_start_matches('.').trim().to_owned())
        };
        self.0
            .lines()
            .find_map(value)
            .with_context(|| format!("a record without {name}: {}", self.0))
    }

    /// Returns the value of a field as a number.
    pub(super) fn number(&self, name: &str) -> Result<u64> {
        let text = self.text(name)?;
        number(&text).with_context(|| format!("{name}: {text}"))
    }
}

/// Returns the records in its output: each begins with a line `SomeRecord dump:`, at most one blank before it.
pub(super) fn records(output: &str) -> Vec<Record<'_>> {
    let mut starts: Vec<usize> = Vec::new();
    let mut at = 0;
    for line in output.split_inclusive('\n') {
        if line.trim_end().ends_with("dump:") && !line.starts_with('\t') {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().copied().skip(1).chain([output.len()]);
    starts.iter().zip(ends).map(|(start, end)| Record(&output[*start..end])).collect()
}

/// NodeRecords: all nodes by LID, GUID and description; one by name, LID and GUID.
pub(crate) fn nodes(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let output = ground.said("saquery NodeRecord")?;
    let mut printed = Vec::new();
    for record in records(&output) {
        let name = record.text("NodeDescription")?;
        printed.push((record.number("lid")?, record.number("node_guid")?, name));
    }
    let mut expected = Vec::new();
    for node in &shown.nodes {
        expected.push((u64::from(ground::lid(node)?.0), node.guid.0, node.description.clone()));
    }
    same("NodeRecords", printed, expected)?;
    let node = shown.adapters().last().context("an adapter")?;
    let (name, lid, guid) = (&node.description, ground::lid(node)?.0, node.guid.0 + 1);
    let trimmed = |line: &str| Ok::<_, anyhow::Error>(ground.said(line)?.trim().to_owned());
    ensure!(trimmed(&format!("saquery -l {name}"))? == lid.to_string(), "saquery -l {name}");
    ensure!(trimmed(&format!("saquery -L {name}"))? == lid.to_string(), "saquery -L {name}");
    contains(&trimmed(&format!("saquery -G {name}"))?, &format!("{guid:#018x}"))?;
    contains(&trimmed(&format!("saquery -O {lid}"))?, name)?;
    contains(&trimmed(&format!("saquery -U {guid:#x}"))?, name)
}

/// PortInfoRecords of all ports, and those of managers.
pub(crate) fn ports(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let output = ground.said("saquery PortInfoRecord")?;
    let mut printed = Vec::new();
    for record in records(&output) {
        let state = field(record.0, "LinkState")?;
        printed.push((record.number("EndPortLid")?, record.number("PortNum")?, state));
    }
    let mut expected = Vec::new();
    for node in &shown.nodes {
        let lid = u64::from(ground::lid(node)?.0);
        for port in &node.ports {
            let state = if port.state == 4 { "Active" } else { "Down" };
            expected.push((lid, u64::from(port.number), state.to_owned()));
        }
    }
    same("PortInfoRecords", printed, expected)?;
    let output = ground.said("saquery -s")?;
    let found = records(&output);
    let manager = ground::lid(ground.manager_in(&shown)?)?;
    ensure!(found.len() == 1, "saquery -s finds {} managers: {output}", found.len());
    ensure!(found[0].number("EndPortLid")? == u64::from(manager.0), "saquery -s: {output}");
    Ok(())
}

/// SwitchInfoRecords, LFTRecords and MFTRecords: the tables of the fabric.
pub(crate) fn forwarding(ground: &Ground) -> Result<()> {
    let (shown, tables) = (ground.show()?, ground.tables()?);
    let lid = |node: u32| ground::lid(&shown.nodes[node as usize]).map(|lid| u64::from(lid.0));
    let output = ground.said("saquery SwitchInfoRecord")?;
    let mut printed = Vec::new();
    for record in records(&output) {
        printed.push((record.number("LID")?, record.number("LinearFDBTop")?));
    }
    let mut expected = Vec::new();
    for table in &tables.switches {
        expected.push((lid(table.node)?, table.linear.len() as u64 - 1));
    }
    same("SwitchInfoRecords", printed, expected)?;
    let output = ground.said("saquery LFTRecord")?;
    let mut printed = Vec::new();
    for record in records(&output) {
        let switch = record.number("LID")?;
        printed.extend(pairs(record.0).into_iter().map(|(lid, port)| (switch, lid, port)));
    }
    // A block has 64 entries, including those without a route.
    printed.retain(|(.., port)| *port != 0xff);
    let mut expected = Vec::new();
    for table in &tables.switches {
        let switch = lid(table.node)?;
        let entries = (0..).zip(&table.linear).filter(|(_, port)| **port != 0xff);
        expected.extend(entries.map(|(lid, port)| (switch, lid, u64::from(*port))));
    }
    same("LFTRecords", printed, expected)?;
    let output = ground.said("saquery MFTRecord")?;
    let mut printed = BTreeSet::new();
    for record in records(&output) {
        let (switch, first) = (record.number("LID")?, record.number("Position")? * 16);
        for (group, mask) in pairs(record.0) {
            let ports = (0..16).filter(|bit| mask & 1 << bit != 0).map(|bit| first + bit);
            printed.extend(ports.map(|port| (switch, group, port)));
        }
    }
    let mut expected = BTreeSet::new();
    for table in &tables.switches {
        let switch = lid(table.node)?;
        for (group, ports) in &table.multicast {
            expected
                .extend(ports.iter().map(|port| (switch, u64::from(group.0), u64::from(*port))));
        }
    }
    same("MFTRecords", printed.into_iter().collect(), expected.into_iter().collect())
}

/// Parses lines of two numbers, of tables.
fn pairs(text: &str) -> Vec<(u64, u64)> {
    let pair = |line: &str| {
        let mut words = line.split_whitespace();
        let pair = (number(words.next()?)?, number(words.next()?)?);
        words.next().is_none().then_some(pair)
    };
    text.lines().filter_map(pair).collect()
}

/// LinkRecords: each cable at both ends.
pub(crate) fn links(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let output = ground.said("saquery -x")?;
    let mut printed = Vec::new();
    for record in records(&output) {
        let names = ["FromLID", "FromPort", "ToLID", "ToPort"];
        let [a, b, c, d] = names.map(|name| record.number(name));
        printed.push((a?, b?, c?, d?));
    }
    let mut expected = Vec::new();
    for link in &shown.links {
        let lid =
            |(node, _): (u32, u8)| ground::lid(&shown.nodes[node as usize]).map(|l| u64::from(l.0));
        let (a, b) = (lid(link.a)?, lid(link.b)?);
        let ports = (u64::from(link.a.1), u64::from(link.b.1));
        expected.extend([(a, ports.0, b, ports.1), (b, ports.1, a, ports.0)]);
    }
    same("LinkRecords", printed, expected)
}

/// PathRecords: by names, by GIDs, from one adapter to all, and from all to all.
pub(crate) fn paths(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let adapters: Vec<&NodeView> = shown.adapters().collect();
    let (first, last) = (adapters[0], *adapters.last().context("an adapter")?);
    let (source, target) = (u64::from(ground::lid(first)?.0), u64::from(ground::lid(last)?.0));
    let names = format!("saquery --src-to-dst {}:{}", first.description, last.description);
    let gids = format!("saquery --sgid-to-dgid {}-{}", own::gid(first), own::gid(last));
    let lids = format!("saquery PathRecord --slid {source} --dlid {target}");
    for line in [names, gids, lids] {
        let output = ground.said(&line)?;
        let found = records(&output);
        ensure!(found.len() == 1, "{line}: {} paths", found.len());
        let path = &found[0];
        ensure!(
            (path.number("slid")?, path.number("dlid")?) == (source, target),
            "{line}: {output}"
        );
        ensure!(path.text("dgid")? == own::gid(last).to_string(), "{line}: {output}");
        // 4096 bytes, 100 Gb/s, with the selector "exactly".
        ensure!((path.number("mtu")?, path.number("rate")?) == (0x85, 0x90), "{line}: {output}");
    }
    all_paths(ground, &shown, &format!("saquery PathRecord --slid {source}"), Some(source))?;
    all_paths(ground, &shown, "saquery -p", None)
}

/// Checks paths from one LID to all, or from all to all: each pair once. Switches' port 0 are ends of paths, too.
fn all_paths(ground: &Ground, shown: &Snapshot, line: &str, from: Option<u64>) -> Result<()> {
    let output = ground.said(line)?;
    let mut printed = Vec::new();
    for path in records(&output) {
        printed.push((path.number("slid")?, path.number("dlid")?));
    }
    let lids: Result<Vec<u64>> =
        shown.nodes.iter().map(|n| Ok(u64::from(ground::lid(n)?.0))).collect();
    let lids = lids?;
    let sources = lids.iter().filter(|lid| from.is_none_or(|from| from == **lid));
    let expected = sources.flat_map(|s| lids.iter().map(move |d| (*s, *d))).collect();
    same(line, printed, expected)
}

/// SMInfoRecord, ClassPortInfo, and the records of ports' tables: GUIDs, P_Keys, service levels, arbitration. For the last two OpenSM
/// returns tables of zeros where it does not set any, and the fabric's manager none.
pub(crate) fn tables(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let manager = ground.manager_in(&shown)?;
    let output = ground.said("saquery SMInfoRecord")?;
    let found = records(&output);
    ensure!(found.len() == 1, "{} managers", found.len());
    ensure!(found[0].number("LID")? == u64::from(ground::lid(manager)?.0), "{output}");
    ensure!(found[0].number("GUID")? == ground::port_guid(manager), "{output}");
    ensure!(found[0].number("SMState")? == 3, "{output}");
    let output = ground.said("saquery -c")?;
    let info = Record(&output);
    ensure!(info.number("Class version")? == 2 && info.number("Base version")? == 1, "{output}");
    let node = shown.adapters().last().context("an adapter")?;
    let lid = ground::lid(node)?;
    let guids = one(ground, lid, &format!("GUIDInfoRecord {lid}/0"))?;
    contains(&guids, &format!("GUID 0.....................{:#018x}", node.guid.0 + 1))?;
    let keys = one(ground, lid, &format!("--smkey 1 PKeyTableRecord {lid}/1/0"))?;
    contains(&keys, "0xffff 0x0000")?;
    // An untrusted requester gets no P_Keys.
    let refused = ground.refused(&format!("saquery PKeyTableRecord {lid}/1/0"))?;
    contains(&refused, "SA_ERR_REQ_INVALID")?;
    match ground.managed_by()? {
        ManagedBy::OpenSm => of_lanes(ground, lid).map(drop),
        ManagedBy::Fabric => {
            for query in ["SL2VLTableRecord", "VLArbitrationTableRecord"] {
                let output = ground.said(&format!("saquery {query}"))?;
                ensure!(
                    records(&output).is_empty(),
                    "{query} found records of an unknown LID: {output}"
                );
            }
            Ok(())
        }
    }
}

/// Returns the only record in the answer to a request for something of one port.
fn one(ground: &Ground, lid: Lid, query: &str) -> Result<String> {
    let output = ground.said(&format!("saquery {query}"))?;
    let count = records(&output).len();
    ensure!(count == 1, "saquery {query}: {count} records");
    ensure!(records(&output)[0].number("LID")? == u64::from(lid.0), "{output}");
    Ok(output)
}

/// Checks the records of an adapter's service levels and arbitration. Returns the former.
fn of_lanes(ground: &Ground, lid: Lid) -> Result<String> {
    contains(&one(ground, lid, &format!("VLArbitrationTableRecord {lid}/1/1"))?, "Weight:")?;
    let levels = one(ground, lid, &format!("SL2VLTableRecord {lid}/0/0"))?;
    contains(&levels, "VL: ")?;
    // An adapter has one, whatever port is requested.
    let other = one(ground, lid, &format!("SL2VLTableRecord {lid}/1/1"))?;
    ensure!(other == levels, "another table of port 1: {other}");
    Ok(levels)
}

/// Service levels set by the manager: the records match the ports.
pub(crate) fn levels(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let lid = ground::lid(shown.adapters().last().context("an adapter")?)?;
    let of_port = ground.said(&format!("smpquery sl2vl {lid} 1"))?;
    let lanes = lanes(&of_port).next().context("a table")?;
    ensure!(lanes.iter().any(|lane| *lane != 0), "all service levels map to one lane: {of_port}");
    same_lanes(&of_lanes(ground, lid)?, &lanes)?;
    // A switch's port has one for each ingress port.
    let lid = ground::lid(shown.switches().next().context("a switch")?)?;
    let of_port = ground.said(&format!("smpquery sl2vl {lid} 2"))?;
    let lanes = self::lanes(&of_port).nth(1).context("there is no table for port 1")?;
    same_lanes(&one(ground, lid, &format!("SL2VLTableRecord {lid}/1/2"))?, &lanes)
}

/// Parses the tables that smpquery prints: 16 lanes after the ingress port and the egress port.
fn lanes(output: &str) -> impl Iterator<Item = Vec<u64>> {
    output.lines().filter_map(|line| {
        let (_, lanes) = line.strip_prefix("ports: in")?.split_once(": |")?;
        Some(lanes.split('|').filter_map(|lane| lane.trim().parse().ok()).collect())
    })
}

/// Checks that a record, as saquery prints it, has these lanes.
fn same_lanes(record: &str, expected: &[u64]) -> Result<()> {
    let line = record.lines().find_map(|line| line.trim().strip_prefix("VL:"));
    let line = line.with_context(|| format!("a record without lanes: {record}"))?;
    let printed: Vec<u64> = line.split('|').filter_map(|lane| lane.trim().parse().ok()).collect();
    ensure!(printed == expected, "the record has {printed:?}, the port {expected:?}");
    Ok(())
}

/// MCMemberRecords: the broadcast group, which OpenSM creates. Services and subscriptions: there are none.
pub(crate) fn groups(ground: &Ground) -> Result<()> {
    let output = ground.said("saquery -g")?;
    let found = records(&output);
    let broadcast =
        found.iter().find(|r| r.text("MGID").is_ok_and(|mgid| mgid == "ff12:401b:ffff::ffff:ffff"));
    let broadcast = broadcast.with_context(|| format!("no group of all interfaces: {output}"))?;
    ensure!(broadcast.number("Mlid")? == 0xc000, "{output}");
    ensure!(broadcast.number("pkey")? & 0x7fff == 0x7fff, "{output}");
    let output = ground.said("saquery MCMemberRecord")?;
    ensure!(records(&output).len() == found.len(), "-g finds {} groups: {output}", found.len());
    for query in ["ServiceRecord", "InformInfoRecord"] {
        let output = ground.said(&format!("saquery {query}"))?;
        ensure!(records(&output).is_empty(), "{query}: {output}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{lanes, pairs, records};

    #[test]
    fn tables_of_smpquery_are_lanes() {
        let text = "# SL2VL table: Lid 2\n#                 SL: | 0| 1|15|\n\
                    ports: in  0, out  0: | 0| 1|15|\nports: in  1, out  0: | 7| 0| 2|\n";
        assert_eq!(lanes(text).collect::<Vec<_>>(), [[0, 1, 15], [7, 0, 2]]);
    }

    #[test]
    fn records_begin_with_their_names() {
        let text = "NodeRecord dump:\n\t\tlid.....................1\n\t\tNodeDescription.........a b\n\
                    NodeRecord dump:\n\t\tlid.....................2\n\t\tNodeDescription.........c\n";
        let all = records(text);
        assert_eq!(all.len(), 2);
        assert_eq!(
            (all[0].text("NodeDescription").unwrap(), all[1].number("lid").unwrap()),
            ("a b".into(), 2)
        );
        assert!(all[0].text("port_num").is_err());
        assert_eq!(
            pairs("\t\tLID\tPort Number\n\t\t1\t255\n\t\t0xc000\t0x0006\n"),
            [(1, 255), (0xc000, 6)]
        );
    }
}
