//! The address file, `ibacm_addr.cfg`: the names and addresses of endpoints, one per line.
//!
//! ```text
//! # ADDRESS  DEVICE  PORT  P_KEY
//! node31     mlx5_0  1     default
//! node31-2   mlx5_0  2     0x80ff
//! ```

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::io::BufRead;
use std::net::IpAddr;

use rdmux_wire::Pkey;
use rdmux_wire::acm::{Address, Name};

use crate::Report;
use crate::lines::{Line, each_line};
use crate::problem::Reporter;

/// The maximum number of address lines that are used.
pub const MAX_ASSIGNMENTS: usize = 1 << 16;

/// The maximum length of a device name, in bytes.
const MAX_DEVICE: usize = 31;

/// The part of an address that ibacm reads, in bytes.
const IBACM_ADDRESS: usize = 46;

/// A name or an address assigned to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Assignment {
    /// The name or the IP address.
    pub address: Address,
    /// The device's name.
    pub device: String,
    /// The port's number, from 1 on.
    pub port: u8,
    /// The partition.
    pub pkey: PkeyChoice,
}

/// The partition of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PkeyChoice {
    /// The first partition of the port's table.
    First,
    /// The partition of a key, regardless of its membership bit.
    Of(Pkey),
}

impl PkeyChoice {
    /// Returns whether this selects a key of a port's table, at `index`.
    pub const fn is(self, index: u16, key: Pkey) -> bool {
        match self {
            Self::First => index == 0,
            Self::Of(wanted) => wanted.0 & 0x7fff == key.0 & 0x7fff,
        }
    }
}

/// Formats it as in the file.
impl fmt::Display for PkeyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("default"),
            Self::Of(pkey) => pkey.fmt(f),
        }
    }
}

/// The assignments of a file, with their lines.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Assignments {
    /// The assignments, in the order of the file.
    pub all: Vec<Assignment>,
    /// The line of each, for problems that are found later.
    pub lines: Vec<u32>,
}

/// Parses an address file. `name` is its name in problems, `takes_ips` the option `support_ips_in_addr_cfg`. Without that
/// option, lines with IP addresses are skipped, since the service determines the addresses of interfaces anyway.
pub fn parse(name: &str, input: impl BufRead, takes_ips: bool) -> (Assignments, Report) {
    let mut problems = Reporter::new(name);
    let (mut found, mut known) = (Assignments::default(), BTreeSet::new());
    each_line(input, &mut problems, |line, problems| {
        let assignment = match assignment(line, problems) {
            Ok(assignment) => assignment,
            Err(what) => return problems.error(line.number, what),
        };
        if !takes_ips && !matches!(assignment.address, Address::Name(_)) {
            problems.warning(line.number, SKIPPED_IP);
        } else if !known.insert(assignment.clone()) {
            problems.warning(line.number, "a duplicate of an earlier line");
        } else if found.all.len() == MAX_ASSIGNMENTS {
            let what = format!("more than {MAX_ASSIGNMENTS} addresses; this one is ignored");
            problems.error(line.number, what);
        } else {
            found.all.push(assignment);
            found.lines.push(line.number);
        }
    });
    (found, problems.finish())
}

const SKIPPED_IP: &str =
    "an IP address is used only with support_ips_in_addr_cfg 1; those of interfaces need no line";

fn assignment(line: Line<'_>, problems: &mut Reporter<'_>) -> Result<Assignment, String> {
    let Some(([address, device, port, pkey], more)) = line.fields() else {
        return Err("a line has four words: address, device, port, P_Key".to_owned());
    };
    if let Some(more) = more {
        let what = format!("{} and the rest of the line are ignored", quoted(more));
        problems.warning(line.number, what);
    }
    if address.len() > IBACM_ADDRESS {
        let what = format!("ibacm reads only the first {IBACM_ADDRESS} bytes of an address");
        problems.warning(line.number, what);
    }
    if device.len() > MAX_DEVICE || !is_word(device) {
        return Err(format!("a device's name has at most {MAX_DEVICE} bytes of text"));
    }
    Ok(Assignment {
        address: self::address(address)?,
        device: device.to_owned(),
        port: self::port(port)?,
        pkey: self::pkey(pkey)?,
    })
}

