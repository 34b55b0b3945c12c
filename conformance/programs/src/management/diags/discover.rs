//! Programs that discover the subnet: ibnetdiscover, ibhosts, ibswitches, iblinkinfo, ibidsverify.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::Snapshot;
use rdmux_subnet::Topology;

use super::super::ground::{self, Ground, Shown, parse};
use super::{number, same};

/// ibnetdiscover finds the topology of the fabric, node by node and cable by cable.
pub(crate) fn ibnetdiscover(ground: &Ground) -> Result<()> {
    let found = parse(&ground.said("ibnetdiscover")?)?;
    same_topology(&found, &ground.topology()?)?;
    // From its own cache it prints the same.
    let cache = ground.dir().join("ibnetdiscover.cache");
    let _ = std::fs::remove_file(&cache);
    let cache = cache.display();
    ground.said(&format!("ibnetdiscover --cache {cache}"))?;
    same_topology(&parse(&ground.said(&format!("ibnetdiscover --load-cache {cache}"))?)?, &found)
}

/// A topology's data about a node: all except its name in the file.
type Told = (u64, String, u8, BTreeMap<u8, (Option<(u64, u8, String)>, u16, u8)>);

fn told(topology: &Topology) -> Vec<Told> {
    let node = |n: &rdmux_subnet::topology::Node| {
        let ports = n.ports.iter().map(|(number, port)| {
            let far = port
                .link
                .map(|(far, rate)| (topology.nodes[far.node].guid.0, far.port, rate.to_string()));
            (*number, (far, port.lid.0, port.lmc))
        });
        // The programs print no line for a port without a cable.
        let ports = ports.filter(|(number, (far, ..))| far.is_some() || *number == 0);
        (n.guid.0, n.description.clone(), n.num_ports, ports.collect())
    };
    topology.nodes.iter().map(node).collect()
}

fn same_topology(printed: &Topology, shown: &Topology) -> Result<()> {
    same("nodes", told(printed), told(shown))
}

/// ibhosts lists the adapters.
pub(crate) fn ibhosts(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let expected = shown.adapters().map(|n| {
        let name = &n.description;
        format!("Ca : {:#018x} ports {} \"{name}\"", n.guid.0, n.ports.len())
    });
    same("hosts", lines(&ground.said("ibhosts")?), expected.collect())
}

/// ibswitches lists the switches, with their LIDs.
pub(crate) fn ibswitches(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let mut expected = Vec::new();
    for n in shown.switches() {
        let (name, ports, lid) = (&n.description, n.ports.len() - 1, ground::lid(n)?.0);
        let guid = n.guid.0;
        let text =
            format!("Switch : {guid:#018x} ports {ports} \"{name}\" base port 0 lid {lid} lmc 0");
        expected.push(text);
    }
    same("switches", lines(&ground.said("ibswitches")?), expected)
}

