//! The routes that result from the forwarding tables of a subnet.
//!
//! The tables are read as the switches read them, LID by LID; no manager is involved. So this shows whether the tables that a
//! manager wrote connect every adapter to every other one.

use std::collections::{HashMap, HashSet};
use std::fmt;

use rdmux_wire::Lid;
use serde::{Deserialize, Serialize};

use crate::proto::{PortView, Snapshot, SwitchTables, Tables};

/// Active (IBTA 14.2.5.6).
const ACTIVE: u8 = 4;

/// The routes through a subnet.
#[derive(Debug)]
pub struct Routes<'a> {
    snapshot: &'a Snapshot,
    /// The tables of each node, if it is a switch.
    tables: Vec<Option<&'a SwitchTables>>,
    /// The peer ports of active links, by node and port.
    peers: HashMap<(u32, u8), (u32, u8)>,
    /// The port that has each LID.
    owners: HashMap<Lid, (u32, u8)>,
}

/// A hop: a node, and the ports by which a packet enters and leaves it. Port 0 is the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// The index of the node in [`Snapshot::nodes`].
    pub node: u32,
    /// The port where the packet enters.
    pub ingress: u8,
    /// The port where it leaves.
    pub egress: u8,
}

/// The reason why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lost {
    /// No port has the LID.
    NoSuchLid,
    /// The table of this switch has no port for the LID.
    NoRoute(u32),
    /// The port of this node has no cable, or its link is not active.
    NoLink(u32, u8),
    /// The packet arrives at this node, which does not have the LID.
    WrongNode(u32),
    /// The packet returns to this switch.
    Loop(u32),
}

/// The result of [`Routes::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Number of ports that send and receive: those of adapters, and port 0 of switches. Adapters' ports without a cable
    /// do not count.
    pub ports: usize,
    /// The number of nodes without a LID. These are in no pair.
    pub without_lid: usize,
    /// Number of LIDs that more than one port has.
    pub duplicate_lids: usize,
    /// Number of pairs of a port and a LID of another one.
    pub pairs: u64,
    /// The number of pairs between which packets do not arrive.
    pub lost: u64,
    /// The number of these that are between two switches. Routing that only goes up and then down, like up/down and fat-tree
    /// routing, has no route between two roots; only management datagrams would use it.
    pub lost_between_switches: u64,
    /// Maximum number of switches on a route.
    pub switches_at_most: u32,
    /// Examples of lost packets: node and port, the LID, and the reason.
    pub examples: Vec<(u32, u8, Lid, Lost)>,
}

impl Check {
    /// Returns whether every adapter reaches every other one and every switch, and every switch all adapters.
    pub fn is_whole(&self) -> bool {
        self.without_lid == 0 && self.duplicate_lids == 0 && self.lost == self.lost_between_switches
    }
}

/// Maximum number of examples that are kept.
const EXAMPLES: usize = 8;

/// The outcome for a packet at a node.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// The packet passes this many switches from here on, including this one.
    Arrives(u32),
    Lost(Lost),
}

impl<'a> Routes<'a> {
    /// Makes the routes of these tables, which belong to this snapshot.
    pub fn new(snapshot: &'a Snapshot, tables: &'a Tables) -> Self {
        let mut by_node = vec![None; snapshot.nodes.len()];
        for switch in &tables.switches {
            if let Some(entry) = by_node.get_mut(switch.node as usize) {
                *entry = Some(switch);
            }
        }
        let mut routes =
            Self { snapshot, tables: by_node, peers: HashMap::new(), owners: HashMap::new() };
        let active = |end| routes.port(end).is_some_and(|port| port.state == ACTIVE);
        let links = snapshot.links.iter().filter(|l| l.up && active(l.a) && active(l.b));
        let peers: HashMap<_, _> = links.flat_map(|l| [(l.a, l.b), (l.b, l.a)]).collect();
        routes.peers = peers;
        for (end, port) in ends(snapshot) {
            for lid in lids(port) {
                routes.owners.entry(lid).or_insert(end);
            }
        }
        routes
    }