/// Quotes a word, for a message of one line.
pub(crate) fn quoted(word: &str) -> String {
    format!("{word:?}")
}

pub(crate) fn address(word: &str) -> Result<Address, String> {
    if let Ok(ip) = word.parse::<IpAddr>() {
        return Ok(ip.into());
    }
    let name = Address::name(word).filter(|_| is_word(word));
    name.ok_or_else(|| {
        format!("a name has 1 to {} bytes of text, unlike {}", Name::MAX, quoted(word))
    })
}

fn port(word: &str) -> Result<u8, String> {
    let port = word.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| format!("a port is a number from 1 to 255, not {}", quoted(word)))
}

fn pkey(word: &str) -> Result<PkeyChoice, String> {
    if word.eq_ignore_ascii_case("default") {
        return Ok(PkeyChoice::First);
    }
    let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word);
    let pkey = u16::from_str_radix(digits, 16).ok();
    let pkey = pkey.filter(|pkey| pkey & 0x7fff != 0 && !digits.starts_with('+'));
    pkey.map(|pkey| PkeyChoice::Of(Pkey(pkey))).ok_or_else(|| {
        let word = quoted(word);
        format!("a P_Key is default, or hexadecimal from 0x1 to 0xffff except 0x8000, not {word}")
    })
}

/// Returns the text of an address file that ibacm can read, too: addresses in columns, under a comment that explains
/// them. Addresses that the file format cannot express are omitted: names with white space, GIDs and LIDs.
pub fn write(assignments: &[Assignment]) -> String {
    let mut text = String::from(HEAD);
    let lines = assignments.iter().filter(|a| is_writable(a));
    let width = lines.clone().map(|a| a.address.to_string().len()).max().unwrap_or(0);
    for Assignment { address, device, port, pkey } in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:width$}  {device} {port} {pkey}", address.to_string());
    }
    text
}

fn is_writable(assignment: &Assignment) -> bool {
    let is_address = match &assignment.address {
        Address::Name(name) => name.as_str().is_some_and(|name| {
            is_word(name) && !name.starts_with('#') && name.parse::<IpAddr>().is_err()
        }),
        Address::Ip4(_) | Address::Ip6(_) => true,
        Address::Gid(_) | Address::Lid(_) => false,
    };
    is_address && is_word(&assignment.device) && assignment.device.len() <= MAX_DEVICE
}

/// Returns whether the text is parsed as one word with only visible characters.
pub(crate) fn is_word(word: &str) -> bool {
    !word.is_empty() && !word.contains(|c: char| c.is_ascii_whitespace() || c.is_control())
}

