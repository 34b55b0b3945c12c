//! Partitions: the P_Keys of ports, and the multicast groups that exist from the start, in the format of OpenSM's
//! `partitions.conf` (`opensm(8)`, "PARTITION CONFIGURATION").
//!
//! ```
//! # use rdmux_subnet::partitions::{EndPort, Partitions};
//! # use rdmux_wire::sm::NodeType;
//! # use rdmux_wire::{Guid, Pkey};
//! let text = "Default=0x7fff, ipoib: ALL=full;\nStorage=0x10, ipoib, mtu=5: ALL_CAS, 0x2001=full;";
//! let partitions = Partitions::parse("partitions.conf", text)?;
//! let port = EndPort { guid: Guid(0x2001), kind: NodeType::CA, is_manager: false };
//! assert_eq!(partitions.table_for(&port), [Pkey(0xffff), Pkey(0x8010)]);
//! # Ok::<(), rdmux_subnet::partitions::ParseError>(())
//! ```
//!
//! As in OpenSM, the last of several rules for a port applies, and the first of several groups with the same GID.
//!
//! Differences from OpenSM: an unknown word is an error instead of being ignored. A file with an error is rejected as a
//! whole. The manager's port is always a full member of the default partition. `both` means both keys without another option.

mod parse;
mod scan;
mod tables;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use rdmux_wire::sa::Rate;
use rdmux_wire::sm::NodeType;
use rdmux_wire::{Gid, Guid, Mtu, Pkey, Qkey};

pub use parse::{ParseError, Rule};
pub use tables::PartitionTables;

/// The default partition, without the membership bit.
pub const DEFAULT_PARTITION: u16 = 0x7fff;

/// The most multicast groups of all partitions: about as many as there are multicast LIDs.
pub const MAX_GROUPS: usize = 0x3ffe;

/// Link-local scope (RFC 4291, section 2.7), the default scope of groups.
const LINK_LOCAL: u8 = 2;

/// The partitions of a subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    /// Partitions by P_Key without the membership bit.
    all: BTreeMap<u16, Partition>,
    /// The initial multicast groups, in the order of the file.
    groups: Vec<PartitionGroup>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The name, which need not be unique.
    pub name: String,
    /// Whether its key is at index 0 of tables instead of the default partition's.
    pub index0: bool,
    /// The service level of its paths, if its last definition sets one.
    pub sl: Option<u8>,
    /// Members by kind of port: at most one rule for each kind of [`Ports`].
    kinds: Vec<(Ports, Member)>,
    /// Members by GUID.
    guids: BTreeMap<Guid, Member>,
    /// The number of rules.
    rules: u32,
}

/// A rule for some ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    /// The rule with the highest number applies.
    number: u32,
    membership: Membership,
}

/// An initial multicast group of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionGroup {
    /// The group's GID.
    pub mgid: Gid,
    /// The P_Key of the partition, with the membership bit.
    pub pkey: Pkey,
    /// The Q_Key.
    pub qkey: Qkey,
    /// The MTU.
    pub mtu: Mtu,
    /// The rate.
    pub rate: Rate,
    /// The service level.
    pub sl: u8,
    /// The traffic class.
    pub tclass: u8,
    /// The flow label, 20 bits.
    pub flow_label: u32,
}

/// A port's membership in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Membership {
    /// A limited member, which communicates with full members only.
    Limited,
    /// A full member, which communicates with all members.
    Full,
    /// A member with both keys, the limited and the full one.
    Both,
}

/// The ports that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ports {
    All,
    Kind(NodeType),
    Manager,
}

/// A port that has a P_Key table of its own: an adapter's, a router's, or port 0 of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndPort {
    /// The port's GUID.
    pub guid: Guid,
    /// The type of its node.
    pub kind: NodeType,
    /// Whether the subnet manager is on the port.
    pub is_manager: bool,
}

impl Ports {
    fn contain(self, port: &EndPort) -> bool {
        match self {
            Self::All => true,
            Self::Kind(kind) => kind == port.kind,
            Self::Manager => port.is_manager,
        }
    }
}

impl Partition {
    fn new(name: String) -> Self {
        let (kinds, guids) = (Vec::new(), BTreeMap::new());
        Self { name, index0: false, sl: None, kinds, guids, rules: 0 }
    }

    /// Returns the membership of a port; none if it is not in the partition.
    pub fn membership(&self, port: &EndPort) -> Option<Membership> {
        let kinds = self.kinds.iter().filter(|(ports, _)| ports.contain(port));
        let rules = kinds.map(|(_, rule)| rule).chain(self.guids.get(&port.guid));
        rules.max_by_key(|rule| rule.number).map(|rule| rule.membership)
    }