    /// Returns the route from a port to a LID: the switches that a packet passes, and the node where it arrives.
    ///
    /// # Errors
    /// The reason why it does not arrive.
    pub fn route(&self, from: (u32, u8), to: Lid) -> Result<Vec<Hop>, Lost> {
        if !self.owners.contains_key(&to) {
            return Err(Lost::NoSuchLid);
        }
        let mut way = Vec::new();
        let mut at = from;
        if self.table(from.0).is_none() {
            if self.owners.get(&to) == Some(&from) {
                return Ok(way);
            }
            at = self.cross(from)?;
        }
        loop {
            let egress = self.step(at.0, to)?;
            way.push(Hop { node: at.0, ingress: at.1, egress: egress.unwrap_or(0) });
            let Some(egress) = egress else { return Ok(way) };
            if way.len() > self.tables.len() {
                return Err(Lost::Loop(at.0));
            }
            at = self.cross((at.0, egress))?;
        }
    }

    /// Checks the route from every port to every LID.
    pub fn check(&self) -> Check {
        let mut check = Check::default();
        let mut owned: HashMap<Lid, usize> = HashMap::new();
        let mut sources = Vec::new();
        // A cable whose link is down counts, too.
        let cabled: HashSet<_> = self.snapshot.links.iter().flat_map(|l| [l.a, l.b]).collect();
        for (end, port) in ends(self.snapshot) {
            let is_switch = self.table(end.0).is_some();
            if !is_switch && !cabled.contains(&end) {
                continue;
            }
            check.ports += 1;
            if port.lid.0 == 0 {
                check.without_lid += 1;
                continue;
            }
            for lid in lids(port) {
                *owned.entry(lid).or_default() += 1;
            }
            sources.push((end, is_switch));
        }
        check.duplicate_lids = owned.values().filter(|owners| **owners > 1).count();
        let mut lids: Vec<Lid> = owned.into_keys().collect();
        lids.sort_unstable();
        let mut fates = Vec::new();
        for lid in lids {
            fates.clear();
            fates.resize(self.tables.len(), None);
            for &(end, is_switch) in sources.iter().filter(|(end, _)| self.owners[&lid] != *end) {
                check.pairs += 1;
                let first =
                    if is_switch { Ok(end.0) } else { self.cross(end).map(|(node, _)| node) };
                match first.map_or_else(Fate::Lost, |node| self.fate(node, lid, &mut fates)) {
                    Fate::Arrives(n) => check.switches_at_most = check.switches_at_most.max(n),
                    Fate::Lost(why) => {
                        check.lost += 1;
                        let both = is_switch && self.table(self.owners[&lid].0).is_some();
                        check.lost_between_switches += u64::from(both);
                        if check.examples.len() < EXAMPLES {
                            check.examples.push((end.0, end.1, lid, why));
                        }
                    }
                }
            }
        }
        check
    }

    /// Returns the outcome for a packet at a node. `fates` are the known outcomes.
    fn fate(&self, from: u32, to: Lid, fates: &mut [Option<Fate>]) -> Fate {
        let mut passed = Vec::new();
        let mut at = from;
        let mut fate = loop {
            if let Some(known) = fates.get(at as usize).copied().flatten() {
                break known;
            }
            // A walk that returns here before its end is known is in a loop.
            fates[at as usize] = Some(Fate::Lost(Lost::Loop(at)));
            passed.push(at);
            let next = self.step(at, to).and_then(|egress| match egress {
                Some(egress) => self.cross((at, egress)).map(Some),
                None => Ok(None),
            });
            match next {
                Ok(Some((node, _))) => at = node,
                Ok(None) => break Fate::Arrives(0),
                Err(why) => break Fate::Lost(why),
            }
        };
        for node in passed.into_iter().rev() {
            if let (Fate::Arrives(n), true) = (&mut fate, self.table(node).is_some()) {
                *n += 1;
            }
            fates[node as usize] = Some(fate);
        }
        fate
    }

