//! The route data file with `route_preload opensm_full_v1`: OpenSM's dump of all paths, one section per port.
//!
//! ```text
//! Channel Adapter 0x0002c90300000001, base LID 1, "node1 mlx5_0"
//! # LID : SL : MTU : RATE
//! 0x0002 : 0 : 4 : 3
//! 0x0003 : UNREACHABLE
//! ```
//!
//! The sections of local ports contain the routes, and the headings of all sections the LIDs of ports. A dump of a large subnet
//! is read line by line, and its memory depends on the number of ports, not of paths.

use std::collections::BTreeMap;
use std::io::BufRead;

use rdmux_wire::sa::Rate;
use rdmux_wire::{Guid, Lid, Mtu};

use crate::Report;
use crate::addresses::quoted;
use crate::lines::{Line, checked, each_raw_line};
use crate::problem::Reporter;

/// A port, as a section's heading names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DumpedPort {
    /// The port's GUID.
    pub guid: Guid,
    /// The port's first LID.
    pub base_lid: Lid,
}

/// A route from a local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The GUID of the port with that LID, if a heading names it.
    pub guid: Option<Guid>,
    /// Service level.
    pub sl: u8,
    /// The MTU of the whole path.
    pub mtu: Mtu,
    /// The rate of the route's slowest link.
    pub rate: Rate,
}

/// The routes in a dump.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Routes {
    /// The routes of each local port that has a section, by their destination LIDs. All LIDs are unicast.
    pub of: BTreeMap<DumpedPort, BTreeMap<Lid, Route>>,
}

/// Parses a dump, for these local ports. `name` is its name in problems. Lines in other ports' sections are ignored. LIDs
/// from 0xc000 on, which do not belong to ports, are skipped.
pub fn parse(name: &str, input: impl BufRead, local: &[DumpedPort]) -> (Routes, Report) {
    let mut problems = Reporter::new(name);
    let mut dump =
        Dump { local, section: Section::None, ports: BTreeMap::new(), routes: Routes::default() };
    each_raw_line(input, &mut problems, |number, bytes, problems| {
        // Also a heading that is too long ends the section before it.
        if KINDS.iter().any(|kind| bytes.trim_ascii_start().starts_with(kind.as_bytes())) {
            dump.section = Section::Other;
        }
        if let Some(bytes) = checked(number, bytes, problems) {
            // Each host chooses its description in headings, which may be any bytes.
            let text = String::from_utf8_lossy(bytes);
            dump.take(Line { number, text: &text }, problems);
        }
    });
    (dump.finish(), problems.finish())
}

/// The parser's state.
struct Dump<'a> {
    local: &'a [DumpedPort],
    section: Section,
    ports: BTreeMap<Lid, Guid>,
    routes: Routes,
}

/// The section of a line.
#[derive(Clone, Copy)]
enum Section {
    /// No section has started.
    None,
    /// The section of another port, or one with an invalid heading.
    Other,
    /// A local port's.
    Of(DumpedPort),
}

const KINDS: [&str; 3] = ["Channel Adapter", "Switch", "Router"];

impl Dump<'_> {
    fn take(&mut self, line: Line<'_>, problems: &mut Reporter<'_>) {
        let text = line.text.trim_ascii_start();
        let heading = KINDS.iter().find_map(|kind| text.strip_prefix(kind));
        let taken = match (heading, self.section) {
            (Some(rest), _) => self.heading(rest),
            (None, Section::Other) => Ok(()),
            (None, Section::None) => {
                Err("a line before the first section, which begins with Channel Adapter, Switch or Router"
                    .to_owned())
            }
            (None, Section::Of(port)) => self.route(port, text),
        };
        if let Err(what) = taken {
            problems.error(line.number, what);
        }
    }

    fn heading(&mut self, rest: &str) -> Result<(), String> {
        let port = heading(rest)?;
        let guid = *self.ports.entry(port.base_lid).or_insert(port.guid);
        if guid != port.guid {
            return Err(format!("LID {} belongs to {guid} in another section", port.base_lid));
        }
        if self.local.contains(&port) {
            self.routes.of.entry(port).or_default();
            self.section = Section::Of(port);
        }
        Ok(())
    }

    fn route(&mut self, port: DumpedPort, text: &str) -> Result<(), String> {
        if let Some((lid, route)) = route(text)? {
            self.routes.of.entry(port).or_default().insert(lid, route);
        }
        Ok(())
    }

    /// Completes the routes: sections of other ports may follow those with routes to them.
    fn finish(mut self) -> Routes {
        for (lid, route) in self.routes.of.values_mut().flatten() {
            route.guid = self.ports.get(lid).copied();
        }
        self.routes
    }
}

