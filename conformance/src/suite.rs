//! The tests between rdmux and the kernel's `rdma_rxe`, as a table of rows; and, in [`siw()`], those with its `siw`.
//!
//! [`table()`] lists the checks and their conditions, a [`Guest`] runs processes on both sides of a
//! wire between two network namespaces, and each of the modules implements one kind of exchange.

mod datagram;
mod evidence;
mod guest;
mod icrc;
mod messages;
mod multicast;
mod programs;
mod rping;
mod siw;
mod table;
mod verbs;
mod wanted;

use std::fmt;

use anyhow::Result;

pub use guest::{Guest, Place};
pub use icrc::send_datagram;
pub use programs::Program;
pub use siw::{Siw, siw, take_the_wire};
pub use table::table;
pub use wanted::Wanted;

/// The conditions on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// RoCE's path MTU on it, 1024 or 4096.
    pub mtu: u16,
    /// The percentage of packets lost in each direction.
    pub loss: u8,
    /// Whether rdmux may use segmentation offload for sending.
    pub offload: bool,
}

impl Link {
    /// The MTU of the network interface.
    pub fn interface_mtu(self) -> u16 {
        if self.mtu == 4096 { 4300 } else { 1500 }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MTU {}", self.mtu)?;
        if self.loss > 0 {
            write!(f, ", {} % loss", self.loss)?;
        }
        f.write_str(if self.offload { ", GSO" } else { "" })
    }
}

/// The address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The client, which sends the requests and opens the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// rdmux, with the kernel as the server.
    Rdmux,
    /// The kernel, with rdmux as the server.
    Kernel,
}

impl Asks {
    /// Returns the side on which the server runs.
    pub fn server(self) -> Place {
        match self {
            Self::Rdmux => Place::Kernel,
            Self::Kernel => Place::Rdmux,
        }
    }
    /// Returns the side on which the client runs.
    pub fn client(self) -> Place {
        match self {
            Self::Rdmux => Place::Rdmux,
            Self::Kernel => Place::Kernel,
        }
    }
}

impl fmt::Display for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdmux => "rdmux asks",
            Self::Kernel => "kernel asks",
        })
    }
}

/// One run of processes, which fills one row or several.
#[derive(Clone, Debug)]
pub struct Check {
    /// The part of the requirements that it tests: 3 transports, 5 verbs, 7 connections, 11 both,
    /// 8 unmodified programs.
    pub part: u8,
    /// The conditions.
    pub link: Link,
    /// The address family.
    pub family: Family,
    /// The side that is the client.
    pub asks: Asks,
    /// The test.
    pub what: What,
    /// Whether CI runs the check; `--all` runs the others too.
    pub brief: bool,
}

/// The test of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// `rping` against `rdmux ping`.
    Rping {
        /// Bytes of a ping.
        size: u32,
    },
    /// A connection to a port without a listener.
    Refused,
    /// `ucmatose` against `rdmux cmtest`: several connections, messages both ways.
    Messages,
    /// `udaddy` against `rdmux udtest`: SIDR, then datagrams both ways.
    Datagrams,
    /// `verbs_peer` against `verbs-peer`.
    Verbs(&'static [&'static str]),
    /// `mckey` against `rdmux mctest`.
    Multicast,
    /// A program of the distribution against itself.
    Program(&'static Program),
    /// The ICRC of every frame on the wire, and the handling of a wrong one.
    Icrc,
}

/// The outcome of a row.
pub type Outcome = Result<()>;

impl Check {
    /// Returns the names of its rows.
    pub fn rows(&self) -> Vec<String> {
        let one = |what: &str| vec![self.row(what)];
        match self.what {
            What::Rping { size } => one(&format!("rping, {size} bytes")),
            What::Refused => one("nobody listens: reason 8"),
            What::Messages => one("ucmatose: connect, messages, disconnect"),
            What::Datagrams => one("udaddy: SIDR, datagrams"),
            What::Verbs(tests) => tests.iter().map(|t| self.row(t)).collect(),
            What::Multicast => multicast::ROWS.iter().map(|r| self.row(r)).collect(),
            What::Program(program) => one(&format!("rdmux run -- {}", program.name)),
            What::Icrc => icrc::ROWS.iter().map(|r| self.row(r)).collect(),
        }
    }

    /// Returns the name of a row of this check.
    fn row(&self, what: &str) -> String {
        format!(
            "part {:<2} | {what:<40} | {:<11} | {} | {}",
            self.part, self.asks, self.family, self.link
        )
    }

    /// Runs the check. Returns an outcome for each of [`rows`](Self::rows), in their order.
    pub fn run(&self, guest: &Guest) -> Vec<Outcome> {
        match self.what {
            What::Rping { size } => vec![rping::ping(guest, self, size)],
            What::Refused => vec![rping::refused(guest, self)],
            What::Messages => vec![messages::run(guest, self)],
            What::Datagrams => vec![datagram::run(guest, self)],
            What::Verbs(tests) => verbs::run(guest, self, tests),
            What::Multicast => multicast::run(guest, self),
            What::Program(program) => vec![programs::run(guest, self, program)],
            What::Icrc => icrc::run(guest, self),
        }
    }
}