    /// Returns the port by which a node forwards a packet; none if it is for the node.
    fn step(&self, node: u32, to: Lid) -> Result<Option<u8>, Lost> {
        let is_here = self.owners.get(&to).is_some_and(|(owner, _)| *owner == node);
        let Some(table) = self.table(node) else {
            return if is_here { Ok(None) } else { Err(Lost::WrongNode(node)) };
        };
        match table.port(to) {
            _ if is_here => Ok(None),
            Some(0) => Err(Lost::WrongNode(node)),
            Some(port) => Ok(Some(port)),
            None => Err(Lost::NoRoute(node)),
        }
    }

    fn cross(&self, end: (u32, u8)) -> Result<(u32, u8), Lost> {
        self.peers.get(&end).copied().ok_or(Lost::NoLink(end.0, end.1))
    }

    fn table(&self, node: u32) -> Option<&'a SwitchTables> {
        self.tables.get(node as usize).copied().flatten()
    }

    fn port(&self, (node, number): (u32, u8)) -> Option<&'a PortView> {
        let node = self.snapshot.nodes.get(node as usize)?;
        node.ports.iter().find(|port| port.number == number)
    }
}

/// Returns the ports that send and receive: those of adapters, and port 0 of switches.
fn ends(snapshot: &Snapshot) -> impl Iterator<Item = ((u32, u8), &PortView)> {
    (0..).zip(&snapshot.nodes).flat_map(|(index, node)| {
        let ports = node.ports.iter().filter(|port| (port.number == 0) == node.is_switch);
        ports.map(move |port| ((index, port.number), port))
    })
}

/// Returns the LIDs of a port.
fn lids(port: &PortView) -> impl Iterator<Item = Lid> + use<> {
    let count = if port.lid.0 == 0 { 0 } else { 1 << port.lmc.min(7) };
    (port.lid.0..).take(count).map(Lid)
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchLid => f.write_str("no port has this LID"),
            Self::NoRoute(_) => f.write_str("the forwarding table has no entry for the LID"),
            Self::NoLink(_, port) => write!(f, "the link at port {port} is not active"),
            Self::WrongNode(_) => f.write_str("the route ends at a node with another LID"),
            Self::Loop(_) => f.write_str("the forwarding tables form a loop"),
        }
    }
}

