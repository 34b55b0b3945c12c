//! The format of `partitions.conf`.

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv6Addr;

use rdmux_wire::sa::Rate;
use rdmux_wire::sm::NodeType;
use rdmux_wire::{Gid, Guid, Mtu, Qkey};

use super::scan::Scanner;
use super::{
    DEFAULT_PARTITION, LINK_LOCAL, MAX_GROUPS, Membership, Partition, PartitionGroup, Partitions,
    Ports,
};

/// The reason why a file is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The offending token; empty at the end of the file.
    pub token: String,
    /// The violated rule.
    pub rule: Rule,
}

/// The rules of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// A definition ends with a colon, and its parts with commas.
    #[error("a partition is NAME=PKEY, then flags after commas, then a colon")]
    Definition,
    /// A P_Key.
    #[error("a P_Key is a number whose low 15 bits are not zero")]
    Pkey,
    /// No P_Key is left for a partition that does not set its own.
    #[error("no free P_Key is left for a partition without a P_Key")]
    NoPkeyLeft,
    /// A flag.
    #[error(
        "flags are indx0, ipoib, rate=, mtu=, sl=, scope=, Q_Key=, TClass=, FlowLabel= and defmember="
    )]
    Flag,
    /// A flag of a group.
    #[error("flags of a group are rate=, mtu=, sl=, scope=, Q_Key=, TClass= and FlowLabel=")]
    GroupFlag,
    /// A rate.
    #[error("a rate is a code of the IBTA specification: 2 to 22")]
    Rate,
    /// An MTU.
    #[error("an MTU is a code of the IBTA specification: 1 (256 bytes) to 5 (4096 bytes)")]
    Mtu,
    /// A service level.
    #[error("a service level is a number from 0 to 15")]
    ServiceLevel,
    /// A scope.
    #[error("a scope is a number from 1 to 15")]
    Scope,
    /// A Q_Key.
    #[error("a Q_Key is a number of 32 bits")]
    Qkey,
    /// A traffic class.
    #[error("a traffic class is a number from 0 to 255")]
    Tclass,
    /// A flow label.
    #[error("a flow label is a number of 20 bits")]
    FlowLabel,
    /// A membership.
    #[error("a membership is full, limited or both")]
    Membership,
    /// A port.
    #[error("a port is a GUID, ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS or SELF")]
    Port,
    /// The end of a partition.
    #[error("a partition ends with a semicolon")]
    Semicolon,
    /// A multicast GID.
    #[error("a group is a multicast GID, as in mgid=ff12:401b::16")]
    Mgid,
    /// The GID of an IP group and its partition.
    #[error("the P_Key in the GID of an IP group is that of its partition, or zero")]
    MgidPkey,
    /// The values of an IP group.
    #[error("an IP group takes its rate and MTU from the definition of its partition")]
    NotAsBroadcast,
    /// The number of groups.
    #[error("there are more groups than multicast LIDs")]
    Groups,
}

impl ParseError {
    pub(super) fn new(file: &str, line: u32, token: &str, rule: Rule) -> Self {
        let token = token.chars().take(64).collect();
        Self { file: file.to_string(), line, token, rule }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if self.token.is_empty() {
            write!(f, "the file ends: {}", self.rule)
        } else {
            write!(f, "`{}`: {}", self.token.escape_debug(), self.rule)
        }
    }
}

impl core::error::Error for ParseError {}

/// The flags of a definition, besides name and P_Key.
#[derive(Clone, Debug)]
struct Definition {
    base: u16,
    ipoib: bool,
    index0: bool,
    member: Membership,
    group: GroupFlags,
}

/// Flags of groups.
#[derive(Clone, Debug, Default)]
struct GroupFlags {
    rate: Option<Rate>,
    mtu: Option<Mtu>,
    sl: Option<u8>,
    /// A bit for each scope.
    scopes: u16,
    qkey: Option<Qkey>,
    tclass: u8,
    flow_label: u32,
}

pub(super) fn parse(name: &str, text: &str) -> Result<Partitions, ParseError> {
    let mut default = Partition::new("Default".into());
    default.add_kind(Ports::All, Membership::Limited);
    default.add_kind(Ports::Manager, Membership::Full);
    let mut parser = Parser {
        scan: Scanner::new(name, text),
        partitions: Partitions { all: [(DEFAULT_PARTITION, default)].into(), groups: Vec::new() },
        mgids: BTreeSet::new(),
    };
    while !parser.scan.is_at_end() {
        parser.partition()?;
    }
    Ok(parser.partitions)
}

/// The state of parsing a file.
struct Parser<'a> {
    scan: Scanner<'a>,
    partitions: Partitions,
    /// The GIDs of all groups.
    mgids: BTreeSet<Gid>,
}

