//! Programs that read forwarding tables: ibroute, ibtracert, dump_fts and its old names, check_lft_balance.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::{Snapshot, SwitchTables, Tables};
use rdmux_fabric::routes::{Hop, Routes};
use rdmux_wire::Lid;

use super::super::ground::{self, Ground, HOSTS, Shown};
use super::{contains, number, same};

/// A table as programs print it: LID and port.
type Table = Vec<(u16, u8)>;

/// ibroute prints the tables of a switch as the fabric has them: unicast, by LID and by direct route, and multicast.
pub(crate) fn ibroute(ground: &Ground) -> Result<()> {
    let (shown, tables) = (ground.show()?, ground.tables()?);
    for table in &tables.switches {
        let lid = ground::lid(&shown.nodes[table.node as usize])?.0;
        let output = ground.said(&format!("ibroute {lid}"))?;
        same("LIDs", unicast(&output), expected(table))?;
        let output = ground.said(&format!("ibroute -M {lid}"))?;
        same("groups", multicast(&output), expected_groups(table))?;
    }
    let (first, _) = shown.far(shown.node(HOSTS[1])?, 1).context("a cable")?;
    let table = of(&shown, &tables, first.guid.0)?;
    same("LIDs", unicast(&ground.said("ibroute -D 0,1")?), expected(table))
}

/// dump_fts prints the tables of all switches as the fabric has them, and dump_lfts and dump_mfts the same.
pub(crate) fn dump_fts(ground: &Ground) -> Result<()> {
    let (shown, tables) = (ground.show()?, ground.tables()?);
    for program in ["dump_fts", "dump_lfts"] {
        let printed = by_switch(&ground.said(program)?, "Unicast lids");
        ensure!(printed.len() == tables.switches.len(), "{program}: {} switches", printed.len());
        for (guid, text) in &printed {
            same(program, unicast(text), expected(of(&shown, &tables, *guid)?))?;
        }
    }
    for program in ["dump_fts -M", "dump_mfts"] {
        let printed = by_switch(&ground.said(program)?, "Multicast mlids");
        ensure!(printed.len() == tables.switches.len(), "{program}: {} switches", printed.len());
        for (guid, text) in &printed {
            same(program, multicast(text), expected_groups(of(&shown, &tables, *guid)?))?;
        }
    }
    Ok(())
}

/// ibtracert follows the route of the fabric's tables, between adapters of different switches and to a switch.
pub(crate) fn ibtracert(ground: &Ground) -> Result<()> {
    let (shown, tables) = (ground.show()?, ground.tables()?);
    let routes = Routes::new(&shown, &tables);
    let adapters: Vec<_> = shown.adapters().collect();
    let (first, last) = (adapters[0], *adapters.last().context("an adapter")?);
    let switch = shown.switches().last().context("a switch")?;
    for (from, to) in [(first, last), (last, first), (first, switch), (switch, last)] {
        let (source, target) = (ground::lid(from)?, ground::lid(to)?);
        let output = ground.said(&format!("ibtracert {} {}", source.0, target.0))?;
        let index = shown.nodes.iter().position(|n| n.guid == from.guid).context("a node")?;
        let start = (u32::try_from(index)?, u8::from(!from.is_switch));
        let way = routes.route(start, target);
        let way = way.map_err(|lost| anyhow::anyhow!("the fabric has no route: {lost}"))?;
        let expected: Vec<_> = steps(&shown, from.is_switch, &way);
        ensure!(traced(&output) == expected, "the route is not {expected:x?}: {output}");
    }
    let target = ground::lid(last)?;
    let output = ground.said(&format!("ibtracert -n {} {}", ground::lid(first)?.0, target.0))?;
    contains(&output, &format!("{{{:#018x}}}", last.guid.0 + 1))
}

/// Returns for each hop the node that it leads to, and its ingress port.
fn steps(shown: &Snapshot, from_switch: bool, way: &[Hop]) -> Vec<(u64, u8)> {
    let entered = way.iter().skip(usize::from(from_switch));
    entered
        .map(|hop| {
            let node = &shown.nodes[hop.node as usize];
            // Ports of a switch have the node's GUID here.
            (node.guid.0 + u64::from(!node.is_switch), hop.ingress)
        })
        .collect()
}

/// Parses lines `[1] -> switch port {0x1}[2] lid 3-3 "name"`: GUID and port.
fn traced(output: &str) -> Vec<(u64, u8)> {
    let step = |line: &str| {
        let (_, rest) = line.strip_prefix('[')?.split_once("] -> ")?;
        let (_, rest) = rest.split_once('{')?;
        let (guid, rest) = rest.split_once("}[")?;
        let (port, _) = rest.split_once(']')?;
        Some((number(guid)?, port.parse().ok()?))
    };
    output.lines().filter_map(step).collect()
}

/// check_lft_balance counts how many LIDs are routed by each port in the fabric's tables.
pub(crate) fn check_lft_balance(ground: &Ground) -> Result<()> {
    let (shown, tables) = (ground.show()?, ground.tables()?);
    let (dump, cache) = (ground.dir().join("lfts"), ground.dir().join("balance.cache"));
    std::fs::write(&dump, ground.said("dump_fts")?)?;
    let _ = std::fs::remove_file(&cache);
    ground.said(&format!("ibnetdiscover --cache {}", cache.display()))?;
    let (dump, cache) = (dump.display(), cache.display());
    let output = ground.said(&format!("check_lft_balance -v -l {dump} -i {cache}"))?;
    let printed = by_switch(&output, "Switch Port Usage:");
    ensure!(!printed.is_empty(), "the output names no switch: {output}");
    for (guid, text) in &printed {
        let table = of(&shown, &tables, *guid)?;
        let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
        for (_, port) in adapters_only(&shown, &expected(table)) {
            *counts.entry(port).or_default() += 1;
        }
        for (port, count) in usage(text) {
            let shown = counts.get(&port).copied().unwrap_or(0);
            ensure!(count == shown, "port {port} of {guid:#x} carries {count} LIDs, not {shown}");
        }
    }
    Ok(())
}

