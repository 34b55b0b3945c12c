//! What a manager says of itself: its state, the last sweep, and what went wrong in it.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use rdmux_wire::Guid;
use rdmux_wire::sm::SmState;

use crate::Time;

/// How many problems of a sweep are kept; the others are only counted.
const MAX_PROBLEMS: usize = 32;

/// A manager as it is now.
#[derive(Clone, Debug)]
pub struct Status {
    /// What it does.
    pub state: SmState,
    /// The GUID of its port; zero until the port has answered.
    pub guid: Guid,
    /// Its priority.
    pub priority: u8,
    /// The master's GUID, as far as it is known.
    pub master: Option<Guid>,
    /// Whether a sweep is under way.
    pub sweeping: bool,
    /// Heavy sweeps as the master so far.
    pub sweeps: u64,
    /// The last of them.
    pub last: Option<Report>,
}

/// How a heavy sweep of the master went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// When it ended.
    pub ended: Time,
    /// How long it took.
    pub took: Duration,
    /// Nodes.
    pub nodes: usize,
    /// Switches among them.
    pub switches: usize,
    /// Ports that can have a LID.
    pub end_ports: usize,
    /// How many requests of the method Set it sent, repetitions too.
    pub sets: u64,
    /// How many problems there were.
    pub problem_count: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
}

/// What went wrong at one place of the subnet. The rest of the subnet is managed nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What.
    pub what: ProblemKind,
    /// The node; zero where it did not say who it is.
    pub node: Guid,
    /// The port of that node.
    pub port: u8,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// There is a link, but what is at its other end does not answer.
    Silent,
    /// A request got no answer.
    NoAnswer,
    /// A request was refused, with this status.
    Refused(u16),
    /// What was set is not what the node has.
    NotKept,
    /// A GUID is zero, or a port number does not exist.
    Nonsense,
    /// Two nodes have this GUID, or a cable was moved during the sweep.
    DuplicateGuid,
    /// More hops from the manager than a directed route can have.
    TooFar,
    /// There are more ports than are looked at: what is behind this one is left out.
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
                f.write_str("what is at the other end of its cable does not answer")
            }
            ProblemKind::NoAnswer => f.write_str("it does not answer"),
            ProblemKind::Refused(status) => {
                write!(f, "it refuses a request with status {status:#06x}")
            }
            ProblemKind::NotKept => f.write_str("it does not keep what was set"),
            ProblemKind::Nonsense => f.write_str("a GUID is zero, or a port number does not exist"),
            ProblemKind::DuplicateGuid => {
                f.write_str("a second node has its GUID, or a cable was moved during the sweep")
            }
            ProblemKind::TooFar => f.write_str("it is too many hops away"),
            ProblemKind::TooMany => f.write_str("what is behind it is left out: too many ports"),
            ProblemKind::NoLid => f.write_str("no LID is left for it"),
            ProblemKind::NoPkey => {
                f.write_str("it is in more partitions than its P_Key table has entries")
            }
        }
    }
}

/// What is counted during a sweep.
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

    pub(super) fn add(&mut self, what: ProblemKind, node: Guid, port: u8) {
        self.count += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { what, node, port });
        }
    }
}
