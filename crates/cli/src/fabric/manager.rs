//! Options of the subnet manager that is part of a fabric.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use rdmux_fabric::server::{ManagerSetup, PartitionsFile};
use rdmux_subnet::manager::RoutingEngine;
use rdmux_wire::Mkey;

/// The subnet manager.
#[derive(Args)]
pub(crate) struct Options {
    /// Run no subnet manager in the fabric: OpenSM on some host manages the subnet
    #[arg(long, conflicts_with_all = ["sm_priority", "sm_routing", "sm_lmc", "sm_sweep", "sm_poll", "sm_sl_to_vl", "sm_babbling_port_policy", "m_key", "partitions"])]
    no_sm: bool,
    /// Priority of the fabric's manager: the highest becomes master, among equal ones the lowest GUID [default: 0]
    #[arg(long, value_name = "0..15", value_parser = clap::value_parser!(u8).range(0..=15))]
    sm_priority: Option<u8>,
    /// Routing engine: minhop, or updn, which cannot deadlock [default: minhop]
    #[arg(long, value_name = "ENGINE")]
    sm_routing: Option<RoutingEngine>,
    /// LID mask control: each port of an adapter gets 2^LMC LIDs [default: 0]
    #[arg(long, value_name = "LMC", value_parser = clap::value_parser!(u8).range(0..=7))]
    sm_lmc: Option<u8>,
    /// Interval of light sweeps, which ask the switches for changes [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = milliseconds)]
    sm_sweep: Option<u64>,
    /// Interval at which a standby manager polls the master [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = milliseconds)]
    sm_poll: Option<u64>,
    /// Virtual lane of each service level, 0 to 14, or 15 to drop its packets: 16 numbers as in OpenSM's qos_sl2vl, or "default", which is 0 to 14 and 7. A lane that a
    /// port does not have is taken modulo the port's number of lanes. Without this option nodes keep their tables
    #[arg(long, value_name = "LANES", value_parser = lanes)]
    sm_sl_to_vl: Option<[u8; 16]>,
    /// Disable a port that has sent 250 traps of the same link error in a row, as OpenSM does with its babbling_port_policy; ibportstate(8) enables it
    /// again. Without this option such traps are only ignored
    #[arg(long)]
    sm_babbling_port_policy: bool,
    /// M_Key of all ports, without which no management datagram can change them: a number other than 0, hexadecimal with 0x
    #[arg(long, value_name = "KEY", value_parser = key)]
    m_key: Option<Mkey>,
    /// Protection level, what ports refuse to Gets without the key: 0 nothing, 1 the key itself, 2 and 3 any Get [default: 0]
    #[arg(long, value_name = "0..3", requires = "m_key", value_parser = clap::value_parser!(u8).range(0..=3))]
    m_key_protect: Option<u8>,
    /// Lease period: time until a port drops its protection after a wrong key, unless the right one arrives [default: 0, never]
    #[arg(long, value_name = "SECONDS", requires = "m_key")]
    m_key_lease: Option<u16>,
    /// Partitions and their members, in the format of OpenSM's partitions.conf; without it all ports are full members of the default partition
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
}

/// Parses seconds, also fractions, to milliseconds.
fn milliseconds(text: &str) -> Result<u64, String> {
    const DAY: f64 = 86_400.0;
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.001..=DAY).contains(&seconds) {
        return Err("use 0.001 to 86400 seconds".to_owned());
    }
    let time = std::time::Duration::from_secs_f64(seconds);
    u64::try_from(time.as_millis()).map_err(|e| e.to_string())
}

/// Parses a virtual lane for each service level.
fn lanes(text: &str) -> Result<[u8; 16], String> {
    if text == "default" {
        return Ok(rdmux_subnet::manager::Config::SL_TO_VL.vls.map(|vl| vl.0));
    }
    let lane = |word: &str| word.trim().parse().ok().filter(|lane| *lane <= 15);
    let lanes: Option<Vec<u8>> = text.split(',').map(lane).collect();
    let lanes = lanes.and_then(|lanes| lanes.try_into().ok());
    lanes.ok_or_else(|| "use 16 numbers from 0 to 15, separated by commas, or `default`".into())
}

