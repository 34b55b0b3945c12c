//! The definition of a row of the table.

use std::fmt;

use crate::exchange::Exchange;
use crate::management::Management;
use crate::pyverbs::Expected;
use crate::stage::{Scene, Stage};

/// Programs that run in one configuration.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The device of the hosts.
    pub(crate) device: Device,
    /// The program and its options, as a reader of the table needs to see them.
    pub(crate) title: String,
    /// The hosts.
    pub(crate) way: Way,
    /// Whether CI runs it; `--all` runs the others too.
    pub(crate) brief: bool,
    /// The program or test that is run.
    pub(crate) run: Run,
}

/// A device that every host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Device {
    /// RoCE.
    #[default]
    Roce,
    /// iWARP.
    Iw,
    /// InfiniBand.
    Ib,
}

impl Device {
    /// Returns the device's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Roce => "rdmux_roce0",
            Self::Iw => "rdmux_iw0",
            Self::Ib => "rdmux_ib0",
        }
    }

    /// Returns the argument of `rdmux run --device` for it.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Roce => "roce",
            Self::Iw => "iw",
            Self::Ib => "ib",
        }
    }
}

/// The hosts and the address between which the programs of a row run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Between processes of one virtual host: through shared memory.
    Ring,
    /// Between two virtual hosts: over UDP, or for iWARP over TCP.
    Udp,
    /// Between processes of the default host, by `127.0.0.1`, as a plain user if possible.
    Default,
    /// Between processes of the default host, by `::1`.
    Loopback6,
    /// Between the default hosts of two network namespaces, over IPv4.
    Wire4,
    /// Between the default hosts of two network namespaces, over IPv6.
    Wire6,
    /// Like `Wire4`, but both hosts belong to one user, who has set no directory for either.
    Namespaces,
    /// Like `Namespaces`, for a user without privilege, with the namespaces in a user namespace.
    UserNamespaces,
    /// Between two virtual hosts on a fabric that OpenSM manages.
    OpenSm,
    /// Between the two ports of a virtual host on one fabric.
    OwnPorts,
    /// Between two such hosts.
    Ports,
    /// Between hosts of a fabric, which the programs manage or query.
    Management,
}

impl Way {
    /// The two ways in which every program is run.
    pub(crate) const HERE: &[Self] = &[Self::Ring, Self::Udp];
    /// The ways over IPv6.
    pub(crate) const IPV6: &[Self] = &[Self::Loopback6, Self::Wire6];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ring => "one host",
            Self::Udp => "two hosts",
            Self::Default => "127.0.0.1",
            Self::Loopback6 => "::1",
            Self::Wire4 => "wire, IPv4",
            Self::Wire6 => "wire, IPv6",
            Self::Namespaces => "two namespaces",
            Self::UserNamespaces => "two namespaces, a plain user",
            Self::OpenSm => "two hosts, OpenSM",
            Self::OwnPorts => "one host, two ports",
            Self::Ports => "two hosts, two ports",
            Self::Management => "management",
        })
    }
}

/// The options of a program that runs [here](Way::HERE), and in which of those ways CI runs it with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The options.
    pub(crate) text: &'static str,
    /// The ways of the brief rows.
    pub(crate) brief: &'static [Way],
}

/// CI runs both rows: the options have different effects on shared memory and on the network.
pub(crate) const fn both(text: &'static str) -> Options {
    Options { text, brief: Way::HERE }
}

/// CI runs the row on one host.
pub(crate) const fn one_host(text: &'static str) -> Options {
    Options { text, brief: &[Way::Ring] }
}

/// CI runs the row between two hosts.
pub(crate) const fn two_hosts(text: &'static str) -> Options {
    Options { text, brief: &[Way::Udp] }
}

/// CI runs neither: brief rows have each of the options already, with another program or another size.
pub(crate) const fn rest(text: &'static str) -> Options {
    Options { text, brief: &[] }
}

/// The program or test that is run.
#[derive(Clone, Debug)]
pub(crate) enum Run {
    /// A server and its clients, or one program alone.
    Exchange(Exchange),
    /// One of rdma-core's own tests.
    Pyverbs(Expected),
    /// A manager of a fabric, or a program that queries one.
    Management(Management),
}

impl Run {
    pub(crate) fn run(&self, stage: &mut Stage, scene: &Scene) -> Outcome {
        match self {
            Self::Exchange(exchange) => exchange.run(scene).map_err(Into::into),
            Self::Pyverbs(expected) => expected.check(stage, scene),
            Self::Management(_) => {
                Err(anyhow::anyhow!("its row has a fabric, and no scene").into())
            }
        }
    }
}

/// The outcome of a row: success, or why not.
pub(crate) type Outcome = Result<(), Trouble>;

/// The reason why a row did not succeed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The row cannot and need not run here: the operating system forbids what it needs.
    NotHere(String),
    /// The row has failed.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Trouble {
    fn from(e: anyhow::Error) -> Self {
        Self::Failed(e)
    }
}

impl Row {
    /// Returns a row for each of these ways; brief are those that the exchange names.
    pub(crate) fn each(ways: &[Way], exchange: &Exchange) -> Vec<Self> {
        let row = |&way| Self {
            device: Device::Roce,
            title: exchange.title.clone(),
            way,
            brief: exchange.brief.contains(&way),
            run: Run::Exchange(exchange.clone()),
        };
        ways.iter().map(row).collect()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = match self.device {
            Device::Iw => "iWARP, ",
            Device::Ib if self.way != Way::Management => "InfiniBand, ",
            Device::Roce | Device::Ib => "",
        };
        write!(f, "{device}{:<10} | {}", self.way, self.title)
    }
}
