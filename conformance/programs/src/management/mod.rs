//! The distribution's subnet manager and diagnostics on a fabric.
//!
//! A row has a [`Ground`]: a fabric of some shape, in a runtime directory of its own, with two hosts attached. OpenSM manages it, or
//! the fabric's own manager ([`ManagedBy`]). The output of programs
//! is compared with the fabric's state ([`rdmux_fabric::proto::Snapshot`]), with its forwarding tables, or with the
//! topology that it was given; an exit status proves nothing.
//!
//! Reading order: [`ground`], [`opensm`] starts managers, [`bring_up`] and [`two_managers`] are its rows, [`handover`] those with one
//! OpenSM and the fabric's own manager, [`diags`] those of infiniband-diags, [`repartition`] a row of changing partitions, [`two_ports`]
//! those of a host with two ports, [`data`] those of programs with data, [`captured`] one of tshark with captures, [`ibacm`] those of
//! Debian's resolution service, [`acm`] those with rdmux's service too, [`librdmacm`] that of Debian's librdmacm with it, [`client`] sends
//! requests that no program sends, [`ibsim`] compares topology files.

pub(crate) mod acm;
mod bring_up;
pub(crate) mod captured;
mod client;
pub(crate) mod compare;
pub(crate) mod data;
pub(crate) mod diags;
mod ground;
pub(crate) mod handover;
pub(crate) mod ibacm;
pub(crate) mod ibsim;
pub(crate) mod librdmacm;
mod opensm;
pub(crate) mod repartition;
pub(crate) mod two_managers;
pub(crate) mod two_ports;

use std::time::Duration;

use anyhow::Result;

pub(crate) use self::bring_up::{BringUp, Extra};
pub(crate) use self::compare::{Also, Compare};
pub(crate) use self::ground::Ground;
pub(crate) use self::handover::Handover;
use crate::row::Outcome;
use crate::stage::Stage;

/// The timeout of a program. A slow machine runs others at the same time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The manager of a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManagedBy {
    /// OpenSM, on the first host.
    OpenSm,
    /// The manager that is part of the fabric, at port 0 of the first switch.
    Fabric,
}

/// The kinds of rows in this section.
#[derive(Clone, Debug)]
pub(crate) enum Management {
    /// OpenSM brings a subnet up.
    BringUp(BringUp),
    /// Two managers, on a fabric of their own.
    Two(fn(&Ground) -> Result<()>),
    /// OpenSM and the fabric's own manager, on a fabric of their own.
    Handover(Handover),
    /// The same requests go to OpenSM and to the fabric's own administration.
    Compare(Compare),
    /// A program reads a subnet of its own, which the fabric's manager has brought up with these options.
    With(&'static [&'static str], fn(&Ground) -> Result<()>),
    /// A program reads a subnet that a manager has brought up. Rows of one shape and one manager share it.
    Look(&'static str, ManagedBy, fn(&Ground) -> Result<()>),
}

impl Management {
    /// Runs the row.
    pub(crate) fn run(&self, stage: &mut Stage, title: &str) -> Outcome {
        match self {
            Self::BringUp(row) => row.run(&stage.ground(row.shape, title)?)?,
            Self::Two(row) => row(&stage.ground("switch:8", title)?)?,
            Self::Handover(row) => {
                let ground = stage.ground_with(&row.subnet.shape(), &row.options(), title)?;
                (row.run)(&ground)?;
            }
            Self::Compare(row) => {
                let options = row.options(stage.work())?;
                let options: Vec<&str> = options.iter().map(String::as_str).collect();
                row.run(&stage.ground_with(row.shape, &options, title)?)?;
            }
            Self::With(options, row) => {
                row(&stage.ground_with("switch:8", options, title)?.managed_by_itself()?)?;
            }
            Self::Look(shape, by, row) => {
                let ground = stage.managed_ground(shape, *by, title)?;
                let outcome = row(ground).and_then(|()| ground.nothing_is_left());
                if outcome.is_err() {
                    // The next row must not find the leftovers of this one.
                    stage.leave_ground();
                }
                outcome?;
            }
        }
        Ok(())
    }
}