impl Lost {
    /// Returns the node where the route ends.
    pub const fn node(self) -> Option<u32> {
        match self {
            Self::NoSuchLid => None,
            Self::NoRoute(node)
            | Self::NoLink(node, _)
            | Self::WrongNode(node)
            | Self::Loop(node) => Some(node),
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_wire::Guid;

    use super::*;
    use crate::proto::{LinkView, NodeView};

    fn node(is_switch: bool, lid: u16, lmc: u8, ports: u8) -> NodeView {
        let port = |number| PortView {
            number,
            guid: Guid(u64::from(number)),
            lid: Lid(if (number == 0) == is_switch { lid } else { 0 }),
            lmc,
            state: ACTIVE,
            is_sm: false,
        };
        NodeView {
            is_switch,
            id: String::new(),
            description: String::new(),
            guid: Guid(1),
            host: None,
            ports: (u8::from(!is_switch)..=ports).map(port).collect(),
        }
    }

    /// Makes adapters with the LIDs 1 and 4 to 7 on two switches with the LIDs 2 and 3. Port 2 of each switch connects to the
    /// other.
    fn two_switches() -> (Snapshot, Tables) {
        let link = |a, b| LinkView { a, b, up: true, rate: String::new() };
        let snapshot = Snapshot {
            fabric: "f".into(),
            nodes: vec![
                node(false, 1, 0, 1),
                node(false, 4, 2, 1),
                node(true, 2, 0, 2),
                node(true, 3, 0, 2),
            ],
            links: vec![link((0, 1), (2, 1)), link((1, 1), (3, 1)), link((2, 2), (3, 2))],
        };
        let table = |node, linear: &[u8]| SwitchTables {
            node,
            linear: linear.to_vec(),
            multicast: Vec::new(),
        };
        let tables = Tables {
            switches: vec![
                table(2, &[255, 1, 0, 2, 2, 2, 2, 2]),
                table(3, &[255, 2, 2, 0, 1, 1, 1, 1]),
            ],
        };
        (snapshot, tables)
    }

    #[test]
    fn complete_forwarding_tables_reach_every_lid() {
        let (snapshot, tables) = two_switches();
        let routes = Routes::new(&snapshot, &tables);
        let hop = |node, ingress, egress| Hop { node, ingress, egress };
        let way = [hop(2, 1, 2), hop(3, 2, 1), hop(1, 1, 0)];
        assert_eq!(routes.route((0, 1), Lid(6)).unwrap(), way);
        assert_eq!(routes.route((2, 0), Lid(3)).unwrap(), [hop(2, 0, 2), hop(3, 2, 0)]);
        assert_eq!(routes.route((0, 1), Lid(1)), Ok(Vec::new()));
        assert_eq!(routes.route((0, 1), Lid(9)), Err(Lost::NoSuchLid));
        let check = routes.check();
        assert!(check.is_whole(), "{check:?}");
        // Seven LIDs, each with all ports but its owner's.
        assert_eq!((check.ports, check.pairs, check.switches_at_most), (4, 21, 2));
    }

    #[test]
    fn missing_wrong_and_looping_forwarding_entries_are_reported() {
        let (snapshot, tables) = two_switches();
        let lost = |change: fn(&mut Tables)| {
            let mut tables = tables.clone();
            change(&mut tables);
            let routes = Routes::new(&snapshot, &tables);
            let check = routes.check();
            assert!(!check.is_whole());
            assert_eq!(routes.route((0, 1), Lid(5)).err(), check.examples.first().map(|e| e.3));
            (check.lost, check.examples[0].3)
        };
        assert_eq!(lost(|t| t.switches[0].linear[5] = 255), (2, Lost::NoRoute(2)));
        assert_eq!(lost(|t| t.switches[0].linear.truncate(5)), (6, Lost::NoRoute(2)));
        assert_eq!(lost(|t| t.switches[0].linear[5] = 1), (2, Lost::WrongNode(0)));
        assert_eq!(lost(|t| t.switches[1].linear[5] = 2), (3, Lost::Loop(2)));
    }

    #[test]
    fn loss_between_switches_only_counts_as_whole() {
        let (snapshot, mut tables) = two_switches();
        tables.switches[0].linear[3] = 255;
        let check = Routes::new(&snapshot, &tables).check();
        // The adapter at this switch does not reach the other switch, either.
        assert_eq!((check.lost, check.lost_between_switches), (2, 1));
        assert!(!check.is_whole());
        let (mut snapshot, _) = two_switches();
        snapshot.links.remove(0);
        let check = Routes::new(&snapshot, &tables).check();
        assert_eq!((check.lost, check.lost_between_switches), (1, 1));
        assert!(check.is_whole(), "{check:?}");
    }

    #[test]
    fn routes_over_inactive_links_are_lost() {
        let (mut snapshot, tables) = two_switches();
        snapshot.nodes[3].ports[2].state = 2;
        let check = Routes::new(&snapshot, &tables).check();
        assert_eq!(check.lost, 2 * 5 + 2 * 2, "{check:?}");
        assert_eq!(check.examples[0].3, Lost::NoLink(3, 2));
    }

    #[test]
    fn ports_without_lid_and_duplicate_lids_are_counted() {
        let (mut snapshot, tables) = two_switches();
        snapshot.nodes[0].ports[0].lid = Lid(0);
        snapshot.nodes[1].ports[0].lid = Lid(3);
        snapshot.nodes[1].ports[0].lmc = 0;
        let check = Routes::new(&snapshot, &tables).check();
        assert_eq!((check.without_lid, check.duplicate_lids), (1, 1));
    }
}