/// Parses `0xGUID, base LID N, ...`.
fn heading(rest: &str) -> Result<DumpedPort, String> {
    let wrong = || "a heading is KIND 0xGUID, base LID N, and more".to_owned();
    let mut parts = rest.split(',').map(str::trim_ascii);
    let guid = parts.next().and_then(|word| word.strip_prefix("0x")).ok_or_else(wrong)?;
    let guid = u64::from_str_radix(guid, 16).map_err(|_| wrong())?;
    let lid = parts.next().and_then(|part| part.strip_prefix("base LID")).ok_or_else(wrong)?;
    let lid = lid.split_ascii_whitespace().next().and_then(number).ok_or_else(wrong)?;
    let base_lid = u16::try_from(lid).map(Lid).ok().filter(|lid| lid.is_unicast());
    let base_lid = base_lid.ok_or_else(|| format!("LID {lid:#x} is not a unicast LID"))?;
    if guid == 0 {
        return Err("a port cannot have GUID 0".to_owned());
    }
    Ok(DumpedPort { guid: Guid(guid), base_lid })
}

/// Parses `LID : SL : MTU : RATE`; none if the LID is unreachable.
fn route(text: &str) -> Result<Option<(Lid, Route)>, String> {
    let mut parts = text.split(':').map(str::trim_ascii);
    let (lid, sl) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let value = number(lid).and_then(|lid| u16::try_from(lid).ok());
    let lid = value.map(Lid).ok_or_else(|| wrong_route(text))?;
    if sl.starts_with("UNREACHABLE") {
        return Ok(None);
    }
    let (mtu, rate) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let code =
        |text: &str, max| number(text).filter(|n| *n <= max).and_then(|n| u8::try_from(n).ok());
    let sl = code(sl, 15)
        .ok_or_else(|| format!("a service level is from 0 to 15, not {}", quoted(sl)))?;
    let mtu = code(mtu, 5).and_then(Mtu::from_code);
    let mtu = mtu.ok_or_else(|| format!("{text:?} has no MTU, a code from 1 (256) to 5 (4096)"))?;
    let rate = code(rate, 63).map(Rate).filter(|rate| rate.mbps() != 0);
    let rate =
        rate.ok_or_else(|| format!("{text:?} has no rate, a code of the IBTA specification"))?;
    if !lid.is_unicast() {
        return Err(format!("LID {lid} is not a unicast LID"));
    }
    Ok(Some((lid, Route { guid: None, sl, mtu, rate })))
}

fn wrong_route(text: &str) -> String {
    format!("a route is LID : SL : MTU : RATE, or LID : UNREACHABLE, not {}", quoted(text))
}