impl<'a> Parser<'a> {
    fn partition(&mut self) -> Result<(), ParseError> {
        let (name, mut definition) = self.definition()?;
        let base = definition.base;
        let entry =
            self.partitions.all.entry(base).or_insert_with(|| Partition::new(name.to_string()));
        entry.index0 |= definition.index0;
        entry.sl = definition.group.sl;
        if definition.ipoib {
            let group = definition.group.apply(PartitionGroup::broadcast(base));
            self.add_groups(group, definition.group.scopes, "ipoib")?;
        }
        loop {
            if self.scan.is_at_end() {
                return Err(self.scan.error("", Rule::Semicolon));
            }
            if self.scan.take(';') {
                return Ok(());
            }
            if !self.scan.take(',') {
                self.property(&mut definition)?;
            }
        }
    }

    /// Parses `NAME=PKEY, flags:`. As in OpenSM, a name alone is that of an earlier partition, and a number alone is a P_Key.
    fn definition(&mut self) -> Result<(&'a str, Definition), ParseError> {
        let name = self.scan.name();
        let base = if self.scan.take('=') {
            let word = self.scan.word();
            self.base(word)?
        } else if name.starts_with(|c: char| c.is_ascii_digit()) {
            self.base(name)?
        } else {
            self.base_of(name)?
        };
        let mut definition = Definition {
            base,
            ipoib: false,
            index0: false,
            member: Membership::Limited,
            group: GroupFlags::default(),
        };
        loop {
            if self.scan.take(':') {
                return Ok((name, definition));
            }
            if !self.scan.take(',') {
                return Err(self.scan.error(self.scan.next_token(), Rule::Definition));
            }
            self.flag(&mut definition)?;
        }
    }

    /// Parses a P_Key.
    fn base(&self, word: &str) -> Result<u16, ParseError> {
        let base = number(word).and_then(|n| u16::try_from(n).ok()).map(|n| n & 0x7fff);
        base.filter(|&n| n != 0).ok_or_else(|| self.scan.error(word, Rule::Pkey))
    }

    /// Returns the P_Key of the partition with this name, or a free one.
    fn base_of(&self, name: &str) -> Result<u16, ParseError> {
        let all = &self.partitions.all;
        let known = all.iter().find(|(_, known)| !name.is_empty() && known.name == name);
        let free = || (1..DEFAULT_PARTITION).find(|base| !all.contains_key(base));
        let base = known.map(|(&base, _)| base).or_else(free);
        base.ok_or_else(|| self.scan.error(name, Rule::NoPkeyLeft))
    }

    fn flag(&mut self, to: &mut Definition) -> Result<(), ParseError> {
        let word = self.scan.word();
        match word {
            "ipoib" => to.ipoib = true,
            "indx0" => to.index0 = true,
            "defmember" if self.scan.take('=') => to.member = self.membership()?,
            _ => self.group_flag(word, &mut to.group, Rule::Flag)?,
        }
        Ok(())
    }

    fn group_flag(
        &mut self,
        word: &str,
        to: &mut GroupFlags,
        rule: Rule,
    ) -> Result<(), ParseError> {
        if word.is_empty() || !self.scan.take('=') {
            let token = if word.is_empty() { self.scan.next_token() } else { word };
            return Err(self.scan.error(token, rule));
        }
        let text = self.scan.word();
        let value = number(text);
        let small = |most: u64| value.filter(|&n| n <= most);
        let byte = |most: u64| small(most).and_then(|n| u8::try_from(n).ok());
        let known = match word {
            "rate" => {
                let rate = byte(63).map(Rate).filter(|rate| rate.mbps() > 0);
                to.rate = rate;
                rate.is_some().then_some(()).ok_or(Rule::Rate)
            }
            "mtu" => {
                to.mtu = byte(63).and_then(Mtu::from_code);
                to.mtu.map(drop).ok_or(Rule::Mtu)
            }
            "sl" => {
                to.sl = byte(15);
                to.sl.map(drop).ok_or(Rule::ServiceLevel)
            }
            "scope" => {
                let scope = byte(15).filter(|&scope| scope > 0);
                scope.map(|scope| to.scopes |= 1 << scope).ok_or(Rule::Scope)
            }
            "Q_Key" => {
                to.qkey = value.and_then(|n| u32::try_from(n).ok()).map(Qkey);
                to.qkey.map(drop).ok_or(Rule::Qkey)
            }
            "TClass" => byte(255).map(|tclass| to.tclass = tclass).ok_or(Rule::Tclass),
            "FlowLabel" => small(0xf_ffff)
                .and_then(|n| u32::try_from(n).ok())
                .map(|label| to.flow_label = label)
                .ok_or(Rule::FlowLabel),
            _ => return Err(self.scan.error(word, rule)),
        };
        known.map_err(|rule| self.scan.error(text, rule))
    }

    fn membership(&mut self) -> Result<Membership, ParseError> {
        let word = self.scan.word();
        // OpenSM accepts abbreviations.
        let names = [
            ("full", Membership::Full),
            ("limited", Membership::Limited),
            ("both", Membership::Both),
        ];
        let found = names.iter().find(|(name, _)| !word.is_empty() && name.starts_with(word));
        let token = if word.is_empty() { self.scan.next_token() } else { word };
        found
            .map(|&(_, membership)| membership)
            .ok_or_else(|| self.scan.error(token, Rule::Membership))
    }