/// Returns the rows of adapters' LIDs.
fn adapters_only(shown: &Snapshot, table: &Table) -> Table {
    let of_adapter = |lid: u16| {
        let mut ports = shown.adapters().flat_map(|n| &n.ports);
        ports.any(|p| p.lid.0 <= lid && lid < p.lid.0 + (1 << p.lmc))
    };
    table.iter().copied().filter(|(lid, _)| of_adapter(*lid)).collect()
}

/// Parses lines `Port 001: 5`.
fn usage(text: &str) -> Vec<(u8, usize)> {
    let line = |line: &str| {
        let (port, count) = line.strip_prefix("Port ")?.split_once(": ")?;
        Some((port.parse().ok()?, count.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn of<'t>(shown: &Snapshot, tables: &'t Tables, guid: u64) -> Result<&'t SwitchTables> {
    let is_it = |t: &&SwitchTables| shown.nodes[t.node as usize].guid.0 == guid;
    tables.switches.iter().find(is_it).with_context(|| format!("no switch {guid:#x}"))
}

/// Returns the entries of a linear table that programs print: those with a port.
fn expected(table: &SwitchTables) -> Table {
    let lids = (0..u16::try_from(table.linear.len()).unwrap_or(u16::MAX)).map(Lid);
    lids.filter_map(|lid| Some((lid.0, table.port(lid)?))).collect()
}

fn expected_groups(table: &SwitchTables) -> Vec<(u16, Vec<u8>)> {
    table.multicast.iter().map(|(lid, ports)| (lid.0, ports.clone())).collect()
}

/// Parses lines `0x0004 001 : (Channel Adapter portguid 0x1: 'name')`.
fn unicast(output: &str) -> Table {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (lid, port) = (words.next()?.strip_prefix("0x")?, words.next()?);
        Some((u16::from_str_radix(lid, 16).ok()?, port.parse().ok()?))
    };
    output.lines().filter_map(row).collect()
}

/// Parses lines `0xc000      x   x `, where the columns of ports are below their numbers:
/// ```text
///             0                   1
///      Ports: 0 1 2 3 4 5 6 7 8 9 0 1
///  MLid
/// 0xc000        x   x
/// ```
fn multicast(output: &str) -> Vec<(u16, Vec<u8>)> {
    let Some(heads) = output.lines().find_map(|line| line.find("Ports:")) else {
        return Vec::new();
    };
    let first = heads + "Ports: ".len();
    let row = |line: &str| {
        let lid = u16::from_str_radix(line.strip_prefix("0x")?.get(..4)?, 16).ok()?;
        let marks = line.char_indices().filter(|(at, c)| *c == 'x' && *at >= first);
        let ports = marks.filter_map(|(at, _)| u8::try_from((at - first) / 2).ok());
        Some((lid, ports.collect::<Vec<u8>>()))
    };
    output.lines().filter_map(row).filter(|(_, ports)| !ports.is_empty()).collect()
}

/// Returns the output for each switch: from a line that begins like this and has its GUID, up to the next one.
fn by_switch(output: &str, head: &str) -> Vec<(u64, String)> {
    let mut all: Vec<(u64, String)> = Vec::new();
    for line in output.lines() {
        if line.contains(head) {
            let mut words = line.split(|c: char| c.is_whitespace() || c == ',');
            // LIDs have fewer digits.
            let guid = words.find_map(|w| (w.len() > 10).then(|| number(w)).flatten());
            all.extend(guid.map(|guid| (guid, String::new())));
        } else if let Some((_, text)) = all.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{by_switch, multicast, traced, unicast, usage};

    #[test]
    fn dump_fts_and_lft_balance_output_is_parsed() {
        let text = "Unicast lids [0x0-0x3] of switch Lid 1 guid 0x0000000000100000 (s w):\n  Lid  Out   Destination\n\
                    \x20      Port     Info\n0x0001 000 : (Switch portguid 0x0000000000100000: 's')\n\
                    0x0003 012 : (Channel Adapter portguid 0x0000000000100201: 'b')\n2 valid lids dumped\n";
        let switches = by_switch(text, "Unicast lids");
        assert_eq!((switches.len(), switches[0].0), (1, 0x10_0000));
        assert_eq!(unicast(&switches[0].1), [(1, 0), (3, 12)]);
        assert_eq!(usage("Port 001: 5\nPort 012: 0\n"), [(1, 5), (12, 0)]);
    }

    #[test]
    fn columns_of_groups_are_ports() {
        let text = "            0                   1\n     Ports: 0 1 2 3 4 5 6 7 8 9 0 1\n MLid\n\
                    0xc000          x   x           x   \n2 valid mlids dumped\n";
        assert_eq!(multicast(text), [(0xc000, vec![2, 4, 10])]);
        assert!(multicast("").is_empty());
    }

    #[test]
    fn ibtracert_hops_are_parsed() {
        let text = "From ca {0x0000000000100101} portnum 1 lid 2-2 \"a\"\n\
                    [1] -> switch port {0x0000000000100000}[7] lid 1-1 \"s\"\n\
                    [2] -> ca port {0x0000000000100201}[1] lid 3-3 \"b\"\nTo ca {0x1} portnum 1 lid 3-3 \"b\"\n";
        assert_eq!(traced(text), [(0x10_0000, 7), (0x10_0201, 1)]);
    }
}