/// Parses a number, decimal or hexadecimal with 0x.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        None if !word.starts_with('+') => word.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: DumpedPort = DumpedPort { guid: Guid(0x11), base_lid: Lid(1) };

    const DUMP: &str = "\
Switch 0x0000000000000077, base LID 7, \"switch, with a comma\"
# LID : SL : MTU : RATE
0x0001 : 0 : 4 : 3
nonsense
Channel Adapter 0x0000000000000011, base LID 1, \"node1\"
0x0001 : 0 : 5 : 16
0x0002 : 3 : 4 : 3
0x0003 : UNREACHABLE
0x0007 : 0 : 4 : 3
Channel Adapter 0x0000000000000022, base LID 2, \"node2\"
0x0001 : 1 : 4 : 3
";

    #[test]
    fn routes_of_the_local_port_are_found_with_the_ports_they_lead_to() {
        let (routes, report) = parse("dump", DUMP.as_bytes(), &[LOCAL]);
        assert!(report.is_clean(), "{report}");
        let of: Vec<_> = routes.of[&LOCAL].iter().collect();
        let route = |guid, sl, mtu, rate| Route { guid: Some(Guid(guid)), sl, mtu, rate };
        let right = [
            (&Lid(1), &route(0x11, 0, Mtu::M4096, Rate::GBPS_100)),
            (&Lid(2), &route(0x22, 3, Mtu::M2048, Rate::GBPS_10)),
            (&Lid(7), &route(0x77, 0, Mtu::M2048, Rate::GBPS_10)),
        ];
        assert_eq!(of, right);
        let other = DumpedPort { base_lid: Lid(2), ..LOCAL };
        assert_eq!(parse("dump", DUMP.as_bytes(), &[other]).0, Routes::default());
    }

    #[test]
    fn heading_with_any_description_ends_the_section_before_it() {
        let local = b"Channel Adapter 0x11, base LID 1, \"n\xe91\"\n0x0002 : 3 : 4 : 3\n";
        let long = [b'x'; 2000];
        for (description, errors) in [(&b"n\xe92"[..], 0), (&b"\xff\xff"[..], 0), (&long, 1)] {
            let other = b"Channel Adapter 0x22, base LID 2, \"";
            let dump = [&local[..], other, description, b"\"\n0x0002 : 9 : 1 : 2\n"].concat();
            let (routes, report) = parse("dump", &dump[..], &[LOCAL]);
            let right = Route {
                guid: (errors == 0).then_some(Guid(0x22)),
                sl: 3,
                mtu: Mtu::M2048,
                rate: Rate::GBPS_10,
            };
            assert_eq!(routes.of[&LOCAL].get(&Lid(2)), Some(&right), "{report}");
            assert_eq!((report.errors(), report.warnings()), (errors, 0), "{report}");
        }
    }

    #[test]
    fn lids_above_those_of_ports_are_skipped() {
        let head = "Router 0x11, base LID 1, x\n";
        for lid in ["0", "0xc000", "0xfffe", "0xffff", "0x10000", "70000"] {
            let text = format!("{head}{lid} : 0 : 4 : 3\n0xbfff : 0 : 4 : 3\n");
            let (routes, report) = parse("dump", text.as_bytes(), &[LOCAL]);
            assert_eq!(routes.of[&LOCAL].keys().collect::<Vec<_>>(), [&Lid(0xbfff)], "{lid}");
            assert_eq!(report.errors(), 1, "{lid}");
            let text = format!("Switch 0x22, base LID {lid}, x\n");
            assert_eq!(parse("dump", text.as_bytes(), &[LOCAL]).1.errors(), 1, "{lid}");
        }
    }

    #[test]
    fn wrong_lines_are_told_and_the_others_used() {
        let text = "\
1 : 0 : 4 : 3
Switch 0x, base LID 1
Switch 0x11, base 1
Switch 0x11, base LID 1
2 : 16 : 4 : 3
2 : 0 : 6 : 3
2 : 0 : 4 : 99
2 : 0 : 4
x
3 : 0 : 4 : 3 : more
Switch 0x12, base LID 1
";
        let (routes, report) = parse("dump", text.as_bytes(), &[LOCAL]);
        assert_eq!(routes.of[&LOCAL].keys().collect::<Vec<_>>(), [&Lid(3)]);
        let right = "\
dump:1: error: a line before the first section, which begins with Channel Adapter, Switch or Router
dump:2: error: a heading is KIND 0xGUID, base LID N, and more
dump:3: error: a heading is KIND 0xGUID, base LID N, and more
dump:5: error: a service level is from 0 to 15, not \"16\"
dump:6: error: \"2 : 0 : 6 : 3\" has no MTU, a code from 1 (256) to 5 (4096)
dump:7: error: \"2 : 0 : 4 : 99\" has no rate, a code of the IBTA specification
dump:8: error: \"2 : 0 : 4\" has no rate, a code of the IBTA specification
dump:9: error: a route is LID : SL : MTU : RATE, or LID : UNREACHABLE, not \"x\"
dump:11: error: LID 0x0001 belongs to 0x0000000000000011 in another section
";
        assert_eq!(report.to_string(), right);
    }
}