    fn rule(&mut self, membership: Membership) -> Member {
        self.rules = self.rules.saturating_add(1);
        Member { number: self.rules, membership }
    }

    /// Adds a rule for a kind of ports. It overrides earlier rules.
    fn add_kind(&mut self, ports: Ports, membership: Membership) {
        let rule = self.rule(membership);
        match self.kinds.iter_mut().find(|(known, _)| *known == ports) {
            Some((_, known)) => *known = rule,
            None => self.kinds.push((ports, rule)),
        }
    }

    /// Adds a rule for one port. It overrides earlier rules.
    fn add_guid(&mut self, guid: Guid, membership: Membership) {
        let rule = self.rule(membership);
        self.guids.insert(guid, rule);
    }
}

/// The partitions without a file: all ports are full members of the default partition, which has an IPoIB broadcast group.
impl Default for Partitions {
    fn default() -> Self {
        let mut default = Partition::new("Default".into());
        default.add_kind(Ports::All, Membership::Full);
        let groups = [PartitionGroup::broadcast(DEFAULT_PARTITION)].into();
        Self { all: [(DEFAULT_PARTITION, default)].into(), groups }
    }
}

impl Partitions {
    /// Parses a file. `name` is used in errors.
    ///
    /// Every port is at least a limited member of the default partition, and the manager's a full one.
    ///
    /// # Errors
    /// [`ParseError`] has the line, the token, and the rule that it violates.
    pub fn parse(name: &str, text: &str) -> Result<Self, ParseError> {
        parse::parse(name, text)
    }

    /// Returns a partition by its P_Key, ignoring the membership bit.
    pub fn get(&self, pkey: Pkey) -> Option<&Partition> {
        self.all.get(&(pkey.0 & 0x7fff))
    }

    /// Returns all partitions in the order of their P_Keys, which have the membership bit set.
    pub fn iter(&self) -> impl Iterator<Item = (Pkey, &Partition)> {
        self.all.iter().map(|(&base, partition)| (Pkey(base | 0x8000), partition))
    }

    /// Returns all initial groups, in the order of the file.
    pub fn groups(&self) -> impl Iterator<Item = &PartitionGroup> {
        self.groups.iter()
    }

    /// Returns a port's membership. The manager is always a full member of the default partition, because limited members
    /// could not reach it otherwise.
    fn membership(&self, base: u16, partition: &Partition, port: &EndPort) -> Option<Membership> {
        let membership = partition.membership(port);
        let is_manager = base == DEFAULT_PARTITION && port.is_manager;
        if is_manager { membership.max(Some(Membership::Full)) } else { membership }
    }

    /// Returns the P_Key table of a port: the default partition first, unless another one has `indx0`, then the others in the
    /// order of their keys. A port with both memberships has two keys, the full one first.
    pub fn table_for(&self, port: &EndPort) -> Vec<Pkey> {
        let mut keys: Vec<_> = self.all.iter().collect();
        keys.sort_by_key(|&(&base, partition)| (!partition.index0, base != DEFAULT_PARTITION));
        let mut table = Vec::new();
        for (&base, partition) in keys {
            let Some(membership) = self.membership(base, partition, port) else { continue };
            if membership != Membership::Limited {
                table.push(Pkey(base | 0x8000));
            }
            if membership != Membership::Full {
                table.push(Pkey(base));
            }
        }
        table
    }
}

impl PartitionGroup {
    /// Returns the IPoIB broadcast group of a partition (RFC 4391, section 4), with OpenSM's values.
    fn broadcast(base: u16) -> Self {
        let [high, low] = (base | 0x8000).to_be_bytes();
        let mut mgid = [0; 16];
        mgid[..6].copy_from_slice(&[0xff, 0x10 | LINK_LOCAL, 0x40, 0x1b, high, low]);
        mgid[12..].copy_from_slice(&[0xff; 4]);
        Self {
            mgid: Gid(mgid),
            pkey: Pkey(base | 0x8000),
            qkey: Qkey(0x0b1b),
            mtu: Mtu::M2048,
            rate: Rate::GBPS_10,
            sl: 0,
            tclass: 0,
            flow_label: 0,
        }
    }

    /// Returns the hop limit of its packets: those of a link-local group stay in the subnet.
    pub fn hop_limit(&self) -> u8 {
        if self.mgid.0[1] & 0xf == LINK_LOCAL { 0 } else { u8::MAX }
    }
}

#[cfg(test)]
mod tests;