const HEAD: &str = "\
# Names and addresses of InfiniBand endpoints, for an ACM service.
#
# Each line: ADDRESS DEVICE PORT P_KEY
#   ADDRESS  a host's name; or an IP address, with support_ips_in_addr_cfg 1
#   DEVICE   as ibv_devices shows it
#   PORT     its number, from 1 on
#   P_KEY    in hexadecimal; or default, for the first one of the port
#
";

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, device: &str, port: u8, pkey: PkeyChoice) -> Assignment {
        Assignment { address: address(name).unwrap(), device: device.to_owned(), port, pkey }
    }

    fn read(text: &str) -> (Assignments, Report) {
        parse("addr", text.as_bytes(), true)
    }

    #[track_caller]
    fn refused(line: &str, why: &str) {
        let (found, report) = read(line);
        assert_eq!(found.all, [], "{line}");
        assert_eq!(report.to_string(), format!("addr:1: error: {why}\n"));
    }

    #[test]
    fn file_of_ib_acme_is_read() {
        let text =
            "# comment\nnode31 ibv0 1 default\n\nnode31-1\tibv0  1 0x00FF\nnode31-2 ibv0 2 7f\n";
        let (found, report) = parse("addr", text.as_bytes(), false);
        assert!(report.is_clean(), "{report}");
        let right = [
            named("node31", "ibv0", 1, PkeyChoice::First),
            named("node31-1", "ibv0", 1, PkeyChoice::Of(Pkey(0xff))),
            named("node31-2", "ibv0", 2, PkeyChoice::Of(Pkey(0x7f))),
        ];
        assert_eq!(found.all, right);
        assert_eq!(found.lines, [2, 4, 5]);
    }

    #[test]
    fn each_invalid_address_line_is_reported_with_its_reason() {
        refused("node31 ibv0 1", "a line has four words: address, device, port, P_Key");
        refused("a ibv0 0 default", "a port is a number from 1 to 255, not \"0\"");
        refused("a ibv0 256 default", "a port is a number from 1 to 255, not \"256\"");
        for pkey in ["0", "0x8000", "10000", "0xx", "+1", "none"] {
            let why = "a P_Key is default, or hexadecimal from 0x1 to 0xffff except 0x8000, not";
            refused(&format!("a ibv0 1 {pkey}"), &format!("{why} {pkey:?}"));
        }
        let device = "d".repeat(32);
        refused(&format!("a {device} 1 1"), "a device's name has at most 31 bytes of text");
        let (found, report) = read(&format!("{} ibv0 1 1\n", "x".repeat(64)));
        assert_eq!((found.all.len(), report.errors(), report.warnings()), (0, 1, 1));
    }

    #[test]
    fn address_lines_read_differently_by_ibacm_are_warnings() {
        let long = "x".repeat(63);
        let (found, report) = read(&format!("a ibv0 1 1 more\n{long} ibv0 1 1\na ibv0 1 0x0001\n"));
        assert_eq!((found.all.len(), report.errors(), report.warnings()), (2, 0, 3), "{report}");
    }

    #[test]
    fn ip_addresses_need_the_option() {
        let text = "10.0.0.1 ibv0 1 default\nfd00::1 ibv0 1 default\n";
        let (found, report) = parse("addr", text.as_bytes(), false);
        assert_eq!((found.all.len(), report.warnings()), (0, 2));
        let (found, report) = read(text);
        assert!(report.is_clean());
        assert_eq!(found.all[1].address, Address::Ip6("fd00::1".parse().unwrap()));
    }

    #[test]
    fn partition_is_chosen_without_the_membership_bit() {
        assert!(PkeyChoice::Of(Pkey(1)).is(3, Pkey(0x8001)));
        assert!(!PkeyChoice::Of(Pkey(1)).is(3, Pkey(0x8002)));
        assert!(PkeyChoice::First.is(0, Pkey(5)));
        assert!(!PkeyChoice::First.is(1, Pkey(5)));
    }

    #[test]
    fn written_file_is_the_golden_one_and_is_read_again() {
        let all = [
            named("node1", "ibv0", 1, PkeyChoice::First),
            named("10.0.0.1", "ibv0", 1, PkeyChoice::Of(Pkey(0x80ff))),
            named("fd00::1", "ibv0", 2, PkeyChoice::First),
        ];
        let text = write(&all);
        let golden = "\
node1     ibv0 1 default
10.0.0.1  ibv0 1 0x80ff
fd00::1   ibv0 2 default
";
        assert_eq!(text, format!("{HEAD}{golden}"));
        let (found, report) = read(&text);
        assert_eq!(found.all, all);
        assert!(report.is_clean());
        assert!(text.lines().all(|line| line.len() <= 119));
    }

    #[test]
    fn address_lines_that_cannot_be_represented_are_not_written() {
        let good = named("a", "ibv0", 1, PkeyChoice::First);
        let bad = |address| Assignment { address, ..good.clone() };
        let name = |name: &str| Address::name(name).unwrap();
        let all = [
            bad(name("a b")),
            bad(name("#a")),
            bad(name("10.0.0.1")),
            bad(rdmux_wire::Lid(1).into()),
            Assignment { device: "a\nb".to_owned(), ..good.clone() },
        ];
        assert_eq!(write(&all), HEAD);
    }
}