/// Returns the lines, with one blank between words.
fn lines(output: &str) -> Vec<String> {
    output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// An end of a cable: GUID, LID and port.
type End = (u64, u16, u8);

/// iblinkinfo lists each cable at both ends as active; a port without a cable is down.
pub(crate) fn iblinkinfo(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let output = ground.said("iblinkinfo -l")?;
    let mut cables = Vec::new();
    let mut without = Vec::new();
    for line in output.lines().filter(|line| line.contains("==>")) {
        let (near, state, far) =
            link(line).with_context(|| format!("{line:?} does not describe a link"))?;
        match far {
            Some(far) => {
                ensure!(state.contains("Active/ LinkUp"), "a link is not active: {line}");
                cables.push((near, far));
            }
            None => {
                ensure!(state.contains("Down"), "a port without a cable is not down: {line}");
                without.push((near.0, near.2));
            }
        }
    }
    same("links", cables, expected_links(&shown)?)?;
    same("ports without a cable", without, ports_without_cable(&shown))
}

/// Returns each cable at both ends, as iblinkinfo -l names them: with the GUIDs of ports, of which a switch has only one.
fn expected_links(shown: &Snapshot) -> Result<Vec<(End, End)>> {
    let mut all = Vec::new();
    for link in &shown.links {
        let end = |(node, port): (u32, u8)| -> Result<End> {
            let n = shown.nodes.get(node as usize).context("a cable has no far end")?;
            let guid = if n.is_switch { n.guid.0 } else { n.guid.0 + u64::from(port) };
            Ok((guid, ground::lid(n)?.0, port))
        };
        let (a, b) = (end(link.a)?, end(link.b)?);
        all.extend([(a, b), (b, a)]);
    }
    Ok(all)
}

fn ports_without_cable(shown: &Snapshot) -> Vec<(u64, u8)> {
    let cabled: std::collections::BTreeSet<_> =
        shown.links.iter().flat_map(|link| [link.a, link.b]).collect();
    let ports = (0..).zip(&shown.nodes).flat_map(|(index, node)| {
        let numbers = node.ports.iter().map(|port| port.number).filter(|number| *number != 0);
        numbers.map(move |number| ((index, number), (node.guid.0, number)))
    });
    ports.filter(|(end, _)| !cabled.contains(end)).map(|(_, port)| port).collect()
}

/// Parses a line of iblinkinfo -l: this end, the state, and the other end, if there is one.
fn link(line: &str) -> Option<(End, String, Option<End>)> {
    let (near, rest) = line.split_once("==(")?;
    let (state, far) = rest.split_once(")==>")?;
    let state = state.split_whitespace().collect::<Vec<_>>().join(" ");
    let far = far.trim();
    let far = if far.starts_with("0x") { Some(end(far)?) } else { None };
    Some((end(near.trim())?, state, far))
}

/// Parses `0xGUID "description" lid port[  ]`, with or without the description.
fn end(text: &str) -> Option<End> {
    let (guid, rest) = text.split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix('"') {
        Some(rest) => rest.split_once('"')?.1,
        None => rest,
    };
    let (place, _) = rest.split_once('[')?;
    let mut place = place.split_whitespace();
    let (lid, port) = (place.next()?, place.next()?);
    Some((number(guid)?, lid.parse().ok()?, port.parse().ok()?))
}

/// ibidsverify finds the LID that two ports have, and nothing else: on a fabric that has it from a file, without a manager.
pub(crate) fn ibidsverify_duplicate(ground: &Ground) -> Result<()> {
    let dir = ground.dir().join("twice");
    std::fs::create_dir_all(&dir)?;
    let file = dir.join("topology");
    let cable = |port: u8, name: &str| format!("[{port}] \"{name}\"[1]\n");
    let adapter = |port: u8, name: &str, guid: u32, lid: u8| {
        format!("caguid={guid:#x}\nCa 1 \"{name}\"\n[1] \"s\"[{port}] # lid {lid} lmc 0\n\n")
    };
    let text = format!(
        "switchguid=0x100\nSwitch 4 \"s\" # \"s\" base port 0 lid 1 lmc 0\n{}{}{}\n{}{}{}",
        cable(1, "twice"),
        cable(2, "b"),
        cable(3, "c"),
        adapter(1, "twice", 0x200, 2),
        adapter(2, "b", 0x300, 3),
        adapter(3, "c", 0x400, 3)
    );
    std::fs::write(&file, text)?;
    let (fabric, host) = (["--fabric", "twice"], "twice");
    let path = file.to_str().context("a path")?;
    ground.rdmux(&[&["fabric", "up", "--no-sm", "--topology", path], &fabric[..]].concat())?;
    let verified = ground.rdmux(&[&["host", "up", host], &fabric[..]].concat()).and_then(|_| {
        let mut process = ground.start(host, "ibidsverify-twice", &ibidsverify_in(&dir))?;
        Ok((process.finish(super::super::TIMEOUT)?, process.printed()))
    });
    ground.rdmux(&["host", "down", host])?;
    ground.rdmux(&[&["fabric", "down"], &fabric[..]].concat())?;
    let (status, output) = verified?;
    ensure!(status.code() == Some(1), "ibidsverify ended with {status}: {output}");
    // Either of the two may be found first.
    let expected =
        [0x300, 0x400].map(|guid| format!("LID 3 already defined for NodeGUID {guid:#x}"));
    let output = output.trim();
    ensure!(
        expected.iter().any(|line| line == output),
        "ibidsverify prints {output:?}, not {expected:?}"
    );
    Ok(())
}

/// Returns a command line of ibidsverify that keeps its cache in `dir` instead of a system folder: a variable of its own module sets it.
fn ibidsverify_in(dir: &std::path::Path) -> String {
    let script = "$IBswcountlimits::cache_dir=shift;$0=shift;do($0)or(die$@)";
    format!("perl -MIBswcountlimits -e {script} {} /usr/sbin/ibidsverify -R", dir.display())
}

/// ibidsverify reports nothing: a manager has given every port a LID. The LIDs and GUIDs that it examined are those of the
/// fabric.
pub(crate) fn ibidsverify(ground: &Ground) -> Result<()> {
    let dir = ground.dir().join("ids");
    std::fs::create_dir_all(&dir)?;
    let output = ground.said(&ibidsverify_in(&dir))?;
    ensure!(output.trim().is_empty(), "ibidsverify reports problems: {output}");
    let mut files = std::fs::read_dir(&dir)?;
    let file = files.next().context("ibidsverify wrote no cache")??.path();
    // ibidsverify makes ibnetdiscover group the nodes by chassis, with a line before each group.
    let kept = std::fs::read_to_string(file)?;
    let nodes: String =
        kept.split_inclusive('\n').filter(|line| !line.contains("Chassis")).collect();
    same_topology(&parse(&nodes)?, &ground.topology()?)
}