    /// Parses a port, a group, or more of the definition before a second colon.
    fn property(&mut self, definition: &mut Definition) -> Result<(), ParseError> {
        let word = self.scan.word();
        match word {
            "mgid" if self.scan.take('=') => return self.group(definition),
            "defmember" if self.scan.take('=') => {
                definition.member = self.membership()?;
                self.scan.take(':');
                return Ok(());
            }
            _ => {}
        }
        let kind = match word {
            "ALL" => Ok(Ports::All),
            "ALL_CAS" => Ok(Ports::Kind(NodeType::CA)),
            "ALL_SWITCHES" => Ok(Ports::Kind(NodeType::SWITCH)),
            "ALL_ROUTERS" => Ok(Ports::Kind(NodeType::ROUTER)),
            "SELF" => Ok(Ports::Manager),
            guid => {
                let token = if guid.is_empty() { self.scan.next_token() } else { guid };
                let guid = number(guid).filter(|&guid| guid != 0);
                Err(Guid(guid.ok_or_else(|| self.scan.error(token, Rule::Port))?))
            }
        };
        let membership = if self.scan.take('=') { self.membership()? } else { definition.member };
        if let Some(partition) = self.partitions.all.get_mut(&definition.base) {
            match kind {
                Ok(ports) => partition.add_kind(ports, membership),
                Err(guid) => partition.add_guid(guid, membership),
            }
        }
        Ok(())
    }

    /// Parses `mgid=GID, flags` up to the end of the line.
    fn group(&mut self, definition: &Definition) -> Result<(), ParseError> {
        let text = self.scan.gid();
        let gid = text.parse::<Ipv6Addr>().ok().map(Gid::from).filter(|gid| gid.0[0] == 0xff);
        let Some(Gid(mut mgid)) = gid else {
            let token = if text.is_empty() { self.scan.next_token() } else { text };
            return Err(self.scan.error(token, Rule::Mgid));
        };
        let of = &definition.group;
        // The flags of the definition also apply to its groups.
        let mut flags = GroupFlags { tclass: 0, ..of.clone() };
        while !self.scan.is_at_line_end() && self.scan.take(',') {
            if self.scan.is_at_line_end() {
                break;
            }
            let word = self.scan.word();
            self.group_flag(word, &mut flags, Rule::GroupFlag)?;
        }
        let base = definition.base;
        let broadcast = PartitionGroup::broadcast(base);
        let mut like = PartitionGroup { qkey: Qkey(0), ..broadcast };
        if is_ip(&mgid) {
            let key = [mgid[4], mgid[5]];
            let is_broadcast = mgid == PartitionGroup::broadcast(DEFAULT_PARTITION).mgid.0;
            let fits = key == [0, 0] || u16::from_be_bytes(key) & 0x7fff == base;
            if !fits && !is_broadcast {
                return Err(self.scan.error(text, Rule::MgidPkey));
            }
            mgid[4..6].copy_from_slice(&(base | 0x8000).to_be_bytes());
            let (said, defined) = (flags.apply(broadcast), of.apply(broadcast));
            if (said.rate, said.mtu) != (defined.rate, defined.mtu) {
                return Err(self.scan.error(text, Rule::NotAsBroadcast));
            }
            like = broadcast;
        }
        like.mgid = Gid(mgid);
        if self.mgids.contains(&like.mgid) {
            return Ok(());
        }
        self.add_groups(flags.apply(like), flags.scopes, text)
    }

    /// Adds a group for each scope, or one with the default scope. An existing group is not changed.
    fn add_groups(
        &mut self,
        mut group: PartitionGroup,
        scopes: u16,
        token: &str,
    ) -> Result<(), ParseError> {
        let scopes = if scopes == 0 { 1 << LINK_LOCAL } else { scopes };
        for scope in (0..=15).filter(|scope| scopes & 1 << scope != 0) {
            group.mgid.0[1] = group.mgid.0[1] & 0xf0 | scope;
            if !self.mgids.insert(group.mgid) {
                continue;
            }
            if self.partitions.groups.len() == MAX_GROUPS {
                return Err(self.scan.error(token, Rule::Groups));
            }
            self.partitions.groups.push(group);
        }
        Ok(())
    }
}

impl GroupFlags {
    /// Applies the flags to a group.
    fn apply(&self, group: PartitionGroup) -> PartitionGroup {
        PartitionGroup {
            qkey: self.qkey.unwrap_or(group.qkey),
            mtu: self.mtu.unwrap_or(group.mtu),
            rate: self.rate.unwrap_or(group.rate),
            sl: self.sl.unwrap_or(group.sl),
            tclass: self.tclass,
            flow_label: self.flow_label,
            ..group
        }
    }
}

/// Returns whether a GID belongs to an IP group: its signature is that of IPv4 or IPv6 (RFC 4391, section 4).
fn is_ip(mgid: &[u8; 16]) -> bool {
    matches!(mgid[2..4], [0x40 | 0x60, 0x1b])
}

/// Parses a number: hexadecimal after `0x`, else decimal.
fn number(text: &str) -> Option<u64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, radix).ok())?
}
