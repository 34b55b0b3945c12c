//! The address data file with `addr_preload acm_hosts`: the GIDs of names and addresses, one per line.
//!
//! ```text
//! node31    fe80::2:c903:1
//! 10.0.0.31 fe80::2:c903:1
//! ```

use std::collections::BTreeMap;
use std::io::BufRead;
use std::net::Ipv6Addr;

use rdmux_wire::Gid;
use rdmux_wire::acm::Address;

use crate::Report;
use crate::addresses::{address, quoted};
use crate::lines::{Line, each_line};
use crate::problem::Reporter;

/// The maximum number of addresses that are used.
pub const MAX_HOSTS: usize = 1 << 20;

/// GIDs by names and addresses.
pub type Hosts = BTreeMap<Address, Gid>;

/// Parses a hosts file. `name` is its name in problems. Of two lines with the same address, the first is used.
pub fn parse(name: &str, input: impl BufRead) -> (Hosts, Report) {
    let mut problems = Reporter::new(name);
    let mut hosts = Hosts::new();
    each_line(input, &mut problems, |line, problems| {
        if let Err(what) = host(line, &mut hosts, problems) {
            problems.error(line.number, what);
        }
    });
    (hosts, problems.finish())
}

fn host(line: Line<'_>, hosts: &mut Hosts, problems: &mut Reporter<'_>) -> Result<(), String> {
    let Some(([address, gid], more)) = line.fields() else {
        return Err("a line has two words: address, GID".to_owned());
    };
    if let Some(more) = more {
        problems
            .warning(line.number, format!("{} and the rest of the line are ignored", quoted(more)));
    }
    let (address, gid) = (self::address(address)?, self::gid(gid)?);
    if hosts.len() == MAX_HOSTS {
        return Err(format!("more than {MAX_HOSTS} addresses; this one is ignored"));
    }
    match hosts.get(&address) {
        None => {
            hosts.insert(address, gid);
        }
        Some(known) if *known == gid => {
            problems.warning(line.number, "a duplicate of an earlier line")
        }
        Some(known) => return Err(format!("{address} has GID {known} in an earlier line")),
    }
    Ok(())
}

fn gid(word: &str) -> Result<Gid, String> {
    let gid = word.parse::<Ipv6Addr>().map(Gid::from);
    let gid =
        gid.map_err(|_| format!("a GID is written like an IPv6 address, not {}", quoted(word)))?;
    if gid.is_zero() || gid.is_multicast() {
        return Err(format!("{gid} is not the GID of a port"));
    }
    Ok(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_file_maps_names_and_addresses_to_gids() {
        let text = "# hosts\nnode1 fe80::1\n10.0.0.1 fe80::1\nfd00::1 fe80::2\n";
        let (hosts, report) = parse("hosts", text.as_bytes());
        assert!(report.is_clean(), "{report}");
        let gid = |text: &str| Gid::from(text.parse::<Ipv6Addr>().unwrap());
        assert_eq!(hosts.len(), 3);
        assert_eq!(hosts[&Address::name("node1").unwrap()], gid("fe80::1"));
        assert_eq!(hosts[&Address::Ip6("fd00::1".parse().unwrap())], gid("fe80::2"));
    }

    #[test]
    fn wrong_lines_are_told_and_the_others_used() {
        let text = "\
a
a 10.0.0.1
a ::
a ff15::1
b fe80::1 c
b fe80::1
b fe80::2
";
        let (hosts, report) = parse("hosts", text.as_bytes());
        assert_eq!(hosts.len(), 1);
        let right = "\
hosts:1: error: a line has two words: address, GID
hosts:2: error: a GID is written like an IPv6 address, not \"10.0.0.1\"
hosts:3: error: :: is not the GID of a port
hosts:4: error: ff15::1 is not the GID of a port
hosts:5: warning: \"c\" and the rest of the line are ignored
hosts:6: warning: a duplicate of an earlier line
hosts:7: error: b has GID fe80::1 in an earlier line
";
        assert_eq!(report.to_string(), right);
    }
}
