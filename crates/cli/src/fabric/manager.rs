//! Options of the subnet manager that is part of a fabric.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use rdmux_fabric::server::{ManagerSetup, PartitionsFile};
use rdmux_subnet::manager::RoutingEngine;

/// The subnet manager.
#[derive(Args)]
pub(crate) struct Options {
    /// No subnet manager in the fabric: OpenSM on some host manages the subnet
    #[arg(long, conflicts_with_all = ["sm_priority", "sm_routing", "sm_lmc", "sm_sweep", "sm_poll", "partitions"])]
    no_sm: bool,
    /// Of several managers the one with the highest priority manages the subnet, of equal ones that with the lowest GUID
    #[arg(long, value_name = "0..15", value_parser = clap::value_parser!(u8).range(0..=15))]
    sm_priority: Option<u8>,
    /// How routes are found: minhop, or updn, which cannot deadlock
    #[arg(long, value_name = "ENGINE")]
    sm_routing: Option<RoutingEngine>,
    /// Each port of an adapter gets 2^LMC LIDs
    #[arg(long, value_name = "LMC", value_parser = clap::value_parser!(u8).range(0..=7))]
    sm_lmc: Option<u8>,
    /// How often the switches are asked whether something has changed [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = milliseconds)]
    sm_sweep: Option<u64>,
    /// While another manager is the master: how often that is asked whether it is still there [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = milliseconds)]
    sm_poll: Option<u64>,
    /// Who is in which partition, as OpenSM's partitions.conf says; otherwise all ports are full members of the default partition
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
}

/// Seconds, also parts of them, as milliseconds.
fn milliseconds(text: &str) -> Result<u64, String> {
    const DAY: f64 = 86_400.0;
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is wanted".to_owned())?;
    if !(0.001..=DAY).contains(&seconds) {
        return Err("it is from 0.001 to 86400 seconds".to_owned());
    }
    let time = std::time::Duration::from_secs_f64(seconds);
    u64::try_from(time.as_millis()).map_err(|e| e.to_string())
}

impl Options {
    /// Whether anything is said about the manager.
    pub(super) fn changes(&self) -> bool {
        self.no_sm
            || self.sm_priority.is_some()
            || self.sm_routing.is_some()
            || self.sm_lmc.is_some()
            || self.sm_sweep.is_some()
            || self.sm_poll.is_some()
            || self.partitions.is_some()
    }

    /// What the manager is to be; what is not said is as usual.
    pub(super) fn setup(&self) -> Result<ManagerSetup> {
        let partitions = self.partitions.as_deref().map(PartitionsFile::read).transpose()?;
        Ok(ManagerSetup {
            off: self.no_sm,
            priority: self.sm_priority.unwrap_or_default(),
            routing: self.sm_routing.unwrap_or_default(),
            lmc: self.sm_lmc.unwrap_or_default(),
            sweep_ms: self.sm_sweep,
            poll_ms: self.sm_poll,
            partitions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_intervals_are_seconds_with_a_fraction() {
        assert_eq!(milliseconds("10"), Ok(10_000));
        assert_eq!(milliseconds("0.05"), Ok(50));
        for bad in ["0", "-1", "soon", "nan", "inf", "86401"] {
            assert!(milliseconds(bad).is_err(), "{bad}");
        }
    }
}
