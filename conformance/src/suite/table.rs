//! Which checks are run under which conditions.

use super::programs::{MORE, PROGRAMS};
use super::{Asks, Check, Family, Link, What};
use crate::exchange::{OBJECTS, RELIABLE, UNRELIABLE};

const PLAIN: Link = Link { mtu: 1024, loss: 0, offload: false };
const LARGE: Link = Link { mtu: 4096, loss: 0, offload: false };
const GSO: Link = Link { mtu: 1024, loss: 0, offload: true };
const LARGE_GSO: Link = Link { mtu: 4096, loss: 0, offload: true };
const LOSSY: Link = Link { mtu: 1024, loss: 2, offload: false };
const LARGE_LOSSY: Link = Link { mtu: 4096, loss: 2, offload: true };

/// All checks, in the order in which they are run: the wire is changed as seldom as possible.
pub fn table() -> Vec<Check> {
    use Family::{V4, V6};
    use What::{Datagrams, Icrc, Messages, Multicast, Refused, Rping, Verbs};
    let mut t = Table(Vec::new());
    for family in [V4, V6] {
        t.both(11, PLAIN, family, &[Rping { size: 64 }, Rping { size: 16384 }]);
        t.both(7, PLAIN, family, &[Refused, Messages, Datagrams]);
        t.both(3, PLAIN, family, &[Verbs(RELIABLE), Verbs(UNRELIABLE)]);
        t.both(5, PLAIN, family, &[Verbs(OBJECTS)]);
    }
    t.both(5, PLAIN, V4, &[Multicast]);
    for (family, programs) in [(V4, PROGRAMS), (V6, PROGRAMS), (V4, MORE)] {
        for program in programs {
            t.both(8, PLAIN, family, &[What::Program(program)]);
        }
    }
    for family in [V4, V6] {
        t.both(11, LARGE, family, &[Rping { size: 16384 }]);
    }
    t.both(11, LARGE, V4, &[Messages, Datagrams]);
    for family in [V4, V6] {
        t.both(11, GSO, family, &[Rping { size: 65535 }]);
        t.both(11, LARGE_GSO, family, &[Rping { size: 65535 }]);
    }
    t.both(3, LARGE_GSO, V4, &[Verbs(RELIABLE), Verbs(UNRELIABLE)]);
    for family in [V4, V6] {
        t.both(11, LOSSY, family, &[Rping { size: 16384 }, Messages]);
    }
    t.both(3, LOSSY, V4, &[Verbs(RELIABLE)]);
    for family in [V4, V6] {
        t.both(11, LARGE_LOSSY, family, &[Rping { size: 65535 }]);
    }
    t.one(11, PLAIN, V4, Asks::Kernel, Icrc);
    t.0
}

struct Table(Vec<Check>);

impl Table {
    fn one(&mut self, part: u8, link: Link, family: Family, asks: Asks, what: What) {
        self.0.push(Check { part, link, family, asks, what });
    }
    fn both(&mut self, part: u8, link: Link, family: Family, what: &[What]) {
        for &w in what {
            for asks in [Asks::Rdmux, Asks::Kernel] {
                self.one(part, link, family, asks, w);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows: Vec<String> = super::table().iter().flat_map(super::Check::rows).collect();
        let distinct: BTreeSet<&String> = rows.iter().collect();
        assert_eq!(distinct.len(), rows.len());
    }
}