/// Parses a key other than zero.
fn key(text: &str) -> Result<Mkey, String> {
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric());
    let key = match text.strip_prefix("0x").filter(|_| plain) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().filter(|_| plain),
    };
    let key = key.filter(|key| *key != 0).map(Mkey);
    key.ok_or_else(|| "use a 64-bit number other than 0".into())
}

impl Options {
    /// Returns whether any option of the manager is given.
    pub(super) fn changes(&self) -> bool {
        self.no_sm
            || self.sm_priority.is_some()
            || self.sm_routing.is_some()
            || self.sm_lmc.is_some()
            || self.sm_sweep.is_some()
            || self.sm_poll.is_some()
            || self.sm_sl_to_vl.is_some()
            || self.sm_babbling_port_policy
            || self.m_key.is_some()
            || self.partitions.is_some()
    }

    /// Returns the manager's setup, with defaults for options that are not given.
    pub(super) fn setup(&self) -> Result<ManagerSetup> {
        let partitions = self.partitions.as_deref().map(PartitionsFile::read).transpose()?;
        Ok(ManagerSetup {
            off: self.no_sm,
            priority: self.sm_priority.unwrap_or_default(),
            routing: self.sm_routing.unwrap_or_default(),
            lmc: self.sm_lmc.unwrap_or_default(),
            sweep_ms: self.sm_sweep,
            poll_ms: self.sm_poll,
            m_key: self.m_key.unwrap_or(Mkey(0)),
            m_key_protect: self.m_key_protect.unwrap_or_default(),
            m_key_lease: self.m_key_lease.unwrap_or_default(),
            sl_to_vl: self.sm_sl_to_vl,
            babbling_port_policy: self.sm_babbling_port_policy,
            partitions,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn each_sm_option_changes_the_manager_setup_and_excludes_no_sm() {
        let options =
            |line: &[&str]| Line::try_parse_from([&["up"], line].concat()).map(|line| line.options);
        let usual = options(&[]).unwrap();
        assert!(!usual.changes() && usual.setup().unwrap() == ManagerSetup::default());
        let lines: [&[&str]; 8] = [
            &["--sm-priority", "3"],
            &["--sm-routing", "updn"],
            &["--sm-lmc", "2"],
            &["--sm-sweep", "1"],
            &["--sm-poll", "1"],
            &["--sm-sl-to-vl", "default"],
            &["--sm-babbling-port-policy"],
            &["--m-key", "7"],
        ];
        for line in lines {
            let said = options(line).unwrap();
            assert!(said.changes() && said.setup().unwrap() != ManagerSetup::default(), "{line:?}");
            assert!(options(&[line, &["--no-sm"]].concat()).is_err(), "{line:?}");
        }
        assert!(
            options(&["--sm-babbling-port-policy"]).unwrap().setup().unwrap().babbling_port_policy
        );
        assert!(options(&["--no-sm"]).unwrap().setup().unwrap().off);
    }

    #[test]
    fn lanes_are_16_numbers_and_keys_are_numbers() {
        assert_eq!(lanes("default").unwrap()[13..], [13, 14, 7]);
        assert_eq!(lanes("0,1,0,1,0,1,0,1,0,1,0,1,0,1,0,15").unwrap()[14..], [0, 15]);
        for bad in
            ["", "0", "0,1,0,1,0,1,0,1,0,1,0,1,0,1,0,16", "0,1,0,1,0,1,0,1,0,1,0,1,0,1,0,1,0"]
        {
            assert!(lanes(bad).is_err(), "{bad}");
        }
        assert_eq!(key("0xffffffffffffffff"), Ok(Mkey(u64::MAX)));
        assert_eq!(key("17"), Ok(Mkey(17)));
        for bad in ["0", "0x0", "", "0x", "+1", "0x+1", "0x10000000000000000", "key"] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sweep_intervals_are_seconds_with_a_fraction() {
        assert_eq!(milliseconds("10"), Ok(10_000));
        assert_eq!(milliseconds("0.05"), Ok(50));
        for bad in ["0", "-1", "soon", "nan", "inf", "86401"] {
            assert!(milliseconds(bad).is_err(), "{bad}");
        }
    }
}
