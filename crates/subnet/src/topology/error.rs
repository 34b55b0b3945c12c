//! Errors in topology files, with their place.

use alloc::string::String;
use core::fmt;

use rdmux_wire::Guid;

use super::model::LinkError;
use super::{MAX_ALL_PORTS, MAX_DEPTH, MAX_DESCRIPTION, MAX_FILES, MAX_NODES, MAX_PORTS, MAX_TEXT};

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line.
    pub place: Place,
    /// The next word where parsing stopped, truncated to 64 characters.
    pub token: String,
    /// The rule that the line violates.
    pub rule: Rule,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at `{}`: {}", self.place, self.token, self.rule)
    }
}

impl core::error::Error for ParseError {}

/// A line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The name of the included file; empty for a line of the text itself.
    pub file: String,
    /// The line's number, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}, ", self.file)?;
        }
        write!(f, "line {}", self.line)
    }
}

/// A rule of the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// No line begins like this.
    #[error(
        "a line begins with Switch, Ca, Hca, Rt, a port in square brackets, @ and such a port, `keyword=value`, include, do or #"
    )]
    Line,
    /// An unknown keyword.
    #[error(
        "a keyword is one of vendid, devid, sysimgguid, switchguid, caguid, hcaguids, rtguid, width, speed, extspeed, module"
    )]
    Keyword,
    /// The value is not a number, or is too large.
    #[error("{0} must be a number, at most {1:#x}")]
    Number(&'static str, u64),
    /// The number of ports is missing in a node's line.
    #[error("a node has 1 to {MAX_PORTS} ports: `Switch 36 \"S-1\"`")]
    Ports,
    /// A quoted name is missing.
    #[error("a name between quotes is expected: `Switch 36 \"S-1\"`, `[1] \"H-1\"[1]`")]
    Name,
    /// A name has a reserved character.
    #[error("# and @ are reserved: # separates a module from a name, @ a module from an alias")]
    Reserved,
    /// The name of a module is missing or too long.
    #[error("a module has a name of at most 20 bytes between quotes: `module=\"rack1\"`")]
    Module,
    /// Two nodes have the same name.
    #[error("another node has this name already, see {0}")]
    SameName(Place),
    /// Two ports have the same alias.
    #[error("another port has this alias already, see {0}")]
    SameAlias(Place),
    /// Two nodes have the same GUID, or a GUID is zero.
    #[error("{0} is zero, or the GUID of another node already")]
    Guid(Guid),
    /// A description is too long.
    #[error("a description has at most {MAX_DESCRIPTION} bytes and no control characters")]
    Description,
    /// A port line without a node.
    #[error("a port belongs to the node above it; an empty line ends a node")]
    NoNode,
    /// The node has no port of this number.
    #[error("the ports of this node are [1] to [{0}]")]
    Port(u8),
    /// A port is defined twice.
    #[error("this port is described by an earlier line already")]
    SamePort,
    /// Invalid text after a port's number.
    #[error("after a port come (GUID), \"name\"[port], and w=, s= or e= with a number")]
    AfterPort,
    /// The node or port at the other end of a cable is not in the file.
    #[error(
        "there is no node with this name, or it has no such port; an alias must be defined above"
    )]
    Remote,
    /// The two ends of a cable contradict each other.
    #[error("{0}")]
    Cable(LinkError),
    /// The name of the included file is missing.
    #[error("the name of a file between quotes is expected: `include \"leaf.net\"`")]
    Include,
    /// The included file cannot be read.
    #[error("{0}")]
    Included(String),
    /// Too many included files, or too deep inclusion.
    #[error(
        "includes nest at most {MAX_DEPTH} deep, with at most {MAX_FILES} files and {MAX_TEXT} bytes in total"
    )]
    TooManyFiles,
    /// The command does not define a topology.
    #[error("`do` supports Link, Guid and Baselid; other commands need a running subnet")]
    Command,
    /// The node or port that a command names does not exist.
    #[error("there is no node or alias with this name above, or the node has no such port")]
    Named,
    /// Invalid arguments of `do Link`.
    #[error("Link takes two ports: `do Link \"S-1\"[3] \"S-2\"[3]`")]
    Link,
    /// Invalid arguments of `do Guid`.
    #[error(
        "Guid takes a node or the port of an adapter, and a GUID: `do Guid \"H-1\"[1] 0x2c9000001`"
    )]
    SetGuid,
    /// Invalid arguments of `do Baselid`.
    #[error(
        "Baselid takes the port of an adapter or port 0 of a switch, a LID up to 0xbfff, and an LMC up to 7: `do Baselid \"H-1\"[1] 4 0`"
    )]
    Baselid,
    /// The topology is too large.
    #[error("a topology has at most {MAX_NODES} nodes and {MAX_ALL_PORTS} ports")]
    TooLarge,
}
