//! The status of a manager: its state, the last sweep, and the problems of that sweep.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use rdmux_wire::Guid;
use rdmux_wire::sm::SmState;

use crate::Time;

/// The most problems of a sweep that are kept; further ones are only counted.
const MAX_PROBLEMS: usize = 32;

/// The present status of a manager.
#[derive(Clone, Debug)]
pub struct Status {
    /// The manager's state.
    pub state: SmState,
    /// The GUID of the manager's port; zero until the port has answered.
    pub guid: Guid,
    /// The manager's priority.
    pub priority: u8,
    /// The master's GUID, if known.
    pub master: Option<Guid>,
    /// Whether a sweep is under way.
    pub sweeping: bool,
    /// The number of heavy sweeps as master so far.
    pub sweeps: u64,
    /// The report of the last of them.
    pub last: Option<Report>,
}

/// The result of a heavy sweep of the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The time at which the sweep ended.
    pub ended: Time,
    /// How long the sweep took.
    pub took: Duration,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of switches among them.
    pub switches: usize,
    /// The number of ports that can have a LID.
    pub end_ports: usize,
    /// The number of requests of the method Set, including retransmissions.
    pub sets: u64,
    /// The number of problems.
    pub problem_count: u64,
    /// The first problems.
    pub problems: Vec<Problem>,
}

/// A problem at one place of the subnet. The rest of the subnet is managed nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The kind of problem.
    pub what: ProblemKind,
    /// The node; zero if its GUID is unknown.
    pub node: Guid,
    /// The port of that node.
    pub port: u8,
}

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// There is a link, but the node at its other end does not answer.
    Silent,
    /// A request got no answer.
    NoAnswer,
    /// A request was refused, with this status.
    Refused(u16),
    /// The node does not have the value that was set.
    NotKept,
    /// A GUID is zero, or a port number does not exist.
    Nonsense,
    /// Two nodes have this GUID, or a cable was moved during the sweep.
    DuplicateGuid,
    /// The route is longer than a directed route can be.
    TooFar,
    /// There are more ports than the limit: nodes behind this port are ignored.
    TooMany,
    /// No LID is free for a port, or the table of a switch is too small for the LIDs.
    NoLid,
    /// A port is in more partitions than its P_Key table has entries.
    NoPkey,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, node, port } = self;
        write!(f, "{:#018x} port {port}: ", node.0)?;
        match what {
            ProblemKind::Silent => {
                f.write_str("the node at the other end of its cable does not answer")
            }
            ProblemKind::NoAnswer => f.write_str("it does not answer"),
            ProblemKind::Refused(status) => {
                write!(f, "it rejects a request with status {status:#06x}")
            }
            ProblemKind::NotKept => {
                f.write_str("it does not keep the attributes that the manager sets")
            }
            ProblemKind::Nonsense => f.write_str("a GUID is zero, or a port number does not exist"),
            ProblemKind::DuplicateGuid => {
                f.write_str("a second node has its GUID, or a cable was moved during the sweep")
            }
            ProblemKind::TooFar => f.write_str("it is too many hops away"),
            ProblemKind::TooMany => {
                f.write_str("nodes behind it are ignored: the subnet has too many ports")
            }
            ProblemKind::NoLid => f.write_str("no free LID is left for it"),
            ProblemKind::NoPkey => {
                f.write_str("it is in more partitions than its P_Key table has entries")
            }
        }
    }
}

/// Counts during a sweep.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) started: Time,
    pub(super) sets: u64,
    pub(super) count: u64,
    pub(super) problems: Vec<Problem>,
}

impl Tally {
    pub(super) fn new(started: Time) -> Self {
        Self { started, ..Self::default() }
    }

    /// Counts a problem, and keeps it if there is room.
    pub(super) fn add(&mut self, what: ProblemKind, node: Guid, port: u8) {
        self.count += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { what, node, port });
        }
    }
}
