//! The model: nodes with their names, GUIDs and ports, and the cables between them.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use rdmux_wire::{Guid, Lid};

use super::{LinkRate, MAX_DESCRIPTION};

/// The kind of a node (IBTA 14.2.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NodeKind {
    /// A channel adapter.
    Ca,
    /// A switch.
    Switch,
    /// A router. Its ports are like those of an adapter.
    Router,
}

impl NodeKind {
    /// Returns NodeInfo's code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ca => 1,
            Self::Switch => 2,
            Self::Router => 3,
        }
    }
}

/// The nodes of a subnet. A manager attaches to the first one by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The nodes. Cables refer to them by index.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kind of the node.
    pub kind: NodeKind,
    /// The name in the file, which is unique: `H-` or `S-` and the GUID in files of `ibnetdiscover`.
    pub id: String,
    /// NodeDescription: at most 64 bytes, without quotes and control characters.
    pub description: String,
    /// NodeGUID; for a switch also the GUID of port 0.
    pub guid: Guid,
    /// SystemImageGUID.
    pub system_guid: Guid,
    /// VendorID, 24 bits.
    pub vendor_id: u32,
    /// DeviceID.
    pub device_id: u16,
    /// The number of ports, without port 0 of a switch.
    pub num_ports: u8,
    /// For a switch: whether port 0 is enhanced, with the capabilities of an adapter's port.
    pub enhanced_port0: bool,
    /// The ports that have a cable, a LID, or an explicit GUID.
    pub ports: BTreeMap<u8, Port>,
}

/// A port of a node. Port 0 of a switch has a LID, but neither a cable nor a GUID of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// PortGUID, if it differs from the node's GUID plus the port number.
    pub guid: Option<Guid>,
    /// The LID in the file, or 0.
    pub lid: Lid,
    /// The LMC in the file.
    pub lmc: u8,
    /// The peer and the rate of the cable, if there is one.
    pub link: Option<(PortRef, LinkRate)>,
}

/// A port, named by the index of its node and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRef {
    /// The index in [`Topology::nodes`].
    pub node: usize,
    /// The number of the port, from 1.
    pub port: u8,
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} of node {}", self.port, self.node)
    }
}

/// The reason why a cable is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// There is no such port.
    #[error("there is no {0}")]
    NoPort(PortRef),
    /// The port already has a cable.
    #[error("{0} has a cable already, to {1}")]
    Taken(PortRef, PortRef),
    /// Both ends are the same port.
    #[error("{0} cannot be cabled to itself")]
    Itself(PortRef),
}

impl Topology {
    /// Adds a node and returns its index.
    pub fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Connects two ports by a cable.
    ///
    /// # Errors
    /// [`LinkError`] when one of them does not exist or has another cable, or both are the same port.
    pub fn connect(&mut self, a: PortRef, b: PortRef, rate: LinkRate) -> Result<(), LinkError> {
        for (end, other) in [(a, b), (b, a)] {
            if !self.exists(end) {
                return Err(LinkError::NoPort(end));
            }
            if let Some((peer, _)) = self.link(end).filter(|&(peer, _)| peer != other) {
                return Err(LinkError::Taken(end, peer));
            }
        }
        if a == b {
            return Err(LinkError::Itself(a));
        }
        for (end, other) in [(a, b), (b, a)] {
            self.nodes[end.node].ports.entry(end.port).or_default().link = Some((other, rate));
        }
        Ok(())
    }

    /// Returns the peer and the rate of a port's cable.
    pub fn link(&self, at: PortRef) -> Option<(PortRef, LinkRate)> {
        self.nodes.get(at.node)?.ports.get(&at.port)?.link
    }

    /// Returns every cable once, from the end that comes first.
    pub fn links(&self) -> impl Iterator<Item = (PortRef, PortRef, LinkRate)> + '_ {
        self.nodes.iter().enumerate().flat_map(|(node, n)| {
            n.ports.iter().filter_map(move |(&port, p)| {
                let (a, (b, rate)) = (PortRef { node, port }, p.link?);
                (a < b).then_some((a, b, rate))
            })
        })
    }

    /// Returns the index of the node with this GUID.
    pub fn by_guid(&self, guid: Guid) -> Option<usize> {
        self.nodes.iter().position(|n| n.guid == guid)
    }

    /// Returns the index of the node with this name: its id, or else its description.
    pub fn by_name(&self, name: &str) -> Option<usize> {
        let id = self.nodes.iter().position(|n| n.id == name);
        id.or_else(|| self.nodes.iter().position(|n| n.description == name))
    }

    fn exists(&self, at: PortRef) -> bool {
        self.nodes.get(at.node).is_some_and(|n| (1..=n.num_ports).contains(&at.port))
    }
}

impl Node {
    /// Creates a node with default GUIDs for its ports and without cables.
    pub fn new(kind: NodeKind, id: String, guid: Guid, num_ports: u8) -> Self {
        Self {
            kind,
            description: String::new(),
            id,
            guid,
            system_guid: guid,
            vendor_id: 0,
            device_id: 0,
            num_ports,
            enhanced_port0: false,
            ports: BTreeMap::new(),
        }
    }

    /// Returns the GUID of a port: its explicit GUID, or the node's GUID plus the number. All ports of a switch have the GUID
    /// of port 0, which is the node's unless it has an explicit one.
    pub fn port_guid(&self, number: u8) -> Guid {
        let at = if self.kind == NodeKind::Switch { 0 } else { number };
        let own = self.ports.get(&at).and_then(|p| p.guid);
        own.unwrap_or(Guid(self.guid.0.wrapping_add(at.into())))
    }

    /// Sets the description, adapted to what a file can hold: quotes become apostrophes, control characters become spaces,
    /// and it is truncated to 64 bytes.
    pub fn describe(&mut self, text: &str) {
        self.description.clear();
        for c in text.chars() {
            let c = match c {
                '"' => '\'',
                c if c.is_control() => ' ',
                c => c,
            };
            if self.description.len() + c.len_utf8() > MAX_DESCRIPTION {
                break;
            }
            self.description.push(c);
        }
    }
}
